"""DeleteRecords, OffsetForLeaderEpoch, DescribeLogDirs and DescribeTopicPartitions.

**DeleteRecords** moves the start of a log to the wanted record exactly (storage/retention.py, `trim`), and is answered
when that is synced. Readers of AMQP get no earlier record either. It needs the permission to configure. A compacted
stream is refused with 44 (POLICY_VIOLATION): its log start is not that of the records that are left.

**OffsetForLeaderEpoch**: each process that writes to a log begins a new epoch. The epoch in the request with which a
client names the leader is ignored, because Metadata has none.

**DescribeLogDirs** opens the logs of all partitions that it describes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.publish.confirms import when_safe
from amqpd.kafka_server import topics
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import (
    INVALID_REQUEST,
    NO_EPOCH,
    NODE_ID,
    NONE,
    NOT_ASKED,
    OFFSET_OUT_OF_RANGE,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
    STORAGE_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    MalformedRequest,
    api_types,
)
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import NO_ID, BodyWriter
from amqpd.storage.local_log import LocalLog
from amqpd.storage.queue_log import LogFailed
from amqpd.storage.retention import trim

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.queue_log import QueueLog

PARTITIONS_MAX: Final = 10_000
"""Partitions of one request."""
SLICE_COUNT: Final = 10
"""Logs that are trimmed in one turn of the loop, at some 300 us each."""
HIGH_WATERMARK: Final = -1
"""In place of an offset to which records are deleted."""
DESCRIBED_MAX: Final = 2000
"""Partitions in one DescribeTopicPartitions response. Kafka: max.request.partition.size.limit."""


class OpenedPartition:
    """A partition of a request, and what is found.

    Attributes:
        wanted: the offset or the epoch that the request has for it.
        offset: of the answer.
    """

    __slots__ = ("error_code", "index", "offset", "queue", "store", "wanted")

    def __init__(self, index: int, wanted: int = -1) -> None:
        self.index = index
        self.wanted = wanted
        self.error_code = NONE
        self.offset = -1
        self.queue: Queue | None = None
        self.store: QueueLog | None = None


Found = list[tuple[str, list[OpenedPartition]]]


def _open(call: Call, found: Found, kind: topics.Permission, done: Callable[[], None]) -> Steps[None]:
    """Open the partitions, then call `done` if the connection is still open. Raises: MalformedRequest."""
    count = sum(max(len(partitions), 1) for _, partitions in found)
    if count > PARTITIONS_MAX:
        raise MalformedRequest(f"a {call.api.name} request for {count} partitions; at most {PARTITIONS_MAX}")

    def opened() -> None:
        if not call.connection.closed:
            done()

    yield from topics.open_partitions(call, found, kind, opened)


# -- DeleteRecords


class _Deletion:
    """A DeleteRecords request until its answer."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._found: Found = [
            (topic.name or "", [OpenedPartition(each.partition_index, each.offset) for each in topic.partitions])
            for topic in call.request.topics
        ]
        self._left: list[OpenedPartition] = []
        self._unsafe_count = 0

    def begin(self) -> Steps[None]:
        """Open the logs, then trim them. Raises: MalformedRequest."""
        return _open(self._call, self._found, "configure", self._opened)

    def _opened(self) -> None:
        self._left = [each for _, partitions in self._found for each in partitions if each.store is not None]
        self._trim_slice()

    def _trim_slice(self) -> None:
        if self._call.connection.closed:  # maybe because the broker stops, and the logs are closed
            return
        broker = self._call.connection.server.broker
        trimmed = [self._left.pop() for _ in range(min(SLICE_COUNT, len(self._left)))]
        for each in trimmed:
            each.error_code = _trim(each)
        self._unsafe_count += 1
        when_safe(broker.turn, (), partial(self._became_safe, trimmed))
        if self._left:
            self._call.connection.server.pace.later(self._trim_slice)

    def _became_safe(self, trimmed: list[OpenedPartition], safe: bool) -> None:
        for each in trimmed:
            if each.store is not None and (each.store.failed or not safe) and not each.error_code:
                each.error_code = UNKNOWN_TOPIC_OR_PARTITION if each.store.deleted else STORAGE_ERROR
        self._unsafe_count -= 1
        if not self._left and not self._unsafe_count and not self._call.connection.closed:
            answered = [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": each.index,
                            "low_watermark": -1 if each.error_code else each.offset,
                            "error_code": each.error_code,
                        }
                        for each in partitions
                    ],
                }
                for name, partitions in self._found
            ]
            self._call.reply({"topics": answered})


def _trim(each: OpenedPartition) -> int:
    """Remove the records before the wanted offset, and set the new start. Return an error code."""
    store = each.store
    if store is None or store.deleted:
        return UNKNOWN_TOPIC_OR_PARTITION
    if not isinstance(store, LocalLog) or not store.local:
        return INVALID_REQUEST  # its log is a topic of a Kafka cluster
    policy = store.log.policy
    if policy is not None and policy.compaction is not None:
        return POLICY_VIOLATION
    if store.log.cleaning:  # it was compacted until now
        return REQUEST_TIMED_OUT
    offset = store.high_watermark if each.wanted == HIGH_WATERMARK else each.wanted
    if not 0 <= offset <= store.high_watermark:
        return OFFSET_OUT_OF_RANGE
    try:
        if offset > store.log_start():
            trim(store, offset)
    except (OSError, LogFailed):
        return STORAGE_ERROR
    each.offset = store.log_start()
    return NONE


def _delete_records(call: Call) -> Steps[None]:
    return _Deletion(call).begin()


# -- OffsetForLeaderEpoch


def _offset_for_leader_epoch(call: Call) -> Steps[None]:
    found: Found = []
    for topic in call.request.topics:
        partitions = [OpenedPartition(each.partition, each.leader_epoch) for each in topic.partitions]
        found.append((topic.topic or "", partitions))

    def done() -> None:
        answered = [
            {"topic": name, "partitions": [_end_of_epoch(each) for each in partitions]} for name, partitions in found
        ]
        call.reply({"topics": answered})

    return _open(call, found, "read", done)


def _end_of_epoch(each: OpenedPartition) -> dict[str, int]:
    """Return the answer for a partition: the highest epoch up to the wanted one, and the offset after its records.

    An epoch that is higher than all of the log, or -1, is not known: -1 and -1. Kafka: LeaderEpochFileCache.
    """
    epoch, end = NO_EPOCH, -1
    store = each.store
    if isinstance(store, LocalLog) and each.error_code == NONE and each.wanted >= 0:
        epochs = store.log.epochs
        later_starts = [start for each_epoch, start in epochs if each_epoch > each.wanted]
        if later_starts:
            epoch = max((each_epoch for each_epoch, _ in epochs if each_epoch <= each.wanted), default=each.wanted)
            end = later_starts[0]
        elif epochs and epochs[-1][0] == each.wanted:
            epoch, end = each.wanted, store.next_offset
    return {"error_code": each.error_code, "partition": each.index, "leader_epoch": epoch, "end_offset": end}


# -- DescribeLogDirs


def _describe_log_dirs(call: Call) -> Steps[None]:
    session = call.session
    wanted = call.request.topics
    found: Found = []
    if wanted is None:
        for name, _, topic in (yield from topics.all_topics(session)):
            if (
                name is not None
                and isinstance(topic, topics.PartitionedTopic)
                and topics.is_topic_permitted(session, name, "read")
            ):
                found.append((name, [OpenedPartition(index) for index in range(len(topic.partitions))]))
        if sum(len(partitions) for _, partitions in found) > PARTITIONS_MAX:
            call.reply({"error_code": INVALID_REQUEST, "results": []})
            return
    else:
        found = [(each.topic or "", [OpenedPartition(index) for index in each.partitions]) for each in wanted]
    yield from _open(call, found, "read", partial(_reply_log_dirs, call, found))


def _reply_log_dirs(call: Call, found: Found) -> None:
    """Answer with the partitions that were found. Kafka: others are left out."""
    described: list[dict[str, Any]] = []
    for name, partitions in found:
        sizes = [
            {"partition_index": each.index, "partition_size": _size_bytes(each.store), "offset_lag": 0}
            for each in partitions
            if each.store is not None
        ]
        if sizes:
            described.append({"name": name, "partitions": sizes})
    directory = call.connection.server.broker.settings.data_dir
    call.reply({"results": [{"error_code": NONE, "log_dir": str(directory), "topics": described}]})


def _size_bytes(store: QueueLog) -> int:
    """Return the size of the segments of a log."""
    return sum(segment.size for segment in store.log.segments) if isinstance(store, LocalLog) else 0


# -- DescribeTopicPartitions


def _describe_topic_partitions(call: Call) -> Steps[None]:
    request, session = call.request, call.session
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise MalformedRequest(f"a cursor at partition {cursor.partition_index}")
    if request.topics:
        topics.check_count(len(request.topics))
        names = {each.name for each in request.topics}
    else:
        names = {name for name, _, _ in (yield from topics.all_topics(session)) if name is not None}
    first = "" if cursor is None else cursor.topic_name
    left = min(max(request.response_partition_limit, 1), DESCRIBED_MAX)
    writer = BodyWriter(True)
    count = 0
    rest: tuple[str, int] | None = None
    for name in sorted(name for name in names if name >= first):
        start = cursor.partition_index if cursor is not None and name == first else 0
        topic = topics.describable_topic(session, name)
        end = len(topic.partitions) if isinstance(topic, topics.PartitionedTopic) else 0
        if start > 0 and start >= end:
            continue  # it was deleted, or the cursor is at its end
        if left == 0:
            rest = (name, start)
            break
        stop = min(end, start + left)
        _write_described(writer, session, name, topic, range(start, stop))
        yield
        count += 1
        left -= max(stop - start, 0)
        if stop < end:
            rest = (name, stop)
            break
    body = BodyWriter(True)
    body.int32(0)  # throttle time
    body.count(count)
    body.data += writer.data
    body.int8(-1 if rest is None else 1)
    if rest is not None:
        body.string(rest[0])
        body.int32(rest[1])
        body.end()
    body.end()
    call.reply_bytes(bytes(body.data))


def _write_described(
    writer: BodyWriter, session: Any, name: str, topic: topics.PartitionedTopic | int, indexes: Sequence[int]
) -> None:
    writer.int16(NONE if isinstance(topic, topics.PartitionedTopic) else topic)
    writer.string(name)
    writer.uuid(topic.id if isinstance(topic, topics.PartitionedTopic) else NO_ID)
    writer.boolean(False)  # internal
    writer.count(len(indexes))
    for index in indexes:
        writer.int16(NONE)
        writer.int32(index)
        writer.int32(NODE_ID)  # leader
        writer.int32(NO_EPOCH)
        for _ in ("replicas", "in sync"):
            writer.count(1)
            writer.int32(NODE_ID)
        for _ in ("eligible leaders", "last known eligible leaders", "offline replicas"):
            writer.count(0)
        writer.end()
    writer.int32(topics.operation_bits(session, name) if isinstance(topic, topics.PartitionedTopic) else NOT_ASKED)
    writer.end()


APIS: Final = (
    Api(21, "DeleteRecords", 0, 2, 2, _delete_records, *api_types("DeleteRecords")),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, _offset_for_leader_epoch, *api_types("OffsetForLeaderEpoch")),
    Api(35, "DescribeLogDirs", 1, 4, 2, _describe_log_dirs, *api_types("DescribeLogDirs")),
    Api(75, "DescribeTopicPartitions", 0, 0, 0, _describe_topic_partitions, *api_types("DescribeTopicPartitions")),
)
