"""How a log closes its batches that Kafka is to have as they are, and that it reads them itself."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import ZSTD, BatchHeader
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.record import RecordRoute

ROUTE = RecordRoute(b"orders", b"eu.new")


def begun(house: Any, sequence: int = 0) -> KafkaSequencer:
    log = house.begin()
    replica = KafkaSequencer(4711, 3, sequence)
    log.appender.replica = replica
    return replica


def headers(replica: KafkaSequencer) -> list[BatchHeader]:
    return [BatchHeader(batch.header, 0) for batch in replica.take()]


def test_numbered_through_and_with_no_attribute(house: Any) -> None:
    replica = begun(house)
    house.append(b"a", b"b")
    house.turn()
    house.append(b"c", persistent=False)
    house.append(b"d")
    house.turn()
    found = headers(replica)
    assert [(each.base_offset, each.base_sequence, each.count) for each in found] == [(0, 0, 2), (2, 2, 1), (3, 3, 1)]
    assert {each.attributes for each in found} == {0}
    assert {(each.producer_id, each.producer_epoch) for each in found} == {(4711, 3)}
    assert {each.base_timestamp_ms for each in found} == {each.max_timestamp_ms for each in found}
    assert replica.take() == []
    assert house.bodies() == [b"a", b"b", b"c", b"d"]
    assert [record.timestamp_ms > 0 for record in house.store.cursor.read(0, 1 << 20).records] == [True] * 4


def test_the_segment_has_the_same_bytes(house: Any) -> None:
    replica = begun(house)
    house.store.appender.codec = ZSTD
    house.append(*(b"all of them alike" for _ in range(100)))
    house.turn()
    house.store.append_large(ROUTE, b"\x10\x00\x02", [b"x" * 50_000, b"y" * 50_000], 100_000, True)
    house.turn()
    taken = replica.take()
    assert bytes(house.log()) == b"".join(part for each in taken for part in (each.header, each.records, *each.more))
    assert [BatchHeader(each.header, 0).attributes for each in taken] == [ZSTD, 0]
    assert [each.joins for each in taken] == [False, False]


def test_messages_may_go_with_their_neighbours(house: Any) -> None:
    replica = begun(house)
    house.append(b"a")
    house.turn()
    house.append(b"b", b"")
    house.turn()
    assert [each.joins for each in replica.take()] == [True, True]


def test_what_is_written_is_there_after_a_kill(house: Any) -> None:
    begun(house)
    house.append(b"a", persistent=False)
    house.append(b"b")
    house.turn()
    house.again()
    assert house.bodies() == [b"a", b"b"]


def test_sequences_begin_again_behind_the_last(house: Any) -> None:
    replica = begun(house, 0x7FFF_FFFF - 1)
    for count in (3, 2):
        house.append(*(b"x" for _ in range(count)))
        house.turn()
    assert [each.base_sequence for each in headers(replica)] == [0x7FFF_FFFF - 1, 1]
    assert replica.sequence == 3


def prepared(count: int) -> PreparedTransaction:
    made = PreparedTransaction()
    for _ in range(count):
        made.append(ROUTE, b"\x10\x00\x02body", 0, 3, 3, 7, True)
    made.close()
    return made


def test_a_transaction_is_one_batch(house: Any) -> None:
    replica = begun(house)
    assert house.store.append_prepared(prepared(64)) == 0
    house.turn()
    (header,) = headers(replica)
    assert (header.attributes, header.count, header.base_sequence) == (0, 64, 0)
    with pytest.raises(ValueError, match="one batch"):
        house.store.append_prepared(prepared(65))


def test_batches_of_another_program_are_refused(house: Any, kafka_batch: Any) -> None:
    begun(house)
    with pytest.raises(ValueError, match="batches of other programs"):
        house.store.appender.append_batches(kafka_batch(0, [(1, b"x")], []))
