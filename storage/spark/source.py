"""Spark's data source `amqp`: `spark.read.format("amqp")` and `spark.readStream.format("amqp")`.

    driver: options -> snapshots -> parts          (options.py, offsets.py, plan.py)
    worker: part -> borders -> Arrow -> batches    (arrow.py, decode.py)

Spark 4.3's filter push-down for Python sources gives wrong results when two queries share a DataFrame. So nothing
is pushed down: ranges (`startingTimestamp` and others) and columns are options. A DataFrame is planned once and
shows the queue at that moment; call `load()` again to see more. Spark calls `commit` one trigger late and not after
the last one, so nothing depends on it.

Spark sends a pickled reader to workers. The reader has only the options and opens files where it runs. pyspark
finds the class through the module `pyspark_amqp`, or through `register`.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import DataType, StructType

from amqpd.storage.export import offsets
from amqpd.storage.export.arrow import batches
from amqpd.storage.export.columns import COLUMNS, UnknownColumn, check_columns, ddl
from amqpd.storage.export.options import BadOption, ReadOptions, parse
from amqpd.storage.export.plan import LogPartition


class AmqpPartition(InputPartition):
    """One part for one task."""

    def __init__(self, part: LogPartition) -> None:
        super().__init__(part)
        self.part = part


class AmqpDataSource(DataSource):
    """The format `amqp`. Options: options.py for reading, sink.py for writing."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> str:
        return ddl(self._read_options().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return AmqpReader(self._read_options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return AmqpStreamReader(self._read_options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from amqpd.storage.spark import sink

        return sink.batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from amqpd.storage.spark import sink

        return sink.stream_writer(dict(self.options), schema, overwrite)

    def _read_options(self) -> ReadOptions:
        options: MutableMapping[str, str] = self.options
        return parse(dict(options))


class _Columns:
    """The columns of a query. The user's schema may select among our columns, with our types."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.wanted = schema
        for field in schema.fields:
            check_columns([field.name])
            kind = COLUMNS[field.name]
            if _kind(field.dataType) != kind:
                raise UnknownColumn(f"column '{field.name}' is {kind}, not {_kind(field.dataType)}")

    def read_part(self, part: LogPartition) -> Iterator[Any]:
        return batches(self.options, part, to_arrow_schema(self.wanted, timezone="UTC"))


class AmqpReader(_Columns, DataSourceReader):
    """A batch query: a snapshot of the selected queues."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.max_offsets_per_trigger is not None:
            raise BadOption("maxOffsetsPerTrigger: only for streams")

    def partitions(self) -> list[InputPartition]:
        return [AmqpPartition(part) for part in offsets.batch_parts(self.options)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Without parts, Spark calls this once with None.
        if isinstance(partition, AmqpPartition):
            yield from self.read_part(partition.part)


class AmqpStreamReader(_Columns, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over the selected queues. One object stays on the driver during the query; `read` is stateless."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.ending is not None or options.ending_timestamp_ms is not None:
            raise BadOption("endingOffsets and endingTimestamp: only for batches")
        self._target: offsets.StreamOffset | None = None

    def initialOffset(self) -> offsets.StreamOffset:  # noqa: N802 - Spark's name
        return offsets.initial(self.options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        per_trigger = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if per_trigger is None else ReadMaxRows(per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = offsets.latest(self.options)

    def latestOffset(self, start: offsets.StreamOffset, limit: ReadLimit) -> offsets.StreamOffset:  # noqa: N802
        ends = offsets.latest(self.options) if self._target is None else self._target
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets.limited(self.options, start, ends, rows_max)

    def reportLatestOffset(self) -> offsets.StreamOffset:  # noqa: N802 - Spark's name
        return offsets.latest(self.options)

    def partitions(self, start: offsets.StreamOffset, end: offsets.StreamOffset) -> list[InputPartition]:
        return [AmqpPartition(part) for part in offsets.stream_parts(self.options, start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        if isinstance(partition, AmqpPartition):
            yield from self.read_part(partition.part)

    def commit(self, end: offsets.StreamOffset) -> None:
        """Do nothing: Spark commits one trigger late, and does not commit the last batch of a run."""


def _kind(kind: DataType) -> str:
    """Return the type as in columns.py. Spark's own text omits fields of a long struct."""
    if isinstance(kind, StructType):
        return "struct<" + ",".join(f"{field.name}:{_kind(field.dataType)}" for field in kind.fields) + ">"
    return str(kind.simpleString())


def register(spark: SparkSession) -> None:
    """Make `format("amqp")` known to a session whose Python path lacks `pyspark_amqp`."""
    spark.dataSource.register(AmqpDataSource)
