"""Slow cases: the deadline of 10 s, the penalty of 3 s, heartbeats. All rows run at once, one thread each.

A row sends something on a fresh socket and checks how the connection ends. A loaded machine gets GRACE_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from parties import Broker
from peer import Closed, Peer
from wire import BODY, HEARTBEAT, METHOD, PROTOCOL, frame, heartbeat, longstr, method, method_payload

GRACE_S = 30.0  # for a machine that others use, too
DEADLINE_S = 10.0
PENALTY_S = 3.0
LOGIN_REFUSED = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


def expect_close_at_deadline(peer: Peer) -> None:
    peer.expect_silent_close(DEADLINE_S + GRACE_S, not_before=DEADLINE_S - 1)


def expect_close_after_penalty(peer: Peer) -> None:
    peer.expect_silent_close(PENALTY_S + GRACE_S)


def a9(peer: Peer) -> None:
    peer.send(b"AMQP")
    expect_close_at_deadline(peer)


def a11(peer: Peer) -> None:
    for byte in PROTOCOL[:5]:
        peer.send(bytes([byte]))
        time.sleep(2.0)
    peer.expect_silent_close(GRACE_S, not_before=DEADLINE_S - 1)


def a12(peer: Peer) -> None:
    peer.start()
    peer.send(PROTOCOL)
    silent_or_501(peer)


def silent_or_501(peer: Peer) -> None:
    try:
        got = peer.read(PENALTY_S + GRACE_S)
    except Closed:
        return
    assert (got.name, got["reply_code"]) == ("connection.close", 501), f"got {got}"


def b1(peer: Peer) -> None:
    peer.start()
    expect_close_at_deadline(peer)


def b1_half(peer: Peer) -> None:
    """Half of start-ok: the deadline is total, not per byte."""
    peer.start()
    peer.send(peer.start_ok()[:40])
    expect_close_at_deadline(peer)


def b1_tuned(peer: Peer) -> None:
    """Authenticated, but not opened: the deadline includes open-ok."""
    peer.start()
    peer.send(peer.start_ok())
    peer.expect("connection.tune", 0)
    peer.expect_silent_close(DEADLINE_S + GRACE_S)


def after_start(say: Callable[[Peer], bytes]) -> Callable[[Peer], None]:
    def row(peer: Peer) -> None:
        peer.start()
        peer.send(say(peer))
        expect_close_after_penalty(peer)

    return row


def refused(**start_ok: object) -> Callable[[Peer], None]:
    """Wrong credentials of a client with authentication_failure_close: 403 (0,0), at once or after a penalty."""

    def row(peer: Peer) -> None:
        peer.start()
        peer.send(peer.start_ok(**start_ok))
        got = peer.expect("connection.close", 0, PENALTY_S + GRACE_S)
        peer.check_close(got, 403, 0, 0, LOGIN_REFUSED)
        peer.send(method("connection.close-ok", 0))
        peer.expect_silent_close(PENALTY_S + GRACE_S)

    return row


def b21(peer: Peer) -> None:
    """The broker's own heartbeats do not count as the client's."""
    peer.handshake(heartbeat=1)
    peer.expect_silent_close(2.0 + GRACE_S, not_before=1.5)


def heartbeats(peer: Peer) -> None:
    """Heartbeat 2 s both ways: the broker sends one each second or two, and the client's keep the connection open."""
    peer.handshake(heartbeat=2)
    peer.channel()
    peer.skip_heartbeats = False
    started = time.monotonic()
    heartbeat_count = 0
    while heartbeat_count < 5:
        peer.send(heartbeat())
        try:
            got = peer.read(0.4)
        except TimeoutError:
            assert time.monotonic() - started < 10.0 + GRACE_S, f"the broker has sent {heartbeat_count} heartbeats"
            continue
        assert got.kind == HEARTBEAT
        heartbeat_count += 1
    assert time.monotonic() - started > 2.0, "all heartbeats came at once"
    peer.skip_heartbeats = True
    peer.fence()


def traffic_is_a_heartbeat(peer: Peer) -> None:
    """AMQP 0-9-1 4.2.7: any octet counts; a client that sends methods need not send heartbeats."""
    peer.handshake(heartbeat=2)
    peer.channel()
    until = time.monotonic() + 8.0
    while time.monotonic() < until:
        peer.fence()
        time.sleep(0.4)


def no_heartbeat_asked(peer: Peer) -> None:
    """Heartbeat 0 disables heartbeats: the client may be silent, and the broker sends none."""
    peer.skip_heartbeats = False
    peer.handshake(heartbeat=0)
    peer.channel()
    with pytest.raises(TimeoutError):
        peer.read(5.0)
    peer.fence()


def closes_after_501(peer: Peer) -> None:
    peer.handshake()
    peer.channel()
    peer.send(frame(METHOD, 1, method_payload("basic.qos"), end=0))
    peer.expect("connection.close", 0)
    peer.send(method("connection.close-ok", 0))
    peer.expect_silent_close(PENALTY_S + GRACE_S)


def closes_without_close_ok(peer: Peer) -> None:
    """The broker waits 3 s for close-ok."""
    peer.handshake()
    peer.send(peer.open())
    peer.expect("connection.close", 0)
    peer.expect_silent_close(PENALTY_S + GRACE_S)


def closes_after_close_ok(peer: Peer) -> None:
    """The broker answers connection.close and waits 3 s for the client to end the stream."""
    peer.handshake()
    peer.send(method("connection.close", 0, reply_code=200))
    peer.expect("connection.close-ok", 0)
    peer.expect_silent_close(PENALTY_S + GRACE_S, not_before=PENALTY_S - 1)


def slow_typist(peer: Peer) -> None:
    """A handshake at one byte per 10 ms is within the deadline."""
    whole = PROTOCOL + peer.start_ok(client_properties={}) + peer.tune_ok() + peer.open()
    started = time.monotonic()
    for number, byte in enumerate(whole, 1):
        peer.send(bytes([byte]))
        time.sleep(max(0.0, started + number * 0.01 - time.monotonic()))  # a delayed thread catches up
    for name in ("connection.start", "connection.tune", "connection.open-ok"):
        peer.expect(name, 0)


NO_CAPABILITY: dict[str, object] = {"client_properties": {}}
BAD_TYPE = longstr(b"\1aZ")
OVERRUN = b"\0\0\xff\xff"
ROWS: dict[str, Callable[[Peer], None]] = {
    "A9": a9,
    "A10": expect_close_at_deadline,
    "A11": a11,
    "A12": a12,
    "B1": b1,
    "B1-half": b1_half,
    "B2": after_start(lambda peer: peer.tune_ok()),
    "B3": after_start(lambda peer: peer.start_ok(mechanism="NOSUCH")),
    "B4": refused(response="\0guest\0wrong"),
    "B4-unknown": refused(response="\0nosuch\0wrong"),
    "B5": after_start(lambda peer: peer.start_ok(response="\0guest\0wrong", **NO_CAPABILITY)),
    "B6": after_start(lambda peer: peer.start_ok(response="guest guest")),
    "B6-other": after_start(lambda peer: peer.start_ok(response="other\0guest\0guest")),
    "B7": after_start(lambda peer: peer.start_ok(response=b"\0guest\0" + bytes(10_000))),
    "B8": refused(response="\0\0guest"),
    "B9": after_start(lambda peer: method("channel.open")),
    "B10": after_start(lambda peer: frame(BODY, 0, b"xx")),
    "B12-properties": after_start(lambda peer: peer.start_ok(client_properties={"too_long": bytes(4096)})),
    "B11": after_start(lambda peer: frame(METHOD, 0, b"", size=0xFFFFFFFF)),
    "B13": after_start(lambda peer: peer.start_ok(client_properties=OVERRUN)),
    "B14": after_start(lambda peer: peer.start_ok(client_properties=BAD_TYPE)),
    "B21": b21,
    "heartbeats": heartbeats,
    "traffic": traffic_is_a_heartbeat,
    "no-heartbeat": no_heartbeat_asked,
    "501-hangs-up": closes_after_501,
    "close-hangs-up": closes_after_close_ok,
    "slow-typist": slow_typist,
}
OURS: dict[str, Callable[[Peer], None]] = {
    "B1-tuned": b1_tuned,
    "no-close-ok": closes_without_close_ok,
}


@pytest.fixture(scope="module")
def running(broker: Broker) -> Iterator[dict[str, Future[None]]]:
    """Run all rows at once and return their futures."""

    def run_row(name: str, row: Callable[[Peer], None]) -> None:
        with broker.peer(name) as peer:
            row(peer)

    rows = ROWS if broker.is_rabbit else ROWS | OURS
    with ThreadPoolExecutor(len(rows)) as pool:
        yield {name: pool.submit(run_row, name, row) for name, row in rows.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROWS, *OURS])
def test_slow_case(broker: Broker, running: dict[str, Future[None]], name: str) -> None:
    if broker.is_rabbit and name in OURS:
        pytest.skip("RabbitMQ 3.10.8: takes longer")
    running[name].result(timeout=30)
