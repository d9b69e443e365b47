"""Partitions of a slot's queues in Kafka, and topics of single queues: allocation, reuse, and recovery by the next
owner.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_kafka import FakeKafka
from kafka_logs import create_topic, read
from kafka_rig import Kafka
from slot_of import (
    META,
    OTHER,
    SETTLED,
    TOPIC,
    VHOST,
    Slot,
    Take,
    queue,
    rows_and_places,
    topic_name,
    until,
    wait_for_answers,
)

from amqpd.cluster import placement
from amqpd.cluster.placement import READY_MIN, STEP
from amqpd.cluster.replicated_log import ReplicatedLog
from amqpd.cluster.row_codec import OWN_TOPIC
from amqpd.cluster.storage import ClusterStorage, PlacedLog
from amqpd.kafka import producer
from amqpd.kafka.admin import ClusterOptions, TopicAdmin
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.kafka.producer import KafkaRefused, init_producer_id
from amqpd.protocol.field_table import encode_table
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.rows import (
    Delete,
    ExchangeRow,
    Put,
    StoredOffsetRow,
)
from amqpd.storage.metadata.store import WriteFailed


class TestPlaces:
    async def test_each_queue_gets_its_own_partition(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        assert TOPIC not in fake.topics
        await slot.rows.write([Put(queue(0))])
        assert len(fake.topics[TOPIC]) == STEP
        for number in range(1, 20):
            await slot.rows.write([Put(queue(number))])
        places = [slot.placement.places[queue(number).id] for number in range(20)]
        assert [place.topic for place in places] == [TOPIC] * 20
        assert [place.number for place in places] == list(range(20))
        assert all(place.first_offset == 1 for place in places)  # after the barrier
        assert slot.placed == {queue(number).id: places[number] for number in range(20)}
        await slot.rows.write([Put(queue(50, "shop"))])
        assert slot.placement.places[queue(50).id].topic == topic_name(OTHER.id)

    async def test_many_queues_at_once_get_a_partition_each(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(1200)])
        assert len({place.number for place in slot.placement.places.values()}) == 1200
        prepared = [call for call in slot.topics.calls if call[0] == "prepare"]  # type: ignore[attr-defined]
        assert len(prepared) <= 4

    async def test_declaration_does_not_wait_while_partitions_are_ready(self, take: Take) -> None:
        """The slot creates more partitions in the background before it runs out."""
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        for number in range(1, 40):
            topic = slot.placement._topic(VHOST.id)
            assert topic.ready
            await slot.rows.write([Put(queue(number))])
            await asyncio.sleep(0.01)
        assert len(topic.ready) >= READY_MIN

    async def test_partition_of_a_deleted_queue_is_reused_after_a_marker(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        place = slot.placement.places[queue(0).id]
        partition = slot.logs.partition(place)
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
        assert again.first_offset == place.first_offset + 2  # the message and the marker after it
        assert partition.high_watermark >= again.first_offset

    async def test_partition_that_cannot_be_emptied_is_reused(self, take: Take) -> None:
        """This costs disk space but no partition."""
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(STEP)])
        slot.topics.failing += [KafkaRefused("TOPIC_AUTHORIZATION_FAILED")]  # type: ignore[attr-defined]
        places = {place.number for place in slot.placement.places.values()}
        await slot.rows.write([Delete(queue(number)) for number in range(STEP)])
        ready = slot.placement._topics_by_name[TOPIC].ready
        await until(lambda: places <= {int(each.number) for each in ready})

    async def test_refused_partition_does_not_affect_others(self, fake: FakeKafka, take: Take) -> None:
        """This holds for reused partitions and for new ones."""
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(3)])
        topic = slot.placement._topics_by_name[TOPIC]
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

    async def test_partition_is_freed_while_the_topic_grows(self, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        topic = slot.placement._topics_by_name[TOPIC]
        place = slot.placement.places[queue(0).id]
        async with topic.growing:  # a growth that takes long
            slot.placement._start(slot.placement._grow(topic, READY_MIN))
            await slot.rows.write([Delete(queue(0))])
            await until(lambda: place.number in {int(each.number) for each in topic.ready})

    async def test_partition_of_a_failed_declaration_is_free_again(self, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0))])
        ready = len(slot.placement._topic(VHOST.id).ready)
        (error,) = await wait_for_answers(slot.submit(Put(queue(1)), Put(StoredOffsetRow("none", "c", 1, 0))))
        assert isinstance(error, WriteFailed)
        assert queue(1).id not in slot.placement.places
        assert queue(1).id not in slot.placed
        assert len(slot.placement._topic(VHOST.id).ready) == ready

    async def test_queue_of_a_vhost_elsewhere_is_refused(self, take: Take) -> None:
        slot = await take(vhosts=(VHOST,))
        (error,) = await wait_for_answers(slot.submit(Put(queue(0, "shop"))))
        assert "vhost 'shop' is not served by this node" in str(error)

    async def test_declaration_fails_when_kafka_cannot_create_partitions(self, take: Take) -> None:
        """The next declaration succeeds."""
        slot = await take()
        slot.topics.failing += [KafkaDisconnected("Kafka is away")]  # type: ignore[attr-defined]
        first, second = slot.submit(Put(queue(0))), slot.submit(Put(queue(1)))
        (error,) = await wait_for_answers(first)
        assert isinstance(error, WriteFailed)
        assert "no partition for a queue: Kafka is away" in str(error)
        assert await wait_for_answers(second) == [None]

    async def test_other_rows_are_written_while_partitions_are_created(self, fake: FakeKafka, take: Take) -> None:
        """Earlier and later submissions are written, except other queues, which keep their order."""
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
        assert await wait_for_answers(before) == [None]
        assert await wait_for_answers(behind) == [None]
        assert order == []
        assert slot.waiting_count in (20, 21)
        gate.set()
        await until(lambda: len(order) == 20)
        assert order == list(range(20))
        assert await wait_for_answers(large) == [None]
        assert slot.waiting_count == 0

    async def test_giving_the_slot_up_fails_a_waiting_declaration(self, take: Take) -> None:
        slot = await take()

        async def never(_vhost_id: str, _partitions: int) -> int:
            await asyncio.Event().wait()
            return 0

        slot.topics.prepare_queues = never  # type: ignore[method-assign]
        waiting = slot.submit(Put(queue(0)))
        await asyncio.sleep(0)
        slot.rows.fail("the slot was given up")
        await asyncio.sleep(0)  # callbacks run after the caller of fail()
        assert [str(error) for error in waiting] == ["the slot was given up"]

    async def test_topic_of_a_vhost_is_deleted_with_it(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(3)])
        await slot.rows.write([Delete(VHOST)])
        assert slot.placement.places == {}
        slot.topics.failing += [KafkaDisconnected("away")]  # type: ignore[attr-defined]
        with pytest.raises(WriteFailed, match="is not deleted: away"):
            await slot.placement.drop_vhost(VHOST.id)
        await slot.placement.drop_vhost(VHOST.id)
        assert TOPIC not in fake.topics
        # no call waits for its partitions
        slot.logs.keep_alive(slot.key.encode())
        await slot.producer.wait_stored(slot.producer.partitions)
        assert not slot.fenced

    async def test_next_owner_allocates_only_free_partitions(self, fake: FakeKafka, take: Take) -> None:
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

    async def test_next_owner_empties_partitions_without_a_queue(self, fake: FakeKafka, take: Take) -> None:
        """The owner before deleted the queue and ended before it could empty the partition."""
        slot = await take()
        await slot.rows.write([Put(queue(number)) for number in range(2)])
        places = [slot.placement.places[queue(number).id] for number in range(2)]
        for place in places:
            slot.logs.write(slot.logs.partition(place), [_message(b"old")])
        slot.producer.flush()
        await slot.producer.wait_stored(slot.producer.partitions)
        slot.topics.failing += [KafkaDisconnected("away")] * 100  # type: ignore[attr-defined]
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

    async def test_own_topic_is_created_and_deleted_with_its_queue(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        place = slot.placement.places[queue(0).id]
        assert place == ("orders", 0, 1)
        assert slot.logs.partition(place).shared
        assert slot.placement.places[queue(1).id].topic == TOPIC
        await slot.close()
        after = await take()
        assert after.placement.places[queue(0).id] == place
        assert after.logs.partition(place).shared
        await after.rows.write([Delete(queue(0))])
        await until(lambda: "orders" not in fake.topics)
        assert queue(0).id not in after.placement.places
        # no call waits for its partition
        after.logs.keep_alive(after.key.encode())
        await after.producer.wait_stored(after.producer.partitions)

    async def test_existing_topic_is_refused(self, fake: FakeKafka, take: Take) -> None:
        """The topic was created after the policy check."""
        slot = await take()
        fake.create("orders", 1)
        (error,) = await wait_for_answers(slot.submit(Put(queue(0, arguments=self.ORDERS))))
        assert isinstance(error, WriteFailed) and "TOPIC_ALREADY_EXISTS" in str(error)
        assert "orders" in fake.topics

    async def test_failed_declaration_leaves_no_topic(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        wrong = Put(StoredOffsetRow("none", "c", 1, 0))
        (error,) = await wait_for_answers(slot.submit(Put(queue(0, arguments=self.ORDERS)), wrong))
        assert isinstance(error, WriteFailed)
        await until(lambda: "orders" not in fake.topics)
        await until(lambda: self.NOTE not in slot.rows.table.notes)

    async def test_own_topic_is_deleted_if_the_submission_gets_no_partition(self, fake: FakeKafka, take: Take) -> None:
        """The own topic exists, but Kafka cannot create a partition for the other queue of the submission."""
        slot = await take()
        slot.topics.prepare_queues = _refusing  # type: ignore[method-assign]
        (error,) = await wait_for_answers(slot.submit(Put(queue(0, arguments=self.ORDERS)), Put(queue(1))))
        assert "POLICY_VIOLATION" in str(error)
        assert ("make own", "orders") in slot.topics.calls  # type: ignore[attr-defined]
        await until(lambda: "orders" not in fake.topics)

    async def test_crash_after_the_queue_was_deleted_leaves_no_topic(
        self, fake: FakeKafka, take: Take, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the name could never be used again."""
        monkeypatch.setattr(placement, "RETRY_S", 0.02)
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS))])
        slot.topics.failing += [KafkaDisconnected("away")] * 3  # type: ignore[attr-defined]
        await slot.rows.write([Delete(queue(0))])
        await until(lambda: not slot.topics.failing)  # type: ignore[attr-defined]
        await slot.close()
        slot.topics.failing += [KafkaRefused("not yet")]  # type: ignore[attr-defined]
        after = await take()
        await until(lambda: "orders" not in fake.topics)
        await until(lambda: self.NOTE not in after.rows.table.notes)

    async def test_crash_before_the_queue_was_created_leaves_no_topic(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        make, created = slot.topics.create_dedicated, asyncio.Event()

        async def never_answered(name: str, mark: int) -> None:
            await make(name, mark)
            created.set()
            await asyncio.Event().wait()

        slot.topics.create_dedicated = never_answered  # type: ignore[method-assign]
        slot.submit(Put(queue(0, arguments=self.ORDERS)))
        await created.wait()
        await slot.close()
        del slot.topics.create_dedicated  # type: ignore[method-assign]
        after = await take()
        await until(lambda: "orders" not in fake.topics)
        await until(lambda: self.NOTE not in after.rows.table.notes)

    async def test_topic_that_another_node_just_created_is_kept(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        fake.create("orders", 1)
        slot.topics.marks["orders"] = 5  # type: ignore[attr-defined]  # by another node, for another queue
        (error,) = await wait_for_answers(slot.submit(Put(queue(0, arguments=self.ORDERS))))
        assert "TOPIC_ALREADY_EXISTS" in str(error)
        await until(lambda: self.NOTE not in slot.rows.table.notes)
        assert "orders" in fake.topics

    async def test_topic_deleted_under_its_queue_ends_only_that_queue(
        self, fake: FakeKafka, take: Take, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producer, "TOPIC_GONE_S", 0.3)
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        partition = slot.logs.partition(slot.placement.places[queue(0).id])
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
        lost = after.logs.partition(after.placement.places[queue(0).id])
        assert (lost.closed, lost.text) == (3, "its topic is gone")
        await after.rows.write([Put(queue(3))])
        await after.rows.write([Delete(queue(0))])
        await until(lambda: self.NOTE not in after.rows.table.notes)
        assert "orders" in fake.topics, "a topic that another program created was deleted"
        assert not after.fenced

    async def test_own_topics_are_deleted_with_their_vhost(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        await slot.rows.write([Delete(VHOST)])
        await slot.placement.drop_vhost(VHOST.id)
        await until(lambda: not {"orders", TOPIC} & fake.topics.keys())

    async def test_foreign_record_in_an_own_topic_ends_only_that_queue(self, fake: FakeKafka, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(queue(0, arguments=self.ORDERS)), Put(queue(1))])
        partition = slot.logs.partition(slot.placement.places[queue(0).id])
        fake.append("orders", 0, fake.topics["orders"][0].batches[0])
        slot.logs.write(partition, [_message(b"mine")])
        slot.producer.flush()
        await until(lambda: partition.closed)
        assert "a batch of offset 1 is stored at 2: another program writes to the partition" in partition.text
        await slot.rows.write([Put(queue(2))])
        assert not slot.fenced


async def _refusing(_vhost_id: str, _partitions: int) -> int:
    raise KafkaRefused("POLICY_VIOLATION")


def _message(body: bytes) -> Any:
    from amqpd.kafka.keyed_records import KeyedRecord

    return KeyedRecord(b"", body)


class TestRealKafka:
    async def test_reused_partitions_show_nothing_old_after_owner_changes(
        self, kafka: Kafka, access: KafkaAccess, tmp_path: Path
    ) -> None:
        """Three owners in succession with a real Kafka."""
        for name in (META, SETTLED):
            create_topic(kafka.bootstrap, name, 4, cleanup_policy="compact")
        options = ClusterOptions(
            access=access, cluster="shop", node="a", secret=b"s", listen=("", 0), address=("a", 0), slots=4,
            replication_factor=1, required_insync=1, max_message_bytes=8 << 20, session_timeout_s=6,
            heartbeat_s=0.5, delivery_timeout_s=30,
        )  # fmt: skip
        async with TopicAdmin(options) as topics:
            slots: list[Slot] = []
            for turn in range(3):
                slot = Slot(access, topics, tmp_path / f"{turn}", vhosts=(VHOST,))
                await slot.take()
                if slots:
                    assert rows_and_places(slot) == rows_and_places(slots[-1])
                slots.append(slot)
                first = 20 * turn
                await slot.rows.write([Put(queue(number)) for number in range(first, first + 20)])
                for number in range(first, first + 10):
                    partition = slot.logs.partition(slot.placement.places[queue(number).id])
                    slot.logs.write(partition, [_message(b"body of %d" % number)])
                slot.producer.flush()
                await slot.producer.wait_stored(slot.producer.partitions)
                await slot.rows.write([Delete(queue(number)) for number in range(first, first + 10)])
                await until(lambda: not slot.placement._freed and not slot.placement._tasks)  # noqa: B023
                assert not slot.fenced
            last = slots[-1]
            for queue_id, place in last.placement.places.items():
                end = int(last.logs.partition(place).next_offset)
                async for batch in read(access, place.topic, place.number, place.first_offset, end):
                    assert BatchHeader(batch, 0).base_offset < place.first_offset or b"body" not in batch, queue_id
            assert len(last.placement.places) == 30
            for slot in slots[:-1]:
                (error,) = await wait_for_answers(slot.submit(Put(ExchangeRow("/", "late", "topic"))))
                assert isinstance(error, WriteFailed)
            await last.rows.write([Delete(VHOST)])
            await last.placement.drop_vhost(VHOST.id)
            assert await topics.describe([TOPIC]) == {}
            for slot in slots:
                await slot.close()


async def test_queue_deleted_during_an_epoch_change_keeps_batch_order(
    fake: FakeKafka, take: Take, tmp_path: Path
) -> None:
    """Batches of the later epoch must follow those of the earlier one. Kafka would refuse a repeated earlier batch, and
    the slot would end.
    """
    slot = await take()
    await slot.rows.write([Put(queue(0))])
    loop = asyncio.get_running_loop()
    storage = ClusterStorage(tmp_path / "data", post=loop.call_soon_threadsafe, later=loop.call_later)
    storage.places[queue(0).id] = PlacedLog(slot.logs, slot.placement.places[queue(0).id])
    log = storage.open_queue(VHOST.id, queue(0).id, "q0", "/")
    assert isinstance(log, ReplicatedLog)
    partition = log.partition
    assert partition is not None

    def publish() -> None:
        log.append(RecordRoute(b"x", b"k"), b"\x10\x00\x02body", 0, 3, 3, 7, True)
        storage.commits.end_of_turn()
        slot.logs.send_batches()

    publish()
    await until(lambda: not partition.order)  # more than one batch is sent at a time from here on
    held = fake.topics[TOPIC][int(partition.number)]
    produce, former, late = held.produce, int(slot.logs.held.epoch), loop.time() + 1

    def later(batch: bytes) -> tuple[int, int]:
        """Make batches of the earlier epoch fail with a retriable error until a later one is stored, or for a while."""
        waits = loop.time() < late and held.producers[int(slot.logs.held.producer_id)][0] == former
        return (6, -1) if waits and BatchHeader(batch, 0).producer_epoch == former else produce(batch)

    held.produce = later  # type: ignore[method-assign]
    publish()
    slot.logs.renew(await init_producer_id(fake.access, slot.key, slot.logs.held))
    publish()
    storage.delete_queue(log)
    await slot.rows.write([Delete(queue(0))])
    ready = slot.placement._topics_by_name[TOPIC].ready
    await until(lambda: slot.fenced or partition in ready)
    assert not slot.fenced
    epochs = [int(BatchHeader(batch, 0).producer_epoch) for batch in fake.topics[TOPIC][int(partition.number)].batches]
    assert epochs == sorted(epochs)
    storage.close(clean=False)
