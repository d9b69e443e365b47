"""The end of a loop turn, and the time budget for message filters.

At the end of each turn of the event loop, `LoopTurn` processes what the turn collected, in this order: queues that
have more to deliver, logs (one write each), confirms, sockets (one write each). So a delivery mark is in the file
before the delivery is sent, and a thousand publishes cost one system call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import QueueBase
from amqpd.broker.flow.timers import Timers
from amqpd.storage.group_commit import GroupCommit
from amqpd.storage.loop_log import LogContext
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.storage import Storage

# SLICE_MS: for all queues in one turn. SHARE_MS: for one queue at a time. Whole milliseconds; the clock is read
# every LOOK_COUNT messages.
SLICE_MS: Final = 5
SHARE_MS: Final = 1
LOOK_COUNT: Final = 32
# A message counts once more for each so many bytes of properties: large properties cost a millisecond.
DEAR_PROPERTIES_BYTES: Final = 512
# Characters of new selectors parsed in one turn.
PARSE_CHARACTERS_MAX: Final = 1500
# Ends a slice if the clock does not advance.
SLICE_COUNT_MAX: Final = 8192


@final
class ScanBudget:
    """The time per turn in which queues search for messages that match consumer filters. One per broker.

    A queue checks new messages at once. If a search needs more than a slice, for example over a backlog, the queue
    waits in `waiting_queues` and continues in later turns. All queues together use SLICE_MS of a turn, each SHARE_MS
    at a time. So the number of filters does not delay the loop, and no search waits for the end of another.

    Attributes:
        is_used_up: the current search must stop.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.waiting_queues: deque[QueueBase] = deque()
        self.is_used_up = False
        self._turn: i64 = -1
        self._turn_until_ms: i64 = 0
        self._until_ms: i64 = 0
        self._count: i64 = 0
        # Weighted messages since the clock was read.
        self._unlooked: i64 = 0
        self._granted: QueueBase | None = None
        self._parse_turn: i64 = -1
        self._parse_size: i64 = 0

    def begin(self, queue: QueueBase, turn: i64) -> bool:
        """Begin the dispatch of a queue in this turn. `is_used_up` then tells whether the queue may search.

        Returns: True if the queue waited in `waiting_queues` and has its share now.
        """
        now_ms = self._timers.now_ms()
        if turn != self._turn:
            self._turn = turn
            self._turn_until_ms = now_ms + SLICE_MS
            self._count = 0
        if queue is self._granted:
            self._until_ms = now_ms + SHARE_MS
            self._count = 0
            self._unlooked = 0
            self.is_used_up = False
            return True
        self._until_ms = self._turn_until_ms
        self.is_used_up = queue.scan_wanted or now_ms >= self._until_ms or self._count >= SLICE_COUNT_MAX
        return False

    def begin_slice(self, slice_ms: i64) -> None:
        """Begin a slice outside of turns, for the owner of a separate `ScanBudget`."""
        self._until_ms = self._timers.now_ms() + slice_ms
        self._count = 0
        self._unlooked = 0
        self.is_used_up = False

    def step(self, size: i64) -> None:
        """Count one checked message, with `size` bytes of properties."""
        self._count += 1
        self._unlooked += 1 + size // DEAR_PROPERTIES_BYTES
        if self._unlooked >= LOOK_COUNT:
            self._unlooked = 0
            self.is_used_up = self._count >= SLICE_COUNT_MAX or self._timers.now_ms() >= self._until_ms

    def count_checked(self, count: i64) -> None:
        """Count `count` more checked messages."""
        self._count += count
        self.is_used_up = self._count >= SLICE_COUNT_MAX or self._timers.now_ms() >= self._until_ms

    def can_parse(self, turn: i64, size: i64) -> bool:
        """Return whether a new selector of `size` characters may be parsed in this turn.

        A turn parses about 5 ms of new selectors, and at least one.
        """
        if turn != self._parse_turn:
            self._parse_turn = turn
            self._parse_size = 0
        if self._parse_size > 0 and self._parse_size + size > PARSE_CHARACTERS_MAX:
            return False
        self._parse_size += size
        return True

    def enqueue(self, queue: QueueBase) -> None:
        """Put the queue in line: its search is not finished."""
        if not queue.scan_wanted:
            queue.scan_wanted = True
            self.waiting_queues.append(queue)

    def dispatch_waiting(self, turn: i64) -> bool:
        """Dispatch the queues in line, at least one, until the slice is used up. Return whether queues still wait."""
        timers = self._timers
        until_ms = timers.now_ms() + SLICE_MS
        if turn == self._turn:
            until_ms = self._turn_until_ms
        shares: i64 = 0
        while self.waiting_queues and shares < SLICE_MS // SHARE_MS:
            shares += 1
            queue = self.waiting_queues.popleft()
            queue.scan_wanted = False
            self._granted = queue
            try:
                queue.dispatch()
            except Exception as error:  # noqa: BLE001  # pump_failed logs it; other queues continue
                queue.pump_failed(error)
            self._granted = None
            if timers.now_ms() >= until_ms:
                break
        return len(self.waiting_queues) > 0


# Bytes that one turn accepts from all clients that send without a pause: a few milliseconds of work.
TURN_BYTES_MAX: Final = 1_000_000
# How many of these clients are read in one turn. The others wait in order of arrival.
PACED_COUNT_MAX: Final = 4
# While dead letters wait, these clients are read only every so many turns. Dead letters fill memory or their source
# log, and are processed in slices.
OVERDUE_TURNS: Final = 16
# A read of this size comes from a client that sends faster than the broker reads.
LARGE_READ_BYTES: Final = 64 * 1024
# A read up to this size comes from a client that may wait for the reply.
SMALL_READ_BYTES: Final = 4096
# Small reads of a turn between two checks for overdue writes of acks. A power of 2.
LOOK_READS: Final = 16


class Flushable(Protocol):
    """The output of a socket. A Protocol costs 40 ns per call, which is little for one call per connection and turn."""

    def flush(self) -> None:
        """Write the collected output."""


class PausedReader(Protocol):
    """The input of a socket."""

    def on_synced(self) -> None:
        """Continue reading: the unsynced bytes are on the disk."""

    def on_next_turn(self) -> None:
        """Continue reading: another turn has begun."""


@mypyc_attr(allow_interpreted_subclasses=True)
class CommitListener:
    """Base class for objects that wait until publishes or settlements are safe (broker/publish/confirms.py)."""

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        """Record that this turn's publishes are in commit group `generation`.

        Return whether the listener waits for it.

        Args:
            safe: the group is already synced.
        """
        raise NotImplementedError

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        """Handle the sync of every group up to `generation`, except the failed logs.

        Return whether the listener still waits.
        """
        raise NotImplementedError


class LoopTurn:
    """The work that one turn of the event loop collected. One per broker.

    The loop calls `run` through `call_soon`, and only if something was scheduled. A single small read is processed
    without that: see `begin_read`.

    Attributes:
        stores: the logs that this turn writes to.
        is_republisher_full: messages that wait to be republished fill the memory; publishers are paused.
        alarmed: a resource alarm; publishers are paused at their next publish.
        is_sync_urgent: a tx.commit waits for settlements; they are synced with this turn instead of within 50 ms.
        log_failed: called with each failed log, before its publishers are nacked.
        number: increases with each turn.
        taken_bytes: bytes read in this turn.
        share_bytes: bytes of one connection after which it is paused until a later turn.
        dead_letters_pending: dead letters wait to be published.
    """

    def __init__(self, storage: Storage, call_soon: Callable[[Callable[[], None]], object], timers: Timers) -> None:
        self.commits: GroupCommit = storage.commits
        self.stores: LogContext = storage.context
        self.unsynced_bytes_max: i64 = 64 * 1024 * 1024
        self.is_republisher_full = False
        self.alarmed = False
        self.is_sync_urgent = False
        self.log_failed: Callable[[QueueLog], None] | None = None
        self.number: i64 = 0
        self.taken_bytes: i64 = 0
        self.share_bytes: i64 = TURN_BYTES_MAX
        # Reads in this turn; whether the last turn had at most one.
        self._reads: i64 = 0
        self._lone = False
        self._call_soon = call_soon
        self._timers = timers
        # Cached by `now_ms`; -1 to read the clock again.
        self._now_ms: i64 = -1
        self._scheduled = False
        self.scans = ScanBudget(timers)
        self._dirty: list[Flushable] = []
        self._pumps: list[QueueBase] = []
        self._confirming: list[CommitListener] = []
        self._waiting: list[CommitListener] = []
        self._held: list[PausedReader] = []
        self._wanting_room: list[Callable[[], None]] = []
        self._paced: deque[PausedReader] = deque()
        self.dead_letters_pending = False
        self._overdue_turns: i64 = 0

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.run)

    def now_ms(self) -> i64:
        """Return monotonic milliseconds, read once per socket read: messages that came together have the same age."""
        if self._now_ms < 0:
            self._now_ms = self._timers.now_ms()
            self.schedule()  # the turn clears the cache
        return self._now_ms

    def begin_read(self, size: i64) -> bool:
        """Begin to process a read of `size` bytes. If the result is True, the caller must call `end_read`.

        That sends the reply without another pass through the event loop. It applies to the first read of a turn, if
        the last turn had one read at most.
        """
        self._reads += 1
        self._now_ms = -1
        if size > SMALL_READ_BYTES or self._reads & (LOOK_READS - 1) == 0:
            self.commits.write_overdue_acks()
        if self._lone and self._reads == 1 and size <= SMALL_READ_BYTES and not self._scheduled and not self._paced:
            self._scheduled = True  # `end_read` does what is scheduled
            return True
        self.schedule()
        return False

    def end_read(self) -> None:
        self._run_phases()
        self.schedule()

    def flush_later(self, output: Flushable) -> None:
        self._dirty.append(output)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.run)

    def pump_later(self, queue: QueueBase) -> None:
        if not queue.pump_wanted:
            queue.pump_wanted = True
            self._pumps.append(queue)
            self.schedule()

    def confirm_later(self, channel: CommitListener) -> None:
        self._confirming.append(channel)
        self.schedule()

    def pause_until_synced(self, connection: PausedReader) -> None:
        """Add a paused publisher. `resume_paused` resumes it."""
        self._held.append(connection)

    def call_when_below_limit(self, call: Callable[[], None]) -> None:
        """Call the function when fewer than `unsynced_bytes_max` bytes are unsynced. Now there are more."""
        self._wanting_room.append(call)

    def account_read(self, size: i64, of_connection: i64) -> bool:
        """Account for a read. Return True if the connection has used up its share of this turn.

        Args:
            of_connection: bytes that the connection sent in this turn.
        """
        self.taken_bytes += size
        if of_connection >= self.share_bytes:
            return True
        return size >= LARGE_READ_BYTES and self.taken_bytes >= TURN_BYTES_MAX

    def pause_until_next_turn(self, connection: PausedReader) -> None:
        """Add a connection that used up its share. It continues in a later turn, after the others.

        So a turn's work is bounded, however many clients send and however fast. A client that sends little is never
        paused.
        """
        self._paced.append(connection)
        self.schedule()

    def run(self) -> None:
        """Process the end of a turn. Cost: proportional to what the turn touched."""
        if self.commits.postpone(self.run):
            return
        self._lone = self._reads <= 1
        self._reads = 0
        self._run_phases()

    def finish(self) -> None:
        """Process a turn without postponing it: the broker stops."""
        self._run_phases()

    def _run_phases(self) -> None:
        self._scheduled = False
        if self._pumps:
            pumps = self._pumps
            self._pumps = []
            for queue in pumps:
                queue.pump_wanted = False
                try:
                    queue.dispatch()
                except Exception as error:  # noqa: BLE001  # pump_failed logs it; other queues continue
                    queue.pump_failed(error)
        if self.scans.waiting_queues and self.scans.dispatch_waiting(self.number):
            self.schedule()
        commits = self.commits
        generation: i64 = commits.generation
        if self.is_sync_urgent:
            self.is_sync_urgent = False
            commits.flush()
        else:
            commits.end_of_turn()
        if self._confirming:
            safe = commits.generation == generation and not commits.commit_waiting
            confirming = self._confirming
            self._confirming = []
            for channel in confirming:
                if channel.on_turn_end(generation, safe) and channel not in self._waiting:
                    self._waiting.append(channel)
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for output in dirty:
                output.flush()
        self.number += 1
        self.taken_bytes = 0
        self._now_ms = -1
        if self._paced:
            self._read_on()

    def _read_on(self) -> None:
        paced = self._paced
        if self.dead_letters_pending:
            self.dead_letters_pending = False
            self._overdue_turns += 1
            if self._overdue_turns % OVERDUE_TURNS != 0:
                self.schedule()
                return
        count: i64 = len(paced)
        if count > PACED_COUNT_MAX:
            count = PACED_COUNT_MAX
            # Schedule a turn: the connections read now may send nothing more, and the others must still continue.
            self.schedule()
        self.share_bytes = TURN_BYTES_MAX // count
        while count > 0:
            count -= 1
            paced.popleft().on_next_turn()

    def committed(self, generation: int, failed: list[QueueLog]) -> None:
        """Process the sync of every group up to `generation`. Called on the loop after the fsync thread."""
        if failed and self.log_failed is not None:
            for store in failed:
                self.log_failed(store)
        waiting = self._waiting
        if waiting:
            self._waiting = []
            for channel in waiting:
                if channel.on_commit(generation, failed):
                    self._waiting.append(channel)
        self.resume_paused()

    def resume_paused(self) -> None:
        """Resume paused publishers if few enough bytes are unsynced and few enough messages wait to be republished."""
        if self._wanting_room and self.commits.unsynced_bytes < self.unsynced_bytes_max:
            wanting = self._wanting_room
            self._wanting_room = []
            for call in wanting:
                call()
        if self._held and not self.is_republisher_full and self.commits.unsynced_bytes < self.unsynced_bytes_max:
            held = self._held
            self._held = []
            for connection in held:
                connection.on_synced()
