"""Files of an export, written from parts of logs in one process: Parquet, JSON lines or CSV.

The broker's time rises along the log, so nearly every group of rows belongs to one date and hour. A task writes one
file for each directory `name=value`. A second attempt of a task uses other file names, so only files in its result
count. Empty parts write no file.

JSON and CSV have the values and names that Spark writes, so both engines can write into one directory:

    value               text if it is UTF-8; otherwise null, and `value_base64` is set
    other bytes         base64
    times               UTC with milliseconds: 2026-01-31T12:00:00.000Z; without Z if the type has no zone
    null in JSON        the field is left out; so are NaN and infinite numbers of `payload`
    structs and maps    objects; in CSV their JSON
    directories         escaped as Hive does it; null and "" are __HIVE_DEFAULT_PARTITION__. A name of more than 255
                        bytes is cut off, and has a hash of the value
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from json import dumps
from json.encoder import encode_basestring as quoted
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpd.storage.export.arrow import batches
from amqpd.storage.export.checkpoint import sync_path
from amqpd.storage.export.columns import TIMES
from amqpd.storage.export.options import ReadOptions
from amqpd.storage.export.payload import PAYLOAD, REJECT_COLUMNS, PayloadFormat, parser_of, split
from amqpd.storage.export.plan import LogPartition

GROUP_BYTES: Final = 6 << 20
"""Approximate size of a row group before encoding. A task has about three of them in memory."""
REJECTED: Final = "_rejected"
"""Directory of messages whose bodies do not fit `payload`. Spark and pyarrow ignore such names, and its files end with
.jsonl, which no pattern for a format matches.
"""
REJECTED_KIND: Final = "jsonl"
OPEN_FILES_MAX: Final = 64
"""With more directories, the file that was written least recently is closed, and may get a successor."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX: Final = 255
"""Limit of Linux for the name of a directory."""
_CUT_ESCAPE: Final = re.compile("%[0-9A-F]?$")
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")


class WrittenFile(NamedTuple):
    """A written file.

    Attributes:
        rows: Number of its rows.
        size_bytes: Size of the bodies; 0 without a column `value`.
    """

    path: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class FileLayout:
    """The place and format of a batch's files.

    Attributes:
        directory: Every worker must reach it.
        kind: parquet, json or csv.
        partition_by: Columns and values of `TIMES`, the outer directory first.
        keeps_columns: The files have these columns, too.
        payload: Format of the column `payload` (payload.py); None: no such column.
    """

    directory: str
    kind: str = "parquet"
    partition_by: tuple[str, ...] = ()
    keeps_columns: bool = False
    payload: PayloadFormat | None = None


def write_task(
    options: ReadOptions,
    layout: FileLayout,
    numbered: tuple[int, Sequence[LogPartition]],
    advance: Callable[[int, int], None] = lambda rows, size_bytes: None,
) -> list[WrittenFile]:
    """Write some parts in this process, and sync the files. The columns are `options.columns`.

    Args:
        advance: Called with the rows and the bytes of bodies of every group.

    Raises: DataLoss, SourceError, OSError.
    """
    number, parts = numbered
    names = list(options.columns)
    parser = None if layout.payload is None else parser_of(layout.payload)
    extra = {"timestamp" if name in TIMES else name for name in layout.partition_by}
    if parser is not None:
        extra.update(REJECT_COLUMNS)
    options = replace(options, columns=tuple(dict.fromkeys((*names, *sorted(extra)))))
    kept = [name for name in names if layout.keeps_columns or name not in layout.partition_by]
    with _TaskFiles(number, layout) as files:
        for group in groups(batch for part in parts for batch in batches(options, part)):
            size_bytes, rows = 0, group.num_rows
            if parser is not None:
                group, rejected = split(group, parser)
                if rejected.num_rows:
                    files.write(REJECTED, rejected, 0)
                if not group.num_rows:
                    advance(rows, 0)
                    continue
            for below, table in _split(group, layout.partition_by, "" if layout.keeps_columns else NO_VALUE):
                bodies = pc.sum(pc.binary_length(table.column("value"))).as_py() or 0 if "value" in names else 0
                files.write(below, table.select(kept if parser is None else [*kept, PAYLOAD]), bodies)
                size_bytes += bodies
            advance(rows, size_bytes)
        return files.finish()


class _TaskFiles:
    """The files of one task, by directory."""

    def __init__(self, number: int, layout: FileLayout) -> None:
        self._layout = layout
        self._prefix = f"part-{number:05d}-{os.urandom(16).hex()}"
        self._open: dict[str, tuple[str, Any]] = {}  # least recently written first
        self._successors: dict[str, int] = {}
        self._written: dict[str, list[int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        while self._open:
            self._open.popitem()[1][1].close()

    def write(self, below: str, table: Any, body_bytes: int) -> None:
        path, writer = self._open.pop(below, ("", None))
        if writer is None:
            while len(self._open) >= OPEN_FILES_MAX:
                self._open.pop(next(iter(self._open)))[1].close()
            path = self._new_path(below)
            writer = _WRITERS[self._kind(below)](path, table.schema)
        self._open[below] = path, writer
        writer.write(table)
        counts = self._written.setdefault(path, [0, 0])
        counts[0] += table.num_rows
        counts[1] += body_bytes

    def _new_path(self, below: str) -> str:
        count = self._successors.get(below, 0)
        self._successors[below] = count + 1
        successor = f"-c{count:03d}" if count else ""
        directory = os.path.join(self._layout.directory, below)
        os.makedirs(directory, exist_ok=True)
        return os.path.join(directory, f"{self._prefix}{successor}.{self._kind(below)}")

    def _kind(self, below: str) -> str:
        return REJECTED_KIND if below == REJECTED else self._layout.kind

    def finish(self) -> list[WrittenFile]:
        """Close and sync all files."""
        self.__exit__()
        for path in self._written:
            sync_path(Path(path))
        return [WrittenFile(path, *counts) for path, counts in self._written.items()]


def groups(found: Iterator[Any]) -> Iterator[Any]:
    """Join batches into tables of about GROUP_BYTES."""
    gathered: list[Any] = []
    size = 0
    for batch in found:
        gathered.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


# -- formats


class ParquetOutput:
    """A Parquet file, one row group for each `write`.

    Bodies and offsets are not dictionary-encoded: their values are distinct, so the attempt costs time only.
    """

    _DISTINCT = frozenset({"value", "offset", "raw_properties", "raw_headers"})

    def __init__(self, path: str, schema: Any) -> None:
        dictionary = [path for path in _leaves(schema) if path.partition(".")[0] not in self._DISTINCT]
        self._writer = pq.ParquetWriter(path, schema, compression="snappy", use_dictionary=dictionary)

    def write(self, table: Any) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()


def _leaves(schema: Any) -> list[str]:
    """Return the paths of Parquet's columns."""
    found: list[str] = []
    for field in schema:
        if pa.types.is_struct(field.type):
            found += [f"{field.name}.{path}" for path in _leaves(field.type)]
        elif pa.types.is_map(field.type):
            value = field.type.item_field.with_name("value")
            found += [f"{field.name}.key_value.{path}" for path in ("key", *_leaves([value]))]
        elif pa.types.is_list(field.type):
            found += [f"{field.name}.list.{path}" for path in _leaves([field.type.value_field.with_name("element")])]
        else:
            found.append(field.name)
    return found


class _JsonFile:
    """One object a line."""

    def __init__(self, path: str, schema: Any) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - `close` closes it

    def write(self, table: Any) -> None:
        for batch in table.to_batches():
            self._file.write("".join(f"{each}\n" for each in json_objects(_as_texts(batch))).encode())

    def close(self) -> None:
        self._file.close()


class _CsvFile:
    """RFC 4180 with a header. An empty text is quoted, null is not."""

    def __init__(self, path: str, schema: Any) -> None:
        from pyarrow import csv

        texts = _as_texts(pa.RecordBatch.from_pylist([], schema), nested_as_json=True)
        self._writer = csv.CSVWriter(path, texts.schema)

    def write(self, table: Any) -> None:
        for batch in table.to_batches():
            self._writer.write_batch(_as_texts(batch, nested_as_json=True))

    def close(self) -> None:
        self._writer.close()


_WRITERS: Final[dict[str, Any]] = {
    "parquet": ParquetOutput,
    "json": _JsonFile,
    REJECTED_KIND: _JsonFile,
    "csv": _CsvFile,
}


def _as_texts(batch: Any, *, nested_as_json: bool = False) -> Any:
    """Return the columns for a format without bytes and times. Cost: some microseconds a row."""
    columns: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "value":
            columns["value"], columns["value_base64"] = _text_or_base64(column)
        elif pa.types.is_binary(column.type):
            columns[name] = _base64(column)
        elif pa.types.is_timestamp(column.type):
            columns[name] = _time_text(column)
        elif nested_as_json and pa.types.is_nested(column.type):
            columns[name] = pa.array([text or None for text in json_values(column)], pa.string())
        else:
            columns[name] = column
    return pa.RecordBatch.from_pydict(columns)


def _time_text(column: Any) -> Any:
    zone = column.type.tz
    column = column.cast(pa.timestamp("ms", tz=zone and "UTC"), safe=False)
    return pc.strftime(column, format="%Y-%m-%dT%H:%M:%S" + ("Z" if zone else ""))


def _base64(column: Any) -> Any:
    return pa.array([None if each is None else b64encode(each).decode() for each in column.to_pylist()], pa.string())


def _text_or_base64(column: Any) -> tuple[Any, Any]:
    try:
        return column.cast(pa.string()), pa.nulls(len(column), pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        encoded: list[str | None] = []
        for each in column.to_pylist():
            try:
                texts.append(each.decode())
                encoded.append(None)
            except UnicodeDecodeError:
                texts.append(None)
                encoded.append(b64encode(each).decode())
        return pa.array(texts, pa.string()), pa.array(encoded, pa.string())


def json_objects(batch: Any) -> Iterator[str]:
    """Yield each row, or each value of a struct array, as a JSON object without its null fields."""
    if isinstance(batch, pa.StructArray):
        fields = [(field.name, batch.field(place)) for place, field in enumerate(batch.type)]
    else:
        fields = list(zip(batch.schema.names, batch.columns, strict=True))
    columns = []
    for name, column in fields:
        if column.null_count < len(column):
            key = quoted(name)
            columns.append([f"{key}:{text}" if text else "" for text in json_values(column)])
    if not columns:
        yield from ["{}"] * len(batch)
        return
    for row in zip(*columns, strict=True):
        yield "{" + ",".join(filter(None, row)) + "}"


def json_values(column: Any) -> list[str]:
    """Return each value as JSON; "" for null."""
    kind = column.type
    if pa.types.is_struct(kind):
        return [text if valid else "" for text, valid in zip(json_objects(column), column.is_valid(), strict=True)]
    if pa.types.is_timestamp(kind):
        column = _time_text(column)
    elif pa.types.is_binary(kind):
        column = _base64(column)
    if pa.types.is_map(kind):
        return _json_maps(column)
    if pa.types.is_list(kind):
        return _json_lists(column)
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return ["" if each is None or not isfinite(each) else dumps(each) for each in column.to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        plain = "f" if pa.types.is_decimal(kind) else "d"
        return ["" if each is None else format(each, plain) for each in column.to_pylist()]
    return ["" if each is None else quoted(str(each)) for each in column.to_pylist()]


def _json_lists(column: Any) -> list[str]:
    values = iter([text or "null" for text in json_values(column.flatten())])
    sizes = pc.list_value_length(column).to_pylist()
    return ["" if size is None else "[" + ",".join(islice(values, size)) + "]" for size in sizes]


def _json_maps(column: Any) -> list[str]:
    pairs = column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))
    flat = pairs.flatten()
    keys = json_values(flat.field("key"))
    names = keys if pa.types.is_string(column.type.key_type) else [quoted(key) for key in keys]
    texts = json_values(flat.field("value"))
    values = iter([f"{name}:{text or 'null'}" for name, text in zip(names, texts, strict=True)])
    sizes = pc.list_value_length(pairs).to_pylist()
    return ["" if size is None else "{" + ",".join(islice(values, size)) + "}" for size in sizes]


# -- directories


def with_times(batch: Any, by: Sequence[str]) -> Any:
    """Add the columns `date` and `hour`, as far as they are in `by`."""
    for name in by:
        if name in TIMES:
            times = batch.column("timestamp")
            values = times.cast(pa.date32(), safe=False) if name == "date" else pc.hour(times).cast(pa.int32())
            batch = batch.append_column(name, values)
    return batch


def _split(table: Any, by: tuple[str, ...], empty: str) -> Iterator[tuple[str, Any]]:
    """Yield (directory, rows) for each directory of the table.

    Args:
        empty: Directory name of an empty text. Rows of one file must have one value if the file has the column.
    """
    if not by or not table.num_rows:
        yield "", table
        return
    if set(by) <= set(TIMES):
        # nearly always the whole table is of one hour
        unit = "hour" if "hour" in by else "day"
        bounds = pc.min_max(table.column("timestamp"))
        if pc.floor_temporal(bounds["min"], unit=unit).equals(pc.floor_temporal(bounds["max"], unit=unit)):
            yield _directory(with_times(table.slice(0, 1), by), by, empty), table
            return
    yield from _split_by_value(with_times(table, by), by, empty)


def _split_by_value(table: Any, by: tuple[str, ...], empty: str) -> Iterator[tuple[str, Any]]:
    codes: Any = None
    for name in by:
        encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        code = encoded.indices.cast(pa.int64())
        codes = code if codes is None else pc.add(pc.multiply(codes, len(encoded.dictionary)), code)
    order = pc.sort_indices(codes)  # stable, so the offsets stay in order
    table, codes = table.take(order), codes.take(order)
    begin = 0
    for count in pc.value_counts(codes).field("counts").to_pylist():
        piece = table.slice(begin, count)
        yield _directory(piece, by, empty), piece
        begin += count


def _directory(table: Any, by: tuple[str, ...], empty: str) -> str:
    """Return the directory of the table's first row."""
    values = [(name, table.column(name)[0].as_py()) for name in by]
    return os.path.join(*(_shortened(f"{name}={_escaped(value, empty)}", str(value)) for name, value in values))


def _shortened(name: str, value: str) -> str:
    """Return the name of a directory; one that is too long ends with a hash of its value."""
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    kept = name.encode()[: NAME_BYTES_MAX - 19].decode(errors="ignore")
    return f"{_CUT_ESCAPE.sub('', kept)}...{sha256(value.encode()).hexdigest()[:16]}"


def _escaped(value: object, empty: str) -> str:
    if value is None:
        return NO_VALUE
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", str(value)) or empty
