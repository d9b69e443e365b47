"""What `places_safe` finds, beside what `read_safe` does: the same records, and nothing that is not safe."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amqpd.storage.log.batch import ZSTD
from amqpd.storage.log.reader import CHUNK_SIZE
from amqpd.storage.log.record import Record, RecordRoute, RecordViews
from amqpd.storage.queue_log import Cursor

ROUTES = [RecordRoute(b"ex", b"key"), RecordRoute(b"", b"other"), RecordRoute(b"ex", b"k" * 200)]
PROPERTIES = [b"\x10\x00\x02", b"\x00\x80\x02id", b"\x00\x80\x02ie"]


def nothing() -> None:
    raise AssertionError("all is in memory")


def told(places: RecordViews) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for index in range(places.count):
        alike = places.shared_fields[places.shared_fields_index(index)]
        found.append(
            (
                places.offset(index),
                places.timestamp_ms(index),
                alike.exchange,
                alike.routing_key,
                alike.properties,
                places.body(index),
                alike.persistent,
                places.body_size(index) < 0,
            )
        )
    return found


def of(record: Record) -> tuple[object, ...]:
    return (
        record.offset,
        record.timestamp_ms,
        record.exchange,
        record.routing_key,
        record.properties,
        record.body,
        record.persistent,
        record.tombstone,
    )


def all_places(cursor: Cursor, offset: int, size: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    while True:
        places = cursor.views_below_hw(offset, size, nothing)
        assert not places.waiting
        if not places.count and places.next_offset <= offset:
            return found
        found += told(places)
        offset = places.next_offset


def all_records(cursor: Cursor, offset: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    while True:
        fetch = cursor.read_safe(offset, 1 << 20, nothing)
        if not fetch.records and fetch.next_offset <= offset:
            return found
        found += [of(record) for record in fetch.records]
        offset = fetch.next_offset


def fill(house: Any, chance: random.Random, count: int) -> None:
    store = house.store
    for _ in range(count):
        route, properties = chance.choice(ROUTES), chance.choice(PROPERTIES)
        size = chance.choice((0, 1, 100, 100, 100, 5000, 200_000))
        store.append_parts(route, properties, chance.randbytes(size), True)
        if chance.random() < 0.3:
            house.turn()
    house.turn()


def test_the_same_records(house: Any) -> None:
    chance = random.Random(1)
    store = house.begin()
    fill(house, chance, 300)
    for offset in chance.sample(range(300), 60):  # of streams the cleaner does so
        record = store.cursor.read_one(offset)
        store.ack(offset, len(record.body))
    house.turn()
    due = all_records(store.new_cursor(), 0)
    assert len(due) == 240
    for size in (1, 1000, 64 * 1024, 1 << 24):
        assert all_places(store.new_cursor(), 0, size) == due
    cursor = store.new_cursor()
    for offset in (7, 0, 299, 100, 101):
        assert all_places(cursor, offset, 64 * 1024) == [each for each in due if int(str(each[0])) >= offset]


def test_of_compressed_batches(house: Any) -> None:
    store = house.begin()
    store.appender.codec = ZSTD
    fill(house, random.Random(2), 100)
    assert len(all_records(store.new_cursor(), 0)) == 100
    assert all_places(store.new_cursor(), 0, 64 * 1024) == all_records(store.new_cursor(), 0)


def test_nothing_that_is_not_safe(house: Any) -> None:
    store = house.begin()
    house.append(b"a", b"b")
    house.turn()
    house.append(b"c")
    places = store.new_cursor().views_below_hw(0, 1 << 20, nothing)
    assert [each[5] for each in told(places)] == [b"a", b"b"]
    house.turn()
    assert [each[5] for each in all_places(store.new_cursor(), 2, 1 << 20)] == [b"c"]


def test_they_outlive_the_cursor(house: Any) -> None:
    """A reader holds the batches that it is in, not the chunk they were read with."""
    store = house.begin()
    for _ in range(20):
        house.append(b"x" * 1000)
        house.turn()
    cursor = store.new_cursor()
    places = cursor.views_below_hw(0, 1, nothing)
    cursor.close()
    assert [each[5] for each in told(places)] == [b"x" * 1000]
    assert len(places.shared_fields[0].data) < 1200


def test_of_a_large_batch_only_what_was_asked_for_is_held(house: Any) -> None:
    store = house.begin()
    house.append(b"x" * 1000, b"y" * 300_000)
    house.turn()
    places = store.new_cursor().views_below_hw(0, 1 << 20, nothing)
    assert [len(alike.data) for alike in places.shared_fields][-1] == 300_000


def test_a_damaged_batch_is_passed_over(house: Any) -> None:
    store = house.begin()
    for number in range(3):
        house.append(b"%d" % number * 50)
        house.turn()
    data = house.log()
    data[data.index(b"1" * 50)] ^= 1
    assert [each[0] for each in all_places(store.new_cursor(), 0, 1 << 20)] == [0, 2]
    assert store.lost == [(1, 1)]


def large_batches(house: Any, sizes: list[int]) -> list[bytes]:
    """A batch of each size."""
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    for body in bodies:
        house.append(body)
        house.turn()
    return bodies


def test_large_batches_are_read_once(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first chunk a batch is read by itself, and nothing of it twice."""
    store = house.begin()
    bodies = large_batches(house, [60_000] * 20)
    read: list[int] = []
    pread = house.filesystem.pread

    def noted(fd: int, size: int, position: int) -> bytes:
        read.append(size)
        return pread(fd, size, position)

    monkeypatch.setattr(house.filesystem, "pread", noted)
    assert [each[5] for each in all_places(store.new_cursor(), 0, 64 * 1024)] == bodies
    assert sum(read) < len(house.log()) + CHUNK_SIZE
    assert max(read[1:]) < 61_000


@pytest.mark.parametrize("seed", range(5))
def test_large_and_small_batches(house: Any, seed: int) -> None:
    chance = random.Random(seed)
    store = house.begin()
    bodies = large_batches(house, [chance.choice((1, 1000, 15_000, 17_000, 64_000, 300_000)) for _ in range(100)])
    for size in (1, 64 * 1024, 1 << 20):
        assert [each[5] for each in all_places(store.new_cursor(), 0, size)] == bodies
    cursor = store.new_cursor()
    for offset in (50, 3, 99, 98, 0):
        assert [each[5] for each in all_places(cursor, offset, 64 * 1024)] == bodies[offset:]


@pytest.mark.parametrize("place", ["body", "end", "attributes", "length", "checksum", "count"])
def test_a_large_batch_that_is_damaged(house: Any, place: str) -> None:
    """Wherever it is: it is lost, and it alone."""
    store = house.begin()
    large_batches(house, [60_000] * 12)
    data = house.log()
    start = len(data) // 12 * 8
    places = {"body": 30_000, "end": len(data) // 12 - 1, "attributes": 22, "length": 10, "checksum": 18, "count": 60}
    data[start + places[place]] ^= 4
    assert [each[0] for each in all_places(store.new_cursor(), 0, 64 * 1024)] == [*range(8), *range(9, 12)]
    assert store.lost == [(8, 8)]


def test_they_end_with_a_batch(house: Any) -> None:
    """What a little of the next batch would hold as a whole stays for the next reading."""
    store = house.begin()
    for _ in range(4):
        house.append(*[b"x" * 1000] * 60)
        house.turn()
    cursor = store.new_cursor()
    size = 60 * (1000 + 3 + 64) + 100
    assert [cursor.views_below_hw(first, size, nothing).count for first in (0, 60, 120, 180)] == [60] * 4
    assert cursor.views_below_hw(0, 2 * size // 3, nothing).count < 60  # no batch ends there
    assert cursor.views_below_hw(0, 2 * size, nothing).count == 120
