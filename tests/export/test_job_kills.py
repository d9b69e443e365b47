"""`amqpctl export` as a killed process: after any kill a rerun gives every reader each offset once.

A kill ends all of it (driver, JVM and Python workers), only the driver, only the JVM, or only a Python worker.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from sqlalchemy import create_engine, text

from amqpd.protocol import properties as p
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget
from amqpd.testing import BrokerProcess

pytestmark = pytest.mark.external

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VICTIMS = ("all", "driver", "jvm", "worker")


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def fill(broker, count, body=b"." * 100):
    broker.api("PUT", "/api/queues/%2F/orders", {"durable": True})
    publisher = SinkPublisher(SinkTarget.from_url(broker.url))
    persistent = p.encode_properties(p.Properties(delivery_mode=2))
    for number in range(count):
        publisher.publish("", "orders", persistent, b"%07d" % number + body)
    assert publisher.finish() == count
    publisher.close()


class Export:
    """Runs of one export, some of them killed."""

    def __init__(self, broker, directory, *arguments, to=None):
        self.directory = directory
        self.checkpoint = directory / "check"
        self.to = to or str(directory / "lake")
        root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.environment = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK, "PYTHONPATH": path}
        self.command = [
            sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(broker.data_dir), "--formatter", "json",
            "export", "--queue", "orders", "--to", self.to, "--checkpoint", str(self.checkpoint),
            "--master", "local[2]", "--memory", "512m", *arguments,
        ]  # fmt: skip

    def start(self, *more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*self.command, *more], env=self.environment, start_new_session=True, **pipes)

    def batch(self):
        try:
            return json.loads((self.checkpoint / "state.json").read_text())["batch"]
        except FileNotFoundError:
            return 0

    def run_and_kill(self, rng, victim, batches, delay_s, *more):
        """Kill the run `delay_s` after it has done so many batches more. Return False if it had ended before."""
        process = self.start(*more)
        try:
            goal = self.batch() + batches
            while self.batch() < goal and process.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.random() * delay_s)
            was_running = process.poll() is None
            if was_running:
                self._kill(process, victim)
            process.communicate(timeout=900)  # a driver without its JVM ends
        finally:
            group_kill(process)
        return was_running

    def _kill(self, process, victim):
        children = {"jvm": "java", "worker": "pyspark.daemon"}
        if victim == "all":
            group_kill(process)
        elif victim == "driver":
            process.kill()
        else:
            for pid in session_members(process.pid):
                if children[victim] in command_line(pid):
                    os.kill(pid, signal.SIGKILL)

    def finish(self):
        process = self.start()
        try:
            out, err = process.communicate(timeout=600)
        finally:
            group_kill(process)
        assert process.returncode == 0, err
        return json.loads(out)


def session_members(session):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def group_kill(process):
    """Kill every process of the export. Spark's workers have their own process groups but the same session."""
    for pid in session_members(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def offsets_by_reader(directory):
    """Yield the offsets as duckdb and pyarrow read them."""
    duckdb = pytest.importorskip("duckdb")
    with_duckdb = duckdb.sql(f"SELECT \"offset\" FROM '{directory}/**/*.parquet'").fetchall()
    yield sorted(row[0] for row in with_duckdb)
    table = ds.dataset(str(directory), format="parquet", partitioning="hive").to_table(columns=["offset"])
    yield sorted(table.column("offset").to_pylist())


def test_kills_and_signals_export_each_offset_once(broker, tmp_path, spark):
    """Runs of one export, one after the other: two are killed, the others end by signals to all of their processes."""
    fill(broker, 6000)
    export = Export(broker, tmp_path, "--batch", "100", "--partition-by", "date")
    rng = random.Random(1)
    follow = ("--follow", "--min-batch-bytes", "1")  # a run does not end before its kill or signal
    assert export.run_and_kill(rng, "all", 3, 0.3, *follow)
    done = export.batch()
    assert done >= 3
    assert export.run_and_kill(rng, "driver", int(done < 60), 0.3, *follow)
    # A terminal sends SIGINT to the whole process group; pyspark alone would interrupt the batch. A service manager or
    # `kill -- -PGID` sends SIGTERM to the JVM, too: once in the middle of a batch, once when all is exported.
    for number, is_idle in ((signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)):
        fill(broker, 100)  # the run has a batch, however far the others have come
        before = export.batch()
        summary = stopped_by(export, number, 63 if is_idle else before + 1, is_idle, *follow)
        assert summary["records"] == 100 * (summary["batch"] - before)
    assert (summary["waiting"], summary["batch"]) == (0, 63)
    for found in offsets_by_reader(tmp_path / "lake"):
        assert found == list(range(6300))
    found = spark.read.parquet(str(tmp_path / "lake")).select("offset").collect()
    assert sorted(row.offset for row in found) == list(range(6300))


def stopped_by(export, number, goal, is_idle, *more):
    """Start a run, send a signal to its process group after batch `goal`, and return its report."""
    process = export.start(*more)
    try:
        while export.batch() < goal and process.poll() is None:
            time.sleep(0.02)
        if is_idle:
            time.sleep(1.0)  # it has found that nothing is left
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        assert "stopping after this batch" in err and "Traceback" not in err, err
        assert [command_line(pid) for pid in wait_for_end_of_session(process.pid)] == []
    finally:
        group_kill(process)
    return json.loads(out)


def wait_for_end_of_session(session):
    """Wait up to ten minutes. Return the remaining processes of the session."""
    until = time.monotonic() + 600
    while (left := session_members(session)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


@pytest.mark.timeout(5400)
@pytest.mark.parametrize(
    ("target", "wanted_kills"),
    [
        pytest.param("files", 8, marks=pytest.mark.ci_long),
        pytest.param("files", 20, marks=pytest.mark.on_demand),
        pytest.param("database", 20, marks=pytest.mark.on_demand),
    ],
)
def test_kills_of_an_incremental_export_lose_nothing(broker, tmp_path, spark, target, wanted_kills):
    """10,000 records for each kill arrive meanwhile. Each kill hits a random part at a random moment."""
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    arguments = ["--batch", "2000"]
    export = Export(broker, tmp_path, *arguments, to=url if target == "database" else None)
    seed = int(os.environ.get("TEST_CRASH_SEED", "20"))
    rng = random.Random(seed)
    kills = dict.fromkeys(VICTIMS, 0)
    runs = 0
    while sum(kills.values()) < wanted_kills:
        assert runs < 3 * wanted_kills, f"most runs ended before their kill: {kills}"
        if runs < wanted_kills:
            fill(broker, 10_000)
        runs += 1
        victim = VICTIMS[sum(kills.values()) % 4]
        batches = rng.choice((0, 1, 2, 3, 4)) if runs <= wanted_kills else 0
        kills[victim] += export.run_and_kill(rng, victim, batches, 0.5 if batches else 4.0)
        print(f"run {runs}, kill of {victim}: {export.batch()} batches done", flush=True)
    summary = export.finish()
    print(f"seed {seed}: kills {kills} in {runs} runs; last run {summary}", flush=True)
    wanted = list(range(10_000 * wanted_kills))
    if target == "database":
        engine = create_engine(url)
        with engine.connect() as connection:
            found = connection.execute(text('SELECT "offset" FROM amqp_messages ORDER BY 1')).fetchall()
        engine.dispose()
        assert [row[0] for row in found] == wanted
        return
    for found in offsets_by_reader(tmp_path / "lake"):
        assert found == wanted
    rows = spark.read.parquet(str(tmp_path / "lake")).select("offset").collect()
    assert sorted(row.offset for row in rows) == wanted
