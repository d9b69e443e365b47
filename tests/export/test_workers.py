"""Export with worker processes: equal files, killed workers, a killed driver, flat memory, the progress bar."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from amqpd.cli.export import progress_text
from amqpd.storage.export import engine as engines
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.file_writer import FileLayout, write_task
from amqpd.storage.export.files import SourceError
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget
from amqpd.storage.export.worker_pool import ATTEMPTS_MAX, WorkerFailed, WorkerPool
from amqpd.storage.filesystem import FileSystem
from amqpd.testing import BrokerProcess

VICTIMS = ("all", "driver", "worker")


@pytest.fixture(scope="module")
def large(make_lake, tmp_path_factory):
    """A log on disk of 60,000 records, 60 MB: enough for two tasks."""
    lake = make_lake(16 << 20, FileSystem(), str(tmp_path_factory.mktemp("large") / "data"))
    for start in range(0, 60_000, 500):
        lake.append(*(b"%07d" % number + b"." * 1000 for number in range(start, start + 500)))
        lake.turn()
    return lake


@pytest.fixture
def small_tasks(monkeypatch):
    """Tasks of a few hundred KB, so that a small log has several."""
    monkeypatch.setattr(engines, "TASK_BYTES_MIN", 100_000)
    monkeypatch.setattr(engines, "PART_BYTES", 100_000)


def options(lake, directory, **given):
    to, check = str(directory / "lake"), str(directory / "check")
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", to, check, **given)


def run(wanted, engine, say=lambda report: None):
    return ExportJob(wanted, engine, say, lambda: False).run()


def offsets(directory):
    if not any(Path(directory).rglob("*.parquet")):
        return []
    table = ds.dataset(str(directory), format="parquet", partitioning="hive").to_table(columns=["offset"])
    return sorted(table.column("offset").to_pylist())


def pool_of(engine):
    return engine._pool


def test_worker_processes_write_the_rows_of_the_log(written, tmp_path, small_tasks):
    advanced = []
    engine = PyarrowEngine(lambda rows, size_bytes: advanced.append((rows, size_bytes)), workers=2)
    total = run(options(written, tmp_path, batch_rows=2500), engine)
    assert (total.rows, total.bytes, total.lag) == (4000, 800_000, 0)
    assert [sum(each) for each in zip(*advanced, strict=True)] == [4000, 800_000]
    assert offsets(tmp_path / "lake") == list(range(1000, 5000))
    assert len(list((tmp_path / "lake").iterdir())) == 4  # two files for each of two batches
    assert [pool_of(engine)._idle, pool_of(engine)._busy] == [[], {}]
    assert not (tmp_path / "check" / "staging").exists()


@pytest.mark.slow
def test_worker_processes_read_over_http(tmp_path, small_tasks):
    # Several segments, so that there are several parts: an active segment's index is on disk only after some ticks.
    with BrokerProcess(tmp_path / "data", settings={"storage.segment_size_bytes": 1 << 16}) as broker:
        broker.api("PUT", "/api/queues/%2F/tasks", {"durable": True})
        publisher = SinkPublisher(SinkTarget.from_url(broker.url))
        for number in range(3000):
            publisher.publish("", "tasks", b"\x10\x00\x02", b"%07d" % number + b"." * 100)
        publisher.finish()
        publisher.close()
        engine = PyarrowEngine(workers=2)
        source = {"url": broker.http_url.replace("://", "://guest:guest@")}
        wanted = ExportOptions(source, "/", "tasks", str(tmp_path / "lake"), str(tmp_path / "check"))
        assert run(wanted, engine).rows == 3000
        assert len(list((tmp_path / "lake").iterdir())) == 2
        refused = replace(wanted, source={"url": source["url"].replace("guest@", "wrong@")})
        with pytest.raises(SourceError, match="not allowed"):
            run(refused, PyarrowEngine(workers=2))
    assert offsets(tmp_path / "lake") == list(range(3000))


def test_task_of_a_killed_worker_runs_again(written, tmp_path, small_tasks):
    """Workers are killed between two batches and, by their process ids, as soon as they have a task."""
    engine = PyarrowEngine(workers=2)
    pool = pool_of(engine)
    kills = []
    send = pool._send

    def send_and_kill(number, task):
        send(number, task)
        if len(kills) < 3:
            worker, _ = list(pool._busy.values())[-1]
            worker.process.kill()
            kills.append(worker.process.pid)

    pool._send = send_and_kill

    def say(report):
        for worker in pool._idle:
            worker.process.kill()

    total = run(options(written, tmp_path, batch_rows=1500), engine, say)
    assert (total.rows, len(set(kills))) == (4000, 3)
    assert offsets(tmp_path / "lake") == list(range(1000, 5000))


def test_task_whose_worker_is_always_killed_fails(written, tmp_path, small_tasks):
    engine = PyarrowEngine(workers=2)
    pool = pool_of(engine)
    send, kills = pool._send, []

    def send_and_kill(number, task):
        send(number, task)
        kills.append(number)
        list(pool._busy.values())[-1][0].process.kill()

    pool._send = send_and_kill
    with pytest.raises(WorkerFailed, match=f"signal 9, {ATTEMPTS_MAX} times"):
        run(options(written, tmp_path), engine)
    assert max(kills.count(number) for number in set(kills)) == ATTEMPTS_MAX
    assert offsets(tmp_path / "lake") == []
    assert run(options(written, tmp_path), PyarrowEngine(workers=2)).rows == 4000
    assert offsets(tmp_path / "lake") == list(range(1000, 5000))


def test_error_of_a_worker_arrives_and_the_next_run_continues(written, tmp_path, small_tasks):
    place = max(Path(written.place).glob("*.log"))
    data = place.read_bytes()
    place.write_bytes(data[:-5000] + b"!" + data[-4999:])
    with pytest.raises(DataLoss, match="offsets"):
        run(options(written, tmp_path), PyarrowEngine(workers=2))
    assert offsets(tmp_path / "lake") == []
    place.write_bytes(data)
    assert run(options(written, tmp_path), PyarrowEngine(workers=2)).rows == 4000


def test_unexpected_error_of_a_worker_is_a_failure(written, capfd):
    pool = WorkerPool(2)
    with pytest.raises(WorkerFailed, match="unexpected error; standard error has its traceback"):
        pool.run(None, FileLayout("/nowhere"), [[None]], lambda rows, size_bytes: None)  # type: ignore[arg-type, list-item]
    assert "Traceback" in capfd.readouterr().err


def test_many_directories_share_few_open_files(written, tmp_path, monkeypatch):
    from amqpd.storage.export import file_writer
    from amqpd.storage.export.offsets import batch_parts
    from amqpd.storage.export.options import parse

    monkeypatch.setattr(file_writer, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(file_writer, "GROUP_BYTES", 1)
    read = parse(
        {"path": written.data_dir, "queue": "tasks", "columns": "offset,routing_key", "startingOffsets": "4900"}
    )
    files = write_task(read, FileLayout(str(tmp_path), "parquet", ("routing_key", "offset")), (0, batch_parts(read)))
    assert sum(each.rows for each in files) == 100 and len({each.path for each in files}) == 100
    assert {path.parent.name for path in tmp_path.rglob("*.parquet")} == {f"offset={n}" for n in range(4900, 5000)}


class Export:
    """Runs of `amqpctl export` as a process, some of them killed."""

    def __init__(self, lake, directory, *arguments):
        self.checkpoint = directory / "check"
        self.to = directory / "lake"
        root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.environment = {**os.environ, "PYTHONPATH": path}
        self.command = [
            sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", lake.data_dir, "--formatter", "json",
            "export", "--queue", "tasks", "--to", str(self.to), "--checkpoint", str(self.checkpoint), *arguments,
        ]  # fmt: skip

    def start(self):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(self.command, env=self.environment, start_new_session=True, **pipes)

    def finish(self):
        with self.start() as process:
            out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        return json.loads(out)


def children(pid):
    """Return the process ids of the worker processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid and b"worker_pool" in command:
                found.append(int(entry.name))
    return found


def wait_until(condition, timeout_s=120.0):
    until = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def kill(process, victim):
    """Return whether the process had not ended before."""
    was_running = process.poll() is None
    workers = children(process.pid)
    try:
        if victim == "driver":
            process.kill()
        elif victim == "all":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        was_running = False
    process.communicate(timeout=600)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    return was_running


@pytest.mark.slow
def test_kills_of_driver_and_workers_lose_and_repeat_nothing(large, tmp_path):
    """`kill -9` of all processes, of the driver and of the workers, three of each while an export runs.

    A kill comes at a random moment of the time that a whole export takes on this machine. One that comes after the
    end does not count, and another export is killed instead.
    """
    seed = int(os.environ.get("TEST_CRASH_SEED", "20"))
    rng = random.Random(seed)
    arguments = ("--batch", "40000", "--partition-by", "date")
    undisturbed = Export(large, tmp_path / "undisturbed", *arguments)
    process = undisturbed.start()
    assert wait_until(lambda: children(process.pid))
    begin = time.monotonic()
    process.communicate(timeout=600)
    duration_s = time.monotonic() - begin
    kills = dict.fromkeys(VICTIMS, 0)
    for number in range(90):
        if min(kills.values()) >= 3:
            break
        export = Export(large, tmp_path / str(number), *arguments)
        for victim in rng.sample(VICTIMS, 2):
            process = export.start()
            try:
                wait_until(lambda process=process: process.poll() is not None or children(process.pid))
                time.sleep(rng.random() * duration_s)
                kills[victim] += kill(process, victim)
            finally:
                process.kill()
                process.wait()
            seen = offsets(export.to)
            assert len(set(seen)) == len(seen), (victim, number)
        assert export.finish()["waiting"] == 0
        assert offsets(export.to) == list(range(60_000))
    print(f"seed {seed}: kills {kills} in {number} exports of {duration_s:.1f} s")
    assert min(kills.values()) >= 3


KILLED_AT_STEP = """
import os, signal, sys
from pathlib import Path
from amqpd.storage.export import engine
engine.TASK_BYTES_MIN = engine.PART_BYTES = 100_000
left = int(os.environ["KILL_AT_STEP"])
def counted(real):
    def step(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if left == 1 and real.__name__ == "replace":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return step
for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "mkdir")):
    setattr(owner, name, counted(getattr(owner, name)))
from amqpd.cli.main import main
sys.argv[0] = "amqpctl"
sys.exit(main())
"""


@pytest.mark.slow
def test_kill_of_the_driver_at_each_step_loses_and_repeats_nothing(written, tmp_path):
    """`kill -9` of a driver with two workers, at each file operation of a batch; each run is killed one step later."""
    export = Export(written, tmp_path, "--batch", "400")
    kills, seen = 0, []
    for number in range(2, 40):
        environment = {**export.environment, "KILL_AT_STEP": str(number)}
        command = [sys.executable, "-P", "-c", KILLED_AT_STEP, *export.command[4:]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        kills += done.returncode == -signal.SIGKILL
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        seen = offsets(export.to)
        assert len(set(seen)) == len(seen)
        if done.returncode == 0:
            break
    print(f"{kills} kills")
    assert kills >= 12
    export.finish()
    assert offsets(export.to) == list(range(1000, 5000))
    assert not (export.checkpoint / "staging").exists()


def test_signals_to_all_processes_stop_after_the_batch(large, tmp_path):
    """A terminal or a service manager signals the workers, too."""
    export = Export(large, tmp_path, "--batch", "40000", "--follow", "--min-batch-bytes", "1")
    process = export.start()
    assert wait_until(lambda: children(process.pid))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and "Traceback" not in err, err
    summary = json.loads(out)
    assert summary["records"] == len(offsets(export.to)) and summary["records"] in (40_000, 60_000)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_messages(written, large, tmp_path):
    """Peaks of the driver of 4,000 and of 60,000 records, 0.8 and 60 MB; all in one process.

    VmHWM begins with the program. ru_maxrss would be at least that of the process that started it, the tests.
    """
    peaks = []
    for number, lake in enumerate((written, large)):
        directory = tmp_path / str(number)
        directory.mkdir()
        export = Export(lake, directory)
        program = (
            "import os, re, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
            "from amqpd.cli.main import main; sys.argv[0] = 'amqpctl'; code = main(); "
            "print(re.search('VmHWM:(.*) kB', open('/proc/self/status').read())[1], file=sys.stderr); sys.exit(code)"
        )
        command = [sys.executable, "-P", "-c", program, *export.command[4:]]
        done = subprocess.run(command, env=export.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stderr.strip().splitlines()[-1]) >> 10)
    print(f"peak {peaks} MB")
    assert peaks[1] < 200 and peaks[1] < peaks[0] + 60


def test_progress_line_has_share_records_rate_lag_and_time() -> None:
    assert progress_text(0, 1000, 0.0) == "[..........]   0%  0 records, 0/s, 1,000 wait, starting"
    assert progress_text(1_500_000, 500_000, 3.0) == (
        "[#######...]  75%  1,500,000 records, 500,000/s, 500,000 wait, 0:00:01 left"
    )
    assert progress_text(0, 0, 1.0).startswith("[##########] 100%")
