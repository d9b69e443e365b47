"""A storage over an in-memory file system; all of its work runs in the caller's thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.storage import Storage

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib does not add it

ROUTE = RecordRoute(b"orders", b"eu.new")


class LogHarness:
    def __init__(self, **arguments: Any) -> None:
        self.filesystem = SimulatedFileSystem()
        self.clock = SimulatedClock()
        self.arguments: dict[str, Any] = {"segment_size_bytes": 1 << 26, "boot_id": "1" * 32, **arguments}
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.commits: list[tuple[int, list[LocalLog]]] = []
        self.queue_id = ""
        self.storage: Storage
        self.store: LocalLog

    def create_log(self) -> LocalLog:
        self._open_storage()
        self.queue_id, self.store = self.storage.create_queue("v", "tasks", "/")
        return self.store

    def restart(self, filesystem: SimulatedFileSystem | None = None, **arguments: Any) -> LocalLog:
        """Start the broker again, on `filesystem` or else on the files that a kill leaves."""
        self.filesystem = filesystem if filesystem is not None else self.filesystem.killed()
        self.arguments.update(arguments)
        self._open_storage()
        self.store = self.storage.open_queue("v", self.queue_id, "tasks", "/")
        self.store.recover()
        return self.store

    def _open_storage(self) -> None:
        self.posted = []
        self.commits = []
        self.storage = Storage(
            "/data",
            post=lambda function, *arguments: self.posted.append((function, arguments)),
            clock=self.clock,
            filesystem=self.filesystem,
            inline=True,
            **self.arguments,
        )
        self.storage.commits.on_commit = lambda generation, failed: self.commits.append((generation, failed))

    def append(self, *bodies: bytes, persistent: bool = True) -> list[int]:
        return [self.store.append_parts(ROUTE, b"\x10\x00\x02", body, persistent) for body in bodies]

    def end_turn(self) -> None:
        """End a loop turn and run the posted callbacks."""
        self.storage.commits.end_of_turn()
        self.run_callbacks()

    def run_callbacks(self) -> None:
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)

    def bodies(self, offset: int = 0) -> list[bytes]:
        return [record.body for record in self.store.cursor.read(offset, 1 << 40).records]

    def offsets(self, offset: int = 0) -> list[int]:
        return [record.offset for record in self.store.cursor.read(offset, 1 << 40).records]

    @property
    def directory(self) -> str:
        return f"/data/vhosts/v/queues/{self.queue_id}"

    def names(self, suffix: str) -> list[str]:
        return sorted(name for name in self.filesystem.listdir(self.directory) if name.endswith(suffix))

    def data(self, name: str) -> bytearray:
        """The bytes of one of the queue's files, to read or to damage."""
        node = self.filesystem._get(f"{self.directory}/{name}")
        return node.data

    def log(self, number: int = -1) -> bytearray:
        return self.data(self.names(".log")[number])


@pytest.fixture
def harness() -> LogHarness:
    return LogHarness()


@pytest.fixture
def make_harness() -> Callable[..., LogHarness]:
    return LogHarness
