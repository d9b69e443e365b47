"""Auto-delete and exclusive queues and exchanges: when they are deleted."""

from __future__ import annotations

import pytest
from parties import Broker
from peer import Peer


def expect_missing(peer: Peer, queue: str) -> None:
    peer.method("queue.declare", queue=queue, passive=True)
    peer.expect_channel_close(404, 50, 10, f"no queue '{queue}' in vhost '/'")


def test_auto_delete_queue_is_deleted_after_last_consumer(speaker: Peer) -> None:
    speaker.queue(exclusive=False, auto_delete=True)
    for tag in ("a", "b"):
        speaker.call("basic.consume", queue=speaker.q, consumer_tag=tag)
    speaker.call("basic.cancel", consumer_tag="a")
    speaker.call("queue.declare", queue=speaker.q, passive=True)
    speaker.call("basic.cancel", consumer_tag="b")
    expect_missing(speaker, speaker.q)


def test_auto_delete_queue_without_consumers_is_kept(broker: Broker, peer: Peer) -> None:
    with broker.peer() as other:
        other.handshake()
        other.channel()
        other.queue(peer.q, exclusive=False, auto_delete=True)
        other.method("connection.close", 0, reply_code=200)
        other.expect("connection.close-ok", 0)
    assert peer.call("queue.declare", queue=peer.q, passive=True)["consumer_count"] == 0
    peer.call("queue.delete", queue=peer.q)


def test_channel_close_deletes_auto_delete_queue(speaker: Peer) -> None:
    speaker.queue(exclusive=False, auto_delete=True)
    speaker.channel(2)
    speaker.call("basic.consume", 2, queue=speaker.q)
    speaker.call("channel.close", 2, reply_code=200)
    expect_missing(speaker, speaker.q)


@pytest.mark.parametrize("durable", [False, True])
def test_connection_close_deletes_exclusive_queue(broker: Broker, peer: Peer, durable: bool) -> None:
    with broker.peer() as other:
        other.handshake()
        other.channel()
        other.queue(peer.q, durable=durable)
        other.method("connection.close", 0, reply_code=200)
        other.expect("connection.close-ok", 0)
    expect_missing(peer, peer.q)


def test_exclusive_queue_outlives_its_channel(speaker: Peer) -> None:
    speaker.channel(2)
    speaker.queue(channel=2)
    speaker.call("channel.close", 2, reply_code=200)
    speaker.publish()
    assert speaker.get() is not None


def test_auto_delete_exchange_is_deleted_with_last_binding(speaker: Peer) -> None:
    speaker.exchange("fanout")
    speaker.queue()
    speaker.call("queue.bind", queue=speaker.q, exchange=speaker.x)
    speaker.call("queue.unbind", queue=speaker.q, exchange=speaker.x)
    speaker.method("exchange.declare", exchange=speaker.x, passive=True)
    speaker.expect_channel_close(404, 40, 10, "no exchange '{x}' in vhost '/'")
