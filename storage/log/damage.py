"""What a medium can do to a log besides bad bytes inside a file: files that are missing, cut short, or not of this log.

A crash leaves gaps too, so the high watermark is the judge: below it everything was synced once, and what is not there
any more has been lost. Above it nothing was ever confirmed.

A file of the right name whose batches belong to other offsets is no segment of this log (a copy, somebody's backup). It
is moved out of the way as `.foreign`, never deleted, and never read. One odd batch does not make a file foreign: the
checksum does not cover base offsets, so a single bad one is that batch's damage.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqpd.storage.filesystem import READ, FileSystem
from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader
from amqpd.storage.acks.ack_set import SettledSet
from amqpd.storage.acks.settled_reader import Entry, settle_told, totals_of

if TYPE_CHECKING:
    from amqpd.storage.log.log import Log
    from amqpd.storage.log.segment import Segment

logger = logging.getLogger(__name__)

Entries = dict[int, list[Entry]]


def set_aside_foreign(filesystem: FileSystem, directory: str, names: list[str]) -> list[str]:
    """Renames `.log` files that are not of this log; the names that stay. Raises: OSError.

    Cost: two small reads a segment.
    """
    logs = sorted(name for name in names if name[:20].isdigit() and name[20:] == ".log")
    stay = list(names)
    for number, name in enumerate(logs):
        following = int(logs[number + 1][:20]) if number + 1 < len(logs) else -1
        if _foreign(filesystem, f"{directory}/{name}", int(name[:20]), following):
            logger.error("%s/%s holds other offsets than its name says: it is set aside", directory, name)
            filesystem.rename(f"{directory}/{name}", f"{directory}/{name}.foreign")
            stay.remove(name)
    return stay


def _foreign(filesystem: FileSystem, path: str, base: int, following: int) -> bool:
    """Whether the first batch lies outside of base..following, and no second one says that it is only a bad number."""
    first: BatchHeader | None = None
    fd = filesystem.open(path, READ)
    try:
        for _ in range(2):
            data = filesystem.pread(fd, HEADER_SIZE, first.size if first is not None else 0)
            if len(data) < HEADER_SIZE:
                break
            header = BatchHeader(data, 0)
            if not header.plausible():
                return False
            outside = header.base_offset < base or 0 <= following <= header.base_offset
            if first is None and not outside:
                return False
            if first is not None and not outside and header.base_offset != first.last_offset + 1:
                return False
            first = header
    finally:
        filesystem.close(fd)
    return first is not None


def find_missing(log: Log, entries: Entries, clean: bool) -> list[tuple[Segment | None, int, int]]:
    """(segment or None, first, last) of what was synced once and is not there. The log's end moves behind it.

    After segments were checked and `.settled` entries applied. entries: of `.settled`, by base offset.
    """
    found: list[tuple[Segment | None, int, int]] = []
    high_watermark = log.watermark.offset
    segments = log.segments
    for number, segment in enumerate(segments):
        limit = high_watermark
        if number + 1 < len(segments):
            limit = min(limit, segments[number + 1].base)
        entries_of = entries.get(segment.base, [])
        if segment.gone:
            end = min(segment.end, limit)
            found += [(segment, first, last) for first, last in untold_ranges(entries_of, segment.base, end)]
        elif number + 1 < len(segments):
            end = min(max([each[0] for each in totals_of(entries_of)], default=0), limit)
            if segment.end < end:
                holes = untold_ranges(entries_of, segment.end, end)
                segment.settled.add(segment.end, end - 1)
                segment.end = end
                found += [(segment, first, last) for first, last in holes]
    if not clean and log.end < high_watermark:
        last = segments[-1] if segments else None
        found.append((last, log.end, high_watermark - 1))
        log.end = high_watermark
        if last is not None:
            last.end = high_watermark
    for place, first, last_offset in found:
        logger.error("%s: offsets %d to %d were synced and are not there", log.directory, first, last_offset)
        if place is not None:
            place.settled.add(first, last_offset)
            place.lost.append((first, last_offset))
    return found


def untold(entries: list[Entry], segment: Segment) -> bool:
    """Whether the `.settled` entries of a segment that is gone leave out some of its offsets."""
    return bool(untold_ranges(entries, segment.base, segment.end))


def untold_ranges(entries: list[Entry], start: int, end: int) -> list[tuple[int, int]]:
    """The ranges of start..end, `end` not included, of which `.settled` entries tell nothing."""
    told = SettledSet(start)
    settle_told(entries, told, end)
    holes = []
    for low, high in [*told.ranges(), (end, end)]:
        if start < low:
            holes.append((start, low - 1))
        start = high + 1
    return holes
