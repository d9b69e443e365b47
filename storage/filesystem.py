"""The interface to the operating system: files (`FileSystem`) and time (`Clock`).

All disk access of this package uses a `FileSystem`, and all time a `Clock`. Tests replace them by objects that
record calls, lose unsynced data or fail at the n-th call; a seed then replays a failure.

`OpenFile` is a descriptor with the facts that decide when it may be closed: unsynced bytes, and syncs in progress.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

RESERVE_SIZE_BYTES = 1 << 20
READ = os.O_RDONLY | os.O_CLOEXEC
# Errors without a free descriptor, of the process or of the machine.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
# Errors of a read that must not wait: the data is not cached, or the file system does not support the check.
NOT_SAID = frozenset((errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class MappedBytes(Protocol):
    """Some bytes of a file that assignment changes without a system call."""

    def __setitem__(self, key: slice, value: bytes, /) -> None: ...

    def close(self) -> None: ...


class IndexOwner(Protocol):
    """A sealed segment, which can read its indexes again."""

    def drop_indexes(self) -> None: ...


class LoadedIndexes:
    """The sealed segments with indexes in memory. Above `bytes_max` those loaded first lose theirs. Loop thread only.

    A look-up of an offset or a time loads 300 KiB for a segment of 64 MiB, and a stream can have thousands of them.
    """

    def __init__(self) -> None:
        self.bytes_max = 64 << 20
        self._bytes = 0
        self._sizes: dict[IndexOwner, int] = {}

    def add(self, owner: IndexOwner, size_bytes: int) -> None:
        """Add a segment that has loaded an index. size_bytes: of both its indexes. Cost: 1 us."""
        self.remove(owner)
        self._sizes[owner] = size_bytes
        self._bytes += size_bytes
        while self._bytes > self.bytes_max and len(self._sizes) > 1:
            next(iter(self._sizes)).drop_indexes()

    def remove(self, owner: IndexOwner) -> None:
        """Remove a segment, if it is here."""
        self._bytes -= self._sizes.pop(owner, 0)


class FileSystem:
    """System calls under their usual names. Methods raise OSError only."""

    def __init__(self) -> None:
        self.open_file_count = 0  # OpenFile objects, and mappings, which keep a descriptor
        self.open_file_count_max = 1 << 30  # above it, logs close files with unsynced writes
        # Closes files that may be closed and returns whether it closed any. Loop thread only.
        self.make_room: Callable[[], bool] | None = None
        # Parent directories of logs whose names this process has synced.
        self.safe_directories: set[str] = set()
        self.indexes = LoadedIndexes()
        self._libc: ctypes.CDLL | None = None
        self._null_fd = -1
        self.closer: Callable[[int], None] | None = None  # closes descriptors of deleted files; see `dispose`
        self._spare = -1

    def open(self, path: str, flags: int) -> int:
        """Open a file and return its descriptor. New files get mode 0600."""
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    @property
    def has_too_many_open(self) -> bool:
        """True if more descriptors are open than allowed."""
        return self.open_file_count > self.open_file_count_max

    def can_retry_after(self, error: OSError) -> bool:
        """Return whether to retry after `error`: no descriptor was free, and own files were closed. Loop thread."""
        return error.errno in NO_DESCRIPTOR and self.make_room is not None and self.make_room()

    def dispose(self, fd: int) -> None:
        """Close the last descriptor of a deleted file, in another thread if `closer` is set.

        This frees its blocks and pages: some milliseconds per 64 MiB, and much more with the mount option discard.
        """
        if self.closer is not None:
            self.closer(fd)
        else:
            self.close(fd)

    def write(self, fd: int, data: bytes) -> int:
        """Write and return the number of bytes written, which may be fewer."""
        return os.write(fd, data)

    def writev(self, fd: int, parts: list[bytes]) -> int:
        """Write `parts` (at most 1024) and return the number of bytes written, which may be fewer."""
        return os.writev(fd, parts)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        """Write at `position` and return the number of bytes written, which may be fewer.

        The file must be open without O_APPEND: Linux would append to it.
        """
        return os.pwrite(fd, data, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`, fewer at the end of the file."""
        return os.pread(fd, size, position)

    def resident(self, fd: int, size: int, position: int) -> bool:
        """Return whether the range is in the page cache, checking one byte per 64 KiB.

        False if the file system does not support the check. Cost: 0.5 us per check.
        """
        byte = [bytearray(1)]
        try:
            for place in (*range(position, position + size - 1, 65536), position + size - 1):
                if os.preadv(fd, byte, place, os.RWF_NOWAIT) != 1:
                    return False
        except OSError as error:
            if error.errno in NOT_SAID:
                return False
            raise
        return True

    def read_resident(self, fd: int, size: int, position: int) -> bytes:
        """Return the bytes if they are in the page cache, else nothing. For small sizes."""
        data = bytearray(size)
        try:
            size = os.preadv(fd, [data], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in NOT_SAID:
                return b""
            raise
        return bytes(data[:size]) if size < len(data) else bytes(data)

    def read_into_cache(self, fd: int, size: int, position: int) -> None:
        """Read the range into the page cache without copying it. Blocks. Cost: about 25 us per MiB already there."""
        if self._null_fd < 0:
            self._null_fd = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)
        while size > 0:
            sent = os.sendfile(self._null_fd, fd, position, size)
            if sent <= 0:
                return
            position += sent
            size -= sent

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        """Sync data and size of the file. Never call it again for a file for which it failed."""
        os.fdatasync(fd)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def syncfs(self, fd: int) -> None:
        """Sync the whole file system of `fd`. Python 3.11 has no os.syncfs, so this uses ctypes."""
        if self._libc is None:
            self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def file_size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in the directory; an empty list if it does not exist."""
        try:
            return os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def mkdir(self, path: str) -> bool:
        """Create a directory with mode 0700. Return False if it exists."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        return True

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically, replacing it."""
        os.replace(source, target)

    def give_to_owner(self, path: str) -> None:
        """Give a file that root has written to the owner of its directory: the broker may run as another user."""
        if os.geteuid() == 0:
            owner = os.stat(os.path.dirname(path))
            os.chown(path, owner.st_uid, owner.st_gid)

    def unlink(self, path: str) -> None:
        """Delete a file if it exists."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def map(self, path: str, size: int) -> MappedBytes:
        """Map the first `size` bytes of `path`; create or extend the file with zeros."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Writing to a mapping raises SIGBUS if a full disk has no block for it. A write is not enough: ext4
            # allocates its block later, and a kill may come before.
            os.posix_fallocate(fd, 0, size)
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def open_spare(self) -> None:
        """Open a spare descriptor for later, if possible. Only one thread may use it, also `close_spare`."""
        if self._spare < 0:
            try:
                self._spare = self.open("/dev/null", READ)
            except OSError as error:
                logger.warning("cannot open a spare descriptor: %s", error)

    def close_spare(self) -> bool:
        """Close the spare descriptor so that a file can be opened. Return False if there is none."""
        spare, self._spare = self._spare, -1
        if spare >= 0:
            self.close(spare)
        return spare >= 0

    def pause(self, seconds: float) -> None:
        """Sleep; 0 lets other threads run. Not on the loop's thread."""
        time.sleep(seconds)

    def lock(self, fd: int) -> None:
        """Lock the open file exclusively. Raises: BlockingIOError if another process has the lock."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_open_at(self, fd: int, path: str) -> bool:
        """Return whether the path names the open file. False if it was removed, moved or replaced."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(fd))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # for example no permission any more: unknown
            return True

    # The methods below use only those above.

    def read_file(self, path: str) -> bytes:
        """Return the content of a file. Raises: FileNotFoundError; OSError with the path, also if a read failed."""
        fd = self.open(path, READ)
        try:
            parts = []
            position = 0
            while part := self.pread(fd, 1 << 20, position):
                parts.append(part)
                position += len(part)
            return b"".join(parts)
        except OSError as error:
            error.filename = path
            raise
        finally:
            self.close(fd)

    def write_whole(self, fd: int, data: bytes) -> None:
        """Write all of `data`, with as many calls as necessary."""
        while data:
            written = self.write(fd, data)
            if written <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[written:]

    def pwrite_whole(self, fd: int, data: bytes, position: int) -> None:
        """Write all of `data` at `position`, with as many calls as necessary."""
        while data:
            written = self.pwrite(fd, data, position)
            if written <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[written:]
            position += written

    def read_optional(self, path: str) -> bytes:
        """Return the content of an optional file; nothing if it is missing or unreadable.

        Raises: OSError without a free descriptor, which says nothing about the file.
        """
        try:
            return self.read_file(path)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise
            return b""

    def fsync_file(self, path: str) -> None:
        """`fdatasync` a file that is not open."""
        fd = self.open(path, READ)
        try:
            self.fdatasync(fd)
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Replace the content of a file atomically: a crash leaves the old or the new content.

        Args:
            sync: sync before the rename, so that this also holds for a power cut.
        """
        temporary = path + ".swap"
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            self.write_whole(fd, data)
            if sync:
                self.fdatasync(fd)
        except OSError:
            self.unlink(temporary)  # frees space on a full disk
            raise
        finally:
            self.close(fd)
        self.rename(temporary, path)

    def remove_tree(self, path: str) -> None:
        """Delete a directory and its content, if it exists."""
        self.empty_tree(path)
        try:
            self.rmdir(path)
        except FileNotFoundError:
            return

    def empty_tree(self, path: str) -> None:
        """Delete the content of a directory, if it exists."""
        for name in self.listdir(path):
            child = f"{path}/{name}"
            try:
                self.unlink(child)
            except (IsADirectoryError, PermissionError):
                self.remove_tree(child)


class Clock:
    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return time.monotonic()

    def uptime(self) -> float:
        """Return seconds since the machine started, including sleep; they never decrease."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class OpenFile:
    """An open descriptor.

    Attributes:
        dirty: written since it was last included in a sync.
        journaled: the journal has bytes of it that no sync of the file has covered.
        pins: syncs and reads in progress.
        removed: the file is deleted, and this is its last descriptor.
    """

    __slots__ = ("closing", "dirty", "fd", "filesystem", "journaled", "path", "pins", "removed")

    def __init__(self, filesystem: FileSystem, path: str, flags: int) -> None:
        self.filesystem = filesystem
        self.path = path
        self.fd = filesystem.open(path, flags)
        filesystem.open_file_count += 1
        self.dirty = False
        self.journaled = False
        self.pins = 0
        self.closing = False
        self.removed = False

    def close(self) -> None:
        """Close now, or when the syncs in progress end. The object must not be used again."""
        if self.pins > 0:
            self.closing = True
        elif self.fd >= 0:
            fd, self.fd = self.fd, -1
            self.filesystem.open_file_count -= 1
            if self.removed:
                self.filesystem.dispose(fd)
            else:
                self.filesystem.close(fd)

    def unpin(self) -> None:
        """End one use that `pins` counts."""
        self.pins -= 1
        if self.closing and self.pins == 0:
            self.close()


class Reserve:
    """A file of zeros that reserves disk space: when the disk is full, settled offsets can still be written."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self.held = False

    def take(self) -> None:
        """Write the file, which allocates its blocks. Raises: OSError on a full disk."""
        if not self._filesystem.exists(self._path) or self._filesystem.size(self._path) != RESERVE_SIZE_BYTES:
            self._filesystem.replace_file(self._path, bytes(RESERVE_SIZE_BYTES), sync=False)
        self.held = True

    def release(self) -> bool:
        """Delete the file. Return False if it was deleted before."""
        if not self.held:
            return False
        self.held = False
        logger.error("the disk is full: the reserve is deleted")
        self._filesystem.unlink(self._path)
        return True
