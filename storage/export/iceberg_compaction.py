"""Compaction of an Iceberg table by pyiceberg.

pyiceberg has no action that rewrites files. So the files are merged as those of a directory, and one snapshot of the
operation `overwrite` takes the old files out of the table and the new ones in. If another writer, such as an export,
commits meanwhile, the commit is repeated on the new snapshot, after a check that the old files are still in it.

Files that other writers have added, or that have delete files, are left alone. Old snapshots keep the old files until
they expire.

`pending.json` in the working directory has the names of the new files before they appear. A run after a kill deletes
those that no snapshot has: at once if the catalog is the SQLite file, else after some minutes, because the commit of a
killed process may reach a catalog server late.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from amqpd.storage.export.checkpoint import write_file
from amqpd.storage.export.file_compaction import (
    CompactionError,
    CompactionOptions,
    CompactionReport,
    FoundFile,
    Watch,
    by_schema,
    merge,
    merged_name,
    plan,
)
from amqpd.storage.export.iceberg import SCHEME, TableFiles, iceberg_errors, open_catalog
from amqpd.storage.export.shared_checkpoint import known_export

COMMIT_BYTES: Final = 1 << 30
"""A snapshot is committed when so many bytes of old files are merged, and at the end."""
COMMITS_MAX: Final = 10
LATE_S: float = 900.0
_FIELD_ID: Final = b"PARQUET:field_id"


class _Replacement(NamedTuple):
    """A merged file that is in its place, and the files that it replaces."""

    final: str
    files: list[FoundFile]
    size: int


class IcebergCompaction:
    """One compaction of a table. All methods raise CompactionError, TargetError, CheckpointError, OSError.

    Args:
        table: `namespace.table`, if `options.to` has none.
        work: A directory for the merged files of one snapshot, and `pending.json`.
    """

    def __init__(self, options: CompactionOptions, table: str, work: Path, watch: Watch) -> None:
        self._options = options
        self._work = work
        self._watch = watch
        self._report = CompactionReport()
        self._late_s = LATE_S if options.to.startswith(SCHEME) else 0.0
        self._left: list[list[Any]] = []  # [name, time] of files of killed runs that are not deleted yet
        self._catalog, self._identifier, _ = open_catalog(options.to, table, options.checkpoint)

    def run(self) -> CompactionReport:
        try:
            with iceberg_errors(self._identifier):
                self._compact()
        finally:
            self._catalog.close()
        return self._report

    def _compact(self) -> None:
        table = self._catalog.load_table(self._identifier)
        self._work.mkdir(parents=True, exist_ok=True)
        self._remove_pending(table)
        groups = self._plan(table)
        self._report.waiting = sum(map(len, groups))
        self._watch.say(self._report)
        done: list[_Replacement] = []
        for group in groups:
            if self._watch.stopped():
                break
            self._report.waiting -= len(group)
            for files in by_schema(group, lambda each: _source(table, each)):
                made = self._merged(table, files, done)
                self._report.waiting += sum(len(each.files) for each in made)
                done += made
            if sum(each.size for found in done for each in found.files) >= COMMIT_BYTES:
                self._commit(done)
                done = []
        if done:
            self._commit(done)
        if not self._left:
            shutil.rmtree(self._work)

    def _plan(self, table: Any) -> list[list[FoundFile]]:
        """Return the groups of files to merge. One group's files have one partition."""
        spec = table.spec().spec_id
        root = f"{table.location().rstrip('/')}/data/"
        found = [
            FoundFile(task.file.file_path.removeprefix(root), task.file.file_size_in_bytes, task.file)
            for task in table.scan().plan_files()
            if task.file.spec_id == spec and not task.delete_files and task.file.file_path.startswith(root)
        ]
        return plan(found, known_export(self._options.checkpoint), self._options)

    def _merged(self, table: Any, files: list[FoundFile], done: list[_Replacement]) -> list[_Replacement]:
        """Merge files and put the new file in its place, where no snapshot has it yet."""
        if _FIELD_ID in (pq.read_schema(_source(table, files[0])).field(0).metadata or {}):
            return []  # of another writer
        staged = self._work / merged_name(files)
        merge((_source(table, each) for each in files), staged)
        place = TableFiles()
        place.table = table
        final = files[0].source.file_path.rpartition("/")[0] + "/" + staged.name
        size = staged.stat().st_size
        self._save_pending([*(each.final for each in done), final])
        place.publish([[str(staged), final]])
        staged.unlink(missing_ok=True)
        return [_Replacement(final, files, size)]

    def _commit(self, done: list[_Replacement]) -> None:
        """Replace the files in one snapshot, and repeat this if other writers have committed meanwhile."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for attempt in range(COMMITS_MAX):
            table = self._catalog.load_table(self._identifier)
            self._check_present(table, done)
            try:
                self._overwrite(table, done)
                break
            except (CommitFailedException, ValidationException):
                if attempt == COMMITS_MAX - 1:
                    raise
        for each in done:
            self._report.add(each.files, 1, each.size)
        self._save_pending([])
        self._watch.say(self._report)

    def _check_present(self, table: Any, done: list[_Replacement]) -> None:
        present = {task.file.file_path for task in table.scan().plan_files() if not task.delete_files}
        for each in (file for replacement in done for file in replacement.files):
            if each.source.file_path not in present:
                self._remove_pending(table)
                raise CompactionError(
                    f"the table {self._identifier}: another writer has changed {each.name} meanwhile. A rerun merges "
                    "the others"
                )

    def _overwrite(self, table: Any, done: list[_Replacement]) -> None:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        summary = {"amqpd.compacted-files": str(sum(len(each.files) for each in done))}
        with (
            table.transaction() as transaction,
            transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot,
        ):
            for each in done:
                new = parquet_file_to_data_file(table.io, table.metadata, each.final)
                rows = sum(file.source.record_count for file in each.files)
                if new.record_count != rows or any(new.partition != file.source.partition for file in each.files):
                    raise CompactionError(f"{each.final} has other rows than the files that it replaces")
                for file in each.files:
                    snapshot.delete_data_file(file.source)
                snapshot.append_data_file(new)

    # -- files without a snapshot

    def _save_pending(self, finals: list[str]) -> None:
        content = [*self._left, *([final, time.time()] for final in finals)]
        write_file(self._work / "pending.json", json.dumps(content).encode())

    def _remove_pending(self, table: Any) -> None:
        """Delete new files of a killed or failed run, unless its commit has arrived or may arrive."""
        path = self._work / "pending.json"
        found = json.loads(path.read_bytes()) if path.exists() else []
        if not found:
            return
        known = set(table.inspect.all_files().column("file_path").to_pylist())
        self._left = [each for each in found if each[0] not in known and time.time() - each[1] < self._late_s]
        left = {final for final, _ in self._left}
        for final, _ in found:
            if final not in known and final not in left and table.io.new_input(final).exists():
                table.io.delete(final)
        self._save_pending([])


def _source(table: Any, file: FoundFile) -> Any:
    return table.io.new_input(file.source.file_path).open()
