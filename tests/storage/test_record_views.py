"""`views_below_hw` returns the same records as `read_safe`, and no record that is not safe."""

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


def fail_on_wait() -> None:
    raise AssertionError("a read waits although all records are in memory")


def view_fields(views: RecordViews) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for index in range(views.count):
        shared = views.shared_fields[views.shared_fields_index(index)]
        found.append(
            (
                views.offset(index),
                views.timestamp_ms(index),
                shared.exchange,
                shared.routing_key,
                shared.properties,
                views.body(index),
                shared.persistent,
                views.body_size(index) < 0,
            )
        )
    return found


def record_fields(record: Record) -> tuple[object, ...]:
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


def all_views(cursor: Cursor, offset: int, size: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    while True:
        views = cursor.views_below_hw(offset, size, fail_on_wait)
        assert not views.waiting
        if not views.count and views.next_offset <= offset:
            return found
        found += view_fields(views)
        offset = views.next_offset


def all_records(cursor: Cursor, offset: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    while True:
        fetch = cursor.read_safe(offset, 1 << 20, fail_on_wait)
        if not fetch.records and fetch.next_offset <= offset:
            return found
        found += [record_fields(record) for record in fetch.records]
        offset = fetch.next_offset


def fill(harness: Any, chance: random.Random, count: int) -> None:
    store = harness.store
    for _ in range(count):
        route, properties = chance.choice(ROUTES), chance.choice(PROPERTIES)
        size = chance.choice((0, 1, 100, 100, 100, 5000, 200_000))
        store.append_parts(route, properties, chance.randbytes(size), True)
        if chance.random() < 0.3:
            harness.end_turn()
    harness.end_turn()


def test_views_equal_the_records(harness: Any) -> None:
    chance = random.Random(1)
    store = harness.create_log()
    fill(harness, chance, 300)
    for offset in chance.sample(range(300), 60):  # in streams the cleaner does this
        record = store.cursor.read_one(offset)
        store.ack(offset, len(record.body))
    harness.end_turn()
    expected = all_records(store.new_cursor(), 0)
    assert len(expected) == 240
    for size in (1, 1000, 64 * 1024, 1 << 24):
        assert all_views(store.new_cursor(), 0, size) == expected
    cursor = store.new_cursor()
    for offset in (7, 0, 299, 100, 101):
        assert all_views(cursor, offset, 64 * 1024) == [each for each in expected if int(str(each[0])) >= offset]


def test_views_of_compressed_batches(harness: Any) -> None:
    store = harness.create_log()
    store.appender.codec = ZSTD
    fill(harness, random.Random(2), 100)
    assert len(all_records(store.new_cursor(), 0)) == 100
    assert all_views(store.new_cursor(), 0, 64 * 1024) == all_records(store.new_cursor(), 0)


def test_records_that_are_not_safe_have_no_view(harness: Any) -> None:
    store = harness.create_log()
    harness.append(b"a", b"b")
    harness.end_turn()
    harness.append(b"c")
    views = store.new_cursor().views_below_hw(0, 1 << 20, fail_on_wait)
    assert [each[5] for each in view_fields(views)] == [b"a", b"b"]
    harness.end_turn()
    assert [each[5] for each in all_views(store.new_cursor(), 2, 1 << 20)] == [b"c"]


def test_views_outlive_the_cursor(harness: Any) -> None:
    """The views hold the batches that they need, not the chunk that was read."""
    store = harness.create_log()
    for _ in range(20):
        harness.append(b"x" * 1000)
        harness.end_turn()
    cursor = store.new_cursor()
    views = cursor.views_below_hw(0, 1, fail_on_wait)
    cursor.close()
    assert [each[5] for each in view_fields(views)] == [b"x" * 1000]
    assert len(views.shared_fields[0].data) < 1200


def test_view_of_a_large_record_holds_only_its_body(harness: Any) -> None:
    store = harness.create_log()
    harness.append(b"x" * 1000, b"y" * 300_000)
    harness.end_turn()
    views = store.new_cursor().views_below_hw(0, 1 << 20, fail_on_wait)
    assert [len(shared.data) for shared in views.shared_fields][-1] == 300_000


def test_damaged_batch_is_skipped(harness: Any) -> None:
    store = harness.create_log()
    for number in range(3):
        harness.append(b"%d" % number * 50)
        harness.end_turn()
    data = harness.log()
    data[data.index(b"1" * 50)] ^= 1
    assert [each[0] for each in all_views(store.new_cursor(), 0, 1 << 20)] == [0, 2]
    assert store.lost == [(1, 1)]


def large_batches(harness: Any, sizes: list[int]) -> list[bytes]:
    """Append a batch of each size. Return the bodies."""
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    for body in bodies:
        harness.append(body)
        harness.end_turn()
    return bodies


def test_large_batches_are_read_once(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first chunk each batch is read on its own, and no byte twice."""
    store = harness.create_log()
    bodies = large_batches(harness, [60_000] * 20)
    read: list[int] = []
    pread = harness.filesystem.pread

    def recording_pread(fd: int, size: int, position: int) -> bytes:
        read.append(size)
        return pread(fd, size, position)

    monkeypatch.setattr(harness.filesystem, "pread", recording_pread)
    assert [each[5] for each in all_views(store.new_cursor(), 0, 64 * 1024)] == bodies
    assert sum(read) < len(harness.log()) + CHUNK_SIZE
    assert max(read[1:]) < 61_000


@pytest.mark.parametrize("seed", range(5))
def test_views_of_large_and_small_batches(harness: Any, seed: int) -> None:
    chance = random.Random(seed)
    store = harness.create_log()
    bodies = large_batches(harness, [chance.choice((1, 1000, 15_000, 17_000, 64_000, 300_000)) for _ in range(100)])
    for size in (1, 64 * 1024, 1 << 20):
        assert [each[5] for each in all_views(store.new_cursor(), 0, size)] == bodies
    cursor = store.new_cursor()
    for offset in (50, 3, 99, 98, 0):
        assert [each[5] for each in all_views(cursor, offset, 64 * 1024)] == bodies[offset:]


@pytest.mark.parametrize("place", ["body", "end", "attributes", "length", "checksum", "count"])
def test_damaged_large_batch_loses_only_its_own_record(harness: Any, place: str) -> None:
    store = harness.create_log()
    large_batches(harness, [60_000] * 12)
    data = harness.log()
    start = len(data) // 12 * 8
    positions = {
        "body": 30_000,
        "end": len(data) // 12 - 1,
        "attributes": 22,
        "length": 10,
        "checksum": 18,
        "count": 60,
    }
    data[start + positions[place]] ^= 4
    assert [each[0] for each in all_views(store.new_cursor(), 0, 64 * 1024)] == [*range(8), *range(9, 12)]
    assert store.lost == [(8, 8)]


def test_views_end_at_the_end_of_a_batch(harness: Any) -> None:
    """The read stops at a batch boundary rather than take a small part of the next batch."""
    store = harness.create_log()
    for _ in range(4):
        harness.append(*[b"x" * 1000] * 60)
        harness.end_turn()
    cursor = store.new_cursor()
    size = 60 * (1000 + 3 + 64) + 100
    assert [cursor.views_below_hw(first, size, fail_on_wait).count for first in (0, 60, 120, 180)] == [60] * 4
    assert cursor.views_below_hw(0, 2 * size // 3, fail_on_wait).count < 60  # no batch ends there
    assert cursor.views_below_hw(0, 2 * size, fail_on_wait).count == 120
