"""Clock and disk of a broker under test: the clock is moved, the disk is slow or full when a test asks for it.

This module runs in the broker. A test uses `amqpd.testing.control`.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from amqpd.server import Substitutes
from amqpd.storage.filesystem import Clock, FileSystem, MappedBytes
from amqpd.testing.memory import MemoryFileSystem, MemoryMetadata

if TYPE_CHECKING:
    from amqpd.storage.metadata.store import MetadataStore


class OffsetClock(Clock):
    """The machine's clock, ahead by `offset_s`. All three readings move together, so no jump of the clock is seen."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def time_ms(self) -> int:
        return super().time_ms() + int(self.offset_s * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self.offset_s

    def uptime(self) -> float:
        return super().uptime() + self.offset_s


class DiskFaults(FileSystem):
    """A disk that is slow or full on demand.

    Attributes:
        sync_delay_s: Additional time of each sync.
        is_full: Writes fail with ENOSPC, and no byte is free.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sync_delay_s = 0.0
        self.is_full = False

    def _check_space(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _delay(self) -> None:
        if self.sync_delay_s:
            self.pause(self.sync_delay_s)

    def write(self, fd: int, data: bytes) -> int:
        self._check_space()
        return super().write(fd, data)

    def writev(self, fd: int, parts: list[bytes]) -> int:
        self._check_space()
        return super().writev(fd, parts)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        self._check_space()
        return super().pwrite(fd, data, position)

    def map(self, path: str, size: int) -> MappedBytes:
        self._check_space()
        return super().map(path, size)

    def mkdir(self, path: str) -> bool:
        if not self.exists(path):
            self._check_space()
        return super().mkdir(path)

    def fdatasync(self, fd: int) -> None:
        self._delay()
        super().fdatasync(fd)

    def syncfs(self, fd: int) -> None:
        self._delay()
        super().syncfs(fd)

    def free_bytes(self, path: str) -> int:
        return 0 if self.is_full else super().free_bytes(path)


class MemoryDisk(DiskFaults, MemoryFileSystem):
    """A disk in memory with the same faults."""


class BrokerSubstitutes:
    """Clock, disk and database of a broker under test. They stay for its later starts; faults of the disk end.

    Args:
        memory: Data and metadata are in memory.
    """

    def __init__(self, memory: bool) -> None:
        self.clock = OffsetClock()
        self.disk: DiskFaults = MemoryDisk() if memory else DiskFaults()
        self._metadata = MemoryMetadata() if memory else None

    def for_start(self) -> Substitutes:
        """Return them for one start of a broker."""
        self.disk.sync_delay_s, self.disk.is_full = 0.0, False
        return Substitutes(self.clock, self.disk, None if self._metadata is None else self._metadata.begin)


if TYPE_CHECKING:
    _metadata_store: MetadataStore = MemoryMetadata()
