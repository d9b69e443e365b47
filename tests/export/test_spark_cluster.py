"""A real cluster: Spark's standalone master and two workers on loopback. Executors are killed during work.

All processes are started from the pip package and ended by process group. The driver is a separate process, because
this one has a local session.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.external

COUNT = 60_000
DRIVER = """
import sys
from amqpd.storage.spark.session import spark_session
master, options, out = sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[3:]), sys.argv[2]
spark = spark_session(master, memory="512m", quick=True, settings={
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
})
print("reading", flush=True)
spark.read.format("amqp").options(queue="tasks", **options).load().write.parquet(out)
print("written", flush=True)
spark.stop()
"""


class Cluster:
    def __init__(self, directory: Path) -> None:
        from amqpd.storage.spark.session import QUICK_JVM, prepare

        prepare()
        import pyspark

        self.home = Path(pyspark.__file__).parent
        self.directory = directory
        self.environment = {
            **os.environ,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master = self.page = ""

    def start(self) -> None:
        """Start master and workers. They choose their ports, and the master's log names them: a port found free here
        could be taken by then, and Spark would silently use the next one.
        """
        self._run("master.Master", ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
        self.wait(lambda: self._addresses() and self.state().get("status") == "ALIVE")
        for number in (1, 2):
            work = self.directory / f"work{number}"
            room = ["--cores", "1", "--memory", "600m", "--host", "127.0.0.1", "--webui-port", "0"]
            self._run("worker.Worker", [*room, "--work-dir", str(work), self.master])
        self.wait(lambda: sum(each["state"] == "ALIVE" for each in self.state().get("workers", [])) == 2)

    def _addresses(self) -> bool:
        log_text = (self.directory / "0.log").read_text("utf-8", "replace")
        master = re.search(r"Starting Spark master at (spark://\S+:\d+)", log_text)
        page = re.search(r"started at (http://\S+:\d+)", log_text)
        if master is None or page is None:
            return False
        self.master, self.page = master[1], page[1]
        return True

    def _run(self, name: str, arguments: list[str]) -> None:
        with (self.directory / f"{len(self.processes)}.log").open("wb") as log:
            command = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
            self.processes.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            )

    def state(self) -> dict[str, Any]:
        """Return the JSON of the master's page, or nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, HTTPException, ValueError):
            return {}

    def wait(self, done: Callable[[], object], *, driver: subprocess.Popen[str] | None = None) -> None:
        """Wait until it is done. The test's timeout is the limit; an ended process is an error."""
        while not done():
            over = [process.args for process in self.daemons if process.poll() is not None]
            over += [driver.args] if driver is not None and driver.poll() is not None else []
            assert not over, (over, [log.read_text()[-2000:] for log in self.directory.glob("*.log")])
            time.sleep(0.1)

    @property
    def daemons(self) -> list[subprocess.Popen[bytes]]:
        return self.processes[:3]

    def executors(self) -> list[int]:
        """Return the process ids of the executors in the workers' process groups."""
        found = []
        for worker in self.daemons[1:]:
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    group = os.getpgid(int(path.name))
                    command = (path / "cmdline").read_bytes()
                except OSError:
                    continue
                if group == worker.pid and b"CoarseGrainedExecutorBackend" in command:
                    found.append(int(path.name))
        return found

    def driver(self, out: Path, **options: str) -> subprocess.Popen[str]:
        given = [f"{name}={value}" for name, value in options.items()]
        with (self.directory / "driver.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, self.master, str(out), *given],
                env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)  # type: ignore[arg-type]
        return process

    def stop(self) -> None:
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def cluster(needs_spark: None, tmp_path: Path) -> Generator[Cluster, None, None]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    running = Cluster(directory)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_killed_executor_loses_no_record(cluster: Cluster, written: Any, tmp_path: Path) -> None:
    for start in range(5000, COUNT, 1000):
        written.append(*(b"%05d" % number + b"." * 395 for number in range(start, start + 1000)))
        written.turn()
    out = tmp_path / "out"
    driver = cluster.driver(out, path=written.data_dir, splitBytes="262144")

    def finished_tasks() -> int:
        return len(list(out.glob("_temporary/0/task_*")))

    cluster.wait(lambda: finished_tasks() >= 3 and len(cluster.executors()) == 2, driver=driver)
    before = finished_tasks()
    victim = cluster.executors()[0]
    os.kill(victim, signal.SIGKILL)
    assert driver.wait() == 0, (cluster.directory / "driver.log").read_text()[-3000:]
    assert (out / "_SUCCESS").exists()
    files = list(out.glob("part-*"))
    assert len(files) > before + 5  # much work was left
    table = pq.read_table(files, columns=["offset", "value"]).to_pydict()
    assert sorted(table["offset"]) == list(range(1000, COUNT))
    pairs = zip(table["offset"], table["value"], strict=True)
    assert all(value.startswith(b"%05d." % offset) for offset, value in pairs)
    assert victim not in cluster.executors()
    assert "Lost executor" in (cluster.directory / "driver.log").read_text()


@pytest.mark.ci_long
@pytest.mark.timeout(3600)
def test_export_with_killed_executors_has_each_record_once(cluster: Cluster, written: Any, tmp_path: Path) -> None:
    """`amqpctl export --master` on the cluster: one of two executors is killed four times, at random moments."""
    for start in range(5000, COUNT, 1000):
        written.append(*(b"%05d" % number + b"." * 395 for number in range(start, start + 1000)))
        written.turn()
    lake, check = tmp_path / "lake", tmp_path / "check"
    command = [
        sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", written.data_dir, "--formatter", "json", "export",
        "--queue", "tasks", "--to", str(lake), "--checkpoint", str(check), "--master", cluster.master,
        "--batch", str((COUNT - 1000) // 30), "--partition-by", "date",
    ]  # fmt: skip
    log = cluster.directory / "job.log"
    conf = cluster.directory / "conf"  # a user's settings that amqpctl does not know
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.executor.memory 512m\nspark.executor.cores 1\n")
    with log.open("wb") as file:
        environment = {**cluster.environment, "SPARK_CONF_DIR": str(conf)}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True
        )
    cluster.processes.append(process)  # type: ignore[arg-type]
    rng = random.Random(int(os.environ.get("TEST_CRASH_SEED", "4")))

    def batch() -> int:
        state = check / "state.json"
        return json.loads(state.read_text())["batch"] if state.exists() else 0

    killed = 0
    for goal in (3, 9, 15, 21):
        cluster.wait(lambda goal=goal: process.poll() is not None or (batch() >= goal and cluster.executors()))
        time.sleep(rng.random())
        if process.poll() is None:
            os.kill(cluster.executors()[0], signal.SIGKILL)
            killed += 1
    assert process.wait() == 0, log.read_text()[-3000:]
    assert killed >= 3
    assert process.stdout is not None
    summary = json.loads(process.stdout.read())
    assert summary["waiting"] == 0 and summary["records"] == COUNT - 1000
    found = pq.read_table(lake, columns=["offset", "value"]).to_pydict()
    assert sorted(found["offset"]) == list(range(1000, COUNT))
    assert all(value.startswith(b"%05d." % n) for n, value in zip(found["offset"], found["value"], strict=True))
