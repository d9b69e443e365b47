"""Recovery: opens a log, and repairs what a crash left before anything is appended.

A clean-shutdown mark that agrees with the files means that `.settled` files have all that is needed; nothing is
scanned. Otherwise all segments from the recovery point on are scanned (scan.py). Earlier segments were synced with
their totals; one whose totals are missing or do not fit its size is scanned, too.

    bad bytes at the end        the torn tail is cut off: bytes that were not synced were not confirmed
    bad bytes in the middle     skipped (scan.py), logged and counted as lost
    missing synced offsets      lost as well
    transaction at the end      without its commit marker it is cut off, with everything after it: it was written with
                                one call, so only parts of it can follow
    hole in a transaction       none of it counts, and `.settled` says so from now on
    aborted by its producer     the same (transactions.py). To find all of its parts, the scan begins where the oldest
                                transaction begins that was open at the snapshot of the producers
    other holes                 settled, so that no reader waits for them. Below the high watermark they are damage and
                                logged as lost
    hole after a power cut      if it is above the high watermark and producers have numbered messages after it, the log
                                ends there. Nothing after it was confirmed, and a producer that sends the missing
                                messages again would look like one that repeats itself
    entries beyond the end      of `.settled`: dropped and the file rewritten, because these offsets are used again
    `.index`, `.timeindex`      of scanned segments: rebuilt

Cut files, rewritten files and the directory are synced before anything else is written, and before the queue uses the
log. On a full disk the log can be read and drained before that. The first append begins a new leader epoch.

Steps:

- `RecoveryReader` reads and decides, on the loop, in slices (100,000 acknowledgements take 0.1 s): checkpoints,
  segments with their `.settled` entries (`load_segments`), scans and cuts (`check_tail`), entries (`apply_entries`),
  an interrupted replay (`complete_replay`), missing files (`find_missing`). `RecoveryState` has the results.
- `RecoveredLog.write` writes `RecoveryWrites` in any thread, because that waits for the disk. A crash before it is
  done changes nothing: the next recovery makes the same decisions.
- `RecoveredLog.finish` ends it on the loop. Nothing else touches the log in between.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeAlias

from mypy_extensions import i64

from amqpd.storage.acks import ack_set, replay_file
from amqpd.storage.acks.ack_files import FULL, replace_settled
from amqpd.storage.acks.ack_set import ENTRY_SIZE, AckFileReader, AckSet, Entry
from amqpd.storage.compaction import finish_swaps
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log import checkpoint
from amqpd.storage.log.log import Log
from amqpd.storage.log.producer_state import SUFFIX, Producers, read_snapshot, snapshot_path, write_snapshot
from amqpd.storage.log.scan import Scan, find_missing, has_unrecorded_offsets, set_aside_foreign, unrecorded_ranges
from amqpd.storage.log.segment import Segment, segment_name
from amqpd.storage.log.transactions import Transactions
from amqpd.storage.queue_json import DESCRIPTION
from amqpd.storage.queue_log import LogUnusable

# Entries to process before the loop may do something else: some ms.
PIECE_COUNT: Final = 2048
_EVER_S: Final = float("inf")


class RecoveryState:
    """Results of the recovery steps of one log.

    Attributes:
        power_cut: this log was not opened since the machine lost power.
        strict: damage in the middle is an error, and all segments are scanned.
        clean: the clean-shutdown mark, None without a valid one.
        last_boot: the boot id in the latest `.settled` entries.
        scanned: segments that were scanned.
        aborted: (first, last, size of bodies) of incomplete transactions.
        delivered_mark: the delivery mark in the entries.
        returned: offset -> packed delivery count and due time, from the entries.
        lost: offset ranges.
        rewrite: segments whose `.settled` must be rewritten.
        cut: the directory must be synced.
        cut_paths: cut log files, which must be synced.
        outdated: files to remove after that.
        entries: base offset of a segment -> its `.settled` entries.
        doubtful: base offsets of segments with unreadable `.settled` entries.
        snapshot: the producers and the offset of their snapshot.
        snapshot_below: path and content of a snapshot of the state below the last segment.
    """

    def __init__(self, log: Log, strict: bool, clock: Clock, power_cut: bool) -> None:
        self.log = log
        self.power_cut = power_cut
        self.clock = clock
        self.strict = strict
        self.filesystem: FileSystem = log.filesystem
        self.clean: tuple[int, int, int, int] | None = None
        self.last_boot: tuple[int, int] | None = None
        self.scanned: list[Segment] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.delivered_mark = -1
        self.returned: dict[int, int] = {}
        self.lost: list[tuple[int, int]] = []
        self.torn_bytes = 0
        self.started_s = clock.monotonic()
        self.rewrite: list[Segment] = []
        self.cut = False
        self.cut_paths: list[str] = []
        self.outdated: list[str] = []
        self.entries: dict[int, list[Entry]] = {}
        self.doubtful: set[int] = set()
        self.snapshot: tuple[Producers, int] | None = None
        self.snapshot_damaged = False
        self.snapshot_below: tuple[str, bytes] | None = None


logger = logging.getLogger(__name__)


class RecoveryWrites:
    """Writes and syncs that recovery needs. Made on the loop; `write` may run in any thread.

    Attributes:
        syncs: paths of logs to sync.
        segments: segments with a rewritten `.settled` file.
        settled: (path, content) of these files.
        names: the directory must be synced.
        unlinks: files to remove after that.
        point: the recovery point, empty if it stays.
        snapshot: producers below it, written before it.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.syncs: list[str] = []
        self.segments: list[Segment] = []
        self.settled: list[tuple[str, bytes]] = []
        self.names = False
        self.unlinks: list[str] = []
        self.point = b""
        self.snapshot: tuple[str, bytes] | None = None

    @property
    def empty(self) -> bool:
        """Return whether nothing waits for the disk."""
        return not (self.syncs or self.settled or self.names)

    def write(self, filesystem: FileSystem) -> None:
        """Write everything. A failed call can be repeated from the start. Raises: OSError."""
        for path in self.syncs:
            filesystem.fsync_file(path)
        for path, data in self.settled:
            replace_settled(filesystem, path, data)
        if self.names:
            filesystem.fsync_dir(self.directory)
        for path in self.unlinks:
            filesystem.unlink(path)
        if self.point:
            if self.snapshot is not None:
                write_snapshot(filesystem, self.snapshot[0], self.snapshot[1])
            try:
                filesystem.replace_file(f"{self.directory}/{checkpoint.RECOVERY_POINT}", self.point, sync=False)
            except OSError as error:  # the next start then scans the same segments again
                logger.warning("%s: cannot write the recovery point: %s", self.directory, error)

    def on_written(self) -> None:
        """Update the segments after `write`, on the loop."""
        for index, segment in enumerate(self.segments):
            segment.settled_size = len(self.settled[index][1])


def plan_writes(state: RecoveryState) -> Generator[RecoveryWrites | None, None, None]:
    """Yield None after each piece of work, and at last the writes that recovery needs.

    On a full disk this is repeated later; some segments may be gone by then.
    """
    log = state.log
    rest = RecoveryWrites(log.directory)
    checked = [segment for segment in state.scanned if segment in log.segments and not segment.is_removed]
    state.rewrite = [each for each in state.rewrite if each in log.segments and not (each.is_removed and each.removing)]
    rest.syncs += state.cut_paths
    for segment in checked:
        if segment.sealed:
            path = segment.prefix + segment.log_suffix
            if path not in rest.syncs:
                rest.syncs.append(path)
            if segment not in state.rewrite:
                state.rewrite.append(segment)  # to write its totals
    boot = state.last_boot if state.last_boot is not None else (0, 0)
    returned: dict[int, dict[int, int]] = {segment.base: {} for segment in state.rewrite}
    if returned:
        for count, (offset, packed) in enumerate(state.returned.items(), 1):
            home = log.segment_of(offset)
            if home is not None and home.base in returned:
                returned[home.base][offset] = packed
            if count % PIECE_COUNT == 0:
                yield None
    for segment in state.rewrite:
        log.ack_file_writer.close_file(segment)
        data = segment.encode_ack_file(boot, state.delivered_mark, returned[segment.base])
        rest.segments.append(segment)
        rest.settled.append((segment.prefix + ".settled", data))
        rest.unlinks.append(segment.prefix + ".settled.swap")
        yield None
    rest.unlinks += state.outdated
    rest.names = state.cut or len(state.rewrite) > 0 or len(state.outdated) > 0
    if True in [segment.sealed for segment in checked]:
        rest.point = checkpoint.encode_lines([(log.segments[-1].base,)])
        rest.snapshot = state.snapshot_below
    yield rest


def write_now(state: RecoveryState) -> None:
    """Write what recovery needs now. Raises: OSError."""
    for rest in plan_writes(state):
        if rest is not None:
            rest.write(state.filesystem)
            rest.on_written()


def schedule_syncs(log: Log, *, clean: bool) -> None:
    """Let the next job sync everything that a killed process left in the page cache only."""
    if True in [segment.sealed and segment.live == 0 for segment in log.segments]:
        log.removals.wanted = True
    if clean:
        log.watermark.begin(log.end)
        return
    if not log.segments:
        return
    safe = log.filesystem.safe_directories
    log.unsynced.directories += [parent for parent in log.chain[:-1] if parent not in safe]
    log.unsynced.directories += log.chain[-2:]
    # Entries of an earlier process may only be in the page cache; the next job removes segments because of them.
    log.unsynced.paths += [
        f"{segment.prefix}.settled"
        for segment in log.segments
        if segment.settled_size != 0 and (segment.is_removed or segment is not log.segments[-1])
    ]
    readable = f"{log.directory}/{DESCRIPTION}"
    if log.filesystem.exists(readable):  # otherwise the first write makes it
        log.unsynced.paths.append(readable)
    for segment in log.segments[-1:]:
        if segment.is_removed:
            continue
        log.unsynced.add_log_file(segment.open_log())
        if segment.settled_size:
            log.unsynced.add_ack_file(segment.open_settled())


LogPosition: TypeAlias = tuple[int, int, int, int]
"""Offset, its position, size of the bodies before it, base of its segment."""


def check_tail(state: RecoveryState) -> Generator[None, None, None]:
    """Scan the segments that cannot be trusted, cut torn tails, and find the end of the log, in pieces.

    Cost: 0.3 ms per scanned MiB. Raises: OSError.
    """
    log = state.log
    points = checkpoint.read_lines(state.filesystem, f"{log.directory}/{checkpoint.RECOVERY_POINT}", 1)
    point = points[0][0] if points else 0
    segments = log.segments
    highest_epoch = -1
    before: Scan | None = None
    hole: LogPosition | None = None
    numbered_behind = False
    # Everything below was synced once, so a hole there has other causes than a power cut.
    floor = max(log.watermark.offset, state.snapshot[1] if state.snapshot is not None else 0)
    producers, transactions = Producers(), Transactions()
    open_from = min(state.snapshot[0].open_transactions.values(), default=-1) if state.snapshot is not None else -1
    for number, segment in enumerate(segments):
        next_base = segments[number + 1].base if number + 1 < len(segments) else -1
        trusted = not state.strict and (state.clean is not None or (segment.base < point and segment.sealed))
        trusted = trusted and not state.snapshot_damaged
        trusted = trusted and (open_from < 0 or 0 <= next_base <= open_from)
        trusted = trusted and segment.base not in state.doubtful  # gaps from compaction may be unknown
        if segment.is_removed or (trusted and _apply_totals(state, segment, next_base)):
            found = _hole_in_unscanned(state, segment, next_base, floor)
            hole = hole or found
            before = None
            continue
        scan = Scan(state.filesystem, segment, next_base, state.log.watermark.offset, before, producers, transactions)
        scan.hole, scan.floor, scan.now_ms = hole, floor, state.clock.time_ms()
        yield from scan.run()
        if scan.torn_bytes == 0 and segment.end < next_base:
            _find_hole_after(state, segment, next_base, scan)
        if scan.torn_bytes:
            state.torn_bytes += scan.torn_bytes
            _cut_log(state, segment, segment.size)
        state.scanned.append(segment)
        hole = scan.hole
        numbered_behind = numbered_behind or scan.numbered_behind
        before = scan
        state.aborted += scan.aborted
        highest_epoch = max(highest_epoch, scan.epoch)
        _settle_scan(state, segment, scan)
    _cut_tail(state, before.open_transaction if before is not None else None, hole if numbered_behind else None)
    end = max([segment.end for segment in segments], default=0)
    base = max([segment.base for segment in segments], default=0)
    transactions.undo_from(end)
    open_at_base = transactions.open_at(base)
    for ended in transactions.take_ended(end):
        if not ended.commits:
            state.aborted += ended.parts()
    log.transactions = transactions if len(transactions) > 0 else None
    for part in state.aborted:
        for segment in segments:
            if segment.base <= part[0] < segment.end:
                _settle_part(segment, part)
                _ensure_recorded(state, segment, part[0], part[1])
    if state.clean is not None:
        end = max(end, state.clean[0])
    log.end = end
    _merge_producers(state, producers, open_at_base)
    if highest_epoch >= 0 and (not log.epochs or log.epochs[-1][0] < highest_epoch):
        log.epochs.append((highest_epoch, end))


def _merge_producers(state: RecoveryState, scanned: Producers, open_at_base: dict[int, tuple[int, int]]) -> None:
    """Combine the producers of the snapshot and of the scan.

    Args:
        open_at_base: the transactions that are open below the last segment.
    """
    log = state.log
    known, start = state.snapshot if state.snapshot is not None else (Producers(), 0)
    below = Producers()
    below.merge(known, 0)
    scanned.undo_from(log.end)
    known.merge(scanned, start)
    known.truncate(log.end)
    if state.snapshot is not None or state.snapshot_damaged or len(known) > 0:
        log.producers = known
        known.due = state.clean is None or state.snapshot_damaged
        base = max([segment.base for segment in log.segments], default=0)
        scanned.undo_from(base)
        below.merge(scanned, start)
        state.snapshot_below = (snapshot_path(log.directory, base), below.encode(base, open_at_base))


def _apply_totals(state: RecoveryState, segment: Segment, next_base: int) -> bool:
    for kind, end, size, body_bytes in reversed(state.entries[segment.base]):
        if 0 <= next_base < end:
            continue  # from a compaction of several segments that was not completed
        if kind == ack_set.TOTALS and size == segment.size and end >= segment.base:
            segment.end = end
            segment.body_bytes = body_bytes
            if not segment.sealed:
                segment.load_times()
            return True
    return False


def _hole_in_unscanned(state: RecoveryState, segment: Segment, next_base: int, floor: int) -> LogPosition | None:
    """Return the first hole in or after a segment that is not scanned: a removed or a trusted one."""
    if segment.is_removed:
        segment.end = _totals_end(state, segment)
        segment.settled.add(segment.base, segment.end - 1)
        missing = unrecorded_ranges(state.entries[segment.base], segment.base, min(segment.end, next_base))
        if missing and missing[0][0] >= floor:
            return (next_base, 0, 0, next_base)  # a power cut removed its name
    return _missing_segment(state, segment.end, next_base, floor)


def _find_hole_after(state: RecoveryState, segment: Segment, next_base: int, scan: Scan) -> None:
    """Look for a hole between a segment without bad bytes and the next one.

    There is none if the segment was sealed with a gap at its end, or compacted. Otherwise it is shorter than it was,
    or a segment between them is missing.
    """
    entries = state.entries[segment.base]
    ends = [end for kind, end, size, _ in entries if kind == ack_set.TOTALS and size == segment.size]
    if not ends:
        scan.record_gap(segment.end, segment.size)
    elif scan.hole is None:
        scan.hole = _missing_segment(state, max(ends), next_base, scan.floor)


def _missing_segment(state: RecoveryState, end: int, next_base: int, floor: int) -> LogPosition | None:
    """Return the hole between a sealed segment, which ends at `end`, and the next one; None if there is none.

    A power cut may remove the file names of a segment. Before a segment is removed on purpose, a snapshot gets its
    producers: `floor` is above `end` then. A log without a snapshot has no numbered messages to protect.
    """
    return (next_base, 0, 0, next_base) if state.snapshot is not None and floor <= end < next_base else None


def _totals_end(state: RecoveryState, segment: Segment) -> int:
    ends = [segment.base]
    for kind, a, b, _ in state.entries[segment.base]:
        if kind == ack_set.TOTALS:
            ends.append(a)
        elif kind in (ack_set.SETTLED, ack_set.LOST, ack_set.TRANSIENT):
            ends.append(b + 1)
    return max(ends)


def _settle_part(segment: Segment, part: tuple[int, int, int]) -> None:
    """Settle offsets (first, last, size of bodies) that do not count after a restart."""
    if segment.settled.add(part[0], part[1]):
        segment.settled_body_bytes += part[2]
        segment.acked_transient.append(part)


def _ensure_recorded(state: RecoveryState, segment: Segment, first: int, last: int) -> None:
    """Have the `.settled` file rewritten if its entries do not mention these offsets.

    The high watermark will pass them. Without entries, a later start would take a hole there for damage, and parts of
    a transaction for the rest of a damaged one.
    """
    if unrecorded_ranges(state.entries[segment.base], first, last + 1):
        segment.settled_size = -1


def _settle_scan(state: RecoveryState, segment: Segment, scan: Scan) -> None:
    segment.gaps = scan.gaps
    for first, last in scan.gaps:
        segment.settled.add(first, last)
    for part in scan.transient:
        _settle_part(segment, part)
    for first, last in scan.lost:
        segment.settled.add(first, last)
        if first >= state.log.watermark.offset:
            segment.gaps.append((first, last))
            _ensure_recorded(state, segment, first, last)
            continue
        # Offsets that `.settled` mentions were settled, or recorded as a gap or as lost by the previous start.
        for lost in unrecorded_ranges(state.entries[segment.base], first, last + 1):
            logger.error("%s.log is damaged: offsets %d to %d are lost", segment.prefix, lost[0], lost[1])
            state.lost.append(lost)
            segment.lost.append(lost)
            segment.settled_size = -1


def _cut_tail(state: RecoveryState, transaction: LogPosition | None, hole: LogPosition | None) -> None:
    """Cut the log at an incomplete transaction or at a hole.

    Args:
        hole: the first hole with numbered messages after it.
    """
    if hole is not None and state.power_cut and (transaction is None or hole[0] < transaction[0]):
        logger.warning(
            "%s: a power cut left a hole at offset %d, and the log now ends there: "
            "the messages after it are numbered by producers and were never confirmed",
            state.log.directory,
            hole[0],
        )
        _cut_at(state, hole)
    elif transaction is not None:
        _cut_at(state, transaction)


def _cut_at(state: RecoveryState, place: LogPosition) -> None:
    """Cut the log at `place`."""
    offset, position, body_bytes, base = place
    log = state.log
    for segment in log.segments:
        if segment.base < base or segment.is_removed:
            continue
        keep = position if segment.base == base else 0
        state.torn_bytes += segment.size - keep
        segment.truncate(keep, max(offset, segment.base), body_bytes if segment.base == base else 0)
        _cut_log(state, segment, keep)
    first = next(segment for segment in log.segments if segment.base == base)
    log.segments[:] = [segment for segment in log.segments if segment.base <= base or segment.is_removed]
    first.sealed = False
    first.truncate_acks(offset)


def _cut_log(state: RecoveryState, segment: Segment, size: int) -> None:
    state.cut = True
    file = segment.open_log(create=True)
    state.filesystem.truncate(file.fd, size)
    if file.path not in state.cut_paths:
        state.cut_paths.append(file.path)


def read_checkpoints(state: RecoveryState, names: list[str]) -> None:
    """Read the checkpoint files. Raises: UnknownFormat if a newer version wrote the clean-shutdown mark."""
    log = state.log
    directory = log.directory
    log.epochs = checkpoint.read_lines(state.filesystem, f"{directory}/{checkpoint.LEADER_EPOCH}", 2)
    log.watermark.offset = checkpoint.read_high_watermark(state.filesystem, f"{directory}/{checkpoint.HIGH_WATERMARK}")
    state.clean = checkpoint.read_clean(state.filesystem, f"{directory}/{checkpoint.CLEAN_SHUTDOWN}")
    log.clean = checkpoint.CLEAN_SHUTDOWN in names
    if checkpoint.LOG_START not in names:
        return
    for (start,) in checkpoint.read_lines(state.filesystem, f"{directory}/{checkpoint.LOG_START}", 1):
        log.deleted_end = start


def load_segments(state: RecoveryState, names: list[str]) -> Generator[None, None, None]:
    """Create the segments and read their `.settled` files, in pieces.

    Args:
        names: the files in the directory.

    Cost: 0.3 us per entry. Raises: OSError; UnknownFormat.
    """
    log = state.log
    filesystem = state.filesystem
    bases = sorted({int(name[:20]) for name in names if _is_segment_file(name)})
    present = {int(name[:20]) for name in names if name.endswith(".log") and _is_segment_file(name)}
    for base in bases[:]:
        if base not in present and base > max(present, default=-1):
            # The last segment is never removed before there is another one. So the name of this log was not synced,
            # none of its messages was confirmed, and its entries must not apply to the next messages.
            for suffix in (".settled", ".settled.swap"):
                filesystem.unlink(f"{log.directory}/{segment_name(base)}{suffix}")
            state.cut = True
            bases.remove(base)
    for base in bases:
        segment = Segment(filesystem, log.directory, base)
        segment.sealed = True
        entries, bad = yield from _read_entries(filesystem, segment)
        state.entries[base] = entries
        if bad:
            state.doubtful.add(base)
        if base in present:
            segment.size = filesystem.size(segment.prefix + ".log")
        else:
            segment.is_removed = True
        log.segments.append(segment)
    live = [segment for segment in log.segments if not segment.is_removed]
    if live:
        live[-1].sealed = False
        if live[-1] is not log.segments[-1]:
            live[-1].sealed = True
    clean = state.clean
    if clean is not None and (not live or live[-1].base != clean[1] or live[-1].size != clean[2]):
        logger.warning("%s: the clean-shutdown mark differs from the files and is ignored", log.directory)
        state.clean = None


def _is_segment_file(name: str) -> bool:
    return name[:20].isdigit() and name[20:] in (".log", ".settled")


def _read_entries(filesystem: FileSystem, segment: Segment) -> Generator[None, None, tuple[list[Entry], int]]:
    entries: list[Entry] = []
    bad = 0
    swap = False
    for suffix in (".settled", ".settled.swap"):
        path = segment.prefix + suffix
        if not filesystem.exists(path):
            continue
        swap = suffix == ".settled.swap"
        data = filesystem.read_file(path)
        segment.settled_size += len(data)
        file_entries: list[Entry] = []
        foreign = False
        for start in range(0, len(data), PIECE_COUNT * ENTRY_SIZE):
            file = AckFileReader(data[start : start + PIECE_COUNT * ENTRY_SIZE])
            bad += file.bad_count
            if file.newer_version():
                raise checkpoint.UnknownFormat(path)
            foreign = foreign or file.has_other_base(segment.base)
            file_entries += file.entries
            yield
        if foreign:
            logger.error("%s belongs to another segment and is ignored", path)
            bad += 1
        else:
            entries += file_entries
    if bad:
        logger.warning(
            "%s.settled: %d bad entries; messages that they settled may be delivered again", segment.prefix, bad
        )
    if swap or bad:
        segment.settled_size = -1  # rewrite it
    return entries, bad


def apply_entries(state: RecoveryState) -> Generator[None, None, None]:
    """Apply the `.settled` entries, in pieces. The end of each segment is known now."""
    log = state.log
    boot: tuple[int, int] | None = None
    count: i64 = 0
    for segment in log.segments:
        end = segment.end
        scanned = segment in state.scanned
        segment.acked_transient.sort()  # found by a scan, settled already
        transient = _transient_offsets(segment, state.entries[segment.base])
        recorded = AckSet(segment.base)
        for kind, a, b, c in state.entries[segment.base]:
            count += 1
            if count % PIECE_COUNT == 0:
                yield
            if kind in (ack_set.SETTLED, ack_set.LOST, ack_set.TRANSIENT):
                if b >= end:
                    segment.settled_size = -1
                new = segment.settled.add(max(a, segment.base), min(b, end - 1))
                if new:
                    segment.settled_body_bytes += c
                    if kind == ack_set.TRANSIENT:
                        segment.acked_transient.append((a, b, c))
                    elif transient.contains(a):
                        segment.settled_transient_bytes += c
                elif scanned and kind == ack_set.SETTLED and c > 0 and recorded.add(a, min(b, end - 1)):
                    segment.ack_transient_again(a, c)
                if kind == ack_set.LOST and (a, b) not in state.lost:
                    state.lost.append((a, b))
                    segment.lost.append((a, b))
            elif kind == ack_set.BITS:
                segment.settled.add_bits(a, b, c, end - 1)
            elif kind == ack_set.TIMES and not scanned:
                segment.first_timestamp_ms, segment.max_timestamp_ms = a, max(b, segment.max_timestamp_ms)
            elif kind == ack_set.BYTES:
                _apply_bytes(segment, a, b, scanned)
            elif kind == ack_set.RETURNED:
                state.returned[a] = ack_set.pack_returned(b, c)
            elif kind == ack_set.DELIVERED:
                state.delivered_mark = max(state.delivered_mark, a)
                if a >= log.end:
                    segment.settled_size = -1
            elif kind == ack_set.BOOT:
                boot = (a, b)
        segment.settled_body_bytes = min(segment.settled_body_bytes, segment.body_bytes)
        if segment.settled_size < 0:
            state.rewrite.append(segment)
    state.last_boot = boot
    state.delivered_mark = min(state.delivered_mark, log.end - 1)
    if state.clean is not None:  # the entries may run ahead; the mark is exact
        state.delivered_mark = min(state.delivered_mark, state.clean[3])
    for offset in list(state.returned):
        count += 1
        if count % PIECE_COUNT == 0:
            yield
        place = log.segment_of(offset)
        if place is None or place.is_removed or place.settled.contains(offset):
            del state.returned[offset]


def _transient_offsets(segment: Segment, entries: list[Entry]) -> AckSet:
    """Return the transient offsets in the entries."""
    found = AckSet(segment.base)
    for kind, a, b, _ in entries:
        if kind == ack_set.TRANSIENT:
            found.add(max(a, segment.base), min(b, segment.end - 1))
    return found


def _apply_bytes(segment: Segment, size: int, transient: int, scanned: bool) -> None:
    """Count settled bodies that the entries do not assign to ranges.

    Args:
        size: the size of all of them.
        transient: size of the transient ones.
    """
    segment.settled_body_bytes += size
    if not scanned:
        segment.settled_transient_bytes += transient
    elif transient > 0:  # the scan has counted them too; rewrite the file without
        segment.settled_body_bytes -= transient
        segment.settled_size = -1


def complete_replay(state: RecoveryState) -> None:
    """Complete an interrupted replay (storage/acks/replay.py): the messages in its file are live again."""
    log = state.log
    path = f"{log.directory}/{replay_file.NAME}"
    if not state.filesystem.exists(path):
        return
    data = state.filesystem.read_file(path)
    state.outdated.append(path)
    rewind = replay_file.decode_rewind(data)
    if rewind is None or not log.epochs or rewind[1] != log.epochs[-1][0]:
        return
    count = 0
    parts = replay_file.by_segment(rewind[0])
    for segment in log.segments:
        if segment.is_removed or segment.base not in parts:
            continue
        offsets, size = replay_file.replayed_offsets(parts[segment.base], segment.base, segment.end)
        for first, last, _ in segment.acked_transient:
            ended = AckSet(segment.base)
            ended.add(first, last)
            offsets.remove_all(ended)
        taken = segment.settled.remove_all(offsets)
        if taken:
            count += taken
            segment.settled_body_bytes = max(0, segment.settled_body_bytes - size)
            state.delivered_mark = max(state.delivered_mark, offsets.highest)
            if segment not in state.rewrite:
                state.rewrite.append(segment)
    logger.info("%s: an interrupted replay was completed, %d messages are in the queue again", log.directory, count)


def stored_delivered_mark(state: RecoveryState) -> int:
    """Return the delivery mark in the `.settled` file that must have it. Other files, of older segments, are removed
    earlier.
    """
    segment = state.log.delivered_mark_segment(state.delivered_mark)
    if segment is None or segment in state.rewrite:
        return state.delivered_mark
    return max([a for kind, a, _, _ in state.entries[segment.base] if kind == ack_set.DELIVERED], default=-1)


class DamagedLog(LogUnusable):
    """Strict recovery found bad bytes in the middle of a log."""


class RecoveredLog:
    """A log that was read. It must be written (`write`) and finished before its use.

    Attributes:
        callbacks: called on the loop when a thread has written it.
    """

    def __init__(
        self, store: LocalLog, state: RecoveryState | None, boot: tuple[int, int], power_cut: bool, rest: RecoveryWrites
    ) -> None:
        self.store = store
        self.callbacks: list[Callable[[], None]] = []
        self.is_reported = False  # the callbacks were called
        self._state = state  # None: the log is new
        self._boot = boot
        self._power_cut = power_cut
        self._writes = rest
        self._writing = threading.Lock()
        self._is_done = self._writes.empty and not self._writes.point
        self._error: OSError | None = None

    @property
    def needs_write(self) -> bool:
        """Return whether `write` waits for the disk."""
        return not self._writes.empty

    def write(self) -> None:
        """Write what recovery needs. Several threads may call it; all return when it is done. Raises nothing."""
        with self._writing:
            if self._is_done:
                return
            self._is_done = True
            try:
                self._writes.write(self.store.log.filesystem)
            except OSError as error:  # for `finish`
                self._error = error

    def cancel(self) -> None:
        """Prevent the write, because the queue is deleted. A write that runs now continues."""
        if self._writing.acquire(blocking=False):
            self._is_done = True
            self._writing.release()

    def finish(self) -> None:
        """Make the log usable, on the loop, after `write`.

        Raises: OSError; then recovery may be tried again from the start.
        """
        store = self.store
        log = store.log
        state = self._state
        if state is None:
            store.recovered(-1, 0, {}, [])
            return
        error = self._error
        if error is None:
            self._writes.on_written()
        elif error.errno not in FULL:
            raise error
        else:
            log.recovery_rest = partial(write_now, state)
            try:
                log.finish_recovery()
            except OSError as again:
                if again.errno not in FULL:
                    raise
                logger.warning(
                    "%s: the disk is full; the results of recovery are written later, before anything else",
                    log.directory,
                )
        schedule_syncs(log, clean=state.clean is not None)
        seen_end = state.delivered_mark + 1
        if state.clean is None:
            logger.info(
                "queue '%s' was recovered in %d ms: its log ends at offset %d, %d torn bytes were cut off, "
                "%d offsets are lost",
                store.name,
                int((state.clock.monotonic() - state.started_s) * 1000),
                log.end,
                state.torn_bytes,
                sum([last - first + 1 for first, last in state.lost]),
                extra={"queue": store.name},
            )
        if self._power_cut or (state.clean is None and state.last_boot != self._boot):
            seen_end = log.end  # the mark may be lost: every message may have been delivered
        store.recovered(stored_delivered_mark(state), seen_end, state.returned, state.lost)


class RecoveryReader:
    """Reads a log from its directory in slices. A missing directory is an empty log. A caller that gives up calls
    `end`.

    Args:
        power_cut: the last process ended with the machine, so clean-shutdown marks do not prove what was delivered.
        strict: bad bytes in the middle of a log are an error, and all segments are scanned.

    Attributes:
        callbacks: called on the loop when the log can be used, or after an error.
    """

    def __init__(self, store: LocalLog, boot: tuple[int, int], clock: Clock, *, power_cut: bool, strict: bool) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self._clock = clock
        self._steps = _steps(store, boot, clock, power_cut, strict)

    def read_slice(self, slice_s: float) -> RecoveredLog | None:
        """Continue for `slice_s` seconds. Return None if there is more to do.

        Raises: OSError; UnknownFormat if a newer version wrote the log; DamagedLog (only if strict). A new reader may
        try again.
        """
        end_s = self._clock.monotonic() + slice_s
        while True:
            opening = next(self._steps)
            if opening is not None:
                return opening
            if self._clock.monotonic() >= end_s:
                return None

    def read_all(self) -> RecoveredLog:
        """Do the rest at once. Raises: as `read_slice`."""
        opening = self.read_slice(_EVER_S)
        assert opening is not None  # the time is never over
        return opening

    def close(self) -> None:
        """Give up."""
        self._steps.close()


def _steps(
    store: LocalLog, boot: tuple[int, int], clock: Clock, power_cut: bool, strict: bool
) -> Generator[RecoveredLog | None, None, None]:
    """Yield None after each piece of work, and the log at the end."""
    log = store.log
    log.reset()
    state = RecoveryState(log, strict, clock, power_cut)
    names = log.filesystem.listdir(log.directory)
    if finish_swaps(log.filesystem, log.directory, names):
        names = log.filesystem.listdir(log.directory)
    if not names:
        yield RecoveredLog(store, None, boot, power_cut, RecoveryWrites(""))
        return
    names = set_aside_foreign(log.filesystem, log.directory, names)
    read_checkpoints(state, names)
    state.snapshot = read_snapshot(state.filesystem, log.directory, names)
    state.snapshot_damaged = state.snapshot is None and True in [name.endswith(SUFFIX) for name in names]
    if power_cut and state.clean is not None:
        state.filesystem.unlink(f"{log.directory}/{checkpoint.CLEAN_SHUTDOWN}")
        state.cut = True
        log.clean = False
        state.clean = None
    yield from load_segments(state, names)
    for name in names:
        if name.endswith((".deleted", ".cleaned")):
            state.filesystem.unlink(f"{log.directory}/{name}")
    yield from check_tail(state)
    yield from apply_entries(state)
    complete_replay(state)
    if log.deleted_end > log.start_offset():
        log.deleted_end = 0  # a power cut has left the checkpoint and not what it says
    for segment, first, last in find_missing(log, state.entries, state.clean is not None):
        state.lost.append((first, last))
        if segment is not None and segment not in state.rewrite:
            state.rewrite.append(segment)
    for segment in log.segments:
        # A power cut removed the name of this log; nothing in it was confirmed. Record its offsets now: later they
        # would look like damage.
        if (
            segment.is_removed
            and segment not in state.rewrite
            and has_unrecorded_offsets(state.entries[segment.base], segment)
        ):
            state.rewrite.append(segment)
    if strict and state.lost:
        ranges = ", ".join(f"{first} to {last}" for first, last in state.lost)
        raise DamagedLog(
            f"the log of queue '{store.name}' is damaged: offsets {ranges} are lost ({log.directory}); nothing was "
            f"changed. Restore its files from a backup, or start with storage.recovery=salvage, which continues "
            f"without these offsets; `amqpctl dump_log` and `amqpctl verify_log` show the damage"
        )
    for segment in state.scanned:
        if segment in log.segments:
            try:
                segment.rewrite_index()
                if segment.sealed:
                    segment.drop_indexes()
            except OSError as error:  # it can be rebuilt
                logger.warning("%s.index: cannot write it: %s", segment.prefix, error)
    for rest in plan_writes(state):
        yield None if rest is None else RecoveredLog(store, state, boot, power_cut, rest)
