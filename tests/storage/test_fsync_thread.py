"""The fsync thread: its wake-up time, jobs and tasks, and the calls that it posts to the loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.fsync_thread import FsyncThread, Task
from amqpd.storage.sync_job import SyncBatch

TIMEOUT_S = 60.0
LONG_DELAY_S = 3600.0


class LoopCalls:
    """Calls posted to the loop, in order. `wait` blocks until the next one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._more = threading.Semaphore(0)

    def post(self, call: Callable[..., object], *args: object) -> None:
        call(*args)
        self._more.release()

    def wait(self) -> str:
        assert self._more.acquire(timeout=TIMEOUT_S), self.calls
        return self.calls[-1]


@pytest.fixture
def loop_calls() -> LoopCalls:
    return LoopCalls()


@pytest.fixture
def fsync_thread(tmp_path: Path, loop_calls: LoopCalls) -> Iterator[FsyncThread]:
    filesystem = FileSystem()
    root_fd = os.open(tmp_path, os.O_RDONLY)
    fsync_thread = FsyncThread(
        filesystem,
        root_fd,
        loop_calls.post,
        lambda job: loop_calls.calls.append("committed"),
        lambda: loop_calls.calls.append("due"),
        lambda work: work(),
        Clock(),
    )
    yield fsync_thread
    fsync_thread.close()
    os.close(root_fd)


def task(loop_calls: LoopCalls, name: str) -> Task:
    def done(error: Any) -> None:
        assert error is None
        loop_calls.calls.append(name)

    return Task(lambda: None, done)


def test_task_does_not_cancel_the_wake_up(fsync_thread: FsyncThread, loop_calls: LoopCalls) -> None:
    """A rewind postpones the sync of its log and then submits a task. Once, its acks were synced only with the next
    publish.
    """
    fsync_thread.wake(0.01)
    fsync_thread.submit(task(loop_calls, "task"))
    loop_calls.wait()
    loop_calls.wait()
    assert set(loop_calls.calls) == {"task", "due"}


def test_job_cancels_the_wake_up(fsync_thread: FsyncThread, loop_calls: LoopCalls) -> None:
    """The end of a job handles everything that was gathered before."""
    fsync_thread.wake(LONG_DELAY_S)
    fsync_thread.submit(SyncBatch(1))
    assert loop_calls.wait() == "committed"
    fsync_thread.submit(task(loop_calls, "task"))
    assert loop_calls.wait() == "task"
    fsync_thread.wake(0.01)
    assert loop_calls.wait() == "due"
    assert loop_calls.calls == ["committed", "task", "due"]
