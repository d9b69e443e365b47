"""Takeover by a new owner while the old one does not know: after the barrier nothing of the old owner is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kafka_logs import Logs, append, create_topic, fetch_all, take
from kafka_rig import Kafka, missing, need

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.partition import UNKNOWN, Partition
from amqpd.kafka.producer import KafkaProducer, KafkaRefused, init_producer_id, take_over
from amqpd.kafka.producer_state import HEADER
from amqpd.kafka.requests import ProducerId
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import BatchHeader

PARTITIONS = 4


class Owner:
    """A writer of the partitions of a topic, with a log for each."""

    def __init__(self, access: KafkaAccess, topic: str, logs: Logs, name: str) -> None:
        self.topic = topic
        self.logs = logs
        self.name = name
        self.kafka = KafkaProducer(access, on_moved=lambda _: None, on_refused=lambda _: None, on_fenced=lambda _: None)
        self.partitions: list[Partition] = []
        self.written: list[LocalLog] = []
        self.held: ProducerId

    async def take(self, count: int = PARTITIONS, recorded: ProducerId | None = None) -> Owner:
        """Take over the first `count` partitions."""
        self.partitions = [self.kafka.open(self.topic, number, UNKNOWN) for number in range(count)]
        self.held = await take_over(self.kafka, self.topic, self.partitions, recorded)
        for partition in self.partitions:
            self.begin(partition)
        return self

    def begin(self, partition: Partition) -> None:
        """Create a log that continues at the end of the partition."""
        log = self.logs.new(f"{self.name} {partition.number}", self.held)
        if partition.next_offset > 0:  # the log begins at offset 0; offsets below Kafka's end are filled
            append(log, *(b"" for _ in range(partition.next_offset)))
            self.logs.turn()
        log.appender.replica = KafkaSequencer(self.held.producer_id, self.held.epoch, 1)
        self.written.append(log)

    def publish(self, number: int, *bodies: bytes) -> None:
        """Append messages for one partition. `kafka.flush` sends them."""
        append(self.written[number], *bodies)
        self.logs.turn()
        self.kafka.offer(self.partitions[number], take(self.written[number]))


@pytest.fixture
async def owners(access: KafkaAccess, topic: str, tmp_path: Path) -> AsyncIterator[Iterator[Owner]]:
    """An unlimited supply of owners."""
    created: list[Owner] = []

    def create() -> Iterator[Owner]:
        logs = Logs(tmp_path)
        while True:
            created.append(Owner(access, topic, logs, f"owner {len(created)}"))
            yield created[-1]

    yield create()
    for owner in created:
        await owner.kafka.close()


def epochs(batches: list[bytes]) -> list[int]:
    return [int(BatchHeader(batch, 0).producer_epoch) for batch in batches]


async def test_suspended_owner_stores_nothing_after_a_takeover(
    kafka: Kafka, access: KafkaAccess, topic: str, owners: Iterator[Owner]
) -> None:
    """Its batches wait while others take over its partitions, including one it has never written to."""
    create_topic(kafka.bootstrap, topic, PARTITIONS)
    zombies: list[Owner] = []
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for turn in range(5):
        owner = await next(owners).take()
        for number in range(PARTITIONS - 1):
            bodies = [b"%d of %d" % (each, turn) for each in range(3)]
            owner.publish(number, *bodies)
            expected[number] += bodies
        owner.kafka.flush()
        await owner.kafka.wait_stored(owner.partitions)
        for number in range(PARTITIONS):
            owner.publish(number, b"too late")  # offered but not sent: the owner is suspended here
        zombies.append(owner)
    last = await next(owners).take()
    ends = [int(partition.next_offset) for partition in last.partitions]
    for zombie in zombies:
        marks = [int(partition.high_watermark) for partition in zombie.partitions]
        zombie.kafka.flush()
        with pytest.raises(KafkaRefused, match="INVALID_PRODUCER_EPOCH|PRODUCER_FENCED"):
            await zombie.kafka.wait_stored(zombie.partitions)
        assert [int(partition.high_watermark) for partition in zombie.partitions] == marks
    for number in range(PARTITIONS):
        last.publish(number, b"of the last")
    last.kafka.flush()
    await last.kafka.wait_stored(last.partitions)
    for number in range(PARTITIONS):
        batches = await fetch_all(access, topic, number)
        assert epochs(batches) == sorted(epochs(batches))
        assert sum(HEADER in batch for batch in batches) == 6
        assert b"too late" not in b"".join(batches)
        assert all(body in b"".join(batches) for body in expected[number])
        assert int(BatchHeader(batches[-1], 0).base_offset) == ends[number]


async def test_partition_without_a_barrier_accepts_the_old_owner(
    kafka: Kafka, access: KafkaAccess, topic: str, owners: Iterator[Owner]
) -> None:
    create_topic(kafka.bootstrap, topic, PARTITIONS)
    before = await next(owners).take()
    after = await next(owners).take(PARTITIONS - 1)
    assert after.held.epoch == before.held.epoch + 1
    before.publish(PARTITIONS - 1, b"stored all the same")
    before.kafka.flush()
    await before.kafka.wait_stored(before.partitions)
    assert b"stored all the same" in b"".join(await fetch_all(access, topic, PARTITIONS - 1))
    before.publish(0, b"too late")
    before.kafka.flush()
    with pytest.raises(KafkaRefused):
        await before.kafka.wait_stored(before.partitions)


async def test_only_the_latest_of_concurrent_takeovers_can_write(
    kafka: Kafka, access: KafkaAccess, topic: str, owners: Iterator[Owner]
) -> None:
    """This holds in any order of their barriers."""
    create_topic(kafka.bootstrap, topic, PARTITIONS)
    for _ in range(5):
        pair = [next(owners) for _ in range(4)]
        results = await asyncio.gather(*(each.take() for each in pair), return_exceptions=True)
        assert all(isinstance(each, (Owner, KafkaRefused)) for each in results), results
        newest = max(each.held.epoch for each in results if isinstance(each, Owner))
        for owner in pair:
            if not owner.written:
                continue
            for number in range(PARTITIONS):
                owner.publish(number, b"of %d" % owner.held.epoch)
            owner.kafka.flush()
            if owner.held.epoch == newest:
                await owner.kafka.wait_stored(owner.partitions)
            else:
                with pytest.raises(KafkaRefused):
                    await owner.kafka.wait_stored(owner.partitions)
    for number in range(PARTITIONS):
        batches = await fetch_all(access, topic, number)
        assert epochs(batches) == sorted(epochs(batches))


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker that forgets transactional ids after one second instead of a week."""
    need(missing())
    settings = {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    }
    with Kafka(tmp_path_factory.mktemp("forgetful"), settings=settings) as cluster:
        yield cluster


@pytest.mark.parametrize("known", ["its epoch", "the epoch before", ""])
async def test_owner_with_a_forgotten_producer_id_is_fenced_if_recorded(
    forgetful: Kafka, topic: str, tmp_path: Path, known: str
) -> None:
    """The new producer id does not fence the old one, so the barrier is also written under the old id. The epoch before
    is recorded if the owner had just renewed it.
    """
    access = KafkaAccess((forgetful.bootstrap,))
    create_topic(forgetful.bootstrap, topic, PARTITIONS)
    logs = Logs(tmp_path / "logs")
    before = await Owner(access, topic, logs, "before").take()
    recorded = ProducerId(0, before.held.producer_id, before.held.epoch - (known == "the epoch before"))
    pause = 2.0
    while (await init_producer_id(access, topic)).producer_id == before.held.producer_id:
        pause *= 2
        await asyncio.sleep(pause)
    after, third = Owner(access, topic, logs, "after"), Owner(access, topic, logs, "third")
    try:
        await after.take(recorded=recorded if known else None)
        assert after.held.producer_id != before.held.producer_id
        for number in range(PARTITIONS):
            before.publish(number, b"too late")
        before.kafka.flush()
        with pytest.raises(KafkaRefused) as refused:
            await before.kafka.wait_stored(before.partitions)
        stored = b"".join([each for number in range(PARTITIONS) for each in await fetch_all(access, topic, number)])
        if known:
            assert "INVALID_PRODUCER_EPOCH" in str(refused.value)
            assert b"too late" not in stored
        else:
            assert "is stored at" in str(refused.value)  # the offset after the new barrier shows it
            assert b"too late" in stored
        if known:
            # The new owner died before it could record its id: the next owner writes the barrier of the old id again.
            for number in range(PARTITIONS):
                after.publish(number, b"between")
            after.kafka.flush()
            await after.kafka.wait_stored(after.partitions)
            await third.take(recorded=recorded)
            for number in range(PARTITIONS):
                third.publish(number, b"last")
            third.kafka.flush()
            await third.kafka.wait_stored(third.partitions)
            for number in range(PARTITIONS):
                stored = b"".join(await fetch_all(access, topic, number))
                assert stored.index(b"between") < stored.index(b"last")
    finally:
        for each in (before, after, third):
            await each.kafka.close()
