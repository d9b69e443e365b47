"""Consuming: the rules that hold for a consumer of whatever front end, from its beginning to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.events import as_broker
from amqpd.broker.queue.filtered import FILTERS_MAX
from amqpd.broker.queue.queue import attach_consumer, detach_consumer
from amqpd.broker.queue.types import KINDS
from amqpd.broker.session import check_permission
from amqpd.broker.vhost import declare
from amqpd.errors import AccessRefused, NotImplementedByBroker, PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.consumer import Consumer, ConsumerArguments, QueueBase
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session


def readable_queue(session: Session, name: str) -> Queue:
    """The queue, which this session may read. Raises: AccessRefused, NotFound, ResourceLocked, NotOpenYet, OnItsWay."""
    check_permission(session, "read", "queue", name)
    return session.vhost.accessible_queue(name, session)


def check_exclusive(queue: Queue, exclusive: bool) -> None:
    """Whether there may be one more consumer, or one alone. Raises: AccessRefused."""
    if queue.round_robin.exclusive or (exclusive and (queue.consumers or queue.round_robin.single_active)):
        raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost_name}' in exclusive use")


def check_filter(queue: Queue, arguments: ConsumerArguments) -> None:
    """Whether the queue can serve a consumer with this filter, if it has one. Raises: PreconditionFailed."""
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
    """Whether a queue with groups (x-group-by), if it is one, can keep its promise to a consumer that asks for this.

    Raises: PreconditionFailed: who does not acknowledge never says when a group may go to another consumer.
    """
    if not queue.rules.group_by:
        return
    text = f"queue '{queue.name}' in vhost '{queue.vhost_name}' has groups: its consumers "
    if no_ack:
        raise PreconditionFailed(text + "must acknowledge")
    if arguments.selector is not None:
        raise PreconditionFailed(text + "cannot have an x-filter")


def reject_on_stream(queue: QueueBase, what: str, method: int = 0) -> None:
    """Nothing is taken out of a stream. what: was asked for. Raises: NotImplementedByBroker where it is one."""
    if KINDS[queue.kind].stream:
        raise NotImplementedByBroker(
            f"{what} not supported by stream queues queue '{queue.name}' in vhost '{queue.vhost_name}'", method
        )


def check_stream_consumer(
    queue: Queue, prefetch_count: int, no_ack: bool, arguments: ConsumerArguments, method: int
) -> None:
    """Whether a consumer that asks for this may read the stream, if it is one. prefetch_count: 0 for no limit.

    Raises: PreconditionFailed, NotImplementedByBroker.
    """
    if not KINDS[queue.kind].stream:
        return
    if prefetch_count == 0:
        # rabbit: acks are its credit, so it needs some to begin with
        text = f"consumer prefetch count is not set for 'queue '{queue.name}' in vhost '{queue.vhost_name}''"
        raise PreconditionFailed(text)
    if no_ack:
        reject_on_stream(queue, "automatic acknowledgement", method)
    if arguments.consumer_name and not queue.host.admit_name(queue.id, arguments.consumer_name):
        raise PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost_name}' has offsets of too many consumers, "
            f"none can be stored for '{arguments.consumer_name}'"
        )


def timeout_ms(session: Session, own_ms: int, queue_ms: int) -> int:
    """How long a delivery may be unacked; 0: for ever.

    own_ms: x-consumer-timeout of the consumer. queue_ms: the queue's, by its argument and policies. -1: it has none.
    rabbit: the consumer's own comes first, the setting last.
    """
    if own_ms >= 0:
        return own_ms
    return queue_ms if queue_ms >= 0 else session.broker.settings.consumer_timeout_ms


def start_consumer(queue: Queue, consumer: Consumer) -> None:
    """It is served from here on, in this very call where something is ready."""
    attach_consumer(queue, consumer)
    queue.touch()
    queue.dispatch()


def stop_consumer(session: Session, queue: Queue, consumer: Consumer) -> None:
    """It leaves by itself, or is sent away. What it has unacked stays with its front end; an auto-delete queue may go
    with its last."""
    detach_consumer(queue, consumer)
    queue.touch()
    if queue.auto_delete and not queue.consumers and not queue.deleted and not session.vhost.deleted:
        with as_broker():  # rabbit: also where its last consumer was cancelled by a client
            declare.delete_queue(session.vhost, queue)
