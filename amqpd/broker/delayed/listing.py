"""Listing of the next delayed messages, and cancelling of one by its id. Both read buckets in pieces.

The scan takes no lock: between two pieces messages arrive, cascade and are released. If a bucket cascades
meanwhile, `cancel` repeats its search.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heappushpop
from typing import NamedTuple

from amqpd.broker.delayed.bucket import READ_BYTES, Bucket, format_id, read_due_ms, read_keys, read_number
from amqpd.broker.delayed.timing_wheel import TimingWheel
from amqpd.storage.log.record import Record


class DelayedMessage(NamedTuple):
    """One delayed message; sorts by due time.

    Attributes:
        due_ms: since 1970.
        size_bytes: the size of the body.
    """

    due_ms: int
    number: int
    exchange: str
    published_to: str
    routing_keys: list[str]
    size_bytes: int
    persistent: bool

    @property
    def id(self) -> str:
        return format_id(self.due_ms, self.number)


def next_due(wheels: list[TimingWheel], count_max: int) -> Iterator[list[DelayedMessage] | None]:
    """Yield None between pieces, so that the loop can run, and last the next `count_max` messages in order.

    Memory: the result. Cost: reads the buckets that may contain them. Raises: OSError.
    """
    heap: list[tuple[int, int, DelayedMessage]] = []  # latest first
    asked = [(bucket.start_ms, number, wheel, bucket) for number, (wheel, bucket) in enumerate(_buckets(wheels))]
    for start_ms, _, wheel, bucket in sorted(asked):
        if len(heap) >= count_max and start_ms > -heap[0][0]:
            # All results are due before this bucket; only a loaded one may have overdue messages.
            continue
        for record in _records(bucket):
            if record is None:
                yield None
                continue
            found = _found(wheel, record)
            if found is not None:
                entry = (-found.due_ms, -found.number, found)
                if len(heap) < count_max:
                    heappush(heap, entry)
                else:
                    heappushpop(heap, entry)
    yield sorted(entry[2] for entry in heap)


def cancel(wheels: list[TimingWheel], due_ms: int, number: int) -> Iterator[bool | None]:
    """Yield None between pieces, and last whether the message was found and cancelled.

    Cost: reads the buckets that may contain it. Raises: OSError.
    """
    for wheel in wheels:
        moves = -1
        while moves != wheel.cascade_count:
            moves = wheel.cascade_count
            for bucket in list(wheel.buckets):
                if not bucket.loaded and not bucket.start_ms <= due_ms < bucket.end_ms:
                    continue  # a loaded bucket may have messages that were overdue on arrival
                for record in _records(bucket):
                    if record is None:
                        yield None
                    elif _is(record, due_ms, number):
                        yield wheel.cancel(bucket, record.offset, due_ms, number, len(record.body))
                        return
    yield False


def _is(record: Record, due_ms: int, number: int) -> bool:
    try:
        return read_number(record.properties) == number and read_due_ms(record.properties) == due_ms
    except ValueError:
        return False


def _buckets(wheels: list[TimingWheel]) -> Iterator[tuple[TimingWheel, Bucket]]:
    for wheel in wheels:
        for bucket in wheel.buckets:
            if bucket.active and bucket.opened:
                yield wheel, bucket


def _records(bucket: Bucket) -> Iterator[Record | None]:
    """Yield the live records, and None after each piece."""
    if bucket.is_removed or not bucket.active or not bucket.opened or bucket.store.record_count == 0:
        return
    cursor = bucket.store.new_cursor()
    offset = 0
    try:
        while not bucket.is_removed:
            fetch = cursor.read(offset, READ_BYTES)
            yield from fetch.records
            yield None
            if not fetch.records:
                return
            offset = fetch.next_offset
    finally:
        cursor.close()


def _found(wheel: TimingWheel, record: Record) -> DelayedMessage | None:
    try:
        due = read_due_ms(record.properties)
        number = read_number(record.properties)
    except ValueError:
        return None
    keys = read_keys(record.properties) or [record.routing_key.decode("utf-8", "replace")]
    return DelayedMessage(
        due, number, wheel.exchange, record.exchange.decode(), keys, len(record.body), record.persistent
    )
