"""Channel counters that the admin API shows."""

from __future__ import annotations

import pamqp.commands as spec
from memory_broker import MemoryBroker
from served import Served, publishes

from amqpd.channel.channel import CHANNEL_COUNTERS, channel_counts


def test_cancelled_consumer_that_times_out_is_counted_once() -> None:
    """The consumer was cancelled and never acked its two messages before the time-out."""
    client = Served(MemoryBroker(), consumer_cancel_notify=True)
    client.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    client.send(1, spec.Basic.Consume(queue="q", consumer_tag="c", arguments={"x-consumer-timeout": 60_000}))
    client.transport.data_received(publishes("q", [b"one", b"two"]))
    client.memory_broker.settle()
    channel = client.connection.channels.get(1)
    assert channel is not None
    consumer = channel.deliveries.consumers["c"]
    client.send(1, spec.Basic.Cancel(consumer_tag="c"))
    client.memory_broker.settle()
    clock = consumer.clock
    assert clock is not None
    channel.deliveries.on_timeout(clock)
    client.memory_broker.settle()
    assert channel.deliveries.unacked.count() == 0
    counts = dict(zip(CHANNEL_COUNTERS, channel_counts(channel), strict=True))
    assert (counts["deliver"], counts["deliver_no_ack"], counts["ack"]) == (2, 0, 0)
