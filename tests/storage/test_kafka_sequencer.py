"""Batches for Kafka: the log closes them with sequence numbers, stores the same bytes and reads them itself."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_batches import check_batches

from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import ZSTD, BatchHeader
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.record import RecordRoute

ROUTE = RecordRoute(b"orders", b"eu.new")


def log_with_sequencer(harness: Any, sequence: int = 0) -> KafkaSequencer:
    log = harness.create_log()
    sequencer = KafkaSequencer(4711, 3, sequence)
    log.appender.replica = sequencer
    return sequencer


def headers(sequencer: KafkaSequencer) -> list[BatchHeader]:
    return [BatchHeader(batch.header, 0) for batch in sequencer.take()]


def test_batches_have_sequences_and_no_attributes(harness: Any) -> None:
    sequencer = log_with_sequencer(harness)
    harness.append(b"a", b"b")
    harness.end_turn()
    harness.append(b"c", persistent=False)
    harness.append(b"d")
    harness.end_turn()
    found = headers(sequencer)
    assert [(each.base_offset, each.base_sequence, each.count) for each in found] == [(0, 0, 2), (2, 2, 1), (3, 3, 1)]
    assert {each.attributes for each in found} == {0}
    assert {(each.producer_id, each.producer_epoch) for each in found} == {(4711, 3)}
    assert {each.base_timestamp_ms for each in found} == {each.max_timestamp_ms for each in found}
    assert sequencer.take() == []
    assert harness.bodies() == [b"a", b"b", b"c", b"d"]
    assert [record.timestamp_ms > 0 for record in harness.store.cursor.read(0, 1 << 20).records] == [True] * 4


def test_segment_has_the_same_bytes_as_kafka(harness: Any) -> None:
    sequencer = log_with_sequencer(harness)
    harness.store.appender.codec = ZSTD
    harness.append(*(b"all of them alike" for _ in range(100)))
    harness.end_turn()
    harness.store.append_large(ROUTE, b"\x10\x00\x02", [b"x" * 50_000, b"y" * 50_000], 100_000, True)
    harness.end_turn()
    taken = sequencer.take()
    assert bytes(harness.log()) == b"".join(part for each in taken for part in (each.header, each.records, *each.more))
    assert [BatchHeader(each.header, 0).attributes for each in taken] == [ZSTD, 0]
    assert [each.joins for each in taken] == [False, False]


def test_message_batches_may_be_joined(harness: Any) -> None:
    sequencer = log_with_sequencer(harness)
    harness.append(b"a")
    harness.end_turn()
    harness.append(b"b", b"")
    harness.end_turn()
    assert [each.joins for each in sequencer.take()] == [True, True]


def test_written_messages_survive_a_kill(harness: Any) -> None:
    log_with_sequencer(harness)
    harness.append(b"a", persistent=False)
    harness.append(b"b")
    harness.end_turn()
    harness.restart()
    assert harness.bodies() == [b"a", b"b"]


def test_sequence_restarts_behind_the_maximum(harness: Any) -> None:
    sequencer = log_with_sequencer(harness, 0x7FFF_FFFF - 1)
    for count in (3, 2):
        harness.append(*(b"x" for _ in range(count)))
        harness.end_turn()
    assert [each.base_sequence for each in headers(sequencer)] == [0x7FFF_FFFF - 1, 1]
    assert sequencer.sequence == 3


def make_transaction(count: int) -> PreparedTransaction:
    transaction = PreparedTransaction()
    for _ in range(count):
        transaction.append(ROUTE, b"\x10\x00\x02body", 0, 3, 3, 7, True)
    transaction.close()
    return transaction


def test_transaction_is_one_batch(harness: Any) -> None:
    sequencer = log_with_sequencer(harness)
    assert harness.store.append_prepared(make_transaction(64)) == 0
    harness.end_turn()
    (header,) = headers(sequencer)
    assert (header.attributes, header.count, header.base_sequence) == (0, 64, 0)
    with pytest.raises(ValueError, match="one batch"):
        harness.store.append_prepared(make_transaction(65))


def test_foreign_batches_are_refused(harness: Any, kafka_batch: Any) -> None:
    log_with_sequencer(harness)
    with pytest.raises(ValueError, match="batches of other programs"):
        harness.store.appender.append_checked(check_batches(kafka_batch(0, [(1, b"x")], [])))
