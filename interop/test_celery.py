"""Celery: real workers as processes, tasks, results over rpc://, remote control, events, a killed worker."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from celery import Celery, chain, group
from celery.exceptions import TaskRevokedError

Eventually = Callable[..., Any]
HERE = Path(__file__).parent
# A pool process that ends waits up to 30 s until its parent has read its last results (billiard's
# GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT). A parent that is stopped meanwhile never reads them.
STOP_S = 120.0


class Worker:
    """`celery worker` as a process group of its own. Its output is shown if it does not become ready."""

    def __init__(self, name: str, url: str, directory: Path, *options: str) -> None:
        self.node = f"{name}-{secrets.token_hex(4)}@interop"
        self.log = directory / f"{self.node}.log"
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-n", self.node, "-l", "info"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "CELERY_INTEROP_URL": url, "CELERY_INTEROP_NAME": name, "PYTHONPATH": str(HERE)},
                start_new_session=True,
                cwd=directory,
            )

    def wait(self, timeout_s: float = 120.0) -> Worker:
        deadline = time.monotonic() + timeout_s
        while " ready." not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"the worker is not ready:\n{self.log.read_text()}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """Kill the whole process group at once, like an out-of-memory killer or a power failure."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Shut down warmly. Return the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_S)
        finally:
            self.kill()


@pytest.fixture(scope="module")
def name() -> str:
    return f"celery-{secrets.token_hex(6)}"


@pytest.fixture(scope="module")
def app(broker: Any, name: str) -> Iterator[Celery]:
    """The application in this process, as the client uses it."""
    spec = importlib.util.spec_from_file_location("celery_app", HERE / "celery_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELERY_INTEROP_URL", broker.url)
        patch.setenv("CELERY_INTEROP_NAME", name)
        spec.loader.exec_module(module)
    yield module.app
    module.app.close()


@pytest.fixture(scope="module")
def worker(broker: Any, app: Celery, name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker with the stock pool of two processes, events, and gossip and mingle by default."""
    worker = Worker(name, broker.url, tmp_path_factory.mktemp("worker"), "-c", "2", "-E")
    try:
        yield worker.wait()
    finally:
        code = worker.stop()
    assert code == 0, worker.log.read_text()


@pytest.fixture
def start_worker(broker: Any, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts further workers, each on its own queue. All are killed after the test."""
    started: list[Worker] = []

    def start(queue: str, *options: str) -> Worker:
        quiet = ("-c", "1", "--without-gossip", "--without-mingle", "--without-heartbeat", "-Q", queue)
        worker = Worker(queue, broker.url, tmp_path, *quiet, *options)
        started.append(worker)
        return worker.wait()

    yield start
    for worker in started:
        worker.kill()


def queue_state(broker: Any, queue: str) -> Any:
    """Return the answer to a passive declare: message_count, consumer_count."""
    with pika.BlockingConnection(broker.pika()) as connection:
        return connection.channel().queue_declare(queue, passive=True).method


def ready_count(broker: Any, queue: str) -> int:
    return int(queue_state(broker, queue).message_count)


def test_task_returns_its_result(app: Celery, worker: Worker) -> None:
    assert app.tasks["add"].delay(2, 3).get(timeout=60) == 5


def test_failed_task_raises_its_exception(app: Celery, worker: Worker) -> None:
    result = app.tasks["fail"].delay("this one")
    with pytest.raises(ValueError, match="this one"):
        result.get(timeout=60)
    assert result.state == "FAILURE"


def test_group_and_chain_return_results(app: Celery, worker: Worker) -> None:
    add = app.tasks["add"]
    assert group(add.s(n, n) for n in range(60)).apply_async().get(timeout=60) == [2 * n for n in range(60)]
    assert chain(add.s(1, 2), add.s(10), add.s(100)).apply_async().get(timeout=60) == 113


def test_large_argument_and_result_are_unchanged(app: Celery, worker: Worker) -> None:
    value = {"text": "grüße" * 100_000, "list": list(range(1000)), "none": None}
    assert app.tasks["echo"].delay(value).get(timeout=60) == value


def test_failed_task_is_retried(app: Celery, worker: Worker) -> None:
    assert app.tasks["flaky"].delay(3).get(timeout=60) == 3


def test_task_with_countdown_runs_later(app: Celery, worker: Worker) -> None:
    sent = time.time()
    assert app.tasks["when"].apply_async(countdown=1).get(timeout=60) >= sent + 1


def test_expired_task_is_not_run(app: Celery, worker: Worker) -> None:
    result = app.tasks["when"].apply_async(countdown=0.5, expires=0.1)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)


def test_remote_control_inspects_a_worker(app: Celery, worker: Worker, tmp_path: Path, eventually: Eventually) -> None:
    assert app.control.ping(destination=[worker.node], timeout=30) == [{worker.node: {"ok": "pong"}}]
    inspect = app.control.inspect(destination=[worker.node], timeout=30, limit=1)
    assert "add" in inspect.registered()[worker.node]
    assert inspect.stats()[worker.node]["pool"]["max-concurrency"] == 2
    assert [queue["name"] for queue in inspect.active_queues()[worker.node]] == [app.conf.task_default_queue]
    started, release = tmp_path / "started", tmp_path / "release"
    result = app.tasks["hold"].delay(str(started), str(release))
    eventually(started.exists)
    assert [task["id"] for task in inspect.active()[worker.node]] == [result.id]
    release.touch()
    assert result.get(timeout=60) == "released"
    # The worker forgets a task after it sends the result.
    eventually(lambda: inspect.active() == {worker.node: []})


def test_broadcast_ping_is_answered(app: Celery, worker: Worker) -> None:
    """Without a destination celery waits for the whole timeout, or until `limit` replies arrive."""
    assert app.control.ping(timeout=30, limit=1) == [{worker.node: {"ok": "pong"}}]


def test_revoked_tasks_do_not_start(app: Celery, worker: Worker, eventually: Eventually) -> None:
    """Waiting tasks with a countdown raise the prefetch count, so all 14 are at the worker, more than its 2 x 4."""
    results = [app.tasks["when"].apply_async(countdown=60) for _ in range(14)]
    inspect = app.control.inspect(destination=[worker.node], timeout=30, limit=1)
    ids = {result.id for result in results}
    eventually(lambda: {task["request"]["id"] for task in inspect.scheduled()[worker.node]} == ids)
    app.control.revoke(list(ids), reply=True, destination=[worker.node], timeout=30, limit=1)
    assert set(inspect.revoked()[worker.node]) >= ids
    assert app.tasks["add"].delay(1, 1).get(timeout=60) == 2


def test_revoke_terminates_a_running_task(app: Celery, worker: Worker, tmp_path: Path, eventually: Eventually) -> None:
    started = tmp_path / "started"
    result = app.tasks["hold"].delay(str(started), str(tmp_path / "never"))
    eventually(started.exists)
    result.revoke(terminate=True, signal="SIGKILL")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)
    assert app.tasks["add"].delay(1, 1).get(timeout=60) == 2


def test_worker_adds_and_cancels_a_queue_at_run_time(
    app: Celery, worker: Worker, name: str, broker: Any, eventually: Eventually
) -> None:
    queue = f"{name}-more"
    app.control.add_consumer(queue, destination=[worker.node], reply=True, timeout=30, limit=1)
    assert app.tasks["add"].apply_async((1, 2), queue=queue).get(timeout=60) == 3
    app.control.cancel_consumer(queue, destination=[worker.node], reply=True, timeout=30, limit=1)
    eventually(lambda: queue_state(broker, queue).consumer_count == 0)  # the reply precedes the action
    app.tasks["add"].apply_async((1, 2), queue=queue)
    eventually(lambda: ready_count(broker, queue) == 1)


def test_task_and_worker_events_are_received(app: Celery, worker: Worker) -> None:
    seen: dict[str, list[str]] = {}

    def note(event: dict[str, Any]) -> None:
        seen.setdefault(event["type"], []).append(event.get("uuid", event["hostname"]))

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection,
            handlers={"*": note},
        )
        with receiver.consumer_context() as (served, _channel, _consumers):
            result = app.tasks["add"].delay(4, 4)
            deadline = time.monotonic() + 30
            while not (result.id in seen.get("task-succeeded", []) and "worker-heartbeat" in seen):
                assert time.monotonic() < deadline, seen
                with contextlib.suppress(TimeoutError):
                    served.drain_events(timeout=0.5)
    assert result.id in seen["task-received"]
    assert result.id in seen["task-started"]
    assert worker.node in seen["worker-heartbeat"]


@pytest.mark.slow
def test_prefetch_multiplier_limits_prefetched_tasks(
    app: Celery, name: str, broker: Any, start_worker: Callable[..., Worker], tmp_path: Path, eventually: Eventually
) -> None:
    """With one process, multiplier 1 and late acks the broker keeps the other tasks ready."""
    queue = f"{name}-prefetch"
    worker = start_worker(queue, "--prefetch-multiplier", "1")
    release = tmp_path / "release"
    first = tmp_path / "started-0"
    results = [
        app.tasks["careful"].apply_async((str(tmp_path / f"started-{n}"), str(release)), queue=queue) for n in range(5)
    ]
    eventually(first.exists)
    eventually(lambda: ready_count(broker, queue) == 4)
    time.sleep(0.2)
    assert ready_count(broker, queue) == 4
    release.touch()
    assert [result.get(timeout=60) for result in results] == [False] * 5
    assert worker.stop() == 0


@pytest.mark.slow
def test_late_acks_survive_a_killed_worker(
    app: Celery, name: str, broker: Any, start_worker: Callable[..., Worker], tmp_path: Path, eventually: Eventually
) -> None:
    queue = f"{name}-late"
    victim = start_worker(queue)
    started, again, release = tmp_path / "started", tmp_path / "again", tmp_path / "release"
    result = app.tasks["careful"].apply_async((str(started), str(release)), queue=queue)
    eventually(started.exists)
    victim.kill()
    started.rename(again)
    release.touch()
    start_worker(queue)
    assert result.get(timeout=60) is True  # redelivered, and flagged as such
    assert started.exists()


@pytest.mark.slow
def test_early_acked_task_is_not_redelivered(
    app: Celery, name: str, broker: Any, start_worker: Callable[..., Worker], tmp_path: Path, eventually: Eventually
) -> None:
    queue = f"{name}-early"
    victim = start_worker(queue)
    started = tmp_path / "started"
    app.tasks["hold"].apply_async((str(started), str(tmp_path / "never")), queue=queue)
    eventually(started.exists)
    victim.kill()
    eventually(lambda: ready_count(broker, queue) == 0)


@pytest.mark.slow
def test_warm_shutdown_returns_prefetched_tasks(
    app: Celery, name: str, broker: Any, start_worker: Callable[..., Worker], tmp_path: Path, eventually: Eventually
) -> None:
    queue = f"{name}-warm"
    worker = start_worker(queue, "--prefetch-multiplier", "4")
    started, release = tmp_path / "started", tmp_path / "release"
    result = app.tasks["hold"].apply_async((str(started), str(release)), queue=queue)
    later = [app.tasks["add"].apply_async((n, n), queue=queue) for n in range(3)]
    eventually(started.exists)
    worker.process.terminate()
    release.touch()
    assert worker.process.wait(STOP_S) == 0
    assert result.get(timeout=60) == "released"
    start_worker(queue)
    assert [r.get(timeout=60) for r in later] == [0, 2, 4]


@pytest.mark.slow
def test_worker_reconnects_after_its_connections_were_closed(
    app: Celery, name: str, broker: Any, start_worker: Callable[..., Worker]
) -> None:
    """An operator closes all connections of the worker."""
    queue = f"{name}-closed"
    worker = start_worker(queue)
    assert app.tasks["add"].apply_async((1, 2), queue=queue).get(timeout=60) == 3
    worker_connections = {c["name"] for c in _connections_of(broker, worker.process.pid)}
    assert worker_connections
    for connection in worker_connections:
        broker.api("DELETE", f"/api/connections/{quote(connection, safe='')}", headers={"X-Reason": "test"})
    assert app.tasks["add"].apply_async((2, 2), queue=queue).get(timeout=60) == 4


def _connections_of(broker: Any, pid: int) -> list[dict[str, Any]]:
    """Return the broker's connections whose peer is a socket of this process (Linux: /proc)."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(fd.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            ports.add(int(fields[1].split(":")[1], 16))
    deadline = time.monotonic() + 30
    while True:
        found = [c for c in broker.api("GET", "/api/connections") if c.get("peer_port") in ports]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
