"""Which files of a log go, when, and in what order.

A sealed segment whose messages are all settled goes once its settlements are synced, in the middle of the log too. Its
`.settled` file stays as the sign that it went on purpose, until everything before it has gone as well; that file goes
with the job after, which first syncs the directory: a power cut that brought back the log without the settlements would
bring back the messages.

A segment that is held back for an export (retained.py), or retained (retained.py), stays until it is not.

Where the log's policy says so (logs that keep: somebody may be reading them just now) the `.log` and its indexes are
first renamed `.deleted`, and removed when the delay is over. A start of the broker removes what it finds so named.
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
    """What of one log can go, and is going.

    `wanted`: there may be something to remove; `postponed`: there will be, once the settlements of the turn have
    been written. `full`: the disk has no room for those: what is settled as a whole goes without, since that makes
    room (a crash before it went brings it back).

    delay_ms: between the renaming and the removal; 0: no renaming, the files go at once.
    """

    def __init__(self, directory: str) -> None:
        self.wanted = False
        self.postponed = False
        self.full = False
        self.delay_ms = 0
        self.hold: ExportHold | None = None
        self.retention: AckedRetention | None = None
        self.waiting: list[tuple[int, str]] = []  # (not before this time, path), renamed already
        self._directory = directory

    def collect(self, segments: list[Segment], start: int, part: SyncPart) -> None:
        """Tells `part` which files go after its syncs. start: first offset of the log that is not settled; the
        log starts there, or with what is kept."""
        self.wanted = False
        head = True
        held: set[int] = self.hold.keeps(segments) if self.hold is not None else set()
        if self.retention is not None:
            held |= self.retention.keeps(segments)
        first_kept = min(held) if held else start
        for segment in segments:
            if not segment.sealed or segment.live > 0 or segment.removing or segment.base in held:
                head = False
                continue
            if segment.entries is not None and not self.full:  # this turn settled the last of it: not written yet
                self.postponed = True
                head = False
                continue
            files = segment.files()
            if head and segment.gone:
                if self._directory not in part.directories:
                    part.directories.append(self._directory)
                part.unlinks += files[3:]
                self._begin(segment, part)
                text = checkpoint.encode_lines([(min(start, first_kept),)])
                part.checkpoints.append((f"{self._directory}/{checkpoint.LOG_START}", text))
            elif not segment.gone:
                if self.delay_ms > 0:
                    part.discards += files[:3]
                else:
                    part.unlinks += files[:3]
                self._begin(segment, part)

    def _begin(self, segment: Segment, part: SyncPart) -> None:
        segment.removing = True
        part.removed.append(segment.base)

    def done(self, segments: list[Segment], part: SyncPart, now_ms: int) -> list[Segment]:
        """The job has removed them. Returns the segments that stay; `wanted` when one of them can go on with."""
        bases = set(part.removed)
        keep: list[Segment] = []
        head = True
        for segment in segments:
            if segment.base in bases:
                segment.removing = False
                for file in segment.open_files():
                    file.removed = True
                segment.release()
                if segment.gone:
                    continue
                segment.gone = True
            if not segment.gone:
                head = False
            elif head:
                self.wanted = True
            keep.append(segment)
        self.later(part.discards, now_ms)
        return keep

    def later(self, paths: list[str], now_ms: int) -> None:
        """Files that have been renamed `.deleted`, to be removed when the delay is over."""
        self.waiting += [(now_ms + self.delay_ms, path + DELETED) for path in paths]

    def due(self, now_ms: int) -> list[str]:
        """Paths whose delay is over; they are the caller's to remove."""
        paths = [path for time_ms, path in self.waiting if time_ms <= now_ms]
        self.waiting = [each for each in self.waiting if each[0] > now_ms]
        return paths
