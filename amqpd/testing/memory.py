"""Disk and database in memory, for brokers whose data no test needs later.

`MemoryFileSystem` serves the logs and `MemoryMetadata` the declared objects. Both are filled with the content of a
stopped broker if the next one gets the same objects. A sync costs nothing and a power cut loses everything. Log files
of `amqpd.storage` are the same bytes as on a disk.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqpd.storage.filesystem import FileSystem, MappedBytes
from amqpd.storage.metadata.rows import BindingRow, Delete, DeleteBindings, Put
from amqpd.storage.metadata.schema import TABLE_OF, TABLES, parent_key
from amqpd.storage.metadata.store import MetadataClosed, WriteFailed, random_id, state_of

if TYPE_CHECKING:
    from amqpd.storage.metadata.rows import Change, Row
    from amqpd.storage.metadata.store import Done, MetadataState

FIRST_FD: Final = 1 << 30
"""Descriptors in memory are larger than any of the operating system, so that a mixture fails at once."""

FREE_BYTES: Final = 1 << 40
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class MemoryFile:
    """A file: its bytes."""

    def __init__(self) -> None:
        self.data = bytearray()


class MemoryMapping:
    """A mapping of a file in memory: assignment changes the file."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file

    def __setitem__(self, key: slice, value: bytes, /) -> None:
        self._file.data[key] = value

    def close(self) -> None:
        """Do nothing: a mapping owns nothing."""


class MemoryFileSystem(FileSystem):
    """Files in the memory of this process. Threads may share it if they use different files.

    Directories above a path exist when it is created. Memory use: the bytes of the files.
    """

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, MemoryFile] = {}
        self._directories: dict[str, dict[str, None]] = {"/": {}}  # path -> names in it
        self._open: dict[int, tuple[MemoryFile | None, str]] = {}
        self._fds = itertools.count(FIRST_FD)
        self._create(BOOT_ID).data += f"{random_id()}\n".encode()

    def _enter(self, path: str) -> None:
        """Put a name into its directory, which is created if it is missing."""
        parent, _, name = path.rpartition("/")
        parent = parent or "/"
        if parent not in self._directories:
            self._directories[parent] = {}
            self._enter(parent)
        self._directories[parent][name] = None

    def _leave(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._directories[parent or "/"].pop(name, None)

    def _create(self, path: str) -> MemoryFile:
        file = self._files[path] = MemoryFile()
        self._enter(path)
        return file

    def _at(self, fd: int) -> MemoryFile:
        file = self._open[fd][0]
        if file is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return file

    def open(self, path: str, flags: int) -> int:
        file = self._files.get(path)
        if file is None and path not in self._directories:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file = self._create(path)
        elif file is not None and flags & os.O_TRUNC:
            file.data.clear()
        fd = next(self._fds)
        self._open[fd] = file, path
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def write(self, fd: int, data: bytes) -> int:
        self._at(fd).data += data
        return len(data)

    def writev(self, fd: int, parts: list[bytes]) -> int:
        return self.write(fd, b"".join(parts))

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        content = self._at(fd).data
        content += bytes(max(0, position - len(content)))
        content[position : position + len(data)] = data
        return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._at(fd).data[position : position + size])

    def resident(self, fd: int, size: int, position: int) -> bool:
        return True

    def read_resident(self, fd: int, size: int, position: int) -> bytes:
        return self.pread(fd, size, position)

    def read_into_cache(self, fd: int, size: int, position: int) -> None:
        """Do nothing: all bytes are in memory."""

    def truncate(self, fd: int, size: int) -> None:
        data = self._at(fd).data
        del data[size:]
        data += bytes(size - len(data))

    def fdatasync(self, fd: int) -> None:
        """Do nothing: there is no medium."""

    def fsync_dir(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def syncfs(self, fd: int) -> None:
        """Do nothing: there is no medium."""

    def size(self, path: str) -> int:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return len(file.data)

    def file_size(self, fd: int) -> int:
        return len(self._at(fd).data)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def listdir(self, path: str) -> list[str]:
        return list(self._directories.get(path, ()))

    def mkdir(self, path: str) -> bool:
        if path in self._directories:
            return False
        self._directories[path] = {}
        self._enter(path)
        return True

    def rmdir(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._directories[path]:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        del self._directories[path]
        self._leave(path)

    def rename(self, source: str, target: str) -> None:
        if source in self._files:
            self._files[target] = self._files.pop(source)
        elif source in self._directories:
            self._rename_directory(source, target)
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._leave(source)
        self._enter(target)

    def _rename_directory(self, source: str, target: str) -> None:
        if self._directories.get(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        inside = f"{source}/"
        for path in [path for path in list(self._files) if path.startswith(inside)]:
            self._files[target + path[len(source) :]] = self._files.pop(path)
        for path in [path for path in list(self._directories) if path == source or path.startswith(inside)]:
            self._directories[target + path[len(source) :]] = self._directories.pop(path)

    def unlink(self, path: str) -> None:
        if path in self._directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if self._files.pop(path, None) is not None:
            self._leave(path)

    def map(self, path: str, size: int) -> MappedBytes:
        file = self._files.get(path) or self._create(path)
        file.data += bytes(max(0, size - len(file.data)))
        return MemoryMapping(file)

    def free_bytes(self, path: str) -> int:
        return FREE_BYTES

    def open_spare(self) -> None:
        """Do nothing: descriptors in memory are not limited."""

    def lock(self, fd: int) -> None:
        """Lock the file until its descriptor is closed. Raises: BlockingIOError if another one has the lock."""
        path = self._open[fd][1]
        if any(other != fd and opened == path for other, (_, opened) in list(self._open.items())):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)

    def is_open_at(self, fd: int, path: str) -> bool:
        return self._open[fd][1] == path


class MemoryRows:
    """The rows of the metadata, which outlive a broker."""

    def __init__(self) -> None:
        self._rows: dict[type[Row], dict[tuple[object, ...], Row]] = {table.row: {} for table in TABLES}

    def state(self, instance: str = "") -> MetadataState:
        return state_of(instance, {kind: list(rows.values()) for kind, rows in self._rows.items()})

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        if isinstance(change, DeleteBindings):
            bindings = self._rows[BindingRow]
            for key, row in list(bindings.items()):
                if isinstance(row, BindingRow) and _is_of(row, change):
                    del bindings[key]
            return
        key = _key(change.row)
        rows = self._rows[type(change.row)]
        if isinstance(change, Put):
            rows[key] = change.row
        elif rows.pop(key, None) is not None:
            self._delete_children(change)

    def _delete_children(self, deleted: Delete) -> None:
        """Delete the rows whose parent was deleted, as the database does."""
        name = TABLE_OF[type(deleted.row)].name
        for table in TABLES:
            for column, parent in table.parents:
                if parent == name:
                    value = getattr(deleted.row, parent_key(parent))
                    for row in list(self._rows[table.row].values()):
                        if getattr(row, column) == value:
                            self._apply(Delete(row))


class MemoryMetadata:
    """The metadata in memory: see `amqpd.storage.metadata.store.MetadataStore`.

    The rows survive `close`: `open` returns them to the next broker.
    """

    def __init__(self) -> None:
        self._post: Callable[..., object] | None = None
        self._instance = ""
        self._rows = MemoryRows()

    def begin(self, post: Callable[..., object]) -> MemoryMetadata:
        """Return this store for a broker whose loop runs what `post` gets."""
        self._post = post
        return self

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        if not self._instance:
            self._instance = random_id()
            self._rows.apply([Put(row) for row in (seed() if seed is not None else ())])
        return self._rows.state(self._instance)

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        self._rows.apply(changes)
        self._answer(done, None)

    def checkpoint(self, done: Done) -> None:
        self._answer(done, None)

    def copy(self, path: Path, done: Done) -> None:
        self._answer(done, WriteFailed(f"the metadata is in memory: there is no database to copy to {path}"))

    def close(self, timeout_s: float = 5.0) -> None:
        self._post = None

    def _answer(self, done: Done, error: BaseException | None) -> None:
        if self._post is None:
            raise MetadataClosed("the metadata is not open")
        self._post(done, error)


def _key(row: Row) -> tuple[object, ...]:
    table = TABLE_OF[type(row)]
    return tuple(row) if table.has_digest else tuple(getattr(row, name) for name in table.key)


def _is_of(row: BindingRow, change: DeleteBindings) -> bool:
    if row.vhost != change.vhost:
        return False
    ends_there = row.destination == change.name and row.destination_type == change.kind
    return ends_there or (change.kind == "exchange" and row.source == change.name)
