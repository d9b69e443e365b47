"""Compaction job: the target and format of an export from its checkpoint, and the compaction that they need.

Delta tables need no more than deltalake: its `optimize.compact`, then its `vacuum`. Both are safe beside appends.
`vacuum` deletes files that a commit has taken out of the table, after a time: a week, or what the table's property
`delta.deletedFileRetentionDuration` says. Files that no commit has named stay, such as those of a killed compaction:
only a vacuum with `full=True` deletes them, and with them all other files in the directory.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from amqpd.storage.export.checkpoint import lock_checkpoint
from amqpd.storage.export.file_compaction import CompactionError, CompactionOptions, CompactionReport, Watch
from amqpd.storage.export.object_store import is_object_store
from amqpd.storage.export.shared_checkpoint import known_export

WORK: Final = "compaction"
"""Directory in the checkpoint: lock and files of a compaction."""
COMMITS_MAX: Final = 5


def compact(options: CompactionOptions, watch: Watch) -> CompactionReport:
    """Merge small files of an export's target into larger ones. A reader sees each row once, before and after.

    One compaction of a checkpoint runs at a time. Its export may run meanwhile.

    Raises: CompactionError, CheckpointError, TargetError, OSError.
    """
    started = time.monotonic()
    what = known_export(options.checkpoint).what
    work = options.checkpoint / WORK
    lock = lock_checkpoint(work, "compaction")
    try:
        kind = what["format"]
        if kind == "iceberg":
            from amqpd.storage.export.iceberg_compaction import IcebergCompaction

            report = IcebergCompaction(options, what["table"], work / "iceberg", watch).run()
        elif kind == "delta":
            report = _compact_delta(options, what["partition_by"], watch)
        elif is_object_store(options.to):
            from amqpd.storage.export.store_compaction import compact_store

            report = compact_store(options, work / "objects", watch)
        else:
            from amqpd.storage.export.directory_compaction import compact_directory

            report = compact_directory(options, watch)
    finally:
        os.close(lock)
    report.seconds = time.monotonic() - started
    return report


def _compact_delta(options: CompactionOptions, partition_by: list[str], watch: Watch) -> CompactionReport:
    """Merge small files of a table, and delete old ones. Raises CompactionError, OSError.

    The partitions of the present day are left alone.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError

    past = [("date", "<", options.now.strftime("%Y-%m-%d"))] if "date" in partition_by else None
    is_remote = is_object_store(options.to)
    place = options.to if is_remote else str(Path(options.to).absolute())
    # Only an endpoint that the user names can be without TLS.
    given = {"allow_http": "true"} if is_remote else None
    report = CompactionReport()
    try:
        if not DeltaTable.is_deltatable(place, given):
            raise CompactionError(f"{options.to} has no Delta table")
        for attempt in range(COMMITS_MAX):
            try:
                table = DeltaTable(place, storage_options=given)
                found = table.optimize.compact(partition_filters=past, target_size=options.file_bytes)
                break
            except CommitFailedError:  # of another writer's commit
                if attempt == COMMITS_MAX - 1:
                    raise
        report.merged, report.bytes_before = _counts(found["filesRemoved"])
        report.written, report.bytes_after = _counts(found["filesAdded"])
        watch.say(report)
        if not watch.stopped():
            table = DeltaTable(place, storage_options=given)
            report.removed = len(table.vacuum(dry_run=False))
    except DeltaError as error:
        raise CompactionError(f"the Delta table {options.to}: {error}") from error
    return report


def _counts(text: str | dict[str, Any]) -> tuple[int, int]:
    """Return the number and the size of files from deltalake's counts."""
    found = json.loads(text) if isinstance(text, str) else text
    return int(found["totalFiles"]), int(found["totalSize"])
