"""Acked records at the front of a log are deleted in Kafka, and the size of a log in Kafka is known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kafka_in_memory import FakeKafka
from slot_in_memory import TOPIC, Slot

from amqpd.cluster import slot_logs
from amqpd.cluster.slot_logs import LogSpan


def test_log_span_counts_bytes_from_the_head() -> None:
    span = LogSpan()
    for number in range(1000):
        span.add(number * 10, 10_000)
    assert span.size_bytes(0, 10_000) == 10_000_000
    assert abs(span.size_bytes(5000, 10_000) - 5_000_000) <= slot_logs.MARK_BYTES
    assert span.size_bytes(10_000, 10_000) == 0
    assert span.is_deletion_due(10_000, 10_000)
    span.mark_deleted(10_000, 10_000)
    assert not span.is_deletion_due(10_000, 10_000)
    span.add(10_000, 100)
    assert span.size_bytes(10_000, 10_001) <= 100 + slot_logs.MARK_BYTES
    assert not span.is_deletion_due(10_001, 10_001)


async def test_records_are_deleted_up_to_the_stored_acks() -> None:
    slot = await Slot(FakeKafka()).open()
    deletions: list[tuple[str, dict[int, int]]] = []

    async def delete(topic: str, before: Mapping[int, int]) -> None:
        deletions.append((topic, dict(before)))

    for _ in range(100):
        slot.append(*(b"x" * 1000 for _ in range(64)))
        slot.end_turn()
    slot.producer.store_all()
    assert await slot.logs.truncation.delete_unneeded(delete) == 0
    assert 6_400_000 < slot.log.span_bytes < 7_500_000
    slot.log.ack_range(1, 6000, 6_000_000)
    assert await slot.logs.truncation.delete_unneeded(delete) == 0  # Kafka does not have this ack yet
    slot.sync()
    assert await slot.logs.truncation.delete_unneeded(delete) == 1
    assert deletions == [(TOPIC, {0: 6001})]
    assert await slot.logs.truncation.delete_unneeded(delete) == 0
    assert slot.log.span_bytes < 400_000 + slot_logs.MARK_BYTES
    slot.log.ack_range(6001, 6400, 400_000)
    slot.sync()
    assert await slot.logs.truncation.delete_unneeded(delete) == 1
    assert deletions[1] == (TOPIC, {0: 6401})


async def test_space_kept_by_one_unacked_message_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot_logs, "WIDE_BYTES", 1 << 20)
    slot = await Slot(FakeKafka()).open()
    for _ in range(50):
        slot.append(*(b"x" * 1000 for _ in range(64)))
        slot.end_turn()
    slot.log.ack_range(2, 3200, 3_199_000)
    slot.sync()
    for _ in range(2):
        assert slot.logs.truncation.deletable() == {}
    assert [each.message for each in caplog.records if "because the oldest one is not acked" in each.message] == [
        "queue 'q0': Kafka keeps 3 MiB for 1 messages of 1000 bytes, because the oldest one is not acked"
    ]
