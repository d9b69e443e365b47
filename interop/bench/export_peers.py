"""Exports beside their peers, as rows of `make bench-export`: plain pyarrow, and Spark's source on Apache Kafka.

    python -m interop.bench.export_peers [--records 1000000] [--rounds 3] [--no-spark]

There are two logs: orders of 1 KiB with 2 headers, and tasks of Celery with 88 bytes and 19 headers. For each:

    plain       pyarrow writes rows to Snappy Parquet that are decoded and in memory, in one thread: only the writing
    export      the command `amqpctl export` to the same columns, from its start to its end
    kafka       a program of Spark: format("kafka") to Snappy Parquet, from its start to its end. Kafka's topic has the
                segments of the queue, and Spark two tasks

Both begin with nothing running. Rounds alternate; the cheapest run of each counts for CPU seconds,
and the quickest for rates.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds

from amqpd.storage.export.columns import BASE
from amqpd.storage.export.file_writer import ParquetOutput, groups
from amqpd.storage.export.files import DirectorySource
from amqpd.storage.export.worker_pool import use_system_allocator

from .export_decode import Load, Table, append_all, batches, celery_tasks, write_log
from .kafka_sides import ApacheKafka, jars

BOTH: Final = (*BASE, "properties", "headers")
CASES: Final = (("orders, base columns", "orders", BASE, 1.3), ("tasks, base columns", "tasks", BASE, 1.3),
                ("tasks, properties and headers", "tasks", BOTH, 3.0))  # fmt: skip
"""Name, log, columns, and how many times the CPU seconds of plain pyarrow an export may need at most."""
RATE_MIN: Final = 3.0
"""How many times the rate of Spark's Kafka source an export must have at least."""
SPARK: Final = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", sys.argv[1])
spark = builder.getOrCreate()
source = spark.read.format("kafka").option("kafka.bootstrap.servers", sys.argv[2]).option("subscribe", "bench")
source = source.option("startingOffsets", "earliest").option("minPartitions", "2")
source.option("includeHeaders", sys.argv[4]).load().write.parquet(sys.argv[3])
spark.stop()
"""


class BenchFailed(Exception):
    """A run has other rows than it must have, or a program failed; the text says which."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.bench.export_peers", description="exports and their peers")
    parser.add_argument("--records", type=int, default=1_000_000, help="in each log (default one million)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row (default 3)")
    parser.add_argument("--no-spark", action="store_true", help="without Kafka and Spark")
    given = parser.parse_args(argv)
    use_system_allocator()
    scratch = Path(tempfile.mkdtemp(prefix="amqpd-bench-"))
    load = Load()
    table = Table(given.records, load)
    try:
        write_log(str(scratch / "orders"), given.records, 1024)
        append_all(str(scratch / "tasks"), celery_tasks(given.records))
        _say(f"{given.records:,} records, load {os.getloadavg()[0]:.1f}\n")
        table.head()
        for what, log, columns, _ in CASES:
            _beside_plain(table, what, scratch / log, columns, given.rounds)
        if not given.no_spark:
            for log in ("orders", "tasks"):
                _beside_kafka(table, log, scratch, given.rounds)
        _compare(table, with_spark=not given.no_spark)
        return 0
    except BenchFailed as error:
        _say(f"cannot measure: {error}")
        return 2
    finally:
        load.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _beside_plain(table: Table, what: str, log: Path, columns: Sequence[str], rounds: int) -> None:
    target = log.with_name("target")
    for _ in range(rounds):
        _plain(table, what, list(groups(batches(str(log), columns))), target)
        table.run(f"export, {what}", lambda: _export(log, target, columns))
        _check(target, table.count)


def _plain(table: Table, what: str, decoded: list[Any], target: Path) -> None:
    table.run(f"plain, {what}", lambda: _write(decoded, target))
    _check(target, table.count)


def _write(decoded: list[Any], target: Path) -> None:
    """Write row groups to one file, with the settings of an export."""
    target.mkdir()
    output = ParquetOutput(str(target / "plain.parquet"), decoded[0].schema)
    for each in decoded:
        output.write(each)
    output.close()


def _export(log: Path, target: Path, columns: Sequence[str]) -> None:
    options = ["--queue", "bench", "--to", str(target), "--columns", ",".join(columns)]
    _run([sys.executable, "-P", "-m", "amqpd.cli", "-q", "--data-dir", str(log), "export", *options])
    shutil.rmtree(f"{target}.checkpoint")


def _beside_kafka(table: Table, log: str, scratch: Path, rounds: int) -> None:
    kafka = ApacheKafka(scratch / f"kafka-{log}")
    try:
        kafka.start()
        kafka.create_topic("bench", {"retention.ms": "-1", "retention.bytes": "-1"})
        kafka.stop()
        _put_segments(scratch / log, kafka.partition_directory("bench"))
        kafka.start()
        target = scratch / "target"
        for _ in range(rounds):
            table.run(f"kafka, {log}", lambda: _spark(kafka.bootstrap, target, with_headers=log == "tasks"))
            _check(target, table.count)
            columns = BOTH if log == "tasks" else BASE
            table.run(f"export beside kafka, {log}", lambda: _export(scratch / log, target, columns))  # noqa: B023
            _check(target, table.count)
    finally:
        kafka.stop()


def _put_segments(log: Path, partition: Path) -> None:
    """Replace the empty log of a Kafka topic by that of a queue. Kafka makes its indexes again."""
    (queue,) = DirectorySource(str(log)).queues("/")
    for path in partition.glob("0*"):
        path.unlink()
    for path in Path(queue.place).glob("*.log"):
        shutil.copy(path, partition)


def _spark(bootstrap: str, target: Path, *, with_headers: bool) -> None:
    found = sorted(jars().parents[1].glob("kafka-spark/*.jar"))
    if not found:
        raise BenchFailed("no jars of Spark's Kafka source: make kafka-spark")
    arguments = [",".join(map(str, found)), bootstrap, str(target), str(with_headers).lower()]
    _run([sys.executable, "-P", "-c", SPARK, *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BenchFailed(done.stderr[-2000:])


def _check(target: Path, count: int) -> None:
    """Compare the number of rows, and remove them."""
    found = ds.dataset(target, format="parquet").count_rows()
    shutil.rmtree(target)
    if found != count:
        raise BenchFailed(f"{found:,} rows instead of {count:,}")


def _compare(table: Table, *, with_spark: bool) -> None:
    """Print the ratios beside what is wanted. No run fails by them: README.md has what is missing, and why."""
    _say("\nCPU seconds of the export against those of plain pyarrow:")
    for what, _, _, limit in CASES:
        ratio = table.cpu[f"export, {what}"] / table.cpu[f"plain, {what}"]
        _say(f"  {what}: {ratio:.2f} times (wanted: at most {limit})")
    if with_spark:
        _say("Rate of the export against Spark's Kafka source:")
        for log in ("orders", "tasks"):
            ratio = table.wall[f"kafka, {log}"] / table.wall[f"export beside kafka, {log}"]
            _say(f"  {log}: {ratio:.1f} times (wanted: at least {RATE_MIN:.0f})")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
