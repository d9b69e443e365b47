"""Messages of queues as Kafka's records, and back.

A record of a stream is stored as it came. In a work queue each record is a message of AMQP. The table in
storage/log/foreign_record.py tells how a record becomes a message, here and for AMQP consumers of streams. A message
becomes a record by the same table read backwards. Numbers and booleans of a headers table become text. If text does not
say all, the record also has the header `properties` with the encoded properties.

A queue refuses records with more than HEADERS_MAX headers, or MESSAGE_BYTES_MAX of key and headers. In a stream the
record stays complete, and only the message has less.

All bytes from clients were checked by `BatchCheck` (storage/log/appender.py), except what the headers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from librt.strings import BytesWriter

from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.properties import DELIVERY_MODE, decode_properties, encode_properties, scan_properties
from amqpd.storage.log.batch import HEADER_SIZE, NO_PRODUCER, BatchHeader, close_batch, decompressed
from amqpd.storage.log.foreign_record import (
    EXCHANGE,
    HEADERS,
    HEADERS_MAX,
    KEY,
    MESSAGE_BYTES_MAX,
    PROPERTIES,
    PROPERTY_FIELDS,
    TIME_MS,
    TOMBSTONE,
    Header,
    message_fields,
    shortened,
)
from amqpd.storage.log.record import BadRecord, read_varint, record_stop, write_varint
from amqpd.storage.queue_log import BatchBytes

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.queue_log import Cursor

TIME_MS_MAX: Final = (1 << 46) - 1
"""Year 4199. If a message has a later time, such as milliseconds as seconds, its record has the time of the log."""
_PERSISTENT: Final = 2
READ_WORK_MAX: Final = 10_000
"""Work for the messages of one read, in units of `record_work`: some 10 ms."""
_RECORD_WORK: Final = 16
_HEADER_BYTES: Final = 16
_FEW_BYTES: Final = 3  # properties with the delivery mode alone


class BatchRecord(NamedTuple):
    """A record of a batch. key, value: None for null."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def record_work(headers_count: int) -> int:
    """Return the work to convert a record: 1 for a header, at some 0.7 us (1.5 us interpreted)."""
    return _RECORD_WORK + headers_count


def message_work(properties: bytes) -> int:
    """Return the work to convert a message with these properties, as `record_work`. Short headers take more."""
    return record_work(len(properties) // _HEADER_BYTES)


def read_messages(
    queue: Queue, cursor: Cursor, offset: int, size_bytes_max: int, arrived: Callable[[], None]
) -> BatchBytes:
    """Return the messages of a queue's log that are not settled, from `offset` on, as at most one batch.

    The read ends after READ_WORK_MAX. Other arguments as for `Cursor.read_safe`. Raises: OSError.
    """
    found = cursor.read_safe(offset, size_bytes_max, arrived)
    result = BatchBytes(found.next_offset)
    result.waiting = found.waiting
    if found.records:
        message = queue.backing.message
        records: list[OutgoingRecord] = []
        work = 0
        for each in found.records:
            if work >= READ_WORK_MAX:
                result.next_offset, result.is_full, result.waiting = each.offset, True, False
                break
            records.append(record_of(message(each), each.offset, each.timestamp_ms))
            work += records[-1].work
        batch = encode_batch(records)
        result.parts.append(batch)
        result.size_bytes = len(batch)
    return result


# -- batches -----------------------------------------------------------------------------------------------------------


def records_of(batch: bytes) -> Iterator[BatchRecord]:
    """Yield the records of a checked batch. Cost: some 5 us each. Raises: BadRecord: more than HEADERS_MAX headers."""
    data, position, header = decompressed(batch, 0, BatchHeader(batch, 0))
    end = position + header.size
    position += HEADER_SIZE
    for _ in range(header.count):
        start, stop = record_stop(data, position, end)
        delta_ms, start = read_varint(data, start + 1)
        _, start = read_varint(data, start)  # offset delta
        key, start = _field(data, start, stop)
        value, start = _field(data, start, stop)
        count, start = read_varint(data, start)
        if count > HEADERS_MAX:
            raise BadRecord(f"a record with {count} headers; in a queue at most {HEADERS_MAX} are possible")
        headers: list[Header] = []
        for _ in range(count):
            name, start = _field(data, start, stop)
            content, start = _field(data, start, stop)
            headers.append((name or b"", content))
        yield BatchRecord(header.base_timestamp_ms + delta_ms, key, value, headers)
        position = stop


def _field(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise BadRecord("a field extends past the end of its record")
    return data[position : position + size], position + size


class OutgoingRecord(NamedTuple):
    """An encoded record without its length. work: to make it, as `record_work`."""

    offset: int
    timestamp_ms: int
    key_and_rest: bytes
    work: int = 0


def encode_batch(records: list[OutgoingRecord]) -> bytes:
    """Return one batch of these records, at least one, in ascending order of their offsets. Cost: some 2 us each."""
    base = records[0].offset
    time_ms = max(record.timestamp_ms for record in records)
    writer, body = BytesWriter(), BytesWriter()
    for record in records:
        body.truncate(0)
        body.append(0)  # attributes
        write_varint(body, record.timestamp_ms - time_ms)
        write_varint(body, record.offset - base)
        body.write(record.key_and_rest)
        write_varint(writer, len(body))
        writer.write(body.getvalue())
    # A closed batch has all offsets; in this one some may be missing, as after compaction.
    count = records[-1].offset - base + 1
    closed = close_batch(body, writer.getvalue(), base, count, 0, 0, time_ms, 0, NO_PRODUCER, -1, -1)
    if count == len(records):
        return bytes(closed.header + closed.records)
    return _with_count(closed.header + closed.records, len(records))


def _with_count(batch: bytes, count: int) -> bytes:
    """Return the batch with this number of records, and the checksum that follows."""
    from google_crc32c import value

    covered = batch[21 : HEADER_SIZE - 4] + count.to_bytes(4, "big") + batch[HEADER_SIZE:]
    crc: int = value(covered)
    return b"".join((batch[:17], crc.to_bytes(4, "big"), covered))


# -- records to messages -----------------------------------------------------------------------------------------------


def message_of(record: BatchRecord) -> Message:
    """Return the persistent message of a record. Raises: CodecError, with a text for the client."""
    key = record.key or b""
    size = len(key) + sum(len(name) + len(content or b"") for name, content in record.headers)
    if size > MESSAGE_BYTES_MAX:
        raise CodecError(f"key and headers of {size} bytes; in a queue at most {MESSAGE_BYTES_MAX} are possible")
    exchange, routing_key, properties = message_fields(key, record.value is None, record.headers, record.timestamp_ms)
    info = scan_properties(properties, 0, len(properties))
    if info.flags & DELIVERY_MODE == 0 or info.delivery_mode != _PERSISTENT:
        properties = encode_properties(decode_properties(properties)._replace(delivery_mode=_PERSISTENT))
        info = scan_properties(properties, 0, len(properties))
    envelope = MessageRoute(exchange.decode(), routing_key.decode())
    return make_message(envelope, properties, record.value or b"", True, info)


# -- messages to records -----------------------------------------------------------------------------------------------


def record_of(message: Message, offset: int, now_ms: int) -> OutgoingRecord:
    """Return a message as a record. now_ms: its time if neither message nor log has one. Cost: 5 to 20 us."""
    envelope = message.envelope
    key = envelope.routing_key.encode("utf-8", "surrogateescape")
    record = BatchRecord(message.logged_ms or now_ms, key, message.body(), [])
    if envelope.exchange:
        record.headers.append((EXCHANGE, envelope.exchange.encode("utf-8", "surrogateescape")))
    properties = message.properties()
    if len(properties) > _FEW_BYTES:
        try:
            record = _with_properties(record, properties)
        except CodecError:  # another program has written them
            record.headers.append((PROPERTIES, properties))
    writer = BytesWriter()
    _write_field(writer, record.key)
    _write_field(writer, record.value)
    write_varint(writer, len(record.headers))
    for name, content in record.headers:
        _write_field(writer, name)
        _write_field(writer, content)
    return OutgoingRecord(offset, record.timestamp_ms, writer.getvalue(), message_work(properties))


def _write_field(writer: BytesWriter, content: bytes | None) -> None:
    if content is None:
        write_varint(writer, -1)
    else:
        write_varint(writer, len(content))
        writer.write(content)


def _with_properties(record: BatchRecord, properties: bytes) -> BatchRecord:
    """Return the record with the key, value, time and headers that the properties say. Raises: CodecError."""
    headers = record.headers
    decoded = decode_properties(properties)
    for name, field in PROPERTY_FIELDS.items():
        value = getattr(decoded, field)
        if value is not None:
            headers.append((name, str(value).encode("utf-8", "surrogateescape")))
    complete = decoded.user_id is None and decoded.cluster_id is None
    if decoded.timestamp is not None and decoded.timestamp <= TIME_MS_MAX // 1000:
        record = record._replace(timestamp_ms=decoded.timestamp * 1000)
    elif decoded.timestamp is not None:
        complete = False
    for key, value in (decoded.headers or {}).items():
        if key == TIME_MS and isinstance(value, int) and 0 <= value <= TIME_MS_MAX:
            record = record._replace(timestamp_ms=value)
        elif key == TOMBSTONE and value is True and not record.value:
            record = record._replace(value=None)
        elif key == KEY and (long := _text_of(value)[1]) is not None and shortened(long) == record.key:
            record = record._replace(key=long)
        elif key == HEADERS and (pairs := _pairs_of(value)) is not None:
            headers += pairs
        else:
            values: Iterable[object] = value if isinstance(value, list) and len(value) > 1 else (value,)
            for each in values:
                known, content = _text_of(each)
                complete = complete and known
                if known or content is not None:
                    headers.append((key.encode("utf-8", "surrogateescape"), content))
    if not complete:
        headers.append((PROPERTIES, properties))
    return record


def _pairs_of(value: object) -> list[Header] | None:
    """Return the headers that `x-kafka-headers` has, None if another program has made it."""
    pairs: list[Header] = []
    for each in value if isinstance(value, list) else [None]:
        if not isinstance(each, list) or len(each) != 2:
            return None
        (is_name, name), (is_text, content) = _text_of(each[0]), _text_of(each[1])
        if not is_name or not is_text or name is None:
            return None
        pairs.append((name, content))
    return pairs


def _text_of(value: object) -> tuple[bool, bytes | None]:
    """Return whether bytes say all of a value of a headers table, and the bytes."""
    if value is None:
        return True, None
    if isinstance(value, str):
        return True, value.encode("utf-8", "surrogateescape")
    if isinstance(value, (bytes, bytearray)):
        return True, bytes(value)
    if isinstance(value, bool):
        return False, b"true" if value else b"false"
    if isinstance(value, (int, float)):
        return False, str(value).encode()
    return False, None
