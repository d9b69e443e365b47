"""Whole batches of a log as bytes, as consumers of Kafka's protocol get them, and the first record of a time."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from foreign_batches import check_batches

from amqpd._build import is_compiled
from amqpd.storage.log import record as records_module
from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader
from amqpd.storage.queue_log import BatchBytes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.memory_records import MemoryRecords

ALL = 1 << 40
HEADERS = [("exchange", b"orders"), ("properties", b"\x10\x00\x02")]


def never() -> None:
    raise AssertionError("the disk was asked")


def read(harness: Any, offset: int = 0, size: int = ALL, one: bool = True) -> BatchBytes:
    result: BatchBytes = harness.store.new_cursor().batches_below_hw(offset, size, one, never)
    return result


def offsets(found: BatchBytes) -> list[int]:
    """Return the offsets that kafka-python reads in the batches, after it checked them."""
    batches = MemoryRecords(b"".join(found.parts))
    result = []
    while batches.has_next():
        each = batches.next_batch()
        assert each.validate_crc()
        result += [record.offset for record in each]
    return result


def heads(found: BatchBytes) -> list[tuple[int, int]]:
    """Return the first and last offset of each batch."""
    headers = [BatchHeader(part, 0) for part in found.parts]
    return [(header.base_offset, header.last_offset) for header in headers]


def fill(harness: Any, count: int, size: int = 100) -> None:
    """Append a batch per turn."""
    for number in range(count):
        harness.append(b"%d" % number * size)
        harness.end_turn()


def test_batches_below_the_high_watermark_are_returned_whole(harness: Any) -> None:
    harness.create_log()
    harness.append(b"a", b"b", b"c")
    harness.end_turn()
    harness.append(b"d")
    for offset in (0, 1, 2):
        found = read(harness, offset)
        assert (heads(found), found.next_offset, found.is_full, found.waiting) == ([(0, 2)], 3, False, False)
    assert read(harness, 3).parts == []
    harness.end_turn()
    assert heads(read(harness, 2)) == [(0, 2), (3, 3)]


def test_a_limit_ends_before_the_batch_that_does_not_fit_and_the_next_read_returns_it(harness: Any) -> None:
    store = harness.create_log()
    fill(harness, 10)
    cursor = store.new_cursor()
    size = read(harness).size_bytes // 10
    seen: list[tuple[int, int]] = []
    offset = 0
    while offset < 10:
        found = cursor.batches_below_hw(offset, 3 * size + 20, True, never)
        assert found.size_bytes <= 3 * size + 20
        assert found.is_full or found.next_offset == 10
        seen += heads(found)
        offset = found.next_offset
    assert seen == [(number, number) for number in range(10)]


def test_the_first_batch_is_returned_in_spite_of_the_limit_only_if_wanted(harness: Any) -> None:
    harness.create_log()
    fill(harness, 2)
    assert heads(read(harness, 0, 1)) == [(0, 0)]
    found = read(harness, 0, 1, one=False)
    assert (found.parts, found.is_full, found.next_offset) == ([], True, 0)


def test_a_batch_larger_than_a_chunk_is_returned(harness: Any) -> None:
    harness.create_log()
    harness.append(bytes(3 << 20))
    harness.end_turn()
    fill(harness, 1)
    assert offsets(read(harness)) == [0, 1]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_of_other_producers_are_returned_as_they_are(harness: Any, kafka_batch: Any, codec: int) -> None:
    store = harness.create_log()
    harness.append(b"ours")
    foreign = kafka_batch(codec, [(1000 + number, b"same " * 100) for number in range(5)], HEADERS)
    store.appender.append_checked(check_batches(foreign))
    harness.end_turn()
    found = read(harness)
    assert found.parts[1][21:] == foreign[21:]
    assert offsets(found) == [0, 1, 2, 3, 4, 5]


@pytest.mark.skipif(is_compiled(), reason="methods of compiled classes cannot be replaced")
def test_no_record_is_decoded(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_log()
    fill(harness, 50)
    made: list[object] = []
    monkeypatch.setattr(records_module.Record, "__init__", lambda *_: made.append(1))
    monkeypatch.setattr(records_module.RecordDecoder, "read", lambda *_: made.append(1))
    monkeypatch.setattr(records_module.RecordDecoder, "read_view", lambda *_: made.append(1))
    assert len(read(harness).parts) == 50
    assert made == []


def test_transient_batches_are_returned_until_a_restart(harness: Any) -> None:
    store = harness.create_log()
    harness.append(b"kept")
    harness.append(b"transient", persistent=False)
    harness.append(b"kept")
    harness.end_turn()
    assert offsets(read(harness)) == [0, 1, 2]
    store = harness.restart()
    harness.end_turn()
    assert store.high_watermark == 3
    assert offsets(read(harness)) == [0, 2]


def test_removed_segments_are_skipped(harness: Any) -> None:
    store = harness.create_log()
    fill(harness, 3)
    store.log.roll()
    fill(harness, 3)
    cursor = store.new_cursor()
    assert heads(cursor.batches_below_hw(0, 1, True, never)) == [(0, 0)]
    assert store.log_start() == 0
    store.ack_range(0, 2)
    harness.end_turn()
    assert heads(cursor.batches_below_hw(1, ALL, True, never)) == [(3, 3), (4, 4), (5, 5)]
    assert store.log_start() == 3


def test_a_damaged_batch_is_skipped_and_reported(harness: Any) -> None:
    store = harness.create_log()
    fill(harness, 5)
    third = int(read(harness).size_bytes) // 5 * 2
    log = harness.log()
    log[third + int(HEADER_SIZE) + 20] ^= 1
    assert offsets(read(harness)) == [0, 1, 3, 4]
    assert store.lost == [(2, 2)]


def test_a_time_is_found_in_the_records_of_other_producers(harness: Any, kafka_batch: Any) -> None:
    store = harness.create_log()
    for codec in (0, 4):
        first = 1_000 + 100 * codec
        store.appender.append_checked(
            check_batches(kafka_batch(codec, [(first + 10 * number, b"same " * 50) for number in range(5)], HEADERS))
        )
    harness.end_turn()
    cursor = store.new_cursor()
    for wanted, offset, found_ms in ((0, 0, 1000), (1011, 2, 1020), (1041, 5, 1400), (1440, 9, 1440)):
        found = cursor.find_time_below_hw(0, wanted, 100, never)
        assert (found.offset, found.timestamp_ms, found.next_offset) == (offset, found_ms, -1)
    assert cursor.find_time_below_hw(0, 1441, 100, never).offset == -1
    assert store.latest_time_ms() == 1440


def test_a_search_pauses_after_so_many_batches(harness: Any) -> None:
    store = harness.create_log()
    fill(harness, 10)
    cursor = store.new_cursor()
    found = cursor.find_time_below_hw(0, 1 << 60, 4, never)
    assert (found.offset, found.next_offset, found.waiting) == (-1, 4, False)
    found = cursor.find_time_below_hw(4, 1 << 60, 100, never)
    assert (found.offset, found.next_offset) == (-1, -1)
