"""One AMQP message as one record of a Kafka record batch (magic 2), encoded and decoded.

A record, with numbers as zigzag varints:

    length            bytes that follow
    attributes        one byte, 0
    timestamp delta   0: all records of our batches have the time of the append
    offset delta
    key               length and bytes: the routing key
    value             length and bytes: the body; length -1 is a null value, a tombstone
    header count      2
    `exchange`        header name and value, each with its length
    `properties`      flags and fields of the AMQP content header, byte for byte as they arrived

`RecordRoute` keeps the bytes around the body that all messages of one route share. Records of other programs, for
example Kafka's producers, have other headers; foreign_record.py makes messages of them.

Reading: `RecordDecoder.read` makes one `Record` per message. `RecordDecoder.read_view` only notes in a `RecordViews`
where the body is: 32 bytes per record, no object and no copy, for readers that pass bodies on. Consecutive records
with the same key and headers share these objects.

All input is untrusted: damaged bytes raise BadRecord, never IndexError.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, read_i64_le, write_i64_le
from mypy_extensions import i64

from amqpd.storage.log.foreign_record import HEADERS_MAX, Header, message_fields

# Computed, because mypyc keeps a literal of more than 62 bits as an object and unpacks it at each use.
_EXCHANGE_WORD: Final[i64] = read_i64_be(b"exchange", 0)
_PROPERTIES_WORD: Final[i64] = read_i64_be(b"properties", 0)
_NO_BYTES: Final = b""
_BYTEWISE_MAX: Final[i64] = 16
# The varints of 0 to 63.
_ONE_BYTE: Final = [bytes((number << 1,)) for number in range(64)]


class BadRecord(ValueError):
    """Bytes with a right checksum are not a record: another program wrote them, or there is a defect."""


class RecordsTooLarge(BadRecord):
    """The records of a batch decompress to more bytes than readers accept."""


def varint(value: int) -> bytes:
    """Return `value` (signed, 64 bits) as a zigzag varint of 1 to 10 bytes."""
    if 0 <= value < 64:
        return _ONE_BYTE[value]
    writer = BytesWriter()
    write_varint(writer, value)
    return writer.getvalue()


def write_varint(writer: BytesWriter, value: i64) -> None:
    """Append `value` as a zigzag varint. Cost: one append per 7 bits."""
    bits: i64 = (value << 1) ^ (value >> 63)
    byte: int = 0  # not i64: only an int goes into a writer without a method call
    while bits > 0x7F or bits < 0:
        byte = (bits & 0x7F) | 0x80
        writer.append(byte)
        bits = (bits >> 7) & 0x01FF_FFFF_FFFF_FFFF
    byte = bits
    writer.append(byte)


def varint_size(value: i64) -> i64:
    """Return the size of `value` (not negative) as a zigzag varint."""
    bits: i64 = value << 1
    size: i64 = 1
    while bits > 0x7F:
        bits >>= 7
        size += 1
    return size


def read_varint(data: bytes, position: i64) -> tuple[i64, i64]:
    """Return the zigzag varint at `position`, and the position after it.

    Raises: BadRecord past the end, or for more than 10 bytes.
    """
    size: i64 = len(data)
    if 0 <= position < size and data[position] < 0x80:
        small: i64 = data[position]
        return (small >> 1) ^ -(small & 1), position + 1
    shift: i64 = 0
    bits: i64 = 0
    while True:
        if position >= size or position < 0 or shift > 63:
            raise BadRecord("a number extends past the end of its record")
        byte: i64 = data[position]
        position += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    number: i64 = bits >> 1
    if number < 0:  # the shift copied the sign bit
        number &= 0x7FFF_FFFF_FFFF_FFFF
    return number ^ -(bits & 1), position


# Around the value of the header `exchange`: the count of headers and its name; the name of the other header.
_BEFORE_EXCHANGE: Final = varint(2) + varint(8) + b"exchange"
_AFTER_EXCHANGE: Final = varint(10) + b"properties"


def before_properties(exchange: bytes) -> bytes:
    """Return the bytes between the body and the length of the properties."""
    return _BEFORE_EXCHANGE + varint(len(exchange)) + exchange + _AFTER_EXCHANGE


@final
class RecordRoute:
    """The constant bytes of all records with one exchange and one routing key. Make it once per route.

    Attributes:
        exchange: as in the AMQP method, without the length byte.
        routing_key: also without the length byte.
    """

    def __init__(self, exchange: bytes, routing_key: bytes) -> None:
        self.exchange: bytes = exchange
        self.routing_key: bytes = routing_key
        # Attributes and timestamp delta are two zero bytes; the offset delta comes between them and the key.
        self.key_part: bytes = varint(len(routing_key)) + routing_key
        self.middle: bytes = before_properties(exchange)
        self.fixed_size: i64 = 2 + len(self.key_part) + len(self.middle)
        # Ready parts around offset delta, body and properties, for the sizes that two messages in a row had.
        self.sizes: i64 = -1
        self.sizes_before: i64 = -1
        self.before_delta: bytes = _NO_BYTES
        self.before_body: bytes = _NO_BYTES
        self.before_properties: bytes = _NO_BYTES

    def prepare_sizes(self, sizes: i64, body_size: i64, properties_size: i64) -> None:
        """Prepare the parts for records of these sizes.

        Args:
            sizes: both sizes in one number, as `write_record` compares them.
        """
        length: i64 = self.fixed_size + 1 + varint_size(body_size) + body_size
        length += varint_size(properties_size) + properties_size
        self.sizes = sizes
        self.before_delta = varint(length) + b"\0\0"
        self.before_body = self.key_part + varint(body_size)
        self.before_properties = self.middle + varint(properties_size)


def write_record(
    writer: BytesWriter,
    route: RecordRoute,
    delta: i64,
    source: bytes,
    properties_start: i64,
    properties_end: i64,
    body_start: i64,
    body_end: i64,
) -> None:
    """Append one record to the open batch in `writer`. Properties and body are slices of `source`.

    Args:
        delta: the offset within the batch.

    Cost: about 50 ns and one copy of the body; 80 ns if the sizes differ from the previous record.
    """
    body_size: i64 = body_end - body_start
    properties_size: i64 = properties_end - properties_start
    sizes: i64 = (properties_size << 32) | body_size
    if delta < 64:  # one byte
        if sizes != route.sizes and sizes == route.sizes_before:
            route.prepare_sizes(sizes, body_size, properties_size)
        route.sizes_before = sizes
        if sizes == route.sizes:
            writer.write(route.before_delta)
            delta_byte: int = delta << 1
            writer.append(delta_byte)
            writer.write(route.before_body)
            _write_slice(writer, source, body_start, body_end)
            writer.write(route.before_properties)
            _write_slice(writer, source, properties_start, properties_end)
            return
    write_varint(
        writer,
        route.fixed_size
        + varint_size(delta)
        + varint_size(body_size)
        + body_size
        + varint_size(properties_size)
        + properties_size,
    )
    writer.append(0)
    writer.append(0)
    write_varint(writer, delta)
    writer.write(route.key_part)
    write_varint(writer, body_size)
    _write_slice(writer, source, body_start, body_end)
    writer.write(route.middle)
    write_varint(writer, properties_size)
    _write_slice(writer, source, properties_start, properties_end)


def encode_around_body(route: RecordRoute, properties: bytes, body_size: i64) -> tuple[bytes, bytes]:
    """Return the bytes before and after the body of a record that is the first of its batch."""
    properties_size: i64 = len(properties)
    length: i64 = route.fixed_size + 1 + varint_size(body_size) + body_size
    length += varint_size(properties_size) + properties_size
    before = varint(length) + b"\0\0\0" + route.key_part + varint(body_size)
    return before, route.middle + varint(properties_size) + properties


def write_tombstone(writer: BytesWriter, route: RecordRoute, delta: i64, properties: bytes) -> None:
    """Append a record with a null value: compaction then removes older records of its key."""
    size: i64 = len(properties)
    write_varint(writer, route.fixed_size + varint_size(delta) + 1 + varint_size(size) + size)
    writer.append(0)
    writer.append(0)
    write_varint(writer, delta)
    writer.write(route.key_part)
    write_varint(writer, -1)
    writer.write(route.middle)
    write_varint(writer, size)
    writer.write(properties)


def _write_slice(writer: BytesWriter, source: bytes, start: i64, end: i64) -> None:
    if end - start > _BYTEWISE_MAX:
        writer.write(source[start:end])
        return
    while start < end:  # a few single bytes cost less than a slice object
        writer.append(source[start])
        start += 1


@final
class Record:
    """A message read from a log.

    Attributes:
        delivery_count: how often the message was delivered and returned; 0 if never or unknown.
        tombstone: the value is null (compaction.py).
        foreign: another program wrote it, with other headers than our records have.
    """

    def __init__(
        self,
        offset: i64,
        timestamp_ms: i64,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        body: bytes,
        persistent: bool,
    ) -> None:
        self.offset: i64 = offset
        self.timestamp_ms: i64 = timestamp_ms
        self.exchange: bytes = exchange
        self.routing_key: bytes = routing_key
        self.properties: bytes = properties
        self.body: bytes = body
        self.persistent: bool = persistent
        self.delivery_count: i64 = 0
        self.tombstone: bool = False  # null value
        self.foreign: bool = False


def record_stop(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """Return the first position after the length, and the first position after the record.

    Raises: BadRecord if the record does not fit before `end`.
    """
    length: i64 = 0
    if position < end and data[position] < 0x80:  # fast path for a length of one byte
        length = data[position]
        length = (length >> 1) ^ -(length & 1)
        position += 1
    else:
        length, position = read_varint(data, position)
    if length < 0 or position + length > end:
        raise BadRecord("a record extends past the end of its batch")
    return position, position + length


def read_offset_delta(data: bytes, position: i64) -> tuple[i64, i64]:
    """Return the offset delta and the position of the key. `position`: of the attributes."""
    position += 1
    size: i64 = len(data)
    if position + 1 < size and data[position] == 0 and data[position + 1] < 0x80:
        delta: i64 = data[position + 1]
        return (delta >> 1) ^ -(delta & 1), position + 2
    _, position = read_varint(data, position)
    return read_varint(data, position)


def value_size(data: bytes, position: i64, end: i64) -> i64:
    """Return the size of the body, 0 for a null value. `position`: of the attributes. Raises: BadRecord."""
    _, position = read_offset_delta(data, position)
    size: i64 = 0
    size, position = read_varint(data, position)
    if size > 0:
        position += size
    size, position = read_varint(data, position)
    if position + size > end:
        raise BadRecord("a value extends past the end of its record")
    return size if size > 0 else 0


def body_and_headers(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """Return the size of the body, 0 for a null value, and the number of headers. `position`: of the key.

    Raises: BadRecord.
    """
    size: i64 = 0
    size, position = read_varint(data, position)
    if size > 0:
        position += size
    body_size: i64 = 0
    body_size, position = read_varint(data, position)
    if body_size > 0:
        position += body_size
    if position > end:
        raise BadRecord("a value extends past the end of its record")
    count: i64 = 0
    count, _ = read_varint(data, position)
    return body_size if body_size > 0 else 0, count


def read_record(
    data: bytes, position: i64, end: i64, offset: i64, timestamp_ms: i64, persistent: bool, exact: bool = False
) -> Record:
    """Return the record with its key at `position` and its last byte before `end`, as it is stored.

    The result of a foreign record has its key as routing key, and the headers `exchange` and `properties` if it has
    them. `RecordDecoder` makes a message of it.

    Args:
        exact: refuse bytes behind the fields. Logs of earlier versions may have such records.

    Cost: about 150 ns, and copies of its parts. Raises: BadRecord.
    """
    size: i64 = 0
    key: bytes = _NO_BYTES
    size, position = read_varint(data, position)
    if size > 0:
        key = data[position : position + size]
        position += size
    value: bytes = _NO_BYTES
    value_bytes: i64 = 0
    value_bytes, position = read_varint(data, position)
    if value_bytes > 0:
        value = data[position : position + value_bytes]
        position += value_bytes
    exchange: bytes = _NO_BYTES
    properties: bytes = _NO_BYTES
    count: i64 = 0
    count, position = read_varint(data, position)
    foreign = count != 2
    while count > 0:
        count -= 1
        name_size: i64 = 0
        name_size, position = read_varint(data, position)
        if name_size < 0 or position + name_size > end:
            raise BadRecord("a header name extends past the end of its record")
        name_position: i64 = position
        position += name_size
        size, position = read_varint(data, position)
        if size > 0 and position + size > end:
            raise BadRecord("a header extends past the end of its record")
        if name_size == 8 and read_i64_be(data, name_position) == _EXCHANGE_WORD:
            if size > 0:
                exchange = data[position : position + size]
            if count != 1:
                foreign = True
        elif (
            name_size == 10
            and read_i64_be(data, name_position) == _PROPERTIES_WORD
            and data[name_position + 8] == 0x65
            and data[name_position + 9] == 0x73
        ):
            if size > 0:
                properties = data[position : position + size]
            if count != 0:
                foreign = True
        else:
            foreign = True
        if size > 0:
            position += size
    if position > end:
        raise BadRecord("the fields of a record extend past its end")
    if exact and position < end:  # Java's consumers do not read on behind such a record
        raise BadRecord("bytes follow the fields of a record")
    record = Record(offset, timestamp_ms, exchange, key, properties, value, persistent)
    record.foreign = foreign
    if value_bytes < 0:
        record.tombstone = True
    return record


def read_headers(data: bytes, position: i64) -> tuple[list[Header], i64]:
    """Return the first headers of a record that `read_record` has accepted, and the number of others.

    Args:
        position: the position of the key.
    """
    size: i64 = 0
    for _ in range(2):  # key and value
        size, position = read_varint(data, position)
        if size > 0:
            position += size
    count: i64 = 0
    count, position = read_varint(data, position)
    headers: list[Header] = []
    while count > 0 and len(headers) < HEADERS_MAX:
        count -= 1
        size, position = read_varint(data, position)
        name = data[position : position + size]
        position += size
        size, position = read_varint(data, position)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[position : position + size]))
            position += size
    return headers, count


_PLACE_SIZE: Final[i64] = 32


@final
class SharedFields:
    """Fields that consecutive records share, and the bytes that contain their bodies."""

    def __init__(self, data: bytes, exchange: bytes, routing_key: bytes, properties: bytes, persistent: bool) -> None:
        self.data: Final[bytes] = data
        self.exchange: Final[bytes] = exchange
        self.routing_key: Final[bytes] = routing_key
        self.properties: Final[bytes] = properties
        self.persistent: Final[bool] = persistent


@final
class RecordViews:
    """Records in the order of their offsets, as positions in the bytes they were read from. Immutable after `close`.

    A record is four words of eight bytes: offset, timestamp, position and size of the body, number of its
    `SharedFields`.

    Attributes:
        shared_fields: the `SharedFields`, by number.
        next_offset: where to continue reading.
        waiting: as `ReadResult.waiting`.
    """

    def __init__(self) -> None:
        self.count: i64 = 0
        self.shared_fields: list[SharedFields] = []
        self.next_offset: i64 = -1
        self.waiting: bool = False
        self._writer: BytesWriter | None = BytesWriter()
        self._packed: bytes = _NO_BYTES
        self._last: SharedFields | None = None

    def add(
        self,
        offset: i64,
        timestamp_ms: i64,
        body_start: i64,
        body_size: i64,
        data: bytes,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        persistent: bool,
    ) -> None:
        """Add a record. Equal parts should be the same objects, since they are compared by identity. Cost: about 10
        ns.

        Args:
            body_size: -1 for a null value.
        """
        last = self._last
        if (
            last is None
            or properties is not last.properties
            or data is not last.data
            or routing_key is not last.routing_key
            or exchange is not last.exchange
            or persistent != last.persistent
        ):
            last = SharedFields(data, exchange, routing_key, properties, persistent)
            self._last = last
            self.shared_fields.append(last)
        writer = self._writer
        assert writer is not None  # `close` was not called
        number: i64 = len(self.shared_fields)
        write_i64_le(writer, offset)
        write_i64_le(writer, timestamp_ms)
        write_i64_le(writer, body_start << 32 | (body_size + 1))
        write_i64_le(writer, number - 1)
        self.count += 1

    def add_record(self, record: Record) -> None:
        """Add a record whose body is an object of its own."""
        size: i64 = -1 if record.tombstone else len(record.body)
        self.add(
            record.offset,
            record.timestamp_ms,
            0,
            size,
            record.body,
            record.exchange,
            record.routing_key,
            record.properties,
            record.persistent,
        )

    def close(self, next_offset: i64, waiting: bool) -> None:
        """Make the records readable; none can be added any more."""
        writer = self._writer
        assert writer is not None  # `close` is called once
        self._packed = writer.getvalue()
        self._writer = None
        self._last = None
        self.next_offset = next_offset
        self.waiting = waiting

    def offset(self, index: i64) -> i64:
        return read_i64_le(self._packed, index * _PLACE_SIZE)

    def timestamp_ms(self, index: i64) -> i64:
        return read_i64_le(self._packed, index * _PLACE_SIZE + 8)

    def body_start(self, index: i64) -> i64:
        """Return where the body starts in the bytes of its `SharedFields`."""
        return read_i64_le(self._packed, index * _PLACE_SIZE + 16) >> 32

    def body_size(self, index: i64) -> i64:
        """Return the size of the body in bytes, -1 for a null value."""
        return (read_i64_le(self._packed, index * _PLACE_SIZE + 16) & 0xFFFF_FFFF) - 1

    def shared_fields_index(self, index: i64) -> i64:
        """Return the index of its `SharedFields` in `shared_fields`."""
        return read_i64_le(self._packed, index * _PLACE_SIZE + 24)

    def body(self, index: i64) -> bytes:
        """Return the body, empty for a null value. Cost: a copy."""
        start = self.body_start(index)
        size = self.body_size(index)
        return self.shared_fields[self.shared_fields_index(index)].data[start : start + size] if size > 0 else _NO_BYTES

    def index_of(self, offset: i64) -> i64:
        """Return the index of the first record at or after `offset`. Cost: a bisection."""
        low: i64 = 0
        high: i64 = self.count
        while low < high:
            middle = (low + high) // 2
            if self.offset(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low


def views_of(records: list[Record], next_offset: i64, waiting: bool) -> RecordViews:
    """Return views of records that are already objects."""
    views = RecordViews()
    for record in records:
        views.add_record(record)
    views.close(next_offset, waiting)
    return views


_KEPT_SIZE_MAX: Final[i64] = 1024
_ANY_TIME: Final[i64] = -(1 << 62)
# Added to the sizes of body and properties when reads count bytes.
RECORD_OVERHEAD_BYTES: Final[i64] = 64
# Added for each header of a foreign record, which takes some 0.3 us to convert.
HEADER_WORK_BYTES: Final[i64] = 256


@final
class RecordDecoder:
    """Decoder for the records of one log. It reuses the decoded parts of the previous record where the bytes are
    equal.

    Args:
        converts: make messages of foreign records. False: return them as they are stored.
        exact: as for `read_record`.

    Attributes:
        work_bytes: what the headers of foreign records since the last reset count for read limits, because their
            conversion takes much longer than a copy of their bytes.
    """

    def __init__(self, converts: bool = True, exact: bool = False) -> None:
        self._converts: bool = converts
        self._exact: bool = exact
        self.work_bytes: i64 = 0
        # The time of the previous record if its properties have it, because it was converted.
        self._timestamp_ms: i64 = _ANY_TIME
        self._foreign: bool = False
        # Bytes of the previous record: before the length of its body, and after its body. Then their meaning.
        self._before: bytes = _NO_BYTES
        self._after: bytes = _NO_BYTES
        # Bytes between body and properties; empty if `properties` was not the last header.
        self._middle: bytes = _NO_BYTES
        self._exchange: bytes = _NO_BYTES
        self._key: bytes = _NO_BYTES
        self._properties: bytes = _NO_BYTES

    def read(self, data: bytes, position: i64, end: i64, offset: i64, timestamp_ms: i64, persistent: bool) -> Record:
        """Return the record; arguments as for `read_record`.

        Cost: about 100 ns if the parts equal those of the previous record, 50 of them for the copy of the body.
        Raises: BadRecord.
        """
        before = self._before
        before_size: i64 = len(before)
        start: i64 = position + before_size
        size: i64 = 0
        if before_size > 0 and start < end and data[position:start] == before:
            size, start = read_varint(data, start)
            body_end: i64 = start + size
            after = self._after
            if (
                size >= 0
                and after
                and (self._timestamp_ms == _ANY_TIME or self._timestamp_ms == timestamp_ms)
                and end - body_end == len(after)
                and data[body_end:end] == after
            ):
                same = Record(
                    offset, timestamp_ms, self._exchange, self._key, self._properties, data[start:body_end], persistent
                )
                same.foreign = self._foreign
                return same
            middle = self._middle
            properties_start: i64 = body_end + len(middle)
            if size >= 0 and middle and properties_start < end and data[body_end:properties_start] == middle:
                size, properties_start = read_varint(data, properties_start)
                if size >= 0 and properties_start + size == end:
                    properties = self._next_properties(data, body_end, properties_start, end)
                    return Record(
                        offset, timestamp_ms, self._exchange, self._key, properties, data[start:body_end], persistent
                    )
        record = self._read_new(data, position, end, offset, timestamp_ms, persistent)
        return record

    def read_view(
        self, data: bytes, position: i64, end: i64, offset: i64, timestamp_ms: i64, persistent: bool, views: RecordViews
    ) -> i64:
        """Add a view of the record to `views`, and return its size for read limits.

        Cost: about 30 ns if its parts equal those of the previous record, for any size of the body. Raises:
        BadRecord.
        """
        before = self._before
        before_size: i64 = len(before)
        start: i64 = position + before_size
        size: i64 = 0
        if before_size > 0 and start < end and matches_at(data, position, before):
            size, start = read_varint(data, start)
            body_end: i64 = start + size
            after = self._after
            after_size: i64 = len(after)
            if (
                size >= 0
                and after_size > 0
                and (self._timestamp_ms == _ANY_TIME or self._timestamp_ms == timestamp_ms)
                and end - body_end == after_size
                and matches_at(data, body_end, after)
            ):
                views.add(
                    offset, timestamp_ms, start, size, data, self._exchange, self._key, self._properties, persistent
                )
                properties_size: i64 = len(self._properties)
                return size + properties_size + RECORD_OVERHEAD_BYTES
            middle = self._middle
            properties_start: i64 = body_end + len(middle)
            if size >= 0 and middle and properties_start < end and matches_at(data, body_end, middle):
                properties_size, properties_start = read_varint(data, properties_start)
                if properties_size >= 0 and properties_start + properties_size == end:
                    properties = self._next_properties(data, body_end, properties_start, end)
                    views.add(
                        offset, timestamp_ms, start, size, data, self._exchange, self._key, properties, persistent
                    )
                    return size + properties_size + RECORD_OVERHEAD_BYTES
        record = self._read_new(data, position, end, offset, timestamp_ms, persistent)
        size, start = read_varint(data, position)
        if size > 0:
            start += size
        size, start = read_varint(data, start)
        if size < 0:
            size = -1
        views.add(
            offset, timestamp_ms, start, size, data, record.exchange, record.routing_key, record.properties, persistent
        )
        properties_size = len(record.properties)
        return (size if size > 0 else 0) + properties_size + RECORD_OVERHEAD_BYTES

    def _read_new(
        self, data: bytes, position: i64, end: i64, offset: i64, timestamp_ms: i64, persistent: bool
    ) -> Record:
        record = read_record(data, position, end, offset, timestamp_ms, persistent, self._exact)
        if record.foreign and self._converts:
            headers, left = read_headers(data, position)
            self.work_bytes += len(headers) * HEADER_WORK_BYTES
            exchange, key, properties = message_fields(
                record.routing_key, record.tombstone, headers, timestamp_ms, left
            )
            # Readers compare the fields of consecutive records by identity.
            record.exchange = self._exchange if exchange == self._exchange else exchange
            record.routing_key = self._key if key == self._key else key
            record.properties = properties
        self._remember(data, position, end, record)
        return record

    def _remember(self, data: bytes, position: i64, end: i64, record: Record) -> None:
        """Keep the parts of a record for the next ones."""
        size: i64 = 0
        key_size: i64 = 0
        start: i64 = 0
        body_end: i64 = 0
        key_size, start = read_varint(data, position)
        if key_size > 0:
            start += key_size
        size, body_end = read_varint(data, start)
        body_end += size
        if size >= 0 and (start - position) + (end - body_end) <= _KEPT_SIZE_MAX:
            converted = record.foreign and self._converts
            self._timestamp_ms = record.timestamp_ms if converted else _ANY_TIME
            self._foreign = record.foreign
            self._before = data[position:start]
            self._after = data[body_end:end]
            self._exchange = record.exchange
            self._key = record.routing_key
            self._properties = record.properties
            middle = before_properties(record.exchange)
            self._middle = middle if not record.foreign and self._after.startswith(middle) else _NO_BYTES

    def _next_properties(self, data: bytes, body_end: i64, start: i64, end: i64) -> bytes:
        """Return the properties in [start, end); the same object if they equal the previous ones."""
        properties = data[start:end]
        if properties == self._properties:
            self._after = data[body_end:end]  # equal properties in a row: use the faster comparison again
            return self._properties
        self._after = _NO_BYTES
        self._properties = properties if end - start <= _KEPT_SIZE_MAX else _NO_BYTES
        return properties


def matches_at(data: bytes, position: i64, part: bytes) -> bool:
    """Return whether `part` is at `position` in `data`. Cost: 1 ns per 8 bytes; a slice would make an object."""
    size: i64 = len(part)
    if position < 0 or position + size > len(data):
        return False
    at: i64 = 0
    while at + 8 <= size:
        if read_i64_le(data, position + at) != read_i64_le(part, at):
            return False
        at += 8
    if at < size and size >= 8:  # the last eight bytes overlap those compared before
        return read_i64_le(data, position + size - 8) == read_i64_le(part, size - 8)
    while at < size:
        if data[position + at] != part[at]:
            return False
        at += 1
    return True
