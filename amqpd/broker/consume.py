"""Rules for consumers of any front end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.events import as_broker
from amqpd.broker.queue.filtered import FILTERS_MAX
from amqpd.broker.queue.types import KINDS
from amqpd.broker.session import check_permission
from amqpd.broker.vhost import declare
from amqpd.errors import AccessRefused, NotImplementedByBroker, PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.consumer import Consumer, ConsumerArguments, QueueBase
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session


def readable_queue(session: Session, name: str) -> Queue:
    """Return the queue.

    Raises:
        AccessRefused: the user has no read permission.
        NotFound: there is no such queue.
        ResourceLocked: it is exclusive to another connection.
        LogNotOpen: its log is being opened.
        DeclarationPending: its declaration or deletion waits for a commit.
    """
    check_permission(session, "read", "queue", name)
    return session.vhost.accessible_queue(name, session)


def check_exclusive(queue: Queue, exclusive: bool) -> None:
    """Raise AccessRefused if the queue cannot have another consumer, or this exclusive one."""
    if queue.round_robin.exclusive or (exclusive and (queue.consumers or queue.round_robin.single_active)):
        raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost_name}' in exclusive use")


def check_filter(queue: Queue, arguments: ConsumerArguments) -> None:
    """Raise PreconditionFailed if the queue cannot serve a consumer with this filter."""
    selector = arguments.selector
    if selector is None:
        return
    if queue.rules.level_max >= 0:
        raise PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost_name}' has priorities: its consumers cannot have an x-filter"
        )
    if queue.filters is not None and queue.filters.full(selector):
        raise PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost_name}' serves {FILTERS_MAX} different x-filter values already"
        )


def check_groups(queue: Queue, no_ack: bool, arguments: ConsumerArguments) -> None:
    """Raise PreconditionFailed if the consumer does not fit a queue with groups (x-group-by).

    Without acks the queue would not know when a group can go to another consumer.
    """
    if not queue.rules.group_by:
        return
    text = f"queue '{queue.name}' in vhost '{queue.vhost_name}' has groups: its consumers "
    if no_ack:
        raise PreconditionFailed(text + "must acknowledge")
    if arguments.selector is not None:
        raise PreconditionFailed(text + "cannot have an x-filter")


def reject_on_stream(queue: QueueBase, what: str, method: int = 0) -> None:
    """Raise NotImplementedByBroker if the queue is a stream: messages cannot be removed from it.

    Args:
        what: the operation, for the error text.
    """
    if KINDS[queue.kind].stream:
        raise NotImplementedByBroker(
            f"{what} not supported by stream queues queue '{queue.name}' in vhost '{queue.vhost_name}'", method
        )


def check_stream_consumer(
    queue: Queue, prefetch_count: int, no_ack: bool, arguments: ConsumerArguments, method: int
) -> None:
    """Check a consumer of a stream; other queues pass.

    Args:
        prefetch_count: 0 for no limit.

    Raises:
        PreconditionFailed: there is no prefetch, or too many consumer names have stored offsets.
        NotImplementedByBroker: no_ack.
    """
    if not KINDS[queue.kind].stream:
        return
    if prefetch_count == 0:
        # rabbit: acks are its credit, so it needs some to begin with
        text = f"consumer prefetch count is not set for 'queue '{queue.name}' in vhost '{queue.vhost_name}''"
        raise PreconditionFailed(text)
    if no_ack:
        reject_on_stream(queue, "automatic acknowledgement", method)
    if arguments.consumer_name and not queue.host.stored_offsets.admit(queue.id, arguments.consumer_name):
        raise PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost_name}' has offsets of too many consumers, "
            f"none can be stored for '{arguments.consumer_name}'"
        )


def timeout_ms(session: Session, own_ms: int, queue_ms: int) -> int:
    """Return how long a delivery may be unacked; 0 for no limit.

    rabbit: the consumer's argument wins, then the queue's, then the setting.

    Args:
        own_ms: x-consumer-timeout of the consumer, -1 for none.
        queue_ms: the queue's, by argument or policy, -1 for none.
    """
    if own_ms >= 0:
        return own_ms
    return queue_ms if queue_ms >= 0 else session.broker.settings.consumer_timeout_ms


def start_consumer(queue: Queue, consumer: Consumer) -> None:
    """Add the consumer and deliver ready messages at once."""
    queue.add_consumer(consumer)
    queue.touch()
    queue.dispatch()


def stop_consumer(session: Session, queue: Queue, consumer: Consumer) -> None:
    """Remove a cancelled consumer.

    Its unacked deliveries stay with its front end; the last one's auto-delete queue is deleted.
    """
    queue.remove_consumer(consumer)
    queue.touch()
    if queue.auto_delete and not queue.consumers and not queue.deleted and not session.vhost.deleted:
        with as_broker():  # rabbit: also where its last consumer was cancelled by a client
            declare.delete_queue(session.vhost, queue)
