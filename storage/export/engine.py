"""Engines of an export: what reads a batch's rows and writes them to files.

    PyarrowEngine    this process and worker processes, without Spark; `amqpctl export` by default
    SparkEngine      storage/spark/engine.py, for conditions in SQL and for clusters

Both write the same files from the same parts of logs. Targets (targets.py) and the job (job.py) know only
`ExportEngine`, so commits and checkpoints do not depend on the engine.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from amqpd.storage.export.arrow import batches
from amqpd.storage.export.file_writer import REJECTED, FileLayout, WrittenFile, json_values, write_task
from amqpd.storage.export.offsets import batch_parts
from amqpd.storage.export.options import ReadOptions, parse
from amqpd.storage.export.payload import PayloadFormat
from amqpd.storage.export.plan import LogPartition
from amqpd.storage.export.worker_pool import WorkerPool, use_system_allocator

PART_BYTES: Final = 16 << 20
"""Tasks are made of parts of that many bytes of log."""
TASK_BYTES: Final = 512 << 20
"""Largest number of bytes of log for one task, which are read again if it fails."""
TASK_BYTES_MIN: Final = 16 << 20
"""Smallest number of bytes for one task, which are read and written in 60 ms."""


class EngineError(Exception):
    """The engine cannot run; the text says what to do."""


class WrittenBatch(NamedTuple):
    """The files of a batch, with the number of all rows and of all bytes of bodies.

    Attributes:
        rejected: Number of messages whose bodies do not fit `payload`; `rows` is without them.
    """

    paths: list[str]
    rows: int
    size_bytes: int
    rejected: int = 0

    @classmethod
    def of(cls, found: Sequence[WrittenFile]) -> WrittenBatch:
        fitting = [each for each in found if os.path.basename(os.path.dirname(each.path)) != REJECTED]
        rows = sum(each.rows for each in fitting)
        rejected = sum(each.rows for each in found) - rows
        return cls([each.path for each in found], rows, sum(each.size_bytes for each in fitting), rejected)


@dataclass(frozen=True)
class ExportRows:
    """The rows of a batch.

    Attributes:
        reads: Options of `format("amqp")`. Each selects some of the batch's queues and offsets.
        columns: The exported columns.
        partition_by: Columns and values of `TIMES`.
        where: A condition in Spark's SQL, or "".
        payload: Format of the column `payload`; None: no such column. Only for files of PyarrowEngine.
        task_bytes_min: A task of PyarrowEngine, and so a file, is not of less bytes of log; 0: TASK_BYTES_MIN.
    """

    reads: tuple[dict[str, str], ...]
    columns: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    where: str = ""
    payload: PayloadFormat | None = None
    task_bytes_min: int = 0

    def parts(self) -> tuple[ReadOptions, list[LogPartition]]:
        """Return the options to read parts with, and the parts. Raises DataLoss, SourceError, OSError."""
        parsed = [parse({**read, "splitBytes": str(PART_BYTES)}) for read in self.reads]
        parts = [part for each in parsed for part in batch_parts(each)]
        return replace(parsed[0], columns=self.columns, is_job=True), parts


class ExportEngine(ABC):
    """Reads the rows of batches. Methods raise DataLoss, SourceError, EngineError, OSError."""

    def start(self) -> None:
        """Start what the engine needs, before the first batch."""
        return

    def check(self, rows: ExportRows) -> None:
        """Raise an exception if the condition of the export is wrong."""
        return

    @abstractmethod
    def write_files(self, rows: ExportRows, layout: FileLayout) -> WrittenBatch:
        """Write the rows to files `part-<number>-<32 hex digits>.<kind>` below the layout's directory."""

    @abstractmethod
    def dicts(self, rows: ExportRows) -> Iterator[dict[str, Any]]:
        """Yield each row for a database driver: times with the zone UTC, structs and maps as JSON."""

    def has_ended(self, error: Exception) -> bool:
        """Return whether the error means that a signal has ended the engine's processes."""
        return False

    def close(self) -> None:
        """End the engine's processes."""
        return


class PyarrowEngine(ExportEngine):
    """Reads in this process, and in worker processes if a batch has several tasks.

    Args:
        advance: Called with the rows and the bytes of bodies that were written since the last call.
        workers: Number of processes; default: the cores that this process may use.
    """

    def __init__(
        self, advance: Callable[[int, int], None] = lambda rows, size_bytes: None, workers: int | None = None
    ) -> None:
        self._advance = advance
        self._pool = WorkerPool(workers or len(os.sched_getaffinity(0)))
        use_system_allocator()

    def write_files(self, rows: ExportRows, layout: FileLayout) -> WrittenBatch:
        options, parts = rows.parts()
        layout = replace(layout, payload=rows.payload)
        tasks = spread(parts, self._pool.size, rows.task_bytes_min)
        if len(tasks) > 1:
            found = self._pool.run(options, layout, tasks, self._advance)
        else:
            found = [
                file for numbered in enumerate(tasks) for file in write_task(options, layout, numbered, self._advance)
            ]
        return WrittenBatch.of(found)

    def dicts(self, rows: ExportRows) -> Iterator[dict[str, Any]]:
        options, parts = rows.parts()
        for batch in (batch for part in parts for batch in batches(options, part)):
            self._advance(batch.num_rows, 0)
            columns = [
                pa.array([text or None for text in json_values(column)], pa.string())
                if pa.types.is_nested(column.type)
                else column
                for column in batch.columns
            ]
            yield from pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()

    def close(self) -> None:
        self._pool.close()


def spread(parts: Sequence[LogPartition], cores: int, bytes_min: int = 0) -> list[list[LogPartition]]:
    """Divide the parts into tasks of about equal size, in order.

    Each core gets equally many tasks, of at most TASK_BYTES. There are fewer tasks than cores only if they would be
    smaller than `bytes_min` or TASK_BYTES_MIN.
    """
    if not parts:
        return []
    total = sum(part.size_bytes for part in parts)
    rounds = -(-total // (cores * TASK_BYTES))
    count = min(len(parts), max(1, min(cores * rounds, total // max(bytes_min, TASK_BYTES_MIN))))
    tasks: list[list[LogPartition]] = [[] for _ in range(count)]
    before = 0
    for part in parts:
        middle = before + part.size_bytes / 2
        tasks[min(count - 1, int(middle * count / max(1, total)))].append(part)
        before += part.size_bytes
    return [task for task in tasks if task]
