"""The places of messages that are due soon, by the millisecond: 8 bytes each, and some 150 for a millisecond in use.

A place is the number of a bucket and an offset in its log. They come out in the order of their milliseconds, within one
in the order in which they were put in.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.delayed.bucket import Bucket

NEVER: Final = 1 << 62
# Places this near each other are read together.
NEAR: Final = 64
_OFFSET_BITS: Final[i64] = 40
_OFFSETS: Final[i64] = (1 << 40) - 1


@final
class DueSlots:
    """Of one wheel. count: places that are not taken out yet."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._slots: dict[int, array[int]] = {}
        self._times: list[int] = []
        self._buckets: dict[int, Bucket] = {}
        self._next_number: i64 = 0
        # The slot that is taken out now, and how far.
        self._slot: array[int] | None = None
        self._at: i64 = 0

    def number(self, bucket: Bucket) -> None:
        """The bucket is about to be loaded."""
        if bucket.number < 0:
            bucket.number = self._next_number
            self._buckets[self._next_number] = bucket
            self._next_number += 1

    def forget(self, bucket: Bucket) -> None:
        """Its places mean nothing any more."""
        if bucket.pending == 0:
            self._buckets.pop(bucket.number, None)

    def clear(self) -> None:
        self.count = 0
        self._slots.clear()
        self._times.clear()
        self._buckets.clear()
        self._slot = None

    def put(self, bucket: Bucket, due_ms: i64, offset: i64) -> None:
        """Cost: 0.1 us, the first of a millisecond 1."""
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
        """When the next one is due; NEVER: there is none. One that is being taken out is due already: 0."""
        if self._slot is not None:
            return 0
        return self._times[0] if self._times else NEVER

    def begin(self, until_ms: i64) -> bool:
        """Whether one is there that is due before `until_ms`: `bucket`, `offset` and `goes_on` tell of it."""
        if self._slot is None:
            if not self._times or self._times[0] >= until_ms:
                return False
            self._slot = self._slots.pop(heappop(self._times))
            self._at = 0
        return True

    def _place(self) -> i64:
        slot = self._slot
        assert slot is not None  # `begin` has said so
        return slot[self._at]

    def bucket(self) -> Bucket:
        return self._buckets[self._place() >> _OFFSET_BITS]

    def offset(self) -> i64:
        return self._place() & _OFFSETS

    def goes_on(self) -> bool:
        """Whether the place behind it comes next, or one near it."""
        slot = self._slot
        after = self._at + 1
        if slot is None or after >= len(slot):
            return False
        near: i64 = slot[after] - self._place()
        return 0 < near < NEAR

    def take(self) -> None:
        """It is done with."""
        slot = self._slot
        assert slot is not None  # `begin` has said so
        bucket = self.bucket()
        bucket.pending -= 1
        self.count -= 1
        if bucket.gone:
            self.forget(bucket)
        self._at += 1
        if self._at >= len(slot):
            self._slot = None
