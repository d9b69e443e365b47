"""A queue as a pyarrow dataset: a query decodes only its columns, and only the offsets that its filter can match.

DuckDB and Polars pass columns and filter of a query to `scanner`. A filter is an expression that pyarrow cannot take
apart. But pyarrow can tell whether a filter may match rows with a known property, as it does for partitioned files.
A binary search with such questions finds the offsets and the first time that the filter can match.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from re import findall
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from amqpd.storage.export.arrow import TIMESTAMP, TYPES, batches
from amqpd.storage.export.offsets import Bounds, batch_parts
from amqpd.storage.export.options import Offsets, ReadOptions
from amqpd.storage.export.payload import ERROR, PAYLOAD, PayloadFormat, payload_columns, with_payload
from amqpd.storage.export.plan import snapshot_of

ORDER: Final = (
    "offset", "timestamp", "exchange", "routing_key", "value", "properties", "headers", "vhost", "queue",
    "raw_properties", "raw_headers",
)  # fmt: skip
"""The columns, in the order of `SELECT *`. A count decodes the first one, which costs least."""
_SCHEMA: Final = pa.schema([(name, TYPES[name]) for name in ORDER])
_FORMAT: Final = ds.ParquetFileFormat()
_FILES: Final = LocalFileSystem()
_HIGHEST: Final = (1 << 62) - 1


class DatasetScan:
    """One query, as DuckDB and Polars use a pyarrow.dataset.Scanner.

    The rows are decoded in the thread that asks for them. A thread of pyarrow's scanner reads ahead. After a query with
    LIMIT it could still run Python when the process ends, which is a fatal error.
    """

    def __init__(self, schema: Any, batches: Iterator[Any]) -> None:
        self._schema = schema
        self._batches = batches

    def to_reader(self) -> Any:
        """Return a pyarrow.RecordBatchReader. Call it once."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches)

    def to_table(self) -> Any:
        """Return all rows. Memory: all of them."""
        return self.to_reader().read_all()


class QueueDataset(ds.Dataset):  # type: ignore[misc]
    """All columns of one queue. The end of the queue is that of the first scan.

    Args:
        options: They select the queue. Their columns are ignored.
        payload: Format of the column `payload`, which is added with `payload_error`; None: no such columns.

    Attributes:
        error: The exception that ended a scan: query engines replace it by their own.
    """

    def __init__(self, options: ReadOptions, payload: PayloadFormat | None = None) -> None:
        # Without super().__init__: pyarrow's constructor refuses all calls.
        self._options = options
        self._parser = None if payload is None else payload.parser()
        self._schema = _SCHEMA if payload is None else pa.schema([*_SCHEMA, *payload_columns(payload.kind)])
        self._has_end = False
        self.error: Exception | None = None

    @property
    def schema(self) -> Any:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **settings: Any) -> DatasetScan:
        """Return one query. Nothing is read yet.

        Args:
            columns: Names; None: all columns.
            filter: A pyarrow expression.
            settings: Ignored: settings of pyarrow's own scanner, such as `batch_size`.
        """
        chosen = self._schema.names if columns is None else list(columns)
        # The text of an expression has the names of its fields, and perhaps other words: these cost time only.
        mentioned = set() if filter is None else set(findall(r"\w+", str(filter)))
        wanted = [name for name in self._schema.names if name in mentioned or name in chosen] or ["offset"]
        found = self._batches(wanted, filter)
        return DatasetScan(pa.schema([self._schema.field(name) for name in chosen]), _selected(found, chosen, filter))

    def _batches(self, columns: Sequence[str], filter: Any) -> Iterator[Any]:
        try:
            self._fix_end()
            parser = None if {PAYLOAD, ERROR}.isdisjoint(columns) else self._parser
            names = [name for name in columns if name in ORDER]
            if parser is not None and "value" not in names:
                names.append("value")
            options = replace(self._options, columns=tuple(names))
            for part in batch_parts(options, bounds_of(filter, self._schema)):
                for batch in batches(options, part):
                    yield batch if parser is None else with_payload(batch, parser, columns)
        except Exception as error:
            self.error = error
            raise

    def _fix_end(self) -> None:
        """Let all scans of one query end at the same offset."""
        if self._has_end:
            return
        options = self._options
        queues = options.queues()
        options.require(queues)
        with closing(options.source.open(queues[0])) as files:
            snapshot = snapshot_of(files, queues[0])
            self._options = replace(options, ending=Offsets(snapshot.end, {}))
        self._has_end = True


def _selected(batches: Iterator[Any], columns: Sequence[str], filter: Any) -> Iterator[Any]:
    for batch in batches:
        table = pa.Table.from_batches([batch])
        if filter is not None:
            table = table.filter(filter)
        yield from table.select(columns).to_batches()


def bounds_of(filter: Any, schema: Any = _SCHEMA) -> Bounds:
    """Return bounds outside which the filter on such columns matches no row. Cost: about a millisecond."""
    if filter is None:
        return Bounds()
    text = str(filter)
    first, stop, since_ms = 0, _HIGHEST, None
    if "offset" in text:
        offset = ds.field("offset")
        first = _lowest(lambda value: _may_match(filter, offset <= value, schema))
        stop = _HIGHEST - _lowest(lambda value: _may_match(filter, offset >= _HIGHEST - 1 - value, schema))
    if "timestamp" in text:
        time = ds.field("timestamp")
        since_us = _lowest(lambda value: _may_match(filter, time <= pa.scalar(value, TIMESTAMP), schema))
        since_ms = since_us // 1000
    return Bounds(first, stop, since_ms or None)


def _lowest(holds: Callable[[int], bool]) -> int:
    """Return the lowest number for which `holds`, which holds for all higher ones; _HIGHEST if there is none."""
    return bisect_left(range(_HIGHEST), True, key=holds)


def _may_match(filter: Any, guarantee: Any, schema: Any) -> bool:
    """Return False only if the filter matches no row for which the guarantee holds."""
    fragment = _FORMAT.make_fragment("", _FILES, guarantee)
    found = ds.FileSystemDataset([fragment], schema, _FORMAT, _FILES)
    return any(True for _ in found.get_fragments(filter))
