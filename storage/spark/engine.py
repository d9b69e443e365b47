"""Spark as the engine of an export: conditions in SQL, and executors on other machines.

Without a condition Spark only distributes the tasks. They read parts and write files with pyarrow, as the worker
processes of `PyarrowEngine` do: through `format("amqp")` each row would go from Python to the JVM and be encoded
there, which costs more than reading and decoding together. With a condition, and for databases, rows go
through the JVM.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpd.storage.export.columns import COLUMNS, TIMES
from amqpd.storage.export.engine import EngineError, ExportEngine, ExportRows, WrittenBatch, spread
from amqpd.storage.export.file_writer import FileLayout, WrittenFile, write_task
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.export.worker_pool import use_system_allocator
from amqpd.storage.spark.session import CannotRunSpark, spark_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from amqpd.storage.export.options import ReadOptions
    from amqpd.storage.export.plan import LogPartition

_TIMES_SQL: Final = dict(zip(TIMES, ("to_date(timestamp)", "hour(timestamp)"), strict=True))
SETTINGS: Final = {
    "spark.sql.maxConcurrentOutputFileWriters": "20",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as pyarrow's files have it
    "spark.sql.chunkBase64String.enabled": "false",  # no line breaks in base64
}


class SparkEngine(ExportEngine):
    """Runs batches with Spark. Methods also raise Spark's exceptions.

    Args:
        log: File for the output of the JVM.
        rows_in_jvm: Rows go through the JVM, so it compiles more.
        session: A session, which stays open. None: `start` starts one.
        starting: Called before Spark is started, which takes seconds.
    """

    def __init__(
        self,
        log: Path,
        *,
        master: str = "local[*]",
        memory: str = "1g",
        rows_in_jvm: bool = False,
        session: SparkSession | None = None,
        starting: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._master = master
        self._memory = memory
        self._rows_in_jvm = rows_in_jvm
        self._spark = session
        self._owns_session = session is None
        self._starting = starting

    def start(self) -> None:
        self._session()

    def _session(self) -> SparkSession:
        if self._spark is not None:
            return self._spark
        self._starting()
        handler = signal.getsignal(signal.SIGINT)
        try:
            self._spark = spark_session(
                self._master,
                name="amqpctl export",
                memory=self._memory,
                quick=not self._rows_in_jvm,
                settings=SETTINGS,
                log=self._log,
                shielded=True,
            )
        except CannotRunSpark as error:
            raise EngineError(str(error)) from error
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)  # pyspark has set its own handler, which aborts the batch
        self._spark.sparkContext.setLogLevel("ERROR")
        # These loggers repeat raised errors, one of them as JSON with the JVM's hundred lines.
        for name in ("SQLQueryContextLogger", "py4j"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        return self._spark

    def has_ended(self, error: Exception) -> bool:
        if not self._owns_session:
            return False
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        return isinstance(error, (Py4JError, PySparkException, EngineError))

    def close(self) -> None:
        if self._spark is not None and self._owns_session:
            from py4j.protocol import Py4JError

            try:
                self._spark.stop()
            except (Py4JError, OSError) as error:
                logging.getLogger(__name__).debug("Spark had ended already: %s", error)

    # -- rows

    def check(self, rows: ExportRows) -> None:
        if rows.where:
            self._frame(rows)

    def write_files(self, rows: ExportRows, layout: FileLayout) -> WrittenBatch:
        with _data_loss():
            return self._write_with_spark(rows, layout) if rows.where else self._write_in_tasks(rows, layout)

    def _write_in_tasks(self, rows: ExportRows, layout: FileLayout) -> WrittenBatch:
        context = self._session().sparkContext
        options, parts = rows.parts()
        tasks = list(enumerate(spread(parts, context.defaultParallelism, rows.task_bytes_min)))
        if not tasks:
            return WrittenBatch.of([])
        work = partial(_in_worker, options, layout)
        found = context.parallelize(tasks, len(tasks)).map(work).collect()
        return WrittenBatch.of([each for some in found for each in some])

    def _write_with_spark(self, rows: ExportRows, layout: FileLayout) -> WrittenBatch:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        frame, kind, seen = self._frame(rows), layout.kind, Observation()
        size = f.sum(f.octet_length("value")) if "value" in frame.columns else f.lit(0)
        frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"), f.coalesce(size, f.lit(0)).alias("bytes"))
        if kind in ("json", "csv"):
            frame = frame.select(*as_text(frame, kind))
        by = list(layout.partition_by)
        if layout.keeps_columns:  # Spark takes the columns of directories out of the files
            by = [name if name in TIMES else f"by_{name}" for name in by]
            frame = frame.withColumns({f"by_{name}": frame[name] for name in layout.partition_by if name not in TIMES})
        writer = frame.write.format(kind).mode("errorifexists")
        if by:
            writer = writer.partitionBy(*by)
        if kind == "csv":
            # RFC 4180: a quote inside a text is doubled; an empty text is quoted, null is not.
            writer = writer.options(header=True, escape='"', emptyValue='""', nullValue="")
        writer.save(layout.directory)
        paths = [str(path) for path in Path(layout.directory).rglob("part-*")]
        return WrittenBatch(paths, int(seen.get["rows"]), int(seen.get["bytes"]))

    def dicts(self, rows: ExportRows) -> Iterator[dict[str, Any]]:
        frame = self._frame(rows)
        nested = {name for name in frame.columns if "<" in COLUMNS.get(name, "")}
        frame = frame.selectExpr(*(f"to_json(`{each}`) AS `{each}`" if each in nested else f"`{each}`"
                                   for each in frame.columns))  # fmt: skip
        with _data_loss():
            for row in frame.toLocalIterator(prefetchPartitions=True):
                yield {name: plain_value(value) for name, value in row.asDict().items()}

    def _frame(self, rows: ExportRows) -> DataFrame:
        """Return the filtered rows, with the columns to partition by."""
        result: DataFrame | None = None
        for read in rows.reads:
            part = self._session().read.format("amqp").options(**read).load()
            result = part if result is None else result.unionByName(part)
        assert result is not None  # a batch has offsets
        if rows.where:
            result = result.where(rows.where)
        columns = [f"`{name}`" for name in rows.columns]
        columns += [f"{_TIMES_SQL[name]} AS {name}" for name in rows.partition_by if name in TIMES]
        return result.selectExpr(*columns)


def _in_worker(
    options: ReadOptions, layout: FileLayout, numbered: tuple[int, Sequence[LogPartition]]
) -> list[WrittenFile]:
    """Call `write_task` in one of Spark's processes."""
    use_system_allocator()
    return write_task(options, layout, numbered)


@contextmanager
def _data_loss() -> Iterator[None]:
    """Raise a DataLoss of a task, which arrives as text inside one of Spark's exceptions, as a DataLoss."""
    try:
        yield
    except DataLoss:
        raise
    except Exception as error:
        result = str(error).partition(f".{DataLoss.__name__}: ")[2]
        if result:
            raise DataLoss(result.splitlines()[0]) from error
        raise


def as_text(rows: DataFrame, kind: str) -> list[Any]:
    """Return the columns for JSON or CSV, which have no bytes, as file_writer.py writes them."""
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


def plain_value(value: Any) -> Any:
    """Convert a value of a Spark row for a database driver. Spark's times are in the zone of this process, without
    a zone.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value
