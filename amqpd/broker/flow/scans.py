"""How much of a turn goes to looking for what consumers' filters want, and whose turn that is.

A queue looks at what has just come in at once. Where a slice is not enough, as when a filter goes over a backlog, the
queue stands in a line and goes on with the next turns: all of them together take SLICE_MS of a turn, each SHARE_MS at a
time, so however many filters have however long a way to go, the loop is held no longer than that, and none of them
waits for another one's end.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Source
from amqpd.broker.flow.timers import Timers

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
class Scans:
    """One per broker."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.line: deque[Source] = deque()
        # Whether who looks now has to stop.
        self.over = False
        self._turn: i64 = -1
        self._turn_until_ms: i64 = 0
        self._until_ms: i64 = 0
        self._count: i64 = 0
        # Since the clock was looked at.
        self._unlooked: i64 = 0
        self._granted: Source | None = None
        self._parse_turn: i64 = -1
        self._parse_size: i64 = 0

    def begin(self, queue: Source, turn: i64) -> bool:
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
        """A slice of one's own, of no turn: of who has a `Scans` for itself."""
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

    def wait(self, queue: Source) -> None:
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
                queue.pump()
            except Exception as error:  # noqa: BLE001  # told there; the others have their turn all the same
                queue.pump_failed(error)
            self._granted = None
            if timers.now_ms() >= until_ms:
                break
        return len(self.line) > 0
