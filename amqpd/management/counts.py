"""Messages of a queue, as lists and totals add them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.queues.kinds import KINDS

if TYPE_CHECKING:
    from amqpd.broker.queues.queue import Queue


def unacked_apart(queue: Queue) -> int:
    """What consumers hold and is not ready as well. rabbit: what they read in a stream stays ready."""
    return 0 if KINDS[queue.kind].stream else queue.unacked_count
