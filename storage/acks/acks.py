"""Acknowledgements of a work queue: which messages of its log are settled, delivered, returned.

`ack` extends a run of neighbouring offsets and makes no object per message. `flush_runs` passes the runs to the
segments of the log, and so to `.settled` files. The counts of the log (`record_count`, `size_bytes`) change with each
call already.

The *delivery mark* is written before the deliveries: the files say that no offset above it was given to a consumer.
While deliveries continue without a pause the mark runs ahead of them, so that it need not be written every turn
(`_mark_lead`).

A log creates its `QueueAcks` with the first of these calls, or when recovery finds entries. A stream has none.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.acks.ack_set import pack_returned
from amqpd.storage.log.log import Log
from amqpd.storage.loop_log import GroupCommitLog

_NONE: Final[set[int]] = set()
AHEAD_MAX: Final[i64] = 64  # maximum lead of the delivery mark, in offsets
_STEADY_TICKS: Final[i64] = 4  # ticks in a row with deliveries before it may lead


@final
class QueueAcks:
    """Settled, delivered and returned messages of one log.

    Attributes:
        owner: the log, whose counts are updated.
        returned: offset -> packed delivery count and due time (ack_set.py) of returned live messages.
        delivered_mark: the highest offset that was delivered, or may have been.
        due: acknowledgements must be written in this turn.
        mark_waits: the entry of `delivered_mark` waits for the next write.
    """

    def __init__(self, owner: GroupCommitLog, log: Log, delivered_mark: i64, returned: dict[int, int]) -> None:
        self.owner: GroupCommitLog = owner
        self._log: Log = log
        self.returned: dict[int, int] = returned
        owner.returned = returned  # cursors read it there
        self.delivered_mark: i64 = delivered_mark
        self.due: bool = False
        self.mark_waits: bool = False
        self._seen_end: i64 = delivered_mark + 1  # offsets below it may have been delivered by an earlier process
        self._returned_earlier: set[int] = set(returned) if returned else _NONE  # returned before this process, too
        self._returns: list[int] = []  # of this turn
        # Acknowledgements of this turn: the open run, and the runs before it.
        self._run_first: i64 = -1
        self._run_next: i64 = -1
        self._run_limit: i64 = 0  # a run is in one segment and of one kind (`Segment.same_durability_end`)
        self._run_bytes: i64 = 0
        self._runs: list[tuple[int, int, int]] = []
        # Rate of deliveries, for `_mark_lead`.
        self._tick_delivered_mark: i64 = delivered_mark
        self._pace: i64 = 0  # deliveries per tick, a decaying maximum
        self._steady: i64 = 0  # ticks in a row with deliveries

    @property
    def has_unflushed_runs(self) -> bool:
        """Return whether there are runs that the segments do not know yet."""
        return self._run_first >= 0 or len(self._runs) > 0

    # -- settled

    def ack(self, offset: i64, body_size_bytes: i64) -> None:
        """See `QueueLog.ack`. Cost: 10 ns in order, about 0.3 us for a new run."""
        owner = self.owner
        owner.record_count -= 1
        owner.size_bytes -= body_size_bytes
        if offset == self._run_next and offset < self._run_limit:
            self._run_next = offset + 1
            self._run_bytes += body_size_bytes
            return
        self._begin_run(offset, offset, body_size_bytes)

    def ack_range(self, first: i64, last: i64, body_size_bytes: i64) -> None:
        """Settle `first`..`last`, a whole batch.

        The counts may drop too far if a part was settled before; `flush_runs` corrects them.
        """
        owner = self.owner
        owner.record_count -= last - first + 1
        owner.size_bytes -= body_size_bytes
        if first == self._run_next and first < self._run_limit:
            self._run_next = last + 1
            self._run_bytes += body_size_bytes
        else:
            self._begin_run(first, last, body_size_bytes)

    def _begin_run(self, first: i64, last: i64, body_size_bytes: i64) -> None:
        self.owner.mark_dirty_later()
        if self._run_first >= 0:
            self._runs.append((self._run_first, self._run_next - 1, self._run_bytes))
        self._run_first = first
        self._run_next = last + 1
        segment = self._log.segment_of(first)
        # A message that is in no file yet gets a run of its own: the kind of its neighbours is not known yet.
        self._run_limit = segment.same_durability_end(first) if segment is not None else last + 1
        self._run_bytes = body_size_bytes

    def flush_runs(self) -> None:
        """Pass the runs to the segments; the next `Log.flush` writes them to `.settled` files."""
        runs = self._runs
        if self._run_first >= 0:
            runs.append((self._run_first, self._run_next - 1, self._run_bytes))
            self._run_first = -1
            self._run_next = -1
            self._run_bytes = 0
        if not runs:
            return
        self._runs = []
        if len(runs) > 1:
            runs.sort()
        first: i64 = 0
        last: i64 = 0
        size: i64 = 0
        low, high, size = runs[0]
        for index in range(1, len(runs)):
            first, last, more = runs[index]
            segment = self._log.segment_of(low)
            if first == high + 1 and segment is not None and first < segment.same_durability_end(low):
                high = last
                size += more
            else:
                self._settle_range(low, high, size)
                low, high, size = first, last, more
        self._settle_range(low, high, size)

    def _settle_range(self, first: i64, last: i64, body_size_bytes: i64) -> None:
        live: i64 = self._log.ack(first, last, body_size_bytes)
        self.owner.record_count += last - first + 1 - live  # some were settled before, or never written
        if self.returned:
            self.forget_returned(first, last)

    # -- delivery marks, returned messages

    def mark_delivered(self, offset: i64) -> None:
        """See `QueueLog.mark_delivered`. Cost: 5 ns."""
        if offset > self.delivered_mark:
            self.delivered_mark = offset
            owner = self.owner
            if not owner.dirty:
                owner.mark_dirty()
        elif self.mark_waits:
            self.mark_waits = False
            self.owner.mark_dirty()

    def mark_returned(self, offset: i64, delivery_count: i64, due_ms: i64) -> None:
        """See `QueueLog.mark_delayed`. `due_ms` is 0 for at once."""
        self.returned[offset] = pack_returned(delivery_count, due_ms)
        self._returns.append(offset)
        self.owner.mark_dirty()

    def redelivered(self, offset: i64) -> bool:
        """See `QueueLog.redelivered`."""
        if offset < self._seen_end:
            return True
        return len(self.returned) > 0 and offset in self.returned

    def maybe_delivered_before(self, offset: i64) -> bool:
        """See `QueueLog.maybe_delivered_before`."""
        if offset < self._seen_end:
            return True
        return len(self._returned_earlier) > 0 and offset in self._returned_earlier

    def mark_delivered_below(self, end: i64) -> None:
        """Record that all live messages below `end` may have been delivered."""
        if self._seen_end < end:
            self._seen_end = end
        self.mark_delivered(end - 1)

    def forget_returned(self, first: i64, last: i64) -> None:
        """Remove the tallies of offsets that are settled now."""
        returned = self.returned
        if last - first < 2 * len(returned):
            for offset in range(first, last + 1):
                returned.pop(offset, None)
        else:
            for offset in [each for each in returned if first <= each <= last]:
                del returned[offset]

    # -- the end of a turn, and ticks

    def write_delivered_mark(self) -> bool:
        """Write the delivery mark to the log if deliveries have passed the written one.

        Return whether the pending entries must be written in this turn, not at the next tick.
        """
        due = self.due
        if self.delivered_mark > self._log.delivered_mark:
            self._log.mark_delivered(self.delivered_mark, self._mark_lead())
            due = True
        return due or len(self._returns) > 0

    def tick(self) -> bool:
        """Advance the delivery mark if necessary; called every 50 ms. Return whether the queue is busy."""
        mark = self.delivered_mark
        delivered: i64 = mark - self._tick_delivered_mark
        self._tick_delivered_mark = mark
        pace: i64 = self._pace * 3 // 4
        self._pace = delivered if delivered > pace else pace
        self._steady = self._steady + 1 if delivered > 0 else 0
        if delivered > 0 and mark + delivered > self._log.delivered_mark:
            ahead = self._mark_lead()
            if ahead > 0:
                self._log.mark_delivered(mark, ahead)
        return self._pace > 0 or self._run_first >= 0

    def _mark_lead(self) -> i64:
        """Return how far the delivery mark runs ahead of the last delivery: about three ticks of deliveries, once
        deliveries have been steady for a while.

        A burst gets an exact mark: after a kill, a consumer that took ten messages sees ten marked as redelivered.
        """
        ahead: i64 = self._pace * 3
        if ahead < 6 or self._steady < _STEADY_TICKS:
            return 0
        return ahead if ahead < AHEAD_MAX else AHEAD_MAX

    def write_all(self) -> None:
        """Pass all runs and returns to the log, for its next `flush`."""
        self.due = False
        self.flush_runs()
        if self._returns:
            for offset in self._returns:
                packed = self.returned.get(offset)
                if packed is not None:
                    self._log.mark_returned(offset, packed)
            self._returns = []
