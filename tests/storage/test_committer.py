"""The committer's thread: what it is told to wait for, and what comes in between."""

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

PATIENCE_S = 60.0
FAR_S = 3600.0


class Told:
    """What the loop is told, in order; `wait` for one more of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._more = threading.Semaphore(0)

    def post(self, call: Callable[..., object], *args: object) -> None:
        call(*args)
        self._more.release()

    def wait(self) -> str:
        assert self._more.acquire(timeout=PATIENCE_S), self.calls
        return self.calls[-1]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def committer(tmp_path: Path, told: Told) -> Iterator[FsyncThread]:
    filesystem = FileSystem()
    root_fd = os.open(tmp_path, os.O_RDONLY)
    made = FsyncThread(
        filesystem,
        root_fd,
        told.post,
        lambda job: told.calls.append("committed"),
        lambda: told.calls.append("due"),
        lambda work: work(),
        Clock(),
    )
    yield made
    made.close()
    os.close(root_fd)


def task(told: Told, name: str) -> Task:
    def done(error: Any) -> None:
        assert error is None
        told.calls.append(name)

    return Task(lambda: None, done)


def test_other_work_does_not_take_the_place_of_what_is_waited_for(committer: FsyncThread, told: Told) -> None:
    """A rewind gathers its log, and then gives work: the sync of its settlements came when somebody published."""
    committer.wake(0.01)
    committer.submit(task(told, "task"))
    assert {told.wait(), told.wait()} == {"task", "due"}


def test_a_job_does(committer: FsyncThread, told: Told) -> None:
    """Its end sees to what has gathered."""
    committer.wake(FAR_S)
    committer.submit(SyncBatch(1))
    assert told.wait() == "committed"
    committer.submit(task(told, "task"))
    assert told.wait() == "task"
    committer.wake(0.01)
    assert told.wait() == "due"
    assert told.calls == ["committed", "task", "due"]
