"""Messages of queues as Kafka's records, and back.

A record of a stream is stored as it came. In a work queue each record is a message of AMQP, and a message is sent to
Kafka's clients as a record:

    key                         routing key, at most 255 bytes
    value                       body; a null value is an empty body
    timestamp                   property timestamp (seconds) and header `timestamp_in_ms`
    header `exchange`           exchange
    header of a property        the property: `content-type`, `content-encoding`, `priority`, `correlation-id`,
                                `reply-to`, `expiration`, `message-id`, `type`, `app-id`
    other headers               headers table: values as long strings, null as void, a repeated name as an array

A property with a value that AMQP does not allow, such as the priority `high`, stays in the headers table. Numbers and
booleans of a headers table become text. If text does not say all, the record also has the header `properties` with the
encoded properties. A record that has this header gets exactly them; its other headers are ignored.

All bytes from clients were checked by `check_batches` (storage/log/appender.py), except what the headers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from librt.strings import BytesWriter

from amqpd.broker.message import TTL_MS_MAX, Message, MessageRoute, make_message
from amqpd.protocol.field_table import CodecError, Int64
from amqpd.protocol.properties import (
    DELIVERY_MODE,
    Properties,
    decode_properties,
    encode_properties,
    scan_properties,
)
from amqpd.storage.log.batch import HEADER_SIZE, NO_PRODUCER, BatchHeader, close_batch, decompressed
from amqpd.storage.log.record import BadRecord, read_varint, record_stop, write_varint
from amqpd.storage.queue_log import BatchBytes

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.queue_log import Cursor

EXCHANGE: Final = b"exchange"
PROPERTIES: Final = b"properties"
TIME_MS: Final = "timestamp_in_ms"
"""RabbitMQ's name for the time in milliseconds."""
NAME_BYTES_MAX: Final = 255
_PERSISTENT: Final = 2
_FEW_BYTES: Final = 3  # properties with the delivery mode alone
_TEXTS: Final[dict[bytes, str]] = {
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"priority": "priority",
    b"correlation-id": "correlation_id",
    b"reply-to": "reply_to",
    b"expiration": "expiration",
    b"message-id": "message_id",
    b"type": "type",
    b"app-id": "app_id",
}

Header = tuple[bytes, bytes | None]


class BatchRecord(NamedTuple):
    """A record of a batch. key, value: None for null."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def read_messages(
    queue: Queue, cursor: Cursor, offset: int, size_bytes_max: int, arrived: Callable[[], None]
) -> BatchBytes:
    """Return the messages of a queue's log that are not settled, from `offset` on, as at most one batch.

    Other arguments as for `Cursor.read_safe`. Raises: OSError.
    """
    found = cursor.read_safe(offset, size_bytes_max, arrived)
    result = BatchBytes(found.next_offset)
    result.waiting = found.waiting
    if found.records:
        message = queue.backing.message
        batch = encode_batch([record_of(message(each), each.offset, each.timestamp_ms) for each in found.records])
        result.parts.append(batch)
        result.size_bytes = len(batch)
    return result


# -- batches -----------------------------------------------------------------------------------------------------------


def records_of(batch: bytes) -> Iterator[BatchRecord]:
    """Yield the records of a checked batch. Cost: some 5 us each. Raises: BadRecord."""
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
    """An encoded record without its length. parts: before and after the offset delta."""

    offset: int
    timestamp_ms: int
    key_and_rest: bytes


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
    if len(key) > NAME_BYTES_MAX:
        raise CodecError(f"a key of {len(key)} bytes; in a queue at most {NAME_BYTES_MAX} are possible")
    exchange = b""
    properties: bytes | None = None
    for name, content in record.headers:
        if name == EXCHANGE:
            exchange = content or b""
        elif name == PROPERTIES and content is not None:
            properties = content
    if properties is None:
        properties = encode_properties(_properties_of(record))
    info = scan_properties(properties, 0, len(properties))
    if info.flags & DELIVERY_MODE == 0 or info.delivery_mode != _PERSISTENT:
        properties = encode_properties(decode_properties(properties)._replace(delivery_mode=_PERSISTENT))
        info = scan_properties(properties, 0, len(properties))
    if len(exchange) > NAME_BYTES_MAX:
        raise CodecError(f"an exchange of {len(exchange)} bytes")
    envelope = MessageRoute(exchange.decode("utf-8", "replace"), key.decode("utf-8", "surrogateescape"))
    return make_message(envelope, properties, record.value or b"", True, info)


def _properties_of(record: BatchRecord) -> Properties:
    fields: dict[str, Any] = {}
    table: dict[str, object] = {}
    for name, content in record.headers:
        if name == EXCHANGE:
            continue
        field = _TEXTS.get(name)
        value = None if field is None or field in fields or content is None else _property_value(field, content)
        if field is not None and value is not None:
            fields[field] = value
        else:
            _add_header(table, name, content)
    if record.timestamp_ms >= 0:
        table[TIME_MS] = Int64(record.timestamp_ms)
        fields["timestamp"] = record.timestamp_ms // 1000
    return Properties(headers=table or None, delivery_mode=_PERSISTENT)._replace(**fields)


def _property_value(field: str, content: bytes) -> str | int | None:
    """Return the value of a property, None if the bytes cannot be one."""
    if len(content) > NAME_BYTES_MAX:
        return None
    if field == "priority":
        return int(content) if content.isdigit() and len(content) <= 3 and int(content) <= 255 else None
    if field == "expiration" and not (content.isdigit() and len(content) <= 15 and int(content) <= TTL_MS_MAX):
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _add_header(table: dict[str, object], name: bytes, content: bytes | None) -> None:
    if len(name) > NAME_BYTES_MAX:
        raise CodecError(f"a header name of {len(name)} bytes; in a queue at most {NAME_BYTES_MAX} are possible")
    text = name.decode("utf-8", "surrogateescape")
    if text not in table:
        table[text] = content
        return
    before = table[text]
    if isinstance(before, list):
        before.append(content)
    else:
        table[text] = [before, content]


# -- messages to records -----------------------------------------------------------------------------------------------


def record_of(message: Message, offset: int, now_ms: int) -> OutgoingRecord:
    """Return a message as a record. now_ms: its time if neither message nor log has one. Cost: 5 to 20 us."""
    headers: list[Header] = []
    time_ms = message.logged_ms or now_ms
    envelope = message.envelope
    if envelope.exchange:
        headers.append((EXCHANGE, envelope.exchange.encode("utf-8", "surrogateescape")))
    properties = message.properties()
    if len(properties) > _FEW_BYTES:
        try:
            time_ms = _add_properties(headers, properties, time_ms)
        except CodecError:  # another program has written them
            headers.append((PROPERTIES, properties))
    writer = BytesWriter()
    key = envelope.routing_key.encode("utf-8", "surrogateescape")
    _write_field(writer, key)
    _write_field(writer, message.body())
    write_varint(writer, len(headers))
    for name, content in headers:
        _write_field(writer, name)
        _write_field(writer, content)
    return OutgoingRecord(offset, time_ms, writer.getvalue())


def _write_field(writer: BytesWriter, content: bytes | None) -> None:
    if content is None:
        write_varint(writer, -1)
    else:
        write_varint(writer, len(content))
        writer.write(content)


def _add_properties(headers: list[Header], properties: bytes, time_ms: int) -> int:
    """Add the headers for the properties. Return the time of the message. Raises: CodecError."""
    decoded = decode_properties(properties)
    for name, field in _TEXTS.items():
        value = getattr(decoded, field)
        if value is not None:
            headers.append((name, str(value).encode("utf-8", "surrogateescape")))
    complete = decoded.user_id is None and decoded.cluster_id is None
    if decoded.timestamp is not None:
        time_ms = min(decoded.timestamp * 1000, (1 << 62) - 1)
    for key, value in (decoded.headers or {}).items():
        if key == TIME_MS and isinstance(value, int) and 0 <= value < 1 << 62:
            time_ms = value
            continue
        values: Iterable[object] = value if isinstance(value, list) and len(value) > 1 else (value,)
        for each in values:
            known, content = _text_of(each)
            complete = complete and known
            if known or content is not None:
                headers.append((key.encode("utf-8", "surrogateescape"), content))
    if not complete:
        headers.append((PROPERTIES, properties))
    return time_ms


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
