"""Delta tables as targets, written by the package deltalake.

The files of a batch are Parquet files in the table's directory. One transaction adds them, with the export's id as
application and the batch's number as its version. A rerun compares the version, so it does not add them twice.

A second application has the name of what is exported, and the export's id as a number is its version. So a table knows
which checkpoint its rows came from, also when their files are merged and deleted.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from amqpd.storage.export.arrow import TYPES
from amqpd.storage.export.checkpoint import Progress
from amqpd.storage.export.claims import WINDOW
from amqpd.storage.export.engine import ExportEngine, ExportRows
from amqpd.storage.export.file_writer import NO_VALUE
from amqpd.storage.export.object_store import ObjectStore, is_object_store
from amqpd.storage.export.payload_schema import DELTA_TIME, has_fields_of, table_payload
from amqpd.storage.export.shared_checkpoint import ExportLedger
from amqpd.storage.export.targets import Files, TargetError, data_files, file_place

_TIME_TYPES: Final = {"date": pa.date32(), "hour": pa.int32()}
COMMITS_MAX: Final = 3
"""A commit whose answer was lost is an error of deltalake, too. The next attempt looks at the table first."""
SHARED_COMMITS_MAX: Final = 30
"""deltalake refuses one of two commits of a shared export at one moment."""
COMMIT_BACKOFF_MS: Final = 500
_WITH_BOUNDS: Final = ("offset", "timestamp")
"""Columns whose smallest and largest values are in the table's log, so that readers skip files."""


class Delta(Files):
    """A Delta table. Columns that it does not have yet are added; readers see null in older rows.

    Args:
        to: The table's directory, or a URL of `object_store.SCHEMES`.

    Methods raise TargetError, OSError, CheckpointError.
    """

    def __init__(self, to: str, partition_by: list[str], name: str, ledger: ExportLedger) -> None:
        super().__init__(file_place(to), "parquet", partition_by, name, ledger)
        is_remote = is_object_store(to)
        self._table = to if is_remote else str(Path(to).absolute())
        self._root = "" if is_remote else f"{self._table}/"
        # Only an endpoint that the user names can be without TLS.
        self._options = {"allow_http": "true"} if is_remote else None
        self._owner = f"amqpd.export:{name}"
        self._owner_version = int(ledger.id, 16)

    def write(self, engine: ExportEngine, rows: ExportRows, progress: Progress, label: str) -> None:
        super().write(engine, replace(rows, payload=table_payload(rows.payload, DELTA_TIME)), progress, label)

    def check_fresh(self) -> None:
        super().check_fresh()
        self._check_owner(self._version(self._owner))

    def _check_owner(self, version: int | None) -> None:
        if version not in (None, self._owner_version):
            raise TargetError(
                "the Delta table has batches of an export with another checkpoint, and all rows would be there twice: "
                "use that --checkpoint, or another --to"
            )

    def _version(self, application: str) -> int | None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._table, self._options):
            return None
        found: int | None = DeltaTable(self._table, storage_options=self._options).transaction_version(application)
        return found

    def has(self, progress: Progress) -> bool:
        moves = progress.moves or []
        if self._root and not all(_present(staged, final).exists() for staged, final in moves):
            # A vacuum has deleted files: those of no commit, or those that a compaction has replaced.
            return (self._version(self._application(progress)) or 0) >= progress.batch
        return super().has(progress)

    def _application(self, progress: Progress) -> str:
        """Return the application whose version is the batch's number. Batches of a shared export end in any order."""
        return f"{self.ledger.id}.{progress.batch % WINDOW}" if self.ledger.is_shared else self.ledger.id

    def _share(self, moves: list[list[str]], attempt: str) -> list[list[str]]:
        self.place.publish(moves)  # no reader sees a file before its commit
        return moves

    def _publish(self, progress: Progress) -> None:
        from deltalake.exceptions import DeltaError

        attempts = COMMITS_MAX
        if self.ledger.is_shared:
            if (self._version(self._application(progress)) or 0) >= progress.batch:
                return  # its files may be merged and deleted
            attempts = SHARED_COMMITS_MAX
        else:
            super()._publish(progress)
        moves = data_files(progress.moves)
        for attempt in range(attempts if moves else 0):
            try:
                with TemporaryDirectory() as scratch:
                    self._commit(progress, moves, Path(scratch))
                return
            except DeltaError as error:
                if attempt == attempts - 1:
                    raise TargetError(f"the Delta table refuses the batch: {error}") from error
                if self.ledger.is_shared:
                    time.sleep(secrets.randbelow(COMMIT_BACKOFF_MS) / 1000)

    def _here(self, staged: str, final: str, scratch: Path) -> Path:
        """Return the path of a file; one that another machine has uploaded is copied to `scratch`."""
        path = _present(staged, final)
        if isinstance(self.place, ObjectStore) and not path.exists():
            path = scratch / Path(final).name
            self.place.download(final, path)
        return path

    def _commit(self, progress: Progress, moves: list[list[str]], scratch: Path) -> None:
        """Add the files, unless the table has the batch already. Raises TargetError and deltalake's errors."""
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction

        found = [(final, self._here(staged, final, scratch)) for staged, final in moves]
        files = [(final, path, pq.read_metadata(path)) for final, path in found]
        # Every file of a batch has the same columns. The schema loses Arrow's notes, which are no part of a table.
        columns = files[0][2].schema.to_arrow_schema().remove_metadata()
        for name in self.partition_by:
            columns = columns.append(pa.field(name, _TIME_TYPES.get(name) or TYPES[name]))
        schema = Schema.from_arrow(columns)
        if not DeltaTable.is_deltatable(self._table, self._options):
            DeltaTable.create(
                self._table, schema, mode="ignore", partition_by=self.partition_by, storage_options=self._options
            )
        table = DeltaTable(self._table, storage_options=self._options)
        version = table.transaction_version(self._application(progress))
        if version is not None and version >= progress.batch:
            return
        if self.ledger.is_first:
            self._check_owner(table.transaction_version(self._owner))
        partitions = list(table.metadata().partition_columns)
        if partitions != self.partition_by:
            raise TargetError(
                f"the Delta table is partitioned by {', '.join(partitions) or '(nothing)'}: "
                "give the same --partition-by"
            )
        known = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
        added = [
            field
            for field, column in zip(schema.fields, columns, strict=True)
            if field.name not in known or not has_fields_of(known[field.name], column.type)
        ]
        if added:
            table.alter.add_columns(added)
            table = DeltaTable(self._table, storage_options=self._options)
        table.create_write_transaction(
            [self._add(final, metadata, path) for final, path, metadata in files],
            "append",
            table.schema(),
            self.partition_by,
            commit_properties=CommitProperties(
                app_transactions=[
                    Transaction(self._application(progress), progress.batch),
                    Transaction(self._owner, self._owner_version),
                ]
            ),
        )

    def _add(self, final: str, metadata: Any, path: Path) -> Any:
        from deltalake.transaction import AddAction

        name = final.removeprefix(self._root)
        return AddAction(
            name, path.stat().st_size, _partition(name), time.time_ns() // 1_000_000, True, _statistics(metadata)
        )


def _present(staged: str, final: str) -> Path:
    """Return the path of a file: a rename may have taken it out of staging, an upload leaves it there."""
    return Path(staged) if Path(staged).exists() else Path(final)


def _partition(name: str) -> dict[str, str | None]:
    """Return the values of the partition columns from a file's directories."""
    pairs = [each.split("=", 1) for each in name.split("/")[:-1]]
    return {column: None if value == NO_VALUE else unquote(value) for column, value in pairs}


def _statistics(metadata: Any) -> str:
    """Return a file's statistics as Delta's log has them, from the statistics of its row groups."""
    found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place).path
        groups = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
        if column in _WITH_BOUNDS and all(each is not None and each.has_min_max for each in groups):
            low, high = min(each.min for each in groups), max(each.max for each in groups)
            found["minValues"][column], found["maxValues"][column] = _bound(low, 0), _bound(high, 999)
            found["nullCount"][column] = sum(each.null_count for each in groups)
    return json.dumps(found)


def _bound(value: Any, rounding_us: int) -> Any:
    """Return a bound as JSON. Times have milliseconds there; `rounding_us` is added before the rest is cut off."""
    if isinstance(value, int):
        return value
    from datetime import timedelta

    text = (value + timedelta(microseconds=rounding_us)).isoformat(timespec="milliseconds")
    return re.sub(r"\+00:00$", "Z", text)
