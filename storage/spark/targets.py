"""Where an export job puts its batches: files in a directory, a Delta table, or a table of a database.

Each target takes one batch as a DataFrame and makes it seen once, whatever is killed when:

    Files      written below the checkpoint's staging directory; they get their names by rename (checkpoint.py). Parquet
               without a condition on the rows is written by the tasks themselves (targets.py), the rest by Spark
    Delta      one transaction of the table, with the export's id and the batch's number in it
    Database   one transaction: the rows, and the batch's number in a table beside

The latter two can be asked whether they have a batch, which a job does with one that it began and does not know the
end of.

Parquet without the JVM in the way: Spark's tasks read parts and write files by themselves, with pyarrow.

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

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpd.storage.spark.arrow import Decoder, PartReader
from amqpd.storage.spark.checkpoint import CheckpointError, ExportCheckpoint, Progress, move, sync_files
from amqpd.storage.spark.columns import TIMES
from amqpd.storage.spark.options import ReadOptions
from amqpd.storage.spark.plan import LogPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import Engine, Table


FORMATS: Final = ("parquet", "json", "csv", "delta")
CHUNK_ROWS: Final = 5000
LABEL_MAX: Final = 120  # a file's name has 255 bytes, and the offsets need their share
_PART: Final = re.compile(r"part-(\d+)-[0-9a-f-]{32,36}(?:[-.]c(\d+))?\.[a-z0-9.]+")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


class TargetError(Exception):
    """The target does not take what it is given; the text says what to do."""


class ExportBatch(Protocol):
    """What a job hands to a target.

    rows: as a DataFrame, with the columns to partition by. plain: nothing is to be done with the rows on the way, so
    that `to_parquet` may write them to Parquet without the JVM.
    """

    plain: bool

    def rows(self) -> DataFrame: ...

    def to_parquet(self, directory: str, by: tuple[str, ...]) -> list[WrittenFile]: ...


class ExportTarget(ABC):
    """Where an export puts its rows, each batch once.

    `batch_rows`: how many offsets make a batch unless it is said otherwise.
    """

    batch_rows = 1_000_000

    @abstractmethod
    def write(self, batch: ExportBatch, progress: Progress, label: str) -> None:
        """Makes the batch seen, and notes in `progress` how much it is.

        label: for names; the same for the same offsets. Raises: TargetError, OSError, and what Spark raises.
        """

    def by_tasks(self, plain: bool) -> bool:
        """Whether `Batch.to_parquet` serves, so that the JVM only hands out tasks. plain: as the batch's."""
        return False

    def has(self, progress: Progress) -> bool:
        """Whether a batch that was begun and not known to be finished is there. Renames, if that is what is left."""
        return False

    def check_fresh(self, prefix: str) -> None:
        """A checkpoint without a batch is about to export what is labelled `prefix`. Raises: TargetError."""
        return

    def close(self) -> None:
        """Gives back what is open."""
        return


class Files(ExportTarget):
    """A directory of Parquet, JSON or CSV files. partition_by: columns that become directories `name=value`."""

    def __init__(self, directory: Path, kind: str, partition_by: list[str], ledger: ExportCheckpoint) -> None:
        self.directory = directory
        self.kind = kind
        self.partition_by = partition_by
        self.ledger = ledger
        try:
            directory.mkdir(parents=True, exist_ok=True)
            writable = os.access(directory, os.W_OK | os.X_OK)
        except OSError as error:
            raise TargetError(f"--to {directory}: {error.strerror}") from error
        if not writable:
            raise TargetError(f"--to {directory}: it may not be written to")

    def check_fresh(self, prefix: str) -> None:
        theirs = re.compile(rf"{re.escape(prefix)}-(\d{{20}}-\d{{20}}|batch-\d{{8}})-[0-9a-f]{{8}}-.*")
        for path in self.directory.rglob(f"*.{self.kind}"):
            if theirs.fullmatch(path.name):
                raise TargetError(
                    f"{self.directory} holds {path.name} of an export with another checkpoint, and all of it would be "
                    "there twice: name that --checkpoint, or another --to"
                )

    def by_tasks(self, plain: bool) -> bool:
        return plain and self.kind == "parquet" and set(self.partition_by) <= set(TIMES)

    def write(self, batch: ExportBatch, progress: Progress, label: str) -> None:
        staging = self.ledger.attempt().absolute()
        if self.by_tasks(batch.plain):
            found = batch.to_parquet(str(staging), tuple(self.partition_by))
            progress.rows, progress.bytes = sum(each.rows for each in found), sum(each.size_bytes for each in found)
            self._stage(staging, [Path(each.path) for each in found], progress, label)
        else:
            self._save(batch.rows(), staging, progress)
            self._stage(staging, sorted(staging.rglob("part-*")), progress, label)
        move(progress.moves or [])

    def _save(self, rows: DataFrame, staging: Path, progress: Progress) -> None:
        """By Spark's own writers."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        size = f.sum(f.octet_length("value")) if "value" in rows.columns else f.lit(0)
        rows = rows.observe(seen, f.count(f.lit(1)).alias("rows"), f.coalesce(size, f.lit(0)).alias("bytes"))
        if self.kind in ("json", "csv"):
            rows = rows.select(*as_text(rows, self.kind))
        writer = rows.write.format(self.kind).mode("errorifexists")
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        if self.kind == "csv":
            # As RFC 4180 has it: a quote in a text is doubled, and what is empty is told from what is not there.
            writer = writer.options(header=True, escape='"', emptyValue='""', nullValue="")
        writer.save(str(staging))
        progress.rows, progress.bytes = int(seen.get["rows"]), int(seen.get["bytes"])

    def _stage(self, staging: Path, files: list[Path], progress: Progress, label: str) -> None:
        moves: list[list[str]] = []
        names: set[str] = set()
        sync_files(files, staging)
        for path in files:
            match = _PART.fullmatch(path.name)
            if match is None:
                raise TargetError(f"Spark wrote a file that is called {path.name}")
            piece = match[1] if not int(match[2] or 0) else f"{match[1]}-{match[2]}"
            final = self.directory / path.parent.relative_to(staging) / f"{label}-{self.ledger.id}-{piece}.{self.kind}"
            moves.append([str(path.absolute()), str(final.absolute())])
            names.add(str(final))
        if len(names) < len(moves):
            raise TargetError("two files of a batch would have one name")
        progress.moves = moves
        self.ledger.save()

    def has(self, progress: Progress) -> bool:
        if progress.moves is None:
            return False
        move(progress.moves)
        return True


class Delta(ExportTarget):
    """A Delta table, written by the package deltalake. A reader has to know Delta: other files lie there, too."""

    batch_rows = 100_000

    def __init__(self, directory: Path, partition_by: list[str], ledger: ExportCheckpoint) -> None:
        if find_spec("deltalake") is None:
            raise TargetError("--format delta needs the package deltalake: pip install deltalake")
        self.directory = directory
        self.partition_by = partition_by
        self.ledger = ledger

    def write(self, batch: ExportBatch, progress: Progress, label: str) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        table = batch.rows().toArrow()
        progress.rows = table.num_rows
        if "value" in table.column_names:
            progress.bytes = table.column("value").nbytes
        if table.num_rows == 0:
            return  # nothing that could be seen twice
        self.directory.mkdir(parents=True, exist_ok=True)
        write_deltalake(
            str(self.directory),
            table,
            mode="append",
            partition_by=self.partition_by or None,
            commit_properties=CommitProperties(app_transactions=[Transaction(self.ledger.id, progress.batch)]),
        )

    def has(self, progress: Progress) -> bool:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.directory)):
            return False
        version = DeltaTable(str(self.directory)).transaction_version(self.ledger.id)
        return version is not None and version >= progress.batch


class Database(ExportTarget):
    """A table of any database that SQLAlchemy knows. The batches' table stands beside it.

    Times are UTC. Their column has a zone where the database has such a type; SQLite and MySQL have none.
    """

    batch_rows = 100_000

    def __init__(self, url: str, table: str, columns: list[tuple[str, str]], ledger: ExportCheckpoint) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError

        self.ledger = ledger
        try:
            self.engine: Engine = create_engine(url)
        except ImportError as error:
            raise TargetError(f"--to: the database's driver is not installed: {error}") from error
        except (ArgumentError, NoSuchModuleError) as error:
            raise TargetError(f"--to: {error}") from error
        self.rows, self.batches = _tables(table, columns)

    def _prepare(self) -> None:
        self.rows.metadata.create_all(self.engine)

    def write(self, batch: ExportBatch, progress: Progress, label: str) -> None:
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        self._prepare()
        try:
            with self.engine.begin() as connection:
                if self.engine.dialect.name == "postgresql":
                    # A table that an operator made may have a column without a zone: it gets the session's time.
                    connection.execute(text("SET LOCAL TIME ZONE 'UTC'"))
                progress.rows = progress.bytes = 0
                chunk: list[dict[str, Any]] = []
                for row in batch.rows().toLocalIterator(prefetchPartitions=True):
                    chunk.append({name: _plain(value) for name, value in row.asDict().items()})
                    progress.rows += 1
                    progress.bytes += len(chunk[-1].get("value") or b"")
                    if len(chunk) == CHUNK_ROWS:
                        connection.execute(self.rows.insert(), chunk)
                        chunk = []
                if chunk:
                    connection.execute(self.rows.insert(), chunk)
                done = {"row_count": progress.rows, "body_bytes": progress.bytes, "offsets": label}
                key = {"export": self.ledger.id, "batch": progress.batch}
                connection.execute(self.batches.insert().values(**key, **done))
        except SQLAlchemyError as error:
            raise TargetError(f"the database does not take the batch: {error}") from error

    def has(self, progress: Progress) -> bool:
        from sqlalchemy import select
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._prepare()
            known = self.batches.c
            mine = (known.export == self.ledger.id) & (known.batch == progress.batch)
            with self.engine.connect() as connection:
                found = connection.execute(select(known.row_count, known.body_bytes).where(mine)).first()
        except SQLAlchemyError as error:
            raise TargetError(f"the database does not answer: {error}") from error
        if found is not None:
            progress.rows, progress.bytes = found
        return found is not None

    def close(self) -> None:
        self.engine.dispose()


def _tables(name: str, columns: list[tuple[str, str]]) -> tuple[Table, Table]:
    """The rows' table, for columns (name, Spark type), and the batches'."""
    from sqlalchemy import TIMESTAMP, BigInteger, Column, DateTime, LargeBinary, MetaData, String, Table, Text

    time = DateTime(timezone=True).with_variant(TIMESTAMP(timezone=True), "oracle")  # whose DateTime is a DATE
    kinds: dict[str, Any] = {"binary": LargeBinary(), "bigint": BigInteger(), "timestamp": time}
    metadata = MetaData()
    rows = Table(name, metadata, *(Column(each, kinds.get(kind, Text())) for each, kind in columns))
    batches = Table(
        f"{name}_batches",
        metadata,
        Column("export", String(32), primary_key=True),
        Column("batch", BigInteger(), primary_key=True, autoincrement=False),
        Column("offsets", Text()),
        Column("row_count", BigInteger()),
        Column("body_bytes", BigInteger()),
    )
    return rows, batches


def as_text(rows: DataFrame, kind: str) -> list[Any]:
    """The columns for JSON or CSV, which have no bytes: `value` is a text where it is UTF-8, else null and there is
    `value_base64`; other bytes are base64; in CSV, structs and maps are JSON."""
    from pyspark.sql import functions as f

    found: list[Any] = []
    for field in rows.schema.fields:
        column = rows[field.name]
        type_name = field.dataType.typeName()
        if field.name == "value":
            text = f.try_validate_utf8(column.cast("string"))
            found += [text.alias("value"), f.when(text.isNull(), f.base64(column)).alias("value_base64")]
        elif type_name == "binary":
            found.append(f.base64(column).alias(field.name))
        elif kind == "csv" and type_name in ("struct", "map"):
            found.append(f.to_json(column).alias(field.name))
        else:
            found.append(column)
    return found


def _plain(value: Any) -> Any:
    """A value of a Spark row for a database driver. Spark gives times in the zone of this process, without a zone."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def file_label(name: str) -> str:
    """A queue's or vhost's name as the beginning of a file's: what no file system minds, and no reader hides."""
    label = _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    label = label.lstrip("._") or "queue"
    if len(label) <= LABEL_MAX:
        return label
    return f"{label[: LABEL_MAX - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


__all__ = ["FORMATS", "CheckpointError", "Database", "Delta", "ExportTarget", "Files", "TargetError", "file_label"]


GROUP_BYTES: Final = 32 << 20
"""A row group is about that large before it is encoded: a few of these are what a task holds in memory."""
TASK_BYTES: Final = 512 << 20
"""Of log for one task, at most: that much is read again where one fails."""
TASK_BYTES_MIN: Final = 16 << 20
"""A task costs some 20 ms of the JVM and as much of its worker, which read and write that much in 60."""


class WrittenFile(NamedTuple):
    """One file. rows: in it; size_bytes: of the bodies, 0 where there is no column `value`."""

    path: str
    rows: int
    size_bytes: int


def write_parquet(
    spark: SparkSession, options: ReadOptions, parts: Sequence[LogPartition], directory: str, by: tuple[str, ...] = ()
) -> list[WrittenFile]:
    """Writes the parts below `directory`, which every worker must reach. by: of `TIMES`, the outer directory first.

    The columns are `options.columns`. Raises: what Spark raises when a task has failed as often as it may.
    """
    if not parts:
        return []
    tasks = list(enumerate(spread(parts, spark.sparkContext.defaultParallelism)))
    work = partial(_in_worker, options, directory, by)
    found = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
    return [each for some in found for each in some]


def spread(parts: Sequence[LogPartition], cores: int) -> list[list[LogPartition]]:
    """The parts in their order, cut into tasks of about one size: as many for each core, of at most TASK_BYTES.

    Fewer than there are cores only where they would be smaller than TASK_BYTES_MIN.
    """
    total = sum(part.size_bytes for part in parts)
    rounds = -(-total // (cores * TASK_BYTES))
    count = min(len(parts), max(1, min(cores * rounds, total // TASK_BYTES_MIN)))
    tasks: list[list[LogPartition]] = [[] for _ in range(count)]
    before = 0
    for part in parts:
        middle = before + part.size_bytes / 2
        tasks[min(count - 1, int(middle * count / max(1, total)))].append(part)
        before += part.size_bytes
    return [task for task in tasks if task]


def _in_worker(
    options: ReadOptions, directory: str, by: tuple[str, ...], numbered: tuple[int, Sequence[LogPartition]]
) -> list[WrittenFile]:
    """`write_task` in a process of Spark's, with the allocator that suits it.

    What a group took is freed at once when it is written, and wanted again for the next. Arrow's own allocators return
    that to the kernel, which clears each page anew; glibc's keeps it (see arrow.py).
    """
    pa.set_memory_pool(pa.system_memory_pool())
    return write_task(options, directory, by, numbered)


def write_task(
    options: ReadOptions, directory: str, by: tuple[str, ...], numbered: tuple[int, Sequence[LogPartition]]
) -> list[WrittenFile]:
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
    return [WrittenFile(path, count, sizes.get(path, 0)) for path, count in rows.items()]


def batches(options: ReadOptions, part: LogPartition) -> Iterator[Any]:
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
