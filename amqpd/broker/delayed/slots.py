"""Slots: positions of messages that are due soon, by millisecond.

A position is the number of a bucket and an offset in its log. Positions come out in the order of milliseconds,
within one in the order of arrival. Memory: 8 bytes per position and about 150 per millisecond in use.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.delayed.bucket import Bucket

NEVER: Final = 1 << 62
# Positions within this distance are read together.
NEAR: Final = 64
_OFFSET_BITS: Final[i64] = 40
_OFFSETS: Final[i64] = (1 << 40) - 1


@final
class DueSlots:
    """The slots of one wheel. `count` is the number of positions in them."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._slots: dict[int, array[int]] = {}
        self._times: list[int] = []
        self._buckets: dict[int, Bucket] = {}
        self._next_number: i64 = 0
        # The slot that is being emptied, and the position in it.
        self._slot: array[int] | None = None
        self._at: i64 = 0

    def assign_number(self, bucket: Bucket) -> None:
        """Give the bucket a number before it is loaded."""
        if bucket.number < 0:
            bucket.number = self._next_number
            self._buckets[self._next_number] = bucket
            self._next_number += 1

    def release_number(self, bucket: Bucket) -> None:
        """Remove the number of a bucket without positions."""
        if bucket.pending == 0:
            self._buckets.pop(bucket.number, None)

    def clear(self) -> None:
        self.count = 0
        self._slots.clear()
        self._times.clear()
        self._buckets.clear()
        self._slot = None

    def add(self, bucket: Bucket, due_ms: i64, offset: i64) -> None:
        """Add a position. Cost: 0.1 us, 1 us for a new millisecond."""
        slot = self._slots.get(due_ms)
        if slot is None:
            slot = array("q")
            self._slots[due_ms] = slot
            time_ms: int = due_ms
            heappush(self._times, time_ms)
        place: int = bucket.number << _OFFSET_BITS | offset
        slot.append(place)
        bucket.pending += 1
        self.count += 1

    def first_ms(self) -> i64:
        """Return the time of the next position, NEVER if there is none, 0 if it is due already."""
        if self._slot is not None:
            return 0
        return self._times[0] if self._times else NEVER

    def begin(self, until_ms: i64) -> bool:
        """Return whether a position is due before `until_ms`. It is then in `bucket`, `offset` and `is_next_near`."""
        if self._slot is None:
            if not self._times or self._times[0] >= until_ms:
                return False
            self._slot = self._slots.pop(heappop(self._times))
            self._at = 0
        return True

    def _place(self) -> i64:
        slot = self._slot
        assert slot is not None  # after `begin`
        return slot[self._at]

    def bucket(self) -> Bucket:
        return self._buckets[self._place() >> _OFFSET_BITS]

    def offset(self) -> i64:
        return self._place() & _OFFSETS

    def is_next_near(self) -> bool:
        """Return whether the next position is close after this one."""
        slot = self._slot
        after = self._at + 1
        if slot is None or after >= len(slot):
            return False
        near: i64 = slot[after] - self._place()
        return 0 < near < NEAR

    def advance(self) -> None:
        slot = self._slot
        assert slot is not None  # after `begin`
        bucket = self.bucket()
        bucket.pending -= 1
        self.count -= 1
        if bucket.is_removed:
            self.release_number(bucket)
        self._at += 1
        if self._at >= len(slot):
            self._slot = None
