"""Kafka's compression codecs and CreateTime in a log: the broker reads batches of Kafka clients and they read its own.

kafka-python decompresses with other libraries (lz4, zstandard) than the broker, aiokafka with the same.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import warnings
import zlib
from functools import partial
from itertools import groupby
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from foreign_batches import check_batches
from google_crc32c import value
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from time_search import offset_at

from amqpd.storage.log.appender import BadBatch
from amqpd.storage.log.batch import (
    GZIP,
    LZ4,
    SNAPPY,
    UNPACKED_MAX,
    ZSTD,
    BatchHeader,
    compress,
    decompress,
    decompressed,
)
from amqpd.storage.log.record import BadRecord, RecordRoute, RecordsTooLarge
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
NAMES = {0: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
T = 1_700_000_000_000
HEADERS = [("exchange", b"orders"), ("properties", b"\x10\x00\x02")]
ROUTE = RecordRoute(b"orders", b"eu.new")
TEXT = b'{"user": "somebody", "action": "view", "price": 12.5} ' * 50


def build_batch(kind: Any, codec: int, bodies: list[bytes], times: list[int]) -> bytes:
    builder = kind(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for number, (body, time_ms) in enumerate(zip(bodies, times, strict=True)):
        builder.append(number, timestamp=time_ms, key=b"eu.new", value=body, headers=HEADERS)
    return bytes(builder.build())


by_kafka_python = partial(build_batch, DefaultRecordBatchBuilder)
by_aiokafka = partial(build_batch, AioBuilder)
BUILDERS = {"kafka-python": by_kafka_python, "aiokafka": by_aiokafka}


def batch_around(codec: int, records: bytes, count: int, *, base: int = 0) -> bytes:
    """A batch around `records`, which claim to be compressed with `codec`."""
    covered = struct.pack(">hiqqqhii", codec, count - 1, T, T, -1, -1, -1, count) + records
    return struct.pack(">qiibI", base, len(covered) + 9, 0, 2, value(covered)) + covered


class TestCodecs:
    @pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
    @settings(max_examples=examples(30), deadline=None)
    @given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=200).map(lambda each: each * 500)))
    def test_round_trip(self, codec: int, data: bytes) -> None:
        assert decompress(codec, compress(codec, data)) == data

    def test_other_libraries_read_compressed_data(self) -> None:
        data = TEXT * 100
        assert zlib.decompress(compress(GZIP, data), 31) == data
        assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(ZSTD, data)) == data
        assert lz4.frame.decompress(compress(LZ4, data)) == data
        frame = compress(LZ4, data)
        assert lz4.frame.get_frame_info(frame)["block_linked"] is False, (
            "Kafka's Java client reads independent blocks only"
        )
        large = bytes(5 << 20)
        assert lz4.frame.decompress(compress(LZ4, large)) == large

    def test_data_compressed_by_other_libraries_is_read(self) -> None:
        data = TEXT * 100
        assert decompress(LZ4, lz4.frame.compress(data, block_linked=True, content_checksum=True)) == data
        assert decompress(LZ4, lz4.frame.compress(data, block_linked=False, store_size=False)) == data
        assert decompress(ZSTD, zstandard.ZstdCompressor(level=19, write_checksum=True).compress(data)) == data
        streaming = zstandard.ZstdCompressor(level=1).compressobj()
        assert decompress(ZSTD, streaming.compress(data) + streaming.flush()) == data
        assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
        assert decompress(GZIP, zlib.compress(data[:500], 9, 31) + zlib.compress(data[500:], 0, 31)) == data

    @pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
    def test_decompression_bomb_is_refused(self, codec: int) -> None:
        bomb = compress(codec, bytes(UNPACKED_MAX + 1))
        with pytest.raises(RecordsTooLarge):
            decompress(codec, bomb)
        with pytest.raises(BadRecord) as damaged:
            decompress(codec, bomb[:-20])
        assert damaged.type is BadRecord  # a producer would split a batch that is too large
        assert len(decompress(codec, compress(codec, bytes(UNPACKED_MAX)))) == UNPACKED_MAX

    @pytest.mark.parametrize(
        ("codec", "start", "part", "count"),
        [
            (GZIP, b"", zlib.compress(b"", 9, 31), 64),
            (SNAPPY, compress(SNAPPY, b""), b"\x00\x00\x00\x01\x00", 16 * 1024),
        ],
        ids=["gzip", "snappy"],
    )
    def test_many_empty_parts_are_refused(self, codec: int, start: bytes, part: bytes, count: int) -> None:
        """Each part costs time. Of 4 MB of empty gzip members, a batch would hold up the broker for minutes."""
        assert decompress(codec, start + part * count) == b""
        with pytest.raises(BadRecord):
            decompress(codec, start + part * (count + 1))

    @pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
    def test_compressed_data_much_larger_than_the_limit_is_refused(self, codec: int) -> None:
        with pytest.raises(BadRecord, match="compressed records of"):
            decompress(codec, bytes(UNPACKED_MAX * 2))

    @pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
    @settings(max_examples=examples(60), deadline=None)
    @given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
    def test_damaged_data_raises_only_bad_record(self, codec: int, place: int, byte: int, cut: bool) -> None:
        data = compress(codec, TEXT)
        place %= len(data)
        damaged = data[:place] if cut else data[:place] + bytes([byte]) + data[place + 1 :]
        with contextlib.suppress(BadRecord):
            decompress(codec, damaged)

    def test_wrong_uncompressed_size_is_refused(self) -> None:
        """Raw snappy starts with the uncompressed size: here 4 GiB, in five bytes."""
        for size in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"):
            with pytest.raises(BadRecord):
                decompress(SNAPPY, size + b"\x00a")
        with pytest.raises(BadRecord):
            decompress(SNAPPY, compress(SNAPPY, b"a")[:16] + b"\x7f\xff\xff\xff")


@pytest.mark.parametrize("codec", [0, *CODECS], ids=NAMES.get)
@pytest.mark.parametrize("builder", BUILDERS)
class TestKafkaClientBatches:
    def test_batches_are_read_anywhere_in_a_log(self, harness: Any, builder: str, codec: int) -> None:
        bodies = [b"%d %s" % (number, TEXT) for number in range(90)]
        times = [T + 37 * number - 500 * (number % 3) for number in range(90)]
        store = harness.create_log()
        harness.append(b"ours")
        kafka_batch = BUILDERS[builder](codec, bodies, times)
        assert BatchHeader(kafka_batch, 0).attributes == codec, "compressed, and with CreateTime"
        assert store.appender.append_checked(check_batches(kafka_batch + kafka_batch)) == 1
        harness.append(b"ours again")
        harness.end_turn()
        for _ in range(3):
            records = store.cursor.read(0, 1 << 30).records
            assert [record.body for record in records] == [b"ours", *bodies, *bodies, b"ours again"]
            assert [record.timestamp_ms for record in records[1:-1]] == times * 2
            assert records[0].timestamp_ms == records[-1].timestamp_ms == harness.clock.now_ms
            assert {record.exchange for record in records} == {b"orders"}
            assert store.size_bytes == sum(map(len, bodies)) * 2 + 14
            assert [record.offset for record in store.cursor.read(85, 1 << 30).records] == list(range(85, 182))
            assert bytes(harness.log()).count(kafka_batch[21:]) == 2, "unchanged except for its offset"
            store = harness.restart()  # after a kill all counts are computed again
        store.ack_range(0, 100)
        harness.end_turn()
        harness.end_turn()
        store = harness.restart(harness.filesystem.crashed(1))
        assert [record.offset for record in store.cursor.read(0, 1 << 30).records] == list(range(101, 182))


@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
def test_kafka_clients_read_our_compressed_batch(codec: int) -> None:
    data = by_kafka_python(0, [TEXT, b"", b"z"], [T, T + 1, T + 2])
    batch = batch_around(codec, compress(codec, data[61:]), 3)
    bodies = [TEXT, b"", b"z"]
    assert [record.value for record in DefaultRecordBatch(batch)] == bodies
    read = AioBatch(batch)
    assert read.validate_crc()
    assert [record.value for record in read] == bodies
    records = MemoryRecords(batch)
    first = records.next_batch()
    assert first is not None
    assert first.validate_crc()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
def test_decompressed_batch_equals_the_uncompressed_one(codec: int) -> None:
    uncompressed = by_kafka_python(0, [TEXT] * 3, [T, T + 5, T + 1])
    compressed = b"xyz" + by_kafka_python(codec, [TEXT] * 3, [T, T + 5, T + 1]) + b"tail"
    image, at, header = decompressed(compressed, 3, BatchHeader(compressed, 3))
    assert at == 0
    assert image[:17] + image[21:] == uncompressed[:17] + uncompressed[21:], "equal except for the checksum"
    assert (header.size, header.attributes, header.count) == (len(uncompressed), 0, 3)
    assert decompressed(uncompressed, 0, header) == (uncompressed, 0, header)


class TestDamage:
    """Batches with a right checksum that cannot be decompressed: only their records are lost."""

    def bad_batch(self, how: str) -> bytes:
        if how == "bomb":
            return batch_around(ZSTD, compress(ZSTD, bytes(UNPACKED_MAX + 1)), 2)
        if how == "noise":
            return batch_around(LZ4, b"nothing of the kind", 2)
        return batch_around(GZIP, compress(GZIP, b"\x06\x00\x00\x00 no record"), 2)

    @pytest.mark.parametrize("how", ["bomb", "noise", "no records"])
    def test_bad_batch_is_not_appended(self, harness: Any, how: str) -> None:
        store = harness.create_log()
        with pytest.raises(BadBatch, match="bad record in the batch at 0"):
            store.appender.append_checked(check_batches(self.bad_batch(how)))
        assert store.next_offset == 0

    @pytest.mark.parametrize("how", ["bomb", "noise", "no records"])
    @pytest.mark.parametrize("clean", [True, False])
    def test_bad_batch_in_the_log_is_skipped(self, harness: Any, how: str, clean: bool) -> None:
        """Another program may have written it. Recovery checks the batches after a kill, not after a clean stop."""
        store = harness.create_log()
        good = by_kafka_python(ZSTD, [TEXT] * 2, [T] * 2)
        store.appender.append_checked(check_batches(good * 3))
        harness.end_turn()
        harness.storage.close(clean=clean)
        log = harness.log()
        size = len(good)
        bad = self.bad_batch(how)
        log[size : 2 * size] = (2).to_bytes(8, "big") + bad[8:]
        store = harness.restart(harness.filesystem)
        records = store.cursor.read(0, 1 << 30).records
        assert [record.offset for record in records] == [0, 1, 4, 5]
        assert {offset for first, last in store.lost for offset in range(first, last + 1)} == {2, 3}
        assert store.record_count == 4

    def test_bad_batch_is_skipped_by_a_reader(self, harness: Any) -> None:
        store = harness.create_log()
        good = by_kafka_python(ZSTD, [TEXT] * 2, [T] * 2)
        store.appender.append_checked(check_batches(good * 3))
        harness.end_turn()
        size = len(good)
        harness.log()[size : 2 * size] = batch_around(LZ4, b"n" * (size - 61), 2, base=2)
        for _ in range(2):
            assert [record.offset for record in store.cursor.read(0, 1 << 30).records] == [0, 1, 4, 5]
        assert (store.lost, store.record_count) == ([(2, 3)], 4)
        assert [record.offset for record in store.new_cursor().read(3, 1 << 30).records] == [4, 5]

    def test_lz4_is_one_frame(self, harness: Any) -> None:
        """Java's consumers read one, and cannot read on behind a batch with several."""
        store = harness.create_log()
        plain = by_kafka_python(0, [TEXT] * 3, [T] * 3)[61:]
        options: list[dict[str, Any]] = [
            {"store_size": size, "content_checksum": content, "block_checksum": blocks, "block_size": 4}
            for size in (False, True)
            for content in (False, True)
            for blocks in (False, True)
        ]
        for each in options:
            store.appender.append_checked(check_batches(batch_around(LZ4, lz4.frame.compress(plain, **each), 3)))
            two = lz4.frame.compress(plain[:9], **each) + lz4.frame.compress(plain[9:], **each)
            for bad in (two, two[:-1], b"\x50\x2a\x4d\x18\0\0\0\0" + lz4.frame.compress(plain, **each)):
                with pytest.raises(BadBatch, match="not one frame"):
                    store.appender.append_checked(check_batches(batch_around(LZ4, bad, 3)))

    def test_unknown_codec_is_refused(self, harness: Any) -> None:
        store = harness.create_log()
        for codec in (5, 6, 7):
            with pytest.raises(BadBatch):
                store.appender.append_checked(check_batches(batch_around(codec, b"x" * 40, 2)))

    @pytest.mark.parametrize("codec", [0, LZ4])
    @pytest.mark.parametrize("time_ms", [-1, T + 4])
    def test_a_max_timestamp_before_a_record_is_corrected(self, harness: Any, codec: int, time_ms: int) -> None:
        """The time index relies on the header's max timestamp, and sarama before 1.45.1 leaves it out."""
        store = harness.create_log()
        batch = bytearray(by_kafka_python(codec, [b"a", b"b"], [T, T + 5]))
        right = bytes(batch)
        batch[35:43] = time_ms.to_bytes(8, "big", signed=True)
        batch[17:21] = value(bytes(batch[21:])).to_bytes(4, "big")
        store.appender.append_checked(check_batches(bytes(batch)))
        harness.end_turn()
        assert harness.log()[16:] == right[16:]
        assert store.latest_time_ms() == T + 5


def json_body(number: int) -> bytes:
    user = f"user-{number * 7919 % 1000}"
    return json.dumps({"id": number, "user": user, "action": "view", "n": number % 7}).encode()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
class TestBrokerBatches:
    def test_kafka_clients_read_compressed_batches(self, harness: Any, codec: int) -> None:
        store = harness.create_log()
        harness.storage.set_policy(store, RetentionPolicy(codec=codec))
        bodies = [json_body(number) for number in range(3000)]
        for start in range(0, 3000, 700):
            harness.append(*bodies[start : start + 700])
            harness.end_turn()
        file = bytes(harness.log())
        headers = headers_of(file)
        assert all(header.attributes == codec | 8 for header in headers)
        assert max(header.count for header in headers) > 500, "a compressed batch holds more records"
        assert len(file) < sum(map(len, bodies)) // 2
        records = MemoryRecords(file)
        parsed = []
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            parsed += [(record.offset, record.key, record.value, record.timestamp) for record in batch]
        assert parsed == [(number, b"eu.new", body, harness.clock.now_ms) for number, body in enumerate(bodies)]
        position = 0
        aiokafka_values = []
        while position < len(file):
            size = int(BatchHeader(file, position).size)
            aiokafka_values += [record.value for record in AioBatch(file[position : position + size])]
            position += size
        assert aiokafka_values == bodies
        assert harness.bodies() == bodies
        assert store.size_bytes == sum(map(len, bodies))

    def test_recovery_after_a_kill_and_a_power_cut(self, harness: Any, codec: int) -> None:
        store = harness.create_log()
        harness.storage.set_policy(store, RetentionPolicy(codec=codec))
        bodies = [json_body(number) for number in range(400)]
        harness.append(*bodies)
        harness.end_turn()
        store.ack_range(0, 99, sum(map(len, bodies[:100])))
        harness.end_turn()
        harness.end_turn()
        for image in (harness.filesystem.killed(), harness.filesystem.crashed(1)):
            store = harness.restart(image)
            assert harness.bodies() == bodies[100:]
            assert (store.record_count, store.size_bytes) == (300, sum(map(len, bodies[100:])))

    def test_compressed_transaction(self, harness: Any, codec: int) -> None:
        store = harness.create_log()
        harness.storage.set_policy(store, RetentionPolicy(codec=codec))
        store.begin_transaction()
        bodies = [json_body(number) for number in range(3000)]
        harness.append(*bodies)
        store.end_transaction()
        harness.end_turn()
        attributes = [int(header.attributes) for header in headers_of(bytes(harness.log()))]
        assert attributes[:-1] == [codec | 0x18] * (len(attributes) - 1)
        assert attributes[-1] == 0x38, "the commit marker"
        harness.restart()
        assert harness.bodies() == bodies

    def test_half_written_transaction_is_dropped(self, harness: Any, codec: int) -> None:
        store = harness.create_log()
        harness.storage.set_policy(store, RetentionPolicy(codec=codec))
        harness.append(b"before")
        harness.end_turn()
        store.begin_transaction()
        harness.append(*[json_body(number) for number in range(3000)])
        store.end_transaction()
        harness.end_turn()
        file = harness.log()
        sizes = [int(header.size) for header in headers_of(bytes(file))]
        image = harness.filesystem.killed()
        node = image._get(f"{harness.directory}/{harness.names('.log')[-1]}")
        del node.data[sum(sizes[:-2]) :]
        image.unlink(f"{harness.directory}/high-watermark")
        harness.restart(image)
        assert harness.bodies() == [b"before"]

    def test_small_random_and_large_bodies_stay_uncompressed(self, harness: Any, codec: int) -> None:
        store = harness.create_log()
        harness.storage.set_policy(store, RetentionPolicy(codec=codec))
        noise = random.Random(1).randbytes(60_000)
        for body in (b"small", noise, b"x" * 600_000):
            harness.append(body)
            harness.end_turn()
        store.append_large(ROUTE, b"\x00\x00", [b"y" * 300_000, b"z" * 300_000], 600_000, True)
        harness.end_turn()
        assert [int(header.attributes) for header in headers_of(bytes(harness.log()))] == [8] * 4
        assert harness.bodies() == [b"small", noise, b"x" * 600_000, b"y" * 300_000 + b"z" * 300_000]

    def test_codec_can_change_while_the_log_is_used(self, harness: Any, codec: int) -> None:
        store = harness.create_log()
        bodies = [json_body(number) for number in range(300)]
        for chosen in (0, codec, ZSTD, 0):
            harness.storage.set_policy(store, RetentionPolicy(codec=chosen))
            harness.append(*bodies)
            harness.end_turn()
        found = [int(header.attributes) & 7 for header in headers_of(bytes(harness.log()))]
        assert [key for key, _ in groupby(found)] == [0, *dict.fromkeys((codec, ZSTD)), 0]
        assert harness.bodies() == bodies * 4

    def test_compaction_keeps_the_codec(self, harness: Any, codec: int) -> None:
        harness.arguments["segment_size_bytes"] = 2000
        store = harness.create_log()
        harness.storage.set_policy(
            store, RetentionPolicy(codec=codec, compaction=CleanerPolicy(min_dirty_ratio=0.01), file_delete_delay_ms=0)
        )
        routes = [RecordRoute(b"orders", b"key.%d" % key) for key in range(20)]
        latest = {}
        for number in range(2000):
            body = json_body(number)
            latest[number % 20] = (store.append_parts(routes[number % 20], b"\x00\x00", body, True), body)
            if number % 100 == 99:
                harness.end_turn()
        segments = len(store.log.segments)
        harness.storage.maintain()
        for _ in range(4):
            harness.end_turn()
        assert len(store.log.segments) < segments
        active = int(store.log.segments[-1].base)
        records = store.cursor.read(0, 1 << 30).records
        kept = {record.offset: record.body for record in records}
        assert all(kept[offset] == body for offset, body in latest.values())
        assert sum(record.offset < active for record in records) == 20 if active else True
        for name in harness.names(".log"):
            for header in headers_of(bytes(harness.data(name))):
                assert header.attributes & 7 == codec
        records = MemoryRecords(b"".join(bytes(harness.data(name)) for name in harness.names(".log")))
        parsed = {}
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            parsed.update({record.offset: record.value for record in batch})
        assert parsed == kept
        store = harness.restart()
        assert {record.offset: record.body for record in store.cursor.read(0, 1 << 30).records} == kept


def headers_of(data: bytes) -> list[BatchHeader]:
    found = []
    position = 0
    while position < len(data):
        found.append(BatchHeader(data, position))
        position += int(found[-1].size)
    return found


@pytest.mark.parametrize("codec", [0, *CODECS], ids=NAMES.get)
def test_look_up_by_record_time(harness: Any, codec: int) -> None:
    """The look-up returns the first record in log order that is not earlier, for records with times of their own."""
    store = harness.create_log()
    hour = 3_600_000
    for number in range(6):
        times = [T + number * hour + 60_000 * (minute * 7 % 20) for minute in range(20)]
        store.appender.append_checked(check_batches(by_aiokafka(codec, [TEXT] * 20, times)))
        harness.end_turn()
    records = store.cursor.read(0, 1 << 30).records
    for wanted in (T - 1, T + 10 * 60_000, T + 2 * hour, T + 3 * hour + 19 * 60_000, T + 5 * hour + 1):
        expected = next(record.offset for record in records if record.timestamp_ms >= wanted)
        assert offset_at(store, wanted) == expected
    assert offset_at(store, T + 9 * hour) == store.next_offset
