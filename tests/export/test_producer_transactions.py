"""Transactions of Kafka's producers: an export has committed records only, below the last stable offset."""

from __future__ import annotations

from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from foreign_batches import check_batches
from librt.strings import BytesWriter

from amqpd.storage.log.batch import marker_batch

A, B = 1 << 62, (1 << 62) + 1


def produce(lake: Any, producer: int, sequence: int, value: bytes) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        batch_size=1 << 16,
    )
    builder.append(0, timestamp=1_700_000_000_000, key=b"k", value=value, headers=[])
    lake.store.appender.append_checked(check_batches(bytes(builder.build()), transactional=True))


def end(lake: Any, producer: int, commits: bool) -> None:
    lake.store.appender.append_checked([marker_batch(BytesWriter(), producer, 0, commits, 1_700_000_000_000)])


def values(lake: Any) -> list[bytes]:
    return [row["value"] for row in lake.rows()]


def test_rows_are_those_of_committed_transactions(lake: Any) -> None:
    lake.append(b"plain")
    produce(lake, A, 0, b"committed")
    produce(lake, B, 0, b"aborted")
    lake.append(b"between")
    lake.turn()
    assert values(lake) == [b"plain"]
    end(lake, B, False)
    lake.turn()
    assert values(lake) == [b"plain"], "A is open"
    end(lake, A, True)
    lake.turn()
    assert values(lake) == [b"plain", b"committed", b"between"]
    lake.again()
    assert values(lake) == [b"plain", b"committed", b"between"]
