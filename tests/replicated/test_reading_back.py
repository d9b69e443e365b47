"""The next owner of a slot reads back its logs: live messages, delivered ones, and failures of Kafka or the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kafka_in_memory import FakeKafka
from slot_in_memory import ACKS_TOPIC, TOPIC, Slot, next_owner

from amqpd.cluster import slot_logs
from amqpd.kafka.connection import KafkaDisconnected


async def test_next_owner_reads_back_live_messages() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(*(b"%d" % number for number in range(200)))
    slot.end_turn()
    for offset in (1, 2, 3, 7, 100, 200):
        slot.log.ack(offset, 3)
    slot.log.mark_returned(8, 3)
    slot.log.mark_delayed(9, 1, 1_800_000_000_000)
    slot.log.mark_delivered(101)
    slot.sync()
    second = await next_owner(kafka, first)
    expected = [b"%d" % number for number in range(200) if number + 1 not in (1, 2, 3, 7, 100, 200)]
    assert second.bodies() == expected
    assert second.log.record_count == len(expected)
    assert second.log.size_bytes == sum(len(body) for body in expected)
    assert (second.log.delivery_count(8), second.log.delivery_count(9), second.log.delivery_count(10)) == (3, 1, 0)
    assert [(offset, second.log.due_ms(offset)) for offset in second.log.returned_offsets()] == [
        (8, 0),
        (9, 1_800_000_000_000),
    ]
    assert second.append(b"next") == [202]  # behind the second owner's epoch fence
    second.end_turn()
    assert second.bodies() == [*expected, b"next"]


async def test_messages_of_a_killed_owner_count_as_delivered() -> None:
    """A killed owner may have delivered more than it could write."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.end_turn()
    slot.log.mark_delivered(1)
    slot.sync()
    second = await next_owner(kafka, first)
    assert [second.log.redelivered(offset) for offset in (1, 2, 3)] == [True, True, True]
    second.append(b"d")
    second.end_turn()
    assert not second.log.redelivered(5)


async def test_delivery_marks_are_exact_after_a_clean_give_up() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.log.mark_delivered(1)
    slot.log.ack(2, 1)
    slot.end_turn()
    slot.append(b"d")
    await slot.logs.give_up()
    await slot.logs.close()
    second = await next_owner(kafka, first)
    assert second.logs.is_clean_takeover
    assert second.bodies() == [b"a", b"c", b"d"]
    assert [second.log.redelivered(offset) for offset in (1, 3, 4)] == [True, False, False]
    third = await next_owner(kafka, first)  # the second owner was not given up
    assert not third.logs.is_clean_takeover
    assert third.log.redelivered(4)


async def test_deliveries_of_a_killed_owner_are_kept_by_an_idle_owner() -> None:
    """The owner in between takes over from a killed one and is given up cleanly before it has read the log."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.end_turn()
    slot.log.ack(1, 1)
    slot.log.mark_delivered(2)
    slot.sync()
    slot.log.mark_delivered(3)  # killed before it could write this mark
    between = Slot(kafka, 1, first)
    await between.logs.read_acks(kafka.read(ACKS_TOPIC, 0, 0, int(between.logs.settled.next_offset)))
    log = between.add(0, first[0])
    assert not log.ready
    await between.logs.give_up()
    await between.logs.close()
    second = await next_owner(kafka, first)
    assert second.logs.is_clean_takeover
    assert second.bodies() == [b"b", b"c"]
    assert [second.log.redelivered(offset) for offset in (2, 3)] == [True, True]
    second.append(b"d")
    await second.logs.give_up()
    await second.logs.close()
    third = await next_owner(kafka, first)
    assert [third.log.redelivered(each.offset) for each in third.live()] == [True, True, False]


async def test_refused_queue_does_not_lose_the_acks_of_others() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first, 2)
    slot.append(b"a")
    slot.append(b"b", b"c", number=1)
    slot.sync()
    slot.append(b"x" * 100)
    slot.end_turn()
    slot.producer.refuse(slot.partitions[0], 10, "MESSAGE_TOO_LARGE")
    slot.queues[1].ack(1, 1)
    slot.end_turn()
    await slot.logs.give_up()
    await slot.logs.close()
    second = await next_owner(kafka, first, 2)
    assert second.logs.is_clean_takeover
    assert (second.bodies(), second.bodies(1)) == ([b"a"], [b"c"])


async def test_log_that_was_not_opened_is_given_up_unchanged() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.end_turn()
    slot.log.ack(2, 1)
    slot.sync()
    second = Slot(kafka, 1, first)
    await second.logs.read_acks(kafka.read(ACKS_TOPIC, 0, 0, int(second.logs.settled.next_offset)))
    second.add(0, first[0])
    assert not second.log.ready
    await second.logs.give_up()
    for log in second.queues:
        second.storage.remove_local_files(log)
    second.end_turn()
    second.logs._run_pass()
    second.producer.store_all()
    await second.logs.close()
    assert (await next_owner(kafka, first)).bodies() == [b"a", b"c"]


async def test_fully_acked_chunks_are_not_read() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(*(b"x" for _ in range(50_000)))
    slot.end_turn()
    slot.log.ack_range(2, 49_000, 48_999)
    slot.sync()
    kafka.fetched_bytes = 0
    total = sum(len(batch) for batch in kafka.stored[TOPIC, 0])
    second = await next_owner(kafka, first)
    assert second.log.record_count == 50_000 - 48_999
    assert kafka.fetched_bytes < total // 4


async def test_full_disk_while_a_log_is_read_back() -> None:
    """The first caller gets the error. The next one, after space was freed, gets each message once."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    bodies = [b"%05d" % number * 20 for number in range(2000)]
    for start in range(0, 2000, 100):
        slot.append(*bodies[start : start + 100])
        slot.end_turn()
    for offset in range(1, 2000, 3):
        slot.log.ack(offset, 100)
    slot.sync()
    second = Slot(kafka, 1, first)
    await second.logs.read_acks(kafka.read(ACKS_TOPIC, 0, 0, int(second.logs.settled.next_offset)))
    log = second.add(0, first[0])
    filesystem = second.filesystem
    filesystem.capacity = filesystem.used() + 100_000
    opened = asyncio.Event()
    assert not log.open_soon(opened.set)
    await asyncio.wait_for(opened.wait(), 30)
    with pytest.raises(OSError, match="is being read from Kafka"):
        log.recover()
    filesystem.capacity = None
    await second.wait_open(log)
    assert second.bodies() == [body for number, body in enumerate(bodies) if number % 3]
    assert log.record_count == len(second.bodies())
    assert log.size_bytes == 100 * len(second.bodies())
    second.append(b"more")
    second.sync()
    assert second.bodies()[-1] == b"more"


async def test_unused_logs_are_read_one_after_the_other() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first, 5)
    for number in range(5):
        slot.append(*(b"x" for _ in range(100 * (5 - number))), number=number)
    slot.sync()
    second = Slot(kafka, 5, first)
    await second.logs.read_acks(kafka.read(ACKS_TOPIC, 0, 0, int(second.logs.settled.next_offset)))
    for number in range(5):
        second.add(number, first[number])
    reads: list[int] = []
    kafka.before_read = lambda topic, number, _: reads.append(number) if topic == TOPIC else None
    second.logs.read_all()
    await second.wait_open(second.queues[0])  # a caller does not wait for the other logs
    while not all(log.ready for log in second.queues):  # noqa: ASYNC110  # there is no notification
        await asyncio.sleep(0)
    assert [log.record_count for log in second.queues] == [500, 400, 300, 200, 100]
    assert list(dict.fromkeys(each for each in reads if each)) == [4, 3, 2, 1]


async def test_kafka_disconnects_while_a_log_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_logs, "RETRY_S", 0.001)
    monkeypatch.setattr(slot_logs, "FILL_SIZE", 1000)
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    for number in range(50):
        slot.append(b"%d" % number)
        slot.end_turn()
    slot.sync()
    tries = iter(range(1000))

    def before_read(topic: str, _number: int, _offset: int) -> None:
        if topic == TOPIC and next(tries) % 30 == 29:
            raise KafkaDisconnected("the broker is away")

    kafka.before_read = before_read
    assert (await next_owner(kafka, first)).bodies() == [b"%d" % number for number in range(50)]
    assert next(tries) > 51


async def test_waiting_callback_runs_when_the_slot_closes() -> None:
    """Otherwise a request of the admin API would wait forever, and a dead letter would keep its vhost in memory."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await next_owner(kafka, first)
    slot.append(b"a")
    slot.sync()
    second = Slot(kafka, 1, first)

    async def never(*_: object) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    second.logs._reading._read = never
    second.add(0, first[0])
    calls: list[bool] = []
    assert not second.log.open_soon(lambda: calls.append(second.log.ready))
    await asyncio.sleep(0)
    assert calls == []
    await second.logs.close()
    await asyncio.sleep(0)
    assert calls == [False]


async def test_queue_in_a_used_partition_starts_behind_the_old_messages() -> None:
    kafka = FakeKafka()
    slot = await next_owner(kafka, {})
    slot.append(b"old", b"old")
    slot.sync()
    second = await next_owner(kafka, {0: 4})  # 3 is the epoch fence of the new owner
    assert second.bodies() == []
    assert second.append(b"new") == [4]
