"""Requests and responses of Fetch, decoded and encoded by hand: they are frequent, and the responses are large.

Versions 4 to 16. From version 12 on lengths are varints and structs end with tagged fields; from 13 on topics have ids
instead of names. Source: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.kafka_server.messages import MalformedRequest, RequestHeader
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import INT16, INT32, UUID_SIZE, RequestReader, encoded_length
from amqpd.kafka_server.topics import WantedPartition

if TYPE_CHECKING:
    from amqpd.storage.queue_log import Cursor

FLEXIBLE: Final = 12
TOPIC_IDS: Final = 13
READ_COMMITTED: Final = 1
"""An isolation level; 0 is READ_UNCOMMITTED."""
PARTITIONS_MAX: Final = 10_000
"""Partitions of one request; each costs about 10 us."""
STEP_COUNT: Final = 32
"""Partitions that are decoded or encoded in one step."""

_LIMITS: Final = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = struct.Struct(">ii")
# Of a partition in the request. version 4; 5 to 8: log start; 9 to 11: leader epoch; 12: last fetched epoch.
_PARTITION_4: Final = struct.Struct(">iqi")
_PARTITION_5: Final = struct.Struct(">iqqi")
_PARTITION_9: Final = struct.Struct(">iiqqi")
_PARTITION_12: Final = struct.Struct(">iiqiqi")
# Of a partition in the response: index, error, high watermark, last stable offset; from 5 on the log start.
_ANSWER_4: Final = struct.Struct(">ihqq")
_ANSWER_5: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")  # producer, first offset
_NO_REPLICA: Final = b"\xff\xff\xff\xff"


class FetchPartition(WantedPartition):
    """A partition of a request, and what is read for it.

    Attributes:
        offset: where the next read starts.
        size_bytes: of `parts`.
        is_full: no more can be added; the next batch is too large.
        is_unread: it is among those to be read next.
        stable_end: the last stable offset.
        abort_markers: (producer, offset) of the abort markers in `parts`, for readers of committed records.
        cursor: kept while the disk is being read.
    """

    __slots__ = (
        "abort_markers",
        "cursor",
        "high_watermark",
        "is_full",
        "is_unread",
        "log_start",
        "offset",
        "parts",
        "size_bytes",
        "size_bytes_max",
        "stable_end",
    )

    def __init__(self, index: int, offset: int, size_bytes_max: int) -> None:
        super().__init__(index)
        self.offset = offset
        self.size_bytes_max = size_bytes_max
        self.high_watermark = self.stable_end = self.log_start = -1
        self.abort_markers: list[tuple[int, int]] = []
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.is_full = self.is_unread = False
        self.cursor: Cursor | None = None


class FetchTopic(NamedTuple):
    """A topic of a request.

    Attributes:
        name: the name in UTF-8, or from version 13 on the 16 bytes of the id.
    """

    name: bytes
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    """A request, except for what the broker does not use. committed: the isolation level is READ_COMMITTED."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    committed: bool
    session_id: int
    topics: list[FetchTopic]


def decode_steps(frame: bytes, header: RequestHeader) -> Steps[FetchRequest]:
    """Return the Fetch request in a frame. Raises: MalformedRequest. Cost: some 3 us per partition."""
    version = header.version
    flexible = version >= FLEXIBLE
    reader = RequestReader(frame, header.size, flexible)
    if version < 15:
        reader.unpack(INT32)  # replica id
    max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_LIMITS)
    session_id = reader.unpack(_SESSION)[0] if version >= 7 else 0
    topics: list[FetchTopic] = []
    left = PARTITIONS_MAX
    for _ in range(reader.count(PARTITIONS_MAX, 4)):
        name = reader.take(UUID_SIZE) if version >= TOPIC_IDS else reader.string()
        partitions = yield from _decode_partitions(reader, version, left)
        left -= max(len(partitions), 1)
        if left < 0:
            raise MalformedRequest(f"a Fetch request for more than {PARTITIONS_MAX} partitions")
        topics.append(FetchTopic(name, partitions))
        reader.end_struct()
        if len(topics) % STEP_COUNT == 0:
            yield
    # What follows (forgotten partitions of a session, the rack) is not used.
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation == READ_COMMITTED, session_id, topics)


def _decode_partitions(reader: RequestReader, version: int, count_max: int) -> Steps[list[FetchPartition]]:
    if version >= 12:
        fields = _PARTITION_12
    elif version >= 9:
        fields = _PARTITION_9
    else:
        fields = _PARTITION_5 if version >= 5 else _PARTITION_4
    partitions: list[FetchPartition] = []
    for _ in range(reader.count(count_max, fields.size)):
        values = reader.unpack(fields)
        # index, [leader epoch], offset, [last fetched epoch], [log start], size
        partitions.append(FetchPartition(values[0], values[2 if version >= 9 else 1], values[-1]))
        reader.end_struct()
        if len(partitions) % STEP_COUNT == 0:
            yield
    return partitions


def encode_steps(version: int, error_code: int, topics: list[FetchTopic], throttle_ms: int = 0) -> Steps[list[bytes]]:
    """Return the body of a response in parts. The session id is 0: there are no fetch sessions."""
    flexible = version >= FLEXIBLE
    parts: list[bytes] = []
    count = 0
    head = bytearray(INT32.pack(throttle_ms))
    if version >= 7:
        head += INT16.pack(error_code) + INT32.pack(0)
    head += encoded_length(len(topics), INT32, flexible)
    for topic in topics:
        if version >= TOPIC_IDS:
            head += topic.name
        elif flexible:
            head += encoded_length(len(topic.name), INT32, True) + topic.name
        else:
            head += INT16.pack(len(topic.name)) + topic.name
        head += encoded_length(len(topic.partitions), INT32, flexible)
        for partition in topic.partitions:
            _encode_partition_head(head, version, partition)
            if partition.parts:
                parts.append(bytes(head))
                parts += partition.parts
                head = bytearray()
            if flexible:
                head.append(0)
            count += 1
            if count % STEP_COUNT == 0:
                yield
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    parts.append(bytes(head))
    return parts


def _encode_partition_head(head: bytearray, version: int, partition: FetchPartition) -> None:
    """Append all fields of a partition before the bytes of its records.

    Batches of aborted transactions are not sent, but their markers are. A client expects a transaction before each, so
    the list of aborted transactions has one that begins at its marker.
    """
    fields = (partition.index, partition.error_code, partition.high_watermark, partition.stable_end)
    head += _ANSWER_4.pack(*fields) if version < 5 else _ANSWER_5.pack(*fields, partition.log_start)
    head += encoded_length(len(partition.abort_markers), INT32, version >= FLEXIBLE)
    for marker in partition.abort_markers:
        head += _ABORTED.pack(*marker)
        if version >= FLEXIBLE:
            head.append(0)
    if version >= 11:
        head += _NO_REPLICA
    head += encoded_length(partition.size_bytes, INT32, version >= FLEXIBLE)
