"""What channels count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpd.channel.stats import Had

if TYPE_CHECKING:
    from amqpd.broker.consumer import Source
    from amqpd.channel.channel import Channel
    from amqpd.channel.consumer import Deliveries

CHANNEL_COUNTERS: Final = (
    *("publish", "confirm", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack", "get_empty"),
    *("return_unroutable", "drop_unroutable"),
)


def channel_counts(channel: Channel) -> tuple[int, ...]:
    """In the order of CHANNEL_COUNTERS. Cost: its consumers."""
    confirmed = channel.confirms.confirmed_sequence if channel.confirms is not None else 0
    deliveries = channel.deliveries
    had = Had()
    if deliveries.served is not None:
        had.add(deliveries.served.whole)
    for consumer in deliveries.consumers.values():
        had.add_consumer(consumer)
    # Delivery tags begin with 1. Direct replies are in no consumer's count that could be found here.
    no_ack = deliveries.next_tag - 1 - had.deliver - had.get - had.get_no_ack
    return (
        channel.published_count,
        confirmed,
        *(had.deliver, no_ack, had.get, had.get_no_ack, had.redeliver, deliveries.acked_count, had.get_empty),
        *(channel.returned_count, channel.dropped_count),
    )


def had_by_queue(deliveries: Deliveries) -> dict[Source, Had]:
    """What a channel has had from each queue. Cost: its consumers and such queues."""
    found: dict[Source, Had] = {}
    served = deliveries.served
    if served is not None:
        for queue, had in served.queues.items():
            if not queue.deleted:
                found[queue] = Had()
                found[queue].add(had)
    for consumer in deliveries.consumers.values():
        found.setdefault(consumer.queue, Had()).add_consumer(consumer)
    return found
