"""A broker on a disk that answers once the gate file exists: `python slow_disk.py GATE OPTION...`.

No part of a log counts as cached before it was fetched. Fetching, and reading parts that were not fetched, wait in
their thread until the file GATE exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from amqpd.__main__ import main
from amqpd.storage.filesystem import FileSystem

GATE: Final = Path(sys.argv.pop(1))
SMALL: Final = 4096  # reads up to this size (a header) do not wait
logs: set[int] = set()
fetched: dict[int, list[tuple[int, int]]] = {}
system_open, system_close, system_fetch, system_pread = (
    FileSystem.open,
    FileSystem.close,
    FileSystem.read_into_cache,
    FileSystem.pread,
)


def wait() -> None:
    while not GATE.exists():
        time.sleep(0.01)


def resident(self: FileSystem, fd: int, size: int, position: int) -> bool:
    for first, last in sorted(fetched.get(fd, [])):
        if first <= position:
            position, size = max(position, last), position + size - max(position, last)
    return size <= 0


def read_resident(self: FileSystem, fd: int, size: int, position: int) -> bytes:
    return system_pread(self, fd, size, position) if resident(self, fd, size, position) else b""


def open_file(self: FileSystem, path: str, flags: int) -> int:
    fd = system_open(self, path, flags)
    if path.endswith(".log"):
        logs.add(fd)
    return fd


def close(self: FileSystem, fd: int) -> None:
    logs.discard(fd)
    fetched.pop(fd, None)
    system_close(self, fd)


def fetch(self: FileSystem, fd: int, size: int, position: int) -> None:
    wait()
    system_fetch(self, fd, size, position)
    fetched.setdefault(fd, []).append((position, position + size))


def pread(self: FileSystem, fd: int, size: int, position: int) -> bytes:
    if fd in logs and size > SMALL and not resident(self, fd, size, position):
        wait()
    return system_pread(self, fd, size, position)


FileSystem.open = open_file  # type: ignore[method-assign]
FileSystem.close = close  # type: ignore[method-assign]
FileSystem.resident = resident  # type: ignore[method-assign]
FileSystem.read_resident = read_resident  # type: ignore[method-assign]
FileSystem.read_into_cache = fetch  # type: ignore[method-assign]
FileSystem.pread = pread  # type: ignore[method-assign]
sys.exit(main())
