"""Compaction of an export's Parquet files: which files are merged, and the merge.

A compaction reads the export's checkpoint without its lock, so it runs beside `amqpctl export --follow`. Files of the
batch that is not committed are left alone, because a run after a kill looks for them by their names. The list of files
is taken first and the checkpoint is read then. So a file of the list is pending in it, or committed for ever.

    directory_compaction.py    directories: one exchange of two directories shows the merged files
    store_compaction.py        object stores: one object, the manifest, says which files are live
    iceberg_compaction.py      Iceberg: one commit of the table
    compaction_job.py          Delta: one transaction of deltalake

The files of one directory and of one schema are merged in the order of their offsets.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from amqpd.storage.export.checkpoint import KnownExport, sync_path
from amqpd.storage.export.file_writer import ParquetOutput, groups
from amqpd.storage.export.targets import TargetError

FILE_BYTES: Final = 128 << 20
_NAME: Final = re.compile(r"(.+)-(?:(\d{20})-(\d{20})|batch-(\d{8}))-([0-9a-f]{8})-[0-9a-z-]+\.parquet")
MERGED: Final = re.compile(r".+-[0-9a-f]{8}-merged-[0-9a-f]{16}\.parquet")
"""Names of merged files."""
WORK_SUFFIX: Final = ".compaction"
_TIME: Final = re.compile(r"(?:^|/)(date|hour)=([0-9-]+)(?=/)")


class CompactionError(TargetError):
    """The files cannot be merged; the text says why and what to do. Nothing is lost or repeated."""


class FoundFile(NamedTuple):
    """A file or object.

    Attributes:
        name: Its path below the target, with `/`.
        source: What the owner needs to find it.
    """

    name: str
    size: int
    source: Any = None

    @property
    def directory(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass
class CompactionOptions:
    """The options of a compaction.

    Attributes:
        file_bytes: Size of merged files. Files of at least half of it are left alone.
        now: The present time in UTC; the partition of its day or hour is left alone.
    """

    to: str
    checkpoint: Path
    file_bytes: int = FILE_BYTES
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass
class CompactionReport:
    """The result of a run, or of its part so far.

    Attributes:
        merged: Files that were replaced.
        written: Files that replace them.
        bytes_before: Size of the replaced files.
        bytes_after: Size of the new files.
        removed: Old files of a Delta table that were deleted.
        waiting: Files that are not merged yet.
    """

    merged: int = 0
    written: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    removed: int = 0
    waiting: int = 0
    seconds: float = 0.0

    def add(self, merged: Sequence[FoundFile], written: int, bytes_after: int) -> None:
        self.merged += len(merged)
        self.bytes_before += sum(each.size for each in merged)
        self.written += written
        self.bytes_after += bytes_after
        self.waiting -= len(merged)


class Watch(NamedTuple):
    """The caller of a compaction.

    Attributes:
        say: Called with the report after each step.
        stopped: True ends the run before its next step.
    """

    say: Callable[[CompactionReport], None]
    stopped: Callable[[], bool]


def plan(found: Iterable[FoundFile], export: KnownExport, options: CompactionOptions) -> list[list[FoundFile]]:
    """Return the groups of files to merge; each becomes one file. The groups of a directory follow each other.

    Args:
        found: All files. The list must be older than `export`.
    """
    by_directory: dict[str, list[FoundFile]] = {}
    for each in found:
        name = each.name.rpartition("/")[2]
        match = _NAME.fullmatch(name)
        if match is None or match[5] != export.id or name in export.pending or 2 * each.size >= options.file_bytes:
            continue
        if is_past(each.name, options.now):
            by_directory.setdefault(each.directory, []).append(each)
    result: list[list[FoundFile]] = []
    for directory, files in sorted(by_directory.items()):
        gets_more = not any(match[1] == "date" for match in _TIME.finditer(directory + "/"))
        result += _groups_of(sorted(files), options.file_bytes, gets_more)
    return result


def is_past(name: str, now: datetime) -> bool:
    """Return whether the date and hour in a file's directories have ended. Files without them have no end."""
    times = dict(_TIME.findall(name))
    if "date" not in times:
        return times.get("hour") != str(now.hour)
    present = now.strftime("%Y-%m-%d")
    return times["date"] < present or (times["date"] == present and int(times.get("hour", 24)) < now.hour)


def _groups_of(files: list[FoundFile], file_bytes: int, gets_more: bool) -> Iterator[list[FoundFile]]:
    group: list[FoundFile] = []
    size = 0
    for each in files:
        if size + each.size > file_bytes:
            yield from _worthwhile(group, gets_more)
            group, size = [], 0
        group.append(each)
        size += each.size
    yield from _worthwhile(group, gets_more)


def _worthwhile(group: list[FoundFile], gets_more: bool) -> Iterator[list[FoundFile]]:
    """Yield the group if it has two files. If its directory gets more files later, leave out a file that is larger than
    three times all others together: so a byte is written a few times, not once in every run.
    """
    if gets_more:
        group = sorted(group, key=lambda each: each.size)
        size = sum(each.size for each in group)
        while group and 4 * group[-1].size > 3 * size:
            size -= group.pop().size
    if len(group) > 1:
        yield sorted(group)


def by_schema(files: Sequence[FoundFile], open_file: Callable[[FoundFile], Any]) -> Iterator[list[FoundFile]]:
    """Split a group where the columns change. Groups of one file are left out. Raises OSError."""
    schemas = [(pq.read_schema(open_file(each)).remove_metadata(), each) for each in files]
    for _, found in groupby(schemas, key=lambda pair: pair[0]):
        part = [each for _, each in found]
        if len(part) > 1:
            yield part


def merged_name(files: Sequence[FoundFile]) -> str:
    """Return a new name for the rows of these files, in the form of the export's names. It has no directory."""
    matches = [match for each in files if (match := _NAME.fullmatch(each.name.rpartition("/")[2]))]
    first, last = matches[0], matches[-1]
    if first[2] is not None:
        span = f"{min(each[2] for each in matches)}-{max(each[3] for each in matches)}"
    else:
        span = f"batch-{last[4]}"
    return f"{first[1]}-{span}-{first[5]}-merged-{secrets.token_hex(8)}.parquet"


def merge(sources: Iterable[Any], target: Path) -> int:
    """Write the rows of Parquet files of one schema to a new file, and sync it. Return its size in bytes.

    Memory: one row group of a source, and two of 6 MiB. Cost: about that of writing the rows.

    Args:
        sources: Paths or open files.

    Raises: CompactionError if the new file has another number of rows; OSError.
    """
    writer: ParquetOutput | None = None
    schema: Any = None
    expected = 0

    def batches() -> Iterator[Any]:
        nonlocal expected, schema
        for source in sources:
            with pq.ParquetFile(source) as file:
                schema = file.schema_arrow.remove_metadata()
                expected += file.metadata.num_rows
                for number in range(file.metadata.num_row_groups):
                    yield from file.read_row_group(number).to_batches()

    try:
        for table in groups(batches()):
            writer = writer or ParquetOutput(str(target), table.schema.remove_metadata())
            writer.write(table.replace_schema_metadata(None))
        writer = writer or ParquetOutput(str(target), schema)  # no source has rows
    finally:
        if writer is not None:
            writer.close()
    found = pq.read_metadata(target).num_rows
    if found != expected:
        raise CompactionError(f"{target} has {found} rows, and its sources have {expected}")
    sync_path(target)
    sync_path(target.parent)
    return target.stat().st_size
