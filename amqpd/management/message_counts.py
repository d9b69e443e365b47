"""Messages of a queue and bytes of their bodies, as lists and totals tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.queue.types import KINDS
from amqpd.protocol.properties import TIMESTAMP, decode_properties

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue


def unacked_apart(queue: Queue) -> int:
    """What consumers hold and is not ready as well. rabbit: what they read in a stream stays ready."""
    return 0 if KINDS[queue.kind].stream else queue.unacked_count


def unacked_bytes(queue: Queue) -> int:
    """Of the bodies that consumers hold and that are not ready as well, as those of a stream are."""
    return int(queue.unacked_bytes) if unacked_apart(queue) else 0


def queue_bytes(queue: Queue) -> int:
    """Of all bodies: ready, unacked, and waiting for their next try."""
    return int(queue.ready_bytes) + unacked_bytes(queue) + int(queue.delayed_bytes)


def sizes(queue: Queue) -> dict[str, int]:
    """By RabbitMQ's names: bytes by state, and how much of it lies in memory, is on the way to the disk or there.

    A durable queue's log has every message, whatever its delivery mode: all of them count as persistent, and what is
    not in the window of the next ones is paged out. What consumers hold is not in memory unless it is nowhere else.
    """
    ready, unacked = int(queue.ready_count), unacked_apart(queue)
    waiting = int(queue.delayed_count)
    ready_bytes, held_bytes = int(queue.ready_bytes), unacked_bytes(queue)
    whole, whole_bytes = ready + unacked + waiting, queue_bytes(queue)
    if queue.store is None:
        in_memory, in_memory_bytes = whole, whole_bytes
        ready_in_memory, unacked_in_memory = ready, unacked
    else:
        unacked_in_memory = 0 if queue.logged else unacked
        ready_in_memory = min(ready, int(queue.order.memory_count()))
        in_memory = ready_in_memory + unacked_in_memory
        in_memory_bytes = min(ready_bytes, int(queue.order.hot_bytes)) + (0 if queue.logged else held_bytes)
    return {
        "message_bytes": whole_bytes,
        "message_bytes_ready": ready_bytes,
        "message_bytes_unacknowledged": held_bytes,
        "message_bytes_ram": in_memory_bytes,
        "message_bytes_persistent": whole_bytes if queue.logged else 0,
        "message_bytes_paged_out": whole_bytes - in_memory_bytes,
        "messages_ram": in_memory,
        "messages_ready_ram": ready_in_memory,
        "messages_unacknowledged_ram": unacked_in_memory,
        "messages_persistent": whole if queue.logged else 0,
        "messages_paged_out": whole - in_memory,
    }


def head_timestamp(queue: Queue) -> int | None:
    """The property timestamp of the message that is next, seconds since 1970; None where it has none, or where the
    message is not in memory. rabbit: likewise. Cost: 5 us where there is one.
    """
    message = queue.order.first_at_hand() if queue.ready_count > 0 else None
    if message is None:
        return None
    properties = message.properties()
    if not (properties[0] << 8 | properties[1]) & TIMESTAMP:
        return None
    return decode_properties(properties).timestamp
