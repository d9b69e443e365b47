"""The connection of a Kafka client is freed by reference counting alone, whatever it was doing at its end.

The collector is off here: see house/freed_objects.py.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

import pika
import pytest
import trustme
from consumer_group_client import HEARTBEAT, heartbeat_body
from freed_objects import EmbeddedServer, check_nothing_is_left, count_live_objects
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.protocol.consumer import FetchRequest, JoinGroupRequest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafka_socket import KafkaSocket, build, until
from share_client import ShareMember
from transaction_client import TransactionClient, batch

from amqpd.kafka_server.connection import KafkaClientConnection
from amqpd.kafka_server.server import KafkaFrontEnd

# Modules all of whose objects belong to a connection; below, classes of other modules.
MODULES = tuple(
    f"amqpd.kafka_server.{each}."
    for each in ("connection", "fetch", "produce", "sasl", "share_queue", "share_sessions")
)
OWNED_CLASSES = {"TCPTransport", "SSLObject", "RequestReader"}
STAYS = {"RequestStats", "RequestTimes", "Api", "WaitingFetches", "ShareSessions", "KafkaServer"}
QUEUE, STREAM = "freed-queue", "freed-stream"
VALUE_BYTES = 1 << 18


class Client(KafkaSocket):
    """A client on the plain or the TLS port of the server."""

    def __init__(self, embedded: EmbeddedServer, tls: bool = False) -> None:
        super().__init__(address(embedded, "kafkas" if tls else "kafka"))
        if tls:
            self.socket = embedded.trust.wrap_socket(self.socket, server_hostname="localhost")

    def open(self, password: bytes = b"guest") -> Self:
        self.ask(ApiVersionsRequest(), 0)
        self.ask(build(SaslHandshakeRequest, {"mechanism": "PLAIN"}, 1), 1)
        assert self.ask(sasl_message(b"\0guest\0" + password), 1).error_code == 0
        return self

    def produce(self, topic: str, *values: bytes) -> None:
        """Send a batch, and do not wait for its answer."""
        partition = {"index": 0, "records": batch((-1, -1), -1, list(values), False)}
        topics = [{"name": topic, "partition_data": [partition]}]
        fields = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": topics}
        self.send(build(ProduceRequest, fields, 9), 9)

    def fetch(self, topic: str, offset: int, wait_ms: int = 0) -> None:
        """Ask for records, and do not wait for the answer."""
        partition = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "log_start_offset": -1,
            "partition_max_bytes": 16 << 20,
        }
        fields: dict[str, Any] = {
            "replica_id": -1,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": 16 << 20,
            "isolation_level": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        self.send(build(FetchRequest, fields, 11), 11)

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def address(embedded: EmbeddedServer, listener: str = "kafka") -> str:
    return f"127.0.0.1:{embedded.server.port(listener)}"


def sasl_message(message: bytes) -> Any:
    return build(SaslAuthenticateRequest, {"auth_bytes": message}, 1)


def connections_of(embedded: EmbeddedServer) -> list[KafkaClientConnection]:
    (front_end,) = [each for each in embedded.server.front_ends if isinstance(each, KafkaFrontEnd)]
    return list(front_end.server.connections)


# -- ends ------------------------------------------------------------------------------------------------------------


def says_nothing(embedded: EmbeddedServer) -> None:
    Client(embedded).close()


def logs_in_and_leaves(embedded: EmbeddedServer) -> None:
    Client(embedded).open().close()


def resets(embedded: EmbeddedServer) -> None:
    Client(embedded).open().reset()


def over_tls(embedded: EmbeddedServer) -> None:
    client = Client(embedded, tls=True).open()
    client.produce(QUEUE, b"x")
    client.receive()
    client.close()


def resets_over_tls(embedded: EmbeddedServer) -> None:
    Client(embedded, tls=True).open().reset()


def knows_no_password(embedded: EmbeddedServer) -> None:
    client = Client(embedded)
    with contextlib.suppress(AssertionError):
        client.open(uuid.uuid4().bytes)
    assert client.is_closed()
    client.close()


def leaves_while_its_password_is_checked(embedded: EmbeddedServer) -> None:
    client = Client(embedded)
    client.ask(build(SaslHandshakeRequest, {"mechanism": "PLAIN"}, 1), 1)
    client.send(sasl_message(b"\0guest\0guest"), 1)
    client.reset()


def leaves_in_scram(embedded: EmbeddedServer) -> None:
    client = Client(embedded)
    client.ask(build(SaslHandshakeRequest, {"mechanism": "SCRAM-SHA-256"}, 1), 1)
    assert client.ask(sasl_message(b"n,,n=guest,r=abc"), 1).error_code == 0
    client.close()


def leaves_half_a_request(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.send_bytes(struct.pack(">ihhih", 900_000, 0, 9, 7, 4) + b"half" + bytes(300_000))
    client.reset()


def sends_no_request(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    assert client.is_closed()
    client.close()


def is_closed_from_outside(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    embedded.call(lambda: [each.force("a test") for each in connections_of(embedded)])
    assert client.is_closed()
    client.close()


# -- ends with work in progress --------------------------------------------------------------------------------------


def produces(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    for _ in range(20):
        client.produce(QUEUE, b"x" * 100)
        client.produce(STREAM, b"x" * 100)
    client.reset()


def produces_during_an_alarm(embedded: EmbeddedServer) -> None:
    alarms = embedded.server.broker.alarms
    client = Client(embedded).open()
    embedded.call(lambda: alarms.set_alarm("memory", True))
    try:
        client.produce(QUEUE, b"x" * 100)
        client.fetch(STREAM, 0)
        client.reset()
    finally:
        embedded.call(lambda: alarms.set_alarm("memory", False))


def waits_for_records(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    client.fetch(STREAM, 10_000_000, wait_ms=60_000)
    client.fetch("none", 0, wait_ms=60_000)
    client.reset()


def does_not_read(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    for _ in range(8):
        client.produce(STREAM, bytes(VALUE_BYTES))
        client.receive()
    for _ in range(20):
        client.fetch(STREAM, 0)
    client.reset()


def waits_in_a_group(embedded: EmbeddedServer) -> None:
    """Two members: each join waits for the other member."""
    clients = [Client(embedded).open(), Client(embedded).open()]
    group = f"freed-{uuid.uuid4().hex}"
    for client in clients:
        protocol = {"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}
        fields = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [protocol],
            "reason": None,
        }
        answer = client.ask(build(JoinGroupRequest, fields, 5), 5)
        client.send(build(JoinGroupRequest, {**fields, "member_id": answer.member_id}, 5), 5)
    for client in clients:
        client.reset()


def is_a_member_of_the_new_protocol(embedded: EmbeddedServer) -> None:
    client = Client(embedded).open()
    body = heartbeat_body(1, f"freed-{uuid.uuid4().hex}", uuid.uuid4().hex, 0, names=[STREAM], timeout_ms=60_000)
    client.send_frame(HEARTBEAT, 1, body, b"\0")
    client.receive()
    client.reset()


def leaves_a_transaction_open(embedded: EmbeddedServer) -> None:
    client = TransactionClient(address(embedded))
    assert client.init() == 0
    assert client.add(STREAM) == [0]
    assert client.produce(STREAM, b"x") == 0
    client.close()


def share_consumer(embedded: EmbeddedServer, topic: str) -> None:
    client = Client(embedded).open()
    client.produce(topic, b"1", b"2")
    client.receive()
    client.close()
    with ShareMember(address(embedded), f"freed-{topic}", topic) as member:
        assert member.heartbeat(0, [topic])[0] == 0
        assert member.fetch().error == 0
        member.send_fetch(wait_ms=60_000)


def consumes_a_shared_queue(embedded: EmbeddedServer) -> None:
    share_consumer(embedded, QUEUE)


def consumes_a_shared_stream(embedded: EmbeddedServer) -> None:
    share_consumer(embedded, STREAM)


ENDS = [
    says_nothing,
    logs_in_and_leaves,
    resets,
    over_tls,
    resets_over_tls,
    knows_no_password,
    leaves_while_its_password_is_checked,
    leaves_in_scram,
    leaves_half_a_request,
    sends_no_request,
    is_closed_from_outside,
    produces,
    produces_during_an_alarm,
    waits_for_records,
    does_not_read,
    waits_in_a_group,
    is_a_member_of_the_new_protocol,
    leaves_a_transaction_open,
    consumes_a_shared_queue,
    consumes_a_shared_stream,
]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    path = tmp_path_factory.mktemp("broker")
    tls = {"kafka.tls.port": 0, "kafka.tls.certificate": path / "certificate.pem", "kafka.tls.key": path / "key.pem"}
    more = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.anonymous_user": "guest", **tls}
    server = EmbeddedServer(path, trustme.CA(), **more)
    admin = KafkaAdminClient(bootstrap_servers=address(server))
    admin.create_topics([NewTopic(STREAM, 1, 1)])
    admin.close()
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.server.port("amqp"))) as connection:
        connection.channel().queue_declare(QUEUE, durable=True)
    yield server
    server.stop()


def count_client_objects() -> Counter[str]:
    found = count_live_objects(MODULES, OWNED_CLASSES)
    return Counter({name: count for name, count in found.items() if name.rpartition(".")[2] not in STAYS})


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_closed_client_leaves_no_objects(
    embedded: EmbeddedServer, no_collector: None, end: Callable[[EmbeddedServer], None]
) -> None:
    before = count_client_objects()
    for _ in range(3):
        end(embedded)
    check_nothing_is_left(count_client_objects, before)


def test_open_client_is_counted(embedded: EmbeddedServer, no_collector: None) -> None:
    """So it would find objects that are left, compiled or not."""
    before = count_client_objects()
    client = Client(embedded).open()
    client.fetch(STREAM, 10_000_000, wait_ms=60_000)
    until(lambda: {"TCPTransport", "KafkaClientConnection", "Call"} <= names(count_client_objects() - before))
    client.close()


def names(found: Counter[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in found}
