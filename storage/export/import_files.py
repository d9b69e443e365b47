"""Files of an import: Parquet, JSON lines and CSV as columns of messages.

Columns are those that an export writes (columns.py), and in JSON and CSV `value_base64`, which has the bodies that are
not UTF-8. In these formats `raw_properties` is base64, times are texts, and CSV has JSON in `properties` and `headers`.
A directory of an export with `--partition-by routing_key` has this column in its directories' names.
"""

from __future__ import annotations

import csv
import json
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from amqpd.storage.export.checkpoint import checkpoint_kind
from amqpd.storage.export.columns import PROPERTIES
from amqpd.storage.export.file_compaction import WORK_SUFFIX
from amqpd.storage.export.file_writer import NO_VALUE

SUFFIXES: Final = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
USED: Final = (
    "value", "value_base64", "exchange", "routing_key", "properties", "headers", "message_id", "raw_properties",
)  # fmt: skip
IGNORED: Final = ("vhost", "queue", "offset", "timestamp", "raw_headers", "date", "hour", "reason", "payload")
"""Columns about the place and time of a message, the reason why it was rejected, and the fields of its body."""
ROWS: Final = 1024
PIECE_BYTES: Final = 8 << 20
"""So many rows, or so many bytes of bodies, are in memory at once."""
_Row = TypeVar("_Row")


class BadFile(Exception):
    """A file that cannot be imported; the text names it, and the line if there are lines."""


class MessageColumns(NamedTuple):
    """Some rows of a file.

    Attributes:
        columns: Values by the name of a column in USED, without `value_base64`.
        share: Part of the file up to the end of these rows, 0 to 1.
    """

    columns: dict[str, list[Any]]
    rows: int
    share: float


def find_files(path: Path, kind: str) -> list[Path]:
    """Return a file, or the files below a directory with the suffix of a kind, in the order of their paths.

    Checkpoints of exports and imports below the directory are left out, and what a compaction has beside its target.

    Args:
        kind: parquet, json or csv; "": all of them.

    Raises: BadFile.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadFile(f"{path} does not exist")
    kinds = [suffix for suffix, each in SUFFIXES.items() if kind in ("", each)]
    found = sorted(path.rglob("*"))
    for each in found:
        if each.name == "_delta_log" or each.name.endswith(".metadata.json"):
            table = "a Delta" if each.name == "_delta_log" else "an Iceberg"
            raise BadFile(
                f"{path} has {table} table, and perhaps files that are no part of it any more: "
                "name its data files, or write its rows to files with another program"
            )
    others = {each.parent for each in found if each.name == "lock" and checkpoint_kind(each.parent)}
    others |= {each for each in found if each.name.startswith(".") and each.name.endswith(WORK_SUFFIX)}
    return [each for each in found if each.suffix in kinds and each.is_file() and others.isdisjoint(each.parents)]


def read_rows(path: Path, kind: str, skip: int) -> Iterator[MessageColumns]:
    """Yield the rows of a file behind the first `skip` rows. Raises BadFile, OSError.

    Args:
        kind: parquet, json or csv; "": as the file's suffix says.
    """
    kind = kind or SUFFIXES.get(path.suffix, "")
    if not kind:
        raise BadFile(f"{path}: expected a name that ends with {', '.join(SUFFIXES)}, or --format")
    named = _columns_of_directories(path)
    for columns, rows, share in _READERS[kind](path, skip):
        _check_names(path, [*columns])
        encoded = columns.pop("value_base64", None)
        if encoded is not None:
            values = columns.get("value") or [None] * rows
            columns["value"] = [
                value if code is None else _bytes(path, code) for value, code in zip(values, encoded, strict=True)
            ]
        found = {name: values for name, values in columns.items() if name in USED}
        yield MessageColumns({**{name: [value] * rows for name, value in named.items()}, **found}, rows, share)


def _check_names(path: Path, names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in (*USED, *IGNORED)]
    if unknown:
        raise BadFile(f"{path}: unknown column '{unknown[0]}', expected some of {', '.join(USED)}")
    if "value" not in names and "value_base64" not in names:
        raise BadFile(f"{path}: the column 'value' is missing: the message's body")


def _columns_of_directories(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in path.parent.parts:
        name, equals, value = part.partition("=")
        if equals and name in ("exchange", "routing_key"):
            found[name] = "" if value == NO_VALUE else unquote(value)
    return found


def _bytes(where: object, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (BinasciiError, ValueError):
        raise BadFile(f"{where}: {text[:40]!r} is not base64") from None


_Columns = tuple[dict[str, list[Any]], int, float]


def _parquet(path: Path, skip: int) -> Iterator[_Columns]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_names(path, file.schema_arrow.names)
            _check_types(path, file.schema_arrow)
            names = [name for name in file.schema_arrow.names if name in USED]
            total, done = file.metadata.num_rows, 0
            groups: list[int] = []
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if not groups and skip >= rows:
                    skip -= rows
                    done += rows
                else:
                    groups.append(group)
            size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            size_rows = max(1, min(ROWS, PIECE_BYTES * (total - done) // max(1, size)))
            for batch in file.iter_batches(size_rows, row_groups=groups, columns=names):
                done += batch.num_rows
                rest = batch.slice(min(skip, batch.num_rows))
                skip = max(0, skip - batch.num_rows)
                if rest.num_rows:
                    columns = {name: each.to_pylist() for name, each in zip(names, rest.columns, strict=True)}
                    yield columns, rest.num_rows, done / total
    except (ValueError, OverflowError) as error:  # of pyarrow, or a time that Python does not have
        raise BadFile(f"{path}: {error}") from None


def _check_types(path: Path, schema: Any) -> None:
    import pyarrow as pa

    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    blobs = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    kinds = {
        "value": (*texts, *blobs),
        "raw_properties": blobs,
        "properties": (pa.types.is_struct,),
        "headers": (pa.types.is_map,),
    }
    for field in schema:
        wanted = kinds.get(field.name, texts)
        if field.name not in USED or (pa.types.is_null(field.type) and field.name != "value"):
            continue  # pandas, Polars and DuckDB give a column without values the type null
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not any(check(kind) for check in wanted):
            raise BadFile(f"{path}: column '{field.name}' cannot be {field.type}")
        if field.name == "properties":
            _check_properties(str(path), [each.name for each in field.type])


def _check_properties(where: str, names: Iterable[str]) -> None:
    known = [name for name, _ in PROPERTIES]
    for name in names:
        if name not in known:
            raise BadFile(f"{where}: unknown property '{name}', expected some of {', '.join(known)}")


def _json(path: Path, skip: int) -> Iterator[_Columns]:
    size = max(1, path.stat().st_size)
    with path.open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        for _ in islice(lines, skip):
            continue
        for piece in _pieces(lines, lambda each: len(each[1])):
            objects = [_object(f"{path}, line {number}", line) for number, line in piece]
            names = dict.fromkeys(name for each in objects for name in each)
            yield {name: [each.get(name) for each in objects] for name in names}, len(objects), file.tell() / size


def _pieces(rows: Iterable[_Row], size_of: Callable[[_Row], int]) -> Iterator[list[_Row]]:
    """Yield lists of at most ROWS rows; one ends with the row that reaches PIECE_BYTES."""
    piece: list[_Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += size_of(row)
        if len(piece) >= ROWS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _object(where: str, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where}: {error}") from None
    if not isinstance(found, dict):
        raise BadFile(f"{where}: expected an object, not {line[:40]!r}")
    return _decoded(where, found)


def _csv(path: Path, skip: int) -> Iterator[_Columns]:
    csv.field_size_limit(1 << 30)
    size = max(1, path.stat().st_size)
    with path.open("rb") as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as file:
        lines = csv.DictReader(file, strict=True)
        try:
            for _ in islice(lines, skip):
                continue
            names = lines.fieldnames or []
            rows = (_row(f"{path}, line {lines.line_num}", row) for row in lines)
            for found in _pieces(rows, lambda row: len(row.get("value") or row.get("value_base64") or "")):
                yield {name: [row.get(name) for row in found] for name in names}, len(found), raw.tell() / size
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadFile(f"{path}, line {lines.line_num}: {error}") from None


def _row(where: str, row: dict[str, Any]) -> dict[str, Any]:
    if None in row or None in row.values():
        raise BadFile(f"{where}: its number of cells is not that of the first line")
    found: dict[str, Any] = {name: text for name, text in row.items() if text or name in ("value", "value_base64")}
    for name in ("properties", "headers"):
        if name in found:
            try:
                found[name] = json.loads(found[name])
            except (ValueError, RecursionError) as error:
                raise BadFile(f"{where}: {name}: {error}") from None
    if not found.get("value_base64"):
        found.pop("value_base64", None)  # an empty body is an empty value
    return _decoded(where, found)


def _decoded(where: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of texts with the values of Parquet."""
    texts = ("value", "value_base64", "exchange", "routing_key", "message_id", "raw_properties")
    if any(not isinstance(row.get(name, ""), str | None) for name in texts):
        raise BadFile(f"{where}: expected texts in {', '.join(texts)}")
    if any(not isinstance(row.get(name, {}), dict | None) for name in ("properties", "headers")):
        raise BadFile(f"{where}: expected objects in properties and headers")
    if row.get("raw_properties") is not None:
        row["raw_properties"] = _bytes(where, row["raw_properties"])
    properties = row.get("properties") or {}
    _check_properties(where, properties)
    if isinstance(properties.get("timestamp"), str):
        try:
            properties["timestamp"] = datetime.fromisoformat(properties["timestamp"])
        except ValueError:
            raise BadFile(f"{where}: {properties['timestamp']!r} is not a time") from None
    return row


_READERS: Final = {"parquet": _parquet, "json": _json, "csv": _csv}
