"""The handshake, from the first byte to open-ok. Cases that wait for a deadline or a penalty are in test_timeouts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from cases import CHUNKINGS
from parties import Broker
from peer import Closed, Peer
from wire import BODY, METHOD, PROTOCOL, Field, frame, method, method_payload, publish, table

CAPABILITIES = {
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
}


@pytest.fixture(params=CHUNKINGS)
def fresh(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A connected socket before any byte is sent."""
    with broker.peer("h", request.param) as peer:
        peer.bytewise_now()
        yield peer


def skip_on_rabbit(broker: Broker, rabbit_behaviour: str) -> None:
    if broker.is_rabbit:
        pytest.skip(f"RabbitMQ 3.10.8: {rabbit_behaviour}")


FOREIGN = {
    "A1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "A2": bytes.fromhex("16030100c8010000c40303") + bytes(range(100)),
    "A3": b"AMQP\x00\x00\x08\x00",
    "A4": b"AMQP\x01\x01\x00\x0a",
    "A5": b"AMQP\x00\x01\x00\x00",
    "A5b": b"AMQP\x03\x01\x00\x00",
    "A7": b"AMQP\x00\x00\x09\x02",
    "A7-100-3": b"AMQP\x00\x64\x03\x00",
    "A8": b"\x8f\x13\x00\xff\xfe\x42\x99\x01",
}


@pytest.mark.parametrize("hello", FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_header_is_answered_with_header_and_close(fresh: Peer, hello: bytes) -> None:
    """The reply is exactly eight bytes, then the end of the stream."""
    fresh.send(hello)
    assert read_all(fresh, 30.0) == PROTOCOL


def read_all(peer: Peer, within: float) -> bytes:
    """Return all bytes up to the end of the stream. A reset counts as the end, since the broker may not read all our
    bytes.
    """
    peer.socket.settimeout(within)
    got = b""
    while True:
        try:
            more = peer.socket.recv(65536)
        except ConnectionResetError:
            return got
        if not more:
            return got
        got += more


@pytest.mark.parametrize("hello", [b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x00\x09"], ids=["A3b", "A6"])
def test_headers_of_0_8_and_0_9_are_accepted(fresh: Peer, hello: bytes) -> None:
    """As RabbitMQ does: clients that send these headers speak 0-9-1."""
    fresh.send(hello)
    fresh.expect("connection.start", 0)


def test_start_has_server_properties_and_mechanisms(fresh: Peer) -> None:
    from pamqp.decode import field_table

    start = fresh.start()
    assert (start["version_major"], start["version_minor"]) == (0, 9)
    assert start["mechanisms"].split()[:2] in ([b"PLAIN", b"AMQPLAIN"], [b"AMQPLAIN", b"PLAIN"])
    assert b"en_US" in start["locales"].split()
    taken, properties = field_table(start["server_properties"])
    assert taken == len(start["server_properties"])
    for name in ("product", "version", "platform", "copyright", "information", "cluster_name"):
        assert isinstance(properties[name], str), name
        assert properties[name], name
    capabilities = properties["capabilities"]
    assert {name for name, value in capabilities.items() if value is True} >= CAPABILITIES


def test_tune_offers_the_defaults(fresh: Peer) -> None:
    tune = fresh.handshake()
    assert (tune["channel_max"], tune["frame_max"], tune["heartbeat"]) == (2047, 131072, 60)
    fresh.channel()
    fresh.fence()


def test_login_with_amqplain(fresh: Peer) -> None:
    answer = table({"LOGIN": fresh.user, "PASSWORD": fresh.password})[4:]
    fresh.handshake(mechanism="AMQPLAIN", response=answer)
    fresh.channel()


def test_large_start_ok_is_accepted(broker: Broker, fresh: Peer) -> None:
    """B12: a frame before authentication may have up to 8192 bytes, 4096 of them client properties."""
    skip_on_rabbit(broker, "takes 4096")
    bare = len(method_payload("connection.start-ok", client_properties={"pad": b""}, response="\0guest\0guest"))
    fresh.handshake(client_properties={"pad": bytes(4097 - bare - len("PLAIN") - len("en_US"))})
    fresh.channel()


def test_long_response_is_parsed(broker: Broker, fresh: Peer) -> None:
    """B12 with a password of 8000 bytes: wrong, but parsed."""
    skip_on_rabbit(broker, "takes 4096")
    fresh.start()
    fresh.send(fresh.start_ok(response=b"\0guest\0" + b"p" * 8000))
    got = fresh.expect("connection.close", 0)
    assert got["reply_code"] == 403


def test_all_field_types_in_client_properties(fresh: Peer) -> None:
    client_properties = {letter: Field(letter, 1) for letter in "IlbBsui"} | {
        "V": None,
        "x": Field("x", b"\0"),
        "A": [1, {}],
    }
    client_properties |= {
        "D": Field("D", (2, 314)),
        "f": Field("f", 1.5),
        "d": 1.5,
        "T": Field("T", 1),
        "F": {"t": True},
    }
    fresh.handshake(client_properties=client_properties)
    fresh.channel()


@pytest.mark.parametrize("limits", [(0, 131072), (2047, 0), (0, 0)], ids=["B18b", "B18", "B18-both"])
def test_tune_ok_with_zero_selects_server_limits(broker: Broker, fresh: Peer, limits: tuple[int, int]) -> None:
    """A 0 in tune-ok selects the server's value (the Java client sends the value that it was configured with)."""
    skip_on_rabbit(broker, "drops the socket after 3 s")
    fresh.handshake(channel_max=limits[0], frame_max=limits[1])
    fresh.channel()
    fresh.queue()
    fresh.chunking = "whole"
    fresh.publish(payload=bytes(500_000))
    content = fresh.get()
    assert content is not None
    assert len(content.body) == 500_000


@pytest.mark.parametrize(
    "limits",
    [(2047, 1024, 0), (2047, 100, 0), (2047, 4095, 0), (2047, 131073, 0), (65535, 131072, 0), (2048, 131072, 0)],
    ids=["B15", "B15-100", "B15b", "B16", "B17", "B17-2048"],
)
def test_tune_ok_outside_the_offer_is_refused(broker: Broker, fresh: Peer, limits: tuple[int, int, int]) -> None:
    skip_on_rabbit(broker, "drops the socket")
    fresh.start()
    fresh.send(fresh.start_ok())
    fresh.expect("connection.tune", 0)
    fresh.send(fresh.tune_ok(*limits))
    fresh.expect_connection_close(530)


def test_smallest_frame_max_is_4096(fresh: Peer) -> None:
    """The limit applies to both directions."""
    fresh.handshake(frame_max=4096)
    fresh.channel()
    fresh.queue()
    fresh.chunking = "whole"
    payload = bytes(range(256)) * 64
    fresh.publish(payload=payload, frame_max=4096)
    content = fresh.get()
    assert content is not None
    assert content.body == payload
    fresh.send(frame(BODY, 1, bytes(4097)))
    fresh.expect_connection_close(501, 0, 0, "type 3, all octets = <<>>: {frame_too_large,4097,4088}")


def test_b19_open_before_tune_ok_is_refused(broker: Broker, fresh: Peer) -> None:
    skip_on_rabbit(broker, "drops the socket")
    fresh.start()
    fresh.send(fresh.start_ok())
    fresh.expect("connection.tune", 0)
    fresh.send(fresh.open())
    fresh.expect_connection_close(504)


@pytest.mark.parametrize("vhost", ["nosuch", "../../etc", "/../", "a\r\nb"], ids=["B20", "B20b", "B20b-root", "lines"])
def test_unknown_vhost_is_refused(fresh: Peer, vhost: str) -> None:
    """RabbitMQ repeats the name unchanged."""
    fresh.start()
    fresh.send(fresh.start_ok())
    fresh.expect("connection.tune", 0)
    fresh.send(fresh.tune_ok(), fresh.open(vhost))
    fresh.expect_connection_close(530, 10, 40, f"vhost {vhost} not found")


def expect_handshake(peer: Peer) -> None:
    """Receive the answers to a handshake in one segment that ends with channel.open."""
    for name, channel in [
        ("connection.start", 0),
        ("connection.tune", 0),
        ("connection.open-ok", 0),
        ("channel.open-ok", 1),
    ]:
        peer.expect(name, channel)


def test_pipelined_handshake(fresh: Peer) -> None:
    """F5: all client frames in one segment, including those of the first channel."""
    fresh.send(
        PROTOCOL,
        fresh.start_ok(),
        fresh.tune_ok(),
        fresh.open(),
        method("channel.open"),
        method("queue.declare", queue=fresh.q, exclusive=True),
    )
    expect_handshake(fresh)
    fresh.expect("queue.declare-ok")


def test_pipelined_frames_have_the_negotiated_size(fresh: Peer) -> None:
    """The frames follow tune-ok in one segment. Frames before tune-ok have at most 8192 bytes."""
    payload = b"x" * 10_000  # in two frames, the first of 8500 bytes
    fresh.send(
        PROTOCOL,
        fresh.start_ok(),
        fresh.tune_ok(),
        fresh.open(),
        method("channel.open"),
        publish(f"no-{fresh.q}", payload, mandatory=True, frame_max=8508),
    )
    expect_handshake(fresh)
    assert fresh.content("basic.return").body == payload


def test_pipelined_frames_above_the_negotiated_size_are_refused(fresh: Peer) -> None:
    tune_ok = method("connection.tune-ok", 0, frame_max=4096)
    fresh.send(PROTOCOL, fresh.start_ok(), tune_ok, fresh.open(), method("channel.open"), frame(BODY, 1, bytes(5000)))
    expect_handshake(fresh)
    fresh.expect_connection_close(501, 0, 0, "type 3, all octets = <<>>: {frame_too_large,5000,4088}")


RUNNING_STATE = "unexpected method in connection state running"
Row = tuple[Callable[[Peer], bytes], tuple[int, int | None, int | None, str | None], str]
RUNNING: dict[str, Row] = {
    "B22": (lambda peer: peer.open(), (504, 10, 40, RUNNING_STATE), ""),
    "B23": (lambda peer: peer.start_ok(), (504, 10, 11, RUNNING_STATE), ""),
    "B24": (lambda peer: method("connection.secure-ok", 0), (504, 10, 21, RUNNING_STATE), ""),
    "B25": (lambda peer: frame(METHOD, 0, b"\0\x0a\0\x63"), (540, None, None, None), "drops the socket"),
    "B26": (lambda peer: method("queue.declare", 0, queue="q"), (504, 50, 10, RUNNING_STATE), ""),
    "B27": (lambda peer: method("connection.close-ok", 0), (504, 10, 51, RUNNING_STATE), ""),
    "B28": (lambda peer: method("connection.start", 0), (504, 10, 10, RUNNING_STATE), ""),
    "B28-tune": (lambda peer: method("connection.tune", 0), (504, 10, 30, RUNNING_STATE), ""),
    "B28-blocked": (lambda peer: method("connection.blocked", 0), (504, 10, 60, RUNNING_STATE), ""),
}


@pytest.mark.parametrize("row", RUNNING.values(), ids=RUNNING.keys())
def test_handshake_methods_on_open_connection_are_errors(broker: Broker, fresh: Peer, row: Row) -> None:
    build, expected_close, rabbit_behaviour = row
    if rabbit_behaviour:
        skip_on_rabbit(broker, rabbit_behaviour)
    fresh.handshake()
    fresh.send(build(fresh))
    fresh.expect_connection_close(*expected_close)


def test_close_is_answered_before_socket_closes(fresh: Peer) -> None:
    fresh.handshake()
    fresh.channel()
    fresh.send(method("connection.close", 0, reply_code=200, reply_text="bye"))
    fresh.expect("connection.close-ok", 0)
    # The client ends the stream first: in clients with threads, an end that overtakes close-ok looks like a failure.
    with pytest.raises(TimeoutError):
        fresh.read(0.3)
    fresh.socket.shutdown(socket.SHUT_WR)
    fresh.expect_silent_close(30.0)


@pytest.mark.parametrize("earlier", [(), ("queue.declare", "queue.delete")], ids=["idle", "busy"])
def test_frames_behind_close_are_discarded(fresh: Peer, earlier: tuple[str, ...]) -> None:
    """Commands before it are done and answered. Close-ok is the last frame."""
    fresh.handshake()
    fresh.channel()
    arguments = {"queue.declare": {"queue": fresh.q, "durable": True}, "queue.delete": {"queue": fresh.q}}
    commands = [method(name, **arguments[name]) for name in earlier]
    fresh.send(*commands, method("connection.close", 0), *late_commands(fresh))
    for name in earlier:
        fresh.expect(f"{name}-ok")
    fresh.expect("connection.close-ok", 0)
    fresh.socket.shutdown(socket.SHUT_WR)
    fresh.expect_silent_close(30.0)


def late_commands(peer: Peer) -> list[bytes]:
    return [method("channel.open", 2), method("queue.declare", 2, queue=f"late-{peer.q}", exclusive=True)]


def test_close_ends_the_handshake(broker: Broker, fresh: Peer) -> None:
    """A connection that has answered a close must not open."""
    skip_on_rabbit(broker, "an error, because the connection is not open")
    fresh.start()
    fresh.send(fresh.start_ok(), fresh.tune_ok(), method("connection.close", 0), fresh.open(), *late_commands(fresh))
    fresh.expect("connection.tune", 0)
    fresh.expect("connection.close-ok", 0)
    fresh.socket.shutdown(socket.SHUT_WR)
    fresh.expect_silent_close(30.0)


def test_update_secret_is_answered(fresh: Peer) -> None:
    """The broker always answers it."""
    fresh.handshake()
    fresh.send(method("connection.update-secret", 0, new_secret="fresh", reason="expired"))
    fresh.expect("connection.update-secret-ok", 0)


def test_client_disconnects_at_any_byte_of_handshake(broker: Broker) -> None:
    """Port scanners and restarts do this; the witness and the log show whether the broker was disturbed."""
    probe = Peer(broker.url)
    with probe:
        whole = PROTOCOL + probe.start_ok() + probe.tune_ok() + probe.open() + method("channel.open")
    for cut in range(0, len(whole), 7):
        with broker.peer() as peer:
            peer.send(whole[:cut])
    with broker.peer() as peer:
        peer.handshake()
        with pytest.raises((Closed, TimeoutError)):
            peer.read(0.05)
