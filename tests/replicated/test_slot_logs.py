"""Logs in Kafka: the next owner reads back what one owner has appended and acked. Kafka is in memory here."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_in_memory import FakeKafka
from profiles import examples
from slot_in_memory import ACKS_TOPIC, TOPIC, Slot, next_owner, queue_id

from amqpd.cluster.replicated_log import ReplicatedLog
from amqpd.cluster.slot_logs import LogPosition
from amqpd.cluster.storage import PlacedLog
from amqpd.kafka.keyed_records import KeyedRecord, read_keyed
from amqpd.kafka.requests import ProducerId
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.queue_log import LogFailed


async def test_confirm_waits_for_kafkas_response() -> None:
    slot = await Slot(FakeKafka()).open()
    confirms: list[bool] = []
    offsets = slot.append(b"a", b"b")
    assert offsets == [1, 2]
    slot.log.when_safe(offsets[-1], confirms.append)
    slot.end_turn()
    assert (confirms, slot.bodies()) == ([], [b"a", b"b"])
    assert slot.storage.commits.unsynced_bytes == slot.log.unsafe_bytes > 0
    slot.producer.store_all()
    assert confirms == [True]
    assert (slot.storage.commits.unsynced_bytes, slot.log.unsafe_bytes) == (0, 0)
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
    assert slot.room_count > 0


async def test_stream_readers_see_only_safe_messages() -> None:
    slot = await Slot(FakeKafka()).open()
    slot.append(b"a")
    slot.end_turn()
    cursor = slot.log.new_cursor()
    assert [each.body for each in cursor.read_safe(0, 1000, lambda: None).records] == []
    slot.producer.store_all()
    assert [each.body for each in cursor.read_safe(0, 1000, lambda: None).records] == [b"a"]


async def test_queue_deleted_in_the_turn_of_a_publish() -> None:
    """Its closed batches have sequences; the next queue in the partition continues behind them."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    confirms: list[bool] = []
    (offset,) = slot.append(b"a")
    slot.log.when_safe(offset, confirms.append)
    slot.log.flush_batches()
    slot.log.retire(lambda: None)
    assert confirms == [True]
    partition = slot.partitions[0]
    assert slot.logs.replica(partition).sequence == 2
    slot.producer.store_all()
    slot.logs.write(partition, [KeyedRecord(b"slot", None)])
    slot.producer.store_all()
    sequences = [int(BatchHeader(batch, 0).base_sequence) for batch in kafka.stored[TOPIC, 0]]
    assert sequences == [0, 1, 2]
    assert slot.storage.commits.unsynced_bytes == 0


async def test_acks_of_offsets_that_kafka_never_got_are_not_sent() -> None:
    """The next owner uses these offsets for its own messages."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"stored")
    slot.end_turn()
    slot.producer.store_all()
    slot.append(b"lost", b"lost", b"lost")
    slot.end_turn()
    for offset in (2, 3, 4):
        slot.log.mark_delivered(offset)
        slot.log.ack(offset, 4)
    slot.log.mark_returned(1, 1)
    slot.send_acks()
    slot.producer.store(slot.logs.settled)
    second = await next_owner(kafka, first)  # its epoch fence is at 2
    assert second.append(b"x", b"y", b"z") == [3, 4, 5]
    second.sync()
    third = await next_owner(kafka, first)
    assert third.bodies() == [b"stored", b"x", b"y", b"z"]
    assert third.log.delivery_count(1) == 1


async def test_head_beyond_the_end_in_kafka_is_not_sent() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"stored")
    slot.end_turn()
    slot.producer.store_all()
    slot.append(b"lost", b"lost", b"lost")
    slot.end_turn()
    for offset in (1, 2, 3, 4):
        slot.log.ack(offset, 4)
    slot.send_acks()
    slot.producer.store(slot.logs.settled)
    second = await next_owner(kafka, first)
    second.append(b"x", b"y")
    second.sync()
    assert (await next_owner(kafka, first)).bodies() == [b"x", b"y"]


async def test_ack_of_a_message_not_yet_safe_is_sent_later() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"a", b"b")
    slot.end_turn()
    slot.log.ack(1, 1)
    slot.send_acks()
    slot.producer.store_all()
    slot.send_acks()
    slot.producer.store_all()
    assert (await next_owner(kafka, first)).bodies() == [b"b"]


async def test_closed_partition_fails_only_its_log() -> None:
    slot = await Slot(FakeKafka(), queues=2).open()
    confirms: dict[int, bool] = {}
    for number in (0, 1):
        (offset,) = slot.append(b"a", number=number)
        slot.queues[number].when_safe(offset, lambda safe, number=number: confirms.update({number: safe}))  # type: ignore[misc]
    slot.end_turn()
    slot.producer.refuse(slot.partitions[0], 10, "MESSAGE_TOO_LARGE")
    slot.producer.store_all()
    assert confirms == {0: False, 1: True}
    assert (slot.failed, slot.fenced) == ([slot.queues[0]], [])
    assert slot.storage.commits.unsynced_bytes == 0
    with pytest.raises(LogFailed):
        slot.append(b"b")
    slot.append(b"b", number=1)
    slot.sync()
    assert slot.bodies(1) == [b"a", b"b"]


async def test_refused_partition_accepts_appends_once_its_batch_is_stored() -> None:
    """The owner stays the same. The nacked message is stored, and later publishes follow it."""
    slot = await Slot(FakeKafka(), queues=2).open()
    accepted: list[object] = []
    slot.logs.on_accepted = accepted.append
    confirms: list[bool] = []
    (offset,) = slot.append(b"a")
    slot.log.when_safe(offset, confirms.append)
    slot.end_turn()
    partition = slot.partitions[0]
    assert partition.retry_ms == 10_000
    slot.producer.refuse_now(partition, 10, "MESSAGE_TOO_LARGE")
    assert (confirms, slot.failed, accepted) == ([False], [slot.log], [])
    assert slot.log.location()["refused"] == "MESSAGE_TOO_LARGE"
    with pytest.raises(LogFailed):
        slot.append(b"b")
    slot.producer.store_all()
    assert accepted == [slot.log]
    assert slot.log.location()["refused"] is None
    (offset,) = slot.append(b"b")
    slot.log.when_safe(offset, confirms.append)
    slot.sync()
    assert confirms == [False, True]
    assert slot.bodies() == [b"a", b"b"]
    assert (slot.fenced, slot.storage.commits.unsynced_bytes) == ([], 0)


async def test_refused_queue_can_be_deleted() -> None:
    slot = await Slot(FakeKafka()).open()
    slot.append(b"a")
    slot.end_turn()
    partition = slot.partitions[0]
    slot.producer.refuse_now(partition, 29, "TOPIC_AUTHORIZATION_FAILED")
    slot.log.retire(lambda: None)
    assert partition.closed == 29
    assert not partition.order


async def test_slot_with_a_refused_queue_can_be_given_up() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first, queues=2)
    slot.append(b"a", number=1)
    slot.append(b"b")
    slot.end_turn()
    slot.producer.refuse_now(slot.partitions[0], 29, "TOPIC_AUTHORIZATION_FAILED")
    slot.producer.store(slot.partitions[1])
    await slot.logs.give_up()
    assert [len(partition.order) for partition in slot.partitions] == [1, 0]
    assert (await next_owner(kafka, first, queues=2)).bodies(1) == [b"a"]


async def test_fenced_owner_fails_its_confirms() -> None:
    slot = await Slot(FakeKafka()).open()
    confirms: list[bool] = []
    (offset,) = slot.append(b"a")
    slot.log.when_safe(offset, confirms.append)
    slot.end_turn()
    slot.producer.fence("another has it")
    assert (confirms, slot.fenced, slot.storage.commits.unsynced_bytes) == ([False], ["another has it"], 0)


async def test_alternating_acks_stay_small() -> None:
    """The acks are stored as chunks with a bit per offset, and each chunk is sent once."""
    kafka = FakeKafka()
    slot = await Slot(kafka).open()
    log = slot.log
    count = 1_000_000
    log.log.end = log.next_offset = count + 1  # as if these messages had been appended
    log.log.watermark.offset = count + 1
    ack_writer = log.ack_writer
    for offset in range(1, count, 2):
        ack_writer.note(1, offset, offset, 0)
    records = ack_writer.take_records(1, count + 1, 0, 0)
    size = sum(record.size() for record in records)
    assert len(records) <= (count >> 12) + 3
    assert size < 160_000  # one bit per offset: 1.4 MB for ten million acks
    second_records = ack_writer.take_records(1, count + 1, 0, 0)
    assert second_records == []


async def test_moving_head_deletes_the_older_ack_records() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(*(b"x" for _ in range(10_000)))
    slot.end_turn()
    for offset in range(2, 9000, 2):
        slot.log.ack(offset, 1)
    slot.sync()
    for offset in range(1, 9000, 2):
        slot.log.ack(offset, 1)
    slot.sync()
    values_by_key: dict[bytes, bytes | None] = {}
    for batch in kafka.stored[ACKS_TOPIC, 0]:
        values_by_key.update({each.key: each.value for each in read_keyed(batch)})
    assert sum(value is not None for key, value in values_by_key.items() if key[:1] == b"\x01") == 1
    second = await next_owner(kafka, first)
    assert len(second.bodies()) == 10_000 - 8999
    assert second.log.ack_writer.head == 9000


async def test_keep_alive_records_are_gaps() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
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
    second = await next_owner(kafka, first)
    kafka.fetched_bytes = 0
    assert (second.bodies(), second.log.record_count, second.log.foreign_count) == ([], 0, 0)
    assert kafka.fetched_bytes == 0
    assert second.append(b"c") == [8]
    second.sync()
    assert (await next_owner(kafka, first)).bodies() == [b"c"]


async def test_batches_of_a_new_epoch_wait_for_the_earlier_ones() -> None:
    """Batches of the earlier epoch are answered before those of the new one are sent. Other partitions do not wait."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first, 2)
    slot.append(b"a")
    slot.end_turn()
    slot.append(b"b")
    later = ProducerId(0, slot.producer.held.producer_id, 5)
    slot.logs.renew(later)
    slot.producer.held = later
    slot.append(b"c")
    slot.end_turn()
    slot.append(b"d")
    slot.append(b"other", number=1)
    slot.end_turn()
    assert [len(partition.order) for partition in slot.partitions] == [2, 1]
    slot.producer.store(slot.partitions[0], 2)
    slot.sync()
    slot.append(b"e")
    slot.sync()
    found = [BatchHeader(batch, 0) for batch in kafka.stored[TOPIC, 0]][1:]
    assert [(each.producer_epoch, each.base_sequence) for each in found] == [(0, 1), (0, 2), (5, 0), (5, 1), (5, 2)]
    kafka.epoch = 5
    second = await next_owner(kafka, first, 2)
    assert (second.bodies(), second.bodies(1)) == ([b"a", b"b", b"c", b"d", b"e"], [b"other"])


async def test_acks_of_a_new_epoch_wait_for_the_earlier_ones() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.sync()
    slot.log.ack(1, 1)
    slot.send_acks()
    later = ProducerId(0, slot.producer.held.producer_id, 5)
    slot.logs.renew(later)
    slot.producer.held = later
    slot.log.ack(2, 1)
    slot.send_acks()
    assert len(slot.logs.settled.order) == 1
    slot.producer.store_all()
    await slot.logs.give_up()
    epochs = [int(BatchHeader(batch, 0).producer_epoch) for batch in kafka.stored[ACKS_TOPIC, 0]]
    assert epochs == sorted(epochs)
    kafka.epoch = 5
    second = await next_owner(kafka, first)
    assert second.logs.is_clean_takeover
    assert second.bodies() == [b"c"]


async def test_deleted_queue_leaves_no_ack_records() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(*(b"x" for _ in range(20)))
    slot.end_turn()
    slot.log.ack(7, 1)
    slot.log.mark_returned(8, 2)
    slot.log.mark_delivered(8)
    slot.sync()
    done: list[bool] = []
    slot.log.retire(lambda: done.append(True))
    slot.end_turn()
    slot.logs._run_pass()
    slot.producer.store_all()
    assert done == [True]
    values_by_key: dict[bytes, bytes | None] = {}
    for batch in kafka.stored[ACKS_TOPIC, 0]:
        values_by_key.update({each.key: each.value for each in read_keyed(batch)})
    assert {key for key, value in values_by_key.items() if value is not None} == set()


async def test_deleted_topics_leave_the_memory() -> None:
    """Queues in topics of their own come and go: their partitions must not stay until the slot has another owner."""
    slot = await Slot(FakeKafka()).open()
    slot.append(b"kept")
    slot.sync()
    for number in range(1, 30):
        partition = slot.producer.take_over(f"own-{number}", 0)
        place = LogPosition(f"own-{number}", 0, int(partition.next_offset))
        slot.storage.places[queue_id(number)] = PlacedLog(slot.logs, place)
        log = slot.storage.open_queue("v", queue_id(number), f"q{number}", "/")
        assert isinstance(log, ReplicatedLog)
        await slot.wait_open(log)
        slot.queues.append(log)
        slot.append(b"x", number=1)
        slot.sync()
        slot.queues.pop().retire(lambda: None)
        slot.end_turn()
        slot.producer.partitions.remove(partition)
    assert len(slot.logs._replicas) <= 3
    assert len(slot.logs._places) <= 3
    slot.append(b"later")
    slot.sync()
    assert slot.bodies() == [b"kept", b"later"]


async def test_orphaned_logs_are_dropped() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first, 2)
    for number in (0, 1):
        slot.append(b"x", number=number)
    slot.sync()
    second = Slot(kafka, 1, first)
    await second.open()
    assert second.logs.drop_orphans({queue_id(0), queue_id(1)}) == 0  # the vhost of queue 1 is opened later
    assert second.logs.drop_orphans({queue_id(0)}) == 1
    second.logs._run_pass()
    second.producer.store_all()
    third = await next_owner(kafka, first)
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
def test_random_steps_match_a_naive_twin(steps: list[Step]) -> None:
    asyncio.run(_run_steps(steps))


async def _run_steps(steps: list[Step]) -> None:
    """Acked messages may be delivered again if their ack was not sent and stored."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    sent: dict[int, bytes] = {}  # bodies of all owners
    acked: set[int] = set()
    safely_acked: set[int] = set()  # acked, sent and stored
    serial = 0
    for step, number in [*steps, ("kill", 0)]:
        log = slot.log
        if step == "publish":
            for _ in range(number):
                serial += 1
                (offset,) = slot.append(b"%d" % serial)
                sent[offset] = b"%d" % serial
        elif step in ("settle", "return", "deliver"):
            slot.end_turn()
            live = list(slot.live())
            if live:
                record = live[number % len(live)]
                if step == "settle":
                    log.ack(record.offset, len(record.body))
                    acked.add(record.offset)
                elif step == "return":
                    log.mark_returned(record.offset, number)
                else:
                    log.mark_delivered(record.offset)
        elif step == "turn":
            slot.end_turn()
        elif step == "tell":
            slot.end_turn()
            slot.send_acks()
        elif step == "store":
            slot.sync()
            safely_acked |= acked
        elif step == "store_one":
            for partition in slot.producer.partitions:
                slot.producer.store(partition, 1)
        elif step == "alive":
            slot.end_turn()
            slot.logs.keep_alive(b"slot")
        else:
            if step == "give_up":
                await slot.logs.give_up()
                safely_acked |= acked
            end = kafka.end(TOPIC, 0)
            returned = {offset: slot.log.delivery_count(offset) for offset in sent} if step == "give_up" else {}
            slot = await next_owner(kafka, first)
            sent = {offset: body for offset, body in sent.items() if offset < end}
            found = {int(record.offset): record.body for record in slot.live()}
            assert all(sent.get(offset) == body for offset, body in found.items())
            assert set(sent) - acked <= set(found)
            assert not set(found) & safely_acked
            assert slot.log.record_count == len(found)
            assert slot.log.size_bytes == sum(map(len, found.values()))
            if step == "kill":
                assert all(slot.log.redelivered(offset) for offset in found)
            for offset in found:
                if step == "give_up":
                    assert slot.log.delivery_count(offset) == returned[offset]
            acked = {offset for offset in acked if offset in sent and offset not in found}
            safely_acked = set(acked)


class OneLogSlice:
    """A slice of the loop that ends after one log."""

    def __init__(self) -> None:
        self._checks = 0

    @property
    def is_over(self) -> bool:
        self._checks += 1
        return self._checks > 1


@pytest.mark.parametrize("number", [0, 1], ids=["written by the pass", "waits in the pass"])
async def test_transaction_during_a_pass_is_answered(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The pass has the acks already, so no later change starts another pass."""
    slot = await Slot(FakeKafka(), 2).open()
    for each in (0, 1):
        slot.append(b"a", number=each)
    slot.sync()
    monkeypatch.setattr("amqpd.cluster.slot_logs.LoopSlice", OneLogSlice)
    monkeypatch.setattr("amqpd.cluster.slot_logs.TELL_PAUSE_S", 0.0)
    for log in slot.queues:
        log.ack(1, 1)
        log.collect_acks()
    assert slot.logs._pass_timer is not None
    slot.logs._pass_timer.cancel()
    slot.logs._run_pass()
    assert list(slot.logs._pass_logs) == slot.queues[1:]
    answers: list[bool] = []
    slot.queues[number].when_acks_safe(answers.append)
    for _ in range(50):
        await asyncio.sleep(0)
        slot.producer.store_all()
    assert answers == [True]


async def test_transaction_of_a_log_that_kafka_refuses_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acks wait for a message that Kafka does not take."""
    slot = await Slot(FakeKafka()).open()
    monkeypatch.setattr("amqpd.cluster.slot_logs.TELL_PAUSE_S", 0.0)
    (offset,) = slot.append(b"a")
    slot.end_turn()
    slot.log.ack(offset, 1)
    answers: list[bool] = []
    slot.log.when_acks_safe(answers.append)
    for _ in range(50):
        await asyncio.sleep(0)
    assert answers == []
    slot.producer.refuse(slot.partitions[0], 29, "no permission")
    for _ in range(50):
        await asyncio.sleep(0)
    assert answers == [False]
