"""What keeps drained segments of a work queue's log for a while: messages that are settled, and can be had again.

A work queue's sealed segment goes when all in it is settled. With retention it goes when, besides, what is settled in
it is older than the log is to keep, or when the segments behind it hold as many bytes of settled messages as it is to
keep. So files go as a whole, a log keeps at least what it is told to, and at most a segment more; `segment_size_bytes`
and `segment_age_ms` see to it that segments are small enough for that. A message is as old as its append (as
retention.py has it for logs that are merely read), whenever it was settled.

Nothing of it is on the disk: who owns the log says so before it is opened, and again after each start. What an export
holds (hold.py) stays whatever is said here, and the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from amqpd.storage.clock_watch import ClockWatch
    from amqpd.storage.log.segment import Segment

SEGMENTS: Final = 8
"""In so many of them stands what is to be kept, about, so that an eighth too much is kept at most."""
SEGMENT_SIZE_BYTES_MIN: Final = 1 << 20
SEGMENT_AGE_MS_MIN: Final = 10_000


class Kept:
    """What all logs of a data directory keep because of retention: bytes of drained segments' `.log` files."""

    def __init__(self) -> None:
        self.bytes = 0


class Retention:
    """Of one log. Loop thread only.

    max_age_ms, max_bytes: -1 for none; with both, what either lets go. kept_bytes: of drained segments, by their
    `.log`, when one was last looked at.
    """

    def __init__(self, watch: ClockWatch, kept: Kept) -> None:
        self.max_age_ms = -1
        self.max_bytes = -1
        self.kept_bytes = 0
        self._watch = watch
        self._kept = kept

    @property
    def segment_age_ms(self) -> int:
        """How old the first message of the active segment may get before it is rolled; -1: as old as any log's."""
        return -1 if self.max_age_ms < 0 else max(self.max_age_ms // SEGMENTS, SEGMENT_AGE_MS_MIN)

    def segment_size_bytes(self, usual: int) -> int:
        """At which the active segment is rolled. usual: that of all logs."""
        return usual if self.max_bytes < 0 else min(usual, max(self.max_bytes // SEGMENTS, SEGMENT_SIZE_BYTES_MIN))

    def keeps(self, segments: list[Segment]) -> set[int]:
        """Bases of the drained segments that may not go yet. Cost: a step per segment, when one has been drained."""
        kept = self._wanted(segments)
        size = sum(segment.size for segment in kept)
        self._count(size)
        return {segment.base for segment in kept}

    def lets_go(self, segments: list[Segment]) -> bool:
        """Whether a drained segment has become old enough to go. Cost: a step per segment."""
        drained = sum(1 for segment in segments if _is_drained(segment))
        return drained > 0 and len(self._wanted(segments)) < drained

    def end(self) -> None:
        """The log keeps nothing any more, or is deleted."""
        self._count(0)

    def _count(self, size: int) -> None:
        self._kept.bytes += size - self.kept_bytes
        self.kept_bytes = size

    def _wanted(self, segments: list[Segment]) -> list[Segment]:
        found: list[Segment] = []
        settled_bytes = 0  # in the segments behind
        until_ms = self._watch.agreed_ms() - self.max_age_ms if self.max_age_ms >= 0 else -1
        for segment in reversed(segments):
            if segment.gone or segment.removing:
                continue
            if _is_drained(segment):
                enough = 0 <= self.max_bytes <= settled_bytes
                if not enough and (until_ms < 0 or segment.latest_ms() >= until_ms):
                    found.append(segment)
            count = segment.end - segment.base
            if count > 0:
                settled_bytes += segment.size * (count - segment.live) // count
        return found


def _is_drained(segment: Segment) -> bool:
    return segment.sealed and segment.live == 0 and not segment.gone and not segment.removing


class Retained(NamedTuple):
    """What of a log is settled and still there.

    messages, body_bytes: how many, and their bodies; settlements of the last 50 ms may be missing in the latter.
    first_offset, first_timestamp_ms: of the first message the log has, settled or not, and when it was appended; -1:
    it has none, or nothing tells.
    """

    messages: int
    body_bytes: int
    first_offset: int
    first_timestamp_ms: int


def retained_of(segments: list[Segment], next_offset: int, record_count: int) -> Retained:
    """Of an open log with these segments, which ends before `next_offset`, and of which so many messages are not
    settled. Cost: a step per segment."""
    there = [segment for segment in segments if not segment.gone and segment.end > segment.base]
    if not there:
        return Retained(0, 0, -1, -1)
    offsets = sum(segment.end - segment.base for segment in there) + next_offset - there[-1].end
    body_bytes = sum(segment.settled_body_bytes for segment in there)
    return Retained(max(0, offsets - record_count), body_bytes, there[0].base, there[0].first_timestamp_ms)


def offsets_there(segments: list[Segment], begin: int, begin_ms: int, until: int) -> tuple[int, int]:
    """(the first offset from `begin` on that is still in the log, in a segment with a message of `begin_ms` (since
    1970) or later; how many of begin..until - 1 are not in it any more). Cost: a step per segment.
    """
    first = until
    there = 0
    for segment in segments:
        if segment.gone or segment.removing or segment.end <= begin or segment.base >= until:
            continue
        there += min(segment.end, until) - max(segment.base, begin)
        if first == until and segment.latest_ms() >= begin_ms:
            first = max(segment.base, begin)
    return first, max(0, until - begin - there)
