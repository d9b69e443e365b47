"""The state of one partition of a stream in one share group (KIP-932), without IO and clock.

    available     may be acquired; a new record is available
    acquired      a member has it, until it acknowledges it or its lock expires
    updating      the acknowledgement is being written
    final         acknowledged, or archived: rejected, or tried ATTEMPTS_MAX times

    acquire       available -> acquired; the delivery count rises by one
    accept        acquired -> updating -> final
    reject, gap   acquired -> updating -> final
    release       acquired -> updating -> available; final after the last attempt
    renew         acquired, with a new time for its lock
    lock expires, session ends   acquired -> available; final after the last attempt

All records below `end` are final, except those in `_open`; at most OPEN_MAX are there. All records from `end` on are
available and were never acquired.

A snapshot is what is written. It has the states that a restart of the broker continues with: acquired records are
available, and records that are being updated have their new state.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence
from typing import Final

from amqpd.kafka_server.share_wire import GAP, RELEASE, RENEW, AckRange, OffsetRange, ranges_of

OPEN_MAX: Final = 2000
"""Records that are neither final nor new. Kafka: group.share.partition.max.record.locks."""
ATTEMPTS_MAX: Final = 5
"""Kafka: group.share.delivery.count.limit."""

AVAILABLE: Final = 0
ACQUIRED: Final = 1
UPDATING: Final = 2

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">Bq")
_RANGE: Final = struct.Struct(">qqH")


class _Record:
    """A record that is not final.

    Attributes:
        count: how often it was acquired.
        member: that has acquired it.
        stays: while it is updated: it becomes available and not final.
    """

    __slots__ = ("count", "due_ms", "member", "state", "stays")

    def __init__(self, count: int, state: int = AVAILABLE, member: str = "", due_ms: int = 0) -> None:
        self.state = state
        self.count = count
        self.member = member
        self.due_ms = due_ms
        self.stays = False


class ShareState:
    """The state of one partition in one share group: which records are available, acquired or final.

    Attributes:
        end: the first offset that was never acquired.
    """

    def __init__(self, end: int, ranges: Sequence[OffsetRange] = ()) -> None:
        self.end = end
        self._open: dict[int, _Record] = {}
        self._log_start = 0  # retention has removed what is below
        self._available: list[int] = []  # a heap; it may have offsets that are not available any more
        for each in ranges:
            for offset in range(each.first, each.last + 1):
                self._open[offset] = _Record(each.deliveries)
                self._available.append(offset)
        heapq.heapify(self._available)

    @property
    def start(self) -> int:
        """The first offset that is not final. Cost: linear in the open records."""
        return min(self._open, default=self.end)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def snapshot(self) -> bytes:
        """Return the state as it is written. Cost: some 0.5 ms with OPEN_MAX records."""
        parts = [_HEAD.pack(_VERSION, self.end)]
        parts += [_RANGE.pack(*each) for each in self.ranges()]
        return b"".join(parts)

    def ranges(self) -> list[OffsetRange]:
        """Return the records that a snapshot has."""
        kept = ((offset, self._open[offset]) for offset in sorted(self._open))
        return ranges_of((offset, each.count) for offset, each in kept if each.state != UPDATING or each.stays)

    # -- acquire

    def first_wanted(self) -> int:
        """Return the offset to be acquired next, -1 if too many are open."""
        heap = self._available
        while heap:
            record = self._open.get(heap[0])
            if record is not None and record.state == AVAILABLE:
                return heap[0]
            heapq.heappop(heap)
        return self.end if len(self._open) < OPEN_MAX else -1

    def skip_to(self, offset: int) -> None:
        """Make all available records below `offset` final: the log does not have them."""
        while 0 <= (wanted := self.first_wanted()) < min(offset, self.end):
            del self._open[wanted]
        self.end = max(self.end, offset)

    def acquire(self, member: str, first: int, last: int, count_max: int, due_ms: int) -> list[tuple[int, int]]:
        """Acquire available records from `first` to `last`, at most `count_max`.

        Records from `end` up to `first` that were not acquired become final. Return offsets and delivery counts.
        """
        acquired: list[tuple[int, int]] = []
        records = self._open
        for offset in range(first, min(last + 1, self.end)):
            if len(acquired) >= count_max:
                return acquired
            record = records.get(offset)
            if record is not None and record.state == AVAILABLE:
                record.state = ACQUIRED
                record.count += 1
                record.member = member
                record.due_ms = due_ms
                acquired.append((offset, record.count))
        begin = max(first, self.end)
        stop = min(last + 1, begin + count_max - len(acquired), begin + OPEN_MAX - len(records))
        if begin < stop:
            for offset in range(begin, stop):
                records[offset] = _Record(1, ACQUIRED, member, due_ms)
                acquired.append((offset, 1))
            self.end = stop
        return acquired

    # -- acknowledge

    def begin_update(self, member: str, acks: Sequence[AckRange], renewed_due_ms: int) -> list[int] | None:
        """Begin to acknowledge, or to renew locks at once.

        Return the offsets that are updated; `end_update` must follow. Return None, and change nothing, if the member
        has not acquired one of them. Gaps may be anywhere, and what is below `start` is ignored, as by Kafka.
        """
        records, start = self._open, self.start
        for each in acks:
            first = max(each.first, start)
            unknown = each.record_count(first)
            for offset in self._open_in(first, each.last):
                record = records[offset]
                if record.state != ACQUIRED or record.member != member:
                    return None
                unknown -= each.type_at(offset) != GAP
            if unknown > 0:
                return None
        updated: list[int] = []
        for each in acks:
            for offset in self._open_in(each.first, each.last):
                record = records[offset]
                if record.state != ACQUIRED:
                    continue  # twice in the request
                kind = each.type_at(offset)
                if kind == RENEW:
                    record.due_ms = renewed_due_ms
                    continue
                record.state = UPDATING
                record.stays = kind == RELEASE and record.count < ATTEMPTS_MAX
                updated.append(offset)
        return updated

    def _open_in(self, first: int, last: int) -> list[int]:
        """Return the offsets from `first` to `last` that are open, in order. Cost: the lower one of both numbers."""
        records = self._open
        if last - first < len(records):
            return [offset for offset in range(first, last + 1) if offset in records]
        return sorted(offset for offset in records if first <= offset <= last)

    def end_update(self, offsets: Sequence[int], is_written: bool) -> None:
        """End an update: the records have their new state, or are acquired again if it could not be written."""
        for offset in offsets:
            record = self._open.get(offset)
            if record is None or record.state != UPDATING:
                continue  # removed from the log meanwhile
            if not is_written:
                record.state = ACQUIRED
            elif record.stays:
                self._make_available(offset, record)
            else:
                del self._open[offset]

    # -- locks

    def expire(self, now_ms: int) -> bool:
        """Release the records whose locks have expired. Return whether there were any. Cost: linear."""
        return self._release([each for each in self._open.items() if each[1].due_ms <= now_ms])

    def release_member(self, member: str) -> bool:
        """Release what a member has acquired: its session ends. Return whether there was anything."""
        return self._release([each for each in self._open.items() if each[1].member == member])

    def _release(self, records: list[tuple[int, _Record]]) -> bool:
        is_changed = False
        for offset, record in records:
            if record.state == ACQUIRED:
                is_changed = True
                if record.count < ATTEMPTS_MAX:
                    self._make_available(offset, record)
                else:
                    del self._open[offset]
        return is_changed

    def _make_available(self, offset: int, record: _Record) -> None:
        record.state = AVAILABLE
        record.member = ""
        heapq.heappush(self._available, offset)

    def next_due_ms(self) -> int:
        """Return when the next lock expires, -1 if nothing is acquired. Cost: linear."""
        return min((record.due_ms for record in self._open.values() if record.state == ACQUIRED), default=-1)

    def remove_below(self, offset: int) -> None:
        """Make all records below `offset` final: retention has removed them."""
        if offset <= self._log_start:
            return
        self._log_start = offset
        for each in [each for each in self._open if each < offset]:
            del self._open[each]
        self.end = max(self.end, offset)


def decode_snapshot(data: bytes) -> ShareState | None:
    """Return the state of a snapshot, None if its version is unknown or it is damaged."""
    if len(data) < _HEAD.size or (len(data) - _HEAD.size) % _RANGE.size:
        return None
    version, end = _HEAD.unpack_from(data)
    ranges = [OffsetRange(*fields) for fields in _RANGE.iter_unpack(data[_HEAD.size :])]
    if version != _VERSION or sum(each.last - each.first + 1 for each in ranges) > OPEN_MAX:
        return None
    if any(not 0 <= each.first <= each.last < end for each in ranges):
        return None
    return ShareState(end, ranges)
