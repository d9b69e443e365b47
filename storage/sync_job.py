"""What is made safe together: a job is one group of the group commit, a part is one log's share in it.

A job is immutable once it is handed to the committer, but for what that answers: which parts failed. It names files,
directories and small texts, never a log: who gathers it (group.py) remembers whose part is whose.
"""

from __future__ import annotations

from amqpd.storage.filesystem import OpenFile


class SyncPart:
    """One log's share in a job. name: of its queue, for what is logged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: list[OpenFile] = []
        self.closed = False  # others were written to and closed already: only a sync of the whole disk covers them
        self.paths: list[str] = []  # small files, closed already
        self.directories: list[str] = []
        self.checkpoints: list[tuple[str, bytes]] = []  # written when all of the above is safe
        self.renames: list[tuple[str, str]] = []  # (from, to), likewise
        self.renamed = True  # False when that did not succeed
        self.unlinks: list[str] = []  # then removed, in this order
        self.discards: list[str] = []  # then renamed `.deleted`, where they exist
        self.removed: list[int] = []  # base offsets of the segments these files belong to
        self.end_offset = 0
        self.failed = False  # the sync did
        self.write_failed = False  # a write before it did

    def follows(self) -> bool:
        """Whether there is something to do once the syncs are done."""
        return bool(self.checkpoints or self.unlinks or self.discards or self.renames)


class SyncBatch:
    """One group. `generation`: see `GroupCommit`. `size_bytes`: what was appended to it."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.parts: list[SyncPart] = []
        self.size_bytes = 0

    def file_count(self) -> int:
        """Files to sync."""
        count = 0
        for part in self.parts:
            count += len(part.files)
        return count

    def closed(self) -> bool:
        """Whether some of what is to be synced has no descriptor any more."""
        for part in self.parts:  # noqa: SIM110  # a generator would cost a nested function when compiled
            if part.closed:
                return True
        return False
