"""What a channel has had, as the admin API shows it."""

from __future__ import annotations

import pamqp.commands as spec
from memory_broker import MemoryBroker
from served import Served, publishes

from amqpd.channel.channel import CHANNEL_COUNTERS, channel_counts


def test_who_had_left_and_is_timed_out_is_counted_once() -> None:
    """It was cancelled, and never acked what it has."""
    client = Served(MemoryBroker(), consumer_cancel_notify=True)
    client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    client.say(1, spec.Basic.Consume(queue="q", consumer_tag="c", arguments={"x-consumer-timeout": 60_000}))
    client.transport.data_received(publishes("q", [b"one", b"two"]))
    client.house.settle()
    channel = client.connection.channels.get(1)
    assert channel is not None
    consumer = channel.deliveries.consumers["c"]
    client.say(1, spec.Basic.Cancel(consumer_tag="c"))
    client.house.settle()
    clock = consumer.clock
    assert clock is not None
    channel.deliveries.on_timeout(clock)
    client.house.settle()
    assert channel.deliveries.unacked.count() == 0
    counts = dict(zip(CHANNEL_COUNTERS, channel_counts(channel), strict=True))
    assert (counts["deliver"], counts["deliver_no_ack"], counts["ack"]) == (2, 0, 0)
