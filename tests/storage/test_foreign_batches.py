"""Batches that kafka-python built are appended unchanged, and kafka-python reads the log."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from foreign_batches import check_batches

from amqpd.storage.log.appender import BadBatch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

HEADERS = [("exchange", b"orders"), ("properties", b"\x10\x00\x02")]


def batch(*bodies: bytes, base: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for number, body in enumerate(bodies):
        builder.append(number, timestamp=1_700_000_000_000 + number, key=b"eu.new", value=body, headers=HEADERS)
    data = bytearray(builder.build())
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def test_appended_batches_change_only_their_offsets(harness: Any) -> None:
    store = harness.create_log()
    harness.append(b"ours")
    kafka_batches = batch(b"a", b"bb", base=500) + batch(b"ccc", base=7)
    assert store.appender.append_checked(check_batches(kafka_batches)) == 1
    assert harness.append(b"ours again") == [4]
    assert (store.record_count, store.size_bytes, store.next_offset) == (5, 20, 5)
    harness.end_turn()
    assert store.high_watermark == 5
    records = store.cursor.read(0, 1 << 20).records
    assert [(each.offset, each.body) for each in records] == [
        (0, b"ours"),
        (1, b"a"),
        (2, b"bb"),
        (3, b"ccc"),
        (4, b"ours again"),
    ]
    assert {each.exchange for each in records} == {b"orders"}
    file = bytes(harness.log())
    at = file.index(kafka_batches[21:80])  # the bytes from the checksum on
    assert file[at - 21 + 16 : at - 21 + 16 + 40] == kafka_batches[16:56]
    read = [record for each in _batches(file) for record in each]
    assert [record.offset for record in read] == [0, 1, 2, 3, 4]
    assert all(each.validate_crc() for each in _batches(file))


def _batches(data: bytes) -> list[DefaultRecordBatch]:
    records = MemoryRecords(data)
    found = []
    while (each := records.next_batch()) is not None:
        found.append(each)
    return found


def test_appended_batches_survive_a_kill_and_a_power_cut(harness: Any) -> None:
    store = harness.create_log()
    store.appender.append_checked(check_batches(batch(*[b"%d" % number for number in range(300)])))
    store.ack_range(0, 99)
    harness.end_turn()
    killed, cut = harness.filesystem.killed(), harness.filesystem.crashed(1)
    for image in (killed, cut):
        store = harness.restart(image)
        assert (store.record_count, store.next_offset) == (200, 300)
        assert harness.bodies() == [b"%d" % number for number in range(100, 300)]


def test_confirm_waits_for_appended_batches(harness: Any) -> None:
    store = harness.create_log()
    confirms: list[bool] = []
    store.appender.append_checked(check_batches(batch(b"a", b"b")))
    store.when_safe(1, confirms.append)
    assert confirms == []
    harness.end_turn()
    assert confirms == [True]
    store.when_safe(0, confirms.append)
    assert confirms == [True, True]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:],
        lambda data: data[:16] + b"\x01" + data[17:],
        lambda data: data[:26] + b"\x00" + data[27:],
        lambda data: data[:8] + (1 << 20).to_bytes(4, "big") + data[12:],
    ],
)
def test_one_damaged_batch_refuses_the_whole_append(harness: Any, damage: Any) -> None:
    store = harness.create_log()
    good = batch(b"a", b"b")
    with pytest.raises(BadBatch):
        store.appender.append_checked(check_batches(good + damage(batch(b"c", b"d"))))
    assert (store.next_offset, store.record_count) == (0, 0)
    assert store.appender.append_checked(check_batches(good)) == 0


def test_transactional_batches_are_refused(harness: Any) -> None:
    store = harness.create_log()
    transactional = bytearray(batch(b"a"))
    transactional[22] |= 0x10
    with pytest.raises(BadBatch, match="attributes"):
        store.appender.append_checked(check_batches(bytes(transactional)))
    store.begin_transaction()
    with pytest.raises(ValueError, match="transaction"):
        store.appender.append_checked(check_batches(batch(b"a")))
    store.end_transaction()


def test_append_of_no_bytes_appends_nothing(harness: Any) -> None:
    assert harness.create_log().appender.append_checked(check_batches(b"")) == 0


@pytest.mark.parametrize("views", [False, True])
def test_a_read_ends_after_the_headers_that_it_has_converted(harness: Any, views: bool) -> None:
    """Each counts for the limit, because records with thousands of headers hold up the event loop."""
    store = harness.create_log()
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 25)
    for number in range(10):
        headers = [(f"h{each}-{number}", None) for each in range(1000)]
        builder.append(number, timestamp=number + 1, key=b"k", value=b"%d" % number, headers=headers)
    store.appender.append_checked(check_batches(bytes(builder.build())))
    harness.end_turn()
    offset, counts = 0, []
    while offset < 10:
        if views:
            found = store.cursor.views_below_hw(offset, 1 << 20, lambda: None)
            counts.append(found.count)
        else:
            found = store.cursor.read(offset, 1 << 20)
            counts.append(len(found.records))
        offset = found.next_offset
    assert counts == [4, 4, 2]
