"""Parquet without the JVM in the way: Spark's tasks read parts and write files by themselves, with pyarrow.

Through `format("amqp")` every row crosses from Python to the JVM and is encoded there, which costs more than reading
and decoding together. Where nothing is to be done with the rows on the way (no `where`; directories by the broker's
date and hour, or none), Spark is only wanted for spreading the work: a task for some parts that follow one another, a
file per task and directory, and only names and counts come back. Few tasks, then: `spread` makes them of one size, as
many as there are cores or a small multiple of it.

The broker's time rises along the log, so that nearly every piece belongs to one directory and is handed on as it is.
A task that Spark runs twice, or two at once, writes under other names each time, and only those that its answer names
are of any worth: staged files, whose final names the caller gives (targets.py). Empty parts leave none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpd.storage.spark.arrow import Decoder
from amqpd.storage.spark.options import ReadOptions
from amqpd.storage.spark.plan import Part
from amqpd.storage.spark.read import PartReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP_BYTES: Final = 32 << 20
"""A row group is about that large before it is encoded: a few of these are what a task holds in memory."""
TASK_BYTES: Final = 512 << 20
"""Of log for one task, at most: that much is read again where one fails."""
TASK_BYTES_MIN: Final = 16 << 20
"""A task costs some 20 ms of the JVM and as much of its worker, which read and write that much in 60."""


class Written(NamedTuple):
    """One file. rows: in it; size_bytes: of the bodies, 0 where there is no column `value`."""

    path: str
    rows: int
    size_bytes: int


def write_parquet(
    spark: SparkSession, options: ReadOptions, parts: Sequence[Part], directory: str, by: tuple[str, ...] = ()
) -> list[Written]:
    """Writes the parts below `directory`, which every worker must reach. by: of `TIMES`, the outer directory first.

    The columns are `options.columns`. Raises: what Spark raises when a task has failed as often as it may.
    """
    if not parts:
        return []
    tasks = list(enumerate(spread(parts, spark.sparkContext.defaultParallelism)))
    work = partial(_in_worker, options, directory, by)
    found = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
    return [each for some in found for each in some]


def spread(parts: Sequence[Part], cores: int) -> list[list[Part]]:
    """The parts in their order, cut into tasks of about one size: as many for each core, of at most TASK_BYTES.

    Fewer than there are cores only where they would be smaller than TASK_BYTES_MIN.
    """
    total = sum(part.size_bytes for part in parts)
    rounds = -(-total // (cores * TASK_BYTES))
    count = min(len(parts), max(1, min(cores * rounds, total // TASK_BYTES_MIN)))
    tasks: list[list[Part]] = [[] for _ in range(count)]
    before = 0
    for part in parts:
        middle = before + part.size_bytes / 2
        tasks[min(count - 1, int(middle * count / max(1, total)))].append(part)
        before += part.size_bytes
    return [task for task in tasks if task]


def _in_worker(
    options: ReadOptions, directory: str, by: tuple[str, ...], numbered: tuple[int, Sequence[Part]]
) -> list[Written]:
    """`write_task` in a process of Spark's, with the allocator that suits it.

    What a group took is freed at once when it is written, and wanted again for the next. Arrow's own allocators return
    that to the kernel, which clears each page anew; glibc's keeps it (see read.py).
    """
    pa.set_memory_pool(pa.system_memory_pool())
    return write_task(options, directory, by, numbered)


def write_task(
    options: ReadOptions, directory: str, by: tuple[str, ...], numbered: tuple[int, Sequence[Part]]
) -> list[Written]:
    """Some parts, in this process: one file for each date and hour in them. Raises: DataLoss, SourceError, OSError."""
    number, parts = numbered
    names = list(options.columns)
    if by and "timestamp" not in names:
        options = replace(options, columns=(*options.columns, "timestamp"))
    writers: dict[str, Any] = {}
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    attempt = os.urandom(16).hex()
    try:
        for group in _groups(batch for part in parts for batch in batches(options, part)):
            for below, table in _split(group, by):
                chosen = table.select(names)
                path = os.path.join(directory, below, f"part-{number:05d}-{attempt}.parquet")
                if path not in writers:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    writers[path] = pq.ParquetWriter(path, chosen.schema, compression="snappy")
                writers[path].write_table(chosen, row_group_size=max(1, chosen.num_rows))
                rows[path] = rows.get(path, 0) + chosen.num_rows
                if "value" in names:
                    sizes[path] = sizes.get(path, 0) + pc.sum(pc.binary_length(chosen.column("value"))).as_py()
    finally:
        for writer in writers.values():
            writer.close()
    return [Written(path, count, sizes.get(path, 0)) for path, count in rows.items()]


def batches(options: ReadOptions, part: Part) -> Iterator[Any]:
    """The record batches of one part, read in this process."""
    decoder = Decoder(part.queue.vhost, part.queue.queue, options.columns)
    with closing(options.source.open(part.queue)) as files:
        yield from PartReader(
            files,
            part,
            decoder,
            batch_rows=options.batch_rows,
            check_crc=options.check_crc,
            fail_on_data_loss=options.fail_on_data_loss,
        ).batches()


def _groups(found: Iterator[Any]) -> Iterator[Any]:
    """Batches gathered into tables of about GROUP_BYTES."""
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


def _split(table: Any, by: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The table as (directory, rows) for each date and hour that occurs."""
    if not by or not table.num_rows:
        yield "", table
        return
    times = table.column("timestamp")
    bounds = pc.min_max(times)
    unit = "hour" if "hour" in by else "day"
    first, last = (pc.floor_temporal(bounds[end], unit=unit) for end in ("min", "max"))
    if first.equals(last):
        yield _directory(first, by), table
        return
    floors = pc.floor_temporal(times, unit=unit)
    if by == ("hour",):  # the same hour of two days is one directory
        hours = pc.hour(floors)
        for hour in pc.unique(hours):
            yield f"hour={hour.as_py()}", table.filter(pc.equal(hours, hour))
        return
    for floor in pc.unique(floors):
        yield _directory(floor, by), table.filter(pc.equal(floors, floor))


def _directory(moment: pa.Scalar, by: tuple[str, ...]) -> str:
    when = moment.as_py()
    values = {"date": f"{when:%Y-%m-%d}", "hour": str(when.hour)}
    return os.path.join(*(f"{name}={values[name]}" for name in by))
