"""Which segments are read batch by batch at recovery, and what is cut off for what is found there.

After a clean stop none is, if its totals fit its size; else all from the recovery point on are. A torn tail is cut, and
a transaction without its commit marker with everything behind it. Holes count as settled, so that they are never waited
for; those below the high watermark are damage, and told as lost.
"""

from __future__ import annotations

import logging

from amqpd.storage.log import checkpoint
from amqpd.storage.log.damage import untold_ranges
from amqpd.storage.log.producers import Producers
from amqpd.storage.log.recovery_state import Recovery
from amqpd.storage.log.scan import Scan
from amqpd.storage.log.segment import Segment
from amqpd.storage.settle import settled

logger = logging.getLogger(__name__)


def check_tail(state: Recovery) -> None:
    """Scans what cannot be trusted, cuts what is torn, and finds where the log ends.

    Cost: 0.3 ms a MiB that is scanned. Raises: OSError.
    """
    log = state.log
    points = checkpoint.read_lines(state.filesystem, f"{log.directory}/{checkpoint.RECOVERY_POINT}", 1)
    point = points[0][0] if points else 0
    segments = log.segments
    highest_epoch = -1
    before: Scan | None = None
    producers = Producers()
    for number, segment in enumerate(segments):
        next_base = segments[number + 1].base if number + 1 < len(segments) else -1
        trusted = not state.strict and (state.clean is not None or (segment.base < point and segment.sealed))
        trusted = trusted and not state.snapshot_damaged
        trusted = trusted and segment.base not in state.doubtful  # holes that the cleaner left may not be known
        if segment.gone or (trusted and _trust_totals(state, segment, next_base)):
            if segment.gone:
                segment.end = _totals_end(state, segment)
                segment.settled.add(segment.base, segment.end - 1)
            before = None
            continue
        scan = Scan(state.filesystem, segment, next_base, state.log.watermark.offset, before)
        scan.run()
        if scan.torn_bytes:
            state.torn_bytes += scan.torn_bytes
            _cut_log(state, segment, segment.size)
        state.scanned.append(segment)
        producers.merge(scan.producers, 0)
        before = scan
        state.aborted += scan.aborted
        highest_epoch = max(highest_epoch, scan.epoch)
        _settle_scan(state, segment, scan)
    if before is not None and before.open_transaction is not None:
        _cut_transaction(state, before.open_transaction)
    for part in state.aborted:
        for segment in segments:
            if segment.base <= part[0] < segment.end:
                _forget(segment, part)
                _tell(state, segment, part[0], part[1])
    end = max([segment.end for segment in segments], default=0)
    if state.clean is not None:
        end = max(end, state.clean[0])
    log.end = end
    _know_producers(state, producers)
    if highest_epoch >= 0 and (not log.epochs or log.epochs[-1][0] < highest_epoch):
        log.epochs.append((highest_epoch, end))


def _know_producers(state: Recovery, scanned: Producers) -> None:
    """Who has numbered what is in the log: as the snapshot tells it, then as the scan has found it."""
    log = state.log
    known, start = state.snapshot if state.snapshot is not None else (Producers(), 0)
    known.merge(scanned, start)
    known.cut(log.end)
    if state.snapshot is not None or state.snapshot_damaged or len(known) > 0:
        log.producers = known
        known.due = state.clean is None or state.snapshot_damaged


def _trust_totals(state: Recovery, segment: Segment, next_base: int) -> bool:
    for kind, end, size, body_bytes in reversed(state.entries[segment.base]):
        if 0 <= next_base < end:
            continue  # of what the cleaner was about to make of several
        if kind == settled.TOTALS and size == segment.size and end >= segment.base:
            segment.end = end
            segment.body_bytes = body_bytes
            if not segment.sealed:
                segment.load_times()
            return True
    return False


def _totals_end(state: Recovery, segment: Segment) -> int:
    ends = [segment.base]
    for kind, a, b, _ in state.entries[segment.base]:
        if kind == settled.TOTALS:
            ends.append(a)
        elif kind in (settled.SETTLED, settled.LOST, settled.TRANSIENT):
            ends.append(b + 1)
    return max(ends)


def _forget(segment: Segment, part: tuple[int, int, int]) -> None:
    """Offsets (first, last, bytes of bodies) that do not count after a restart."""
    if segment.settled.add(part[0], part[1]):
        segment.settled_body_bytes += part[2]
        segment.transient_gone.append(part)


def _tell(state: Recovery, segment: Segment, first: int, last: int) -> None:
    """`.settled` has to tell of these offsets before anything is appended: once the high watermark is behind them, a
    start would take a hole for damage, and the pieces of a transaction for all that damage has left of it.
    """
    if untold_ranges(state.entries[segment.base], first, last + 1):
        segment.settled_size = -1


def _settle_scan(state: Recovery, segment: Segment, scan: Scan) -> None:
    segment.gaps = scan.gaps
    for first, last in scan.gaps:
        segment.settled.add(first, last)
    for part in scan.transient:
        _forget(segment, part)
    for first, last in scan.lost:
        segment.settled.add(first, last)
        if first >= state.log.watermark.offset:
            segment.gaps.append((first, last))
            _tell(state, segment, first, last)
            continue
        # What `.settled` tells of was done with, or told as a gap or as lost by the start before.
        for lost in untold_ranges(state.entries[segment.base], first, last + 1):
            logger.error("%s.log is damaged: offsets %d to %d are lost", segment.prefix, lost[0], lost[1])
            state.lost.append(lost)
            segment.lost.append(lost)
            segment.settled_size = -1


def _cut_transaction(state: Recovery, transaction: tuple[int, int, int, int]) -> None:
    offset, position, body_bytes, base = transaction
    log = state.log
    for segment in log.segments:
        if segment.base < base or segment.gone:
            continue
        keep = position if segment.base == base else 0
        state.torn_bytes += segment.size - keep
        segment.cut(keep, max(offset, segment.base), body_bytes if segment.base == base else 0)
        _cut_log(state, segment, keep)
    first = next(segment for segment in log.segments if segment.base == base)
    log.segments[:] = [segment for segment in log.segments if segment.base <= base or segment.gone]
    first.sealed = False
    first.forget_settled(offset)


def _cut_log(state: Recovery, segment: Segment, size: int) -> None:
    state.cut = True
    file = segment.open_log(create=True)
    state.filesystem.truncate(file.fd, size)
    if file.path not in state.cut_paths:
        state.cut_paths.append(file.path)
