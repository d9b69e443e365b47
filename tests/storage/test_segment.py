"""Whole `.log` files read by the parsers of Kafka clients; segment rolls; checkpoint files."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.log.checkpoint import (
    decode_high_watermark,
    encode_clean,
    encode_high_watermark,
    encode_lines,
    read_clean,
    read_high_watermark,
    read_lines,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.memory_records import MemoryRecords as KafkaRecords


def values(parser: type, data: bytes) -> list[tuple[int, bytes]]:
    records = parser(data)
    found = []
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        if not batch.is_control_batch:
            found += [(record.offset, bytes(record.value)) for record in batch]
    return found


@pytest.mark.parametrize("parser", [AioRecords, KafkaRecords])
def test_kafka_clients_read_log_files(make_harness: Callable[..., Any], parser: type) -> None:
    harness = make_harness(segment_size_bytes=50_000)
    harness.create_log()
    expected = []
    for turn in range(30):
        bodies = [b"%d.%d" % (turn, number) * 20 for number in range(turn * 3 + 1)]
        expected += list(zip(harness.append(*bodies, persistent=turn % 5 != 0), bodies, strict=True))
        harness.end_turn()
    harness.store.begin_transaction()
    bodies = [b"transaction %d" % number for number in range(100)]
    expected += list(zip(harness.append(*bodies), bodies, strict=True))
    harness.store.end_transaction()
    harness.end_turn()
    names = harness.names(".log")
    assert len(names) > 2
    found = []
    for name in names:
        part = values(parser, bytes(harness.data(name)))
        assert int(name[:20]) == part[0][0], "a file is named after its first offset"
        found += part
    assert found == expected


def test_transaction_is_in_one_segment(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(segment_size_bytes=3000)
    harness.create_log()
    harness.append(b"before" * 100)
    harness.end_turn()
    harness.store.begin_transaction()
    harness.append(*[b"x" * 100] * 200)
    harness.store.end_transaction()
    harness.append(b"after")
    harness.end_turn()
    assert len(harness.names(".log")) == 3
    assert harness.restart().record_count == 202


def test_message_larger_than_a_segment(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(segment_size_bytes=10_000)
    harness.create_log()
    bodies = [b"small", b"L" * 1_000_000, b"small again", b"M" * 300_000]
    harness.append(*bodies)
    harness.end_turn()
    assert harness.bodies() == bodies
    harness.restart()
    assert harness.bodies() == bodies
    assert harness.store.size_bytes == sum(map(len, bodies))


def test_roll_moves_the_recovery_point(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(segment_size_bytes=3000)
    harness.create_log()
    for _ in range(10):
        harness.append(b"x" * 1000)
        harness.end_turn()
    base = int(harness.names(".log")[-1][:20])
    path = f"{harness.directory}/recovery-point-checkpoint"
    assert read_lines(harness.filesystem, path, 1) == [(base,)]
    assert read_high_watermark(harness.filesystem, f"{harness.directory}/high-watermark") == 10
    harness.filesystem.calls.clear()
    harness.restart(harness.filesystem)
    reads = Counter(path for name, path in harness.filesystem.calls if name == "pread" and path.endswith(".log"))
    tail = reads.pop(f"{harness.directory}/{base:020d}.log")
    assert tail >= 1
    assert len(reads) >= 4, "there are sealed segments"
    assert max(reads.values()) <= 2, "recovery reads two batch headers of a sealed segment"


def test_checkpoint_files_round_trip() -> None:
    filesystem = SimulatedFileSystem()
    filesystem.mkdir("/d")
    filesystem.replace_file("/d/lines", encode_lines([(0, 0), (1, 77)]), sync=True)
    assert filesystem.read_file("/d/lines") == b"0\n2\n0 0\n1 77\n"
    assert read_lines(filesystem, "/d/lines", 2) == [(0, 0), (1, 77)]
    assert read_lines(filesystem, "/d/lines", 1) == []
    assert read_lines(filesystem, "/d/none", 2) == []
    data = bytearray(encode_clean(10, 5, 4096, 8))
    filesystem.replace_file("/d/clean", bytes(data), sync=True)
    assert read_clean(filesystem, "/d/clean") == (10, 5, 4096, 8)
    data[3] ^= 1
    filesystem.replace_file("/d/clean", bytes(data), sync=True)
    assert read_clean(filesystem, "/d/clean") is None
    mark = encode_high_watermark(1 << 40)
    assert decode_high_watermark(mark) == 1 << 40
    for place in range(128):
        broken = bytearray(mark)
        broken[place // 8] ^= 1 << place % 8
        assert decode_high_watermark(bytes(broken)) == 0
