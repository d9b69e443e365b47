"""Sync jobs: `SyncBatch` is one group of the group commit, `SyncPart` the files of one log in it.

After the group commit has submitted a job, only the fsync thread changes it, to record which parts failed. A job
contains files, directories and small texts, never a log. The group commit knows which log a part belongs to.
"""

from __future__ import annotations

from amqpd.storage.filesystem import OpenFile


class SyncPart:
    """The files of one log in a job. `name` is the queue's, for log lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: list[OpenFile] = []
        # True if other files were written and closed already; only a sync of the whole disk includes them.
        self.closed = False
        self.paths: list[str] = []  # small files, closed already
        self.directories: list[str] = []
        self.checkpoints: list[tuple[str, bytes]] = []  # written after all syncs above
        self.renames: list[tuple[str, str]] = []  # (from, to), done after all syncs above
        self.renamed = True  # False if a rename failed
        self.unlinks: list[str] = []  # then deleted, in this order
        self.discards: list[str] = []  # then renamed to `.deleted` if they exist
        self.removed: list[int] = []  # base offsets of the segments of these files
        self.end_offset = 0
        self.failed = False  # a sync failed
        self.write_failed = False  # a write before it failed

    def has_work_after_sync(self) -> bool:
        """Return whether work remains after the syncs."""
        return bool(self.checkpoints or self.unlinks or self.discards or self.renames)


class SyncBatch:
    """One group. `generation`: see `GroupCommit`. `size_bytes`: bytes appended in it."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.parts: list[SyncPart] = []
        self.size_bytes = 0

    def file_count(self) -> int:
        count = 0
        for part in self.parts:
            count += len(part.files)
        return count

    def closed(self) -> bool:
        """Return whether a file to sync has been closed."""
        for part in self.parts:  # noqa: SIM110  # a generator would cost a nested function when compiled
            if part.closed:
                return True
        return False
