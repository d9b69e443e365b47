"""KafkaReader and TopicFollower: reading a partition to its end and following it, despite leader changes, broken
connections and gaps.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_kafka import FETCH, METADATA, FakeKafka
from kafka_logs import create_topic, read
from kafka_rig import Kafka
from librt.strings import BytesWriter

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.kafka.consumer import FollowedPartition, KafkaReader, TopicFollower
from amqpd.kafka.keyed_records import KeyedRecord, keyed_batch, keyed_records
from amqpd.kafka.partition import UNKNOWN
from amqpd.kafka.producer import KafkaProducer, KafkaRefused, take_over
from amqpd.kafka.requests import EARLIEST
from amqpd.storage.log.batch import BatchHeader, close_batch


class StoredRecord(NamedTuple):
    """A record of a partition."""

    offset: int
    key: bytes
    value: bytes | None


def encoded_batch(*records: tuple[bytes, bytes | None], sequence: int = 0) -> bytes:
    """Return the bytes of a batch of these records, as sent to Kafka."""
    batch = keyed_batch([KeyedRecord(*each) for each in records], 0, 1_700_000_000_000, 7, 0, sequence)
    return b"".join((batch.header, batch.records, *batch.more))


def compacted_batch(offsets: int) -> bytes:
    """Return a batch of `offsets` offsets of which compaction left only the header."""
    header = bytearray(close_batch(BytesWriter(), b"", 0, 0, 0, 0, 1_700_000_000_000, 0, 9, 0, -1, [], 2).header)
    header[23:27] = (offsets - 1).to_bytes(4, "big")
    from google_crc32c import value

    header[17:21] = value(bytes(header[21:])).to_bytes(4, "big")
    return bytes(header)


def keyed(batches: list[bytes]) -> list[StoredRecord]:
    """Return the records with their offsets. No offset is missing within a batch."""
    return [
        StoredRecord(int(BatchHeader(batch, 0).base_offset) + index, *record)
        for batch in batches
        for index, record in enumerate(record for part in keyed_records(batch) for record in part)
    ]


@pytest.fixture
async def fake() -> AsyncIterator[FakeKafka]:
    async with FakeKafka(brokers=2) as kafka:
        kafka.create("t", 4)
        yield kafka


async def read_all(access: KafkaAccess, number: int, start: int, end: int) -> list[StoredRecord]:
    return keyed([batch async for batch in read(access, "t", number, start, end)])


def fill(fake: FakeKafka, number: int, count: int) -> list[StoredRecord]:
    """Append batches of one to three records. Return the records."""
    random_ = random.Random(number)
    found: list[StoredRecord] = []
    while len(found) < count:
        records = [(b"k%d" % random_.randrange(9), b"v" * random_.randrange(300)) for _ in range(random_.randint(1, 3))]
        at = fake.append("t", number, encoded_batch(*records))
        found += [StoredRecord(at + index, *each) for index, each in enumerate(records)]
    return found


class TestRecords:
    def test_records_survive_encoding(self) -> None:
        records = [(b"k", b"v"), (b"", b""), (b"gone", None), ("ü".encode(), bytes(range(256)) * 40)]
        assert keyed([encoded_batch(*records)]) == [StoredRecord(index, *each) for index, each in enumerate(records)]

    def test_many_records_are_decoded_in_parts(self) -> None:
        records = [(b"%d" % each, b"x" * 1000) for each in range(2000)]
        parts = list(keyed_records(encoded_batch(*records)))
        assert len(parts) > 5
        assert [(each.key, each.value) for part in parts for each in part] == records


class TestRead:
    async def test_whole_partition_is_read(self, fake: FakeKafka) -> None:
        expected = fill(fake, 2, 300)
        fake.fetch_size_max = 5000
        assert await read_all(fake.access, 2, 0, len(expected)) == expected
        assert fake.request_counts[FETCH] > 5

    async def test_partial_read_returns_whole_batches(self, fake: FakeKafka) -> None:
        fake.append("t", 0, encoded_batch((b"a", b"0"), (b"b", b"1"), (b"c", b"2")))
        fake.append("t", 0, encoded_batch((b"d", b"3"), (b"e", b"4")))
        fake.append("t", 0, encoded_batch((b"f", b"5")))
        assert [each.offset for each in await read_all(fake.access, 0, 1, 4)] == [0, 1, 2, 3, 4]
        assert [each.offset for each in await read_all(fake.access, 0, 3, 5)] == [3, 4]
        assert await read_all(fake.access, 0, 4, 4) == []

    async def test_read_waits_for_an_end_that_is_written_later(self, fake: FakeKafka) -> None:
        fake.append("t", 0, encoded_batch((b"a", b"0")))
        reading = asyncio.create_task(read_all(fake.access, 0, 0, 2))
        await fake.wait_for_requests(FETCH, 3)
        fake.append("t", 0, encoded_batch((b"b", b"1")))
        assert [each.key for each in await reading] == [b"a", b"b"]

    async def test_gaps_left_by_compaction_are_skipped(self, fake: FakeKafka) -> None:
        """Offsets are missing, one batch has no records, and the last record before the end is gone."""
        fake.append("t", 0, encoded_batch((b"a", b"0")))
        fake.append("t", 0, compacted_batch(5))
        held = fake.topics["t"][0]
        held.end += 10
        fake.append("t", 0, encoded_batch((b"b", b"1")))
        assert [each.offset for each in await read_all(fake.access, 0, 0, 17)] == [0, 16]
        assert [each.offset for each in await read_all(fake.access, 0, 0, 12)] == [0]

    async def test_read_starts_at_the_first_remaining_offset(self, fake: FakeKafka) -> None:
        expected = fill(fake, 1, 30)
        fake.delete_records("t", 1, 20)
        found = await read_all(fake.access, 1, 0, len(expected))
        assert found[-1] == expected[-1]
        assert 17 < found[0].offset <= 20
        fake.delete_records("t", 1, fake.topics["t"][1].end)
        assert await read_all(fake.access, 1, 0, len(expected)) == []

    async def test_read_survives_transient_failures(self, fake: FakeKafka) -> None:
        """Leader changes, broken connections, retriable error codes, a stopped broker."""
        expected = fill(fake, 3, 400)
        fake.fetch_size_max = 2000
        random_ = random.Random(16)

        async def trouble() -> None:
            while True:
                match random_.randrange(4):
                    case 0:
                        fake.lead("t", 3, random_.choice((1, 2)))
                    case 1:
                        fake.drop(random_.choice((1, 2)))
                    case 2:
                        fake.fail("t", 3, random_.choice((5, 6, 9, 56, 74, 78, -1)))
                    case _:
                        number = random_.choice((1, 2))
                        await fake.stop(number)
                        await asyncio.sleep(0.02)
                        await fake.start(number)
                await asyncio.sleep(0.02)

        troubling = asyncio.create_task(trouble())
        try:
            assert await read_all(fake.access, 3, 0, len(expected)) == expected
        finally:
            troubling.cancel()
            with suppress(asyncio.CancelledError):
                await troubling

    async def test_missing_offset_topic_or_right_is_an_error(self, fake: FakeKafka) -> None:
        fill(fake, 0, 3)
        reader = KafkaReader(fake.access, timeout_s=0.3)
        with pytest.raises(KafkaDisconnected, match=r"t 0 ends at .*, before 99"):
            async for _ in reader.read("t", 0, 0, 99):
                pass
        with pytest.raises(KafkaDisconnected, match="no broker leads none 0: UNKNOWN_TOPIC_OR_PARTITION"):
            async for _ in reader.read("none", 0, 0, 1):
                pass
        fake.fail("t", 0, 29)
        with pytest.raises(KafkaRefused, match="t 0: TOPIC_AUTHORIZATION_FAILED"):
            async for _ in reader.read("t", 0, 0, 1):
                pass
        await reader.close()

    async def test_parallel_reads_share_metadata_and_connections(self, fake: FakeKafka) -> None:
        """A thousand partitions need one metadata request and one connection per broker."""
        fake.create("many", 1000)
        for number in range(1000):
            fake.append("many", number, encoded_batch((b"%d" % number, b"")))
        reader = KafkaReader(fake.access)

        async def one(number: int) -> bytes:
            (found,) = keyed([batch async for batch in reader.read("many", number, 0, 1)])
            return found.key

        assert await asyncio.gather(*map(one, range(1000))) == [b"%d" % each for each in range(1000)]
        assert fake.request_counts[METADATA] == 1
        assert await reader.offsets("many", range(1000)) == dict.fromkeys(range(1000), 1)
        assert await reader.offsets("many", [5], EARLIEST) == {5: 0}
        await reader.close()

    async def test_read_yields_to_the_event_loop_after_each_batch(self, fake: FakeKafka) -> None:
        """This holds for large answers and for slow callers."""
        count = 60
        for _ in range(count):
            fake.append("t", 0, encoded_batch((b"k", b"v")))
        turns = 0

        async def ticking() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        ticks = asyncio.create_task(ticking())
        seen: set[int] = set()
        async for _ in read(fake.access, "t", 0, 0, count):
            time.sleep(0.004)  # noqa: ASYNC251  # imitates a slow decoder
            seen.add(turns)
        ticks.cancel()
        assert len(seen) == count


class RecordingFollower:
    """A follower and the records that it received."""

    def __init__(self, access: KafkaAccess) -> None:
        self.received: dict[int, list[StoredRecord]] = {}
        self.follower = TopicFollower(access, self.take)

    async def take(self, followed: FollowedPartition, batch: bytes) -> None:
        self.received.setdefault(followed.number, []).extend(keyed([batch]))


@pytest.fixture
async def recorder(fake: FakeKafka) -> AsyncIterator[RecordingFollower]:
    recorder = RecordingFollower(fake.access)
    yield recorder
    await recorder.follower.close()


class TestFollower:
    async def test_follower_gets_existing_and_new_records(self, fake: FakeKafka, recorder: RecordingFollower) -> None:
        expected = {number: fill(fake, number, 50) for number in range(4)}
        followed = [recorder.follower.follow("t", number) for number in range(4)]
        await recorder.follower.wait_caught_up(followed)
        assert recorder.received == expected
        for number in range(4):
            expected[number] += fill(fake, number, 20)
            await recorder.follower.wait_reached(followed[number], len(expected[number]))
        assert recorder.received == expected
        assert all(each.next_offset == len(expected[each.number]) for each in followed)

    async def test_refused_partition_is_logged_once_and_read_later(
        self, fake: FakeKafka, recorder: RecordingFollower, caplog: pytest.LogCaptureFixture
    ) -> None:
        expected = fill(fake, 0, 3)
        fake.fail("t", 0, *[29] * 4)
        await recorder.follower.wait_reached(recorder.follower.follow("t", 0), len(expected))
        assert recorder.received == {0: expected}
        lines = [each for each in caplog.messages if "TOPIC_AUTHORIZATION_FAILED" in each]
        assert lines == ["trouble with Kafka: t 0: TOPIC_AUTHORIZATION_FAILED at offset 0"]
        assert fake.access.outages.duration_s() == 0

    async def test_one_request_fetches_all_partitions_of_a_broker(
        self, fake: FakeKafka, recorder: RecordingFollower
    ) -> None:
        fake.create("many", 200)
        followed = [recorder.follower.follow("many", number) for number in range(200)]
        before = fake.request_counts[FETCH]
        for number in range(200):
            fake.append("many", number, encoded_batch((b"k", b"v")))
        await recorder.follower.wait_caught_up(followed)
        assert fake.request_counts[FETCH] - before < 20

    async def test_busy_partition_does_not_starve_others(self, fake: FakeKafka, recorder: RecordingFollower) -> None:
        """The busy partition fills one answer; the next answer begins with the other partitions."""
        fake.fetch_size_max = 1000
        busy, idle = recorder.follower.follow("t", 0), recorder.follower.follow("t", 2)
        await recorder.follower.wait_caught_up([busy, idle])

        async def write() -> None:
            while True:
                fake.append("t", 0, encoded_batch((b"k", b"v" * 900)))
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        for each in range(5):
            fake.append("t", 2, encoded_batch((b"k", b"%d" % each)))
            await recorder.follower.wait_reached(idle, each + 1)
        writing.cancel()

    async def test_follower_survives_transient_failures(self, fake: FakeKafka, recorder: RecordingFollower) -> None:
        random_ = random.Random(17)
        followed = [recorder.follower.follow("t", number) for number in range(4)]
        expected: dict[int, list[StoredRecord]] = {number: [] for number in range(4)}
        for turn in range(40):
            number = random_.randrange(4)
            expected[number] += fill(fake, number, 3)
            match random_.randrange(4):
                case 0:
                    fake.lead("t", number, random_.choice((1, 2)))
                case 1:
                    fake.drop(random_.choice((1, 2)))
                case 2:
                    fake.fail("t", number, random_.choice((5, 6, 9, 56, 74, 78, -1)))
                case _:
                    if turn % 8 == 0:
                        await fake.stop(1)
                        await asyncio.sleep(0.05)
                        await fake.start(1)
            await asyncio.sleep(0.01)
        await recorder.follower.wait_caught_up(followed)
        for number in range(4):  # `fill` returns the same records each time, so offsets are compared
            assert [each.offset for each in recorder.received.get(number, [])] == list(
                range(fake.topics["t"][number].end)
            )

    async def test_follower_waits_for_a_topic_created_later(self, fake: FakeKafka, recorder: RecordingFollower) -> None:
        followed = recorder.follower.follow("later", 0)
        reaching = asyncio.create_task(recorder.follower.wait_reached(followed, 1))
        await fake.wait_for_requests(METADATA, 2)
        fake.create("later", 1)
        fake.append("later", 0, encoded_batch((b"k", b"v")))
        await reaching
        assert recorder.received == {0: [StoredRecord(0, b"k", b"v")]}

    async def test_follower_starts_at_the_first_remaining_offset(
        self, fake: FakeKafka, recorder: RecordingFollower
    ) -> None:
        expected = fill(fake, 0, 30)
        fake.delete_records("t", 0, len(expected))
        followed = recorder.follower.follow("t", 0)
        await recorder.follower.wait_caught_up([followed])
        assert recorder.received == {}
        fake.append("t", 0, encoded_batch((b"k", b"v")))
        await recorder.follower.wait_caught_up([followed])
        assert recorder.received == {0: [StoredRecord(len(expected), b"k", b"v")]}

    async def test_failing_callback_ends_the_follower(self, fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
        async def take(_: FollowedPartition, __: bytes) -> None:
            raise ValueError("a bug")

        failed: list[BaseException] = []
        follower = TopicFollower(fake.access, take, failed.append)
        fill(fake, 0, 1)
        followed = follower.follow("t", 0)
        with pytest.raises(KafkaDisconnected):
            await follower.wait_caught_up([followed])
        assert failed == [follower.failed]
        assert isinstance(follower.failed, ValueError)
        assert "a bug" in caplog.text
        with pytest.raises(KafkaDisconnected):
            await follower.wait_reached(followed, 1)
        await follower.close()

    async def test_error_while_delivering_is_logged_and_the_fetch_repeated(
        self,
        fake: FakeKafka,
        recorder: RecordingFollower,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        expected = fill(fake, 0, 3)
        whole, tries = TopicFollower._deliver, 0

        async def failing(self: TopicFollower, followed: FollowedPartition, batches: list[bytes]) -> None:
            nonlocal tries
            tries += 1
            if tries <= 2:
                raise IndexError("a bug of ours")
            await whole(self, followed, batches)

        monkeypatch.setattr(TopicFollower, "_deliver", failing)
        followed = recorder.follower.follow("t", 0)
        await recorder.follower.wait_caught_up([followed])
        assert recorder.received == {0: expected}
        assert caplog.text.count("a bug in amqpd, please report it") == 2

    async def test_close_ends_a_waiting_call(self, fake: FakeKafka) -> None:
        made = RecordingFollower(fake.access)
        followed = made.follower.follow("t", 0)
        waiting = asyncio.create_task(made.follower.wait_reached(followed, 1))
        await asyncio.sleep(0.05)
        await made.follower.close()
        with pytest.raises(KafkaDisconnected):
            await waiting


def size_of(directory: Path) -> int:
    """Return the bytes of the segments. Kafka may delete some meanwhile."""
    size = 0
    for each in directory.glob("*.log"):
        with suppress(FileNotFoundError):
            size += each.stat().st_size
    return size


class TestRealKafka:
    async def test_compacted_partition_keeps_the_last_value_of_each_key(
        self, kafka: Kafka, access: KafkaAccess, topic: str
    ) -> None:
        """This holds for values of any owner; a follower gets all records."""
        create_topic(
            kafka.bootstrap,
            topic,
            cleanup_policy="compact",
            segment_bytes=str(1 << 20),
            min_cleanable_dirty_ratio="0.01",
            max_compaction_lag_ms="100",
            segment_ms="100",
        )
        received: list[StoredRecord] = []

        async def take(_: FollowedPartition, batch: bytes) -> None:
            received.extend(keyed([batch]))

        follower = TopicFollower(access, take)
        followed = follower.follow(topic, 0)
        last: dict[bytes, bytes | None] = {}
        end = 0
        for owner in range(3):
            producer = KafkaProducer(
                access, on_moved=lambda _: None, on_refused=lambda _: None, on_fenced=lambda _: None
            )
            partition = producer.open(topic, 0, UNKNOWN)
            held = await take_over(producer, topic, [partition])
            sequence = 1
            for turn in range(30):
                records = [(b"k%d" % (each % 7), b"%d of %d" % (turn, owner) + b"x" * 5000) for each in range(10)]
                made = [KeyedRecord(*each) for each in records]
                now = int(time.time() * 1000)
                batch = keyed_batch(made, partition.next_offset, now, held.producer_id, held.epoch, sequence)
                sequence += len(records)
                producer.offer(partition, [batch])
                last.update(records)
            producer.flush()
            await producer.wait_stored([partition])
            end = int(partition.next_offset)
            await producer.close()
        await follower.wait_reached(followed, end)
        assert len([each for each in received if each.value is not None]) == 900
        segments = kafka.partition_directory(1, topic, 0)
        kafka.until(lambda: size_of(segments) < 2_000_000)
        batches = [batch async for batch in read(access, topic, 0, 0, end)]
        assert BatchHeader(batches[-1], 0).last_offset == end - 1
        found = {each.key: each.value for each in keyed(batches)}
        assert found.pop(topic.encode()) is None  # the barriers
        assert found == last
        reader = KafkaReader(access)
        assert await reader.offsets(topic, [0]) == {0: end}
        assert await reader.offsets(topic, [0], EARLIEST) == {0: 0}
        await reader.close()
        await follower.close()
