"""Consumers that do not read, on real sockets: they rest, cost little, and others get what they leave."""

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
    """Of the next delivery; None when none comes within five seconds."""
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
def test_others_get_what_a_stopped_consumer_leaves(amqpd_vhost: Vhost) -> None:
    """One of two consumers stops reading: its socket fills up, then all the rest goes to the other, in order."""
    with peers(amqpd_vhost, 3) as (publisher, stopped, reading):
        publisher.call("queue.declare", queue="q")
        for peer in (stopped, reading):
            peer.call("basic.consume", queue="q", consumer_tag="t", no_ack=True)
        heard: list[int] = []
        for number in range(600):
            publisher.publish("q", number.to_bytes(4, "big") + bytes(64 * KIB))
            if number % 4 == 0:
                publisher.fence()
            while len(heard) < number // 2 - 20:
                heard.append(int.from_bytes(reading.content("basic.deliver").body[:4], "big"))
        publisher.fence()
        while (number := next_number(reading)) is not None:
            heard.append(number)
        left = 600 - len(heard)
        assert heard == sorted(set(heard))
        assert len(heard) > 320, "the other consumer got no more than its half"
        # What the kernel's buffers and ours hold, at most; never half of the 39 MiB.
        assert 0 < left * 64 * KIB < 16 * MIB
        late = [int.from_bytes(stopped.content("basic.deliver").body[:4], "big") for _ in range(left)]
        assert sorted(heard + late) == list(range(600))
        assert late == sorted(late)


def test_a_parked_consumer_wakes_when_it_reads(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    """Nobody else is there: the messages wait in the queue, not in the connection, and come when it reads on."""
    with peers(amqpd_vhost, 2) as (publisher, lazy):
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        publisher.call("queue.declare", queue="q")
        lazy.call("basic.consume", queue="q", consumer_tag="t", no_ack=True)
        for number in range(320):
            publisher.publish("q", number.to_bytes(4, "big") + bytes(64 * KIB))
        publisher.fence()
        waiting = publisher.call("queue.declare", queue="q", passive=True)["message_count"]
        assert waiting > 320 // 4, "the connection took them all in"
        for number in range(320):
            assert int.from_bytes(lazy.content("basic.deliver").body[:4], "big") == number
        assert publisher.call("queue.declare", queue="q", passive=True)["message_count"] == 0


def test_who_vanishes_while_parked_gives_back(amqpd_vhost: Vhost) -> None:
    """Its unacked messages return to their places, marked redelivered, without waiting for a time-out."""
    with peers(amqpd_vhost, 2) as (publisher, lazy):
        publisher.call("queue.declare", queue="q")
        lazy.call("basic.consume", queue="q", consumer_tag="t")
        for number in range(200):
            publisher.publish("q", number.to_bytes(4, "big") + bytes(64 * KIB))
        publisher.fence()
        lazy.socket.close()
        deadline = time.monotonic() + 30
        while publisher.call("queue.declare", queue="q", passive=True)["message_count"] < 200:
            assert time.monotonic() < deadline, "not all came back"
            time.sleep(0.02)
        publisher.call("basic.consume", queue="q", consumer_tag="all", no_ack=True)
        flags = []
        for number in range(200):
            content = publisher.content("basic.deliver")
            assert int.from_bytes(content.body[:4], "big") == number
            flags.append(content.method["redelivered"])
        assert flags == sorted(flags, reverse=True)
        assert flags[0], "what was written to it counts as delivered"
