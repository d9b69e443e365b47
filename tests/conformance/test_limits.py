"""Channel limits, many channels, broken sockets, slow readers, and memory bounds."""

from __future__ import annotations

import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from parties import Broker, Witness
from peer import Peer
from wire import body, frame, header, method, method_payload, properties, publish

CHANNEL_MAX = 2047
REACHED = "number of channels opened ({0}) has reached the negotiated channel_max ({0})"


def test_f1_2047_channels(peer: Peer) -> None:
    """Every channel answers; one more ends the connection with RabbitMQ's text."""
    numbers = range(2, CHANNEL_MAX + 1)
    peer.send(b"".join(method("channel.open", number) for number in numbers))
    assert {peer.expect("channel.open-ok", None).channel for _ in numbers} == set(numbers)
    peer.send(b"".join(method("basic.qos", number, prefetch_count=1) for number in numbers))
    assert {peer.expect("basic.qos-ok", None).channel for _ in numbers} == set(numbers)
    peer.method("channel.open", CHANNEL_MAX + 1)
    peer.expect_connection_close(530, 0, 0, REACHED.format(CHANNEL_MAX))


def test_negotiated_channel_max_is_the_limit(broker: Broker) -> None:
    """Measured with channel_max 3."""
    with broker.peer() as peer:
        peer.handshake(channel_max=3)
        for number in (1, 2, 3):
            peer.channel(number)
        peer.method("channel.open", 4)
        peer.expect_connection_close(530, 0, 0, REACHED.format(3))


def test_closed_channel_does_not_count(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.handshake(channel_max=3)
        for number in range(1, 12):
            peer.channel(number)
            if number > 2:
                peer.call("channel.close", number - 2, reply_code=200)
        peer.fence(11)


def test_f2_channel_count_is_limited_not_the_number(peer: Peer) -> None:
    """RabbitMQ: any number up to 65535 may be opened with any channel_max, as long as the count is below it."""
    peer.channel(65535)
    peer.fence(65535)


def test_channel_opened_and_closed_1000_times(peer: Peer) -> None:
    """Open and close one channel number 1,000 times, each pair in one segment."""
    for _ in range(1000):
        peer.send(method("channel.open", 2) + method("channel.close", 2, reply_code=200))
        peer.expect("channel.open-ok", 2)
        peer.expect("channel.close-ok", 2)
    peer.fence()


def test_soft_error_affects_only_its_channel(peer: Peer) -> None:
    """A soft error on one of three channels does not affect consumers and unacked messages of the others."""
    peer.channel(2)
    peer.channel(3)
    peer.queue()
    peer.call("basic.consume", 2, queue=peer.q, consumer_tag="two")
    peer.publish()
    tag = peer.content("basic.deliver", 2).method["delivery_tag"]
    peer.method("queue.purge", 3, queue="nosuch")
    peer.expect_channel_close(404, 50, 30, channel=3)
    peer.method("basic.ack", 2, delivery_tag=tag)
    peer.publish(payload=b"again")
    assert peer.content("basic.deliver", 2).body == b"again"


def test_f4_half_a_frame_does_not_block_others(broker: Broker, witness: Witness) -> None:
    """Without heartbeats the broker waits for the rest of the frame, and other connections are served."""
    with broker.peer() as peer:
        peer.handshake(heartbeat=0)
        peer.channel()
        whole = method("queue.declare", queue=peer.q, exclusive=True)
        peer.send(whole[:9])
        time.sleep(0.3)
        witness.check_undisturbed()
        peer.send(whole[9:])
        peer.expect("queue.declare-ok")


@pytest.mark.on_demand
def test_f4_half_a_frame_times_out(broker: Broker, broker_is_ours: bool) -> None:
    """Without heartbeats a partial frame has a timer of 60 s."""
    if not broker_is_ours:
        pytest.skip("RabbitMQ 3.10.8: keeps it")
    with broker.peer() as peer:
        peer.handshake(heartbeat=0)
        peer.send(method("channel.open")[:9])
        peer.expect_silent_close(75.0, not_before=50.0)


def test_f6_reset_after_declare(broker: Broker) -> None:
    """After a reset right behind a declare the queue may exist or not; it can be declared and deleted either way."""
    for _ in range(5):
        with broker.peer("F6") as peer:
            peer.handshake()
            peer.channel()
            peer.method("queue.declare", queue=peer.q, durable=True)
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with broker.peer() as second_peer:
            second_peer.handshake()
            second_peer.channel()
            second_peer.queue(peer.q, exclusive=False, durable=True)
            second_peer.call("queue.delete", queue=peer.q)


def test_reset_with_pending_deliveries_and_confirms(broker: Broker) -> None:
    """Pending deliveries and confirms and half a frame: the broker's log stays clean."""
    with broker.peer("reset") as peer:
        peer.handshake()
        peer.channel()
        peer.queue()
        peer.call("confirm.select")
        peer.call("basic.consume", queue=peer.q)
        peer.send(publish(peer.q, bytes(1000)) * 500, publish(peer.q)[:-5])
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_f7_peer_that_does_not_read(broker: Broker, witness: Witness) -> None:
    """300 gets of 100 kB by a peer that does not read: other connections are served, and all replies arrive in the
    end.
    """
    with broker.peer("F7") as peer:
        peer.handshake()
        peer.channel()
        peer.queue()
        for _ in range(300):
            peer.publish(payload=bytes(100_000))
        peer.fence()
        peer.send(method("basic.get", queue=peer.q, no_ack=True) * 300)
        for _ in range(5):
            time.sleep(0.05)
            witness.check_undisturbed()
        for _ in range(300):
            assert len(peer.content("basic.get-ok").body) == 100_000


def test_slow_reader_gets_every_delivery(broker: Broker, witness: Witness) -> None:
    """20 MB of deliveries wait for a socket that is not read for a while; all arrive in order."""
    with broker.peer("late") as peer:
        peer.handshake()
        peer.channel()
        peer.queue()
        peer.call("basic.consume", queue=peer.q, no_ack=True)
        writer = threading.Thread(
            target=lambda: [peer.publish(payload=struct.pack(">I", n) * 25_000) for n in range(200)]
        )
        writer.start()
        time.sleep(0.2)
        witness.check_undisturbed()
        for n in range(200):
            assert peer.content("basic.deliver").body[:4] == struct.pack(">I", n)
        writer.join()


def test_silent_sockets_do_not_delay_others(broker: Broker, witness: Witness) -> None:
    """200 connections that send nothing do not delay the witness."""
    peers = [broker.peer() for _ in range(200)]
    try:
        witness.check_undisturbed()
    finally:
        for peer in peers:
            peer.socket.close()


@pytest.mark.parametrize("size", [1, 7, 8, 11])
def test_socket_closed_inside_a_frame(broker: Broker, size: int) -> None:
    with broker.peer() as peer:
        peer.handshake()
        peer.send(frame(1, 1, method_payload("channel.open"))[:size])


# -- memory: 16 MiB are allowed ----------------------------------------------------------------------

MIB = 1 << 20
GROWTH_MAX_BYTES = 16 * MIB
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def rss_after_pause(broker: Broker) -> int:
    """Return the broker's memory after a short pause."""
    time.sleep(0.2)
    return broker.rss_bytes()


@pytest.fixture
def rss_before(broker: Broker) -> int:
    if broker.process is None:
        pytest.skip("the memory of a broker that runs elsewhere is not known")
    return rss_after_pause(broker)


@needs_proc
@pytest.mark.parametrize("mode", ["consume", "get"])
def test_f7_memory_with_unread_deliveries(broker: Broker, witness: Witness, rss_before: int, mode: str) -> None:
    """60 MB in a durable queue for a peer that does not read: they stay on disk."""
    with broker.peer("F7m") as writer, broker.peer("F7m") as peer:
        for connection in (writer, peer):
            connection.handshake()
            connection.channel()
        writer.queue(exclusive=False, durable=True)
        writer.call("confirm.select")
        for first in range(0, 600, 20):
            writer.send(publish(writer.q, bytes(100_000), properties(delivery_mode=2)) * 20)
            confirmed = first
            while confirmed < first + 20:
                ack = writer.expect("basic.ack")
                confirmed = ack["delivery_tag"] if ack["multiple"] else confirmed + 1
        if mode == "consume":
            peer.method("basic.consume", queue=writer.q)
        else:
            peer.send(method("basic.get", queue=writer.q) * 600)
        time.sleep(0.3)
        witness.check_undisturbed()
        growth = rss_after_pause(broker) - rss_before
        if mode == "consume":
            peer.expect("basic.consume-ok")
        for _ in range(600):
            assert len(peer.content("basic.deliver" if mode == "consume" else "basic.get-ok").body) == 100_000
        peer.send(method("basic.ack", multiple=True))
        peer.fence()
        writer.call("queue.delete", queue=writer.q)
    assert growth < GROWTH_MAX_BYTES, f"the broker grew by {growth / MIB:.0f} MiB"


@needs_proc
def test_d11_memory_with_refused_body(broker: Broker, witness: Witness, rss_before: int) -> None:
    """A body beyond the limit is refused at its header; 64 MiB that the client still sends are not kept."""
    with broker.peer("D11m") as peer:
        peer.handshake()
        peer.channel()
        peer.send(method("basic.publish", routing_key="nosuch"), header(129 * MIB))
        peer.expect("channel.close")
        for _ in range(512):
            peer.send(body(bytes(131064)))
        witness.check_undisturbed()
        growth = rss_after_pause(broker) - rss_before
        peer.method("channel.close-ok")
        peer.channel(2)
    assert growth < GROWTH_MAX_BYTES, f"the broker grew by {growth / MIB:.0f} MiB"


@needs_proc
def test_d12_memory_with_empty_body_frames(broker: Broker, rss_before: int) -> None:
    """100,000 empty body frames add no bytes to the body."""
    with broker.peer("D12m") as peer:
        peer.handshake()
        peer.channel()
        peer.queue()
        peer.send(method("basic.publish", routing_key=peer.q), header(1))
        for _ in range(100):
            peer.send(body(b"") * 1000)
        peer.send(body(b"x"))
        peer.fence()
        growth = rss_after_pause(broker) - rss_before
    assert growth < GROWTH_MAX_BYTES, f"the broker grew by {growth / MIB:.0f} MiB"


@needs_proc
def test_announced_sizes_are_not_allocated(broker: Broker, rss_before: int) -> None:
    """100 channels announce 100 MiB each and send nothing."""
    with broker.peer("announced") as peer:
        peer.handshake()
        for number in range(1, 101):
            peer.send(
                method("channel.open", number) + method("basic.publish", number) + header(100 * MIB, channel=number)
            )
            peer.expect("channel.open-ok", number)
        growth = rss_after_pause(broker) - rss_before
    assert growth < GROWTH_MAX_BYTES, f"the broker grew by {growth / MIB:.0f} MiB"
