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


def test_append_sets_offset_counts_and_fields(harness: Any) -> None:
    store = harness.create_log()
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
    assert first.timestamp_ms == harness.clock.now_ms
    store.ack(0, 10)
    assert (store.record_count, store.size_bytes) == (1, 0)
    assert store.cursor.read_one(0) is None
    assert store.cursor.read_one(1).offset == 1
    assert store.cursor.read_one(2) is None


def test_acking_twice_counts_once(harness: Any) -> None:
    store = harness.create_log()
    harness.append(b"a", b"b", b"c")
    harness.end_turn()
    for offset in (1, 1, 0, 1):
        store.ack(offset)
    harness.end_turn()
    assert store.record_count == 1
    store.ack(1)
    store.ack_range(0, 1)
    harness.end_turn()
    assert store.record_count == 1
    assert harness.offsets() == [2]


def test_read_is_limited_by_size(harness: Any) -> None:
    harness.create_log()
    harness.append(*(b"%d" % number * 50 for number in range(500)))
    harness.end_turn()
    offset, seen = 0, []
    while records := harness.store.cursor.read(offset, 1000).records:
        assert len(records) < 20
        seen += [record.offset for record in records]
        offset = seen[-1] + 1
    assert seen == list(range(500))
    assert harness.store.cursor.read(100, 1).records[0].offset == 100
    assert harness.store.cursor.read(37, 1).records[0].offset == 37


def test_first_append_creates_the_files(harness: Any) -> None:
    store = harness.create_log()
    assert harness.filesystem.listdir(harness.directory) == []
    store.cursor.read(0, 100)
    harness.end_turn()
    assert harness.filesystem.listdir(harness.directory) == []
    harness.append(b"x")
    harness.end_turn()
    assert set(harness.filesystem.listdir(harness.directory)) == {
        "00000000000000000000.log",
        "00000000000000000000.settled",
        "high-watermark",
        "leader-epoch-checkpoint",
        "queue.json",
    }
    assert harness.store.high_watermark == 1


def test_full_disk_refuses_appends_until_space_is_free(harness: Any) -> None:
    """Records that do not fit are cut off and reported. Acks are still written; appends work again with free space."""
    store = harness.create_log()
    harness.append(*[b"x" * 1000] * 10)
    harness.end_turn()
    harness.filesystem.capacity = harness.filesystem.used() + 70_000
    offsets = harness.append(*[b"y" * 1000] * 200)
    harness.commits.clear()
    harness.end_turn()
    assert harness.commits == [(2, [store])]
    ((first, last),) = store.take_failed_ranges()
    assert last == offsets[-1]
    assert first > offsets[0], "a whole batch fitted"
    assert not store.failed
    assert store.take_failed_ranges() == []
    assert store.record_count == first
    assert harness.offsets() == list(range(first))
    harness.filesystem.capacity = harness.filesystem.used()  # not a byte is free
    store.ack(0)
    harness.end_turn()
    assert store.record_count == first - 1
    restarted = harness.restart(harness.filesystem.killed())
    assert restarted.record_count == first - 1, "the ack was written into the reserve"
    harness.filesystem.capacity = None
    (offset,) = harness.append(b"new")
    harness.end_turn()
    assert harness.commits[-1][1] == []
    assert harness.offsets()[-1] == offset
    assert not harness.filesystem.exists("/data/reserve")
    harness.clock.now_ms += 2000
    harness.append(b"newer")
    harness.end_turn()
    assert harness.filesystem.size("/data/reserve") == 1 << 20, "the reserve is made again when there is space"
    assert harness.restart().record_count == first + 1


def test_full_disk_undoes_a_transaction(harness: Any) -> None:
    store = harness.create_log()
    harness.append(b"before")
    harness.end_turn()
    harness.filesystem.capacity = harness.filesystem.used() + 100_000
    store.begin_transaction()
    offsets = harness.append(*[b"y" * 1000] * 200)
    store.end_transaction()
    harness.end_turn()
    assert store.take_failed_ranges() == [(offsets[0], offsets[-1])], "the marker is not a message"
    assert harness.bodies() == [b"before"]
    harness.filesystem.capacity = None
    harness.append(b"after")
    harness.end_turn()
    harness.restart()
    assert harness.bodies() == [b"before", b"after"]


def test_transaction_in_two_segments_is_undone(make_harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of the first segment cannot be written again either. Its file is cut nevertheless."""
    monkeypatch.setattr("amqpd.storage.log.writer.POSITION_MAX", 30_000)
    harness = make_harness(segment_size_bytes=10_000)
    store = harness.create_log()
    harness.append(b"before")
    harness.end_turn()
    size = len(harness.log())

    def full(name: str, path: str) -> OSError | None:
        is_second = path.endswith(".log") and not path.endswith(f"{0:020d}.log")
        return OSError(errno.ENOSPC, "full") if name == "write" and (is_second or path.endswith(".swap")) else None

    harness.filesystem.fault = full
    store.begin_transaction()
    offsets = harness.append(*[b"y" * 100] * 640)
    store.end_transaction()
    harness.end_turn()
    harness.filesystem.fault = None
    assert store.take_failed_ranges() == [(offsets[0], offsets[-1])]
    assert harness.bodies() == [b"before"]
    assert len(harness.log(0)) == size
    harness.append(b"after")
    harness.end_turn()
    assert harness.bodies() == [b"before", b"after"]
    store = harness.restart(strict=True)
    assert harness.bodies() == [b"before", b"after"]
    assert store.lost == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_permanent_write_error_fails_the_log(harness: Any, number: int) -> None:
    store = harness.create_log()
    harness.append(b"old")
    harness.end_turn()
    harness.filesystem.fault = failing("write", ".log", number)
    harness.append(b"new")
    harness.end_turn()
    assert harness.commits[-1][1] == [store]
    assert store.failed
    assert store.take_failed_ranges() == [(1, 1)]
    assert harness.bodies() == [b"old"]
    with pytest.raises(LogFailed):
        harness.append(b"more")


def test_failed_sync_is_never_retried(harness: Any) -> None:
    store = harness.create_log()
    other_id, other = harness.storage.create_queue("v", "other", "/")
    harness.append(b"old")
    other.append_parts(RecordRoute(b"", b"o"), b"", b"other", True)
    harness.end_turn()
    harness.filesystem.fault = failing("fdatasync", f"{harness.queue_id}/00000000000000000000.log", errno.EIO)
    harness.append(b"new")
    other.append_parts(RecordRoute(b"", b"o"), b"", b"other", True)
    harness.end_turn()
    assert harness.commits[-1] == (2, [store]), "the other queue is confirmed"
    assert store.failed
    assert not other.failed
    assert harness.bodies() == [b"old"], "nothing behind the synced end is read"
    harness.filesystem.calls.clear()
    store.ack(0)
    harness.end_turn()
    other.append_parts(RecordRoute(b"", b"o"), b"", b"other", True)
    harness.end_turn()
    synced = [path for name, path in harness.filesystem.calls if name == "fdatasync"]
    assert not any(path.startswith(harness.directory) for path in synced)
    assert any(other_id in path for path in synced)


def test_failed_directory_sync_confirms_nothing(harness: Any) -> None:
    store = harness.create_log()
    harness.filesystem.fault = failing("fsync_dir", harness.queue_id, errno.EIO)
    harness.append(b"new")
    harness.end_turn()
    assert harness.commits == [(1, [store])]
    assert store.failed


@pytest.mark.parametrize("errors_after", [True, False])
def test_failed_syncfs_fails_the_faulty_log_or_all(harness: Any, errors_after: bool) -> None:
    harness.create_log()
    stores = [harness.storage.create_queue("v", f"q{number}", "/")[1] for number in range(12)]
    for store in stores:
        store.append_parts(RecordRoute(b"", b"o"), b"", b"body", True)
    bad = stores[3].log.directory

    def fault(name: str, path: str) -> OSError | None:
        if name == "syncfs" or (errors_after and name == "fdatasync" and path.startswith(bad)):
            return OSError(errno.EIO, "no")
        return None

    harness.filesystem.fault = fault
    harness.end_turn()
    ((generation, failed),) = harness.commits
    assert generation == 1
    assert set(failed) == ({stores[3]} if errors_after else set(stores))


def test_acked_segments_in_the_middle_are_removed(make_harness: Callable[..., Any]) -> None:
    """An unacked message at the head keeps only its own segment. The others are removed, including the active one."""
    harness = make_harness(segment_size_bytes=10_000)
    store = harness.create_log()
    for _ in range(30):
        harness.append(*[b"x" * 1000] * 5)
        harness.end_turn()
    assert len(harness.names(".log")) >= 15
    for offset in range(1, 150):
        store.ack(offset, 1000)
    for _ in range(3):
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()
    assert len(harness.names(".log")) == 2
    assert len(harness.names(".settled")) > 2, "they show that the removal was intended"
    restarted = harness.restart()
    assert (restarted.record_count, restarted.size_bytes, restarted.lost) == (1, 1000, [])
    assert harness.offsets() == [0]
    restarted.ack(0, 1000)
    for _ in range(4):
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()
    assert len(harness.names(".log")) == 1
    assert len(harness.names(".settled")) <= 1
    assert harness.append(b"new") == [150]


def test_settled_file_is_rewritten_when_it_has_grown(harness: Any) -> None:
    """A message that is returned again and again does not fill the disk."""
    store = harness.create_log()
    harness.append(b"poison", b"next")
    harness.end_turn()
    largest = 0
    for count in range(1, 30_000):
        store.mark_returned(0, count)
        store.write()
        if count % 500 == 0:
            harness.storage.commits.flush()
            harness.run_callbacks()
            largest = max(largest, *(len(harness.data(name)) for name in harness.names(".settled")))
    store.ack(1)
    harness.end_turn()
    harness.storage.commits.flush()
    harness.run_callbacks()
    assert largest < 600_000
    assert harness.names(".swap") == []
    restarted = harness.restart()
    assert restarted.returned == {0: 29_999}
    assert restarted.record_count == 1


def test_kill_during_the_rewrite_of_a_settled_file(harness: Any) -> None:
    store = harness.create_log()
    harness.append(*[b"m"] * 40)
    harness.end_turn()
    for count in range(1, 9000):
        store.mark_returned(0, count)
        store.write()
        if harness.names(".swap"):
            break
    store.ack(5)
    store.write()
    assert harness.names(".swap")
    restarted = harness.restart()
    assert restarted.record_count == 39
    assert restarted.returned[0] >= 8000
    assert harness.names(".swap") == []


def append_large(harness: Any, parts: list[bytes], persistent: bool = True) -> int:
    return harness.store.append_large(
        RecordRoute(b"x", b"large"), b"\x10\x00\x02", parts, sum(len(part) for part in parts), persistent
    )


@pytest.mark.parametrize("count", [1, 3, 3000])
def test_large_message_is_written_in_parts(harness: Any, count: int) -> None:
    """More parts than one writev takes, between small messages, are read after a kill with the right checksum."""
    harness.create_log()
    parts = [bytes([number & 0xFF]) * 300 for number in range(count)]
    assert harness.append(b"one") == [0]
    assert append_large(harness, parts) == 1
    assert harness.append(b"two") == [2]
    assert append_large(harness, parts[::-1], persistent=False) == 3
    assert harness.store.record_count == 4
    harness.end_turn()
    bodies = [b"one", b"".join(parts), b"two", b"".join(parts[::-1])]
    assert harness.bodies() == bodies
    assert harness.store.size_bytes == sum(map(len, bodies))
    harness.restart()
    assert harness.bodies() == bodies[:3], "the transient message is dropped after a kill"
    record = harness.store.cursor.read_one(1)
    assert (record.exchange, record.routing_key, record.properties) == (b"x", b"large", b"\x10\x00\x02")
    assert harness.store.lost == []


def test_large_message_in_a_transaction(harness: Any) -> None:
    store = harness.create_log()
    store.begin_transaction()
    harness.append(b"one")
    append_large(harness, [b"2" * 400_000, b"3" * 400_000])
    harness.append(b"four")
    store.end_transaction()
    harness.end_turn()
    harness.restart()
    assert harness.bodies() == [b"one", b"2" * 400_000 + b"3" * 400_000, b"four"]


def test_large_message_on_a_full_disk_is_refused(harness: Any) -> None:
    store = harness.create_log()
    harness.append(b"old")
    harness.end_turn()
    harness.filesystem.capacity = harness.filesystem.used() + 200_000
    append_large(harness, [b"." * 300] * 3000)
    harness.end_turn()
    assert store.take_failed_ranges() == [(1, 1)]
    assert not store.failed
    harness.filesystem.capacity = None
    assert append_large(harness, [b"!" * 300] * 3000) == 2
    harness.end_turn()
    harness.restart()
    assert harness.bodies() == [b"old", b"!" * 900_000]


def test_skip_older_acks_whole_batches(harness: Any) -> None:
    """Messages up to a time are acked, except those that were acked before. Counts and bytes match, also after a
    restart.
    """
    store = harness.create_log()
    for turn in range(6):
        harness.append(*[b"." * (turn + 1)] * 30)
        harness.end_turn()
        harness.clock.now_ms += 10
    began = harness.clock.now_ms - 60
    store.ack(5, 1)
    store.ack(40, 2)
    harness.end_turn()
    assert store.skip_older(0, began - 1, 1000, True) == (0, 0, 0)
    assert store.skip_older(0, began + 10, 1, True) == (30, 29, 29), "the requested count, up to the end of its batch"
    assert store.skip_older(30, began + 10, 1000, True) == (60, 29, 58)
    assert store.skip_older(60, began + 10, 1000, True) == (60, 0, 0)
    harness.end_turn()
    assert (store.record_count, store.size_bytes) == (120, 30 * (3 + 4 + 5 + 6))
    first = store.cursor.read(60, 1).records
    assert [record.offset for record in first] == [60]
    offset, count, size = store.skip_older(61, began + 20, 1000, True)
    assert (offset, count, size) == (90, 29, 87), "the rest of a batch"
    harness.end_turn()
    restarted = harness.restart()
    assert harness.offsets() == [60, *range(90, 180)]
    assert (restarted.record_count, restarted.size_bytes) == (91, 3 + 30 * (4 + 5 + 6))
    harness.append(b"open")
    assert restarted.skip_older(90, harness.clock.now_ms, 1000, True) == (180, 90, 30 * 15), (
        "unwritten records are not skipped"
    )
    assert harness.offsets(180) == [180]


def test_when_safe_fails_when_the_log_is_deleted(harness: Any) -> None:
    store = harness.create_log()
    results: list[bool] = []
    harness.append(b"a")
    store.when_safe(0, results.append)
    harness.storage.delete_queue(store)
    assert results == [False]
    harness.end_turn()
    assert results == [False]


def test_deleted_log_is_freed_by_reference_counting(harness: Any) -> None:
    """The garbage collector finds reference cycles rarely or never, so a deleted log must have none."""
    harness.create_log()
    route = RecordRoute(b"", b"brief")
    gc.collect()
    gc.disable()
    try:
        before = len([each for each in gc.get_objects() if type(each) in (LocalLog, Log)])
        for _ in range(10):
            _, store = harness.storage.create_queue("v", "brief", "/")
            store.append_parts(route, b"", b"x", True)
            harness.end_turn()
            cursor = store.new_cursor()
            assert len(store.cursor.read(0, 100).records) == len(cursor.read(0, 100).records) == 1
            store.mark_delivered(0)
            store.ack(0, 1)
            harness.storage.retire_queue(store, lambda: None)
            assert store.cursor.read(0, 100).records == []
            store.ack(0, 1)  # a late ack
            with pytest.raises(LogFailed):
                store.append_parts(route, b"", b"x", True)
            harness.end_turn()
        del store, cursor
        assert len([each for each in gc.get_objects() if type(each) in (LocalLog, Log)]) == before
    finally:
        gc.enable()


def test_when_safe_fails_for_an_unwritten_record(harness: Any) -> None:
    """The record is not reported as safe when the high watermark passes its offset."""
    store = harness.create_log()
    harness.append(b"a")
    harness.end_turn()
    results: list[tuple[int, bool]] = []
    harness.append(b"b", b"c")
    for offset in (1, 2):
        store.when_safe(offset, lambda safe, offset=offset: results.append((offset, safe)))  # type: ignore[misc]
    harness.filesystem.fault = failing("write", ".log", errno.ENOSPC, 9)
    harness.end_turn()
    harness.filesystem.fault = None
    assert store.take_failed_ranges() == [(1, 2)]
    assert results == [(1, False), (2, False)]
    assert harness.append(b"d") == [3]
    store.when_safe(3, lambda safe: results.append((3, safe)))
    harness.end_turn()
    assert results[2:] == [(3, True)]


def test_append_that_a_read_could_not_write_fails_its_own_group(harness: Any) -> None:
    """A read writes the appends of its turn. If the disk is full then, and the end of a sync submits the group of an
    earlier turn before this turn ends, the group of this turn must fail. Other groups are stored and must not fail,
    also if each is submitted while another turn runs.
    """
    store = harness.create_log()
    commits = harness.storage.commits
    harness.append(b"synced")
    commits.end_of_turn()
    harness.append(b"gathered")
    commits.end_of_turn()
    harness.filesystem.capacity = harness.filesystem.used()
    harness.append(b"refused")
    assert harness.bodies() == [b"synced", b"gathered"]
    harness.filesystem.capacity = None
    failed_generation = commits.generation + 1
    for body in (b"next", b"last"):
        function, arguments = harness.posted.pop(0)
        function(*arguments)  # the end of a sync
        commits.end_of_turn()
        harness.append(body)
    harness.end_turn()
    assert store.take_failed_ranges() == [(2, 2)]
    assert harness.bodies() == [b"synced", b"gathered", b"next", b"last"]
    assert [(number, logs) for number, logs in harness.commits if logs] == [(failed_generation, [store])]
