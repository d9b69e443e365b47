"""What a queue does otherwise when it keeps what is settled (x-retain): storage/acks/retained.py keeps it.

Its messages go into its log whoever waits for them: elsewhere one that goes straight to a consumer without acks never
touches it. A queue that is not durable has no log that could keep anything: an argument is refused there, a policy has
no effect.
"""

from __future__ import annotations

from amqpd.broker.consumer import Source
from amqpd.broker.message import Message
from amqpd.broker.queue.store import Backing
from amqpd.broker.queue.services import QueueHost
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.config import Rules


def retain(host: QueueHost, backing: Backing, rules: Rules) -> None:
    """The queue's log keeps from now on what these rules say, which may be nothing."""
    store = backing.store
    if store is not None and not backing.spilled:
        host.retain(store, rules.retain_ms, rules.retain_bytes)


def take_in(queue: Source, backing: Backing, order: ReadyOrder, message: Message) -> bool:
    """Appends it, and has the queue pumped. False: the log accepts nothing."""
    queue.published_count += 1
    if message.info is not None and message.info.expiration is not None:
        queue.watch(message)
    offset = backing.append(message)
    if offset < 0:
        return False
    order.add(queue, message, offset)
    queue.pump_later()
    return True
