"""The fsync thread: its wake-up time, jobs and tasks, and the calls that it posts to the loop."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpd.storage.filesystem import APPEND, Clock, FileSystem, OpenFile
from amqpd.storage.fsync_thread import FsyncThread, Task
from amqpd.storage.journal import Journal
from amqpd.storage.sync_job import SyncBatch, SyncPart

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


class SlowFile(FileSystem):
    """The first `fdatasync` waits for `released`, then fails: it alone gets the error of the file's pages."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.released = threading.Event()
        self.sync_count = 0

    def fdatasync(self, fd: int) -> None:
        self.sync_count += 1
        if self.sync_count == 1:
            self.begun.set()
            assert self.released.wait(TIMEOUT_S)
            raise OSError(errno.EIO, "bad")
        self.released.set()


def test_error_that_only_the_sync_behind_the_commits_got_fails_the_job(tmp_path: Path, loop_calls: LoopCalls) -> None:
    """Both sync the same file at the same time. A descriptor reports an error once."""

    def done(_job: SyncBatch) -> None:
        loop_calls.calls.append("done")

    filesystem = SlowFile()
    root_fd = os.open(tmp_path, os.O_RDONLY)
    fsync_thread = FsyncThread(filesystem, root_fd, loop_calls.post, done, lambda: None, lambda work: work(), Clock())
    journal = fsync_thread.journal = Journal(filesystem, str(tmp_path), 64 << 10)
    journal.fd = os.dup(root_fd)
    file = OpenFile(filesystem, f"{tmp_path}/log", APPEND)
    behind, job = SyncBatch(1), SyncBatch(2)
    for each in (behind, job):
        part = SyncPart("q", str(tmp_path))
        part.files = [file]
        each.parts.append(part)
    fsync_thread.submit_background(behind, done)
    assert filesystem.begun.wait(TIMEOUT_S)
    fsync_thread.submit(job)
    loop_calls.wait()
    loop_calls.wait()
    assert [part.failed for part in (*behind.parts, *job.parts)] == [True, True]
    fsync_thread.close()
    journal.close()
    file.close()
    os.close(root_fd)
