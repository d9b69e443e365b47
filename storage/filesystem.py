"""The one seam between the store and the operating system: files, and time.

Everything in this package that touches a disk goes through a `FileSystem`, everything that asks for the time through a
`Clock`. The ones here are the real ones; a test puts in one that records, forgets what was not synced, or fails at the
n-th call, and a seed then replays a failure.

`OpenFile` is one descriptor and what must be known before it may be closed: whether it holds bytes that no sync has
covered, and how many syncs are at work on it in the committer's thread just now.
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
# A read that must not wait for the disk would have to, or the file system cannot say.
NOT_SAID = frozenset((errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class MappedBytes(Protocol):
    """A few bytes of a file that are written by assignment, without a system call."""

    def __setitem__(self, key: slice, value: bytes, /) -> None: ...

    def close(self) -> None: ...


class FileSystem:
    """The operating system's calls, named as there. Every method raises OSError and nothing else."""

    def __init__(self) -> None:
        self.open_file_count = 0  # of OpenFile objects, and of mappings, which keep one each
        self.open_file_count_max = 1 << 30  # above it logs close what they have written to, before it is synced
        self.make_room: Callable[[], bool] | None = None  # closes what may be closed; whether that was any (loop only)
        self.safe_directories: set[str] = set()  # above the logs: their names were synced in this life
        self._libc: ctypes.CDLL | None = None
        self._nowhere = -1
        self.closer: Callable[[int], None] | None = None  # closes descriptors of removed files; see `dispose`
        self._spare = -1

    def open(self, path: str, flags: int) -> int:
        """A descriptor; new files get mode 0600."""
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        """Closes `fd`."""
        os.close(fd)

    @property
    def crowded(self) -> bool:
        """Whether more descriptors are open than should be."""
        return self.open_file_count > self.open_file_count_max

    def room_after(self, error: OSError) -> bool:
        """Whether to try again what has failed so: there was no descriptor, and some of our own were closed. Loop."""
        return error.errno in {errno.EMFILE, errno.ENFILE} and self.make_room is not None and self.make_room()

    def dispose(self, fd: int) -> None:
        """Closes the last descriptor of a removed file. That frees its blocks and pages, some milliseconds per 64 MiB,
        and many more where the disk is told (mount option discard), so it is done elsewhere if somebody does.
        """
        if self.closer is not None:
            self.closer(fd)
        else:
            self.close(fd)

    def write(self, fd: int, data: bytes) -> int:
        """Bytes written, which may be fewer than given."""
        return os.write(fd, data)

    def writev(self, fd: int, parts: list[bytes]) -> int:
        """Bytes written of all `parts` together (at most 1024 parts), which may be fewer than given."""
        return os.writev(fd, parts)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer at the end of the file."""
        return os.pread(fd, size, position)

    def resident(self, fd: int, size: int, position: int) -> bool:
        """Whether these bytes are in the page cache, as far as a look each 64 KiB tells; where the file system cannot
        say, they are not. Cost: 0.5 us a look.
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
        """As `pread` of a few bytes, where they are in the page cache; else, or where nobody can say, nothing."""
        data = bytearray(size)
        try:
            size = os.preadv(fd, [data], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in NOT_SAID:
                return b""
            raise
        return bytes(data[:size]) if size < len(data) else bytes(data)

    def fetch(self, fd: int, size: int, position: int) -> None:
        """Returns when these bytes are in the page cache. They are not copied: some 25 us per MiB that is there."""
        if self._nowhere < 0:
            self._nowhere = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)
        while size > 0:
            sent = os.sendfile(self._nowhere, fd, position, size)
            if sent <= 0:
                return
            position += sent
            size -= sent

    def truncate(self, fd: int, size: int) -> None:
        """Cuts (or extends with zeros) the file to `size` bytes."""
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        """Returns when the file's bytes and size are on the medium. Never call it again for a file it failed on."""
        os.fdatasync(fd)

    def fsync_dir(self, path: str) -> None:
        """Returns when the entries of the directory `path` are on the medium."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def syncfs(self, fd: int) -> None:
        """Syncs the whole file system that `fd` is on. Python 3.11 has no os.syncfs, hence ctypes."""
        if self._libc is None:
            self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def size(self, path: str) -> int:
        """Size of the file in bytes."""
        return os.stat(path).st_size

    def file_size(self, fd: int) -> int:
        """Size of the open file in bytes."""
        return os.fstat(fd).st_size

    def exists(self, path: str) -> bool:
        """Whether something stands at `path`."""
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        """Names in the directory; an empty list where there is none."""
        try:
            return os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def mkdir(self, path: str) -> bool:
        """Makes one directory (mode 0700); False where it exists already."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        return True

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        """Moves `source` over `target` in one step."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Removes a file; one that is not there is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def map(self, path: str, size: int) -> MappedBytes:
        """The first `size` bytes of `path`, which is made and filled with zeros when it is shorter. Raises: OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Writing into a mapping for which a full disk has no block is a SIGBUS. A write does not do: ext4 puts its
            # block off, also in a life that was killed before.
            os.posix_fallocate(fd, 0, size)
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        """What an unprivileged process may still write to the file system of `path`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def keep_spare(self) -> None:
        """Holds a descriptor for when there is no other, if it can have one. One thread's, as `give_spare` is."""
        if self._spare < 0:
            try:
                self._spare = self.open("/dev/null", READ)
            except OSError as error:
                logger.warning("no descriptor to spare: %s", error)

    def give_spare(self) -> bool:
        """Lets go of it, so that something can be opened; False when there is none."""
        spare, self._spare = self._spare, -1
        if spare >= 0:
            self.close(spare)
        return spare >= 0

    def pause(self, seconds: float) -> None:
        """Waits for something that passes, in a thread that may; 0: lets the other threads run."""
        time.sleep(seconds)

    def lock(self, fd: int) -> None:
        """Takes the exclusive lock of the open file. Raises: BlockingIOError when another process has it."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    # what follows is made of the calls above

    def read_file(self, path: str) -> bytes:
        """The whole file. Raises: FileNotFoundError."""
        fd = self.open(path, READ)
        try:
            parts = []
            position = 0
            while part := self.pread(fd, 1 << 20, position):
                parts.append(part)
                position += len(part)
            return b"".join(parts)
        finally:
            self.close(fd)

    def write_whole(self, fd: int, data: bytes) -> None:
        """All of `data`, in as many writes as it takes."""
        while data:
            written = self.write(fd, data)
            if written <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[written:]

    def read_if_there(self, path: str) -> bytes:
        """The whole file, nothing where it is missing or unreadable: of those that can be done without.

        Raises: OSError where there is no descriptor to read it with, which says nothing about the file.
        """
        try:
            return self.read_file(path)
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                raise
            return b""

    def fsync_file(self, path: str) -> None:
        """`fdatasync` for a file that is not open."""
        fd = self.open(path, READ)
        try:
            self.fdatasync(fd)
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """`path` holds `data` or what it held before, never a part. sync: before the rename, so also after a power
        cut.
        """
        temporary = path + ".swap"
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            self.write_whole(fd, data)
            if sync:
                self.fdatasync(fd)
        except OSError:
            self.unlink(temporary)  # on a full disk even the part that was written is missed elsewhere
            raise
        finally:
            self.close(fd)
        self.rename(temporary, path)

    def remove_tree(self, path: str) -> None:
        """Removes a directory and everything in it. What is not there is no error."""
        self.empty_tree(path)
        try:
            self.rmdir(path)
        except FileNotFoundError:
            return

    def empty_tree(self, path: str) -> None:
        """Removes everything in a directory. What is not there is no error."""
        for name in self.listdir(path):
            child = f"{path}/{name}"
            try:
                self.unlink(child)
            except (IsADirectoryError, PermissionError):
                self.remove_tree(child)


class Clock:
    """Wall and monotonic time."""

    def time_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def uptime(self) -> float:
        """Seconds since the machine started, those included in which it slept; never goes back."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class OpenFile:
    """One open descriptor. `dirty`: written to since it was last given to a sync. `pins`: syncs at work on it.
    `removed`: its file is gone, and this keeps the last of it.
    """

    __slots__ = ("closing", "dirty", "fd", "filesystem", "path", "pins", "removed")

    def __init__(self, filesystem: FileSystem, path: str, flags: int) -> None:
        self.filesystem = filesystem
        self.path = path
        self.fd = filesystem.open(path, flags)
        filesystem.open_file_count += 1
        self.dirty = False
        self.pins = 0
        self.closing = False
        self.removed = False

    def close(self) -> None:
        """Closes at once, or when the syncs at work are done. The object is not used afterwards."""
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
        """One sync is done."""
        self.pins -= 1
        if self.closing and self.pins == 0:
            self.close()


class Reserve:
    """Room kept on the disk for settlements, so that a full disk can still be drained. A file of zeros."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self.held = False

    def take(self) -> None:
        """Fills the file, so that its blocks are ours. Raises: OSError where there is no room."""
        if not self._filesystem.exists(self._path) or self._filesystem.size(self._path) != RESERVE_SIZE_BYTES:
            self._filesystem.replace_file(self._path, bytes(RESERVE_SIZE_BYTES), sync=False)
        self.held = True

    def release(self) -> bool:
        """Gives the room up; False when it was given up before."""
        if not self.held:
            return False
        self.held = False
        logger.error("the disk is full: the reserve for settlements is given up")
        self._filesystem.unlink(self._path)
        return True
