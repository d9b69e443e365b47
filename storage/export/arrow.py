"""Arrow record batches from a part of a log.

`Decoder` builds the columns. Each column is a `take` from one Arrow array over the bytes of the log, whose offsets
are the field borders from decode.py. No Python object is made per record; the cost is one copy of each field, in
C++. A text that is not UTF-8 (AMQP does not require it) gets replacement characters; the raw columns have the
original bytes. Batches of other programs, whose headers have another order, are read record by record; `Decoder.rows`
makes borders of these records.

`PartReader` reads one part. If the log differs from the plan:

    no batch at the planned position    the index was wrong: read from the start of the segment; nothing is lost
    a bad batch                         DataLoss with file, position and offsets. With `fail_on_data_loss` off it is
                                        logged, and reading continues at the next position in `.index` with a good
                                        batch that fits. Bodies are never searched for batches
    the segment was removed             DataLoss, because the plan has seen it. Not while it exists as `.deleted`, and
                                        for an export job not if consumers have settled its messages meanwhile
    the file ends early                 DataLoss
    the queue was compacted             the planned log is read as long as it exists as `.deleted`. Then the rest of
                                        the part is planned again, and returns what compaction has left
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from librt.strings import write_i32_le, write_i64_le

from amqpd.protocol import properties as p
from amqpd.storage.export.columns import COLUMNS, PROPERTIES
from amqpd.storage.export.decode import (
    BAD,
    DONE,
    FULL,
    IRREGULAR,
    PACKED,
    FieldOffsets,
    HeaderColumns,
    PropertyColumns,
    scan,
    scan_headers,
    scan_properties,
)
from amqpd.storage.export.files import LogFiles, MissingQueue
from amqpd.storage.export.plan import DataLoss, LogPartition, snapshot_of
from amqpd.storage.log.batch import HEADER_SIZE, BatchCursor, BatchHeader, crc_fits, decompressed
from amqpd.storage.log.record import BadRecord, Record
from amqpd.storage.log.segment import OffsetIndex, segment_name

if TYPE_CHECKING:
    from amqpd.storage.export.options import ReadOptions

_BORDERS: Final = 8
_PROPERTIES_INDEX: Final = 6
_FIELD_BORDERS: Final = 26
_HEADERS_INDEX: Final = 4
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_KINDS: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": TIMESTAMP,
}
STRUCT: Final = pa.struct([(name, _KINDS[kind]) for name, kind in PROPERTIES])
MAP: Final = pa.map_(pa.string(), pa.string())
TYPES: Final = {
    name: {"properties": STRUCT, "headers": MAP}.get(name) or _KINDS[kind] for name, kind in COLUMNS.items()
}
_NAMES: Final = [name for name, _ in PROPERTIES]
_NAMES.insert(_HEADERS_INDEX // 2, "headers")
# Field -> (its index among the borders of a row, its flag). Flags and borders have the same order.
_FIELD_INDEX: Final = {name: (2 * place, p.CONTENT_TYPE >> place) for place, name in enumerate(_NAMES)}
_IN_PROPERTIES: Final = frozenset({"properties", "headers", "raw_headers"})
# With more distinct values than one in so many rows, decoding each row is cheaper than finding equal ones.
_DISTINCT_SHARE: Final = 4


class Decoder:
    """Builds record batches of the given columns for one queue.

    Args:
        names: Columns, from `columns.COLUMNS`.
        schema: Schema of the batches; default: that of `TYPES`. Spark's may differ in nullability and in names
            inside nested types.
    """

    def __init__(self, vhost: str, queue: str, names: Sequence[str], schema: Any = None) -> None:
        self.names = list(names)
        self.schema = schema if schema is not None else pa.schema([(name, TYPES[name]) for name in names])
        self._constants = {"vhost": vhost, "queue": queue}
        self._repeated: dict[str, Any] = {}
        self._repeats_tables = True

    def batch(self, data: bytes, found: FieldOffsets) -> Any:
        """Return the rows of `found`, whose borders refer to `data`, as a pyarrow.RecordBatch."""
        borders = found.borders.getvalue()
        fields = _Overlay(data, borders, found.rows, _BORDERS)
        properties: _Properties | None = None
        if not _IN_PROPERTIES.isdisjoint(self.names):
            properties = _Properties(data, borders, _PROPERTIES_INDEX, _BORDERS, found.rows)
        columns = []
        for name, field in zip(self.names, self.schema, strict=True):
            column = self._column(name, found, fields, properties)
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, name: str, found: FieldOffsets, fields: _Overlay, properties: _Properties | None) -> Any:
        match name:
            case "value":
                return fields.take(2)
            case "offset":
                return _plain(pa.int64(), found.offsets.getvalue(), found.rows)
            case "timestamp":
                return _plain(TIMESTAMP, found.timestamps.getvalue(), found.rows)
            case "exchange":
                return as_text(fields.take(4))
            case "routing_key":
                return as_text(fields.take(0))
            case "raw_properties":
                return fields.take(_PROPERTIES_INDEX)
            case "vhost" | "queue":
                return self._constant(name, found.rows)
        assert properties is not None
        if name == "properties":
            return properties.struct()
        return self._headers(properties) if name == "headers" else properties.raw_headers()

    def _headers(self, properties: _Properties) -> Any:
        """Return the map column. Equal tables of a batch are decoded once, unless most were different in an earlier
        batch: looking for equal ones has a cost, too.
        """
        if self._repeats_tables:
            encoded = properties.raw_headers().dictionary_encode()
            if len(encoded.dictionary) * _DISTINCT_SHARE <= len(encoded):
                return headers_map(encoded.dictionary).take(encoded.indices)
            self._repeats_tables = False
        return properties.headers_map()

    def rows(self, records: Sequence[Record]) -> Any:
        """Return the batch of records that were read one by one. Cost: some microseconds a record."""
        found = FieldOffsets(0, 0)
        found.rows = len(records)
        data = bytearray()
        for record in records:
            write_i64_le(found.offsets, record.offset)
            write_i64_le(found.timestamps, record.timestamp_ms * 1000)
            for field in (record.routing_key, record.body, record.exchange, record.properties):
                write_i32_le(found.borders, len(data))
                data += field
                write_i32_le(found.borders, len(data))
        return self.batch(bytes(data), found)

    def _constant(self, name: str, rows: int) -> Any:
        column = self._repeated.get(name)
        if column is None or len(column) < rows:
            column = self._repeated[name] = pa.repeat(pa.scalar(self._constants[name], pa.string()), max(rows, 8192))
        return column.slice(0, rows)


class _Overlay:
    """One binary array over `data` with `stride` elements per row. `take` returns one of them from every row."""

    def __init__(self, data: bytes | Any, borders: bytes, rows: int, stride: int) -> None:
        # Arrow needs one offset more than elements: the last border again.
        last = borders[-4:] if rows else b"\0\0\0\0"
        offsets = pa.py_buffer(borders + last)
        buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        self._array = pa.Array.from_buffers(pa.binary(), rows * stride, [None, offsets, buffer])
        self._rows = rows
        self._stride = stride

    def take(self, place: int) -> Any:
        places = _row_indices(self._stride, place, _rounded(self._rows)).slice(0, self._rows)
        return pc.take(self._array, places, boundscheck=False)  # no check needed: each row has `stride` elements


def _rounded(rows: int) -> int:
    return max(8192, 1 << (rows - 1).bit_length()) if rows else 8192


@cache
def _row_indices(stride: int, place: int, rows: int) -> Any:
    return pa.array(range(place, place + stride * rows, stride), pa.int32())


class _Properties:
    """The fields of raw properties in `data`.

    Args:
        borders: i32 numbers, `stride` of them a row. Those at `index` and behind it are begin and end of the fields.
    """

    def __init__(self, data: bytes, borders: bytes, index: int, stride: int, rows: int) -> None:
        self._data = data
        self._rows = rows
        self._found = PropertyColumns()
        scan_properties(data, borders, index * 4, stride * 4, rows, self._found)
        self._borders = self._found.borders.getvalue()
        self._fields = _Overlay(data, self._borders, self._rows, _FIELD_BORDERS)
        self._flags = _plain(pa.int64(), self._found.flags.getvalue(), self._rows)
        self._raw_headers: Any = None

    def raw_headers(self) -> Any:
        if self._raw_headers is None:
            self._raw_headers = self._with_validity(self._fields.take(_HEADERS_INDEX), p.HEADERS)
        return self._raw_headers

    def headers_map(self) -> Any:
        """Return the map column of the header tables, each decoded by itself."""
        tables = self._data, self._borders, _HEADERS_INDEX * 4, _FIELD_BORDERS * 4, self._rows
        return _map_of(tables, self._present(p.HEADERS))

    def struct(self) -> Any:
        columns = []
        for name, kind in PROPERTIES:
            place, flag = _FIELD_INDEX[name]
            if self._found.seen & flag == 0:  # most messages have few properties
                columns.append(pa.nulls(self._rows, STRUCT.field(name).type))
                continue
            if name == "delivery_mode":
                column = _plain(pa.int32(), self._found.delivery_modes.getvalue(), self._rows)
            elif name == "priority":
                column = _plain(pa.int32(), self._found.priorities.getvalue(), self._rows)
            elif kind == "timestamp":
                column = _plain(TIMESTAMP, self._found.timestamps.getvalue(), self._rows)
            else:
                column = as_text(self._fields.take(place))
            columns.append(self._with_validity(column, flag))
        return pa.StructArray.from_arrays(columns, fields=list(STRUCT))

    def _present(self, flag: int) -> Any:
        """Return the buffer of validity of a field."""
        return pc.not_equal(pc.bit_wise_and(self._flags, flag), 0).buffers()[1]

    def _with_validity(self, column: Any, flag: int) -> Any:
        return pa.Array.from_buffers(column.type, len(column), [self._present(flag), *column.buffers()[1:]])


def headers_map(raw: Any) -> Any:
    """Return the map column of a column of raw header tables; a row without a table is null."""
    data, offsets = _buffers(raw)
    return _map_of((data, offsets, 0, 4, len(raw)), pc.is_valid(raw).buffers()[1] if raw.null_count else None)


def _map_of(tables: tuple[bytes, bytes, int, int, int], validity: Any) -> Any:
    """Return a map column.

    Args:
        tables: The arguments of `scan_headers`.
        validity: Buffer of a bit per row; None: all rows are valid.
    """
    found = HeaderColumns()
    scan_headers(*tables, found)
    count = found.entry_count
    present = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(found.present.getvalue())]).cast(pa.bool_())
    numbers = _plain(pa.int32(), found.keys.getvalue(), count)
    keys = pa.array(found.names, pa.binary()).cast(pa.string()).take(numbers)
    texts = pa.py_buffer(found.value_offsets.getvalue()), pa.py_buffer(found.values.getvalue())
    values = pa.Array.from_buffers(pa.string(), count, [present.buffers()[1], *texts])
    entries = pa.StructArray.from_arrays([keys, values], fields=[MAP.key_field, MAP.item_field])
    rows = pa.py_buffer(found.rows.getvalue())
    return pa.Array.from_buffers(MAP, tables[-1], [validity, rows], children=[entries])


def as_text(column: Any) -> Any:
    """Return a binary column as a column of strings. Cost: a check of every byte; a copy only if a value is not
    UTF-8.
    """
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if each is None else each.decode("utf-8", "replace") for each in column.to_pylist()]
        return pa.array(texts, pa.string())


def _buffers(column: Any) -> tuple[bytes, bytes]:
    """Return the bytes and the offsets of a binary column as `bytes`."""
    _, offsets, data = column.buffers()
    first = column.offset * 4
    wanted = offsets.slice(first, (len(column) + 1) * 4).to_pybytes() if len(column) else b"\0\0\0\0"
    return (data.to_pybytes() if data is not None else b""), wanted


def _plain(kind: Any, data: bytes, rows: int) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


logger = logging.getLogger(__name__)

BATCH_ROWS = 8192
_NO_LIMIT = 1 << 60
_PLANS_MAX = 8
"""Limit for planning a part again: a compaction takes longer than reading a segment."""

# After a large block was freed, glibc keeps freed memory up to twice its size (mallopt(3)). Otherwise it returns
# each piece of log to the kernel, which clears the next one again: a fifth of the cost of decoding. The block's
# pages are never touched: calloc gives them, and only a bytearray is written.
_block = bytes(16 << 20)
del _block


class _LogReplaced(Exception):
    """The planned log does not exist any more, or another log has its name."""


class PartReader:
    """Reader of one part. Call `batches` once.

    Args:
        batch_rows: A record batch ends with the log batch that reaches this number. It may have fewer rows, because
            each piece of log (`files.read_size` bytes) is a record batch.
        check_crc: False saves a third of the time, and trusts the disk.
        plans: How often the rest of the part may be planned again.
        settled_may_be_missing: Messages that were settled and removed since the plan are no loss, unless the part has
            settled messages. False: they are one, as a query must return the same rows in each attempt.
    """

    def __init__(
        self,
        files: LogFiles,
        part: LogPartition,
        decoder: Decoder,
        *,
        batch_rows: int = BATCH_ROWS,
        check_crc: bool = True,
        fail_on_data_loss: bool = True,
        plans: int = _PLANS_MAX,
        settled_may_be_missing: bool = False,
    ) -> None:
        self._files = files
        self._part = part
        self._decoder = decoder
        self._batch_rows = batch_rows
        self._check_crc = check_crc
        self._fail_on_data_loss = fail_on_data_loss
        self._plans_left = plans
        self._settled_may_be_missing = settled_may_be_missing
        self._name = segment_name(part.base) + (".log.swap" if part.swap else ".log")
        self._found = FieldOffsets(part.base, part.end)
        self._data = b""
        self._start = 0  # position of `_data` in the file

    def batches(self) -> Iterator[Any]:
        """Yield the part's records in order, as pyarrow.RecordBatch. Raises DataLoss, SourceError, OSError."""
        try:
            yield from self._read_as_planned()
        except _LogReplaced:
            if self._plans_left == 0:
                raise DataLoss(f"{self._where()}: it is compacted faster than it can be read") from None
            yield from self._read_with_new_plan()

    def _read_as_planned(self) -> Iterator[Any]:
        found, part = self._found, self._part
        self._begin()
        while True:
            status = self._scan()
            if found.rows:
                yield self._decoder.batch(self._data, found)
                found.clear()
            position = self._start + found.position
            if status == DONE:
                return
            if status == IRREGULAR:
                records = self._read_records(self._data, found)
                if records:
                    yield self._decoder.rows(records)
            elif status == PACKED:
                yield from self._unpacked()
            elif status == BAD:
                self._check_not_replaced()
                if not self._skip_bad_batch(position, found.reason):
                    return
            elif status != FULL:
                if found.expected >= part.stop:
                    return
                if not self._load(position, found.needed):
                    self._check_not_replaced()
                    self._handle_early_end(position)
                    return
                if BatchHeader(self._data, 0).base_offset != found.expected:
                    self._check_not_replaced()  # a name may refer to another log now, with a batch inside of it here

    def _unpacked(self) -> Iterator[Any]:
        """Yield the compressed batches at the scan's position, up to one piece's size unpacked, and move behind
        them.
        """
        found, part = self._found, self._part
        images: list[bytes] = []
        first, size = found.expected, 0
        while size < self._files.read_size:
            header = BatchHeader(self._data, found.position)
            try:
                image, _, _ = decompressed(self._data, found.position, header)
                images.append(image)
                size += len(image)
            except BadRecord as error:
                self._report_loss(
                    header.base_offset, header.last_offset, f"the checksum is right, but the batch {error}"
                )
            found.position += header.size
            found.expected = header.last_offset + 1
            if self._scan() != PACKED or found.rows:
                break
        inner = FieldOffsets(first, part.end)
        inner.at_end = True
        data = b"".join(images)
        while True:
            status = scan(inner, data, part.first, part.stop, _NO_LIMIT, False, *self._excluded())
            if inner.rows:
                yield self._decoder.batch(data, inner)
                inner.clear()
            if status not in (IRREGULAR, BAD):
                return
            records = self._read_records(data, inner)
            if records:
                yield self._decoder.rows(records)

    def _read_with_new_plan(self) -> Iterator[Any]:
        """Plan the rest of the part again and yield it. Messages that were settled in the first plan stay settled."""
        part = self._part
        first = max(part.first, self._found.expected)
        snapshot = snapshot_of(self._files, part.queue)
        is_loss = part.whole or not self._settled_may_be_missing
        for low, high, reason in snapshot.losses(first, part.stop, include_settled=is_loss):
            self._report_loss(low, high, f"{reason} since the query was planned")
        for new in snapshot.parts(first, part.stop, split_bytes=_NO_LIMIT, include_settled=True):
            yield from PartReader(
                self._files,
                replace(
                    new,
                    bits=part.bits,
                    bits_base=part.bits_base,
                    transient_start=part.transient_start,
                    whole=part.whole,
                ),
                self._decoder,
                batch_rows=self._batch_rows,
                check_crc=self._check_crc,
                fail_on_data_loss=self._fail_on_data_loss,
                plans=self._plans_left - 1,
                settled_may_be_missing=self._settled_may_be_missing,
            ).batches()

    def _check_not_replaced(self) -> None:
        """Raise _LogReplaced unless the file of that name has the planned size."""
        if self._files.size(self._name) != self._part.log_size:
            raise _LogReplaced

    def _begin(self) -> None:
        """Load the first piece. Raises _LogReplaced."""
        part = self._part
        self._name = self._find_name()
        if part.position:
            self._load(part.position, HEADER_SIZE)
            header = BatchHeader(self._data, 0) if len(self._data) >= HEADER_SIZE else None
            if header is not None and header.is_plausible() and header.last_offset == part.anchor:
                self._found.expected = header.base_offset
                return
            self._check_not_replaced()
            logger.warning("%s: the index is wrong at %d; reading from the start", self._name, part.position)
        self._load(0, HEADER_SIZE)

    def _find_name(self) -> str:
        """Return the present name of the planned log: compaction renames it, and gives an old log's name to a new
        one.

        Raises: _LogReplaced.
        """
        part = self._part
        found = ""
        for suffix in (".log.swap", ".log", ".log.deleted") if part.swap else (".log", ".log.deleted"):
            name = segment_name(part.base) + suffix
            size = self._files.size(name)
            if size == part.log_size:
                return name
            if size > part.log_size and not found:
                found = name  # the active segment has grown
        if not found:
            raise _LogReplaced
        return found

    def _scan(self) -> int:
        part = self._part
        return scan(
            self._found,
            self._data,
            part.first,
            part.stop,
            self._batch_rows,
            self._check_crc,
            *self._excluded(),
        )

    def _excluded(self) -> tuple[bytes, int, int]:
        """Return the arguments of `scan` for offsets that do not count: settled bits and the start of transient
        messages.
        """
        return self._part.bits, self._part.bits_base, self._part.transient_start

    def _load(self, position: int, needed: int) -> bool:
        """Load the piece at `position` for the scan. Return False if it has fewer than `needed` bytes.

        Raises: _LogReplaced.
        """
        wanted = max(self._files.read_size, needed)
        try:
            self._data, self._start = self._files.pread(self._name, wanted, position), position
        except FileNotFoundError:
            raise _LogReplaced from None
        self._found.buffer = pa.py_buffer(self._data)
        self._found.position = 0
        self._found.at_end = len(self._data) < wanted
        return len(self._data) >= needed

    def _handle_early_end(self, position: int) -> None:
        """Handle the end of the file before the end of the part: a loss, unless the whole file was read."""
        if len(self._data) > 0 or position < self._part.log_size:
            self._report_loss(
                self._found.expected, self._part.stop - 1, f"the file ends at {position + len(self._data)}"
            )

    def _read_records(self, data: bytes, found: FieldOffsets) -> list[Record]:
        """Read the uncompressed batch at the scan's position with the generic parser, and move behind it."""
        part = self._part
        header = BatchHeader(data, found.position)
        records: list[Record] = []
        try:
            BatchCursor(data, found.position, header).read(part.first, None, {}, _NO_LIMIT, records)
        except (BadRecord, IndexError) as error:
            reason = f"the checksum is right, but the records are invalid: {error}"
            self._report_loss(header.base_offset, header.last_offset, reason)
        found.position += header.size
        found.expected = header.last_offset + 1
        return [record for record in records if record.offset < part.stop and not self._is_settled(record.offset)]

    def _is_settled(self, offset: int) -> bool:
        place = offset - self._part.bits_base
        bits = self._part.bits
        return 0 <= place < len(bits) * 8 and bits[place >> 3] >> (place & 7) & 1 == 1

    def _skip_bad_batch(self, position: int, reason: str) -> bool:
        """Skip the bad batch at `position`. Return False if no good batch follows. Raises DataLoss."""
        found = self._found
        reason = f"{reason} at byte {position}"
        for candidate in self._candidates(position):
            if not self._load(candidate, HEADER_SIZE):
                continue
            header = BatchHeader(self._data, 0)
            if not header.is_plausible() or header.base_offset < found.expected or header.last_offset >= self._part.end:
                continue
            if (len(self._data) >= header.size or self._load(candidate, header.size)) and crc_fits(
                self._data, 0, header
            ):
                self._report_loss(found.expected, header.base_offset - 1, reason)
                found.expected = header.base_offset
                return True
        self._report_loss(found.expected, self._part.end - 1, reason)
        return False

    def _candidates(self, position: int) -> Iterator[int]:
        """Yield positions of possible good batches: behind this one, if its size is right, then those of the index."""
        if self._load(position, HEADER_SIZE):
            header = BatchHeader(self._data, 0)
            if header.is_plausible():
                yield position + header.size
        index = OffsetIndex(self._files.read(segment_name(self._part.base) + ".index"))
        while (position := index.next_position(position)) >= 0:
            yield position

    def _report_loss(self, first: int, last: int, reason: str) -> None:
        """Report that offsets first..last cannot be read, if any of them is wanted. Raises DataLoss."""
        part = self._part
        first, last = max(first, part.first), min(last, part.stop - 1)
        if last < first or all(self._is_settled(offset) for offset in range(first, last + 1)):
            return
        text = f"{self._where()}: offsets {first} to {last}: {reason}"
        if self._fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss=false continues without them)")
        logger.warning("lost: %s", text)

    def _where(self) -> str:
        queue = self._part.queue
        return f"queue '{queue.queue}' in vhost '{queue.vhost}', {self._name}"


def batches(options: ReadOptions, part: LogPartition, schema: Any = None) -> Iterator[Any]:
    """Yield the rows of a part as record batches. Raises DataLoss, SourceError, OSError.

    Args:
        schema: See `Decoder`; its columns, instead of those of the options.
    """
    queue = part.queue
    decoder = Decoder(queue.vhost, queue.queue, options.columns if schema is None else schema.names, schema)
    with closing(options.source.open(queue)) as files:
        reader = PartReader(
            files,
            part,
            decoder,
            batch_rows=options.batch_rows,
            check_crc=options.check_crc,
            fail_on_data_loss=options.fail_on_data_loss,
            settled_may_be_missing=options.is_job,
        )
        try:
            yield from reader.batches()
        except MissingQueue as error:
            if not options.is_job:
                raise
            logger.warning("queue '%s' was deleted during its export: %s", queue.queue, error)
