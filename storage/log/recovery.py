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

It has three parts: `Reading` reads and decides, on the loop, in slices (a hundred thousand settlements take 0.1 s); an
`Opening` writes, in any thread, since that waits for the disk, and finishes on the loop again. Between them nobody else
touches the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from functools import partial

from amqpd.storage.filesystem import Clock
from amqpd.storage.compaction import finish_swaps
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log import checkpoint
from amqpd.storage.log.damage import find_missing, set_aside_foreign, untold
from amqpd.storage.log.producer_state import SUFFIX, read_snapshot
from amqpd.storage.log.recovery_rest import Rest, after_recovery, make_whole, rest_in_pieces
from amqpd.storage.log.recovery_scan import check_tail
from amqpd.storage.log.recovery_state import Recovery
from amqpd.storage.log.recovery_told import apply_entries, apply_rewind, delivered_mark, load_segments, read_checkpoints
from amqpd.storage.queue_log import LogUnusable
from amqpd.storage.acks.ack_files import FULL

logger = logging.getLogger(__name__)


class DamagedLog(LogUnusable):
    """Strict recovery found bad bytes in the middle of a log."""


class Opening:
    """A log that has been read and waits to be made whole, then used. Made by a `Reading`."""

    def __init__(
        self, store: LocalLog, state: Recovery | None, boot: tuple[int, int], power_cut: bool, rest: Rest
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
        store.recovered(delivered_mark(state), seen_end, state.returned, state.lost)


class Reading:
    """Reads a log from its directory. A missing directory is an empty log. Whoever gives it up ends it (`end`).

    power_cut: the whole process before this one ended with the machine, so clean marks are not to be trusted with what
    was delivered. strict: bad bytes in the middle of a log are an error, and every segment is read to find them.
    """

    def __init__(
        self, store: LocalLog, boot: tuple[int, int], clock: Clock, *, power_cut: bool, strict: bool
    ) -> None:
        self.waiting: list[Callable[[], None]] = []  # called on the loop when the log may be opened, or not
        self._clock = clock
        self._steps = _steps(store, boot, clock, power_cut, strict)

    def go_on(self, slice_s: float) -> Opening | None:
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

    def all(self) -> Opening:
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
) -> Generator[Opening | None, None, None]:
    """None after each piece, and at the end what was read."""
    log = store.log
    log.reset()
    state = Recovery(log, strict, clock, power_cut)
    names = log.filesystem.listdir(log.directory)
    if finish_swaps(log.filesystem, log.directory, names):
        names = log.filesystem.listdir(log.directory)
    if not names:
        yield Opening(store, None, boot, power_cut, Rest(""))
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
        yield None if rest is None else Opening(store, state, boot, power_cut, rest)
