"""Kafka's compression and CreateTime, at any place of a log: what Kafka's clients wrote is read, and what is written is
read by them. kafka-python unpacks with other libraries (lz4, zstandard) than the broker does, aiokafka with the same.
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
from amqpd.storage.log.record import BadRecord, RecordRoute
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


def made_by(kind: Any, codec: int, bodies: list[bytes], times: list[int]) -> bytes:
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


by_kafka_python = partial(made_by, DefaultRecordBatchBuilder)
by_aiokafka = partial(made_by, AioBuilder)
BUILDERS = {"kafka-python": by_kafka_python, "aiokafka": by_aiokafka}


def packed(codec: int, records: bytes, count: int, *, base: int = 0) -> bytes:
    """A batch around bytes that pass for compressed ones."""
    from google_crc32c import value

    covered = struct.pack(">hiqqqhii", codec, count - 1, T, T, -1, -1, -1, count) + records
    return struct.pack(">qiibI", base, len(covered) + 9, 0, 2, value(covered)) + covered


class TestCodecs:
    @pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
    @settings(max_examples=examples(30), deadline=None)
    @given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=200).map(lambda each: each * 500)))
    def test_there_and_back(self, codec: int, data: bytes) -> None:
        assert decompress(codec, compress(codec, data)) == data

    def test_other_libraries_read_what_is_written(self) -> None:
        data = TEXT * 100
        assert zlib.decompress(compress(GZIP, data), 31) == data
        assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(ZSTD, data)) == data
        assert lz4.frame.decompress(compress(LZ4, data)) == data
        frame = compress(LZ4, data)
        assert lz4.frame.get_frame_info(frame)["block_linked"] is False, "Kafka's Java client reads no others"
        large = bytes(5 << 20)
        assert lz4.frame.decompress(compress(LZ4, large)) == large

    def test_what_other_libraries_write_is_read(self) -> None:
        data = TEXT * 100
        assert decompress(LZ4, lz4.frame.compress(data, block_linked=True, content_checksum=True)) == data
        assert decompress(LZ4, lz4.frame.compress(data, block_linked=False, store_size=False)) == data
        assert decompress(ZSTD, zstandard.ZstdCompressor(level=19, write_checksum=True).compress(data)) == data
        streaming = zstandard.ZstdCompressor(level=1).compressobj()
        assert decompress(ZSTD, streaming.compress(data) + streaming.flush()) == data
        assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
        assert decompress(GZIP, zlib.compress(data[:500], 9, 31) + zlib.compress(data[500:], 0, 31)) == data

    @pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
    def test_a_bomb_takes_no_memory(self, codec: int) -> None:
        bomb = compress(codec, bytes(UNPACKED_MAX + 1))
        with pytest.raises(BadRecord):
            decompress(codec, bomb)
        assert len(decompress(codec, compress(codec, bytes(UNPACKED_MAX)))) == UNPACKED_MAX

    @pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
    @settings(max_examples=examples(60), deadline=None)
    @given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
    def test_spoilt_bytes_are_bad_records_and_nothing_else(self, codec: int, place: int, byte: int, cut: bool) -> None:
        data = compress(codec, TEXT)
        place %= len(data)
        spoilt = data[:place] if cut else data[:place] + bytes([byte]) + data[place + 1 :]
        with contextlib.suppress(BadRecord):
            decompress(codec, spoilt)

    def test_a_size_that_is_a_lie(self) -> None:
        """Raw snappy tells its size in front: four GiB, in five bytes."""
        for size in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"):
            with pytest.raises(BadRecord):
                decompress(SNAPPY, size + b"\x00a")
        with pytest.raises(BadRecord):
            decompress(SNAPPY, compress(SNAPPY, b"a")[:16] + b"\x7f\xff\xff\xff")


@pytest.mark.parametrize("codec", [0, *CODECS], ids=NAMES.get)
@pytest.mark.parametrize("builder", BUILDERS)
class TestTheirs:
    def test_read_at_any_place(self, house: Any, builder: str, codec: int) -> None:
        bodies = [b"%d %s" % (number, TEXT) for number in range(90)]
        times = [T + 37 * number - 500 * (number % 3) for number in range(90)]
        store = house.begin()
        house.append(b"ours")
        theirs = BUILDERS[builder](codec, bodies, times)
        assert BatchHeader(theirs, 0).attributes == codec, "as it was meant: compressed, and with CreateTime"
        assert store.appender.append_batches(theirs + theirs) == 1
        house.append(b"ours again")
        house.turn()
        for _ in range(3):
            records = store.cursor.read(0, 1 << 30).records
            assert [record.body for record in records] == [b"ours", *bodies, *bodies, b"ours again"]
            assert [record.timestamp_ms for record in records[1:-1]] == times * 2
            assert records[0].timestamp_ms == records[-1].timestamp_ms == house.clock.now_ms
            assert {record.exchange for record in records} == {b"orders"}
            assert store.size_bytes == sum(map(len, bodies)) * 2 + 14
            assert [record.offset for record in store.cursor.read(85, 1 << 30).records] == list(range(85, 182))
            assert bytes(house.log()).count(theirs[21:]) == 2, "as it came, but for its place"
            store = house.again()  # after a kill everything is counted anew
        store.ack_range(0, 100)
        house.turn()
        house.turn()
        store = house.again(house.filesystem.crashed(1))
        assert [record.offset for record in store.cursor.read(0, 1 << 30).records] == list(range(101, 182))


@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
def test_theirs_read_what_is_compressed_here(codec: int) -> None:
    data = by_kafka_python(0, [TEXT, b"", b"z"], [T, T + 1, T + 2])
    batch = packed(codec, compress(codec, data[61:]), 3)
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
def test_plain_is_the_batch_as_it_would_stand_there(codec: int) -> None:
    before = by_kafka_python(0, [TEXT] * 3, [T, T + 5, T + 1])
    compressed = b"xyz" + by_kafka_python(codec, [TEXT] * 3, [T, T + 5, T + 1]) + b"tail"
    image, at, header = decompressed(compressed, 3, BatchHeader(compressed, 3))
    assert at == 0
    assert image[:17] + image[21:] == before[:17] + before[21:], "all but the checksum"
    assert (header.size, header.attributes, header.count) == (len(before), 0, 3)
    assert decompressed(before, 0, header) == (before, 0, header)


class TestDamage:
    """Batches with a right checksum that do not unpack: they are lost, and they alone."""

    def bad(self, how: str) -> bytes:
        if how == "bomb":
            return packed(ZSTD, compress(ZSTD, bytes(UNPACKED_MAX + 1)), 2)
        if how == "noise":
            return packed(LZ4, b"nothing of the kind", 2)
        return packed(GZIP, compress(GZIP, b"\x06\x00\x00\x00 no record"), 2)

    @pytest.mark.parametrize("how", ["bomb", "noise", "no records"])
    def test_refused_at_the_door(self, house: Any, how: str) -> None:
        store = house.begin()
        with pytest.raises(BadBatch, match="bad record in the batch at 0"):
            store.appender.append_batches(self.bad(how))
        assert store.next_offset == 0

    @pytest.mark.parametrize("how", ["bomb", "noise", "no records"])
    @pytest.mark.parametrize("clean", [True, False])
    def test_passed_over_where_they_stand(self, house: Any, how: str, clean: bool) -> None:
        """In the middle of a log, as something else may have written them; with and without a recovery that looks."""
        store = house.begin()
        good = by_kafka_python(ZSTD, [TEXT] * 2, [T] * 2)
        store.appender.append_batches(good * 3)
        house.turn()
        house.storage.close(clean=clean)
        log = house.log()
        size = len(good)
        bad = self.bad(how)
        log[size : 2 * size] = (2).to_bytes(8, "big") + bad[8:]
        store = house.again(house.filesystem)
        records = store.cursor.read(0, 1 << 30).records
        assert [record.offset for record in records] == [0, 1, 4, 5]
        assert {offset for first, last in store.lost for offset in range(first, last + 1)} == {2, 3}
        assert store.record_count == 4

    def test_passed_over_by_a_reader(self, house: Any) -> None:
        store = house.begin()
        good = by_kafka_python(ZSTD, [TEXT] * 2, [T] * 2)
        store.appender.append_batches(good * 3)
        house.turn()
        size = len(good)
        house.log()[size : 2 * size] = packed(LZ4, b"n" * (size - 61), 2, base=2)
        for _ in range(2):
            assert [record.offset for record in store.cursor.read(0, 1 << 30).records] == [0, 1, 4, 5]
        assert (store.lost, store.record_count) == ([(2, 3)], 4)
        assert [record.offset for record in store.new_cursor().read(3, 1 << 30).records] == [4, 5]

    def test_attributes_that_no_codec_has(self, house: Any) -> None:
        store = house.begin()
        for codec in (5, 6, 7):
            with pytest.raises(BadBatch):
                store.appender.append_batches(packed(codec, b"x" * 40, 2))

    def test_a_time_later_than_the_header_tells(self, house: Any) -> None:
        """The header's is what the time index believes."""
        store = house.begin()
        batch = bytearray(by_kafka_python(0, [b"a", b"b"], [T, T + 5]))
        batch[35:43] = (T + 4).to_bytes(8, "big")
        from google_crc32c import value

        batch[17:21] = value(bytes(batch[21:])).to_bytes(4, "big")
        with pytest.raises(BadBatch, match="later than the max timestamp"):
            store.appender.append_batches(bytes(batch))


def json_body(number: int) -> bytes:
    user = f"user-{number * 7919 % 1000}"
    return json.dumps({"id": number, "user": user, "action": "view", "n": number % 7}).encode()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
class TestOurs:
    def test_kafkas_parsers_read_them(self, house: Any, codec: int) -> None:
        store = house.begin()
        house.storage.set_policy(store, RetentionPolicy(codec=codec))
        bodies = [json_body(number) for number in range(3000)]
        for start in range(0, 3000, 700):
            house.append(*bodies[start : start + 700])
            house.turn()
        file = bytes(house.log())
        headers = headers_of(file)
        assert all(header.attributes == codec | 8 for header in headers)
        assert max(header.count for header in headers) > 500, "more of them than where nothing is compressed"
        assert len(file) < sum(map(len, bodies)) // 2
        records = MemoryRecords(file)
        theirs = []
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            theirs += [(record.offset, record.key, record.value, record.timestamp) for record in batch]
        assert theirs == [(number, b"eu.new", body, house.clock.now_ms) for number, body in enumerate(bodies)]
        position = 0
        aio = []
        while position < len(file):
            size = int(BatchHeader(file, position).size)
            aio += [record.value for record in AioBatch(file[position : position + size])]
            position += size
        assert aio == bodies
        assert house.bodies() == bodies
        assert store.size_bytes == sum(map(len, bodies))

    def test_kills_and_power_cuts(self, house: Any, codec: int) -> None:
        store = house.begin()
        house.storage.set_policy(store, RetentionPolicy(codec=codec))
        bodies = [json_body(number) for number in range(400)]
        house.append(*bodies)
        house.turn()
        store.ack_range(0, 99, sum(map(len, bodies[:100])))
        house.turn()
        house.turn()
        for left in (house.filesystem.killed(), house.filesystem.crashed(1)):
            store = house.again(left)
            assert house.bodies() == bodies[100:]
            assert (store.record_count, store.size_bytes) == (300, sum(map(len, bodies[100:])))

    def test_transactions(self, house: Any, codec: int) -> None:
        store = house.begin()
        house.storage.set_policy(store, RetentionPolicy(codec=codec))
        store.begin_transaction()
        bodies = [json_body(number) for number in range(3000)]
        house.append(*bodies)
        store.end_transaction()
        house.turn()
        attributes = [int(header.attributes) for header in headers_of(bytes(house.log()))]
        assert attributes[:-1] == [codec | 0x18] * (len(attributes) - 1)
        assert attributes[-1] == 0x38, "the marker"
        house.again()
        assert house.bodies() == bodies

    def test_half_a_transaction_does_not_count(self, house: Any, codec: int) -> None:
        store = house.begin()
        house.storage.set_policy(store, RetentionPolicy(codec=codec))
        house.append(b"before")
        house.turn()
        store.begin_transaction()
        house.append(*[json_body(number) for number in range(3000)])
        store.end_transaction()
        house.turn()
        file = house.log()
        sizes = [int(header.size) for header in headers_of(bytes(file))]
        left = house.filesystem.killed()
        node = left._get(f"{house.directory}/{house.names('.log')[-1]}")
        del node.data[sum(sizes[:-2]) :]
        left.unlink(f"{house.directory}/high-watermark")
        house.again(left)
        assert house.bodies() == [b"before"]

    def test_what_is_not_worth_it_stays_as_it_is(self, house: Any, codec: int) -> None:
        store = house.begin()
        house.storage.set_policy(store, RetentionPolicy(codec=codec))
        noise = random.Random(1).randbytes(60_000)
        for body in (b"small", noise, b"x" * 600_000):
            house.append(body)
            house.turn()
        store.append_large(ROUTE, b"\x00\x00", [b"y" * 300_000, b"z" * 300_000], 600_000, True)
        house.turn()
        assert [int(header.attributes) for header in headers_of(bytes(house.log()))] == [8] * 4
        assert house.bodies() == [b"small", noise, b"x" * 600_000, b"y" * 300_000 + b"z" * 300_000]

    def test_changed_while_it_runs(self, house: Any, codec: int) -> None:
        store = house.begin()
        bodies = [json_body(number) for number in range(300)]
        for chosen in (0, codec, ZSTD, 0):
            house.storage.set_policy(store, RetentionPolicy(codec=chosen))
            house.append(*bodies)
            house.turn()
        found = [int(header.attributes) & 7 for header in headers_of(bytes(house.log()))]
        assert [key for key, _ in groupby(found)] == [0, *dict.fromkeys((codec, ZSTD)), 0]
        assert house.bodies() == bodies * 4

    def test_compaction_keeps_the_codec(self, house: Any, codec: int) -> None:
        house.arguments["segment_size_bytes"] = 2000
        store = house.begin()
        house.storage.set_policy(
            store, RetentionPolicy(codec=codec, compaction=CleanerPolicy(min_dirty_ratio=0.01), file_delete_delay_ms=0)
        )
        routes = [RecordRoute(b"orders", b"key.%d" % key) for key in range(20)]
        latest = {}
        for number in range(2000):
            body = json_body(number)
            latest[number % 20] = (store.append_parts(routes[number % 20], b"\x00\x00", body, True), body)
            if number % 100 == 99:
                house.turn()
        segments = len(store.log.segments)
        house.storage.maintain()
        for _ in range(4):
            house.turn()
        assert len(store.log.segments) < segments
        active = int(store.log.segments[-1].base)
        records = store.cursor.read(0, 1 << 30).records
        kept = {record.offset: record.body for record in records}
        assert all(kept[offset] == body for offset, body in latest.values())
        assert sum(record.offset < active for record in records) == 20 if active else True
        for name in house.names(".log"):
            for header in headers_of(bytes(house.data(name))):
                assert header.attributes & 7 == codec
        records = MemoryRecords(b"".join(bytes(house.data(name)) for name in house.names(".log")))
        theirs = {}
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            theirs.update({record.offset: record.value for record in batch})
        assert theirs == kept
        store = house.again()
        assert {record.offset: record.body for record in store.cursor.read(0, 1 << 30).records} == kept


def headers_of(data: bytes) -> list[BatchHeader]:
    found = []
    position = 0
    while position < len(data):
        found.append(BatchHeader(data, position))
        position += int(found[-1].size)
    return found


@pytest.mark.parametrize("codec", [0, *CODECS], ids=NAMES.get)
def test_times_are_found(house: Any, codec: int) -> None:
    """Of records that have their own times the first in the order of the log that is not earlier."""
    store = house.begin()
    hour = 3_600_000
    for number in range(6):
        times = [T + number * hour + 60_000 * (minute * 7 % 20) for minute in range(20)]
        store.appender.append_batches(by_aiokafka(codec, [TEXT] * 20, times))
        house.turn()
    records = store.cursor.read(0, 1 << 30).records
    for wanted in (T - 1, T + 10 * 60_000, T + 2 * hour, T + 3 * hour + 19 * 60_000, T + 5 * hour + 1):
        expected = next(record.offset for record in records if record.timestamp_ms >= wanted)
        assert offset_at(store, wanted) == expected
    assert offset_at(store, T + 9 * hour) == store.next_offset
