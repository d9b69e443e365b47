"""A slot's rows on their way to Kafka, and the places of its queues: read back by the next owner, they are the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_kafka import FakeKafka
from kafka_logs import create_topic
from kafka_rig import Kafka
from librt.strings import BytesWriter
from slot_of import META, SETTLED, FakeTopics, Slot, topic_name, until

from amqpd.cluster import own_places, producer
from amqpd.cluster.access import KafkaAccess
from amqpd.cluster.connection import KafkaLost
from amqpd.cluster.options import ClusterOptions
from amqpd.cluster.placement import READY_MIN, STEP
from amqpd.cluster.producer import KafkaRefused, init_producer_id
from amqpd.cluster.reader import read
from amqpd.cluster.records import keyed_records
from amqpd.cluster.row_table import RowTable
from amqpd.cluster.rows import OWN_TOPIC
from amqpd.cluster.storage import ClusterStorage, Placed
from amqpd.cluster.topics import Topics
from amqpd.protocol.codec import encode_table
from amqpd.storage.log.batch import BatchHeader, close_batch
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.metadata import MetadataError, WriteFailed
from amqpd.storage.metadata.rows import (
    BindingRow,
    Delete,
    DeleteBindings,
    ExchangeRow,
    Put,
    QueueRow,
    StoredOffsetRow,
    VhostRow,
)
from amqpd.storage.metadata.schema import TABLES
from amqpd.storage.replicated.keyed import Keyed as KeyedRecord
from amqpd.storage.replicated.keyed import keyed_batch
from amqpd.storage.replicated.log import ReplicatedLog

VHOST = VhostRow("/", "v" * 32)
OTHER = VhostRow("shop", "w" * 32)
TOPIC = topic_name(VHOST.id)


def queue(number: int, vhost: str = "/", **columns: Any) -> QueueRow:
    return QueueRow(vhost, f"q{number}", columns.pop("id", f"{number:032x}"), **columns)


@pytest.fixture
async def fake() -> AsyncIterator[FakeKafka]:
    async with FakeKafka(brokers=2) as kafka:
        kafka.create(META, 4)
        kafka.create(SETTLED, 4)
        yield kafka


Take = Callable[..., Awaitable[Slot]]


@pytest.fixture
async def take(fake: FakeKafka, tmp_path: Path) -> AsyncIterator[Take]:
    made: list[Slot] = []
    topics = FakeTopics(fake)

    async def more(**options: Any) -> Slot:
        directory = tmp_path / f"{len(made)}"
        slot = Slot(fake.access, topics, directory, vhosts=options.pop("vhosts", (VHOST, OTHER)), **options)
        made.append(slot)
        return await slot.take()

    yield more
    for slot in made:
        if slot.rows is not None:
            await slot.close()


def rows_of(table: RowTable) -> set[object]:
    """Bindings that lead nowhere, and what a queue that is gone has left, are found at a load, and go then."""
    queues = {row.name for row in table.rows(QueueRow)}
    rows = {row for each in TABLES for row in table.rows(each.row)} - {gone.row for gone in table.adrift()}
    return {row for row in rows if not isinstance(row, BindingRow) or row.destination in queues}


def held(slot: Slot) -> set[tuple[str, object]]:
    rows = {(type(row).__name__, row) for table in TABLES for row in slot.rows.table.rows(table.row)}
    return rows | {("note", (key, tuple(sorted(note.items())))) for key, note in slot.rows.table.notes.items()}


async def answered(answers: list[BaseException | None], count: int = 1) -> list[BaseException | None]:
    await until(lambda: len(answers) >= count)
    return answers


class TestRows:
    async def test_the_next_owner_has_what_was_answered(self, take: Take) -> None:
        slot = await take()
        answers: list[BaseException | None] = []
        random_ = random.Random(3)
        submitted = 0
        for turn in range(60):
            number = random_.randrange(12)
            changes: list[Any] = [
                Put(queue(number)),
                Put(BindingRow("/", "amq.topic", f"q{number}", "queue", f"key {turn}")),
            ]
            match random_.randrange(5):
                case 0:
                    row = queue(number)._replace(state="deleting")
                    changes = [Put(row), DeleteBindings("/", row.name, "queue")]
                case 1:
                    changes = [Delete(queue(number))]
                case 2:
                    changes = [Put(ExchangeRow("/", f"x{number}", "topic"))]
            slot.rows.submit(changes, answers.append)
            submitted += 1
            if turn % 7 == 0:
                await asyncio.sleep(0.01)
        assert await answered(answers, submitted) == [None] * submitted
        before, places = held(slot), dict(slot.placement.places)
        assert slot.placed == places
        await slot.close()
        after = await take()
        assert held(after) == before
        assert after.placement.places == places
        assert after.rows.table.foreign_count == 0

    async def test_what_others_wrote_to_it_is_passed_over_and_told(
        self, fake: FakeKafka, take: Take, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A record of somebody's, and a batch whose records are none, though its checksum is right."""
        slot = await take()
        await slot.rows.write([Put(ExchangeRow("/", "a", "topic"))])
        before = held(slot)
        await slot.close()
        foreign = keyed_batch([KeyedRecord(b"k", b"v")], 0, 1, 99, 0, 0)
        garbage = close_batch(BytesWriter(), b"\xff" * 40, 0, 3, 0, 0, 1, 0, 99, 0, -1, [], 0)
        for batch in (foreign, garbage):
            fake.append(META, 1, batch.header + batch.records)
        assert held(await take()) == before
        assert "amqpd.shop.meta 1: a batch cannot be read and is passed over" in caplog.text
        assert "amqpd.shop.meta 1: 2 records are not amqpd's and were passed over" in caplog.text

    async def test_what_a_later_version_wrote_is_not_taken(self, fake: FakeKafka, take: Take) -> None:
        batch = keyed_batch([KeyedRecord(b'["pets","cat"]', b"{}")], 0, 1, 99, 0, 0)
        fake.append(META, 1, batch.header + batch.records)
        with pytest.raises(MetadataError, match="table 'pets' is not known to this version of amqpd; start the later"):
            await take()

    async def test_those_that_come_together_go_together(self, fake: FakeKafka, take: Take) -> None:
        """A thousand declarations at once are a few batches, answered in their order."""
        slot = await take(vhosts=(VHOST,))
        order: list[int] = []
        before = fake.topics[META][1].end, len(fake.topics[META][1].batches)
        for number in range(1000):
            row = ExchangeRow("/", f"x{number}", "topic")
            slot.rows.submit([Put(row)], lambda error, number=number: order.append(number))  # type: ignore[misc]
        await until(lambda: len(order) >= 1000)
        assert order == list(range(1000))
        assert fake.topics[META][1].end == before[0] + 1000
        assert len(fake.topics[META][1].batches) - before[1] < 20
        assert slot.rows.waiting_count == 0

    async def test_one_that_cannot_be_costs_the_others_nothing(self, take: Take) -> None:
        slot = await take()
        answers: list[tuple[str, BaseException | None]] = []
        for name, change in (
            ("a", Put(ExchangeRow("/", "a", "topic"))),
            ("wrong", Put(StoredOffsetRow("no queue", "c", 1, 0))),
            ("lone", Put(ExchangeRow("/", "\ud800", "topic"))),
            ("b", Put(ExchangeRow("/", "b", "topic"))),
        ):
            slot.rows.submit([change], lambda error, name=name: answers.append((name, error)))  # type: ignore[misc]
        await until(lambda: len(answers) >= 4)
        found = dict(answers)
        assert (found["a"], found["b"]) == (None, None)
        assert isinstance(found["wrong"], WriteFailed) and isinstance(found["lone"], WriteFailed)
        assert "there is no 'no queue' in queues" in str(found["wrong"])

    async def test_too_large_for_a_batch(self, take: Take) -> None:
        """Refused before anything is written; a vhost's end may be as large as it is."""
        slot = await take(bytes_max=30_000)
        end = slot.rows.partition.next_offset
        exchanges = [Put(ExchangeRow("/", f"x{number}", "topic")) for number in range(1000)]
        (error,) = await answered(slot.submit(*exchanges))
        assert isinstance(error, WriteFailed)
        assert "1000 rows of" in str(error) and "cluster.max_message_bytes" in str(error)
        assert slot.rows.partition.next_offset == end
        for first in range(0, 1000, 100):
            assert await answered(slot.submit(*exchanges[first : first + 100])) == [None]
        await slot.rows.write([Delete(VHOST)])
        await slot.close()
        assert held(await take(bytes_max=30_000)) == set()

    async def test_those_that_go_together_fit_into_a_batch(self, fake: FakeKafka, take: Take) -> None:
        """Small ones before a large one, each of which fits by itself."""
        slot = await take(bytes_max=30_000)
        answers: list[BaseException | None] = []
        for turn in range(20):
            for number in range(10):
                slot.rows.submit([Put(ExchangeRow("/", f"small{turn} {number}", "topic"))], answers.append)
            slot.rows.submit(
                [Put(ExchangeRow("/", f"large{turn} {number}", "topic")) for number in range(150)], answers.append
            )
        assert await answered(answers, 220) == [None] * 220
        assert max(map(len, fake.topics[META][1].batches)) <= 30_000

    async def test_wherever_it_crashes_the_next_owner_has_whole_submissions(self, fake: FakeKafka, take: Take) -> None:
        """What a slot's `meta` has up to any batch is what the table had behind one of the submissions."""
        slot = await take(bytes_max=3_000)
        await slot.placement._grow(slot.placement._topic(VHOST.id), 150)  # who waits for one is overtaken
        random_ = random.Random(11)
        twin = RowTable()
        seen = [rows_of(twin)]
        waiting: list[BaseException | None] = []
        for turn in range(150):
            number = random_.randrange(6)
            changes: list[Any] = [
                Put(queue(number)),
                *(Put(BindingRow("/", "x", f"q{number}", "queue", f"{turn} {each}")) for each in range(number)),
            ]
            match random_.randrange(6):
                case 0:
                    changes = [Delete(queue(number)), DeleteBindings("/", f"q{number}", "queue")]
                case 1:
                    offset = StoredOffsetRow(queue(number).id, "c", turn, 0)
                    changes = [Put(offset), Put(ExchangeRow("/", "x", "topic"))]
            slot.rows.submit(changes, waiting.append)
            with suppress(WriteFailed):
                twin.apply(changes)
            seen.append(rows_of(twin))
            if turn % 5 == 0:
                await asyncio.sleep(0.002)
        await answered(waiting, 150)
        read_back = RowTable()
        at = 0
        for batch in fake.topics[META][1].batches:
            for part in keyed_records(batch):
                for record in part:
                    read_back.read(record.key, record.value)
            at += next(index for index, rows in enumerate(seen[at:]) if rows == rows_of(read_back))
        assert at == len(seen) - 1 or seen[at] == seen[-1]

    async def test_what_goes_along_in_batches_of_its_own_is_behind_nothing_that_came_later(
        self, fake: FakeKafka, take: Take
    ) -> None:
        """A queue is deleted with more bindings than a batch has, and declared again, in one group: at no batch's end
        does the new one have bindings of the old one.
        """
        slot = await take(bytes_max=3_000)
        await slot.rows.write([Put(queue(0))])
        for number in range(40):
            await slot.rows.write([Put(BindingRow("/", "x", "q0", "queue", f"old {number}"))])
        new = queue(0, id="f" * 32)
        slot.logs.may_write = lambda _: False  # type: ignore[method-assign]
        answers = slot.submit(Put(ExchangeRow("/", "x", "topic")))
        gone = slot.submit(Delete(queue(0)), DeleteBindings("/", "q0", "queue"))
        again = slot.submit(Put(new), Put(BindingRow("/", "x", "q0", "queue", "new")))
        slot.logs.may_write = lambda _: True  # type: ignore[method-assign]
        slot.rows.moved()
        assert await answered(answers) + await answered(gone) + await answered(again) == [None] * 3
        table = RowTable()
        for batch in fake.topics[META][1].batches:
            for part in keyed_records(batch):
                for record in part:
                    table.read(record.key, record.value)
            keys = {row.routing_key for row in table.rows(BindingRow)}
            assert table.row(new) is None or keys <= {"new"}
        assert table.row(new) == new and keys == {"new"}

    async def test_ten_thousand_at_once_do_not_hold_the_loop(self, take: Take) -> None:
        slot = await take()
        turns = 0

        async def ticking() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                if slot.rows.waiting_count:
                    turns += 1

        ticks = asyncio.create_task(ticking())
        await slot.rows.write([Put(ExchangeRow("/", f"x{number}", "topic")) for number in range(10_000)])
        ticks.cancel()
        assert turns > 10

    async def test_whoever_is_fenced_is_told(self, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(ExchangeRow("/", "a", "topic"))])
        after = await take()
        answers = slot.submit(Put(ExchangeRow("/", "b", "topic")))
        (error,) = await answered(answers)
        assert isinstance(error, WriteFailed) and "INVALID_PRODUCER_EPOCH" in str(error)
        (error,) = await answered(slot.submit(Put(ExchangeRow("/", "c", "topic"))))
        assert isinstance(error, WriteFailed)
        assert [row.name for row in after.rows.table.rows(ExchangeRow)] == ["a"]
        with pytest.raises(WriteFailed):
            await slot.rows.write([Put(ExchangeRow("/", "c", "topic"))])

    async def test_failed_in_the_middle_of_a_large_one(self, take: Take) -> None:
        slot = await take()
        answers = slot.submit(*(Put(ExchangeRow("/", f"x{number}", "topic")) for number in range(10_000)))
        waiting = slot.submit(Put(ExchangeRow("/", "b", "topic")))
        slot.rows.fail("the slot was given up")
        assert [str(error) for error in answers + waiting] == ["the slot was given up"] * 2
        assert len(slot.rows.table) == 0

    async def test_over_whatever_passes(self, fake: FakeKafka, take: Take) -> None:
        """Connections that break, leaders that move: each answered, each once."""
        slot = await take()
        random_ = random.Random(5)
        answers: list[BaseException | None] = []
        for number in range(100):
            slot.rows.submit([Put(ExchangeRow("/", f"x{number}", "topic"))], answers.append)
            if number % 10 == 0:
                match random_.randrange(3):
                    case 0:
                        fake.drop(random_.choice((1, 2)))
                    case 1:
                        fake.lead(META, 1, random_.choice((1, 2)))
                    case _:
                        fake.fail(META, 1, 6)
            await asyncio.sleep(0.003)
        assert await answered(answers, 100) == [None] * 100
        await slot.close()
        after = await take()
        assert len(list(after.rows.table.rows(ExchangeRow))) == 100


class TestPlaces:
    async def test_each_queue_has_a_partition_of_its_own(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        assert TOPIC not in fake.topics
        await slot.rows.write([Put(queue(0))])
        assert len(fake.topics[TOPIC]) == STEP
        for number in range(1, 20):
            await slot.rows.write([Put(queue(number))])
        places = [slot.placement.places[queue(number).id] for number in range(20)]
        assert [place.topic for place in places] == [TOPIC] * 20
        assert [place.number for place in places] == list(range(20))
        assert all(place.first_offset == 1 for place in places)  # behind the barrier
        assert slot.placed == {queue(number).id: places[number] for number in range(20)}
        await slot.rows.write([Put(queue(50, "shop"))])
        assert slot.placement.places[queue(50).id].topic == topic_name(OTHER.id)

    async def test_many_at_once_get_as_many_as_they_need(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(1200)])
        assert len({place.number for place in slot.placement.places.values()}) == 1200
        prepared = [call for call in slot.topics.calls if call[0] == "prepare"]  # type: ignore[attr-defined]
        assert len(prepared) <= 4

    async def test_a_declaration_waits_for_no_topic_where_partitions_are_ready(self, take: Take) -> None:
        """More are made in the background, before they run out."""
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        for number in range(1, 40):
            topic = slot.placement._topic(VHOST.id)
            assert topic.ready
            await slot.rows.write([Put(queue(number))])
            await asyncio.sleep(0.01)
        assert len(topic.ready) >= READY_MIN

    async def test_a_deleted_queue_s_partition_is_used_again_behind_a_record_of_ours(
        self, fake: FakeKafka, take: Take
    ) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        place = slot.placement.places[queue(0).id]
        partition = slot.placement.partition(place)
        slot.logs.write(partition, [_message(b"of the first")])
        slot.producer.flush()
        await slot.rows.write([Delete(queue(0))])
        assert queue(0).id not in slot.placement.places
        assert queue(0).id not in slot.placed
        topic = slot.placement._topic(VHOST.id)
        await until(lambda: partition in topic.ready)
        assert fake.topics[TOPIC][place.number].first == place.first_offset + 1  # it was emptied
        for number in range(1, STEP + 1):
            await slot.rows.write([Put(queue(number))])
        again = next(
            each for each in slot.placement.places.values() if each.number == place.number and each.topic == TOPIC
        )
        assert again.first_offset == place.first_offset + 2  # the message, and the marker behind it
        assert partition.high_watermark >= again.first_offset

    async def test_what_kafka_refuses_to_empty_is_used_again_all_the_same(self, take: Take) -> None:
        """It costs space, and no partition."""
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(STEP)])
        slot.topics.failing += [KafkaRefused("TOPIC_AUTHORIZATION_FAILED")]  # type: ignore[attr-defined]
        places = {place.number for place in slot.placement.places.values()}
        await slot.rows.write([Delete(queue(number)) for number in range(STEP)])
        ready = slot.placement._of[TOPIC].ready
        await until(lambda: places <= {int(each.number) for each in ready})

    async def test_one_that_is_refused_costs_the_others_nothing(self, fake: FakeKafka, take: Take) -> None:
        """Of partitions that are about to be used again, and of new ones."""
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(3)])
        topic = slot.placement._of[TOPIC]
        await until(lambda: not topic.growing.locked() and len(topic.ready) >= READY_MIN)
        places = [slot.placement.places[queue(number).id].number for number in range(3)]
        fake.fail(TOPIC, places[1], 87)
        await slot.rows.write([Delete(queue(number)) for number in range(3)])
        await until(lambda: {places[0], places[2]} <= {int(each.number) for each in topic.ready})
        made = topic.made
        fake.fail(TOPIC, made + 1, 87)
        count = len(topic.ready) + 1
        await slot.rows.write([Put(queue(100 + number)) for number in range(count)])
        await until(lambda: not topic.growing.locked())
        assert topic.refused == [made + 1]
        held = {place.number for place in slot.placement.places.values()} | {int(each.number) for each in topic.ready}
        assert held == set(range(topic.made)) - {places[1], made + 1}
        await slot.rows.write([Put(queue(200 + number)) for number in range(len(topic.ready) + 1)])
        await until(lambda: not topic.growing.locked())
        assert topic.refused == []
        held = {place.number for place in slot.placement.places.values()} | {int(each.number) for each in topic.ready}
        assert held == set(range(topic.made)) - {places[1]}
        assert not slot.fenced

    async def test_what_is_freed_while_something_else_is_under_way(self, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        topic = slot.placement._of[TOPIC]
        place = slot.placement.places[queue(0).id]
        async with topic.growing:  # it is being grown, for a long time
            slot.placement._start(slot.placement._grow(topic, READY_MIN))
            await slot.rows.write([Delete(queue(0))])
            await until(lambda: place.number in {int(each.number) for each in topic.ready})

    async def test_places_that_were_not_written_are_free(self, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        ready = len(slot.placement._topic(VHOST.id).ready)
        (error,) = await answered(slot.submit(Put(queue(1)), Put(StoredOffsetRow("none", "c", 1, 0))))
        assert isinstance(error, WriteFailed)
        assert queue(1).id not in slot.placement.places
        assert queue(1).id not in slot.placed
        assert len(slot.placement._topic(VHOST.id).ready) == ready

    async def test_a_vhost_that_is_not_here(self, take: Take) -> None:
        slot = await take(vhosts=(VHOST,))
        (error,) = await answered(slot.submit(Put(queue(0, "shop"))))
        assert "vhost 'shop' is not served by this node" in str(error)

    async def test_kafka_cannot_make_partitions(self, take: Take) -> None:
        """Whoever waits for one is told; those behind him go on."""
        slot = await take()
        slot.topics.failing += [KafkaLost("Kafka is away")]  # type: ignore[attr-defined]
        first, second = slot.submit(Put(queue(0))), slot.submit(Put(queue(1)))
        (error,) = await answered(first)
        assert isinstance(error, WriteFailed)
        assert "no place for a queue: Kafka is away" in str(error)
        assert await answered(second) == [None]

    async def test_what_goes_on_while_partitions_are_made(self, fake: FakeKafka, take: Take) -> None:
        """What was applied before is written, and what comes behind, but for other queues: they keep their order."""
        slot = await take()
        gate = asyncio.Event()
        prepare = slot.topics.prepare_queues

        async def slow(vhost_id: str, partitions: int) -> int:
            await gate.wait()
            return await prepare(vhost_id, partitions)

        slot.topics.prepare_queues = slow  # type: ignore[method-assign]
        before = slot.submit(Put(ExchangeRow("/", "x", "topic")))
        order: list[int] = []
        for number in range(20):
            slot.rows.submit([Put(queue(number))], lambda _, number=number: order.append(number))  # type: ignore[misc]
        behind = slot.submit(Put(ExchangeRow("/", "y", "topic")))
        large = slot.submit(*(Put(ExchangeRow("/", f"z{number}", "topic")) for number in range(3000)))
        assert await answered(before) == [None]
        assert await answered(behind) == [None]
        assert order == []
        assert slot.rows.waiting_count in (20, 21)
        gate.set()
        await until(lambda: len(order) == 20)
        assert order == list(range(20))
        assert await answered(large) == [None]
        assert slot.rows.waiting_count == 0

    async def test_given_up_while_partitions_are_made(self, take: Take) -> None:
        slot = await take()

        async def never(_vhost_id: str, _partitions: int) -> int:
            await asyncio.Event().wait()
            return 0

        slot.topics.prepare_queues = never  # type: ignore[method-assign]
        waiting = slot.submit(Put(queue(0)))
        await asyncio.sleep(0)
        slot.rows.fail("the slot was given up")
        assert [str(error) for error in waiting] == ["the slot was given up"]

    async def test_a_vhost_s_topic_goes_with_it(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(3)])
        await slot.rows.write([Delete(VHOST)])
        assert slot.placement.places == {}
        slot.topics.failing += [KafkaLost("away")]  # type: ignore[attr-defined]
        with pytest.raises(WriteFailed, match="is not deleted: away"):
            await slot.placement.drop_vhost(VHOST.id)
        await slot.placement.drop_vhost(VHOST.id)
        assert TOPIC not in fake.topics
        # nothing waits for its partitions any more
        slot.logs.keep_alive(slot.key.encode())
        await slot.producer.stored(slot.producer.partitions)
        assert not slot.fenced

    async def test_the_next_owner_gives_out_what_is_free(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(5)])
        await slot.rows.write([Delete(queue(2))])
        places = dict(slot.placement.places)
        await slot.close()
        after = await take()
        assert after.placement.places == places
        taken = {place.number for place in places.values()}
        await after.rows.write([Put(queue(number)) for number in range(10, 14)])
        new = [after.placement.places[queue(number).id] for number in range(10, 14)]
        assert not {place.number for place in new} & taken
        for place in new:
            assert place.first_offset == fake.topics[TOPIC][place.number].end

    async def test_the_next_owner_empties_what_no_queue_has(self, fake: FakeKafka, take: Take) -> None:
        """Of a queue whose owner ended before he could."""
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(2)])
        places = [slot.placement.places[queue(number).id] for number in range(2)]
        for place in places:
            slot.logs.write(slot.placement.partition(place), [_message(b"old")])
        slot.producer.flush()
        await slot.producer.stored(slot.producer.partitions)
        slot.topics.failing += [KafkaLost("away")] * 100  # type: ignore[attr-defined]
        await slot.rows.write([Delete(queue(0))])
        await slot.close()
        slot.topics.failing.clear()  # type: ignore[attr-defined]
        after = await take()
        await until(lambda: fake.topics[TOPIC][places[0].number].first == 2)
        assert fake.topics[TOPIC][places[1].number].first == 0
        assert after.placement.places == {queue(1).id: places[1]}


class TestOwnTopics:
    ORDERS = encode_table({"x-kafka-topic": "orders"})
    NOTE = (OWN_TOPIC, "orders")

    async def test_it_comes_and_goes_with_its_queue(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        place = slot.placement.places[queue(0).id]
        assert place == ("orders", 0, 1)
        assert slot.placement.partition(place).shared
        assert slot.placement.places[queue(1).id].topic == TOPIC
        await slot.close()
        after = await take()
        assert after.placement.places[queue(0).id] == place
        assert after.placement.partition(place).shared
        await after.rows.write([Delete(queue(0))])
        await until(lambda: "orders" not in fake.topics)
        assert queue(0).id not in after.placement.places
        # nothing waits for its partition any more
        after.logs.keep_alive(after.key.encode())
        await after.producer.stored(after.producer.partitions)

    async def test_one_that_is_there_is_refused(self, fake: FakeKafka, take: Take) -> None:
        """It was asked for before; this is who was quicker."""
        slot = await take()
        fake.create("orders", 1)
        (error,) = await answered(slot.submit(Put(queue(0, arguments=self.ORDERS))))
        assert isinstance(error, WriteFailed) and "TOPIC_ALREADY_EXISTS" in str(error)
        assert "orders" in fake.topics

    async def test_a_queue_that_was_not_written_leaves_none(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        wrong = Put(StoredOffsetRow("none", "c", 1, 0))
        (error,) = await answered(slot.submit(Put(queue(0, arguments=self.ORDERS)), wrong))
        assert isinstance(error, WriteFailed)
        await until(lambda: "orders" not in fake.topics)
        await until(lambda: self.NOTE not in slot.rows.table.notes)

    async def test_the_topic_for_a_queue_that_gets_no_place_goes(self, fake: FakeKafka, take: Take) -> None:
        """Its own topic is made; then Kafka cannot make a partition for the one that came with it."""
        slot = await take()
        slot.topics.prepare_queues = _refusing  # type: ignore[method-assign]
        (error,) = await answered(slot.submit(Put(queue(0, arguments=self.ORDERS)), Put(queue(1))))
        assert "POLICY_VIOLATION" in str(error)
        assert ("make own", "orders") in slot.topics.calls  # type: ignore[attr-defined]
        await until(lambda: "orders" not in fake.topics)

    async def test_a_crash_behind_the_queue_s_end_leaves_no_topic(
        self, fake: FakeKafka, take: Take, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else nobody could ever have one of that name again."""
        monkeypatch.setattr(own_places, "RETRY_S", 0.02)
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS))])
        slot.topics.failing += [KafkaLost("away")] * 3  # type: ignore[attr-defined]
        await slot.rows.write([Delete(queue(0))])
        await until(lambda: not slot.topics.failing)  # type: ignore[attr-defined]
        await slot.close()
        slot.topics.failing += [KafkaRefused("not yet")]  # type: ignore[attr-defined]
        after = await take()
        await until(lambda: "orders" not in fake.topics)
        await until(lambda: self.NOTE not in after.rows.table.notes)

    async def test_a_crash_before_the_queue_came_leaves_no_topic(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        make, made = slot.topics.make_own, asyncio.Event()

        async def never_answered(name: str, mark: int) -> None:
            await make(name, mark)
            made.set()
            await asyncio.Event().wait()

        slot.topics.make_own = never_answered  # type: ignore[method-assign]
        slot.submit(Put(queue(0, arguments=self.ORDERS)))
        await made.wait()
        await slot.close()
        del slot.topics.make_own  # type: ignore[method-assign]
        after = await take()
        await until(lambda: "orders" not in fake.topics)
        await until(lambda: self.NOTE not in after.rows.table.notes)

    async def test_one_that_somebody_else_made_at_that_moment_stays(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        fake.create("orders", 1)
        slot.topics.marks["orders"] = 5  # type: ignore[attr-defined]  # by another node, for another queue
        (error,) = await answered(slot.submit(Put(queue(0, arguments=self.ORDERS))))
        assert "TOPIC_ALREADY_EXISTS" in str(error)
        await until(lambda: self.NOTE not in slot.rows.table.notes)
        assert "orders" in fake.topics

    async def test_one_that_is_deleted_under_its_queue_ends_that_queue_alone(
        self, fake: FakeKafka, take: Take, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producer, "TOPIC_GONE_S", 0.3)
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        partition = slot.placement.partition(slot.placement.places[queue(0).id])
        del fake.topics["orders"], slot.topics.marks["orders"]  # type: ignore[attr-defined]
        slot.logs.write(partition, [_message(b"mine")])
        slot.producer.flush()
        await until(lambda: partition.closed)
        assert partition.text == "its topic is gone"
        await slot.rows.write([Put(queue(2))])
        assert not slot.fenced
        await slot.close()
        after = await take()
        fake.create("orders", 1)
        lost = after.placement.partition(after.placement.places[queue(0).id])
        assert (lost.closed, lost.text) == (3, "its topic is gone")
        await after.rows.write([Put(queue(3))])
        await after.rows.write([Delete(queue(0))])
        await until(lambda: self.NOTE not in after.rows.table.notes)
        assert "orders" in fake.topics, "which somebody else has made since"
        assert not after.fenced

    async def test_a_vhost_s_end_takes_them_along(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        await slot.rows.write([Delete(VHOST)])
        await slot.placement.drop_vhost(VHOST.id)
        await until(lambda: not {"orders", TOPIC} & fake.topics.keys())

    async def test_whoever_else_writes_to_it_ends_that_queue_alone(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        partition = slot.placement.partition(slot.placement.places[queue(0).id])
        fake.append("orders", 0, fake.topics["orders"][0].batches[0])
        slot.logs.write(partition, [_message(b"mine")])
        slot.producer.flush()
        await until(lambda: partition.closed)
        assert "a batch of offset 1 is stored at 2: somebody else writes to it" in partition.text
        await slot.rows.write([Put(queue(2))])
        assert not slot.fenced


async def _refusing(_vhost_id: str, _partitions: int) -> int:
    raise KafkaRefused("POLICY_VIOLATION")


def _message(body: bytes) -> Any:
    from amqpd.storage.replicated.keyed import Keyed

    return Keyed(b"", body)


class TestRealKafka:
    async def test_rows_and_places(self, kafka: Kafka, access: KafkaAccess, tmp_path: Path) -> None:
        """Three owners, one after the other; a queue's partition is used again, and shows nothing of before."""
        for name in (META, SETTLED):
            create_topic(kafka.bootstrap, name, 4, cleanup_policy="compact")
        options = ClusterOptions(
            access=access, cluster="shop", node="a", secret=b"s", listen=("", 0), address=("a", 0), slots=4,
            replication_factor=1, required_insync=1, max_message_bytes=8 << 20, session_timeout_s=6,
            heartbeat_s=0.5, delivery_timeout_s=30,
        )  # fmt: skip
        async with Topics(options) as topics:
            slots: list[Slot] = []
            for turn in range(3):
                slot = Slot(access, topics, tmp_path / f"{turn}", vhosts=(VHOST,))
                await slot.take()
                if slots:
                    assert held(slot) == held(slots[-1])
                slots.append(slot)
                first = 20 * turn
                await slot.rows.write([Put(queue(number)) for number in range(first, first + 20)])
                for number in range(first, first + 10):
                    partition = slot.placement.partition(slot.placement.places[queue(number).id])
                    slot.logs.write(partition, [_message(b"body of %d" % number)])
                slot.producer.flush()
                await slot.producer.stored(slot.producer.partitions)
                await slot.rows.write([Delete(queue(number)) for number in range(first, first + 10)])
                await until(lambda: not slot.placement._freed and not slot.placement._tasks)  # noqa: B023
                assert not slot.fenced
            last = slots[-1]
            for queue_id, place in last.placement.places.items():
                end = int(last.placement.partition(place).next_offset)
                async for batch in read(access, place.topic, place.number, place.first_offset, end):
                    assert BatchHeader(batch, 0).base_offset < place.first_offset or b"body" not in batch, queue_id
            assert len(last.placement.places) == 30
            for slot in slots[:-1]:
                (error,) = await answered(slot.submit(Put(ExchangeRow("/", "late", "topic"))))
                assert isinstance(error, WriteFailed)
            await last.rows.write([Delete(VHOST)])
            await last.placement.drop_vhost(VHOST.id)
            assert await topics.describe([TOPIC]) == {}
            for slot in slots:
                await slot.close()


async def test_a_queue_that_is_deleted_while_a_later_epoch_begins(
    fake: FakeKafka, take: Take, tmp_path: Path
) -> None:
    """What it has of the later epoch goes behind what is on the way of the one before: a copy of that would be refused,
    and end the slot.
    """
    slot = await take()
    await slot.rows.write([Put(queue(0))])
    loop = asyncio.get_running_loop()
    storage = ClusterStorage(tmp_path / "data", post=loop.call_soon_threadsafe, later=loop.call_later)
    storage.places[queue(0).id] = Placed(slot.logs, slot.placement.places[queue(0).id])
    log = storage.open_queue(VHOST.id, queue(0).id, "q0", "/")
    assert isinstance(log, ReplicatedLog)
    partition = log.partition
    assert partition is not None

    def publish() -> None:
        log.append(RecordRoute(b"x", b"k"), b"\x10\x00\x02body", 0, 3, 3, 7, True)
        storage.commits.end_of_turn()
        slot.logs.send()

    publish()
    await until(lambda: not partition.order)  # from here on more than one is sent at a time
    held = fake.topics[TOPIC][int(partition.number)]
    produce, former, late = held.produce, int(slot.logs.held.epoch), loop.time() + 1

    def later(batch: bytes) -> tuple[int, int]:
        """What is of the epoch before is to be sent again until something later is there, or for a while."""
        waits = loop.time() < late and held.producers[int(slot.logs.held.producer_id)][0] == former
        return (6, -1) if waits and BatchHeader(batch, 0).producer_epoch == former else produce(batch)

    held.produce = later  # type: ignore[method-assign]
    publish()
    slot.logs.renew(await init_producer_id(fake.access, slot.key, slot.logs.held))
    publish()
    storage.delete_queue(log)
    await slot.rows.write([Delete(queue(0))])
    ready = slot.placement._of[TOPIC].ready
    await until(lambda: slot.fenced or partition in ready)
    assert not slot.fenced
    epochs = [int(BatchHeader(batch, 0).producer_epoch) for batch in fake.topics[TOPIC][int(partition.number)].batches]
    assert epochs == sorted(epochs)
    storage.close(clean=False)
