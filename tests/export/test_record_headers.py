"""Records of Kafka's producers in an export: columns as an AMQP consumer sees the message."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from foreign_batches import check_batches

from amqpd.protocol.properties import headers_span

TIME_MS = 1_700_000_000_123


@pytest.mark.parametrize("codec", [0, 1])
def test_columns_are_those_of_the_message(lake: Any, codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 16,
    )
    headers = [("a", b"1"), ("type", b"t"), ("b", None), ("a", b"2")]
    builder.append(0, timestamp=TIME_MS, key=b"k", value=b"v", headers=headers)
    builder.append(1, timestamp=TIME_MS + 1, key=b"k" * 300, value=b"v" * 200, headers=[])
    builder.append(2, timestamp=TIME_MS + 1, key=None, value=None, headers=[])
    ours = [("exchange", b"ex"), ("properties", b"\x10\x00\x01")]
    builder.append(3, timestamp=TIME_MS + 1, key=b"k", value=b"v", headers=ours)
    lake.append(b"ours")
    lake.store.appender.append_checked(check_batches(bytes(builder.build())))
    lake.append(b"ours again")
    lake.turn()
    rows, messages = lake.rows(), lake.live()
    assert len(rows) == len(messages) == 6
    for row, message in zip(rows, messages, strict=True):
        assert (row["offset"], row["value"]) == (message.offset, message.body)
        assert (row["exchange"], row["routing_key"]) == (message.exchange.decode(), message.routing_key.decode())
        assert row["raw_properties"] == message.properties
        start, stop = headers_span(message.properties, 0, len(message.properties))
        assert (row["raw_headers"] or b"") == message.properties[start:stop]
    assert dict(rows[1]["headers"]) == {"a": '["1", "2"]', "b": None, "timestamp_in_ms": str(TIME_MS)}
    assert rows[1]["properties"]["type"] == "t"
    assert dict(rows[2]["headers"])["x-kafka-key"] == "k" * 300
    assert dict(rows[3]["headers"])["x-tombstone"] == "true"
