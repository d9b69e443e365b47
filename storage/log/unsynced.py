"""What of a log waits for a sync: its files, the names of new ones, and what may be written once those are safe.

The log notes it here as it writes; `collect` moves it into the log's part of the next job (commit/job.py). A file that
is noted has `dirty` set, so that it stands here once.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.sync_job import JobPart
from amqpd.storage.filesystem import OpenFile

SPILL_SYNC_SIZE: Final[i64] = 16 << 20  # bytes of a temporary log that may wait for the kernel to write them


@final
class Unsynced:
    """What of one log was written and waits for the next job to sync it.

    files: `.log` files that were written to. settled: `.settled` files. closed: some were closed before they were
    synced (`Log.shed`). directories: with new names. paths: of small files, closed already.
    checkpoints: (path, text), written when all of that is safe.
    """

    def __init__(self) -> None:
        self.files: list[OpenFile] = []
        self.settled: list[OpenFile] = []
        self.closed: bool = False
        self.directories: list[str] = []
        self.paths: list[str] = []
        self.checkpoints: list[tuple[str, bytes]] = []
        self._spilled: i64 = 0  # bytes of a log that is not durable, since its last sync
        self._spilled_due: bool = False  # the next job syncs them

    @property
    def any(self) -> bool:
        """Whether there is something; checkpoints alone wait for the next that there is."""
        return bool(self.files or self.settled or self.closed or self.directories or self.paths)

    def note(self, file: OpenFile) -> None:
        """A `.log` file was written to."""
        if not file.dirty:
            file.dirty = True
            self.files.append(file)

    def note_settled(self, file: OpenFile) -> None:
        """A `.settled` file was."""
        if not file.dirty:
            file.dirty = True
            self.settled.append(file)

    def note_directory(self, directory: str) -> None:
        """There is a new name in it."""
        if directory not in self.directories:
            self.directories.append(directory)

    def spilled(self, size: i64) -> i64:
        """Notes `size` bytes written to a log that need not last. Returns how many the next job syncs, mostly none.

        Nothing is promised of them. But the kernel stops whoever writes when too much waits for the disk, and that
        would be the loop; so the committer takes the disk's time, and publishers are held as for any unsynced bytes.
        """
        self._spilled += size
        if self._spilled < SPILL_SYNC_SIZE:
            return 0
        size = self._spilled
        self._spilled = 0
        self._spilled_due = True
        return size

    def collect(self, part: JobPart, settled_too: bool, durable: bool, failed: bool) -> None:
        """Moves it into `part`, `.settled` files only when `settled_too`. durable, failed: of the log."""
        spilled = self._spilled_due
        self._spilled_due = False
        if failed or not durable:
            if failed or not spilled:  # a failed log's files are not synced again, lest a success be believed
                for file in self.files + self.settled:
                    file.dirty = False
                self.files.clear()
                self.settled.clear()
            self.closed = False
            self.directories = []
            self.paths = []
        part.closed = self.closed
        self.closed = False
        files = self.files[:]
        self.files.clear()
        if settled_too or self.directories or self.checkpoints:
            files += self.settled
            self.settled.clear()
        for file in files:
            file.dirty = False
            file.pins += 1
        part.files = files
        part.directories = self.directories
        part.paths = self.paths
        part.checkpoints = self.checkpoints
        self.directories = []
        self.paths = []
        self.checkpoints = []

    def forget_file(self, file: OpenFile) -> None:
        """It is about to be closed, unsynced: another one stands for it."""
        if file.dirty:
            (self.files if file in self.files else self.settled).remove(file)

    def drop_closed_files(self) -> None:
        """Some were removed, and closed, whatever had been written to them meanwhile."""
        for waiting in (self.files, self.settled):
            waiting[:] = [file for file in waiting if file.fd >= 0]

    def shed_files(self, closed: bool) -> None:
        """All files are about to be closed. closed: the next job has to sync the disk for them."""
        for waiting in (self.files, self.settled):
            for file in waiting:
                file.dirty = False
                self.closed = closed
            waiting.clear()

    def forget_files(self) -> None:
        """All files are closed, and nobody will sync them."""
        self.files.clear()
        self.settled.clear()
        self.closed = False

    def forget_names(self) -> None:
        """Nor the rest."""
        self.directories = []
        self.paths = []
        self.checkpoints = []
