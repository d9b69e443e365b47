"""Data loss is reported as documented: torn tail, wrong checksum, missing segments, retention before an export."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from amqpd.protocol.field_table import encode_table
from amqpd.storage.export import offsets
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.log.batch import BatchHeader


def filled_lake(make_lake: Callable[..., Any], count: int = 120, segment_size_bytes: int = 60_000) -> Any:
    """Return a log of batches with 10 records each, in several segments."""
    lake = make_lake(segment_size_bytes)
    for start in range(0, count, 10):
        lake.append(*(b"%04d" % number + b"." * 996 for number in range(start, start + 10)))
        lake.turn()
    assert lake.offsets() == list(range(count))
    return lake


def batch_positions(log: bytearray) -> list[int]:
    """Return the positions of the batches."""
    found, position = [], 0
    while position < len(log):
        found.append(position)
        position += BatchHeader(bytes(log), position).size
    return found


@pytest.mark.parametrize("cut", [1, 60, 61, 500])
def test_torn_tail_is_not_read(make_lake: Callable[..., Any], cut: int) -> None:
    lake = filled_lake(make_lake, segment_size_bytes=1 << 26)
    log = lake.data(lake.names(".log")[-1])
    del log[-cut:]
    assert lake.offsets() == list(range(110))
    assert lake.snapshot().end == 110


def test_copy_shorter_than_its_high_watermark_is_read_to_its_end(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake, segment_size_bytes=1 << 26)
    log = lake.data(lake.names(".log")[-1])
    del log[batch_positions(log)[5] :]
    assert lake.offsets() == list(range(50))


@pytest.mark.parametrize("where", ["body", "header", "offset"])
def test_batch_with_a_wrong_checksum_is_data_loss(
    make_lake: Callable[..., Any], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    lake = filled_lake(make_lake, segment_size_bytes=1 << 26)
    log = lake.data(lake.names(".log")[0])
    bad = batch_positions(log)[4]
    log[bad + {"body": 700, "header": 16, "offset": 5}[where]] ^= 0x40
    with pytest.raises(DataLoss, match=r"offsets 40 to .*failOnDataLoss=false"):
        lake.offsets()
    assert lake.offsets(endingOffsets="40") == list(range(40))
    with caplog.at_level(logging.WARNING):
        rows = lake.offsets(failOnDataLoss="false")
    assert rows == [n for n in range(120) if not 40 <= n < 50]
    assert "offsets 40 to 49" in caplog.text
    assert lake.offsets(startingOffsets="50", splitBytes="1") == list(range(50, 120))


def test_check_crc_false_skips_the_checksum(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake)
    log = lake.data(lake.names(".log")[0])
    log[batch_positions(log)[1] + 700] ^= 0x40
    assert lake.offsets(checkCrc="false") == list(range(120))


def test_raised_base_offset_does_not_hide_later_batches(make_lake: Callable[..., Any]) -> None:
    """The checksum does not cover the base offset. A batch with a too high one must not end the read."""
    lake = filled_lake(make_lake, segment_size_bytes=1 << 26)
    log = lake.data(lake.names(".log")[0])
    log[batch_positions(log)[3] + 7] += 60  # 30 becomes 90
    with pytest.raises(DataLoss, match="offsets 30 to"):
        lake.offsets(endingOffsets="80")
    assert lake.offsets(failOnDataLoss="false") == [n for n in range(120) if not 30 <= n < 40]


def test_missing_segment_is_data_loss(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake)
    names = lake.names(".log")
    assert len(names) > 2
    first, stop = int(names[1][:20]), int(names[2][:20])
    lake.filesystem.unlink(f"{lake.place}/{names[1]}")
    with pytest.raises(DataLoss, match=f"offsets {first} to {stop - 1} are missing: their segment's log is missing"):
        lake.offsets()
    assert lake.offsets(failOnDataLoss="false") == [n for n in range(120) if not first <= n < stop]


def test_truncated_sealed_segment_is_data_loss(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake)
    names = lake.names(".log")
    log = lake.data(names[0])
    del log[batch_positions(log)[2] :]
    stop = int(names[1][:20])
    with pytest.raises(DataLoss, match=f"offsets 20 to {stop - 1} are missing: their segment's log was cut off"):
        lake.offsets()
    assert lake.offsets(failOnDataLoss="false") == [n for n in range(120) if not 20 <= n < stop]


def test_segment_removed_because_all_was_acked_is_no_loss(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake)
    names = lake.names(".log")
    first, stop = int(names[1][:20]), int(names[2][:20])
    lake.store.ack_range(first, stop - 1)
    lake.settled()
    assert names[1] not in lake.names(".log")
    assert lake.offsets() == [n for n in range(120) if not first <= n < stop]
    with pytest.raises(DataLoss, match=f"offsets {first} to {stop - 1} are missing: they were settled"):
        lake.offsets(includeSettled="true")


def test_start_offset_before_the_log_is_data_loss(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake)
    stop = int(lake.names(".log")[1][:20])
    lake.store.ack_range(0, stop - 1)
    lake.settled()
    lake.settled()
    assert lake.snapshot().start == stop
    assert lake.offsets() == list(range(stop, 120))
    with pytest.raises(DataLoss, match=f"offsets 5 to {stop - 1} are missing: their segments have been removed"):
        lake.offsets(startingOffsets="5")
    assert lake.offsets(startingOffsets="5", failOnDataLoss="false") == list(range(stop, 120))


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_start_offset_before_the_log_of_a_work_queue_is_no_loss(make_lake: Callable[..., Any], kind: str) -> None:
    """Its first segments are removed when their messages are settled, those of a stream also unread."""
    lake = make_lake(4096, arguments=encode_table({"x-queue-type": kind}))
    for _ in range(6):
        lake.append(*(b"." * 190 for _ in range(20)))
        lake.turn()
    stop = int(lake.names(".log")[2][:20])
    lake.store.ack_range(0, stop - 1)
    lake.settled()
    lake.settled()
    assert lake.snapshot().start == stop
    if kind != "stream":
        assert lake.offsets(startingOffsets="5") == list(range(stop, 120))
        with pytest.raises(DataLoss, match=f"offsets 5 to {stop - 1} are missing"):
            lake.offsets(startingOffsets="5", includeSettled="true")
        lake.filesystem.unlink(f"{lake.place}/log-start-offset-checkpoint")
    with pytest.raises(DataLoss, match=f"offsets 5 to {stop - 1} are missing: their segments have been removed"):
        lake.offsets(startingOffsets="5")


def test_end_offset_after_the_log_is_data_loss(lake: Any) -> None:
    lake.append(b"a", b"b")
    lake.turn()
    with pytest.raises(DataLoss, match="offsets 2 to 8 are missing: the log ends before them"):
        lake.offsets(endingOffsets="9")
    assert lake.offsets(endingOffsets="9", failOnDataLoss="false") == [0, 1]
    with pytest.raises(DataLoss, match="offsets 7 to 7 are missing: the log ends before them"):
        lake.offsets(startingOffsets="7")


def test_segment_removed_after_planning_is_data_loss(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake)
    options = lake.options()
    parts = offsets.batch_parts(options)
    names = lake.names(".log")
    stop = int(names[1][:20])
    lake.store.ack_range(0, stop - 1)
    lake.settled()
    with pytest.raises(DataLoss, match="removed since the query was planned"):
        list(lake.read(options, parts))
    rows = [row["offset"] for row in lake.read(lake.options(failOnDataLoss="false"), parts)]
    assert rows == list(range(stop, 120))


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_segment_that_is_settled_and_removed_after_planning_is_no_loss_for_an_export(
    make_lake: Callable[..., Any], kind: str
) -> None:
    """Consumers of a busy queue empty a segment while the export reads. A stream removes messages unread."""
    lake = make_lake(4096, arguments=encode_table({"x-queue-type": kind}))
    for _ in range(6):
        lake.append(*(b"." * 190 for _ in range(20)))
        lake.turn()
    options = replace(lake.options(), is_job=True)
    parts, whole = (offsets.batch_parts(replace(options, include_settled=each)) for each in (False, True))
    stop = int(lake.names(".log")[2][:20])
    lake.store.ack_range(0, stop - 1)
    lake.settled()
    lake.settled()
    with pytest.raises(DataLoss, match="removed since the query was planned"):
        list(lake.read(options, whole))
    if kind == "stream":
        with pytest.raises(DataLoss, match="removed since the query was planned"):
            list(lake.read(options, parts))
    else:
        assert [row["offset"] for row in lake.read(options, parts)] == list(range(stop, 120))


def test_settled_file_removed_after_the_listing_is_no_loss(make_lake: Callable[..., Any]) -> None:
    lake = make_lake(4096, arguments=encode_table({}))
    for _ in range(6):
        lake.append(*(b"." * 190 for _ in range(20)))
        lake.turn()
    stop = int(lake.names(".log")[2][:20])
    snapshot = lake.snapshot()
    for segment in snapshot.segments[:2]:
        segment.size = -1  # as if it was listed between the removal of the logs and that of their .settled files
    lake.store.ack_range(0, stop - 1)
    lake.settled()
    lake.settled()
    assert lake.names(".settled")[0][:20] == lake.names(".log")[0][:20] != "0" * 20
    assert snapshot.losses(5, 120, include_settled=False) == []


def test_records_acked_after_planning_are_still_read(make_lake: Callable[..., Any]) -> None:
    lake = filled_lake(make_lake, segment_size_bytes=1 << 26)
    options = lake.options()
    parts = offsets.batch_parts(options)
    lake.store.ack_range(10, 30)
    lake.append(b"more")
    lake.settled()
    assert [row["offset"] for row in lake.read(options, parts)] == list(range(120))
