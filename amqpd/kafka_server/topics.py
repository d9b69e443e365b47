"""Streams and durable queues as topics, and the requests Metadata and DescribeCluster.

Each stream and each durable classic or quorum queue of the vhost is a topic with partition 0. Its topic id is the id of
the queue. Transient and exclusive queues, names that Kafka does not allow, and the broker's own queues are no topics.

There is one broker, which leads all partitions. A Metadata request never creates a topic: its field
`allow_auto_topic_creation` is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.queue.argument_checks import KAFKA_TOPIC
from amqpd.broker.vhost.parameters import CLUSTER_ID
from amqpd.errors import ResourceError
from amqpd.kafka_server.body_writer import NO_ID, BodyWriter
from amqpd.kafka_server.connection import Api, Call, KafkaClientConnection
from amqpd.kafka_server.messages import (
    INVALID_TOPIC_EXCEPTION,
    NODE_ID,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_ENDPOINT_TYPE,
    MalformedRequest,
    api_types,
)

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session

Permission: TypeAlias = Literal["read", "write", "configure"]

NAMES_MAX: Final = 10_000
"""Most topics in one request, so that no request keeps the event loop for long."""

# Operations of Kafka's authorizer (AclOperation): bits of the authorized operations.
READ: Final = 3
WRITE: Final = 4
CREATE: Final = 5
DELETE: Final = 6
DESCRIBE: Final = 8
DESCRIBE_CONFIGS: Final = 10
IDEMPOTENT_WRITE: Final = 12

_GRANTS: Final[tuple[tuple[Permission, frozenset[int]], ...]] = (
    ("read", frozenset({READ, DESCRIBE, DESCRIBE_CONFIGS})),
    ("write", frozenset({WRITE, DESCRIBE, DESCRIBE_CONFIGS})),
    ("configure", frozenset({CREATE, DELETE, DESCRIBE, DESCRIBE_CONFIGS})),
)
# CreateTopics checks the names, so every user may try.
_CLUSTER_GRANTS: Final = frozenset({CREATE, DESCRIBE, DESCRIBE_CONFIGS, IDEMPOTENT_WRITE})
_NOT_ASKED: Final = -(1 << 31)
_BROKERS: Final = 1
"""The endpoint type of DescribeCluster."""


class StreamTopic(NamedTuple):
    """A stream or a durable queue as Kafka's clients see it."""

    name: str
    id: UUID
    queue: Queue

    @property
    def is_work_queue(self) -> bool:
        """Return whether it is a classic or quorum queue: its messages are taken, not only read."""
        return self.queue.kind != "stream"


def is_topic(queue: Queue) -> bool:
    """Return whether clients see this queue as a topic."""
    return queue.durable and queue.exclusive_owner is None and KAFKA_TOPIC.fullmatch(queue.name) is not None


def find_topic(session: Session, name: str, kind: Permission) -> StreamTopic | int:
    """Return the topic, or an error code: 17 for a name that no topic can have, 29 without permission, 3 if there is
    no such queue. A queue whose declaration waits for its commit does not exist yet.

    Cost: two look-ups.
    """
    if KAFKA_TOPIC.fullmatch(name) is None:
        return INVALID_TOPIC_EXCEPTION
    if not is_permitted(session, name, kind):
        return TOPIC_AUTHORIZATION_FAILED
    queue = session.vhost.queues.get(name)
    if queue is None or queue.deleted or not is_topic(queue):
        return UNKNOWN_TOPIC_OR_PARTITION
    return topic_of(queue)


def find_topic_by_id(session: Session, topic_id: UUID, kind: Permission) -> StreamTopic | int:
    """Return the topic, or an error code: 100 for an unknown id, 29 without permission. Cost: two look-ups."""
    vhost = session.vhost
    queue = vhost.streams.get(topic_id.hex) or vhost.work_queues.get(topic_id.hex)
    if queue is None or queue.deleted or not is_topic(queue):
        return UNKNOWN_TOPIC_ID
    if not is_permitted(session, queue.name, kind):
        return TOPIC_AUTHORIZATION_FAILED
    return topic_of(queue)


def topic_of(queue: Queue) -> StreamTopic:
    """Return a queue as a topic."""
    return StreamTopic(queue.name, UUID(hex=queue.id), queue)


def is_permitted(session: Session, name: str, kind: Permission) -> bool:
    """Return whether the user has this permission for queues of this name."""
    return session.operator or session.broker.auth.is_allowed(session.user, session.vhost.name, kind, name)


def open_topic(topic: StreamTopic, then: Callable[[bool], None]) -> None:
    """Open the topic's log.

    Args:
        then: called with True when the log is open, at once if it is open already; with False if it cannot be opened or
            the queue was deleted. The broker's log has the reason.
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


def check_count(count: int, most: int = NAMES_MAX) -> None:
    """Refuse a request with too many elements. Raises: MalformedRequest."""
    if count > most:
        raise MalformedRequest(f"a request about {count} topics; at most {most} are accepted")


# -- Metadata ----------------------------------------------------------------------------------------------------------


def broker_address(connection: KafkaClientConnection) -> tuple[str, int]:
    """Return host and port at which this client reaches the broker: `kafka.advertised`, or where it has connected."""
    settings = connection.server.broker.settings
    advertised = settings.kafka.advertised
    if not advertised:
        return connection.local
    host, _, port = advertised.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def cluster_id(session: Session) -> str:
    """Return the cluster's id, the same as in definitions."""
    return str(session.broker.global_parameters.get(CLUSTER_ID, ""))


def _metadata(call: Call) -> None:
    request, session, version = call.request, call.session, call.version
    host, port = broker_address(call.connection)
    writer = BodyWriter(call.is_flexible)
    if version >= 3:
        writer.int32(0)  # throttle time
    writer.count(1)
    writer.int32(NODE_ID)
    writer.string(host)
    writer.int32(port)
    writer.string(None)  # rack
    writer.end()
    if version >= 2:
        writer.string(cluster_id(session))
    writer.int32(NODE_ID)  # controller
    found = _all_topics(session) if request.topics is None else _named_topics(session, request.topics)
    writer.count(len(found))
    partitions = _partitions(version, call.is_flexible)
    operations = bool(request.include_topic_authorized_operations)
    for name, topic_id, topic in found:
        bits = _bits(_operations(session, topic.name)) if operations and isinstance(topic, StreamTopic) else _NOT_ASKED
        _write_topic(writer, version, (name, topic_id, topic), partitions, bits)
    if 8 <= version <= 10:
        writer.int32(_bits(_CLUSTER_GRANTS) if request.include_cluster_authorized_operations else _NOT_ASKED)
    writer.end()
    call.reply_bytes(bytes(writer.data))


_Found: TypeAlias = tuple[str | None, UUID, StreamTopic | int]
"""Name and id of the answer, and the topic or an error code."""


def _all_topics(session: Session) -> list[_Found]:
    """Return the topics that the user may read or write. Cost: 1 us for each durable queue of the vhost."""
    found: list[_Found] = []
    for queues in (session.vhost.streams, session.vhost.work_queues):
        for queue in queues.values():
            if is_topic(queue) and _may_describe(session, queue.name):
                topic = topic_of(queue)
                found.append((topic.name, topic.id, topic))
    return found


def _may_describe(session: Session, name: str) -> bool:
    return is_permitted(session, name, "read") or is_permitted(session, name, "write")


def _named_topics(session: Session, wanted: list[Any]) -> list[_Found]:
    """Return the topics that the request names, each once. Raises: MalformedRequest."""
    asked = dict.fromkeys((each.name, each.topic_id) for each in wanted)
    check_count(len(asked))
    found: list[_Found] = []
    for name, topic_id in asked:
        topic = describable_topic(session, name, topic_id)
        if isinstance(topic, StreamTopic):
            found.append((topic.name, topic.id, topic))
        else:
            found.append((name, topic_id or NO_ID, topic))
    return found


def describable_topic(session: Session, name: str | None, topic_id: UUID | None = None) -> StreamTopic | int:
    """Return the topic with this name, or without a name that with this id, if the user may read or write it."""

    def find(kind: Permission) -> StreamTopic | int:
        if name is not None:
            return find_topic(session, name, kind)
        return UNKNOWN_TOPIC_ID if topic_id is None else find_topic_by_id(session, topic_id, kind)

    found = find("read")
    return find("write") if found == TOPIC_AUTHORIZATION_FAILED else found


def _partitions(version: int, flexible: bool) -> bytes:
    """Return the partitions of a topic, which are the same for all."""
    writer = BodyWriter(flexible)
    writer.count(1)
    writer.int16(NONE)
    writer.int32(0)  # partition
    writer.int32(NODE_ID)  # leader
    if version >= 7:
        writer.int32(0)  # leader epoch
    for _ in ("replicas", "in sync"):
        writer.count(1)
        writer.int32(NODE_ID)
    if version >= 5:
        writer.count(0)  # offline replicas
    writer.end()
    return bytes(writer.data)


def _write_topic(writer: BodyWriter, version: int, found: _Found, partitions: bytes, operations: int) -> None:
    name, topic_id, topic = found
    is_topic = isinstance(topic, StreamTopic)
    writer.int16(NONE if isinstance(topic, StreamTopic) else topic)
    # Before version 12 the name cannot be null.
    writer.string("" if name is None and version < 12 else name)
    if version >= 10:
        writer.uuid(topic_id)
    writer.boolean(False)  # internal
    if is_topic:
        writer.data += partitions
    else:
        writer.count(0)
    if version >= 8:
        writer.int32(operations)
    writer.end()


def _operations(session: Session, name: str) -> frozenset[int]:
    """Return the operations that the user's permissions for a topic allow."""
    granted: frozenset[int] = frozenset()
    for kind, operations in _GRANTS:
        if is_permitted(session, name, kind):
            granted |= operations
    return granted


def _bits(operations: frozenset[int]) -> int:
    return sum(1 << operation for operation in operations)


# -- DescribeCluster ---------------------------------------------------------------------------------------------------


def _describe_cluster(call: Call) -> None:
    request = call.request
    if call.version >= 1 and request.endpoint_type != _BROKERS:
        call.reply(
            {
                "error_code": UNSUPPORTED_ENDPOINT_TYPE,
                "error_message": "there are no endpoints of controllers",
                "endpoint_type": request.endpoint_type,
                "cluster_id": "",
                "authorized_operations": None,
            }
        )
        return
    host, port = broker_address(call.connection)
    # kafka-python encodes the operations as a set.
    operations = _CLUSTER_GRANTS if request.include_cluster_authorized_operations else None
    call.reply(
        {
            "endpoint_type": _BROKERS,
            "cluster_id": cluster_id(call.session),
            "controller_id": NODE_ID,
            "brokers": [{"broker_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "authorized_operations": operations,
        }
    )


APIS: Final = (
    Api(3, "Metadata", 1, 12, 9, _metadata, *api_types("Metadata")),
    Api(60, "DescribeCluster", 0, 1, 0, _describe_cluster, *api_types("DescribeCluster")),
)
