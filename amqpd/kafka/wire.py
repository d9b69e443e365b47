"""Fields of Kafka's protocol in its flexible encoding (KIP-482), and Kafka's error codes.

    int8 .. int64    big endian
    uvarint          7 bits a byte, lowest bits first
    compact string   uvarint of length + 1, then the bytes; 0 is null
    compact array    uvarint of count + 1, then the elements; 0 is null
    tagged fields    uvarint of their number; each is a uvarint tag, a uvarint size and bytes. `Reader` skips them

`Reader` trusts no length. It compares each length with the bytes that are left before it takes a byte or makes a
list. So an answer never costs more memory than its own size.

An error code of a produced batch has a remedy:

    NONE        the batch is stored
    RESEND      the outcome is unknown: send the same bytes again, in order, after a pause
    LEADER      as RESEND, but first look up the partition's leader
    SEQUENCE    an earlier batch is missing: as RESEND, from the oldest unanswered batch. If this batch is the
                oldest, Kafka has lost confirmed data or its memory of the producer: as FENCED
    PARTITION   Kafka never stores this batch: close the partition and report the error
    FENCED      another owner has a later epoch, or Kafka does not know this one: send nothing any more

An unknown code (of a newer Kafka) means RESEND, which ends at the delivery time-out.

Source: Kafka, `clients/src/main/resources/common/message/README.md`, `org.apache.kafka.common.protocol.Errors`, and
`Sender.java` for the remedies.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

_UVARINT_BYTES_MAX: Final[i64] = 5


class BadAnswer(ValueError):
    """An answer that does not fit its request or the protocol. The connection cannot be used any more."""


def write_int16(writer: BytesWriter, value: i64) -> None:
    """Append `value`, -32768 to 32767."""
    narrow: i16 = i16(value)
    write_i16_be(writer, narrow)


def write_int32(writer: BytesWriter, value: i64) -> None:
    narrow: i32 = i32(value)
    write_i32_be(writer, narrow)


def write_int64(writer: BytesWriter, value: i64) -> None:
    write_i64_be(writer, value)


def write_uvarint(writer: BytesWriter, value: i64) -> None:
    """Append `value`, which is not negative."""
    byte: int = 0  # Not i64: mypyc appends only an int to a writer without a method call.
    while value > 0x7F:
        byte = (value & 0x7F) | 0x80
        writer.append(byte)
        value >>= 7
    byte = value
    writer.append(byte)


def uvarint_size(value: i64) -> i64:
    """Return the encoded size of `value`, which is not negative, in bytes."""
    size: i64 = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


def write_compact(writer: BytesWriter, value: bytes) -> None:
    """Append a compact string or compact bytes."""
    write_uvarint(writer, len(value) + 1)
    writer.write(value)


def write_string(writer: BytesWriter, value: bytes) -> None:
    """Append a string of the older encoding: its length in 16 bits, then the bytes."""
    write_int16(writer, len(value))
    writer.write(value)


@final
class Reader:
    """A reader of one answer, from start to end. Its methods raise BadAnswer if the answer is too short.

    Attributes:
        data: The frame without its length.
        position: The index in `data` of the next field.
    """

    def __init__(self, data: bytes) -> None:
        self.data: bytes = data
        self.position: i64 = 0
        self.end: i64 = len(data)

    def _take(self, size: i64) -> i64:
        """Return the position of the next `size` bytes, and advance behind them."""
        start: i64 = self.position
        if size < 0 or size > self.end - start:
            raise BadAnswer("an answer is shorter than its fields")
        self.position = start + size
        return start

    def int8(self) -> i64:
        start: i64 = self._take(1)
        byte: i64 = self.data[start]
        return byte - 256 if byte > 127 else byte

    def int16(self) -> i64:
        start: i64 = self._take(2)
        number: i64 = i64(read_i16_be(self.data, start))
        return number

    def int32(self) -> i64:
        start: i64 = self._take(4)
        number: i64 = i64(read_i32_be(self.data, start))
        return number

    def int64(self) -> i64:
        start: i64 = self._take(8)
        return read_i64_be(self.data, start)

    def uvarint(self) -> i64:
        """Read an unsigned number of at most 32 bits."""
        number: i64 = 0
        shift: i64 = 0
        while shift < 7 * _UVARINT_BYTES_MAX:
            start: i64 = self._take(1)
            byte: i64 = self.data[start]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number > 0xFFFF_FFFF:
                    break
                return number
            shift += 7
        raise BadAnswer("a length has more than 32 bits")

    def compact_span(self) -> tuple[i64, i64]:
        """Read compact bytes and return their (start, end) in `data`; (-1, -1) for null."""
        size: i64 = self.uvarint() - 1
        if size < 0:
            return -1, -1
        start: i64 = self._take(size)
        return start, start + size

    def compact(self) -> bytes:
        """Read a compact string or compact bytes. Raises BadAnswer for null."""
        start: i64 = 0
        end: i64 = 0
        start, end = self.compact_span()
        if start < 0:
            raise BadAnswer("null in a field that needs a value")
        return self.data[start:end]

    def compact_or_none(self) -> bytes | None:
        """Read a compact string or compact bytes; None for null."""
        start: i64 = 0
        end: i64 = 0
        start, end = self.compact_span()
        return self.data[start:end] if start >= 0 else None

    def string(self) -> bytes:
        """Read a string of the older encoding."""
        size: i64 = self.int16()
        start: i64 = self._take(size)
        return self.data[start : start + size]

    def count(self, least: i64) -> i64:
        """Read the length of a compact array; 0 for null.

        Args:
            least: The smallest size of an element in bytes. A length that cannot fit raises BadAnswer.
        """
        return self._counted(self.uvarint() - 1, least)

    def count32(self, least: i64) -> i64:
        """Read the length of an array of the older encoding, as `count`."""
        return self._counted(self.int32(), least)

    def _counted(self, count: i64, least: i64) -> i64:
        if count <= 0:
            return 0
        if count > (self.end - self.position) // least:
            raise BadAnswer("an array is longer than its answer")
        return count

    def skip_int32s(self) -> None:
        self._take(4 * self.count(4))

    def skip_tags(self) -> None:
        left: i64 = self.uvarint()
        while left > 0:
            self.uvarint()
            self._take(self.uvarint())
            left -= 1

    def finish(self) -> None:
        """Check that the whole answer was read. Raises BadAnswer if bytes are left."""
        if self.position != self.end:
            raise BadAnswer(f"{self.end - self.position} bytes follow the last field")


NONE: Final = "none"
RESEND: Final = "resend"
LEADER: Final = "leader"
SEQUENCE: Final = "sequence"
PARTITION: Final = "partition"
FENCED: Final = "fenced"


class Code(NamedTuple):
    """One error code of Kafka."""

    number: int
    name: str
    remedy: str


_ROWS: Final = (
    (-1, "UNKNOWN_SERVER_ERROR", RESEND),
    (0, "NONE", NONE),
    (1, "OFFSET_OUT_OF_RANGE", PARTITION),
    (2, "CORRUPT_MESSAGE", PARTITION),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", LEADER),
    (5, "LEADER_NOT_AVAILABLE", LEADER),
    (6, "NOT_LEADER_OR_FOLLOWER", LEADER),
    (7, "REQUEST_TIMED_OUT", RESEND),
    (8, "BROKER_NOT_AVAILABLE", LEADER),
    (9, "REPLICA_NOT_AVAILABLE", LEADER),
    (10, "MESSAGE_TOO_LARGE", PARTITION),
    (13, "NETWORK_EXCEPTION", RESEND),
    (14, "COORDINATOR_LOAD_IN_PROGRESS", RESEND),
    (15, "COORDINATOR_NOT_AVAILABLE", RESEND),
    (16, "NOT_COORDINATOR", RESEND),
    (17, "INVALID_TOPIC_EXCEPTION", PARTITION),
    (18, "RECORD_LIST_TOO_LARGE", PARTITION),
    (19, "NOT_ENOUGH_REPLICAS", RESEND),
    (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", RESEND),
    (21, "INVALID_REQUIRED_ACKS", PARTITION),
    (29, "TOPIC_AUTHORIZATION_FAILED", PARTITION),
    (30, "GROUP_AUTHORIZATION_FAILED", PARTITION),
    (31, "CLUSTER_AUTHORIZATION_FAILED", PARTITION),
    (32, "INVALID_TIMESTAMP", PARTITION),
    (33, "UNSUPPORTED_SASL_MECHANISM", PARTITION),
    (34, "ILLEGAL_SASL_STATE", PARTITION),
    (35, "UNSUPPORTED_VERSION", PARTITION),
    (42, "INVALID_REQUEST", PARTITION),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", PARTITION),
    (44, "POLICY_VIOLATION", PARTITION),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", SEQUENCE),
    (46, "DUPLICATE_SEQUENCE_NUMBER", NONE),
    (47, "INVALID_PRODUCER_EPOCH", FENCED),
    (48, "INVALID_TXN_STATE", FENCED),
    (49, "INVALID_PRODUCER_ID_MAPPING", FENCED),
    (50, "INVALID_TRANSACTION_TIMEOUT", PARTITION),
    (51, "CONCURRENT_TRANSACTIONS", RESEND),
    (52, "TRANSACTION_COORDINATOR_FENCED", FENCED),
    (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", PARTITION),
    (54, "SECURITY_DISABLED", PARTITION),
    (56, "KAFKA_STORAGE_ERROR", LEADER),
    (58, "SASL_AUTHENTICATION_FAILED", PARTITION),
    (59, "UNKNOWN_PRODUCER_ID", FENCED),
    (72, "LISTENER_NOT_FOUND", LEADER),
    (74, "FENCED_LEADER_EPOCH", LEADER),
    (75, "UNKNOWN_LEADER_EPOCH", LEADER),
    (76, "UNSUPPORTED_COMPRESSION_TYPE", PARTITION),
    (78, "OFFSET_NOT_AVAILABLE", RESEND),
    (80, "PREFERRED_LEADER_NOT_AVAILABLE", LEADER),
    (83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", LEADER),
    (87, "INVALID_RECORD", PARTITION),
    (89, "THROTTLING_QUOTA_EXCEEDED", RESEND),
    (90, "PRODUCER_FENCED", FENCED),
    (100, "UNKNOWN_TOPIC_ID", LEADER),
    (103, "INCONSISTENT_TOPIC_ID", LEADER),
    (120, "TRANSACTION_ABORTABLE", FENCED),
)

CODES: Final[dict[int, Code]] = {row[0]: Code(*row) for row in _ROWS}
ASK_AGAIN: Final = frozenset((-1, 3, 5, 6, 7, 8, 13, 14, 15, 16, 51, 89))
"""Error codes of FindCoordinator, InitProducerId and Metadata that end by themselves: ask again."""

DUPLICATE: Final[i64] = 46


def code_of(number: i64) -> Code:
    """Return the row of an error code. An unknown code gets a new row."""
    row = CODES.get(number)
    return row if row is not None else Code(number, f"code {number}", RESEND)
