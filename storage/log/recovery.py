"""Opening a log: what a crash left is made whole before anything is appended.

After a clean stop (its mark agrees with the files) the `.settled` files tell all that must be known: nothing is
scanned. Otherwise every segment from the recovery point on is read from its start and each batch checked. (Segments
before it were synced whole, together with their totals; one whose totals are missing or do not fit its size is scanned
as well.)

    bad bytes at the end        the torn tail: cut off. What was not synced was not confirmed
    bad bytes in the middle     passed over to the batch behind by their own header's length, if a good one that goes
                                on stands there, else to the next `.index` position with a good batch whose offset
                                fits; counted, lost
    what was synced, not there  (scan.py) lost as well
    a transaction without its   cut off with everything behind it: it was written in one go, so nothing can be behind
    commit marker at the end    it but pieces of it
    a hole in a transaction     none of it counts, and `.settled` says so from now on
    settlements, marks          those at or beyond the end are dropped and the file written anew, since the offsets may
                                be used again. Cut, files and directory are synced before anything else is written:
                                before the log is given to anybody, or when a full disk has room again
    `.index`, `.timeindex`      of scanned segments: built anew

Then a new leader epoch begins (with the first append).

It has three parts: `Reading` reads and decides, on the loop, in slices (a hundred thousand settlements take 0.1 s); an
`Opening` writes, in any thread, since that waits for the disk, and finishes on the loop again. Between them nobody else
touches the log.

What recovery has to write and sync before anything is appended: cut logs, `.settled` files written anew, names.

It is decided on the loop and written by any thread. A crash before it is done leaves what there was, and the next
recovery comes to the same; so does a full disk, on which the log is read, and drained, without.

Which segments are read batch by batch at recovery, and what is cut off for what is found there.

After a clean stop none is, if its totals fit its size; else all from the recovery point on are. A torn tail is cut, and
a transaction without its commit marker with everything behind it. Holes count as settled, so that they are never waited
for; those below the high watermark are damage, and told as lost. One above it, of which nothing was confirmed, ends the
log, after a power cut, where producers have numbered what is behind it: who sends once more what was in the hole would
pass for having sent it before.

What recovery knows of one log so far; its steps hand it on.

`recovery.begin` goes through them: what the small files tell (recovery.py), what a scan finds (recovery.py),
what the medium has lost (scan.py), and in the end what has to be written for it (recovery.py).

What a log's small files tell at recovery: checkpoints, and the `.settled` file of each segment.

First they are read, and say which segments there are and which may be trusted without a scan; once the ends of the
segments are known, what `.settled` tells is applied to them. What it tells of offsets behind the end is dropped, since
those may be used again.
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
from amqpd.storage.log.scan import Scan, find_missing, set_aside_foreign, untold, untold_ranges
from amqpd.storage.log.segment import Segment, segment_name
from amqpd.storage.queue_log import LogUnusable

# Of entries, before it may be somebody else's turn: some ms.
PIECE_COUNT: Final = 2048


class RecoveryState:
    """One log's. clean: the clean-shutdown mark, None when there is none to be trusted. entries: of `.settled`, by base
    offset of the segment. scanned, rewrite: segments that were read, and whose `.settled` is to be written anew.
    aborted: (first, last, bytes of bodies) of transactions that are not whole. delivered_mark, returned: the delivery
    mark and the delivery counts, as told. lost: offset ranges. cut: the directory has to be synced; cut_paths: and
    these logs. outdated: files that go when the rest is synced. doubtful: base offsets of segments of whose
    `.settled` something could not be read. snapshot: of the producers, and its offset; snapshot_below: one of what is
    below the last segment, and where it goes. power_cut: this log has not been opened since the machine went.
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
    """What recovery has to write and sync: paths of logs to sync, `.settled` files to write anew, the directory, what
    goes then, the recovery point, before that the snapshot of what producers have numbered below it. Made on the loop;
    `write` may be called in any thread.
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
        """Whether nothing of it waits for the disk."""
        return not (self.syncs or self.settled or self.names)

    def write(self, filesystem: FileSystem) -> None:
        """Raises: OSError. What was done before it stands, and is done again by the next try."""
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
            except OSError as error:  # the next start then checks the same again
                logger.warning("recovery point of %s: %s", self.directory, error)

    def written(self) -> None:
        """On the loop, when `write` has returned."""
        for index, segment in enumerate(self.segments):
            segment.settled_size = len(self.settled[index][1])


def rest_in_pieces(state: RecoveryState) -> Generator[RecoveryWrites | None, None, None]:
    """What recovery changed, as it has to be written and synced before anything is appended: None after each piece,
    then all of it. Where the disk is full that may be later, and some segments may have gone meanwhile.
    """
    log = state.log
    rest = RecoveryWrites(log.directory)
    checked = [segment for segment in state.scanned if segment in log.segments and not segment.gone]
    state.rewrite = [each for each in state.rewrite if each in log.segments and not (each.gone and each.removing)]
    rest.syncs += state.cut_paths
    for segment in checked:
        if segment.sealed:
            path = segment.prefix + segment.log_suffix
            if path not in rest.syncs:
                rest.syncs.append(path)
            if segment not in state.rewrite:
                state.rewrite.append(segment)  # for its totals
    boot = state.last_boot if state.last_boot is not None else (0, 0)
    returned: dict[int, dict[int, int]] = {segment.base: {} for segment in state.rewrite}
    if returned:
        for count, (offset, told) in enumerate(state.returned.items(), 1):
            place = log.segment_of(offset)
            if place is not None and place.base in returned:
                returned[place.base][offset] = told
            if count % PIECE_COUNT == 0:
                yield None
    for segment in state.rewrite:
        log.settled_files.forget(segment)
        data = segment.compacted(boot, state.delivered_mark, returned[segment.base])
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


def make_whole(state: RecoveryState) -> None:
    """Writes it now. Raises: OSError."""
    for rest in rest_in_pieces(state):
        if rest is not None:
            rest.write(state.filesystem)
            rest.written()


def after_recovery(log: Log, *, clean: bool) -> None:
    """What a kill left in the page cache counts from now on, so the next job syncs it."""
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
    # What was settled in an earlier life may be in the page cache only; drained segments go with the next job.
    log.unsynced.paths += [
        f"{segment.prefix}.settled"
        for segment in log.segments
        if segment.settled_size != 0 and (segment.gone or segment is not log.segments[-1])
    ]
    for segment in log.segments[-1:]:
        if segment.gone:
            continue
        log.unsynced.note(segment.open_log())
        if segment.settled_size:
            log.unsynced.note_settled(segment.open_settled())


Place: TypeAlias = tuple[int, int, int, int]
"""An offset, its position, the body bytes before it, the base of its segment."""


def check_tail(state: RecoveryState) -> Generator[None, None, None]:
    """Scans what cannot be trusted, cuts what is torn, and finds where the log ends, in pieces.

    Cost: 0.3 ms a MiB that is scanned. Raises: OSError.
    """
    log = state.log
    points = checkpoint.read_lines(state.filesystem, f"{log.directory}/{checkpoint.RECOVERY_POINT}", 1)
    point = points[0][0] if points else 0
    segments = log.segments
    highest_epoch = -1
    before: Scan | None = None
    hole: Place | None = None
    numbered_behind = False
    # Below it all was synced once: what is missing there has been lost otherwise, or may be.
    floor = max(log.watermark.offset, state.snapshot[1] if state.snapshot is not None else 0)
    producers = Producers()
    for number, segment in enumerate(segments):
        next_base = segments[number + 1].base if number + 1 < len(segments) else -1
        trusted = not state.strict and (state.clean is not None or (segment.base < point and segment.sealed))
        trusted = trusted and not state.snapshot_damaged
        trusted = trusted and segment.base not in state.doubtful  # holes that the cleaner left may not be known
        if segment.gone or (trusted and _trust_totals(state, segment, next_base)):
            found = _hole_in_unread(state, segment, next_base, floor)
            hole = hole or found
            before = None
            continue
        scan = Scan(state.filesystem, segment, next_base, state.log.watermark.offset, before, producers)
        scan.hole, scan.floor = hole, floor
        yield from scan.run()
        if scan.torn_bytes == 0 and segment.end < next_base:
            _look_behind(state, segment, next_base, scan)
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


def _know_producers(state: RecoveryState, scanned: Producers) -> None:
    """Who has numbered what is in the log: as the snapshot tells it, then as the scan has found it."""
    log = state.log
    known, start = state.snapshot if state.snapshot is not None else (Producers(), 0)
    below = Producers()
    below.merge(known, 0)
    scanned.unwritten(log.end)
    known.merge(scanned, start)
    known.cut(log.end)
    if state.snapshot is not None or state.snapshot_damaged or len(known) > 0:
        log.producers = known
        known.due = state.clean is None or state.snapshot_damaged
        base = max([segment.base for segment in log.segments], default=0)
        scanned.unwritten(base)
        below.merge(scanned, start)
        state.snapshot_below = (snapshot_path(log.directory, base), below.encode(base))


def _trust_totals(state: RecoveryState, segment: Segment, next_base: int) -> bool:
    for kind, end, size, body_bytes in reversed(state.entries[segment.base]):
        if 0 <= next_base < end:
            continue  # of what the cleaner was about to make of several
        if kind == ack_set.TOTALS and size == segment.size and end >= segment.base:
            segment.end = end
            segment.body_bytes = body_bytes
            if not segment.sealed:
                segment.load_times()
            return True
    return False


def _hole_in_unread(state: RecoveryState, segment: Segment, next_base: int, floor: int) -> Place | None:
    """Of a segment that is not scanned: its log is gone, or what its totals tell is trusted."""
    if segment.gone:
        segment.end = _totals_end(state, segment)
        segment.settled.add(segment.base, segment.end - 1)
        untold = untold_ranges(state.entries[segment.base], segment.base, min(segment.end, next_base))
        if untold and untold[0][0] >= floor:
            return (next_base, 0, 0, next_base)  # a power cut took its name
    return _vanished(state, segment.end, next_base, floor)


def _look_behind(state: RecoveryState, segment: Segment, next_base: int, scan: Scan) -> None:
    """A segment without bad bytes ends before the next one begins: it is shorter than it was, or another one stood
    between; or nothing is wrong, as it was sealed with a gap at its end, or cleaned.
    """
    entries = state.entries[segment.base]
    ends = [end for kind, end, size, _ in entries if kind == ack_set.TOTALS and size == segment.size]
    if not ends:
        scan.note_hole(segment.end, segment.size)
    elif scan.hole is None:
        scan.hole = _vanished(state, max(ends), next_base, scan.floor)


def _vanished(state: RecoveryState, end: int, next_base: int, floor: int) -> Place | None:
    """A segment between a sealed one and the next whose names a power cut took, log and all. One that was removed has a
    snapshot of what its producers had numbered.
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


def _forget(segment: Segment, part: tuple[int, int, int]) -> None:
    """Offsets (first, last, bytes of bodies) that do not count after a restart."""
    if segment.settled.add(part[0], part[1]):
        segment.settled_body_bytes += part[2]
        segment.transient_gone.append(part)


def _tell(state: RecoveryState, segment: Segment, first: int, last: int) -> None:
    """`.settled` has to tell of these offsets before anything is appended: once the high watermark is behind them, a
    start would take a hole for damage, and the pieces of a transaction for all that damage has left of it.
    """
    if untold_ranges(state.entries[segment.base], first, last + 1):
        segment.settled_size = -1


def _settle_scan(state: RecoveryState, segment: Segment, scan: Scan) -> None:
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


def _cut_tail(state: RecoveryState, transaction: Place | None, hole: Place | None) -> None:
    """hole: with what producers have numbered behind it."""
    if hole is not None and state.power_cut and (transaction is None or hole[0] < transaction[0]):
        logger.warning(
            "%s: a power cut has left a hole before offset %d, and the log ends there: behind it is what producers "
            "have numbered and had no answer for",
            state.log.directory,
            hole[0],
        )
        _cut_behind(state, hole)
    elif transaction is not None:
        _cut_behind(state, transaction)


def _cut_behind(state: RecoveryState, place: Place) -> None:
    """What stands there goes, and all behind it."""
    offset, position, body_bytes, base = place
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


def _cut_log(state: RecoveryState, segment: Segment, size: int) -> None:
    state.cut = True
    file = segment.open_log(create=True)
    state.filesystem.truncate(file.fd, size)
    if file.path not in state.cut_paths:
        state.cut_paths.append(file.path)


def read_checkpoints(state: RecoveryState, names: list[str]) -> None:
    """The checkpoints of the directory. Raises: UnknownFormat when a newer version wrote the clean mark."""
    log = state.log
    directory = log.directory
    log.epochs = checkpoint.read_lines(state.filesystem, f"{directory}/{checkpoint.LEADER_EPOCH}", 2)
    log.watermark.offset = checkpoint.read_high_watermark(state.filesystem, f"{directory}/{checkpoint.HIGH_WATERMARK}")
    state.clean = checkpoint.read_clean(state.filesystem, f"{directory}/{checkpoint.CLEAN_SHUTDOWN}")
    log.clean = checkpoint.CLEAN_SHUTDOWN in names


def load_segments(state: RecoveryState, names: list[str]) -> Generator[None, None, None]:
    """The segments there are, with what their `.settled` files tell, in pieces. names: of the files in the directory.

    Cost: 0.3 us an entry. Raises: OSError; UnknownFormat.
    """
    log = state.log
    filesystem = state.filesystem
    bases = sorted({int(name[:20]) for name in names if _is_segment_file(name)})
    present = {int(name[:20]) for name in names if name.endswith(".log") and _is_segment_file(name)}
    for base in bases[:]:
        if base not in present and base > max(present, default=-1):
            # The log of the last segment is never removed before another is there: this one's name did not get to the
            # medium, so nothing in it was confirmed, and its settlements must not meet the next messages.
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
            segment.gone = True
        log.segments.append(segment)
    live = [segment for segment in log.segments if not segment.gone]
    if live:
        live[-1].sealed = False
        if live[-1] is not log.segments[-1]:
            live[-1].sealed = True
    clean = state.clean
    if clean is not None and (not live or live[-1].base != clean[1] or live[-1].size != clean[2]):
        logger.warning("%s: the clean-shutdown mark does not agree with the files", log.directory)
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
        told: list[Entry] = []
        foreign = False
        for start in range(0, len(data), PIECE_COUNT * ENTRY_SIZE):
            file = AckFileReader(data[start : start + PIECE_COUNT * ENTRY_SIZE])
            bad += file.bad_count
            if file.newer():
                raise checkpoint.UnknownFormat(path)
            foreign = foreign or file.foreign(segment.base)
            told += file.entries
            yield
        if foreign:
            logger.error("%s is of another segment and not believed", path)
            bad += 1
        else:
            entries += told
    if bad:
        logger.warning("%s.settled: %d bad entries, what they settled may be delivered again", segment.prefix, bad)
    if swap or bad:
        segment.settled_size = -1  # to be written anew
    return entries, bad


def apply_entries(state: RecoveryState) -> Generator[None, None, None]:
    """Applies what the `.settled` files tell, now that it is known where each segment ends, in pieces."""
    log = state.log
    boot: tuple[int, int] | None = None
    count: i64 = 0
    for segment in log.segments:
        end = segment.end
        scanned = segment in state.scanned
        segment.transient_gone.sort()  # what a scan has found, which is settled already
        transient = _transient(segment, state.entries[segment.base])
        told = AckSet(segment.base)
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
                        segment.transient_gone.append((a, b, c))
                    elif transient.contains(a):
                        segment.settled_transient_bytes += c
                elif scanned and kind == ack_set.SETTLED and c > 0 and told.add(a, min(b, end - 1)):
                    segment.settle_gone(a, c)
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
                state.returned[a] = ack_set.tally(b, c)
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
    if state.clean is not None:  # the files may tell of more than was delivered: they run ahead
        state.delivered_mark = min(state.delivered_mark, state.clean[3])
    for offset in list(state.returned):
        count += 1
        if count % PIECE_COUNT == 0:
            yield
        place = log.segment_of(offset)
        if place is None or place.gone or place.settled.contains(offset):
            del state.returned[offset]


def _transient(segment: Segment, entries: list[Entry]) -> AckSet:
    """What the entries tell as transient."""
    found = AckSet(segment.base)
    for kind, a, b, _ in entries:
        if kind == ack_set.TRANSIENT:
            found.add(max(a, segment.base), min(b, segment.end - 1))
    return found


def _apply_bytes(segment: Segment, size: int, transient: int, scanned: bool) -> None:
    """Bodies of `size` bytes are settled, `transient` of them of transient messages in ranges that nothing tells."""
    segment.settled_body_bytes += size
    if not scanned:
        segment.settled_transient_bytes += transient
    elif transient > 0:  # the scan has counted them, too: the file is written anew without them
        segment.settled_body_bytes -= transient
        segment.settled_size = -1


def apply_rewind(state: RecoveryState) -> None:
    """A rewind that a crash came into (storage/acks/replay.py) is done: what its file says is live again."""
    log = state.log
    path = f"{log.directory}/{replay_file.NAME}"
    if not state.filesystem.exists(path):
        return
    data = state.filesystem.read_file(path)
    state.outdated.append(path)
    told = replay_file.decode_rewind(data)
    if told is None or not log.epochs or told[1] != log.epochs[-1][0]:
        return
    count = 0
    parts = replay_file.by_segment(told[0])
    for segment in log.segments:
        if segment.gone or segment.base not in parts:
            continue
        offsets, size = replay_file.told_of(parts[segment.base], segment.base, segment.end)
        for first, last, _ in segment.transient_gone:
            ended = AckSet(segment.base)
            ended.add(first, last)
            offsets.take_out(ended)
        taken = segment.settled.take_out(offsets)
        if taken:
            count += taken
            segment.settled_body_bytes = max(0, segment.settled_body_bytes - size)
            state.delivered_mark = max(state.delivered_mark, offsets.highest)
            if segment not in state.rewrite:
                state.rewrite.append(segment)
    logger.info("%s: a rewind is completed, %d messages are in the queue again", log.directory, count)


def delivered_up_to(state: RecoveryState) -> int:
    """The delivery mark as the file tells it that has to; others, of older segments, go before it does."""
    segment = state.log.delivered_mark_segment(state.delivered_mark)
    if segment is None or segment in state.rewrite:
        return state.delivered_mark
    return max([a for kind, a, _, _ in state.entries[segment.base] if kind == ack_set.DELIVERED], default=-1)


class DamagedLog(LogUnusable):
    """Strict recovery found bad bytes in the middle of a log."""


class RecoveredLog:
    """A log that has been read and waits to be made whole, then used. Made by a `Reading`."""

    def __init__(
        self, store: LocalLog, state: RecoveryState | None, boot: tuple[int, int], power_cut: bool, rest: RecoveryWrites
    ) -> None:
        self.store = store
        self.waiting: list[Callable[[], None]] = []  # called on the loop when a thread has written it
        self.told = False  # they have been called
        self._state = state  # None: there is no log yet
        self._boot = boot
        self._power_cut = power_cut
        self._rest = rest
        self._writing = threading.Lock()
        self._over = self._rest.empty and not self._rest.point
        self._error: OSError | None = None

    @property
    def waits(self) -> bool:
        """Whether `write` waits for the disk."""
        return not self._rest.empty

    def write(self) -> None:
        """Writes what recovery has found, once, whoever calls it first; returns when it is done. Raises nothing."""
        with self._writing:
            if self._over:
                return
            self._over = True
            try:
                self._rest.write(self.store.log.filesystem)
            except OSError as error:  # `finish` raises it
                self._error = error

    def drop(self) -> bool:
        """The queue is deleted: nothing is written any more. False: it is being written just now."""
        if not self._writing.acquire(blocking=False):
            return False
        self._over = True
        self._writing.release()
        return True

    def finish(self) -> None:
        """On the loop, behind `write`: the store may be used. Raises: OSError; it may be tried again from the start."""
        store = self.store
        log = store.log
        state = self._state
        if state is None:
            store.recovered(-1, 0, {}, [])
            return
        error = self._error
        if error is None:
            self._rest.written()
        elif error.errno not in FULL:
            raise error
        else:
            log.recovery_rest = partial(make_whole, state)
            try:
                log.finish_recovery()
            except OSError as again:
                if again.errno not in FULL:
                    raise
                logger.warning("%s: no room for what recovery found; it is written before anything else", log.directory)
        after_recovery(log, clean=state.clean is not None)
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
            seen_end = log.end  # the power cut may have taken the mark: whatever is here may have been delivered
        store.torn_bytes = state.torn_bytes
        store.recovered(delivered_up_to(state), seen_end, state.returned, state.lost)


class RecoveryReader:
    """Reads a log from its directory. A missing directory is an empty log. Whoever gives it up ends it (`end`).

    power_cut: the whole process before this one ended with the machine, so clean marks are not to be trusted with what
    was delivered. strict: bad bytes in the middle of a log are an error, and every segment is read to find them.
    """

    def __init__(self, store: LocalLog, boot: tuple[int, int], clock: Clock, *, power_cut: bool, strict: bool) -> None:
        self.waiting: list[Callable[[], None]] = []  # called on the loop when the log may be opened, or not
        self._clock = clock
        self._steps = _steps(store, boot, clock, power_cut, strict)

    def go_on(self, slice_s: float) -> RecoveredLog | None:
        """Goes on for so long; None: it is not done. Raises: OSError; UnknownFormat when a newer version wrote it;
        DamagedLog (strict only). A new one may be made then.
        """
        end_s = self._clock.monotonic() + slice_s
        while True:
            opening = next(self._steps)
            if opening is not None:
                return opening
            if self._clock.monotonic() >= end_s:
                return None

    def all(self) -> RecoveredLog:
        """The rest of it, at once. Raises: likewise."""
        while True:
            opening = next(self._steps)
            if opening is not None:
                return opening

    def end(self) -> None:
        """It is not wanted any more."""
        self._steps.close()


def _steps(
    store: LocalLog, boot: tuple[int, int], clock: Clock, power_cut: bool, strict: bool
) -> Generator[RecoveredLog | None, None, None]:
    """None after each piece, and at the end what was read."""
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
    apply_rewind(state)
    for segment, first, last in find_missing(log, state.entries, state.clean is not None):
        state.lost.append((first, last))
        if segment is not None and segment not in state.rewrite:
            state.rewrite.append(segment)
    for segment in log.segments:
        # A log whose name a power cut took, and that was never confirmed. Told now: later it would look like damage.
        if segment.gone and segment not in state.rewrite and untold(state.entries[segment.base], segment):
            state.rewrite.append(segment)
    if strict and state.lost:
        ranges = ", ".join(f"{first} to {last}" for first, last in state.lost)
        raise DamagedLog(
            f"the log of queue '{store.name}' is damaged: offsets {ranges} are lost ({log.directory}); nothing was "
            f"changed. Put its files back from a copy, or start with storage.recovery=salvage, which goes on without "
            f"them; `amqpctl dump_log` and `amqpctl verify_log` show the damage"
        )
    for segment in state.scanned:
        if segment in log.segments:
            try:
                segment.rewrite_index()
            except OSError as error:  # can be made again
                logger.warning("%s.index: %s", segment.prefix, error)
    for rest in rest_in_pieces(state):
        yield None if rest is None else RecoveredLog(store, state, boot, power_cut, rest)
