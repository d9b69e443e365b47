"""The log of one queue, also on a disk that is full or fails."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.log import Log
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.queue_log import LogFailed


def failing(call: str, suffix: str, number: int, times: int = 1) -> Callable[[str, str], OSError | None]:
    """A fault that makes the first `times` such calls fail."""
    left = [times]

    def fault(name: str, path: str) -> OSError | None:
        if name == call and path.endswith(suffix) and left[0] > 0:
            left[0] -= 1
            return OSError(number, os.strerror(number), path)
        return None

    return fault


def test_append_sets_offset_counts_and_fields(house: Any) -> None:
    store = house.begin()
    source = b"HEAD\x10\x00\x02BODY-BYTES"
    route = RecordRoute(b"", b"tasks")
    assert store.append(route, source, 4, 7, 7, len(source), True) == 0
    assert store.append_parts(route, b"\x00\x00", b"", False) == 1
    assert (store.record_count, store.size_bytes, store.next_offset) == (2, 10, 2)
    first, second = store.cursor.read(0, 1000).records
    assert (first.body, first.properties, first.exchange, first.routing_key) == (
        b"BODY-BYTES",
        b"\x10\x00\x02",
        b"",
        b"tasks",
    )
    assert (first.persistent, second.persistent, second.body) == (True, False, b"")
    assert first.timestamp_ms == house.clock.now_ms
    store.ack(0, 10)
    assert (store.record_count, store.size_bytes) == (1, 0)
    assert store.cursor.read_one(0) is None
    assert store.cursor.read_one(1).offset == 1
    assert store.cursor.read_one(2) is None


def test_acking_twice_counts_once(house: Any) -> None:
    store = house.begin()
    house.append(b"a", b"b", b"c")
    house.turn()
    for offset in (1, 1, 0, 1):
        store.ack(offset)
    house.turn()
    assert store.record_count == 1
    store.ack(1)
    store.ack_range(0, 1)
    house.turn()
    assert store.record_count == 1
    assert house.offsets() == [2]


def test_read_is_limited_by_size(house: Any) -> None:
    house.begin()
    house.append(*(b"%d" % number * 50 for number in range(500)))
    house.turn()
    offset, seen = 0, []
    while records := house.store.cursor.read(offset, 1000).records:
        assert len(records) < 20
        seen += [record.offset for record in records]
        offset = seen[-1] + 1
    assert seen == list(range(500))
    assert house.store.cursor.read(100, 1).records[0].offset == 100
    assert house.store.cursor.read(37, 1).records[0].offset == 37


def test_first_append_creates_the_files(house: Any) -> None:
    store = house.begin()
    assert house.filesystem.listdir(house.directory) == []
    store.cursor.read(0, 100)
    house.turn()
    assert house.filesystem.listdir(house.directory) == []
    house.append(b"x")
    house.turn()
    assert set(house.filesystem.listdir(house.directory)) == {
        "00000000000000000000.log",
        "00000000000000000000.settled",
        "high-watermark",
        "leader-epoch-checkpoint",
        "queue.json",
    }
    assert house.store.high_watermark == 1


def test_full_disk_refuses_appends_until_space_is_free(house: Any) -> None:
    """Records that do not fit are cut off and reported. Acks are still written; appends work again with free space."""
    store = house.begin()
    house.append(*[b"x" * 1000] * 10)
    house.turn()
    house.filesystem.capacity = house.filesystem.used() + 70_000
    offsets = house.append(*[b"y" * 1000] * 200)
    house.commits.clear()
    house.turn()
    assert house.commits == [(2, [store])]
    ((first, last),) = store.take_failed_ranges()
    assert last == offsets[-1]
    assert first > offsets[0], "a whole batch fitted"
    assert not store.failed
    assert store.take_failed_ranges() == []
    assert store.record_count == first
    assert house.offsets() == list(range(first))
    house.filesystem.capacity = house.filesystem.used()  # not a byte is free
    store.ack(0)
    house.turn()
    assert store.record_count == first - 1
    again = house.again(house.filesystem.killed())
    assert again.record_count == first - 1, "the ack was written into the reserve"
    house.filesystem.capacity = None
    (offset,) = house.append(b"new")
    house.turn()
    assert house.commits[-1][1] == []
    assert house.offsets()[-1] == offset
    assert not house.filesystem.exists("/data/reserve")
    house.clock.now_ms += 2000
    house.append(b"newer")
    house.turn()
    assert house.filesystem.size("/data/reserve") == 1 << 20, "the reserve is made again when there is space"
    assert house.again().record_count == first + 1


def test_full_disk_undoes_a_transaction(house: Any) -> None:
    store = house.begin()
    house.append(b"before")
    house.turn()
    house.filesystem.capacity = house.filesystem.used() + 100_000
    store.begin_transaction()
    offsets = house.append(*[b"y" * 1000] * 200)
    store.end_transaction()
    house.turn()
    assert store.take_failed_ranges() == [(offsets[0], offsets[-1])], "the marker is not a message"
    assert house.bodies() == [b"before"]
    house.filesystem.capacity = None
    house.append(b"after")
    house.turn()
    house.again()
    assert house.bodies() == [b"before", b"after"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_permanent_write_error_fails_the_log(house: Any, number: int) -> None:
    store = house.begin()
    house.append(b"old")
    house.turn()
    house.filesystem.fault = failing("write", ".log", number)
    house.append(b"new")
    house.turn()
    assert house.commits[-1][1] == [store]
    assert store.failed
    assert store.take_failed_ranges() == [(1, 1)]
    assert house.bodies() == [b"old"]
    with pytest.raises(LogFailed):
        house.append(b"more")


def test_failed_sync_is_never_retried(house: Any) -> None:
    store = house.begin()
    other_id, other = house.storage.create_queue("v", "other", "/")
    house.append(b"old")
    other.append_parts(RecordRoute(b"", b"o"), b"", b"other", True)
    house.turn()
    house.filesystem.fault = failing("fdatasync", f"{house.queue_id}/00000000000000000000.log", errno.EIO)
    house.append(b"new")
    other.append_parts(RecordRoute(b"", b"o"), b"", b"other", True)
    house.turn()
    assert house.commits[-1] == (2, [store]), "the other queue is confirmed"
    assert store.failed
    assert not other.failed
    assert house.bodies() == [b"old"], "nothing behind the synced end is read"
    house.filesystem.calls.clear()
    store.ack(0)
    house.turn()
    other.append_parts(RecordRoute(b"", b"o"), b"", b"other", True)
    house.turn()
    synced = [path for name, path in house.filesystem.calls if name == "fdatasync"]
    assert not any(path.startswith(house.directory) for path in synced)
    assert any(other_id in path for path in synced)


def test_failed_directory_sync_confirms_nothing(house: Any) -> None:
    store = house.begin()
    house.filesystem.fault = failing("fsync_dir", house.queue_id, errno.EIO)
    house.append(b"new")
    house.turn()
    assert house.commits == [(1, [store])]
    assert store.failed


@pytest.mark.parametrize("errors_after", [True, False])
def test_failed_syncfs_fails_the_faulty_log_or_all(house: Any, errors_after: bool) -> None:
    house.begin()
    stores = [house.storage.create_queue("v", f"q{number}", "/")[1] for number in range(12)]
    for store in stores:
        store.append_parts(RecordRoute(b"", b"o"), b"", b"body", True)
    bad = stores[3].log.directory

    def fault(name: str, path: str) -> OSError | None:
        if name == "syncfs" or (errors_after and name == "fdatasync" and path.startswith(bad)):
            return OSError(errno.EIO, "no")
        return None

    house.filesystem.fault = fault
    house.turn()
    ((generation, failed),) = house.commits
    assert generation == 1
    assert set(failed) == ({stores[3]} if errors_after else set(stores))


def test_acked_segments_in_the_middle_are_removed(make_house: Callable[..., Any]) -> None:
    """An unacked message at the head keeps only its own segment. The others are removed, including the active one."""
    house = make_house(segment_size_bytes=10_000)
    store = house.begin()
    for _ in range(30):
        house.append(*[b"x" * 1000] * 5)
        house.turn()
    assert len(house.names(".log")) >= 15
    for offset in range(1, 150):
        store.ack(offset, 1000)
    for _ in range(3):
        house.turn()
        house.storage.commits.flush()
        house.loop()
    assert len(house.names(".log")) == 2
    assert len(house.names(".settled")) > 2, "they show that the removal was intended"
    again = house.again()
    assert (again.record_count, again.size_bytes, again.lost) == (1, 1000, [])
    assert house.offsets() == [0]
    again.ack(0, 1000)
    for _ in range(4):
        house.turn()
        house.storage.commits.flush()
        house.loop()
    assert len(house.names(".log")) == 1
    assert len(house.names(".settled")) <= 1
    assert house.append(b"new") == [150]


def test_settled_file_is_rewritten_when_it_has_grown(house: Any) -> None:
    """A message that is returned again and again does not fill the disk."""
    store = house.begin()
    house.append(b"poison", b"next")
    house.turn()
    largest = 0
    for count in range(1, 30_000):
        store.mark_returned(0, count)
        store.write()
        if count % 500 == 0:
            house.storage.commits.flush()
            house.loop()
            largest = max(largest, *(len(house.data(name)) for name in house.names(".settled")))
    store.ack(1)
    house.turn()
    house.storage.commits.flush()
    house.loop()
    assert largest < 600_000
    assert house.names(".swap") == []
    again = house.again()
    assert again.returned == {0: 29_999}
    assert again.record_count == 1


def test_kill_during_the_rewrite_of_a_settled_file(house: Any) -> None:
    store = house.begin()
    house.append(*[b"m"] * 40)
    house.turn()
    for count in range(1, 9000):
        store.mark_returned(0, count)
        store.write()
        if house.names(".swap"):
            break
    store.ack(5)
    store.write()
    assert house.names(".swap")
    again = house.again()
    assert again.record_count == 39
    assert again.returned[0] >= 8000
    assert house.names(".swap") == []


def append_large(house: Any, parts: list[bytes], persistent: bool = True) -> int:
    return house.store.append_large(
        RecordRoute(b"x", b"large"), b"\x10\x00\x02", parts, sum(len(part) for part in parts), persistent
    )


@pytest.mark.parametrize("count", [1, 3, 3000])
def test_large_message_is_written_in_parts(house: Any, count: int) -> None:
    """More parts than one writev takes, between small messages, are read after a kill with the right checksum."""
    house.begin()
    parts = [bytes([number & 0xFF]) * 300 for number in range(count)]
    assert house.append(b"one") == [0]
    assert append_large(house, parts) == 1
    assert house.append(b"two") == [2]
    assert append_large(house, parts[::-1], persistent=False) == 3
    assert house.store.record_count == 4
    house.turn()
    bodies = [b"one", b"".join(parts), b"two", b"".join(parts[::-1])]
    assert house.bodies() == bodies
    assert house.store.size_bytes == sum(map(len, bodies))
    house.again()
    assert house.bodies() == bodies[:3], "the transient message is dropped after a kill"
    record = house.store.cursor.read_one(1)
    assert (record.exchange, record.routing_key, record.properties) == (b"x", b"large", b"\x10\x00\x02")
    assert house.store.lost == []


def test_large_message_in_a_transaction(house: Any) -> None:
    store = house.begin()
    store.begin_transaction()
    house.append(b"one")
    append_large(house, [b"2" * 400_000, b"3" * 400_000])
    house.append(b"four")
    store.end_transaction()
    house.turn()
    house.again()
    assert house.bodies() == [b"one", b"2" * 400_000 + b"3" * 400_000, b"four"]


def test_large_message_on_a_full_disk_is_refused(house: Any) -> None:
    store = house.begin()
    house.append(b"old")
    house.turn()
    house.filesystem.capacity = house.filesystem.used() + 200_000
    append_large(house, [b"." * 300] * 3000)
    house.turn()
    assert store.take_failed_ranges() == [(1, 1)]
    assert not store.failed
    house.filesystem.capacity = None
    assert append_large(house, [b"!" * 300] * 3000) == 2
    house.turn()
    house.again()
    assert house.bodies() == [b"old", b"!" * 900_000]


def test_skip_older_acks_whole_batches(house: Any) -> None:
    """Messages up to a time are acked, except those that were acked before. Counts and bytes match, also after a
    restart.
    """
    store = house.begin()
    for turn in range(6):
        house.append(*[b"." * (turn + 1)] * 30)
        house.turn()
        house.clock.now_ms += 10
    began = house.clock.now_ms - 60
    store.ack(5, 1)
    store.ack(40, 2)
    house.turn()
    assert store.skip_older(0, began - 1, 1000, True) == (0, 0, 0)
    assert store.skip_older(0, began + 10, 1, True) == (30, 29, 29), "the requested count, up to the end of its batch"
    assert store.skip_older(30, began + 10, 1000, True) == (60, 29, 58)
    assert store.skip_older(60, began + 10, 1000, True) == (60, 0, 0)
    house.turn()
    assert (store.record_count, store.size_bytes) == (120, 30 * (3 + 4 + 5 + 6))
    first = store.cursor.read(60, 1).records
    assert [record.offset for record in first] == [60]
    offset, count, size = store.skip_older(61, began + 20, 1000, True)
    assert (offset, count, size) == (90, 29, 87), "the rest of a batch"
    house.turn()
    again = house.again()
    assert house.offsets() == [60, *range(90, 180)]
    assert (again.record_count, again.size_bytes) == (91, 3 + 30 * (4 + 5 + 6))
    house.append(b"open")
    assert again.skip_older(90, house.clock.now_ms, 1000, True) == (180, 90, 30 * 15), (
        "unwritten records are not skipped"
    )
    assert house.offsets(180) == [180]


def test_when_safe_fails_when_the_log_is_deleted(house: Any) -> None:
    store = house.begin()
    results: list[bool] = []
    house.append(b"a")
    store.when_safe(0, results.append)
    house.storage.delete_queue(store)
    assert results == [False]
    house.turn()
    assert results == [False]


def test_deleted_log_is_freed_by_reference_counting(house: Any) -> None:
    """The garbage collector finds reference cycles rarely or never, so a deleted log must have none."""
    house.begin()
    route = RecordRoute(b"", b"brief")
    gc.collect()
    gc.disable()
    try:
        before = len([each for each in gc.get_objects() if type(each) in (LocalLog, Log)])
        for _ in range(10):
            _, store = house.storage.create_queue("v", "brief", "/")
            store.append_parts(route, b"", b"x", True)
            house.turn()
            cursor = store.new_cursor()
            assert len(store.cursor.read(0, 100).records) == len(cursor.read(0, 100).records) == 1
            store.mark_delivered(0)
            store.ack(0, 1)
            house.storage.retire_queue(store, lambda: None)
            assert store.cursor.read(0, 100).records == []
            store.ack(0, 1)  # a late ack
            with pytest.raises(LogFailed):
                store.append_parts(route, b"", b"x", True)
            house.turn()
        del store, cursor
        assert len([each for each in gc.get_objects() if type(each) in (LocalLog, Log)]) == before
    finally:
        gc.enable()


def test_when_safe_fails_for_an_unwritten_record(house: Any) -> None:
    """The record is not reported as safe when the high watermark passes its offset."""
    store = house.begin()
    house.append(b"a")
    house.turn()
    results: list[tuple[int, bool]] = []
    house.append(b"b", b"c")
    for offset in (1, 2):
        store.when_safe(offset, lambda safe, offset=offset: results.append((offset, safe)))  # type: ignore[misc]
    house.filesystem.fault = failing("write", ".log", errno.ENOSPC, 9)
    house.turn()
    house.filesystem.fault = None
    assert store.take_failed_ranges() == [(1, 2)]
    assert results == [(1, False), (2, False)]
    assert house.append(b"d") == [3]
    store.when_safe(3, lambda safe: results.append((3, safe)))
    house.turn()
    assert results[2:] == [(3, True)]
