"""Delayed messages to look at: the next ones, and the one of an id. A pass over buckets, in pieces.

Nobody holds what is told: between two pieces messages come, go down a level and are released. So an id that is not
found is looked for once more where a bucket went down meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heappushpop
from typing import NamedTuple

from amqpd.broker.delayed.bucket import READ_BYTES, Bucket, due_of, keys_of, name_of, number_of
from amqpd.broker.delayed.timing_wheel import TimingWheel
from amqpd.storage.log.record import Record


class DelayedMessage(NamedTuple):
    """One message. It sorts by its time. due_ms: since 1970. size_bytes: of the body."""

    due_ms: int
    number: int
    exchange: str
    published_to: str
    routing_keys: list[str]
    size_bytes: int
    persistent: bool

    @property
    def id(self) -> str:
        return name_of(self.due_ms, self.number)


def next_due(wheels: list[TimingWheel], count_max: int) -> Iterator[list[DelayedMessage] | None]:
    """The messages of these wheels that are due next, at most so many, in the order of their time: what it yields last.

    Yields None before that wherever the loop may have its turn. Memory: what is asked for. Cost: a pass over the
    buckets that come into question. Raises: OSError.
    """
    heap: list[tuple[int, int, DelayedMessage]] = []  # the latest of them first
    asked = [(bucket.start_ms, number, wheel, bucket) for number, (wheel, bucket) in enumerate(_buckets(wheels))]
    for start_ms, _, wheel, bucket in sorted(asked):
        if len(heap) >= count_max and start_ms > -heap[0][0]:
            continue  # what is there is due before its time; but one that is loaded may have older ones
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
    """Yields last whether the message was there and is cancelled; None before that wherever the loop may have its turn.

    Cost: a pass over the buckets that may have it. Raises: OSError.
    """
    for wheel in wheels:
        moves = -1
        while moves != wheel.moves:
            moves = wheel.moves
            for bucket in list(wheel.buckets):
                if not bucket.loaded and not bucket.start_ms <= due_ms < bucket.end_ms:
                    continue  # a loaded one may have what was over when it came
                for record in _records(bucket):
                    if record is None:
                        yield None
                    elif _is(record, due_ms, number):
                        yield wheel.settle(bucket, record.offset, due_ms, number, len(record.body))
                        return
    yield False


def _is(record: Record, due_ms: int, number: int) -> bool:
    try:
        return number_of(record.properties) == number and due_of(record.properties) == due_ms
    except ValueError:
        return False


def _buckets(wheels: list[TimingWheel]) -> Iterator[tuple[TimingWheel, Bucket]]:
    for wheel in wheels:
        for bucket in wheel.buckets:
            if bucket.active and bucket.opened:
                yield wheel, bucket


def _records(bucket: Bucket) -> Iterator[Record | None]:
    """None after each piece."""
    if bucket.gone or not bucket.active or not bucket.opened or bucket.store.record_count == 0:
        return
    cursor = bucket.store.new_cursor()
    offset = 0
    try:
        while not bucket.gone:
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
        due = due_of(record.properties)
        number = number_of(record.properties)
    except ValueError:
        return None
    keys = keys_of(record.properties) or [record.routing_key.decode("utf-8", "replace")]
    return DelayedMessage(
        due, number, wheel.exchange, record.exchange.decode(), keys, len(record.body), record.persistent
    )
