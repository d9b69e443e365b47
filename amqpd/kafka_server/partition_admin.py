"""DeleteRecords, OffsetForLeaderEpoch, DescribeLogDirs and DescribeTopicPartitions.

**DeleteRecords** moves the start of a log to the wanted record exactly (storage/retention.py, `trim`), and is answered
when that is synced. Readers of AMQP get no earlier record either. It needs the permission to configure. A compacted
stream is refused with 44 (POLICY_VIOLATION): its log start is not that of the records that are left.

**OffsetForLeaderEpoch**: each process that writes to a log begins a new epoch. The epoch in the request with which a
client names the leader is ignored, because Metadata has none.

**DescribeLogDirs** opens the logs of all partitions that it describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.publish.confirms import when_safe
from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.messages import NO_EPOCH, NOT_ASKED, MalformedRequest
from amqpd.kafka_server.pace import Steps
from amqpd.storage.local_log import LocalLog
from amqpd.storage.queue_log import LogFailed
from amqpd.storage.retention import trim

if TYPE_CHECKING:
    from amqpd.storage.queue_log import QueueLog

PARTITIONS_MAX: Final = 10_000
"""Partitions of one request."""
SLICE_COUNT: Final = 10
"""Logs that are trimmed in one turn of the loop, at some 300 us each."""
HIGH_WATERMARK: Final = -1
"""In place of an offset to which records are deleted."""
DESCRIBED_MAX: Final = 2000
"""Partitions in one DescribeTopicPartitions response. Kafka: max.request.partition.size.limit."""


class OpenedPartition(topics.WantedPartition):
    """A partition of a request, and what is found.

    Attributes:
        wanted: the offset or the epoch that the request has for it.
        offset: of the answer.
    """

    __slots__ = ("offset", "wanted")

    def __init__(self, index: int, wanted: int = -1) -> None:
        super().__init__(index)
        self.wanted = wanted
        self.offset = -1


Found = list[tuple[str, list[OpenedPartition]]]


def open_all(call: Call, found: Found, kind: topics.Permission, done: Callable[[], None]) -> Steps[None]:
    """Open the partitions, then call `done` if the connection is still open. Raises: MalformedRequest."""
    _check_count(partitions for _, partitions in found)

    def opened() -> None:
        if call.connection.closed:
            return
        for _, partitions in found:
            for each in partitions:
                if each.store is not None and each.store.deleted:  # while the others were opened
                    each.error_code, each.store = errors.UNKNOWN_TOPIC_OR_PARTITION, None
        done()

    yield from topics.open_partitions(call, found, kind, opened)


def _check_count(partitions: Iterable[Sequence[object]]) -> None:
    topics.check_count(sum(max(len(each), 1) for each in partitions), PARTITIONS_MAX)


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
        return open_all(self._call, self._found, "configure", self._opened)

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
                each.error_code = errors.UNKNOWN_TOPIC_OR_PARTITION if each.store.deleted else errors.STORAGE_ERROR
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
        return errors.UNKNOWN_TOPIC_OR_PARTITION
    if not isinstance(store, LocalLog) or not store.local:
        return errors.INVALID_REQUEST  # its log is a topic of a Kafka cluster
    policy = store.log.policy
    if policy is not None and policy.compaction is not None:
        return errors.POLICY_VIOLATION
    if store.log.cleaning:  # it was compacted until now
        return errors.REQUEST_TIMED_OUT
    offset = store.high_watermark if each.wanted == HIGH_WATERMARK else each.wanted
    if not 0 <= offset <= store.high_watermark:
        return errors.OFFSET_OUT_OF_RANGE
    try:
        if offset > store.log_start():
            trim(store, offset)
    except (OSError, LogFailed):
        return errors.STORAGE_ERROR
    each.offset = store.log_start()
    return errors.NONE


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

    return open_all(call, found, "read", done)


def _end_of_epoch(each: OpenedPartition) -> dict[str, int]:
    """Return the answer for a partition: the highest epoch up to the wanted one, and the offset after its records.

    An epoch that is higher than all of the log, or -1, is not known: -1 and -1. Kafka: LeaderEpochFileCache.
    """
    epoch, end = NO_EPOCH, -1
    store = each.store
    if isinstance(store, LocalLog) and each.error_code == errors.NONE and each.wanted >= 0:
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
            call.reply({"error_code": errors.INVALID_REQUEST, "results": []})
            return
    else:
        _check_count(each.partitions for each in wanted)
        found = [(each.topic or "", [OpenedPartition(index) for index in each.partitions]) for each in wanted]
    yield from open_all(call, found, "read", partial(_reply_log_dirs, call, found))


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
    call.reply({"results": [{"error_code": errors.NONE, "log_dir": str(directory), "topics": described}]})


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
    described: list[dict[str, Any]] = []
    rest: dict[str, Any] | None = None
    for name in sorted(name for name in names if name >= first):
        start = cursor.partition_index if cursor is not None and name == first else 0
        topic = topics.describable_topic(session, name)
        end = 0 if isinstance(topic, int) else len(topic.partitions)
        if start > 0 and start >= end:
            continue  # it was deleted, or the cursor is at its end
        if left == 0:
            rest = {"topic_name": name, "partition_index": start}
            break
        stop = min(end, start + left)
        allowed = None if isinstance(topic, int) else topics.operations_of(session, name)
        described.append(
            {
                "error_code": topic if isinstance(topic, int) else errors.NONE,
                "name": name,
                "topic_id": None if isinstance(topic, int) else topic.id,
                "partitions": list(topics.described_partitions(range(start, stop))),
                "topic_authorized_operations": NOT_ASKED if allowed is None else sum(1 << bit for bit in allowed),
            }
        )
        yield
        left -= max(stop - start, 0)
        if stop < end:
            rest = {"topic_name": name, "partition_index": stop}
            break
    call.reply({"topics": described, "next_cursor": rest})


APIS: Final = (
    typed_api(21, "DeleteRecords", 0, 2, 2, _delete_records),
    typed_api(23, "OffsetForLeaderEpoch", 2, 4, 4, _offset_for_leader_epoch),
    typed_api(35, "DescribeLogDirs", 1, 4, 2, _describe_log_dirs),
    typed_api(75, "DescribeTopicPartitions", 0, 0, 0, _describe_topic_partitions),
)
