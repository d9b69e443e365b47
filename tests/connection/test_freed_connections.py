"""A closed connection is freed by reference counting alone.

The collector is off here: after any end of a connection no object that serves it may be left.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pamqp.commands as spec
import pamqp.frame
import pytest
import trustme
from freed_objects import WITHIN_S, EmbeddedServer, check_nothing_is_left, count_live_objects

HEADER = b"AMQP\x00\x00\x09\x01"
PERSISTENT = b"\x10\x00\x02"
TRANSIENT = b"\x00\x00"
# Modules all of whose objects belong to a connection; below, classes of other modules that a connection owns alone.
MODULES = ("amqpd.connection.", "amqpd.channel.", "amqpd.protocol.", "amqpd.management.server", "uvloop.loop.SSL")
OWNED_CLASSES = {"TCPTransport", "MessageTtl", "Lease", "SSLObject", "RequestHandler"}


class Client:
    """Blocking AMQP client over a raw socket."""

    def __init__(self, embedded: EmbeddedServer, tls: bool = False) -> None:
        self.embedded = embedded
        port = embedded.server.port("amqps" if tls else "amqp")
        self.socket = socket.create_connection(("127.0.0.1", port), WITHIN_S)
        if tls:
            self.socket = embedded.trust.wrap_socket(self.socket, server_hostname="localhost")
        self._data = b""

    def say(self, *methods: Any, channel: int = 1) -> None:
        self.socket.sendall(b"".join([pamqp.frame.marshal(method, channel) for method in methods]))

    def wait(self, name: str) -> None:
        while True:
            while len(self._data) < 7 or len(self._data) < 8 + struct.unpack_from(">I", self._data, 3)[0]:
                data = self.socket.recv(65536)
                assert data, f"the stream ended before {name}"
                self._data += data
            size, _, value = pamqp.frame.unmarshal(self._data)
            self._data = self._data[size:]
            if getattr(value, "name", "") == name:
                return

    def start(self, password: str = "guest") -> Client:
        capabilities = {"authentication_failure_close": True}
        self.socket.sendall(HEADER)
        self.say(spec.Connection.StartOk({"capabilities": capabilities}, "PLAIN", f"\0guest\0{password}"), channel=0)
        return self

    def open(self) -> Client:
        self.start()
        self.wait("Connection.Tune")
        self.say(spec.Connection.TuneOk(2047, 131072, 0), spec.Connection.Open("/"), channel=0)
        self.wait("Connection.OpenOk")
        self.say(spec.Channel.Open())
        self.wait("Channel.OpenOk")
        return self

    def publish(self, queue: str, bodies: list[bytes], properties: bytes = TRANSIENT, missing: int = 0) -> None:
        parts = []
        for body in bodies:
            header = b"\x00\x3c\x00\x00" + (len(body) + missing).to_bytes(8, "big") + properties
            parts.append(pamqp.frame.marshal(spec.Basic.Publish(routing_key=queue), 1))
            parts.append(b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce")
            for start in range(0, len(body), 100_000):
                piece = body[start : start + 100_000]
                parts.append(b"\x03\x00\x01" + len(piece).to_bytes(4, "big") + piece + b"\xce")
        self.socket.sendall(b"".join(parts))

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


# -- ends ------------------------------------------------------------------------------------------------------------


def closes_politely(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Connection.Close(200, "bye", 0, 0), channel=0)
    client.wait("Connection.CloseOk")
    client.close()


def ends_the_stream(embedded: EmbeddedServer) -> None:
    Client(embedded).open().close()


def resets(embedded: EmbeddedServer) -> None:
    Client(embedded).open().reset()


def says_nothing(embedded: EmbeddedServer) -> None:
    Client(embedded).close()


def leaves_in_the_handshake(embedded: EmbeddedServer) -> None:
    client = Client(embedded)
    client.socket.sendall(HEADER)
    client.wait("Connection.Start")
    client.close()


def leaves_while_its_password_is_checked(embedded: EmbeddedServer) -> None:
    Client(embedded).start().reset()


def knows_no_password(embedded: EmbeddedServer) -> None:
    client = Client(embedded).start("wrong")
    client.wait("Connection.Close")
    client.close()


def over_tls(embedded: EmbeddedServer) -> None:
    client = Client(embedded, tls=True).open()
    client.publish("nowhere", [bytes(100_000)] * 3)
    client.close()


def resets_over_tls(embedded: EmbeddedServer) -> None:
    Client(embedded, tls=True).open().reset()


def is_closed_from_outside(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    embedded.call(lambda: [each.control.force("a test") for each in embedded.server.connections])
    client.wait("Connection.Close")
    client.say(spec.Connection.CloseOk(), channel=0)
    client.close()


def is_aborted(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    embedded.call(embedded.server.amqp.heartbeats.abort_all)
    with contextlib.suppress(ConnectionResetError):
        client.socket.recv(1)
    client.close()


def makes_a_hard_error(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Channel.Open())
    client.wait("Connection.Close")
    client.reset()


# -- ends with work in progress ---------------------------------------------------------------------------------------


def leaves_half_a_body(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.publish("nowhere", [bytes(3_000_000)], missing=50_000_000)
    client.reset()


def leaves_a_channel_that_waits_for_close_ok(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Queue.Declare(queue="none", passive=True))
    client.wait("Channel.Close")
    client.reset()


def consumes_with_windows(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Queue.Declare(queue="shared"), spec.Queue.Purge(queue="shared"))
    client.say(spec.Basic.Consume(queue="shared"), spec.Basic.Qos(prefetch_count=2, global_=True))
    client.say(spec.Basic.Qos(prefetch_count=1), spec.Basic.Consume(queue="shared"))
    client.publish("shared", [b"unacked"] * 9)
    client.wait("Basic.Deliver")
    client.reset()


def does_not_read_what_it_consumes(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Queue.Declare(queue="full"), spec.Queue.Purge(queue="full"))
    client.say(spec.Basic.Consume(queue="full"))
    client.publish("full", [bytes(100_000)] * 60)
    client.wait("Basic.Deliver")
    client.reset()


def reads_a_stream(embedded: EmbeddedServer) -> None:
    """Consume a stream by tag, as a named consumer, and in a transaction. One of three consumers is cancelled."""
    client = Client(embedded).open()
    client.say(spec.Queue.Declare(queue="kept", durable=True, arguments={"x-queue-type": "stream"}))
    client.publish("kept", [b"x"] * 9, PERSISTENT)
    client.say(spec.Basic.Qos(prefetch_count=3))
    for tag in ("gone", "stays"):
        arguments: dict[str, Any] = {"x-stream-offset": "first"}
        client.say(spec.Basic.Consume(queue="kept", consumer_tag=tag, arguments=arguments))
        client.wait("Basic.Deliver")
    client.say(spec.Basic.Cancel("gone"))
    client.wait("Basic.CancelOk")
    client.say(spec.Basic.Ack(1), spec.Tx.Select(), spec.Basic.Ack(3))
    client.wait("Tx.SelectOk")
    arguments = {"x-stream-offset": "first", "x-stream-consumer-name": "n"}
    client.say(spec.Basic.Consume(queue="kept", arguments=arguments))
    client.wait("Basic.Deliver")
    client.reset()


def owns_queues_and_replies(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True))
    for arguments in ({}, {"x-message-ttl": 60_000}, {"x-expires": 60_000}, {"x-max-priority": 3}):
        client.say(spec.Queue.Declare(exclusive=True, arguments=arguments))
        client.wait("Queue.DeclareOk")
        client.publish("", [b"kept"] * 3)
    client.say(spec.Queue.Declare(queue="mine", exclusive=True), spec.Basic.Consume(queue="mine"))
    client.publish("mine", [b"unacked"] * 3)
    client.wait("Basic.Deliver")
    client.reset()


def waits_for_confirms(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Queue.Declare(queue="durable", durable=True), spec.Confirm.Select())
    client.wait("Confirm.SelectOk")
    client.publish("durable", [b"x"] * 60, PERSISTENT)
    client.reset()


def commits(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.say(spec.Queue.Declare(queue="durable", durable=True), spec.Tx.Select())
    client.wait("Tx.SelectOk")
    client.publish("durable", [b"x"] * 60, PERSISTENT)
    client.say(spec.Tx.Commit())
    client.publish("durable", [b"x"] * 60, PERSISTENT)
    client.reset()


def declares(embedded: EmbeddedServer) -> None:
    """The channel is busy and commands wait behind it."""
    client = Client(embedded).open()
    for queue in ("one", "two"):
        client.say(spec.Queue.Delete(queue=queue), spec.Queue.Declare(queue=queue, durable=True))
    client.publish("one", [b"x"] * 60)
    client.reset()


# -- the admin API ---------------------------------------------------------------------------------------------------

AUTH = b"Host: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"


def http(embedded: EmbeddedServer, request: bytes, wait_for_reply: bool = True) -> None:
    with socket.create_connection(("127.0.0.1", embedded.server.port("http")), WITHIN_S) as client_socket:
        client_socket.sendall(request)
        if wait_for_reply:
            assert client_socket.recv(65536)
        else:
            time.sleep(0.1)  # the server must be processing the request when the socket closes


def asks_the_api(embedded: EmbeddedServer) -> None:
    http(embedded, b"GET /api/overview HTTP/1.1\r\n" + AUTH + b"\r\n")


def asks_for_nothing_there_is(embedded: EmbeddedServer) -> None:
    http(embedded, b"GET /api/none HTTP/1.1\r\n" + AUTH + b"\r\n")


def speaks_no_http(embedded: EmbeddedServer) -> None:
    http(embedded, b"\x00\x01\x02 hello\r\n\r\n")


def says_nothing_to_the_api(embedded: EmbeddedServer) -> None:
    http(embedded, b"", wait_for_reply=False)


def leaves_half_a_request(embedded: EmbeddedServer) -> None:
    half = b"PUT /api/users/x HTTP/1.1\r\n" + AUTH + b"Content-Length: 100\r\n\r\nhalf"
    http(embedded, half, wait_for_reply=False)


ENDS = [
    closes_politely,
    ends_the_stream,
    resets,
    says_nothing,
    leaves_in_the_handshake,
    leaves_while_its_password_is_checked,
    knows_no_password,
    over_tls,
    resets_over_tls,
    is_closed_from_outside,
    is_aborted,
    makes_a_hard_error,
    leaves_half_a_body,
    leaves_a_channel_that_waits_for_close_ok,
    consumes_with_windows,
    does_not_read_what_it_consumes,
    reads_a_stream,
    owns_queues_and_replies,
    waits_for_confirms,
    commits,
    declares,
    asks_the_api,
    asks_for_nothing_there_is,
    speaks_no_http,
    says_nothing_to_the_api,
    leaves_half_a_request,
]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path_factory.mktemp("broker"), trustme.CA())
    http(server, b"GET /api/overview HTTP/1.1\r\n" + AUTH + b"\r\n")  # modules that are imported late are loaded
    yield server
    server.stop()


def count_connection_objects() -> Counter[str]:
    return count_live_objects(MODULES, OWNED_CLASSES)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_closed_connection_leaves_no_objects(
    embedded: EmbeddedServer, no_collector: None, end: Callable[[EmbeddedServer], None]
) -> None:
    before = count_connection_objects()
    for _ in range(3):
        end(embedded)
    check_nothing_is_left(count_connection_objects, before)


def test_open_connection_is_counted(embedded: EmbeddedServer, no_collector: None) -> None:
    """So it would find objects that are left, compiled or not."""
    before = count_connection_objects()
    client = Client(embedded).open()
    client.say(spec.Queue.Declare(exclusive=True, arguments={"x-message-ttl": 60_000}))
    client.wait("Queue.DeclareOk")
    client.say(spec.Basic.Consume())
    client.wait("Basic.ConsumeOk")
    names = {name.rpartition(".")[2] for name in count_connection_objects() - before}
    expected = {"Transport", "ChannelZero", "Connection", "FrameParser", "Channel", "ChannelConsumer", "MessageTtl"}
    assert names >= expected
    client.close()
