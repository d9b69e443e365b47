"""Consumers that do not read, on real sockets: they are paused, cost little, and other consumers get the rest."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from peer import Peer

from amqpd.testing import BrokerProcess, Vhost

KIB = 1024
MIB = 1 << 20


def connect(vhost: Vhost) -> Peer:
    peer = Peer(vhost.url)
    peer.handshake()
    peer.channel()
    return peer


@contextlib.contextmanager
def peers(vhost: Vhost, count: int) -> Iterator[list[Peer]]:
    made = [connect(vhost) for _ in range(count)]
    try:
        yield made
    finally:
        for peer in made:
            peer.socket.close()


def next_number(peer: Peer) -> int | None:
    """Return the number of the next delivery, or None if none arrives within five seconds."""
    try:
        first = peer.read(5.0)
    except TimeoutError:
        return None
    assert first.name == "basic.deliver"
    peer.expect("<header>")
    body = b""
    while len(body) < 4 + 64 * KIB:
        body += peer.expect("<body>").payload
    return int.from_bytes(body[:4], "big")


@pytest.mark.slow
def test_other_consumer_gets_messages_of_stopped_consumer(amqpd_vhost: Vhost) -> None:
    """One of two consumers stops reading. When its socket is full, the other gets all the rest in order."""
    with peers(amqpd_vhost, 3) as (publisher, stopped, reading):
        publisher.call("queue.declare", queue="q")
        for peer in (stopped, reading):
            peer.call("basic.consume", queue="q", consumer_tag="t", no_ack=True)
        received: list[int] = []
        for number in range(600):
            publisher.publish("q", number.to_bytes(4, "big") + bytes(64 * KIB))
            if number % 4 == 0:
                publisher.fence()
            while len(received) < number // 2 - 20:
                received.append(int.from_bytes(reading.content("basic.deliver").body[:4], "big"))
        publisher.fence()
        while (number := next_number(reading)) is not None:
            received.append(number)
        left_count = 600 - len(received)
        assert received == sorted(set(received))
        assert len(received) > 320, "the other consumer got only half"
        # The most that the buffers of the kernel and the broker hold; never half of the 39 MiB.
        assert 0 < left_count * 64 * KIB < 16 * MIB
        rest = [int.from_bytes(stopped.content("basic.deliver").body[:4], "big") for _ in range(left_count)]
        assert sorted(received + rest) == list(range(600))
        assert rest == sorted(rest)


def test_parked_consumer_resumes_when_it_reads(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    """The only consumer does not read. Messages wait in the queue, not in the connection, until it reads."""
    with peers(amqpd_vhost, 2) as (publisher, slow):
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        publisher.call("queue.declare", queue="q")
        slow.call("basic.consume", queue="q", consumer_tag="t", no_ack=True)
        for number in range(320):
            publisher.publish("q", number.to_bytes(4, "big") + bytes(64 * KIB))
        publisher.fence()
        waiting = publisher.call("queue.declare", queue="q", passive=True)["message_count"]
        assert waiting > 320 // 4, "the connection took all messages"
        for number in range(320):
            assert int.from_bytes(slow.content("basic.deliver").body[:4], "big") == number
        assert publisher.call("queue.declare", queue="q", passive=True)["message_count"] == 0


def test_parked_consumer_that_disconnects_requeues(amqpd_vhost: Vhost) -> None:
    """Its unacked messages return to their positions, marked redelivered, without waiting for a time-out."""
    with peers(amqpd_vhost, 2) as (publisher, slow):
        publisher.call("queue.declare", queue="q")
        slow.call("basic.consume", queue="q", consumer_tag="t")
        for number in range(200):
            publisher.publish("q", number.to_bytes(4, "big") + bytes(64 * KIB))
        publisher.fence()
        slow.socket.close()
        deadline = time.monotonic() + 30
        while publisher.call("queue.declare", queue="q", passive=True)["message_count"] < 200:
            assert time.monotonic() < deadline, "not all messages were requeued"
            time.sleep(0.02)
        publisher.call("basic.consume", queue="q", consumer_tag="all", no_ack=True)
        flags = []
        for number in range(200):
            content = publisher.content("basic.deliver")
            assert int.from_bytes(content.body[:4], "big") == number
            flags.append(content.method["redelivered"])
        assert flags == sorted(flags, reverse=True)
        assert flags[0], "written messages count as delivered"
