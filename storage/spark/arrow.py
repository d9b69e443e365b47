"""Arrow record batches out of borders: every column is a `take` from one array that lies over the bytes of the log.

No Python object is made for a record. What costs is one copy of each field, in C++. Texts that are not UTF-8 (AMQP does
not ask for it) are shown with replacement characters; the raw columns keep every byte.

The scalar decoder at the end makes the same batch record by record, from `storage.record`; it serves batches whose
headers stand in an order of another program's, and it is what the tests hold the other one against.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from amqpd.protocol import properties as p
from amqpd.storage.spark.decode import Borders
from amqpd.storage.spark.columns import PROPERTIES
from amqpd.storage.spark.fields import HeaderColumns, PropertyColumns, scan_headers, scan_properties
from amqpd.storage.log.record import Record

_BORDERS: Final = 8
_FIELD_BORDERS: Final = 26
_HEADERS_PLACE: Final = 4
# Of each field: its place among the borders of a row, and its flag.
_PLACES: Final = {
    "content_type": (0, p.CONTENT_TYPE),
    "content_encoding": (2, p.CONTENT_ENCODING),
    "delivery_mode": (6, p.DELIVERY_MODE),
    "priority": (8, p.PRIORITY),
    "correlation_id": (10, p.CORRELATION_ID),
    "reply_to": (12, p.REPLY_TO),
    "expiration": (14, p.EXPIRATION),
    "message_id": (16, p.MESSAGE_ID),
    "timestamp": (18, p.TIMESTAMP),
    "type": (20, p.TYPE),
    "user_id": (22, p.USER_ID),
    "app_id": (24, p.APP_ID),
}
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
STRUCT: Final = pa.struct(
    [(name, {"string": pa.string(), "int": pa.int32(), "timestamp": TIMESTAMP}[kind]) for name, kind in PROPERTIES]
)
MAP: Final = pa.map_(pa.string(), pa.string())
TYPES: Final = {
    "value": pa.binary(),
    "vhost": pa.string(),
    "queue": pa.string(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "exchange": pa.string(),
    "routing_key": pa.string(),
    "properties": STRUCT,
    "headers": MAP,
    "raw_properties": pa.binary(),
    "raw_headers": pa.binary(),
}
# Where more distinct values than one in so many rows are found, decoding each row is cheaper than looking for equals.
_DISTINCT_SHARE: Final = 4


class Decoder:
    """Makes record batches of the given columns for one queue.

    schema: of the batches, its names from `columns.COLUMNS`; by default theirs. It may differ from the default in
    nullability and names inside nested types, as Spark wants it to.
    """

    def __init__(self, vhost: str, queue: str, names: Sequence[str], schema: Any = None) -> None:
        self.names = list(names)
        self.schema = schema if schema is not None else pa.schema([(name, TYPES[name]) for name in names])
        self._constants = {"vhost": vhost, "queue": queue}
        self._repeated: dict[str, Any] = {}

    def batch(self, data: bytes, found: Borders) -> Any:
        """The rows of `found`, whose borders lie in `data`, as a pyarrow.RecordBatch."""
        rows = found.rows
        fields = _Overlay(data, found.borders.getvalue(), rows, _BORDERS)
        raw: Any = None
        if not self._NEEDS_PROPERTIES.isdisjoint(self.names):
            raw = fields.take(6)
        properties = _Properties(raw) if raw is not None else None
        made: dict[str, Any] = {}
        for name in self.names:
            if name == "value":
                column = fields.take(2)
            elif name == "offset":
                column = _plain(pa.int64(), found.offsets.getvalue(), rows)
            elif name == "timestamp":
                column = _plain(TIMESTAMP, found.timestamps.getvalue(), rows)
            elif name == "exchange":
                column = as_text(fields.take(4))
            elif name == "routing_key":
                column = as_text(fields.take(0))
            elif properties is None:
                column = self._constant(name, rows)
            else:
                column = self._property_column(name, raw, properties, rows)
            made[name] = column
        return self._whole(made)

    _NEEDS_PROPERTIES = frozenset({"properties", "headers", "raw_properties", "raw_headers"})

    def _property_column(self, name: str, raw: Any, properties: _Properties, rows: int) -> Any:
        if name == "raw_properties":
            return raw
        if name == "raw_headers":
            return properties.raw_headers()
        if name == "headers":
            return headers_map(properties.raw_headers())
        if name == "properties":
            return properties.struct()
        return self._constant(name, rows)

    def scalar(self, records: Sequence[Record]) -> Any:
        """The same from records that were read one by one."""
        raw = pa.array([record.properties for record in records], pa.binary())
        decoded = [_decoded(record.properties) for record in records]
        made: dict[str, Any] = {}
        for name in self.names:
            if name == "value":
                column = pa.array([record.body for record in records], pa.binary())
            elif name == "offset":
                column = pa.array([record.offset for record in records], pa.int64())
            elif name == "timestamp":
                column = pa.array([record.timestamp_ms * 1000 for record in records], pa.int64()).cast(TIMESTAMP)
            elif name == "exchange":
                column = pa.array([record.exchange.decode("utf-8", "replace") for record in records], pa.string())
            elif name == "routing_key":
                column = pa.array([record.routing_key.decode("utf-8", "replace") for record in records], pa.string())
            elif name == "properties":
                column = pa.array([_struct_value(each) for each in decoded], STRUCT)
            elif name == "headers":
                column = headers_map(_Properties(raw).raw_headers())
            elif name == "raw_headers":
                column = _Properties(raw).raw_headers()
            elif name == "raw_properties":
                column = raw
            else:
                column = self._constant(name, len(records))
            made[name] = column
        return self._whole(made)

    def _constant(self, name: str, rows: int) -> Any:
        column = self._repeated.get(name)
        if column is None or len(column) < rows:
            column = self._repeated[name] = pa.repeat(pa.scalar(self._constants[name], pa.string()), max(rows, 8192))
        return column.slice(0, rows)

    def _whole(self, made: dict[str, Any]) -> Any:
        columns = []
        for name, field in zip(self.names, self.schema, strict=True):
            column = made[name]
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Overlay:
    """One binary array over `data`, `stride` elements for each row; `take` picks one of them from every row."""

    def __init__(self, data: bytes | Any, borders: bytes, rows: int, stride: int) -> None:
        # Arrow wants one offset more than there are elements: the last border again.
        last = borders[-4:] if rows else b"\0\0\0\0"
        offsets = pa.py_buffer(borders + last)
        buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        self._array = pa.Array.from_buffers(pa.binary(), rows * stride, [None, offsets, buffer])
        self._rows = rows
        self._stride = stride

    def take(self, place: int) -> Any:
        places = _places(self._stride, place, _rounded(self._rows)).slice(0, self._rows)
        return pc.take(self._array, places, boundscheck=False)  # they are ours, and fit: a row has `stride` elements


def _rounded(rows: int) -> int:
    return max(8192, 1 << (rows - 1).bit_length()) if rows else 8192


@cache
def _places(stride: int, place: int, rows: int) -> Any:
    return pa.array(range(place, place + stride * rows, stride), pa.int32())


class _Properties:
    """The fields of one column of raw properties."""

    def __init__(self, raw: Any) -> None:
        self._rows = len(raw)
        self._found = PropertyColumns()
        data, offsets = _buffers(raw)
        scan_properties(data, offsets, self._rows, self._found)
        self._fields = _Overlay(data, self._found.borders.getvalue(), self._rows, _FIELD_BORDERS)
        self._flags = _plain(pa.int64(), self._found.flags.getvalue(), self._rows)
        self._raw_headers: Any = None

    def raw_headers(self) -> Any:
        if self._raw_headers is None:
            self._raw_headers = self._with_validity(self._fields.take(_HEADERS_PLACE), p.HEADERS)
        return self._raw_headers

    def struct(self) -> Any:
        columns = []
        for name, kind in PROPERTIES:
            place, flag = _PLACES[name]
            if self._found.seen & flag == 0:  # most messages have few of them
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

    def _with_validity(self, column: Any, flag: int) -> Any:
        present = pc.not_equal(pc.bit_wise_and(self._flags, flag), 0)
        return pa.Array.from_buffers(column.type, len(column), [present.buffers()[1], *column.buffers()[1:]])


def headers_map(raw: Any) -> Any:
    """The map column of a column of raw header tables; a row without a table is null."""
    encoded = raw.dictionary_encode()
    distinct = encoded.dictionary
    if len(distinct) * _DISTINCT_SHARE > len(raw):
        return _headers_map(raw)
    return _headers_map(distinct).take(encoded.indices)


def _headers_map(raw: Any) -> Any:
    found = HeaderColumns()
    data, offsets = _buffers(raw)
    scan_headers(data, offsets, len(raw), found)
    count = found.entry_count
    present = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(found.present.getvalue())]).cast(pa.bool_())
    keys = _texts(found.key_offsets.getvalue(), found.keys.getvalue(), count, None)
    values = _texts(found.value_offsets.getvalue(), found.values.getvalue(), count, present.buffers()[1])
    entries = pa.StructArray.from_arrays([keys, values], fields=[MAP.key_field, MAP.item_field])
    validity = pc.is_valid(raw).buffers()[1] if raw.null_count else None
    rows = pa.py_buffer(found.rows.getvalue())
    return pa.Array.from_buffers(MAP, len(raw), [validity, rows], children=[entries])


def _texts(offsets: bytes, data: bytes, count: int, validity: Any) -> Any:
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def as_text(column: Any) -> Any:
    """A binary column as one of strings. Cost: a look at every byte; a copy only where one is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if each is None else each.decode("utf-8", "replace") for each in column.to_pylist()]
        return pa.array(texts, pa.string())


def _buffers(column: Any) -> tuple[bytes, bytes]:
    """The bytes and the offsets of a binary column, as Python's bytes."""
    _, offsets, data = column.buffers()
    first = column.offset * 4
    wanted = offsets.slice(first, (len(column) + 1) * 4).to_pybytes() if len(column) else b"\0\0\0\0"
    return (data.to_pybytes() if data is not None else b""), wanted


def _plain(kind: Any, data: bytes, rows: int) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def _decoded(raw: bytes) -> p.Properties:
    from amqpd.protocol.field_table import CodecError

    try:
        return p.decode_properties(raw)
    except CodecError:
        return p.Properties()


def _struct_value(properties: p.Properties) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, kind in PROPERTIES:
        value = getattr(properties, name)
        if kind == "timestamp" and value is not None:
            value = value * 1_000_000 if value <= 253402300799 else None
        elif isinstance(value, str):
            value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        row[name] = value
    return row
