"""Streams, super streams and durable queues as topics, and the requests Metadata and DescribeCluster.

Each stream and each durable classic or quorum queue of the vhost is a topic with partition 0. Its topic id is the id of
the queue, its name is that of the queue or the argument `x-kafka-topic` (broker/vhost/kafka_topics.py). A super stream
is a topic whose partitions are its streams (broker/vhost/super_streams.py). A stream or queue wins over a super stream
of the same name, unless it is the first partition of it. The streams of a super stream are topics of their own too, but
not in the list of all topics: consumers that subscribe to a pattern would read their records twice.

A user needs the permission for the name of the queue, not of the topic. For a super stream a user needs it for the
name of the topic, and for the stream of each partition that is used. A Metadata request never creates a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.events import ORIGIN
from amqpd.broker.queue.argument_checks import KAFKA_TOPIC
from amqpd.broker.vhost.kafka_topics import topic_name
from amqpd.broker.vhost.parameters import CLUSTER_ID
from amqpd.broker.vhost.super_streams import SuperStream
from amqpd.errors import ResourceError
from amqpd.kafka_server import errors
from amqpd.kafka_server.connection import Call, KafkaClientConnection, typed_api
from amqpd.kafka_server.message_schema import encode_array_steps
from amqpd.kafka_server.messages import NO_EPOCH, NODE_ID, MalformedRequest
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import NO_ID

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.storage.queue_log import QueueLog

Permission: TypeAlias = Literal["read", "write", "configure"]

NAMES_MAX: Final = 10_000
"""Most topics in one request, so that no request keeps the event loop for long."""
QUEUES_PER_STEP: Final = 64

# Operations of Kafka's authorizer (AclOperation): bits of the authorized operations.
READ: Final = 3
WRITE: Final = 4
CREATE: Final = 5
DELETE: Final = 6
ALTER: Final = 7
DESCRIBE: Final = 8
DESCRIBE_CONFIGS: Final = 10
ALTER_CONFIGS: Final = 11
IDEMPOTENT_WRITE: Final = 12

_GRANTS: Final[tuple[tuple[Permission, frozenset[int]], ...]] = (
    ("read", frozenset({READ, DESCRIBE, DESCRIBE_CONFIGS})),
    ("write", frozenset({WRITE, DESCRIBE, DESCRIBE_CONFIGS})),
    ("configure", frozenset({CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS})),
)
# CreateTopics checks the names, so every user may try.
_CLUSTER_GRANTS: Final = frozenset({CREATE, DESCRIBE, DESCRIBE_CONFIGS, IDEMPOTENT_WRITE})
_BROKERS: Final = 1
"""The endpoint type of DescribeCluster."""


class PartitionedTopic(NamedTuple):
    """A topic as Kafka's clients see it. partitions: by their numbers, at least one."""

    name: str
    id: UUID
    partitions: tuple[Queue, ...]


class TopicPartition(NamedTuple):
    """One partition of a topic. queue: its stream, or the classic or quorum queue."""

    topic: PartitionedTopic
    number: int
    queue: Queue

    @property
    def is_work_queue(self) -> bool:
        """Return whether it is a classic or quorum queue: its messages are taken, not only read."""
        return self.queue.kind != "stream"


def is_topic(queue: Queue) -> bool:
    """Return whether clients see this queue as a topic."""
    return queue.durable and queue.exclusive_owner is None and topic_name(queue) != ""


def find_topic(session: Session, name: str, kind: Permission) -> PartitionedTopic | int:
    """Return the topic, or an error code: 17 for a name that no topic can have, 29 without permission, 3 if there is
    no such topic. A queue whose declaration waits for its commit does not exist yet.

    Cost: three look-ups, for any number of partitions.
    """
    if KAFKA_TOPIC.fullmatch(name) is None:
        return errors.INVALID_TOPIC_EXCEPTION
    if not is_topic_permitted(session, name, kind):
        return errors.TOPIC_AUTHORIZATION_FAILED
    topic = topic_of_name(session.vhost, name)
    return errors.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic


def find_topic_by_id(session: Session, topic_id: UUID, kind: Permission) -> PartitionedTopic | int:
    """Return the topic, or an error code: 100 for an unknown id, 29 without permission. Cost: as `find_topic`."""
    topic = topic_of_id(session.vhost, topic_id)
    if topic is None or KAFKA_TOPIC.fullmatch(topic.name) is None:
        return errors.UNKNOWN_TOPIC_ID
    return topic if is_topic_permitted(session, topic.name, kind) else errors.TOPIC_AUTHORIZATION_FAILED


def topic_of_id(vhost: VHost, topic_id: UUID) -> PartitionedTopic | None:
    """Return the stream, super stream or queue with this topic id as a topic, None if there is none."""
    queue = vhost.streams.get(topic_id.hex) or vhost.work_queues.get(topic_id.hex)
    super_stream = vhost.super_streams.get_by_id(topic_id)
    name = topic_name(queue) if queue is not None else "" if super_stream is None else super_stream.exchange.name
    topic = topic_of_name(vhost, name)
    return None if topic is None or topic.id != topic_id else topic


def topic_of_name(vhost: VHost, name: str) -> PartitionedTopic | None:
    """Return the stream, super stream or queue of this name as a topic, None if there is none."""
    queue = vhost.kafka_topics.get(name) or vhost.queues.get(name)
    if queue is not None and (queue.deleted or not is_topic(queue) or topic_name(queue) != name):
        queue = None
    found = vhost.super_streams.get(name)
    if found is not None and found.id is not None:
        partitions = found.partitions
        if queue is None or partitions[0] is queue:
            return PartitionedTopic(name, found.id, partitions)
    return None if queue is None else PartitionedTopic(name, _uuid(queue.id), (queue,))


def vhost_of_id(vhosts: Mapping[str, VHost], vhost_id: str) -> VHost | None:
    """Return the vhost with an id, None if it was deleted. Cost: linear, 0.2 ms for 5,000 vhosts."""
    return next((vhost for vhost in vhosts.values() if vhost.id == vhost_id), None)


def partition_queue(vhost: VHost, name: str, index: int) -> Queue | None:
    """Return the stream or queue of a partition of the topic with this name, None if it does not exist."""
    topic = topic_of_name(vhost, name)
    return None if topic is None or not 0 <= index < len(topic.partitions) else topic.partitions[index]


@lru_cache(4096)
def _uuid(queue_id: str) -> UUID:
    """Return the id of a queue as a topic id. Parsing takes 1.5 us, and each request needs some."""
    return UUID(hex=queue_id)


def find_partition(session: Session, topic: str | UUID, index: int, kind: Permission) -> TopicPartition | int:
    """Return a partition of the topic with this name or id, or an error code: as the topic's, 3 for an unknown
    partition, 29 without permission for its stream.
    """
    found = find_topic_by_id(session, topic, kind) if isinstance(topic, UUID) else find_topic(session, topic, kind)
    return found if isinstance(found, int) else partition_of(session, found, index, kind)


def partition_of(session: Session, topic: PartitionedTopic, index: int, kind: Permission) -> TopicPartition | int:
    """Return a partition of a topic that the user may use, or an error code. See `find_partition`."""
    if not 0 <= index < len(topic.partitions):
        return errors.UNKNOWN_TOPIC_OR_PARTITION
    queue = topic.partitions[index]
    if queue.name != topic.name and not is_permitted(session, queue.name, kind):
        return errors.TOPIC_AUTHORIZATION_FAILED
    return TopicPartition(topic, index, queue)


def is_permitted(session: Session, name: str, kind: Permission) -> bool:
    """Return whether the user has this permission for queues of this name."""
    return session.operator or session.broker.auth.is_allowed(session.user, session.vhost.name, kind, name)


def is_topic_permitted(session: Session, name: str, kind: Permission) -> bool:
    """Return whether the user has this permission for the queue whose topic has this name, or for queues of this name
    if there is none.
    """
    queue = session.vhost.kafka_topics.get(name)
    return is_permitted(session, name if queue is None else queue.name, kind)


def record_refusal(session: Session, command: str, thing: str) -> None:
    """Record in the audit log that the user lacks a permission, as for AMQP. Cost: 2 us for a repetition.

    Args:
        command: name of the request.
        thing: for example `topic 'orders'`.
    """
    broker = session.broker
    if broker.catalogue.events.audit_hook is None:
        return
    origin = ORIGIN.set(session)
    try:
        text = f"access to {thing} refused for user '{session.user.name}'"
        broker.audit.refused(session.user.name, command, text, session.vhost.name)
    finally:
        ORIGIN.reset(origin)


def open_queue(queue: Queue, then: Callable[[bool], None]) -> None:
    """Open the log of a partition.

    Args:
        then: called with True when the log is open, at once if it is open already; with False if it cannot be opened or
            the queue was deleted. The broker's log has the reason.
    """
    if queue.deleted:
        then(False)
        return
    try:
        queue.prepare()
    except LogNotOpen:
        queue.when_open(lambda: open_queue(queue, then))
        return
    except ResourceError:
        then(False)
        return
    then(True)


class WantedPartition:
    """A partition of a request. `open_partitions` sets its queue and log, or the error code."""

    __slots__ = ("error_code", "index", "queue", "store")

    def __init__(self, index: int) -> None:
        self.index = index
        self.error_code = errors.NONE
        self.queue: Queue | None = None
        self.store: QueueLog | None = None


def open_partitions(
    call: Call,
    wanted: Iterable[tuple[str | UUID, Sequence[WantedPartition]]],
    kind: Permission,
    done: Callable[[], None],
) -> Steps[None]:
    """Find and open the partitions of a request, and set the log or the error code of each. A step for each.

    Args:
        wanted: topics by name or id, with their partitions.
        done: called when all are open or have an error; with the last step if all logs are open already.
    """
    session = call.session
    left = 1

    def finish_one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done()

    def opened(each: WantedPartition, queue: Queue, gone: int, is_open: bool) -> None:
        if queue.is_deleted():
            each.error_code = gone
        elif not is_open or queue.store is None:
            each.error_code = errors.STORAGE_ERROR
        else:
            each.queue, each.store = queue, queue.store
        finish_one()

    for name, partitions in wanted:
        if isinstance(name, UUID):
            topic, gone = find_topic_by_id(session, name, kind), errors.UNKNOWN_TOPIC_ID
        else:
            topic, gone = find_topic(session, name, kind), errors.UNKNOWN_TOPIC_OR_PARTITION
        if topic == errors.TOPIC_AUTHORIZATION_FAILED:
            record_refusal(session, call.api.name, f"topic '{name}'")
        for each in partitions:
            found = topic if isinstance(topic, int) else partition_of(session, topic, each.index, kind)
            if isinstance(found, int):
                each.error_code = found
            else:
                left += 1
                open_queue(found.queue, partial(opened, each, found.queue, gone))
            yield
        if not partitions:
            yield
    finish_one()


def check_count(count: int, most: int = NAMES_MAX) -> None:
    """Refuse a request with too many elements. Raises: MalformedRequest."""
    if count > most:
        raise MalformedRequest(f"a request with {count} elements; at most {most} are accepted")


def check_partitions(partitions: Iterable[Sequence[object]], most: int) -> None:
    """Refuse a request with too many topics and partitions. `partitions`: those of each topic. As `check_count`."""
    check_count(sum(1 + len(each) for each in partitions), most)


# -- Metadata ----------------------------------------------------------------------------------------------------------


def broker_address(connection: KafkaClientConnection) -> tuple[str, int]:
    """Return host and port at which this client reaches the broker: what is advertised to clients with TLS
    (`kafka.tls.advertised`) or without (`kafka.advertised`), or where it has connected.
    """
    settings = connection.server.broker.settings.kafka
    advertised = settings.tls.advertised if connection.tls else settings.advertised
    if not advertised:
        return connection.local
    host, _, port = advertised.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def cluster_id(session: Session) -> str:
    """Return the cluster's id, the same as in definitions."""
    return str(session.broker.global_parameters.get(CLUSTER_ID, ""))


def _metadata(call: Call) -> Steps[None]:
    request, session = call.request, call.session
    host, port = broker_address(call.connection)
    if request.topics is None or (call.version == 0 and not request.topics):
        found = yield from all_topics(session)
    else:
        found = yield from _named_topics(session, request.topics)
    topic_type = call.api.response.fields["topics"].data_class
    partition_type = topic_type.fields["partitions"].data_class
    partitions: dict[int, bytes] = {}  # of all topics that have so many
    for count in {_partition_count(topic) for _, _, topic in found}:
        own = described_partitions(range(count))
        partitions[count] = yield from encode_array_steps(partition_type, call.version, call.is_flexible, count, own)
    fields = (_described(call, each, partitions) for each in found)
    described = yield from encode_array_steps(topic_type, call.version, call.is_flexible, len(found), fields)
    operations = _CLUSTER_GRANTS if request.include_cluster_authorized_operations else None
    call.reply(
        {
            "brokers": [{"node_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_id": cluster_id(session),
            "controller_id": NODE_ID,
            "topics": described,
            "authorized_operations": operations,
        }
    )


def _partition_count(topic: PartitionedTopic | int) -> int:
    return 0 if isinstance(topic, int) else len(topic.partitions)


def _described(call: Call, found: FoundTopic, partitions: Mapping[int, bytes]) -> dict[str, Any]:
    """Return the fields of a topic. partitions: encoded, by their number."""
    name, topic_id, topic = found
    code, allowed = errors.NONE, None
    if isinstance(topic, int):
        code = topic
    elif call.request.include_topic_authorized_operations:
        allowed = operations_of(call.session, topic.name)
    return {
        "error_code": code,
        "name": name or "" if call.version < 12 else name,  # earlier it cannot be null
        "topic_id": topic_id,
        "partitions": partitions[_partition_count(topic)],
        "authorized_operations": allowed,
    }


FoundTopic: TypeAlias = tuple[str | None, UUID, PartitionedTopic | int]
"""Name and id of the answer, and the topic or an error code."""


def all_topics(session: Session) -> Steps[list[FoundTopic]]:
    """Return the topics that the user may read or write. Cost: 2 us for each stream and super stream of the vhost."""
    found: list[FoundTopic] = []
    for name in (yield from names_of_topics(session.vhost)):
        yield
        if is_topic_permitted(session, name, "read") or is_topic_permitted(session, name, "write"):
            topic = topic_of_name(session.vhost, name)
            if topic is not None:
                found.append((name, topic.id, topic))
    return found


def names_of_topics(vhost: VHost) -> Steps[list[str]]:
    """Return the names of all topics of a vhost, without the streams of super streams. Cost: 1 us for each queue."""
    found: list[Queue | SuperStream] = [
        *vhost.streams.values(),
        *vhost.super_streams.all(),
        *vhost.work_queues.values(),
    ]
    names: dict[str, None] = {}
    for start in range(0, len(found), QUEUES_PER_STEP):
        yield
        listed = (_listed_name(vhost, each) for each in found[start : start + QUEUES_PER_STEP])
        names.update(dict.fromkeys(name for name in listed if KAFKA_TOPIC.fullmatch(name) is not None))
    return list(names)


def _listed_name(vhost: VHost, topic: Queue | SuperStream) -> str:
    """Return the name of a topic in the list of all topics, "" if it is not in the list."""
    if isinstance(topic, SuperStream):
        return topic.exchange.name
    is_listed = not vhost.super_streams.has_stream(topic) if topic.kind == "stream" else is_topic(topic)
    return topic_name(topic) if is_listed else ""


def _named_topics(session: Session, wanted: list[Any]) -> Steps[list[FoundTopic]]:
    """Return the topics that the request names, each once. Raises: MalformedRequest."""
    # The Java client sends an id with the name "".
    asked = dict.fromkeys((each.name or None if each.topic_id else each.name, each.topic_id) for each in wanted)
    check_count(len(asked))
    found: list[FoundTopic] = []
    for name, topic_id in asked:
        topic = describable_topic(session, name, topic_id)
        if isinstance(topic, PartitionedTopic):
            found.append((topic.name, topic.id, topic))
        else:
            found.append((name, topic_id or NO_ID, topic))
        yield
    return found


def describable_topic(session: Session, name: str | None, topic_id: UUID | None = None) -> PartitionedTopic | int:
    """Return the topic with this name, or without a name that with this id, if the user may read or write it."""

    def find(kind: Permission) -> PartitionedTopic | int:
        if name is not None:
            return find_topic(session, name, kind)
        return errors.UNKNOWN_TOPIC_ID if topic_id is None else find_topic_by_id(session, topic_id, kind)

    found = find("read")
    return find("write") if found == errors.TOPIC_AUTHORIZATION_FAILED else found


def described_partitions(indexes: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Return partitions as Metadata and DescribeTopicPartitions have them."""
    own = {
        "leader_id": NODE_ID,
        "leader_epoch": NO_EPOCH,
        "replica_nodes": [NODE_ID],
        "isr_nodes": [NODE_ID],
        "eligible_leader_replicas": [],
        "last_known_elr": [],
    }
    return ({"partition_index": index, **own} for index in indexes)


def operations_of(session: Session, name: str) -> frozenset[int]:
    """Return the operations that the user's permissions for a topic allow."""
    granted = (each for kind, each in _GRANTS if is_topic_permitted(session, name, kind))
    return frozenset().union(*granted)


# -- DescribeCluster ---------------------------------------------------------------------------------------------------


def _describe_cluster(call: Call) -> None:
    request = call.request
    if request.endpoint_type != _BROKERS:
        call.reply(
            {
                "error_code": errors.UNSUPPORTED_ENDPOINT_TYPE,
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
    typed_api(3, "Metadata", 0, 12, 9, _metadata),
    typed_api(60, "DescribeCluster", 0, 1, 0, _describe_cluster),
)
