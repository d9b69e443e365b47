"""What the next owner of a slot reads back of its logs: what is live, what counts as delivered, while Kafka is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kafka_in_memory import FakeKafka
from slot_in_memory import SETTLED, TOPIC, Slot, owner

from amqpd.cluster import slot_logs
from amqpd.kafka.connection import KafkaDisconnected


async def test_the_next_owner_reads_back_what_is_live() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(*(b"%d" % number for number in range(200)))
    slot.turn()
    for offset in (1, 2, 3, 7, 100, 200):
        slot.log.ack(offset, 3)
    slot.log.mark_returned(8, 3)
    slot.log.mark_delayed(9, 1, 1_800_000_000_000)
    slot.log.mark_delivered(101)
    slot.sync()
    nxt = await owner(kafka, first)
    expected = [b"%d" % number for number in range(200) if number + 1 not in (1, 2, 3, 7, 100, 200)]
    assert nxt.bodies() == expected
    assert nxt.log.record_count == len(expected)
    assert nxt.log.size_bytes == sum(len(body) for body in expected)
    assert (nxt.log.delivery_count(8), nxt.log.delivery_count(9), nxt.log.delivery_count(10)) == (3, 1, 0)
    assert [(offset, nxt.log.due_ms(offset)) for offset in nxt.log.returned_offsets()] == [
        (8, 0),
        (9, 1_800_000_000_000),
    ]
    assert nxt.append(b"next") == [202]  # behind its barrier
    nxt.turn()
    assert nxt.bodies() == [*expected, b"next"]


async def test_what_was_not_given_up_cleanly_counts_as_delivered() -> None:
    """Who was killed may have delivered more than it could tell."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.turn()
    slot.log.mark_delivered(1)
    slot.sync()
    killed = await owner(kafka, first)
    assert [killed.log.redelivered(offset) for offset in (1, 2, 3)] == [True, True, True]
    killed.append(b"d")
    killed.turn()
    assert not killed.log.redelivered(5)


async def test_given_up_cleanly() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.log.mark_delivered(1)
    slot.log.ack(2, 1)
    slot.turn()
    slot.append(b"d")
    await slot.logs.give_up()
    await slot.logs.close()
    nxt = await owner(kafka, first)
    assert nxt.logs.is_clean_takeover
    assert nxt.bodies() == [b"a", b"c", b"d"]
    assert [nxt.log.redelivered(offset) for offset in (1, 3, 4)] == [True, False, False]
    third = await owner(kafka, first)  # without a word of the second
    assert not third.logs.is_clean_takeover
    assert third.log.redelivered(4)


async def test_what_a_killed_owner_delivered_is_known_over_one_who_never_read_it() -> None:
    """The owner between has taken over from a killed one, and is given up cleanly before it has read the log."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.turn()
    slot.log.ack(1, 1)
    slot.log.mark_delivered(2)
    slot.sync()
    slot.log.mark_delivered(3)  # and was killed before it could tell
    between = Slot(kafka, 1, first)
    await between.logs.read_acks(kafka.read(SETTLED, 0, 0, int(between.logs.settled.next_offset)))
    log = between.add(0, first[0])
    assert not log.ready
    await between.logs.give_up()
    await between.logs.close()
    nxt = await owner(kafka, first)
    assert nxt.logs.is_clean_takeover
    assert nxt.bodies() == [b"b", b"c"]
    assert [nxt.log.redelivered(offset) for offset in (2, 3)] == [True, True]
    nxt.append(b"d")
    await nxt.logs.give_up()
    await nxt.logs.close()
    third = await owner(kafka, first)
    assert [third.log.redelivered(each.offset) for each in third.live()] == [True, True, False]


async def test_a_queue_that_kafka_refuses_does_not_cost_the_others_what_they_have_settled() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first, 2)
    slot.append(b"a")
    slot.append(b"b", b"c", number=1)
    slot.sync()
    slot.append(b"x" * 100)
    slot.turn()
    slot.producer.refuse(slot.partitions[0], 10, "MESSAGE_TOO_LARGE")
    slot.queues[1].ack(1, 1)
    slot.turn()
    await slot.logs.give_up()
    await slot.logs.close()
    nxt = await owner(kafka, first, 2)
    assert nxt.logs.is_clean_takeover
    assert (nxt.bodies(), nxt.bodies(1)) == ([b"a"], [b"c"])


async def test_a_log_that_nobody_has_opened_is_given_up_as_it_came() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a", b"b", b"c")
    slot.turn()
    slot.log.ack(2, 1)
    slot.sync()
    nxt = Slot(kafka, 1, first)
    await nxt.logs.read_acks(kafka.read(SETTLED, 0, 0, int(nxt.logs.settled.next_offset)))
    nxt.add(0, first[0])
    assert not nxt.log.ready
    await nxt.logs.give_up()
    for log in nxt.queues:
        nxt.storage.remove_local_files(log)
    nxt.turn()
    nxt.logs._run_pass()
    nxt.producer.store_all()
    await nxt.logs.close()
    assert (await owner(kafka, first)).bodies() == [b"a", b"c"]


async def test_full_chunks_are_not_read() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(*(b"x" for _ in range(50_000)))
    slot.turn()
    slot.log.ack_range(2, 49_000, 48_999)
    slot.sync()
    kafka.fetched_bytes = 0
    total = sum(len(batch) for batch in kafka.stored[TOPIC, 0])
    nxt = await owner(kafka, first)
    assert nxt.log.record_count == 50_000 - 48_999
    assert kafka.fetched_bytes < total // 4


async def test_a_full_disk_while_a_log_is_read_back() -> None:
    """Who asked is told; who asks again, when there is room, has all of it, each once."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    bodies = [b"%05d" % number * 20 for number in range(2000)]
    for start in range(0, 2000, 100):
        slot.append(*bodies[start : start + 100])
        slot.turn()
    for offset in range(1, 2000, 3):
        slot.log.ack(offset, 100)
    slot.sync()
    nxt = Slot(kafka, 1, first)
    await nxt.logs.read_acks(kafka.read(SETTLED, 0, 0, int(nxt.logs.settled.next_offset)))
    log = nxt.add(0, first[0])
    filesystem = nxt.filesystem
    filesystem.capacity = filesystem.used() + 100_000
    told = asyncio.Event()
    assert not log.open_soon(told.set)
    await asyncio.wait_for(told.wait(), 30)
    with pytest.raises(OSError, match="is being read from Kafka"):
        log.recover()
    filesystem.capacity = None
    await nxt.wait_open(log)
    assert nxt.bodies() == [body for number, body in enumerate(bodies) if number % 3]
    assert log.record_count == len(nxt.bodies())
    assert log.size_bytes == 100 * len(nxt.bodies())
    nxt.append(b"more")
    nxt.sync()
    assert nxt.bodies()[-1] == b"more"


async def test_logs_that_nobody_uses_are_read_one_after_the_other() -> None:
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first, 5)
    for number in range(5):
        slot.append(*(b"x" for _ in range(100 * (5 - number))), number=number)
    slot.sync()
    nxt = Slot(kafka, 5, first)
    await nxt.logs.read_acks(kafka.read(SETTLED, 0, 0, int(nxt.logs.settled.next_offset)))
    for number in range(5):
        nxt.add(number, first[number])
    asked: list[int] = []
    kafka.before_read = lambda topic, number, _: asked.append(number) if topic == TOPIC else None
    nxt.logs.read_all()
    await nxt.wait_open(nxt.queues[0])  # who asks does not wait for the others
    while not all(log.ready for log in nxt.queues):  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(0)
    assert [log.record_count for log in nxt.queues] == [500, 400, 300, 200, 100]
    assert list(dict.fromkeys(each for each in asked if each)) == [4, 3, 2, 1]


async def test_kafka_away_while_a_log_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_logs, "RETRY_S", 0.001)
    monkeypatch.setattr(slot_logs, "FILL_SIZE", 1000)
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    for number in range(50):
        slot.append(b"%d" % number)
        slot.turn()
    slot.sync()
    tries = iter(range(1000))

    def before_read(topic: str, _number: int, _offset: int) -> None:
        if topic == TOPIC and next(tries) % 30 == 29:
            raise KafkaDisconnected("the broker is away")

    kafka.before_read = before_read
    assert (await owner(kafka, first)).bodies() == [b"%d" % number for number in range(50)]
    assert next(tries) > 51


async def test_who_waits_for_a_log_is_told_when_the_slot_ends() -> None:
    """Else a request of the admin API would wait for ever, and a dead letter keep its vhost in memory."""
    kafka, first = FakeKafka(), dict[int, int]()
    slot = await owner(kafka, first)
    slot.append(b"a")
    slot.sync()
    nxt = Slot(kafka, 1, first)

    async def never(*_: object) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    nxt.logs._reading._read = never
    nxt.add(0, first[0])
    told: list[bool] = []
    assert not nxt.log.open_soon(lambda: told.append(nxt.log.ready))
    await asyncio.sleep(0)
    assert told == []
    await nxt.logs.close()
    await asyncio.sleep(0)
    assert told == [False]


async def test_a_queue_that_has_the_partition_of_another() -> None:
    """It begins behind what that has left."""
    kafka = FakeKafka()
    slot = await owner(kafka, {})
    slot.append(b"old", b"old")
    slot.sync()
    nxt = await owner(kafka, {0: 4})  # 3 is a barrier that was written for it
    assert nxt.bodies() == []
    assert nxt.append(b"new") == [4]
