"""Targets of an export job: files in a directory, a Delta table, or a database table.

Each target makes a batch visible once, even after kills:

    Files      files in the checkpoint's staging directory get their final names by rename (checkpoint.py)
    Delta      one transaction of the table, with the export's id and the batch's number
    Database   one transaction with the rows, and with the batch's number in a second table

`has` tells whether a target has a batch whose outcome the job does not know.

Parquet without the JVM: through `format("amqp")` each row goes from Python to the JVM and is encoded there, which
costs more than reading and decoding together. If the rows are written unchanged (no `where`; directories only by
date and hour), Spark's tasks read parts and write files with pyarrow. Spark only distributes the tasks; a task has
several consecutive parts, writes one file per directory, and returns names and counts. `spread` makes tasks of
equal size, as many as there are cores or a small multiple.

The broker's time rises along the log, so nearly every piece belongs to one directory. A task that Spark runs twice,
or two at once, uses other file names each time; only the files named in its result count. Empty parts write no
file.
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
LABEL_MAX: Final = 120  # a file name has at most 255 bytes, which includes the offsets
_PART: Final = re.compile(r"part-(\d+)-[0-9a-f-]{32,36}(?:[-.]c(\d+))?\.[a-z0-9.]+")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


class TargetError(Exception):
    """The target cannot store the batch; the text says what to do."""


class ExportBatch(Protocol):
    """A batch that a job gives to a target.

    Attributes:
        rows: Returns the batch as a DataFrame, with the columns to partition by.
        plain: The rows are written unchanged, so `to_parquet` may be used.
        to_parquet: Writes the batch to Parquet files without the JVM.
    """

    plain: bool

    def rows(self) -> DataFrame: ...

    def to_parquet(self, directory: str, by: tuple[str, ...]) -> list[WrittenFile]: ...


class ExportTarget(ABC):
    """A place for exported batches.

    Attributes:
        batch_rows: Default number of offsets in a batch.
    """

    batch_rows = 1_000_000

    @abstractmethod
    def write(self, batch: ExportBatch, progress: Progress, label: str) -> None:
        """Write the batch, make it visible, and set the counts in `progress`.

        Args:
            label: Part of file names; equal for equal offsets.

        Raises: TargetError, OSError, and Spark's exceptions.
        """

    def by_tasks(self, plain: bool) -> bool:
        """Return whether the target uses `ExportBatch.to_parquet` for a batch, given its `plain`."""
        return False

    def has(self, progress: Progress) -> bool:
        """Return whether the target has a batch with an unknown outcome. Completes its renames if only these are
        missing.
        """
        return False

    def check_fresh(self, prefix: str) -> None:
        """Check, before a checkpoint's first batch, that the target has no files labelled `prefix`. Raises
        TargetError.
        """
        return

    def close(self) -> None:
        return


class Files(ExportTarget):
    """A directory of Parquet, JSON or CSV files.

    Args:
        partition_by: Columns that become directories `name=value`.
    """

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
            raise TargetError(f"--to {directory}: it is not writable")

    def check_fresh(self, prefix: str) -> None:
        pattern = re.compile(rf"{re.escape(prefix)}-(\d{{20}}-\d{{20}}|batch-\d{{8}})-[0-9a-f]{{8}}-.*")
        for path in self.directory.rglob(f"*.{self.kind}"):
            if pattern.fullmatch(path.name):
                raise TargetError(
                    f"{self.directory} has {path.name} of an export with another checkpoint, and all rows would be "
                    "there twice: use that --checkpoint, or another --to"
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
        """Write the rows with Spark's own writers."""
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
            # RFC 4180: a quote inside a text is doubled; an empty text is quoted, null is not.
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
                raise TargetError(f"Spark wrote a file with the unexpected name {path.name}")
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
    """A Delta table, written by the package deltalake. Readers must support Delta: other files are there, too."""

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
            return  # nothing that could be visible twice
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
    """A table of any database that SQLAlchemy supports, and a second table of its batches.

    Times are UTC. Their column has a zone if the database has such a type; SQLite and MySQL have none.
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
                    # A column without a zone, in a table made by an operator, gets the session's time.
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
            raise TargetError(f"the database refuses the batch: {error}") from error

    def has(self, progress: Progress) -> bool:
        from sqlalchemy import select
        from sqlalchemy.exc import SQLAlchemyError

        try:
            self._prepare()
            known = self.batches.c
            condition = (known.export == self.ledger.id) & (known.batch == progress.batch)
            with self.engine.connect() as connection:
                found = connection.execute(select(known.row_count, known.body_bytes).where(condition)).first()
        except SQLAlchemyError as error:
            raise TargetError(f"the database does not answer: {error}") from error
        if found is not None:
            progress.rows, progress.bytes = found
        return found is not None

    def close(self) -> None:
        self.engine.dispose()


def _tables(name: str, columns: list[tuple[str, str]]) -> tuple[Table, Table]:
    """Return the table of rows, for columns (name, Spark type), and the table of batches."""
    from sqlalchemy import TIMESTAMP, BigInteger, Column, DateTime, LargeBinary, MetaData, String, Table, Text

    time = DateTime(timezone=True).with_variant(TIMESTAMP(timezone=True), "oracle")  # Oracle's DateTime is a DATE
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
    """Return the columns for JSON or CSV, which have no bytes.

    `value` is text if it is UTF-8; otherwise it is null and `value_base64` is set. Other bytes are base64. In CSV,
    structs and maps are JSON.
    """
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
    """Convert a value of a Spark row for a database driver. Spark's times are in the zone of this process, without
    a zone.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def file_label(name: str) -> str:
    """Return a queue's or vhost's name as the start of a file name: valid in all file systems, and not hidden."""
    label = _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    label = label.lstrip("._") or "queue"
    if len(label) <= LABEL_MAX:
        return label
    return f"{label[: LABEL_MAX - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


__all__ = ["FORMATS", "CheckpointError", "Database", "Delta", "ExportTarget", "Files", "TargetError", "file_label"]


GROUP_BYTES: Final = 32 << 20
"""Approximate size of a row group before encoding; a task has a few of them in memory."""
TASK_BYTES: Final = 512 << 20
"""Largest number of bytes of log for one task, which are read again if it fails."""
TASK_BYTES_MIN: Final = 16 << 20
"""Smallest number of bytes for one task. A task costs some 20 ms in the JVM and 20 in its worker, which reads and
writes that much in 60 ms.
"""


class WrittenFile(NamedTuple):
    """A written file.

    Attributes:
        rows: Number of its rows.
        size_bytes: Size of the bodies; 0 without a column `value`.
    """

    path: str
    rows: int
    size_bytes: int


def write_parquet(
    spark: SparkSession, options: ReadOptions, parts: Sequence[LogPartition], directory: str, by: tuple[str, ...] = ()
) -> list[WrittenFile]:
    """Write the messages of the parts to files below `directory`, which every worker must reach.

    The columns are `options.columns`.

    Args:
        by: Values of `TIMES`, the outer directory first.

    Raises: Spark's exceptions when a task has failed too often.
    """
    if not parts:
        return []
    tasks = list(enumerate(spread(parts, spark.sparkContext.defaultParallelism)))
    work = partial(_in_worker, options, directory, by)
    found = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
    return [each for some in found for each in some]


def spread(parts: Sequence[LogPartition], cores: int) -> list[list[LogPartition]]:
    """Divide the parts into tasks of about equal size, in order.

    Each core gets equally many tasks, of at most TASK_BYTES. There are fewer tasks than cores only if they would be
    smaller than TASK_BYTES_MIN.
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
    """Call `write_task` in one of Spark's processes, with glibc's allocator.

    Each group of rows needs as much memory as the last one, which was freed. Arrow's own allocators return it to
    the kernel, which clears each page again; glibc keeps it (arrow.py).
    """
    pa.set_memory_pool(pa.system_memory_pool())
    return write_task(options, directory, by, numbered)


def write_task(
    options: ReadOptions, directory: str, by: tuple[str, ...], numbered: tuple[int, Sequence[LogPartition]]
) -> list[WrittenFile]:
    """Write some parts in this process: one file for each date and hour in them. Raises DataLoss, SourceError,
    OSError.
    """
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


def _split(table: Any, by: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (directory, rows) for each date and hour in the table."""
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
