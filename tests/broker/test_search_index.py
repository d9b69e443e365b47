"""The index of a scan has exactly the messages in memory while it is built and used, beside other operations."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import Any

import pytest
from taker import Taker, take

from amqpd.broker.jobs.job import JobFilter
from amqpd.broker.message import Message
from amqpd.broker.queue.filtered import MessagePredicate
from amqpd.broker.queue.scan import LogScan
from amqpd.routing.selector import parse_selector

KINDS = {"groups": {"x_group_by": "header:group"}, "levels": {"x_max_priority": 3}}


def publish(room: Any, rng: random.Random, count: int = 1) -> None:
    for _ in range(count):
        number = rng.randrange(4)
        room.publish("q", b"%d" % number, headers={"group": f"g{number}", "n": rng.randrange(10)}, priority=number)


def in_memory(scan: Any, end: int) -> dict[int, object]:
    return {each.offset: each for each in scan.queue.order.in_memory() if 0 <= each.offset < end}


@pytest.mark.parametrize("window", [6, 4096])
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_index_has_the_messages_in_memory(room: Any, kind: str, durable: bool, window: int, seed: int) -> None:
    rng = random.Random(seed)
    queue = room.queue("q", durable=durable, **KINDS[kind])
    queue.order.memory.count_max = window
    publish(room, rng, 60)
    consumers: list[Taker] = []
    scan: Any = None
    end = 0
    found: list[Any] = []
    collect_count = 0
    for _ in range(400):
        if scan is None:
            conditions = JobFilter(parse_selector("n < 3"), None)
            end = queue.backing.next_offset
            scan = LogScan(queue, conditions, lambda: None, queue.order)
        action = rng.choice(
            ("publish", "take", "leave", "ack", "requeue", "purge", "search", "search", "back", "settle")
        )
        if action == "publish":
            publish(room, rng, rng.randrange(1, 5))
        elif action == "take" and len(consumers) < 3:
            consumers.append(take(room, queue, credit=rng.choice((1, 5, 40))))
        elif action == "leave" and consumers:
            consumers.pop(rng.randrange(len(consumers))).leave()
        elif action in ("ack", "requeue") and consumers:
            consumer = rng.choice(consumers)
            if consumer.entries:
                getattr(consumer, action)(rng.randrange(len(consumer.entries)))
        elif action == "purge" and rng.random() < 0.05:
            queue.purge()
        elif action == "search":
            room.clock.per_look_ms = rng.choice((0, 1))
            scan.collect(found, rng.choice((1, 4, 50)), 1 << 20)
            room.clock.per_look_ms = 0
            collect_count += 1
        elif action in ("back", "settle") and found:
            (scan.return_message if action == "back" else scan.settle)(found.pop(rng.randrange(len(found))))
        room.turn.schedule()
        room.turns()
        index = scan._index
        if not index._filling:
            assert index.entries == in_memory(scan, end), action
        if scan.ended:
            scan.close()
            order = queue.order.window if kind == "groups" else queue.order
            assert not order.indexes
            scan = None
    assert collect_count > 30


@pytest.mark.parametrize("kind", KINDS)
def test_slice_does_not_revisit_returned_messages(room: Any, kind: str) -> None:
    """A slice looks at the same number of messages for any number in memory: about 100 at 3 looks at the clock."""
    looked = {}
    for count in (2_000, 8_000):
        name = f"{count}"
        queue = room.queue(name, durable=False, **KINDS[kind])
        for number in range(count):
            room.publish(name, b"", headers={"group": f"g{number % 7}", "n": number}, turn=number % 100 == 99)
        room.turn.schedule()
        room.turns()
        conditions = JobFilter(parse_selector("n < 0"), None)
        scan = LogScan(queue, conditions, lambda: None, queue.order)
        room.clock.per_look_ms = 1
        slices = []
        while not scan.ended:
            before = conditions.looked_count
            scan.collect([], 100, 1 << 20)
            slices.append(conditions.looked_count - before)
        room.clock.per_look_ms = 0
        scan.close()
        assert conditions.looked_count == count
        looked[count] = max(slices)
    assert looked[2_000] == looked[8_000] >= 32, looked


class Breaking(MessagePredicate):
    """Wants every message. From the first one on, the disk fails."""

    def __init__(self, room: Any) -> None:
        self.room = room

    def wants(self, message: Message) -> bool:
        self.room.filesystem.fault = lambda name, _path: OSError(errno.EIO, "unreadable") if name == "pread" else None
        return True


@pytest.mark.parametrize("kind", KINDS)
def test_messages_found_before_a_read_fails_are_returned(memory_room: Any, kind: str) -> None:
    room = memory_room()
    room.queue("q", **KINDS[kind])
    for number in range(12):
        room.publish("q", bytes(200_000), headers={"group": f"g{number % 3}"}, priority=number % 3)
    room.restart()
    queue = room.vhost.queues["q"]
    assert queue.can_open()
    room.turns()
    scan = LogScan(queue, Breaking(room), lambda: None, queue.order)
    entries: list[Any] = []
    while not entries:
        with suppress(OSError):
            scan.collect(entries, 100, 1 << 30)
        room.turns()
    assert len(entries) == queue.unacked_count > 0
    assert queue.ready_count + queue.unacked_count == 12
