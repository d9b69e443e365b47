"""Streams as topics, and the requests about them: Metadata, CreateTopics, DeleteTopics, DescribeConfigs and
DescribeCluster.

Each stream of the vhost is a topic with partition 0. Its topic id is the id of the queue. Other queues, streams with a
name that Kafka does not allow, and the broker's own queues are no topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from uuid import UUID

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.queue.argument_checks import KAFKA_TOPIC
from amqpd.broker.session import check_permission
from amqpd.errors import AccessRefused, ResourceError
from amqpd.kafka_server.messages import (
    INVALID_TOPIC_EXCEPTION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session

Permission = Literal["read", "write", "configure"]


class Topic(NamedTuple):
    """A stream as Kafka's clients see it."""

    name: str
    id: UUID
    queue: Queue


def find_topic(session: Session, name: str, kind: Permission) -> Topic | int:
    """Return the topic, or an error code: 17 for a name that no topic can have, 29 without permission, 3 if there is
    no such stream. A stream whose declaration waits for its commit does not exist yet.

    Cost: two look-ups.
    """
    if KAFKA_TOPIC.fullmatch(name) is None:
        return INVALID_TOPIC_EXCEPTION
    if not is_permitted(session, name, kind):
        return TOPIC_AUTHORIZATION_FAILED
    queue = session.vhost.queues.get(name)
    if queue is None or queue.kind != "stream" or queue.deleted:
        return UNKNOWN_TOPIC_OR_PARTITION
    return topic_of(queue)


def find_topic_by_id(session: Session, topic_id: UUID, kind: Permission) -> Topic | int:
    """Return the topic, or an error code: 100 for an unknown id, 29 without permission. Cost: two look-ups."""
    queue = session.vhost.streams.get(topic_id.hex)
    if queue is None or queue.deleted or KAFKA_TOPIC.fullmatch(queue.name) is None:
        return UNKNOWN_TOPIC_ID
    if not is_permitted(session, queue.name, kind):
        return TOPIC_AUTHORIZATION_FAILED
    return topic_of(queue)


def topic_of(queue: Queue) -> Topic:
    """Return a stream as a topic."""
    return Topic(queue.name, UUID(hex=queue.id), queue)


def is_permitted(session: Session, name: str, kind: Permission) -> bool:
    """Return whether the user has this permission for queues of this name."""
    try:
        check_permission(session, kind, "queue", name)
    except AccessRefused:
        return False
    return True


def open_topic(topic: Topic, then: Callable[[bool], None]) -> None:
    """Open the topic's log.

    Args:
        then: called with True when the log is open, at once if it is open already; with False if it cannot be opened or
            the stream was deleted. The broker's log has the reason.
    """
    queue = topic.queue
    if queue.deleted:
        then(False)
        return
    try:
        queue.prepare()
    except LogNotOpen:
        queue.when_open(lambda: open_topic(topic, then))
        return
    except ResourceError:
        then(False)
        return
    then(True)


APIS: Final = ()
