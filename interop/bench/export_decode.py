"""`make bench-export`: the cost of decoding and exporting on this machine, as a table.

The store itself writes a log of records of 1 KiB (JSON that Snappy halves, 16 routing keys, 64 header tables). Then:

    decode      the log to Arrow in this process, without Spark: base columns, with and without checksums, and more
    plain       the log to Snappy Parquet by pyarrow in this process, with the same columns and settings: the lower
                bound of an export's cost
    celery      header tables of as many Celery tasks to Arrow's map, without a log
    job         the job of `amqpctl export` on local[2], Parquet: its tasks write with pyarrow (direct.py)
    rows        the log to Snappy Parquet through Spark's rows and writer, like any query, and to no sink

Warm means that the JVM and its Python workers run and have done the same once. Runs of `plain` and `job` alternate, and
the cheapest of each are compared, because other load on the machine can only add to the cost.

CPU seconds are those of this process and its descendants (the JVM, Python workers), from /proc, so they are comparable
on a busy machine too. RSS is the sum over these processes, sampled four times a second, without shared pages (PSS).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from amqpd.protocol.field_table import encode_table
from amqpd.protocol.properties import Properties, encode_properties
from amqpd.storage.export import decode
from amqpd.storage.export.arrow import Decoder, PartReader, headers_map
from amqpd.storage.export.columns import BASE
from amqpd.storage.export.engine import ExportEngine, PyarrowEngine
from amqpd.storage.export.file_writer import FileLayout, write_task
from amqpd.storage.export.files import DirectorySource
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.offsets import batch_parts
from amqpd.storage.export.options import parse
from amqpd.storage.export.plan import Snapshot
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.spark.engine import SparkEngine
from amqpd.storage.spark.session import spark_session
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADERS = [*BASE, "headers", "raw_headers"]
SILENT = Path(os.devnull)  # Spark's messages would appear in the middle of the table
CELERY_TABLES = 50_000
PROPERTIES = [*BASE, "properties", "raw_properties"]


def write_log(directory: str, count: int, size: int) -> None:
    """Create a data directory with one queue `bench` of `count` messages with bodies of `size` bytes."""
    append_all(directory, _orders(count, size))


def append_all(directory: str, messages: Iterable[tuple[RecordRoute, bytes, bytes]]) -> None:
    """Create a data directory with one queue `bench` of messages: route, properties, body."""
    posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def turn() -> None:
        storage.commits.end_of_turn()
        while posted:
            call, arguments = posted.pop(0)
            call(*arguments)

    storage = Storage(directory, post=lambda call, *arguments: posted.append((call, arguments)), inline=True)
    _, store = storage.create_queue("v", "bench", "/")
    for number, (route, properties, body) in enumerate(messages, 1):
        store.append_parts(route, properties, body, True)
        if number % 1000 == 0:
            turn()
    turn()
    storage.close(clean=True)


def _orders(count: int, size: int) -> Iterator[tuple[RecordRoute, bytes, bytes]]:
    routes = [RecordRoute(b"orders", b"eu.%d" % number) for number in range(16)]
    properties = [
        encode_properties(
            Properties("application/json", None, {"tenant": f"t{number}", "trace": f"{number:032x}"}, 2, type="order")
        )
        for number in range(64)
    ]
    line = b'{"order": %012d, "customer": "c%06d", "amount": %d.%02d, "lines": ['
    seeded = random.Random(7)
    item = '{"sku": "%08x", "quantity": %d, "price": %d.%02d, "batch": "%016x"}, '
    draws = [[seeded.getrandbits(32), seeded.randrange(9), seeded.randrange(500), seeded.randrange(100),
              seeded.getrandbits(64)] for _ in range(1 << 16)]  # fmt: skip
    lines = "".join(item % tuple(draw) for draw in draws).encode()
    for number in range(count):
        head = line % (number, number % 9973, number % 500, number % 100)
        start = number * 7919 % (len(lines) - size)
        yield routes[number % 16], properties[number % 64], (head + lines[start : start + size])[:size]


def celery_tasks(count: int) -> Iterator[tuple[RecordRoute, bytes, bytes]]:
    """Yield tasks as Celery sends them: 19 headers, a body of some 88 bytes."""
    route = RecordRoute(b"", b"bench")
    rest = b'"EUR"], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    properties = [
        encode_properties(
            Properties(
                "application/json", "utf-8", celery_headers(number), 2, 0, f"{number:032x}", f"{number % 9:032x}"
            )
        )
        for number in range(CELERY_TABLES)
    ]
    for number in range(count):
        yield route, properties[number % CELERY_TABLES], b"[[%07d, " % number + rest


def batches(directory: str, columns: Sequence[str], *, check_crc: bool = True) -> Iterator[Any]:
    """Yield the log's record batches, read in this process."""
    source = DirectorySource(directory)
    (queue,) = source.queues("/")
    with ExitStack() as stack:
        files = stack.enter_context(closing(source.open(queue)))
        snapshot = Snapshot(files, queue)
        for part in snapshot.parts(snapshot.start, snapshot.end):
            yield from PartReader(files, part, Decoder("/", "bench", columns), check_crc=check_crc).batches()


class Load:
    """CPU seconds and memory of this process and its descendants."""

    def __init__(self) -> None:
        self.peak_rss_bytes = 0
        self._stop = threading.Event()
        self._seen: dict[int, float] = {}
        self._own_s = 0.0  # the cost of the sampling itself
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def close(self) -> None:
        """End the sampling."""
        self._stop.set()
        self._sampler.join()

    def cpu_s(self) -> float:
        """Return the user and system time so far, including processes that ended after they were seen."""
        self._note(_family())
        return sum(self._seen.values()) - self._own_s

    def _note(self, family: list[int]) -> None:
        for pid in family:
            used = _cpu_s(pid)
            if used is not None:
                self._seen[pid] = max(self._seen.get(pid, 0.0), used)

    def _sample(self) -> None:
        while not self._stop.wait(0.25):
            family = _family()
            self.peak_rss_bytes = max(self.peak_rss_bytes, sum(map(_pss_bytes, family)))
            self._note(family)
            self._own_s = time.thread_time()


def _family() -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text("ascii", "replace")
        except OSError:
            continue
        children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def _cpu_s(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


class Table:
    """A table whose rows are printed as they are measured.

    Attributes:
        cpu: CPU seconds of the cheapest run of each row.
        wall: Seconds of its quickest run.
    """

    def __init__(self, count: int, load: Load) -> None:
        self.count = count
        self.load = load
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}

    def head(self) -> None:
        """Print the head of the table."""
        _say("| what | records/s | CPU seconds | records per CPU second | peak memory, MiB |\n|---|---|---|---|---|")

    def run(self, what: str, work: Callable[[], object]) -> None:
        """Run the work and print its row."""
        self.load.peak_rss_bytes = 0
        cpu, wall = self.load.cpu_s(), time.perf_counter()
        work()
        wall, cpu = time.perf_counter() - wall, self.load.cpu_s() - cpu
        time.sleep(0.3)
        self.cpu[what] = min(cpu, self.cpu.get(what, cpu))
        self.wall[what] = min(wall, self.wall.get(what, wall))
        peak = self.load.peak_rss_bytes >> 20
        _say(f"| {what} | {self.count / wall:,.0f} | {cpu:.2f} | {self.count / max(cpu, 0.01):,.0f} | {peak:,} |")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _decode(directory: str, columns: Sequence[str], check_crc: bool = True) -> Callable[[], None]:
    def work() -> None:
        for _ in batches(directory, columns, check_crc=check_crc):
            pass

    return work


def _plain(directory: str, target: str, columns: Sequence[str]) -> Callable[[], None]:
    """The simplest program: gather row groups and write one file per segment, in one thread."""

    def work() -> None:
        options = parse({"path": directory, "queue": "bench", "columns": ",".join(columns), "splitBytes": str(1 << 40)})
        for number, part in enumerate(batch_parts(options)):
            write_task(options, FileLayout(target), (number, [part]))

    return work


def _job(spark: SparkSession | None, directory: str, target: str, columns: Sequence[str], queue: str = "bench") -> None:
    """Export the whole queue into a new directory, then delete the output. Without a session pyarrow exports it."""
    check = f"{target}.checkpoint"
    options = ExportOptions({"path": directory}, "/", queue, target, check, columns=tuple(columns))
    try:
        engine: ExportEngine = (
            PyarrowEngine() if spark is None else SparkEngine(Path(check, "spark.log"), session=spark)
        )
        ExportJob(options, engine, lambda report: None, lambda: False).run()
    finally:
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(check, ignore_errors=True)


def celery_headers(number: int) -> dict[str, object]:
    """Return the headers of a task as Celery 5 sends them (protocol 2), with unique ids."""
    identity = f"{number:08x}-5d0a-4c1e-9f3b-{number:012x}"
    return {
        "lang": "py", "task": "shop.tasks.charge", "id": identity, "shadow": None, "eta": None, "expires": None,
        "group": None, "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": identity,
        "parent_id": None, "argsrepr": f"({number}, 'EUR')", "kwargsrepr": "{}", "origin": "gen4711@web-1",
        "ignore_result": False, "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
    }  # fmt: skip


def _celery(count: int) -> Callable[[], None]:
    """Decode the header tables of `count` different tasks into Arrow's map."""
    tables = pa.array([encode_table(celery_headers(number)) for number in range(CELERY_TABLES)])

    def work() -> None:
        for _ in range(max(1, count // CELERY_TABLES)):
            headers_map(tables)

    return work


def in_process(table: Table, directory: str) -> None:
    """Measure decoding in one process and one thread."""
    _decode(directory, BASE)()
    for _ in range(3):
        table.run("decode, base columns", _decode(directory, BASE))
    table.run("decode, base columns, no checksums", _decode(directory, BASE, False))
    table.run("decode, offset and timestamp", _decode(directory, ["offset", "timestamp"]))
    table.run("decode, with properties", _decode(directory, PROPERTIES))
    table.run("decode, with headers", _decode(directory, HEADERS))
    table.run("headers of Celery's tasks", _celery(table.count))


def by_job(table: Table, directory: str, scratch: str) -> None:
    """Measure the log to Parquet, plainly and by the job, alternating."""
    table.run("starting the job's JVM", _quick_session)
    spark = _quick_session()
    table.run("job, base columns, cold", lambda: _job(spark, directory, f"{scratch}/job", BASE))
    for what, columns in (("base columns", BASE), ("with properties", PROPERTIES), ("with headers", HEADERS)):
        for _ in range(3):
            table.run(f"plain, {what}", _plain(directory, f"{scratch}/plain", columns))
            shutil.rmtree(f"{scratch}/plain")
            table.run(f"job, {what}", partial(_job, spark, directory, f"{scratch}/job", columns))
            table.run(f"pyarrow job, {what}", partial(_job, None, directory, f"{scratch}/job", columns))
    spark.stop()


def by_rows(count: int, directory: str, scratch: str) -> dict[str, float]:
    """Measure the log to Parquet by Spark; return CPU seconds. This needs its own process, because a JVM keeps its
    start settings.
    """
    load = Load()
    table = Table(count, load)
    table.run("starting Spark's JVM", lambda: spark_session("local[2]", memory="1g", log=SILENT))
    spark = spark_session("local[2]", memory="1g")
    spark.sparkContext.setLogLevel("ERROR")

    def rows(kind: str, **options: str) -> Callable[[], None]:
        frame = spark.read.format("amqp").options(path=directory, queue="bench", **options)
        return lambda: frame.load().write.format(kind).mode("overwrite").save(f"{scratch}/{kind}")

    table.run("rows, base columns, cold", rows("parquet"))
    for _ in range(2):
        table.run("rows, base columns", rows("parquet"))
    table.run("rows, with properties", rows("parquet", includeProperties="true"))
    table.run("rows, with headers", rows("parquet", includeHeaders="true"))
    table.run("rows to no sink, base columns", rows("noop"))
    spark.stop()
    load.close()
    return table.cpu


def compare(cpu: dict[str, float]) -> None:
    """Print the ratios for which limits exist."""
    _say("\nCPU seconds against those of plain pyarrow with the same columns:")
    for what in ("base columns", "with properties", "with headers"):
        ways = {way: cpu[f"{way}, {what}"] / cpu[f"plain, {what}"] for way in ("pyarrow job", "job", "rows")}
        _say(f"  {what}: " + ", ".join(f"{way} {ratio:.2f}" for way, ratio in ways.items()) + " times")


def _quick_session() -> SparkSession:
    """Return a session with the job's settings."""
    spark = spark_session("local[2]", memory="1g", quick=True, log=SILENT)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def export_forever(directory: str, queue: str, target: str) -> None:
    """For interop/bench/export.py: repeat the same export; print `ready` after the first."""
    _job(None, directory, target, BASE, queue)
    _say("ready")
    while True:
        _job(None, directory, target, BASE, queue)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-export", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="how many (default one million)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body (default 1024)")
    parser.add_argument("--no-spark", action="store_true", help="only decoding")
    parser.add_argument("--forever", nargs=3, metavar=("DATA_DIR", "QUEUE", "TARGET"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.forever:
        export_forever(*chosen.forever)
    scratch = tempfile.mkdtemp(prefix="amqpd-bench-")
    load = Load()
    try:
        directory = f"{scratch}/data"
        write_log(directory, chosen.records, chosen.size)
        compiled = "interpreted" if decode.__file__.endswith(".py") else "compiled"
        cores = len(os.sched_getaffinity(0))
        load_now = os.getloadavg()[0]
        _say(f"{chosen.records:,} records of {chosen.size} bytes, {compiled}, {cores} cores, load {load_now:.1f}\n")
        table = Table(chosen.records, load)
        table.head()
        in_process(table, directory)
        if not chosen.no_spark:
            by_job(table, directory, scratch)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                table.cpu |= pool.submit(by_rows, chosen.records, directory, scratch).result()
            compare(table.cpu)
    finally:
        load.close()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
