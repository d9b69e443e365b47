"""Batches that are compressed or have a timestamp per record: the exported rows equal the store's deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from foreign_batches import check_batches

from amqpd.storage.export.plan import DataLoss
from amqpd.storage.log.batch import UNPACKED_MAX, ZSTD, compress

T = 1_700_000_000_000
OURS = [("exchange", b"orders"), ("properties", b"\x10\x00\x02")]
SWAPPED = [("properties", b"\x10\x00\x02"), ("exchange", b"orders")]


@pytest.fixture
def foreign_batch(kafka_batch: Callable[..., bytes]) -> Callable[..., bytes]:
    def make(codec: int, count: int, headers: list[tuple[str, bytes]] = OURS) -> bytes:
        return kafka_batch(codec, [(T + 11 * number, b"%d," % number * 30) for number in range(count)], headers)

    return make


def check_rows(lake: Any, read_size: int) -> None:
    rows = lake.rows(read_size)
    live = lake.live()
    assert [row["offset"] for row in rows] == [record.offset for record in live]
    for row, record in zip(rows, live, strict=True):
        assert row["value"] == record.body
        assert (row["exchange"], row["routing_key"]) == (record.exchange.decode(), record.routing_key.decode())
        assert round(row["timestamp"].timestamp() * 1000) == record.timestamp_ms
        assert row["raw_properties"] == record.properties


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("headers", [OURS, SWAPPED, []], ids=["ours", "swapped", "none"])
@pytest.mark.parametrize("read_size", [700, 1 << 20])
def test_rows_are_right_for_every_codec(
    lake: Any, foreign_batch: Callable[..., bytes], codec: int, headers: list[tuple[str, bytes]], read_size: int
) -> None:
    lake.append(b"plain", b"as well")
    lake.turn()
    for count in (1, 40, 300):
        lake.store.appender.append_checked(check_batches(foreign_batch(codec, count, headers)))
        lake.append(b"between")
    lake.store.appender.append_checked(check_batches(foreign_batch(codec, 50, OURS) * 7))
    lake.turn()
    lake.store.ack_range(20, 44)
    lake.store.ack_range(300, 400)
    lake.settled()
    assert lake.store.record_count > 500
    check_rows(lake, read_size)
    assert lake.offsets(startingOffsets="50", endingOffsets="299") == list(range(50, 299))
    assert lake.offsets(batchRows="64") == [record.offset for record in lake.live()]


@pytest.mark.parametrize("how", ["bomb", "noise"])
def test_batch_that_cannot_be_decompressed_is_data_loss(
    lake: Any, foreign_batch: Callable[..., bytes], how: str
) -> None:
    import struct

    from google_crc32c import value

    good = foreign_batch(ZSTD, 10)
    lake.store.appender.append_checked(check_batches(good * 3))
    lake.turn()
    inner = compress(ZSTD, bytes(UNPACKED_MAX + 1)) if how == "bomb" else b"\xff" * 50
    covered = struct.pack(">hiqqqhii", 4, 9, T, T, -1, -1, -1, 10) + inner
    bad = struct.pack(">qiibI", 10, len(covered) + 9, 0, 2, value(covered)) + covered
    file = lake.data(lake.names(".log")[0])
    file[len(good) : 2 * len(good)] = bad
    with pytest.raises(DataLoss, match="offsets 10 to 19"):
        lake.rows()
    assert lake.offsets(failOnDataLoss="false") == [*range(10), *range(20, 30)]
