"""Writes the `.settled` files of one log: the entries of a turn in one small write, and a grown file anew.

What is noted stands in memory until `flush`, at the end of the turn. On a full disk it stays there and is tried again
with the next turn's, after the reserve has been given up for it.
"""

from __future__ import annotations

import errno
import logging
import os

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.acks import ack_set
from amqpd.storage.filesystem import APPEND, FileSystem, OpenFile, Reserve
from amqpd.storage.log.segment import REWRITE_FROM, Segment
from amqpd.storage.sync_job import SyncPart

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
PASSING = (*FULL, errno.EMFILE, errno.ENFILE)  # what a log survives: it takes messages again once there is room


def replace_settled(filesystem: FileSystem, path: str, data: bytes) -> None:
    """As `replace_file`, by another name: `.settled.swap` may be the one file that holds what some of this tells."""
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
    """What is to be written to the `.settled` files of one log.

    boot: for the first entry of this life in each file. dirty: where files to sync are put.
    """

    def __init__(self, filesystem: FileSystem, boot: tuple[int, int], reserve: Reserve, dirty: list[OpenFile]) -> None:
        self.reserve = reserve
        self.pending: list[Segment] = []  # those with entries to write
        self._filesystem = filesystem
        self._boot = boot
        self._dirty = dirty
        self._scratch = BytesWriter()
        self._grown: list[Segment] = []
        self._swapping: list[Segment] = []
        self._renames: list[tuple[str, str]] = []

    def entries(self, segment: Segment) -> BytesWriter:
        """Where the segment's entries of this turn go; with the boot id first when they are the first of this life."""
        writer = segment.entries
        if writer is None:
            writer = segment.entries = BytesWriter()
            self.pending.append(segment)
        if not segment.settled_begun:
            segment.settled_begun = True
            if segment.settled_size == 0:
                ack_set.write_entry(writer, self._scratch, ack_set.HEADER, segment.base, ack_set.VERSION, 0)
            ack_set.write_entry(writer, self._scratch, ack_set.BOOT, self._boot[0], self._boot[1], 0)
        return writer

    def note(self, segment: Segment, kind: i64, a: i64, b: i64, c: i64) -> None:
        """Notes one entry for the next `flush`."""
        ack_set.write_entry(self.entries(segment), self._scratch, kind, a, b, c)

    def flush(self) -> None:
        """One write for each segment with entries. Raises: OSError; what was not written stays for the next time.

        In the order of the first entries: the mark that recovery leaves precedes the boot id that would deny it.
        """
        while self.pending:
            segment = self.pending[0]
            writer = segment.entries
            if writer is not None and not segment.gone:
                file = segment.open_settled()
                data = writer.getvalue()
                try:
                    self._append(segment, file, data)
                except OSError as error:
                    if error.errno not in FULL or not self.reserve.release():
                        raise  # they stay pending, and are tried again with the next ones
                    self._append(segment, file, data)
                if not file.dirty:
                    file.dirty = True
                    self._dirty.append(file)
            segment.entries = None
            del self.pending[0]

    def forget(self, segment: Segment) -> None:
        """The segment's file is about to be replaced: its descriptor goes, unsynced."""
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
        """Writes `.settled` files that have grown large anew, each fact once. Raises nothing.

        The new file is called `.settled.swap`, takes all further entries, and gets its name when it has been synced;
        until then a start of the broker unites the two. delivered_mark, returned: see `Segment.compacted`.
        """
        grown, self._grown = self._grown, []
        for segment in grown:
            if segment.swapping or segment.gone or segment.removing:
                continue
            path = f"{segment.prefix}.settled.swap"
            data = segment.compacted(self._boot, delivered_mark, returned)
            try:
                self._filesystem.unlink(path)
                file = OpenFile(self._filesystem, path, APPEND)
                try:
                    self._filesystem.write_whole(file.fd, data)
                except OSError:
                    file.close()
                    self._filesystem.unlink(path)
                    raise
            except OSError as error:  # the old file serves on; tried again when it has grown as much again
                segment.rewrite_from = 2 * segment.settled_size
                logger.warning("writing %s: %s", path, error)
                continue
            self.forget(segment)
            segment.settled_file = file
            segment.settled_size = len(data)
            segment.rewrite_from = max(2 * len(data), REWRITE_FROM)
            segment.swapping = True
            file.dirty = True
            self._dirty.append(file)
            self._swapping.append(segment)
            self._renames.append((path, f"{segment.prefix}.settled"))

    def rewrite_now(self, segment: Segment, delivered_mark: i64, returned: dict[int, int]) -> bool:
        """As `rewrite`, of this one: what was taken back from it is told by the new file alone. Nothing of it is
        pending, and it is not `swapping`. False: it could not be written.
        """
        if segment not in self._grown:
            self._grown.append(segment)
        self.rewrite(delivered_mark, returned)
        return segment.swapping

    @property
    def renaming(self) -> bool:
        """Whether a file written anew waits for its sync and its name."""
        return len(self._renames) > 0

    def collect(self, part: SyncPart) -> None:
        """Gives `part` the names that written-anew files get once they are synced."""
        part.renames, self._renames = self._renames, []

    def synced(self, part: SyncPart) -> None:
        """The job is done; files that got their name may be written anew again."""
        if part.renames and part.renamed and not part.failed:
            renamed = {target for _, target in part.renames}
            for segment in self._swapping:
                if segment.prefix + ".settled" in renamed:
                    segment.swapping = False
            self._swapping = [segment for segment in self._swapping if segment.swapping]
