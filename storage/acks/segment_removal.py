"""Removal of the files of settled segments, in a safe order.

A sealed segment with no live message is removed once its acknowledgements are synced, also in the middle of the log.
Its `.settled` file stays, as the sign that the removal was intended, until all earlier segments are removed too. The
job that then removes it syncs the directory first: if a power cut brought back the `.log` without its `.settled`, the
messages would come back.

Segments kept for an export or by retention (retained.py) stay until they are released.

With a delay (`delay_ms`, for logs that may have external readers) the `.log` and its indexes are first renamed
`.deleted`, and removed after the delay. A start of the broker removes all `.deleted` files it finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.storage.log import checkpoint

if TYPE_CHECKING:
    from amqpd.storage.acks.retained import AckedRetention, ExportHold
    from amqpd.storage.log.segment import Segment
    from amqpd.storage.sync_job import SyncPart

DELETED = ".deleted"


class SegmentRemoval:
    """Segments of one log that can be removed, and files that are being removed.

    Attributes:
        wanted: there may be something to remove.
        postponed: there will be, once entries are written.
        full: the disk has no room for those entries. A fully settled segment is then removed without them, which
            makes room. If a crash comes before the removal, its messages are delivered again.
        delay_ms: time between renaming and removal; 0: remove at once, without renaming.
        export_hold: the exporters, if any.
        retention: the retention of settled messages, if any.
        renamed_paths: (earliest removal time, path) of renamed files.
    """

    def __init__(self, directory: str) -> None:
        self.wanted = False
        self.postponed = False
        self.full = False
        self.delay_ms = 0
        self.export_hold: ExportHold | None = None
        self.retention: AckedRetention | None = None
        self.renamed_paths: list[tuple[int, str]] = []
        self._directory = directory

    def collect(self, segments: list[Segment], start: int, deleted_end: int, part: SyncPart) -> None:
        """Add the files to remove after its syncs to `part`.

        Args:
            start: first offset that is not settled. The log starts there, or at the first kept segment.
            deleted_end: see `Log`. The checkpoint that has it is replaced only by one with a higher offset: this one
                is not synced.
        """
        self.wanted = False
        head = True
        held: set[int] = self.export_hold.kept_bases(segments) if self.export_hold is not None else set()
        if self.retention is not None:
            held |= self.retention.kept_bases(segments)
        first_kept = min(held) if held else start
        for segment in segments:
            if not segment.sealed or segment.live > 0 or segment.removing or segment.base in held:
                head = False
                continue
            if (
                segment.unwritten_entries is not None and not self.full
            ):  # its last entries, of this turn, are not written yet
                self.postponed = True
                head = False
                continue
            files = segment.files()
            if head and segment.is_removed:
                if self._directory not in part.directories:
                    part.directories.append(self._directory)
                part.unlinks += files[3:]
                self._begin(segment, part)
                if min(start, first_kept) > deleted_end:
                    text = checkpoint.encode_lines([(min(start, first_kept),)])
                    part.checkpoints.append((f"{self._directory}/{checkpoint.LOG_START}", text))
            elif not segment.is_removed:
                if self.delay_ms > 0:
                    part.discards += files[:3]
                else:
                    part.unlinks += files[:3]
                self._begin(segment, part)

    def _begin(self, segment: Segment, part: SyncPart) -> None:
        segment.removing = True
        part.removed.append(segment.base)

    def on_removed(self, segments: list[Segment], part: SyncPart, now_ms: int) -> list[Segment]:
        """Process a job that has removed files. Return the remaining segments.

        Sets `wanted` if a remaining `.settled` file can be removed next. If the files could not be removed, a later
        job tries it again. Until then `.settled` stays: without it the messages of the file would return at a start.
        """
        bases = set(part.removed)
        if part.unfinished:
            for segment in segments:
                segment.removing = segment.removing and segment.base not in bases
            self.postponed = True
            return segments
        keep: list[Segment] = []
        head = True
        for segment in segments:
            if segment.base in bases:
                segment.removing = False
                for file in segment.open_files():
                    file.removed = True
                segment.release()
                if segment.is_removed:
                    continue
                segment.is_removed = True
            if not segment.is_removed:
                head = False
            elif head:
                self.wanted = True
            keep.append(segment)
        self.schedule(part.discards, now_ms)
        return keep

    def schedule(self, paths: list[str], now_ms: int) -> None:
        """Add paths that were renamed `.deleted`, for removal after the delay."""
        self.renamed_paths += [(now_ms + self.delay_ms, path + DELETED) for path in paths]

    def take_due(self, now_ms: int) -> list[str]:
        """Return and forget the paths whose delay is over; the caller removes them."""
        paths = [path for time_ms, path in self.renamed_paths if time_ms <= now_ms]
        self.renamed_paths = [each for each in self.renamed_paths if each[0] > now_ms]
        return paths
