"""A file system in memory that forgets unsynced bytes, runs full, and fails on request. For tests.

It keeps two states: what a process sees, and what is on the medium. `fdatasync` moves a file's bytes from the one to
the other, `fsync_dir` a directory's names, `syncfs` everything. `crashed` gives the file system that a machine finds
after a power cut: for what was not synced a seed decides whether it got there, in part, torn at a sector, or with
holes. `killed` gives the one after the death of the process alone: nothing is lost but open descriptors.

One seed, one history: nothing here asks the time or the operating system.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

from amqpd.storage.filesystem import Clock, FileSystem, MappedBytes

SECTOR = 512


class _Node:
    """A file: `data` as processes see it, `synced` as it is on the medium. A directory: its names, both ways."""

    def __init__(self, *, directory: bool) -> None:
        self.directory = directory
        self.data = bytearray()
        self.synced = b""
        self.names: dict[str, _Node] = {}
        self.synced_names: dict[str, _Node] = {}


class _Mapping:
    def __init__(self, node: _Node) -> None:
        self._node = node

    def __setitem__(self, key: slice, value: bytes, /) -> None:
        self._node.data[key] = value

    def close(self) -> None:
        """Nothing to give back."""


class SimulatedClock(Clock):
    """A clock that stands until it is moved. jump_ms: by how much the wall clock was set since the start."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.jump_ms = 0

    def time_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.now_ms + self.jump_ms

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_ms / 1000

    def uptime(self) -> float:
        """Seconds, as `monotonic`."""
        return self.now_ms / 1000


class SimulatedFileSystem(FileSystem):
    """A disk in memory: what was written and not synced can be forgotten, and calls can fail.

    capacity: bytes that all files together may have; None for no limit.
    fault: called before each call with its name and path; an OSError it returns is raised instead of the call.
    """

    def __init__(
        self, *, capacity: int | None = None, fault: Callable[[str, str], OSError | None] | None = None
    ) -> None:
        super().__init__()
        self.capacity = capacity
        self.fault = fault
        self.calls: list[tuple[str, str]] = []
        self._root = _Node(directory=True)
        self._open: dict[int, tuple[_Node, str, bool]] = {}
        self._next_fd = 1000

    # -- crashes

    def killed(self) -> SimulatedFileSystem:
        """As the next process finds it after this one was killed. What was not synced still is not."""
        after = SimulatedFileSystem(capacity=self.capacity)
        after._root = _twin(self._root, {})
        return after

    def crashed(self, seed: int) -> SimulatedFileSystem:
        """As the machine finds it after a power cut; what was not synced is there or not as `seed` decides."""
        after = SimulatedFileSystem(capacity=self.capacity)
        after._root = _survivor(self._root, random.Random(seed))
        return after

    # -- helpers

    def _call(self, name: str, path: str) -> None:
        self.calls.append((name, path))
        if self.fault is not None:
            error = self.fault(name, path)
            if error is not None:
                raise error

    def _find(self, path: str) -> _Node | None:
        node = self._root
        for part in path.strip("/").split("/"):
            if not part:
                continue
            below = node.names.get(part)
            if below is None:
                return None
            node = below
        return node

    def _get(self, path: str) -> _Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _parent(self, path: str) -> tuple[_Node, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        return self._get(head), name

    def used(self) -> int:
        """Bytes in all files."""
        return _used(self._root)

    def _room(self, wanted: int) -> int:
        if self.capacity is None:
            return wanted
        room = self.capacity - self.used()
        if room <= 0 < wanted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return min(wanted, room)

    # -- the calls

    def open(self, path: str, flags: int) -> int:
        """See FileSystem."""
        self._call("open", path)
        node = self._find(path)
        if node is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            parent, name = self._parent(path)
            node = parent.names[name] = _Node(directory=False)
        if flags & os.O_TRUNC:
            del node.data[:]
        self._next_fd += 1
        self._open[self._next_fd] = (node, path, bool(flags & os.O_APPEND))
        return self._next_fd

    def close(self, fd: int) -> None:
        """See FileSystem."""
        del self._open[fd]

    def write(self, fd: int, data: bytes) -> int:
        """See FileSystem."""
        node, path, _ = self._open[fd]
        self._call("write", path)
        size = self._room(len(data))
        node.data += data[:size]
        return size

    def writev(self, fd: int, parts: list[bytes]) -> int:
        """See FileSystem."""
        return self.write(fd, b"".join(parts))

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        """See FileSystem."""
        node, path, _ = self._open[fd]
        self._call("pwrite", path)
        more = position + len(data) - len(node.data)
        if more > 0:
            data = data[: len(data) - more + self._room(more)]
        node.data += bytes(max(0, position - len(node.data)))
        node.data[position : position + len(data)] = data
        return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """See FileSystem."""
        node, path, _ = self._open[fd]
        self._call("pread", path)
        return bytes(node.data[position : position + size])

    def resident(self, fd: int, size: int, position: int) -> bool:
        """Everything is in memory."""
        return True

    def read_resident(self, fd: int, size: int, position: int) -> bytes:
        """Everything is in memory."""
        return self.pread(fd, size, position)

    def read_into_cache(self, fd: int, size: int, position: int) -> None:
        """Do nothing: all bytes are in memory."""

    def truncate(self, fd: int, size: int) -> None:
        """See FileSystem."""
        node, path, _ = self._open[fd]
        self._call("truncate", path)
        del node.data[size:]
        node.data += bytes(size - len(node.data))

    def fdatasync(self, fd: int) -> None:
        """See FileSystem."""
        node, path, _ = self._open[fd]
        self._call("fdatasync", path)
        node.synced = bytes(node.data)

    def fsync_dir(self, path: str) -> None:
        """See FileSystem."""
        self._call("fsync_dir", path)
        node = self._get(path)
        node.synced_names = dict(node.names)

    def syncfs(self, fd: int) -> None:
        """See FileSystem."""
        self._call("syncfs", "")
        _sync_all(self._root)

    def size(self, path: str) -> int:
        """See FileSystem."""
        return len(self._get(path).data)

    def file_size(self, fd: int) -> int:
        """See FileSystem."""
        return len(self._open[fd][0].data)

    def exists(self, path: str) -> bool:
        """See FileSystem."""
        return self._find(path) is not None

    def listdir(self, path: str) -> list[str]:
        """See FileSystem."""
        node = self._find(path)
        return list(node.names) if node is not None else []

    def mkdir(self, path: str) -> bool:
        """See FileSystem."""
        self._call("mkdir", path)
        parent, name = self._parent(path)
        if name in parent.names:
            return False
        parent.names[name] = _Node(directory=True)
        return True

    def rmdir(self, path: str) -> None:
        """See FileSystem."""
        self._call("rmdir", path)
        parent, name = self._parent(path)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        del parent.names[name]

    def rename(self, source: str, target: str) -> None:
        """See FileSystem."""
        self._call("rename", source)
        parent, name = self._parent(source)
        node = self._get(source)
        target_parent, target_name = self._parent(target)
        del parent.names[name]
        target_parent.names[target_name] = node

    def unlink(self, path: str) -> None:
        """See FileSystem."""
        self._call("unlink", path)
        node = self._find(path)
        if node is None:
            return
        if node.directory:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        parent, name = self._parent(path)
        del parent.names[name]

    def map(self, path: str, size: int) -> MappedBytes:
        """See FileSystem."""
        fd = self.open(path, os.O_RDWR | os.O_CREAT)
        node = self._open[fd][0]
        self.close(fd)
        if len(node.data) < size:
            self._room(size - len(node.data))
            node.data += bytes(size - len(node.data))
        return _Mapping(node)

    def free_bytes(self, path: str) -> int:
        """Room for bytes."""
        return self.capacity - self.used() if self.capacity is not None else 1 << 60

    def open_spare(self) -> None:
        """Do nothing: descriptors are not limited here."""

    def pause(self, seconds: float) -> None:
        """No time passes."""

    def lock(self, fd: int) -> None:
        """See FileSystem."""


def _used(node: _Node) -> int:
    return len(node.data) + sum(_used(below) for below in node.names.values())


def _sync_all(node: _Node) -> None:
    node.synced = bytes(node.data)
    node.synced_names = dict(node.names)
    for below in node.names.values():
        _sync_all(below)


def _twin(node: _Node, twins: dict[_Node, _Node]) -> _Node:
    twin = twins.get(node)
    if twin is None:
        twin = twins[node] = _Node(directory=node.directory)
        twin.data = bytearray(node.data)
        twin.synced = node.synced
        twin.names = {name: _twin(below, twins) for name, below in node.names.items()}
        twin.synced_names = {name: _twin(below, twins) for name, below in node.synced_names.items()}
    return twin


def _survivor(node: _Node, chance: random.Random) -> _Node:
    after = _Node(directory=node.directory)
    if node.directory:
        names = dict(node.synced_names)
        for name in {**node.names, **node.synced_names}:
            if node.names.get(name) is not node.synced_names.get(name) and chance.random() < 0.5:
                if name in node.names:
                    names[name] = node.names[name]
                else:
                    names.pop(name, None)
        for name, below in node.synced_names.items():
            if below not in names.values() and below in node.names.values():
                names.setdefault(name, below)  # a rename takes place or it does not: no file is lost by one
        after.names = {name: _survivor(below, chance) for name, below in names.items()}
        after.synced_names = dict(after.names)
        return after
    data = _surviving(bytes(node.data), node.synced, chance)
    after.data = bytearray(data)
    after.synced = data
    return after


def _surviving(data: bytes, synced: bytes, chance: random.Random) -> bytes:
    """Return what a power cut leaves of the unsynced `data`; `synced` was on the medium before."""
    kind = chance.randrange(5)
    if kind == 0 or data == synced:
        return synced
    if kind == 1:
        return data
    if len(data) <= len(synced):  # cut or written over
        return chance.choice((data, synced))
    common = len(synced) if data.startswith(synced) else 0
    stop = chance.randint(common, len(data))
    if kind == 2:  # torn somewhere
        return data[:stop]
    if kind == 3:  # the size got there, the bytes did not
        return data[:stop] + bytes(len(data) - stop)
    sectors = bytearray(data)  # some sectors got there, others did not
    for position in range(common - common % SECTOR, len(data), SECTOR):
        if chance.random() < 0.3:
            low = max(position, common)
            high = min(position + SECTOR, len(data))
            sectors[low:high] = bytes(max(0, high - low))
    return bytes(sectors)
