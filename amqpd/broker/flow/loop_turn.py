"""The end of a loop turn, and what holds publishers back.

Everything that one turn of the event loop gathered is worked off once, in this order: queues that have more to
deliver, logs (one write each), confirms, sockets (one write each). So a delivery mark is in the file before the
delivery is on the wire, and a thousand publishes cost one system call.

`LoopTurn` is called by the loop through `call_soon`, and only when somebody asked for it. Where reads come one at a
time, with nothing beside them to gather, each is worked off before the loop goes on: `begin_read`.

How much of a turn goes to looking for what consumers' filters want, and whose turn that is.

A queue looks at what has just come in at once. Where a slice is not enough, as when a filter goes over a backlog, the
queue stands in a line and goes on with the next turns: all of them together take SLICE_MS of a turn, each SHARE_MS at a
time, so however many filters have however long a way to go, the loop is held no longer than that, and none of them
waits for another one's end.
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

# Of one turn; of one queue at a time. In the clock's whole milliseconds, looked at every LOOK_COUNT messages.
SLICE_MS: Final = 5
SHARE_MS: Final = 1
LOOK_COUNT: Final = 32
# A message counts once more for as many bytes of properties: large ones cost a millisecond.
DEAR_PROPERTIES_BYTES: Final = 512
# Of new selectors in one turn.
PARSE_CHARACTERS_MAX: Final = 1500
# A clock that stands still ends no slice.
SLICE_COUNT_MAX: Final = 8192


@final
class ScanBudget:
    """One per broker."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.line: deque[QueueBase] = deque()
        # Whether who looks now has to stop.
        self.over = False
        self._turn: i64 = -1
        self._turn_until_ms: i64 = 0
        self._until_ms: i64 = 0
        self._count: i64 = 0
        # Since the clock was looked at.
        self._unlooked: i64 = 0
        self._granted: QueueBase | None = None
        self._parse_turn: i64 = -1
        self._parse_size: i64 = 0

    def begin(self, queue: QueueBase, turn: i64) -> bool:
        """The queue is pumped in this turn: `over` says whether it may look at anything. One that stands in the line
        may not before it is its turn; the answer is whether that is now.
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
            self.over = False
            return True
        self._until_ms = self._turn_until_ms
        self.over = queue.scan_wanted or now_ms >= self._until_ms or self._count >= SLICE_COUNT_MAX
        return False

    def begin_alone(self, slice_ms: i64) -> None:
        """A slice of one's own, of no turn: of who has a `ScanBudget` for itself."""
        self._until_ms = self._timers.now_ms() + slice_ms
        self._count = 0
        self._unlooked = 0
        self.over = False

    def step(self, size: i64) -> None:
        """One more message is looked at, whose properties have so many bytes."""
        self._count += 1
        self._unlooked += 1 + size // DEAR_PROPERTIES_BYTES
        if self._unlooked >= LOOK_COUNT:
            self._unlooked = 0
            self.over = self._count >= SLICE_COUNT_MAX or self._timers.now_ms() >= self._until_ms

    def looked_at(self, count: i64) -> None:
        """So many more messages were looked at."""
        self._count += count
        self.over = self._count >= SLICE_COUNT_MAX or self._timers.now_ms() >= self._until_ms

    def may_parse(self, turn: i64, size: i64) -> bool:
        """Whether a new selector of so many characters may be parsed in this turn: some 5 ms of them in all, one in any
        case.
        """
        if turn != self._parse_turn:
            self._parse_turn = turn
            self._parse_size = 0
        if self._parse_size > 0 and self._parse_size + size > PARSE_CHARACTERS_MAX:
            return False
        self._parse_size += size
        return True

    def wait(self, queue: QueueBase) -> None:
        """The queue is not done: it is pumped again when it is its turn."""
        if not queue.scan_wanted:
            queue.scan_wanted = True
            self.line.append(queue)

    def go_on(self, turn: i64) -> bool:
        """Pumps those in line, as long as the turn's slice lasts; one in any case. Whether some still wait."""
        timers = self._timers
        until_ms = timers.now_ms() + SLICE_MS
        if turn == self._turn:
            until_ms = self._turn_until_ms
        shares: i64 = 0
        while self.line and shares < SLICE_MS // SHARE_MS:
            shares += 1
            queue = self.line.popleft()
            queue.scan_wanted = False
            self._granted = queue
            try:
                queue.dispatch()
            except Exception as error:  # noqa: BLE001  # told there; the others have their turn all the same
                queue.pump_failed(error)
            self._granted = None
            if timers.now_ms() >= until_ms:
                break
        return len(self.line) > 0


# What one turn takes in from clients that send without a bound, all of them together: a few milliseconds of work.
TURN_BYTES_MAX: Final = 1_000_000
# How many of them have their share of it in one turn; the others wait for theirs, first come, first served.
PACED_COUNT_MAX: Final = 4
# While dead letters wait, so many turns pass before those that send without a bound are read on: they fill memory or
# the log they came from, and go in slices beside everything else.
OVERDUE_TURNS: Final = 16
# A read as large as this comes from a client that sends faster than it is read.
LARGE_READ_BYTES: Final = 64 * 1024
# And one up to this from a client that may wait for the answer.
SMALL_READ_BYTES: Final = 4096
# So many small reads of a turn pass between two looks at whether acks have waited too long to be written: a power of 2.
LOOK_READS: Final = 16


class Flushable(Protocol):
    """A socket's output. Called once per connection and turn, so a Protocol's 40 ns do not matter."""

    def flush(self) -> None:
        """Writes what has gathered."""


class PausedReader(Protocol):
    """A socket's input."""

    def synced(self) -> None:
        """Reading may go on: what was unsynced is on disk."""

    def read_on(self) -> None:
        """Reading may go on: another turn has come."""


@mypyc_attr(allow_interpreted_subclasses=True)
class CommitListener:
    """Who has published in a turn, or settled, and waits until that is safe (broker/publish/confirms.py)."""

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        """The turn's publishes are in commit group `generation`; safe: it is synced already. True: something waits."""
        raise NotImplementedError

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        """Every group up to `generation` is synced but for these logs. True: something still waits."""
        raise NotImplementedError


class LoopTurn:
    """One per broker. Owns the lists of what a turn has touched."""

    def __init__(self, storage: Storage, call_soon: Callable[[Callable[[], None]], object], timers: Timers) -> None:
        self.commits: GroupCommit = storage.commits
        # Knows which logs this turn writes to, and how many are enough.
        self.stores: LogContext = storage.context
        self.unsynced_bytes_max: i64 = 64 * 1024 * 1024
        # What waits to be published again fills memory: publishers are held until there is less of it.
        self.crowded = False
        # A resource alarm lasts: publishers are held at their next publish.
        self.alarmed = False
        # Somebody waits for settlements alone (tx.commit): they are synced with this turn, not 50 ms later.
        self.urgent = False
        # Called with each log that failed, before its publishers are nacked.
        self.log_failed: Callable[[QueueLog], None] | None = None
        # Goes up with each turn; what was read in it, of all connections and at most of one.
        self.number: i64 = 0
        self.taken_bytes: i64 = 0
        self.share_bytes: i64 = TURN_BYTES_MAX
        # Reads in this turn of the loop; whether there was at most one in the last.
        self._reads: i64 = 0
        self._lone = False
        self._call_soon = call_soon
        self._timers = timers
        # What `now_ms` has read; -1: it is to look at the clock.
        self._now_ms: i64 = -1
        self._scheduled = False
        # Queues that look for what consumers' filters want.
        self.scans = ScanBudget(timers)
        self._dirty: list[Flushable] = []
        self._pumps: list[QueueBase] = []
        self._confirming: list[CommitListener] = []
        self._waiting: list[CommitListener] = []
        self._held: list[PausedReader] = []
        self._wanting_room: list[Callable[[], None]] = []
        self._paced: deque[PausedReader] = deque()
        # Dead letters wait; turns that they did so far.
        self.dead_letters_pending = False
        self._overdue_turns: i64 = 0

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.run)

    def now_ms(self) -> i64:
        """Monotonic milliseconds, looked up once per read and not per message: what came together has one age."""
        if self._now_ms < 0:
            self._now_ms = self._timers.now_ms()
            self.schedule()  # which forgets it
        return self._now_ms

    def begin_read(self, size: i64) -> bool:
        """A read of `size` bytes is about to be worked off. True: the caller calls `finish_read` then.

        That saves the answer the way through the loop. Only the first read since the loop's own call gets it: of many
        at once one is answered by itself, the others together.
        """
        self._reads += 1
        self._now_ms = -1
        if size > SMALL_READ_BYTES or self._reads & (LOOK_READS - 1) == 0:
            self.commits.look()
        if self._lone and self._reads == 1 and size <= SMALL_READ_BYTES and not self._scheduled and not self._paced:
            self._scheduled = True  # what it asks for is done by `finish_read`
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
        """A publisher that sent enough for now; `room` releases it when the reason is over."""
        self._held.append(connection)

    def call_when_below_limit(self, call: Callable[[], None]) -> None:
        """Calls it once fewer bytes are unsynced than may be; there are too many now."""
        self._wanting_room.append(call)

    def account_read(self, size: i64, of_connection: i64) -> bool:
        """Notes a read of `size` bytes, the connection's `of_connection`th in this turn. True: that is its share."""
        self.taken_bytes += size
        if of_connection >= self.share_bytes:
            return True
        return size >= LARGE_READ_BYTES and self.taken_bytes >= TURN_BYTES_MAX

    def pause_until_next_turn(self, connection: PausedReader) -> None:
        """A connection that sent its share; it reads on in one of the next turns, when others had theirs.

        However many clients send however fast, a turn's work stays bounded; who sends little never gets here.
        """
        self._paced.append(connection)
        self.schedule()

    def run(self) -> None:
        """The end of the loop's turn. Cost: what was touched, nothing for what was not."""
        if self.commits.postpone(self.run):
            return
        self._lone = self._reads <= 1
        self._reads = 0
        self._run_phases()

    def finish(self) -> None:
        """The broker stops: as `run`, and nothing postpones it."""
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
                except Exception as error:  # noqa: BLE001  # told there; the others have their turn all the same
                    queue.pump_failed(error)
        if self.scans.line and self.scans.go_on(self.number):
            self.schedule()
        commits = self.commits
        generation: i64 = commits.generation
        if self.urgent:
            self.urgent = False
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
            # Whoever has its turn now may have nothing more to say: the others must not depend on it.
            self.schedule()
        self.share_bytes = TURN_BYTES_MAX // count
        while count > 0:
            count -= 1
            paced.popleft().read_on()

    def committed(self, generation: int, failed: list[QueueLog]) -> None:
        """Called on the loop when the committer has synced every group up to `generation`."""
        if failed and self.log_failed is not None:
            for store in failed:
                self.log_failed(store)
        waiting = self._waiting
        if waiting:
            self._waiting = []
            for channel in waiting:
                if channel.on_commit(generation, failed):
                    self._waiting.append(channel)
        self.room()

    def room(self) -> None:
        """Fewer bytes are unsynced, or fewer wait to be published again: held publishers continue if that is enough."""
        if self._wanting_room and self.commits.unsynced_bytes < self.unsynced_bytes_max:
            wanting = self._wanting_room
            self._wanting_room = []
            for call in wanting:
                call()
        if self._held and not self.crowded and self.commits.unsynced_bytes < self.unsynced_bytes_max:
            held = self._held
            self._held = []
            for connection in held:
                connection.synced()
