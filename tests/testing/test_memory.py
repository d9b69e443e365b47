"""Disk and database in memory beside the real ones: the same calls have the same results."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.metadata.rows import (
    BindingRow,
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    PermissionRow,
    PolicyRow,
    Put,
    QueueRow,
    ScramRow,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.store import MetadataClosed, MetadataState, SqlMetadataStore, WriteFailed
from amqpd.testing.memory import MemoryFileSystem, MemoryMetadata


class FilePlayer:
    """Makes random calls of a file system below `root`, and notes their results. One seed, one sequence of calls.

    As in the storage, no name is once a file and once a directory, and files are created in directories that exist.
    """

    DIRECTORIES = ("a", "b")
    FILES = ("f", "a/x", "a/y", "b/x")

    def __init__(self, filesystem: FileSystem, root: str, seed: int) -> None:
        self.filesystem = filesystem
        self.root = root
        self.chance = random.Random(seed)

    def play(self, count: int) -> list[object]:
        of_files = (self.write, self.read, self.truncate, self.unlink, self.look, self.map, self.replace, self.rename)
        of_directories = (self.mkdir, self.rmdir, self.look, self.rename)
        notes: list[object] = []
        for _ in range(count):
            is_file = self.chance.random() < 0.7
            call = self.chance.choice(of_files if is_file else of_directories)
            name = self.chance.choice(self.FILES if is_file else self.DIRECTORIES)
            try:
                result: object = call(f"{self.root}/{name}", self.chance.randrange(1, 40))
            except OSError as error:
                result = type(error).__name__
            notes.append((call.__name__, name, result))
        return notes

    def with_file(self, path: str, flags: int, work: Callable[[int], object]) -> object:
        fd = self.filesystem.open(path, flags)
        try:
            return work(fd)
        finally:
            self.filesystem.close(fd)

    def can_create(self, path: str) -> bool:
        return self.filesystem.exists(str(Path(path).parent))

    def write(self, path: str, size: int) -> object:
        parts = [self.chance.randbytes(size), b"!"]
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if size < 5 else 0)
        return self.can_create(path) and self.with_file(path, flags, lambda fd: self.filesystem.writev(fd, parts))

    def read(self, path: str, size: int) -> object:
        return self.with_file(
            path, os.O_RDONLY, lambda fd: (self.filesystem.pread(fd, size, 3), self.filesystem.file_size(fd))
        )

    def truncate(self, path: str, size: int) -> object:
        return self.with_file(path, os.O_RDWR, lambda fd: self.filesystem.truncate(fd, size))

    def unlink(self, path: str, size: int) -> object:
        return self.filesystem.unlink(path)

    def look(self, path: str, size: int) -> object:
        names = sorted(self.filesystem.listdir(path))
        return self.filesystem.exists(path), names, self.filesystem.read_optional(path) if path[-1] in "fxy" else b""

    def map(self, path: str, size: int) -> object:
        if not self.can_create(path):
            return False
        mapping = self.filesystem.map(path, size)
        mapping[0:1] = b"m"
        mapping.close()
        return self.filesystem.size(path)

    def replace(self, path: str, size: int) -> object:
        return self.can_create(path) and self.filesystem.replace_file(path, bytes(size), sync=True)

    def rename(self, path: str, size: int) -> object:
        return self.filesystem.rename(path, f"{self.root}/{'file' if path[-1] in 'fxy' else 'directory'}{size}")

    def mkdir(self, path: str, size: int) -> object:
        return self.filesystem.mkdir(path)

    def rmdir(self, path: str, size: int) -> object:
        return self.filesystem.rmdir(path)


@pytest.mark.parametrize("seed", range(10))
def test_file_system_behaves_like_the_real_one(tmp_path: Path, seed: int) -> None:
    memory = MemoryFileSystem()
    memory.mkdir(str(tmp_path))
    found = FilePlayer(memory, str(tmp_path), seed).play(300)
    assert found == FilePlayer(FileSystem(), str(tmp_path), seed).play(300)
    for filesystem in (memory, FileSystem()):
        filesystem.remove_tree(str(tmp_path))
        assert not filesystem.exists(str(tmp_path))


def test_a_directory_is_renamed_while_another_thread_makes_files() -> None:
    memory = MemoryFileSystem()
    stop = threading.Event()

    def make_files() -> None:
        while not stop.is_set():
            for number in range(50):
                memory.close(memory.open(f"/other/{number}", os.O_CREAT | os.O_RDWR))
            for number in range(50):
                memory.unlink(f"/other/{number}")

    for number in range(200):
        memory.close(memory.open(f"/a/{number}", os.O_CREAT | os.O_RDWR))
    thread = threading.Thread(target=make_files)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(500):
            memory.rename("/a", "/b")
            memory.rename("/b", "/a")
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval_s)
    assert len(memory.listdir("/a")) == 200
    assert memory.listdir("/b") == []


def test_lock_lasts_until_its_descriptor_is_closed() -> None:
    memory = MemoryFileSystem()
    first, second = (memory.open("/data/.lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    with pytest.raises(BlockingIOError):
        memory.lock(second)
    memory.close(first)
    memory.lock(second)


CHANGES: list[Change] = [
    *(Put(VhostRow(name, f"id-{name}")) for name in ("/", "a")),
    *(Put(UserRow(name, "hash", "sha")) for name in ("guest", "anna")),
    *(Put(PermissionRow(user, vhost, "", "", "")) for user in ("guest", "anna") for vhost in ("/", "a")),
    Put(UserLimitsRow("anna", "{}")),
    Put(ScramRow("anna", "1", "2")),
    Put(ExchangeRow("a", "x", "topic")),
    *(Put(QueueRow("a", name, f"id-{name}")) for name in ("q", "r")),
    *(Put(BindingRow("a", "x", queue, "queue", key)) for queue in ("q", "r") for key in ("k", "\udcff")),
    Put(BindingRow("a", "y", "x", "exchange", "")),
    *(Put(StoredOffsetRow(f"id-{name}", "reader", 3, 4)) for name in ("q", "r")),
    Put(PolicyRow("a", "p", ".*", "all", "{}")),
    Put(SeenCacheRow("cache", "a", "x")),
    Put(SeenRow("cache", b"1", 1, 0)),
]


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [Delete(VhostRow("a", "id-a"))],
        [Delete(UserRow("anna", "", ""))],
        [Delete(QueueRow("a", "q", "id-q")), DeleteBindings("a", "q", "queue")],
        [DeleteBindings("a", "x", "exchange")],
        [Delete(BindingRow("a", "x", "q", "queue", "k")), Delete(SeenCacheRow("cache", "a", "x"))],
        [Put(VhostRow("a", "id-a", state="deleting")), Put(PolicyRow("a", "p", "q", "all", "{}", 1))],
    ],
    ids=["none", "vhost", "user", "queue", "exchange", "binding", "replaced"],
)
def test_metadata_has_the_rows_of_a_database(tmp_path: Path, changes: list[Change]) -> None:
    def reopened(make: Callable[[], SqlMetadataStore | MemoryMetadata]) -> MetadataState:
        errors: list[BaseException | None] = []
        store = make()
        store.open(lambda: [VhostRow("first", "id-first")])
        store.submit([*CHANGES, *changes], errors.append)
        store.close()
        assert errors == [None]
        again = make()
        state = again.open(list)
        again.close()
        return state._replace(
            instance_id="", **{name: sorted(rows) for name, rows in state._asdict().items() if isinstance(rows, list)}
        )

    def post(call: Callable[..., object], *arguments: object) -> None:
        call(*arguments)

    memory = MemoryMetadata()
    assert reopened(lambda: memory.begin(post)) == reopened(lambda: SqlMetadataStore("", tmp_path, post))


def test_metadata_in_memory_cannot_be_copied_nor_used_when_closed() -> None:
    errors: list[BaseException | None] = []
    store = MemoryMetadata().begin(lambda call, *arguments: call(*arguments))
    store.open()
    store.copy(Path("/backup"), errors.append)
    assert isinstance(errors[0], WriteFailed)
    store.close()
    with pytest.raises(MetadataClosed):
        store.checkpoint(errors.append)
