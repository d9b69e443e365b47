"""A broker whose syncs are slow: `python slow_sync.py SECONDS NOTES OPTION...`.

Each sync takes SECONDS. Syncs on the loop's thread are recorded in the file NOTES, a line each.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Final

from amqpd.__main__ import main
from amqpd.storage.filesystem import FileSystem

SECONDS: Final = float(sys.argv.pop(1))
NOTES: Final = Path(sys.argv.pop(1))
system_fdatasync, system_fsync_dir, system_syncfs = FileSystem.fdatasync, FileSystem.fsync_dir, FileSystem.syncfs


def wait(call: str) -> None:
    if threading.current_thread() is threading.main_thread():
        with NOTES.open("a") as notes:
            notes.write(f"{call}\n")
    time.sleep(SECONDS)


def fdatasync(self: FileSystem, fd: int) -> None:
    wait("fdatasync")
    system_fdatasync(self, fd)


def fsync_dir(self: FileSystem, path: str) -> None:
    wait(f"fsync_dir {path}")
    system_fsync_dir(self, path)


def syncfs(self: FileSystem, fd: int) -> None:
    wait("syncfs")
    system_syncfs(self, fd)


FileSystem.fdatasync = fdatasync  # type: ignore[method-assign]
FileSystem.fsync_dir = fsync_dir  # type: ignore[method-assign]
FileSystem.syncfs = syncfs  # type: ignore[method-assign]
sys.exit(main())
