"""Writer of the `.settled` files of one log: one small write per turn and segment; a file that has grown is
rewritten.

Entries stay in memory until `flush` at the end of the turn. On a full disk they stay longer: the reserve is released,
and the next turn tries again.
"""

from __future__ import annotations

import errno
import logging
import os

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.acks import ack_set
from amqpd.storage.filesystem import APPEND, NO_DESCRIPTOR, FileSystem, OpenFile, Reserve
from amqpd.storage.log.segment import REWRITE_FROM, Segment
from amqpd.storage.sync_job import SyncPart

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL_ERRORS = (*FULL, *NO_DESCRIPTOR)  # errors that pass: the log accepts messages again later


def replace_settled(filesystem: FileSystem, path: str, data: bytes) -> None:
    """Write a `.settled` file, sync it and give it its name.

    Its temporary name ends with `.cleaned`: `.settled.swap` may exist already, as the only file with some of these
    facts.

    Raises: OSError.
    """
    temporary = path + ".cleaned"
    fd = filesystem.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    try:
        filesystem.write_whole(fd, data)
        filesystem.fdatasync(fd)
    except OSError:
        filesystem.unlink(temporary)
        raise
    finally:
        filesystem.close(fd)
    filesystem.rename(temporary, path)


class AckFileWriter:
    """Pending entries and rewrites of the `.settled` files of one log.

    Args:
        boot: the boot id for the first entry that this process writes to each file.
        dirty: the list that gets files to sync.

    Attributes:
        pending: segments with entries to write.
    """

    def __init__(self, filesystem: FileSystem, boot: tuple[int, int], reserve: Reserve, dirty: list[OpenFile]) -> None:
        self.reserve = reserve
        self.pending: list[Segment] = []
        self._filesystem = filesystem
        self._boot = boot
        self._dirty = dirty
        self._scratch = BytesWriter()
        self._grown: list[Segment] = []
        self._swapping: list[Segment] = []
        self._renames: list[tuple[str, str]] = []

    def entry_writer(self, segment: Segment) -> BytesWriter:
        """Return the writer for the segment's entries of this turn.

        A new file begins with a header entry, the first entries of this process with the boot id.
        """
        writer = segment.unwritten_entries
        if writer is None:
            writer = segment.unwritten_entries = BytesWriter()
            self.pending.append(segment)
        if not segment.settled_begun:
            segment.settled_begun = True
            if segment.settled_size == 0:
                ack_set.write_entry(writer, self._scratch, ack_set.HEADER, segment.base, ack_set.VERSION, 0)
            ack_set.write_entry(writer, self._scratch, ack_set.BOOT, self._boot[0], self._boot[1], 0)
        return writer

    def add_entry(self, segment: Segment, kind: i64, a: i64, b: i64, c: i64) -> None:
        """Add an entry for the next `flush`."""
        ack_set.write_entry(self.entry_writer(segment), self._scratch, kind, a, b, c)

    def flush(self) -> None:
        """Write the pending entries, one write per segment, in the order of their first entries.

        The order matters: the delivery mark of recovery must precede the boot id that would contradict it. Raises:
        OSError; entries that were not written stay pending.
        """
        while self.pending:
            segment = self.pending[0]
            writer = segment.unwritten_entries
            if writer is not None and not segment.is_removed:
                file = segment.open_settled()
                data = writer.getvalue()
                try:
                    self._append(segment, file, data)
                except OSError as error:
                    if error.errno not in FULL or not self.reserve.release():
                        raise  # they stay pending; the next flush tries again
                    self._append(segment, file, data)
                if not file.dirty:
                    file.dirty = True
                    self._dirty.append(file)
            segment.unwritten_entries = None
            del self.pending[0]

    def close_file(self, segment: Segment) -> None:
        """Close the `.settled` file of a segment without a sync, before it is replaced."""
        file = segment.settled_file
        if file is not None:
            if file.dirty:
                self._dirty.remove(file)
            file.close()
            segment.settled_file = None

    def _append(self, segment: Segment, file: OpenFile, data: bytes) -> None:
        try:
            self._filesystem.write_whole(file.fd, data)
        except OSError:
            self._filesystem.truncate(file.fd, segment.settled_size)
            raise
        segment.settled_size += len(data)
        if segment.settled_size >= segment.rewrite_from and not segment.swapping:
            self._grown.append(segment)

    def rewrite(self, delivered_mark: i64, returned: dict[int, int]) -> None:
        """Rewrite the `.settled` files that have grown, each fact once. Raises nothing.

        The new file is named `.settled.swap`, takes all later entries, and is renamed after its sync. Until then a
        restart reads both files.

        Args:
            delivered_mark: as for `Segment.encode_ack_file`.
            returned: as for `Segment.encode_ack_file`.
        """
        grown, self._grown = self._grown, []
        for segment in grown:
            if segment.swapping or segment.is_removed or segment.removing:
                continue
            path = f"{segment.prefix}.settled.swap"
            data = segment.encode_ack_file(self._boot, delivered_mark, returned)
            try:
                self._filesystem.unlink(path)
                file = OpenFile(self._filesystem, path, APPEND)
                try:
                    self._filesystem.write_whole(file.fd, data)
                except OSError:
                    file.close()
                    self._filesystem.unlink(path)
                    raise
            except OSError as error:  # keep the old file; try again at twice its size
                segment.rewrite_from = 2 * segment.settled_size
                logger.warning("%s: cannot rewrite the file: %s", path, error)
                continue
            self.close_file(segment)
            segment.settled_file = file
            segment.settled_size = len(data)
            segment.rewrite_from = max(2 * len(data), REWRITE_FROM)
            segment.swapping = True
            file.dirty = True
            self._dirty.append(file)
            self._swapping.append(segment)
            self._renames.append((path, f"{segment.prefix}.settled"))

    def rewrite_segment(self, segment: Segment, delivered_mark: i64, returned: dict[int, int]) -> bool:
        """Rewrite the file of this segment, after offsets were removed from its set: only the new file says so.

        The segment has no pending entries and is not `swapping`. Return False if the file could not be written.
        """
        if segment not in self._grown:
            self._grown.append(segment)
        self.rewrite(delivered_mark, returned)
        return segment.swapping

    @property
    def renaming(self) -> bool:
        """Return whether a rewritten file waits for its sync and its name."""
        return len(self._renames) > 0

    def collect(self, part: SyncPart) -> None:
        """Move the renames of rewritten files into `part`."""
        part.renames, self._renames = self._renames, []

    def synced(self, part: SyncPart) -> None:
        """Process the result of a job. Renamed files can be rewritten again."""
        if part.renames and not (part.failed or part.unfinished):
            renamed = {target for _, target in part.renames}
            for segment in self._swapping:
                if segment.prefix + ".settled" in renamed:
                    segment.swapping = False
            self._swapping = [segment for segment in self._swapping if segment.swapping]
