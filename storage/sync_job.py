"""Sync jobs: `SyncBatch` is one group of the group commit, `SyncPart` the files of one log in it.

After the group commit has submitted a job, only the fsync thread changes it, to record which parts failed. A job
contains files, directories and small texts, never a log. The group commit knows which log a part belongs to.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.filesystem import OpenFile

# More bytes do not fit into a half of the journal.
CAPTURE_MAX: Final[i64] = 16 << 20


@final
class JournalSwitch:
    """Switch of all logs: they keep what they write for the journal while it is on. The group commit sets it.

    Attributes:
        used: it may have been on: logs may have captured something.
        bytes_max: what all logs may keep for one group. While the disk is slow, a group grows.
    """

    def __init__(self) -> None:
        self.on: bool = False
        self.used: bool = False
        self.bytes_max: i64 = CAPTURE_MAX
        self._left_bytes: i64 = 0

    def begin_group(self, on: bool) -> None:
        """Set the switch for the next group."""
        self.on = on
        self._left_bytes = self.bytes_max

    def take(self, size: i64) -> bool:
        """Return whether a log may keep `size` more bytes. If not, the switch is off until the next group."""
        self._left_bytes -= size
        if self._left_bytes < 0:
            self.on = False
        return self.on


class SyncPart:
    """The files of one log in a job.

    Args:
        name: name of the queue, for log lines.
        directory: the directory of the log.
    """

    def __init__(self, name: str, directory: str = "") -> None:
        self.name = name
        self.directory = directory
        # The bytes of `files` since their last sync, if the journal may have them instead. "": it may not.
        self.journal_path = ""
        self.journal_position = 0
        self.journal_data: list[bytes] = []
        self.journaled = False  # the journal has them, and `files` were not synced
        self.covers_journal = False  # `files` include all that have bytes only in the journal
        self.files: list[OpenFile] = []
        # True if other files were written and closed already; only a sync of the whole disk includes them.
        self.closed = False
        self.paths: list[str] = []  # small files, closed already
        self.directories: list[str] = []
        self.checkpoints: list[tuple[str, bytes]] = []  # written after all syncs above
        self.syncs_start: bool = False  # the log-start checkpoint must survive a power cut
        self.renames: list[tuple[str, str]] = []  # (from, to), done after all syncs above
        self.unlinks: list[str] = []  # then deleted, in this order
        self.discards: list[str] = []  # then renamed to `.deleted` if they exist
        self.removed: list[int] = []  # base offsets of the segments of these files
        self.end_offset = 0
        self.failed = False  # a sync failed
        self.unfinished = False  # the work after the syncs failed
        self.is_repeated = False  # that of the job before failed, too: it is not logged again
        self.write_failed = False  # a write before it failed

    def has_work_after_sync(self) -> bool:
        """Return whether work remains after the syncs."""
        return bool(self.checkpoints or self.unlinks or self.discards or self.renames)


class SyncBatch:
    """One group.

    Attributes:
        generation: see `GroupCommit`.
        size_bytes: bytes appended in it.
        whole: it has everything that was written, also what is being synced in the background.
        journal_mark: `Journal.sequence` when the job was collected.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.whole = False
        self.journal_mark = 0
        self.parts: list[SyncPart] = []
        self.size_bytes = 0
