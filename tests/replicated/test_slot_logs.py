"""Logs that Kafka keeps: what one owner has appended and settled, the next one reads back. Kafka is in memory here."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_in_memory import FakeKafka
from profiles import examples
from slot_in_memory import SETTLED, TOPIC, Slot, owner, queue_id

from amqpd.kafka.keyed_records import KeyedRecord, read_keyed
from amqpd.kafka.requests import ProducerId
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.queue_log import LogFailed


async def test_a_confirm_waits_for_the_answer() -> None:
    slot = await Slot(FakeKafka()).open()
    told: list[bool] = []
    offsets = slot.append(b"a", b"b")
    assert offsets == [1, 2]
    slot.log.when_safe(offsets[-1], told.append)
    slot.turn()
    assert (told, slot.bodies()) == ([], [b"a", b"b"])
    assert slot.storage.commits.unsynced_bytes == slot.logs.unsafe_bytes > 0
    slot.producer.store_all()
    assert told == [True]
    assert (slot.storage.commits.unsynced_bytes, slot.logs.unsafe_bytes) == (0, 0)
    assert slot.log.high_watermark == 3
    assert slot.log.location() == {
        "topic": TOPIC,
        "partition": 0,
        "first_offset": 1,
        "high_watermark": 3,
        "end_offset": 3,
        "waiting_bytes": 0,
        "span_bytes": 0,
        "refused": None,
    }
    assert slot.rooms > 0


async def test_readers_of_streams_see_what_is_safe() -> None:
    slot = await Slot(FakeKafka()).open()
    slot.append(b"a")
    slot.turn()
    cursor = slot.log.new_cursor()
    assert [each.body for each in cursor.read_safe(0, 1000, lambda: None).records] == []
    slot.producer.store_all()
    assert [each.body for each in cursor.read_safe(0, 1000, lambda: None).records] == [b"a"]


async def test_a_queue_that_is_deleted_in_the_turn_of_a_publish() -> None:
    """What it had closed has numbers: the next queue in the partition goes on behind them."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    told: list[bool] = []
    (offset,) = slot.append(b"a")
    slot.log.when_safe(offset, told.append)
    slot.log.flush_batches()
    slot.log.retire(lambda: None)
    assert told == [True]
    partition = slot.partitions[0]
    assert slot.logs.replica(partition).sequence == 2
    slot.producer.store_all()
    slot.logs.write(partition, [KeyedRecord(b"slot", None)])
    slot.producer.store_all()
    sequences = [int(BatchHeader(batch, 0).base_sequence) for batch in kafka.stored[TOPIC, 0]]
    assert sequences == [0, 1, 2]
    assert slot.storage.commits.unsynced_bytes == 0


async def test_offsets_that_kafka_never_got_are_not_told() -> None:
    """They are the next owner's, and so are its messages there."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"stored")
    slot.turn()
    slot.producer.store_all()
    slot.append(b"lost", b"lost", b"lost")
    slot.turn()
    for offset in (2, 3, 4):
        slot.log.mark_delivered(offset)
        slot.log.ack(offset, 4)
    slot.log.mark_returned(1, 1)
    slot.tell()
    slot.producer.store(slot.logs.settled)
    nxt = await owner(kafka, first)  # its barrier is at 2
    assert nxt.append(b"x", b"y", b"z") == [3, 4, 5]
    nxt.sync()
    third = await owner(kafka, first)
    assert third.bodies() == [b"stored", b"x", b"y", b"z"]
    assert third.log.delivery_count(1) == 1


async def test_a_head_beyond_what_kafka_has_is_not_told() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"stored")
    slot.turn()
    slot.producer.store_all()
    slot.append(b"lost", b"lost", b"lost")
    slot.turn()
    for offset in (1, 2, 3, 4):
        slot.log.ack(offset, 4)
    slot.tell()
    slot.producer.store(slot.logs.settled)
    nxt = await owner(kafka, first)
    nxt.append(b"x", b"y")
    nxt.sync()
    assert (await owner(kafka, first)).bodies() == [b"x", b"y"]


async def test_settled_before_it_is_safe_is_told_behind_it() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a", b"b")
    slot.turn()
    slot.log.ack(1, 1)
    slot.tell()
    slot.producer.store_all()
    slot.tell()
    slot.producer.store_all()
    assert (await owner(kafka, first)).bodies() == [b"b"]


async def test_a_closed_partition_ends_its_log_alone() -> None:
    slot = await Slot(FakeKafka(), queues=2).open()
    told: dict[int, bool] = {}
    for number in (0, 1):
        (offset,) = slot.append(b"a", number=number)
        slot.queues[number].when_safe(offset, lambda safe, number=number: told.update({number: safe}))  # type: ignore[misc]
    slot.turn()
    slot.producer.refuse(slot.partitions[0], 10, "MESSAGE_TOO_LARGE")
    slot.producer.store_all()
    assert told == {0: False, 1: True}
    assert (slot.failed, slot.fenced) == ([slot.queues[0]], [])
    assert slot.storage.commits.unsynced_bytes == 0
    with pytest.raises(LogFailed):
        slot.append(b"b")
    slot.append(b"b", number=1)
    slot.sync()
    assert slot.bodies(1) == [b"a", b"b"]


async def test_a_refused_partition_takes_nothing_until_kafka_takes_what_it_has_refused() -> None:
    """No owner comes between: what was nacked is stored, and what is published then goes behind it."""
    slot = await Slot(FakeKafka(), queues=2).open()
    accepted: list[object] = []
    slot.logs.on_accepted = accepted.append
    told: list[bool] = []
    (offset,) = slot.append(b"a")
    slot.log.when_safe(offset, told.append)
    slot.turn()
    partition = slot.partitions[0]
    assert partition.retry_ms == 10_000
    slot.producer.refuse_now(partition, 10, "MESSAGE_TOO_LARGE")
    assert (told, slot.failed, accepted) == ([False], [slot.log], [])
    assert slot.log.location()["refused"] == "MESSAGE_TOO_LARGE"
    with pytest.raises(LogFailed):
        slot.append(b"b")
    slot.producer.store_all()
    assert accepted == [slot.log]
    assert slot.log.location()["refused"] is None
    (offset,) = slot.append(b"b")
    slot.log.when_safe(offset, told.append)
    slot.sync()
    assert told == [False, True]
    assert slot.bodies() == [b"a", b"b"]
    assert (slot.fenced, slot.storage.commits.unsynced_bytes) == ([], 0)


async def test_a_queue_that_is_deleted_while_it_is_refused_keeps_nobody_waiting() -> None:
    slot = await Slot(FakeKafka()).open()
    slot.append(b"a")
    slot.turn()
    partition = slot.partitions[0]
    slot.producer.refuse_now(partition, 29, "TOPIC_AUTHORIZATION_FAILED")
    slot.log.retire(lambda: None)
    assert partition.closed == 29
    assert not partition.order


async def test_a_slot_is_given_up_though_a_queue_is_refused() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first, queues=2)
    slot.append(b"a", number=1)
    slot.append(b"b")
    slot.turn()
    slot.producer.refuse_now(slot.partitions[0], 29, "TOPIC_AUTHORIZATION_FAILED")
    slot.producer.store(slot.partitions[1])
    await slot.logs.give_up()
    assert [len(partition.order) for partition in slot.partitions] == [1, 0]
    assert (await owner(kafka, first, queues=2)).bodies(1) == [b"a"]


async def test_fenced() -> None:
    slot = await Slot(FakeKafka()).open()
    told: list[bool] = []
    (offset,) = slot.append(b"a")
    slot.log.when_safe(offset, told.append)
    slot.turn()
    slot.producer.fence("another has it")
    assert (told, slot.fenced, slot.storage.commits.unsynced_bytes) == ([False], ["another has it"], 0)


async def test_alternating_acks_stay_small() -> None:
    """By their chunks: a bit each, and each chunk once however often it is told."""
    kafka = FakeKafka()
    slot = await Slot(kafka).open()
    log = slot.log
    count = 1_000_000
    log.log.end = log.next_offset = count + 1  # as if they had been appended
    log.log.watermark.offset = count + 1
    settlements = log.ack_writer
    for offset in range(1, count, 2):
        settlements.note(1, offset, offset, 0)
    records = settlements.take_records(1, count + 1, 0, 0)
    size = sum(record.size() for record in records)
    assert len(records) <= (count >> 12) + 3
    assert size < 160_000  # a bit for each, and so 1.4 MB for ten million
    again = settlements.take_records(1, count + 1, 0, 0)
    assert again == []


async def test_a_head_that_moves_on_takes_what_was_told_along() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(*(b"x" for _ in range(10_000)))
    slot.turn()
    for offset in range(2, 9000, 2):
        slot.log.ack(offset, 1)
    slot.sync()
    for offset in range(1, 9000, 2):
        slot.log.ack(offset, 1)
    slot.sync()
    left: dict[bytes, bytes | None] = {}
    for batch in kafka.stored[SETTLED, 0]:
        left.update({each.key: each.value for each in read_keyed(batch)})
    assert sum(value is not None for key, value in left.items() if key[:1] == b"\x01") == 1
    nxt = await owner(kafka, first)
    assert len(nxt.bodies()) == 10_000 - 8999
    assert nxt.log.ack_writer.head == 9000


async def test_hourly_records_are_gaps() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a")
    slot.sync()
    for _ in range(3):
        slot.logs.keep_alive(b"slot")
        slot.sync()
    assert slot.append(b"b") == [5]
    slot.log.ack(1, 1)
    slot.sync()
    slot.logs.keep_alive(b"slot")
    slot.sync()
    assert slot.bodies() == [b"b"]
    slot.log.ack(5, 1)
    slot.sync()
    assert slot.log.ack_writer.head == 7
    nxt = await owner(kafka, first)
    kafka.fetched_bytes = 0
    assert (nxt.bodies(), nxt.log.record_count, nxt.log.foreign_count) == ([], 0, 0)
    assert kafka.fetched_bytes == 0
    assert nxt.append(b"c") == [8]
    nxt.sync()
    assert (await owner(kafka, first)).bodies() == [b"c"]


async def test_a_later_epoch_of_the_same_owner() -> None:
    """Batches of the one before that are on the way are answered before those of the new one go, and others do not
    wait for that.
    """
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first, 2)
    slot.append(b"a")
    slot.turn()
    slot.append(b"b")
    later = ProducerId(0, slot.producer.held.producer_id, 5)
    slot.logs.renew(later)
    slot.producer.held = later
    slot.append(b"c")
    slot.turn()
    slot.append(b"d")
    slot.append(b"other", number=1)
    slot.turn()
    assert [len(partition.order) for partition in slot.partitions] == [2, 1]
    slot.producer.store(slot.partitions[0], 2)
    slot.sync()
    slot.append(b"e")
    slot.sync()
    found = [BatchHeader(batch, 0) for batch in kafka.stored[TOPIC, 0]][1:]
    assert [(each.producer_epoch, each.base_sequence) for each in found] == [(0, 1), (0, 2), (5, 0), (5, 1), (5, 2)]
    kafka.epoch = 5
    nxt = await owner(kafka, first, 2)
    assert (nxt.bodies(), nxt.bodies(1)) == ([b"a", b"b", b"c", b"d", b"e"], [b"other"])


async def test_settlements_wait_for_those_of_the_epoch_before() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.sync()
    slot.log.ack(1, 1)
    slot.tell()
    later = ProducerId(0, slot.producer.held.producer_id, 5)
    slot.logs.renew(later)
    slot.producer.held = later
    slot.log.ack(2, 1)
    slot.tell()
    assert len(slot.logs.settled.order) == 1
    slot.producer.store_all()
    await slot.logs.give_up()
    epochs = [int(BatchHeader(batch, 0).producer_epoch) for batch in kafka.stored[SETTLED, 0]]
    assert epochs == sorted(epochs)
    kafka.epoch = 5
    nxt = await owner(kafka, first)
    assert nxt.logs.is_clean_takeover
    assert nxt.bodies() == [b"c"]


async def test_a_deleted_queue_leaves_nothing_told() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(*(b"x" for _ in range(20)))
    slot.turn()
    slot.log.ack(7, 1)
    slot.log.mark_returned(8, 2)
    slot.log.mark_delivered(8)
    slot.sync()
    done: list[bool] = []
    slot.log.retire(lambda: done.append(True))
    slot.turn()
    slot.logs._run_pass()
    slot.producer.store_all()
    assert done == [True]
    left: dict[bytes, bytes | None] = {}
    for batch in kafka.stored[SETTLED, 0]:
        left.update({each.key: each.value for each in read_keyed(batch)})
    assert {key for key, value in left.items() if value is not None} == set()


async def test_logs_that_nobody_has_any_more() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first, 2)
    for number in (0, 1):
        slot.append(b"x", number=number)
    slot.sync()
    nxt = Slot(kafka, 1, first)
    await nxt.open()
    assert nxt.logs.drop_orphans({queue_id(0), queue_id(1)}) == 0  # its vhost comes later
    assert nxt.logs.drop_orphans({queue_id(0)}) == 1
    nxt.logs._run_pass()
    nxt.producer.store_all()
    third = await owner(kafka, first)
    assert third.logs.drop_orphans({queue_id(0)}) == 0
    assert third.bodies() == [b"x"]


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "settle", "return", "deliver", "turn", "tell", "store", "store_one", "alive", "kill", "give_up"]
        ),
        st.integers(0, 40),
    ),
    max_size=60,
)


@settings(max_examples=examples(150), deadline=None)
@given(STEPS)
def test_as_a_twin_says(steps: list[Step]) -> None:
    asyncio.run(_twin(steps))


async def _twin(steps: list[Step]) -> None:
    """live: in Kafka, and not settled. What was settled may come back where it was not told and stored."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    sent: dict[int, bytes] = {}  # of all owners
    settled: set[int] = set()
    sure: set[int] = set()  # settled, told and stored
    serial = 0
    for step, number in [*steps, ("kill", 0)]:
        log = slot.log
        if step == "publish":
            for _ in range(number):
                serial += 1
                (offset,) = slot.append(b"%d" % serial)
                sent[offset] = b"%d" % serial
        elif step in ("settle", "return", "deliver"):
            slot.turn()
            live = list(slot.live())
            if live:
                record = live[number % len(live)]
                if step == "settle":
                    log.ack(record.offset, len(record.body))
                    settled.add(record.offset)
                elif step == "return":
                    log.mark_returned(record.offset, number)
                else:
                    log.mark_delivered(record.offset)
        elif step == "turn":
            slot.turn()
        elif step == "tell":
            slot.turn()
            slot.tell()
        elif step == "store":
            slot.sync()
            sure |= settled
        elif step == "store_one":
            for partition in slot.producer.partitions:
                slot.producer.store(partition, 1)
        elif step == "alive":
            slot.turn()
            slot.logs.keep_alive(b"slot")
        else:
            if step == "give_up":
                await slot.logs.give_up()
                sure |= settled
            end = kafka.end(TOPIC, 0)
            returned = {offset: slot.log.delivery_count(offset) for offset in sent} if step == "give_up" else {}
            slot = await owner(kafka, first)
            sent = {offset: body for offset, body in sent.items() if offset < end}
            found = {int(record.offset): record.body for record in slot.live()}
            assert all(sent.get(offset) == body for offset, body in found.items())
            assert set(sent) - settled <= set(found)
            assert not set(found) & sure
            assert slot.log.record_count == len(found)
            assert slot.log.size_bytes == sum(map(len, found.values()))
            if step == "kill":
                assert all(slot.log.redelivered(offset) for offset in found)
            for offset in found:
                if step == "give_up":
                    assert slot.log.delivery_count(offset) == returned[offset]
            settled = {offset for offset in settled if offset in sent and offset not in found}
            sure = set(settled)
