"""Opening a log: what a crash left is made whole before anything is appended.

After a clean stop (its mark agrees with the files) the `.settled` files tell all that must be known: nothing is
scanned. Otherwise every segment from the recovery point on is read from its start and each batch checked. (Segments
before it were synced whole, together with their totals; one whose totals are missing or do not fit its size is scanned
as well.)

    bad bytes at the end        the torn tail: cut off. What was not synced was not confirmed
    bad bytes in the middle     passed over to the batch behind by their own header's length, if a good one that goes
                                on stands there, else to the next `.index` position with a good batch whose offset
                                fits; counted, lost
    what was synced, not there  (damage.py) lost as well
    a transaction without its   cut off with everything behind it: it was written in one go, so nothing can be behind
    commit marker at the end    it but pieces of it
    a hole in a transaction     none of it counts, and `.settled` says so from now on
    settlements, marks          those at or beyond the end are dropped and the file written anew, since the offsets may
                                be used again. Cut, files and directory are synced before anything else is written:
                                before the log is given to anybody, or when a full disk has room again
    `.index`, `.timeindex`      of scanned segments: built anew

Then a new leader epoch begins (with the first append).

An `Opening` is this in three parts: `begin` reads and decides, on the loop; `write`, in any thread, since it waits for
the disk; `finish`, on the loop again. Between them nobody else touches the log.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.keep.swap import finish_swaps
from amqpd.storage.log import checkpoint
from amqpd.storage.log.damage import find_missing, set_aside_foreign, untold, untold_ranges
from amqpd.storage.log.scan import Scan
from amqpd.storage.log.segment import Segment, segment_name
from amqpd.storage.settle import settled
from amqpd.storage.settle.settled_files import FULL
from amqpd.storage.settle.settled_reader import Entry, SettledFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpd.storage.local_log import LocalLog
    from amqpd.storage.log.log import Log

logger = logging.getLogger(__name__)

class DamagedLog(Exception):
    """Strict recovery found bad bytes in the middle of a log."""


class _Recovery:
    def __init__(self, log: Log, strict: bool, clock: Clock) -> None:
        self.log = log
        self.clock = clock
        self.strict = strict
        self.filesystem: FileSystem = log.filesystem
        self.clean: tuple[int, int, int, int] | None = None
        self.last_boot: tuple[int, int] | None = None
        self.scanned: list[Segment] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.mark = -1
        self.returned: dict[int, int] = {}
        self.lost: list[tuple[int, int]] = []
        self.torn_bytes = 0
        self.started_s = clock.monotonic()
        self.rewrite: list[Segment] = []
        self.cut = False
        self.cut_paths: list[str] = []
        self.entries: dict[int, list[Entry]] = {}
        self.doubtful: set[int] = set()  # segments of whose `.settled` something could not be read


class Rest:
    """What recovery has to write and sync: paths of logs to sync, `.settled` files to write anew, the directory, what
    goes then, the recovery point. Made on the loop; `write` may be called in any thread.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.syncs: list[str] = []
        self.segments: list[Segment] = []
        self.settled: list[tuple[str, bytes]] = []
        self.names = False
        self.unlinks: list[str] = []
        self.point = b""

    @property
    def empty(self) -> bool:
        """Whether nothing of it waits for the disk."""
        return not (self.syncs or self.settled or self.names)

    def write(self, filesystem: FileSystem) -> None:
        """Raises: OSError. What was done before it stands, and is done again by the next try."""
        for path in self.syncs:
            filesystem.fsync_file(path)
        for path, data in self.settled:
            _replace_settled(filesystem, path, data)
        if self.names:
            filesystem.fsync_dir(self.directory)
        for path in self.unlinks:
            filesystem.unlink(path)
        if self.point:
            try:
                filesystem.replace_file(f"{self.directory}/{checkpoint.RECOVERY_POINT}", self.point, sync=False)
            except OSError as error:  # the next start then checks the same again
                logger.warning("recovery point of %s: %s", self.directory, error)

    def written(self) -> None:
        """On the loop, when `write` has returned."""
        for index, segment in enumerate(self.segments):
            segment.settled_size = len(self.settled[index][1])


class Opening:
    """See the module. Made by `begin`."""

    def __init__(self, store: LocalLog, state: _Recovery | None, boot: tuple[int, int], power_cut: bool) -> None:
        self.store = store
        self.waiting: list[Callable[[], None]] = []  # called on the loop when a thread has written it
        self._state = state  # None: there is no log yet
        self._boot = boot
        self._power_cut = power_cut
        self._rest = _rest(state) if state is not None else Rest("")
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
            log.recovery_rest = partial(_make_whole, state)
            try:
                log.finish_recovery()
            except OSError as again:
                if again.errno not in FULL:
                    raise
                logger.warning("%s: no room for what recovery found; it is written before anything else", log.directory)
        log.after_recovery(clean=state.clean is not None)
        seen_end = state.mark + 1
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
        store.recovered(_told_mark(state), seen_end, state.returned, state.lost)


def begin(store: LocalLog, boot: tuple[int, int], clock: Clock, *, power_cut: bool, strict: bool) -> Opening:
    """Reads the log from the directory. A missing directory is an empty log.

    power_cut: the whole process before this one ended with the machine, so clean marks are not to be trusted with what
    was delivered. strict: bad bytes in the middle of a log are an error, and every segment is read to find them.
    Raises: OSError; UnknownFormat when a newer version wrote it; DamagedLog (strict only). It may be tried again then.
    """
    log = store.log
    log.reset()
    state = _Recovery(log, strict, clock)
    names = log.filesystem.listdir(log.directory)
    if finish_swaps(log.filesystem, log.directory, names):
        names = log.filesystem.listdir(log.directory)
    if not names:
        return Opening(store, None, boot, power_cut)
    names = set_aside_foreign(log.filesystem, log.directory, names)
    _read_checkpoints(state, names)
    if power_cut and state.clean is not None:
        state.filesystem.unlink(f"{log.directory}/{checkpoint.CLEAN_SHUTDOWN}")
        state.cut = True
        log.clean = False
        state.clean = None
    _load_segments(state, names)
    for name in names:
        if name.endswith((".deleted", ".cleaned")):
            state.filesystem.unlink(f"{log.directory}/{name}")
    _check_tail(state)
    _apply_entries(state)
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
    return Opening(store, state, boot, power_cut)


def _read_checkpoints(state: _Recovery, names: list[str]) -> None:
    log = state.log
    directory = log.directory
    log.epochs = checkpoint.read_lines(state.filesystem, f"{directory}/{checkpoint.LEADER_EPOCH}", 2)
    log.watermark.offset = checkpoint.read_high_watermark(state.filesystem, f"{directory}/{checkpoint.HIGH_WATERMARK}")
    state.clean = checkpoint.read_clean(state.filesystem, f"{directory}/{checkpoint.CLEAN_SHUTDOWN}")
    log.clean = checkpoint.CLEAN_SHUTDOWN in names


def _load_segments(state: _Recovery, names: list[str]) -> None:
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
        entries, bad = _read_entries(filesystem, segment)
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


def _read_entries(filesystem: FileSystem, segment: Segment) -> tuple[list[Entry], int]:
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
        file = SettledFile(data)
        bad += file.bad_count
        if file.newer():
            raise checkpoint.UnknownFormat(path)
        if file.foreign(segment.base):
            logger.error("%s is of another segment and not believed", path)
            bad += 1
        else:
            entries += file.entries
    if bad:
        logger.warning("%s.settled: %d bad entries, what they settled may be delivered again", segment.prefix, bad)
    if swap or bad:
        segment.settled_size = -1  # to be written anew
    return entries, bad


def _check_tail(state: _Recovery) -> None:
    log = state.log
    points = checkpoint.read_lines(state.filesystem, f"{log.directory}/{checkpoint.RECOVERY_POINT}", 1)
    point = points[0][0] if points else 0
    segments = log.segments
    highest_epoch = -1
    before: Scan | None = None
    for number, segment in enumerate(segments):
        next_base = segments[number + 1].base if number + 1 < len(segments) else -1
        trusted = not state.strict and (state.clean is not None or (segment.base < point and segment.sealed))
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
    if highest_epoch >= 0 and (not log.epochs or log.epochs[-1][0] < highest_epoch):
        log.epochs.append((highest_epoch, end))


def _trust_totals(state: _Recovery, segment: Segment, next_base: int) -> bool:
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


def _totals_end(state: _Recovery, segment: Segment) -> int:
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


def _tell(state: _Recovery, segment: Segment, first: int, last: int) -> None:
    """`.settled` has to tell of these offsets before anything is appended: once the high watermark is behind them, a
    start would take a hole for damage, and the pieces of a transaction for all that damage has left of it.
    """
    if untold_ranges(state.entries[segment.base], first, last + 1):
        segment.settled_size = -1


def _settle_scan(state: _Recovery, segment: Segment, scan: Scan) -> None:
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


def _cut_transaction(state: _Recovery, transaction: tuple[int, int, int, int]) -> None:
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
    _forget_settled(first, offset)


def _forget_settled(segment: Segment, end: int) -> None:
    """Takes out of memory what a cut-off tail had settled (gaps and transient messages of the tail)."""
    ranges = segment.settled.ranges()
    segment.settled = settled.SettledSet(segment.base)
    for first, last in ranges:
        segment.settled.add(first, min(last, end - 1))
    segment.transient_gone = [each for each in segment.transient_gone if each[1] < end]
    segment.gaps = [each for each in segment.gaps if each[1] < end]


def _cut_log(state: _Recovery, segment: Segment, size: int) -> None:
    state.cut = True
    file = segment.open_log(create=True)
    state.filesystem.truncate(file.fd, size)
    if file.path not in state.cut_paths:
        state.cut_paths.append(file.path)


def _apply_entries(state: _Recovery) -> None:
    log = state.log
    boot: tuple[int, int] | None = None
    for segment in log.segments:
        end = segment.end
        for kind, a, b, c in state.entries[segment.base]:
            if kind in (settled.SETTLED, settled.LOST, settled.TRANSIENT):
                if b >= end:
                    segment.settled_size = -1
                new = segment.settled.add(max(a, segment.base), min(b, end - 1))
                if new:
                    segment.settled_body_bytes += c
                    if kind == settled.TRANSIENT:
                        segment.transient_gone.append((a, b, c))
                if kind == settled.LOST and (a, b) not in state.lost:
                    state.lost.append((a, b))
                    segment.lost.append((a, b))
            elif kind == settled.BITS:
                segment.settled.add_bits(a, b, c, end - 1)
            elif kind == settled.TIMES and segment not in state.scanned:
                segment.first_timestamp_ms, segment.max_timestamp_ms = a, max(b, segment.max_timestamp_ms)
            elif kind == settled.BYTES:
                segment.settled_body_bytes += a
            elif kind == settled.RETURNED:
                state.returned[a] = b
            elif kind == settled.DELIVERED:
                state.mark = max(state.mark, a)
                if a >= log.end:
                    segment.settled_size = -1
            elif kind == settled.BOOT:
                boot = (a, b)
        segment.settled_body_bytes = min(segment.settled_body_bytes, segment.body_bytes)
        if segment.settled_size < 0:
            state.rewrite.append(segment)
    state.last_boot = boot
    state.mark = min(state.mark, log.end - 1)
    if state.clean is not None:
        state.mark = min(state.mark, state.clean[3])  # the files may tell of more than was delivered: they run ahead
    for offset in list(state.returned):
        place = log.segment_of(offset)
        if place is None or place.gone or place.settled.contains(offset):
            del state.returned[offset]


def _told_mark(state: _Recovery) -> int:
    """The delivery mark as the file tells it that has to; others, of older segments, go before it does."""
    segment = state.log.marked_in(state.mark)
    if segment is None or segment in state.rewrite:
        return state.mark
    return max([a for kind, a, _, _ in state.entries[segment.base] if kind == settled.DELIVERED], default=-1)


def _replace_settled(filesystem: FileSystem, path: str, data: bytes) -> None:
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


def _rest(state: _Recovery) -> Rest:
    """What recovery changed, as it has to be written and synced before anything is appended. Where the disk is full
    that may be later, and some segments may have gone meanwhile.
    """
    log = state.log
    rest = Rest(log.directory)
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
    for segment in state.rewrite:
        log.settled_files.forget(segment)
        data = segment.compacted(boot, state.mark, state.returned)
        rest.segments.append(segment)
        rest.settled.append((segment.prefix + ".settled", data))
        rest.unlinks.append(segment.prefix + ".settled.swap")
    rest.names = state.cut or len(state.rewrite) > 0
    if True in [segment.sealed for segment in checked]:
        rest.point = checkpoint.encode_lines([(log.segments[-1].base,)])
    return rest


def _make_whole(state: _Recovery) -> None:
    """Writes it now. Raises: OSError."""
    rest = _rest(state)
    rest.write(state.filesystem)
    rest.written()
