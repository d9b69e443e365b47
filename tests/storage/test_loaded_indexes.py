"""Indexes of sealed segments: look-ups load them, and only the last ones stay in memory."""

from __future__ import annotations

from typing import Any

from amqpd.storage.log.record import RecordRoute
from amqpd.storage.log.segment import Segment
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy


def is_loaded(segment: Segment) -> bool:
    return segment._index is not None or segment._times is not None


def look_up(harness: Any, segment: Segment) -> None:
    """Read a message in the middle, by offset and by time."""
    offset = (segment.base + segment.end) // 2
    cursor = harness.store.new_cursor()
    (record,) = cursor.read(offset, 1).records
    assert record.offset == offset
    found = cursor.find_time_below_hw(segment.base, record.timestamp_ms, 1 << 20, lambda: None)
    assert segment.base <= found.offset <= offset
    cursor.close()


def filled(make_harness: Any) -> Any:
    """Return a log with some 60 segments."""
    harness = make_harness(segment_size_bytes=1 << 16)
    harness.create_log()
    for _ in range(600):
        harness.clock.now_ms += 10
        harness.append(*(b"." * 500 for _ in range(10)))
        harness.end_turn()
    assert len(harness.store.log.segments) > 40
    return harness


def test_look_ups_keep_the_last_indexes_in_memory(make_harness: Any) -> None:
    harness = filled(make_harness)
    harness.filesystem.indexes.bytes_max = 1000
    segments = harness.store.log.segments[:-1]
    for segment in [*segments, *segments]:
        look_up(harness, segment)
        segment.times()
    loaded = [each for each in segments if is_loaded(each)]
    assert loaded == segments[-len(loaded) :]
    assert 1 <= len(loaded) < 10
    assert harness.filesystem.indexes._bytes <= 1000


def test_index_above_the_limit_is_used(make_harness: Any) -> None:
    harness = filled(make_harness)
    harness.filesystem.indexes.bytes_max = 1
    for segment in harness.store.log.segments:
        look_up(harness, segment)
    assert sum(map(is_loaded, harness.store.log.segments[:-1])) == 1


def test_deleted_log_leaves_no_indexes(make_harness: Any) -> None:
    harness = filled(make_harness)
    for segment in harness.store.log.segments:
        look_up(harness, segment)
    indexes = harness.filesystem.indexes
    assert len(indexes._sizes) > 40
    assert harness.store.release_files()
    assert not indexes._sizes
    assert indexes._bytes == 0
    for segment in harness.store.log.segments:
        look_up(harness, segment)
    harness.storage.delete_queue(harness.store)
    assert not indexes._sizes
    assert indexes._bytes == 0


def test_sealed_segments_that_recovery_has_scanned_keep_no_indexes(make_harness: Any) -> None:
    harness = filled(make_harness)
    store = harness.restart(strict=True)
    assert not any(map(is_loaded, store.log.segments[:-1]))
    assert is_loaded(store.log.segments[-1])
    for segment in store.log.segments[:-1]:
        look_up(harness, segment)


def test_compacted_segments_keep_no_indexes(make_harness: Any) -> None:
    harness = make_harness(segment_size_bytes=1 << 16)
    harness.create_log()
    harness.storage.set_policy(harness.store, RetentionPolicy(compaction=CleanerPolicy()))
    for number in range(3000):
        route = RecordRoute(b"events", b"k%d" % (number // 2))
        harness.store.append_parts(route, b"\x10\x00\x02", b"." * 500, True)
        if number % 10 == 9:
            harness.clock.now_ms += 10
            harness.end_turn()
    harness.storage.maintain()
    harness.run_callbacks()
    harness.storage.commits.flush()
    harness.run_callbacks()
    segments = harness.store.log.segments
    assert harness.names(".deleted")
    assert len(segments) > 20
    assert not any(map(is_loaded, segments[:-1]))
    for segment in segments:
        offset = segment.end - 1
        assert [each.offset for each in harness.store.cursor.read(offset, 1).records] == [offset]
