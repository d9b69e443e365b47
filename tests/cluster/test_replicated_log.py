"""Replicated queue logs in a real Kafka: a slot's owner and its successors. tests/replicated has the same without
Kafka.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from kafka_logs import KafkaAdminClient, create_topic, fetch, fetch_all
from kafka_logs import KafkaTopicPartition as TopicPartition
from kafka_rig import Kafka, missing, need
from test_topics import options_for, settings_of

from amqpd.cluster.replicated_log import ReplicatedLog
from amqpd.cluster.slot_logs import LogPosition, SlotLogs
from amqpd.cluster.storage import ClusterStorage, PlacedLog
from amqpd.kafka.admin import compacted_rules
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.consumer import KafkaReader
from amqpd.kafka.partition import UNKNOWN
from amqpd.kafka.producer import KafkaProducer, init_producer_id, take_over
from amqpd.kafka.requests import ProducerId
from amqpd.storage.acks.ack_set import SETTLED
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.queue_log import LogFailed, QueueLog

ROUTE = RecordRoute(b"orders", b"eu.new")
PROPERTIES = b"\x10\x00\x02"


class Owner:
    """The owner of a slot: the only writer of partition 0 of `<topic>.settled` and of the partitions of `<topic>`, one
    queue each.
    """

    def __init__(self, access: KafkaAccess, topic: str, directory: Path, queues: int, first: dict[int, int]) -> None:
        self.access = access
        self.topic = topic
        self.first = first
        loop = asyncio.get_running_loop()
        self.storage = ClusterStorage(directory, post=loop.call_soon_threadsafe, later=loop.call_later)
        self.producer = KafkaProducer(
            access, on_moved=lambda _: None, on_refused=lambda _: None, on_fenced=lambda _: None
        )
        self.reader = KafkaReader(access)
        self.count = queues
        self.queues: list[ReplicatedLog] = []
        self.failed: list[QueueLog] = []
        self.fenced: list[str] = []

    @property
    def transactional_id(self) -> str:
        return f"{self.topic}.slot0"

    async def take(self) -> Owner:
        settled = self.producer.open(f"{self.topic}.settled", 0, UNKNOWN)
        partitions = [self.producer.open(self.topic, number, UNKNOWN) for number in range(self.count)]
        held = await take_over(self.producer, self.transactional_id, [settled, *partitions])
        self.logs = SlotLogs(
            self.producer,
            held,
            settled,
            self.storage.commits,
            self.reader.read,
            on_failed=self.failed.append,
            on_room=lambda: None,
            on_fenced=self.fenced.append,
        )
        await self.logs.read_acks(self.reader.read(f"{self.topic}.settled", 0, 0, int(settled.next_offset)))
        for number, partition in enumerate(partitions):
            place = LogPosition(self.topic, number, self.first.setdefault(number, int(partition.next_offset)))
            name = f"{number + 1:032x}"
            self.storage.places[name] = PlacedLog(self.logs, place)
            log = self.storage.open_queue("v", name, f"q{number}", "/")
            assert isinstance(log, ReplicatedLog)
            self.queues.append(log)
        return self

    async def open(self) -> Owner:
        await self.take()
        for log in self.queues:
            opened = asyncio.Event()
            if not log.open_soon(opened.set):
                await opened.wait()
            log.recover()
        return self

    def append(self, *bodies: bytes, number: int = 0) -> list[int]:
        log = self.queues[number]
        return [log.append(ROUTE, PROPERTIES + body, 0, 3, 3, 3 + len(body), True) for body in bodies]

    def turn(self) -> None:
        self.storage.commits.end_of_turn()

    async def safe(self, offset: int, number: int = 0) -> bool:
        self.turn()
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.queues[number].when_safe(offset, answer.set_result)
        return await asyncio.wait_for(answer, 60)

    async def wait_acks_stored(self) -> None:
        """Wait until all acks are in Kafka."""
        self.turn()
        for log in self.queues:
            await until(lambda log=log: not log.deferred and not log.dirty)  # type: ignore[misc]
            await until(lambda log=log: not log.ack_writer.waiting and not log.ack_writer.has_waiting)  # type: ignore[misc]
        await self.producer.wait_stored([self.logs.settled])

    def live(self, number: int = 0) -> list[Record]:
        return list(self.queues[number].cursor.read(0, 1 << 40).records)

    def bodies(self, number: int = 0) -> list[bytes]:
        return [record.body for record in self.live(number)]

    async def close(self) -> None:
        if hasattr(self, "logs"):
            await self.logs.close()
        await self.producer.close()
        await self.reader.close()
        self.storage.close(clean=False)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # no event to wait for
        await asyncio.sleep(0.01)


class Owners:
    """Successive owners. An owner ends without handing over, unless the test gives it up."""

    def __init__(
        self, kafka: Kafka, access: KafkaAccess, topic: str, directory: Path, settled: Mapping[str, str] | None = None
    ) -> None:
        """settled: settings of the topic for acks."""
        self.access = access
        self.topic = topic
        self.directory = directory
        self.first: dict[int, int] = {}
        self.made: list[Owner] = []
        self.count = 0
        self.queues = 2
        create_topic(kafka.bootstrap, topic, self.queues)
        create_topic(kafka.bootstrap, f"{topic}.settled", 1, **(settled or {}))

    def new(self) -> Owner:
        self.count += 1
        directory = self.directory / str(self.count)
        self.made.append(Owner(self.access, self.topic, directory, self.queues, self.first))
        return self.made[-1]


@pytest.fixture
async def owners(kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path) -> AsyncIterator[Owners]:
    created = Owners(kafka, access, topic, tmp_path)
    yield created
    for owner in created.made:
        await owner.close()


async def test_next_owner_has_the_unacked_messages(owners: Owners) -> None:
    owner = await owners.new().open()
    offsets = owner.append(*(b"%d" % number for number in range(1000)))
    assert await owner.safe(offsets[-1])
    for offset in offsets[::2]:
        owner.queues[0].ack(offset, len(b"%d" % (offset - offsets[0])))
    owner.queues[0].mark_returned(offsets[1], 4)
    owner.append(b"other", number=1)
    await owner.wait_acks_stored()
    after = await owners.new().open()
    assert after.bodies() == [b"%d" % number for number in range(1, 1000, 2)]
    assert after.queues[0].delivery_count(offsets[1]) == 4
    assert after.queues[0].size_bytes == sum(len(b"%d" % number) for number in range(1, 1000, 2))
    assert after.bodies(1) == [b"other"]


async def test_old_owner_confirms_nothing_after_a_takeover(owners: Owners) -> None:
    """The old owner has nothing else to send, so the message is its first write after the barrier."""
    owner = await owners.new().open()
    (offset,) = owner.append(b"a")
    assert await owner.safe(offset)
    await owner.wait_acks_stored()
    after = await owners.new().open()
    (late,) = owner.append(b"too late")
    assert not await owner.safe(late)
    assert owner.fenced
    assert owner.storage.commits.unsynced_bytes == 0
    (offset,) = after.append(b"b")
    assert await after.safe(offset)
    assert (await owners.new().open()).bodies() == [b"a", b"b"]


async def test_old_owner_accepts_nothing_once_it_knows_of_the_takeover(owners: Owners) -> None:
    """Kafka has refused its acks, which it sends without being asked."""
    owner = await owners.new().open()
    (offset,) = owner.append(b"a")
    assert await owner.safe(offset)
    await owner.wait_acks_stored()
    after = await owners.new().open()
    owner.queues[0].ack(offset, 1)
    owner.turn()
    await until(lambda: bool(owner.fenced))
    with pytest.raises(LogFailed):
        owner.append(b"too late")
    assert owner.storage.commits.unsynced_bytes == 0
    assert after.bodies() == [b"a"]


async def test_slot_given_up_is_taken_over_cleanly(owners: Owners) -> None:
    owner = await owners.new().open()
    offsets = owner.append(b"a", b"b", b"c")
    owner.queues[0].mark_delivered(offsets[0])
    owner.turn()
    owner.queues[0].ack(offsets[1], 1)
    await owner.logs.give_up()
    after = await owners.new().open()
    assert after.logs.is_clean_takeover
    assert after.bodies() == [b"a", b"c"]
    assert [after.queues[0].redelivered(offset) for offset in (offsets[0], offsets[2])] == [True, False]


async def test_renewed_epoch_under_load_loses_nothing(owners: Owners) -> None:
    """The owner renews its epoch daily. No message is lost, repeated or reordered, and epochs never decrease."""
    owner = await owners.new().open()
    sent: list[bytes] = []
    for turn in range(60):
        bodies = [b"%d.%d" % (turn, number) for number in range(20)]
        owner.append(*bodies)
        sent += bodies
        owner.turn()
        if turn % 20 == 10:
            held = await init_producer_id(owner.access, owner.transactional_id, owner.logs.held)
            assert held.epoch == owner.logs.held.epoch + 1
            owner.logs.renew(held)
        await asyncio.sleep(0)
    assert await owner.safe(owner.queues[0].next_offset - 1)
    owner.logs.keep_alive(owner.transactional_id.encode())
    await owner.producer.wait_stored([*owner.logs.logs, owner.logs.settled])
    assert not owner.fenced
    batches = await fetch_all(owner.access, owners.topic, 0)
    epochs = [int(BatchHeader(batch, 0).producer_epoch) for batch in batches]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 4
    assert (await owners.new().open()).bodies() == sent


async def test_acked_records_are_deleted_in_kafka(kafka: Kafka, owners: Owners) -> None:
    """The next owner reads the rest from the later start of the partition."""
    owner = await owners.new().open()
    body = b"x" * 10_000
    for _ in range(20):
        owner.append(*([body] * 50))
        owner.turn()
        await asyncio.sleep(0)
    assert await owner.safe(owner.queues[0].next_offset - 1)
    first = owner.queues[0].first_offset
    owner.queues[0].ack_range(first, first + 899, 900 * len(body))
    await owner.wait_acks_stored()
    freed: list[tuple[str, dict[int, int]]] = []

    async def delete(topic: str, before: Mapping[int, int]) -> None:
        freed.append((topic, dict(before)))
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        at = {TopicPartition(topic, number): offset for number, offset in before.items()}
        await asyncio.to_thread(admin.delete_records, at)
        admin.close()

    assert await owner.logs.truncation.delete_unneeded(delete) == 1
    assert freed == [(owners.topic, {0: first + 900})]
    assert owner.queues[0].location()["first_offset"] == first + 900
    left = await fetch(owner.access, owners.topic, 0, first + 900)
    assert left.log_start_offset == first + 900
    after = await owners.new().open()
    assert after.queues[0].record_count == 100
    assert await owner.logs.truncation.delete_unneeded(delete) == 0


async def test_renewal_of_a_fenced_epoch_is_refused(owners: Owners) -> None:
    owner = await owners.new().open()
    after = await owners.new().open()
    assert isinstance(after.logs.held, ProducerId)
    with pytest.raises(Exception, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
        await init_producer_id(owner.access, owner.transactional_id, owner.logs.held)


@pytest.mark.parametrize("seed", range(6))
async def test_crashing_owners_agree_with_a_model(owners: Owners, seed: int) -> None:
    """Owners crash at any time. Stored, unacked messages are present once and in order. Messages with stored acks do
    not return.
    """
    random_ = random.Random(seed)
    sent: dict[int, bytes] = {}
    safe: set[int] = set()
    settled: set[int] = set()
    acked_in_kafka: set[int] = set()
    serial = 0
    owner = await owners.new().open()
    for _ in range(4):
        for _ in range(random_.randrange(5, 40)):
            step = random_.choice(["publish", "publish", "settle", "settle", "wait", "sync", "return", "alive"])
            if step == "publish":
                for _ in range(random_.choice([1, 1, 3, 200])):
                    serial += 1
                    (offset,) = owner.append(b"%d" % serial)
                    sent[offset] = b"%d" % serial
                owner.turn()
            elif step in ("settle", "return"):
                owner.turn()
                for record in random_.sample(live := owner.live(), min(len(live), random_.choice([1, 5, 100]))):
                    if step == "return":
                        owner.queues[0].mark_returned(record.offset, 2)
                    else:
                        owner.queues[0].ack(record.offset, len(record.body))
                        settled.add(int(record.offset))
            elif step == "wait":
                await asyncio.sleep(random_.choice([0, 0.01, 0.1]))
            elif step == "alive":
                owner.turn()
                owner.logs.keep_alive(b"slot")
            else:
                assert await owner.safe(owner.queues[0].next_offset - 1)
                safe |= set(sent)
                await owner.wait_acks_stored()
                acked_in_kafka |= settled
        safe |= {offset for offset in sent if offset < owner.queues[0].high_watermark}
        before, owner = owner, await owners.new().open()
        await before.close()
        owners.made.remove(before)
        end = owner.queues[0].end_offset - 1
        sent = {offset: body for offset, body in sent.items() if offset < end}
        assert safe <= set(sent)
        live = {int(record.offset): record.body for record in owner.live()}
        assert list(live) == sorted(live)
        assert {offset: sent.get(offset) for offset in live} == live
        assert set(sent) - settled <= set(live)
        assert not set(live) & acked_in_kafka
        assert all(owner.queues[0].redelivered(offset) for offset in live)
        settled = {offset for offset in settled if offset in sent and offset not in live}
        acked_in_kafka = set(settled)


async def test_large_backlog_is_recovered_in_slices(
    owners: Owners, record_property: Callable[[str, object], None]
) -> None:
    """The event loop runs in between. The test records the time and the longest block of the loop."""
    owner = await owners.new().open()
    count = 200_000
    body = b"x" * 200
    for _ in range(count // 1000):
        owner.append(*([body] * 1000))
        owner.turn()
        await asyncio.sleep(0)
    assert await owner.safe(owner.queues[0].next_offset - 1)
    after = await owners.new().take()
    turns = 0
    held_s = 0.0
    opened = asyncio.Event()
    began = time.perf_counter()
    assert not after.queues[0].open_soon(opened.set)
    while not opened.is_set():
        last = time.perf_counter()
        await asyncio.sleep(0)
        turns += 1
        held_s = max(held_s, time.perf_counter() - last)
    took_s = time.perf_counter() - began
    after.queues[0].recover()
    assert after.queues[0].record_count == count
    assert turns > 100
    figures = f"{count} messages of 200 bytes: {took_s:.2f} s, the loop held for {held_s * 1000:.1f} ms at most"
    record_property("read back", figures)
    print(figures)


@pytest.fixture
def cleaning(tmp_path: Path) -> Iterator[Kafka]:
    """A broker whose log cleaner pauses for 0.1 s instead of 15 s."""
    need(missing())
    with Kafka(tmp_path / "kafka", settings={"log.cleaner.backoff.ms": "100"}) as kafka:
        yield kafka


@pytest.mark.on_demand
async def test_ten_million_alternating_acks_are_compacted(
    cleaning: Kafka, topic: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Acceptance 8: acks of every second message, 1,000 a second, written every 50 ms, without real messages. The topic
    has the settings that nodes use. After cleaning less than 64 MiB are left, and no ack is missing.
    """
    access = KafkaAccess((cleaning.bootstrap,))
    owners = Owners(cleaning, access, topic, tmp_path, settings_of(compacted_rules(options_for(access, topic))))
    try:
        owner = await owners.new().open()
        log = owner.queues[0]
        count, at_once = 10_000_000, 50
        first = int(log.next_offset)
        end = first + 2 * count
        record_count = written = 0
        for start in range(first + 1, end, 2 * at_once):
            for offset in range(start, start + 2 * at_once, 2):
                log.ack_writer.note(SETTLED, offset, offset, 0)
            records = log.ack_writer.take_records(first, end, 0, 0)
            record_count += len(records)
            written += sum(int(record.size()) for record in records)
            owner.logs._records += records
            owner.logs._write_records()
            if start % (200 * at_once) < 2 * at_once:
                await owner.producer.wait_stored([owner.logs.settled])
        await owner.producer.wait_stored([owner.logs.settled])
        directory = cleaning.partition_directory(1, f"{topic}.settled", 0)

        def size() -> int:
            return sum(path.stat().st_size for path in directory.glob("*.log"))

        await asyncio.to_thread(cleaning.until, lambda: size() < 64 << 20)
        after = await owners.new().take()
        chunks = after.queues[0].ack_writer._chunks
        assert sum(int.from_bytes(bits, "big").bit_count() for bits in chunks.values()) == count
        figures = f"{count} acks in {record_count} records: {size() >> 10} KiB of {written >> 10} KiB are left"
        record_property("left", figures)
        print(figures)
    finally:
        for each in owners.made:
            await each.close()
