"""What a search knows to be in memory is what is in memory, whatever comes and goes while it is made and used."""

from __future__ import annotations

import random
from typing import Any

import pytest
from taker import Taker, take

from amqpd.broker.jobs.job import JobFilter
from amqpd.broker.queue.scan import GroupScan, PriorityScan
from amqpd.routing.selector import parse_selector

KINDS = {"groups": {"x_group_by": "header:group"}, "levels": {"x_max_priority": 3}}


def publish(room: Any, rng: random.Random, count: int = 1) -> None:
    for _ in range(count):
        number = rng.randrange(4)
        room.publish("q", b"%d" % number, headers={"group": f"g{number}", "n": rng.randrange(10)}, priority=number)


def in_memory(search: Any, end: int) -> dict[int, object]:
    return {each.offset: each for each in search.queue.order.in_memory() if 0 <= each.offset < end}


@pytest.mark.parametrize("window", [6, 4096])
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens(room: Any, kind: str, durable: bool, window: int, seed: int) -> None:
    rng = random.Random(seed)
    queue = room.queue("q", durable=durable, **KINDS[kind])
    queue.order.memory.count_max = window
    publish(room, rng, 60)
    takers: list[Taker] = []
    search: Any = None
    end = 0
    found: list[Any] = []
    looked = 0
    for _ in range(400):
        if search is None:
            conditions = JobFilter(parse_selector("n < 3"), None)
            end = queue.backing.next_offset
            search = (GroupScan if kind == "groups" else PriorityScan)(queue, conditions, lambda: None)
        what = rng.choice(("publish", "take", "leave", "ack", "requeue", "purge", "search", "search", "back", "settle"))
        if what == "publish":
            publish(room, rng, rng.randrange(1, 5))
        elif what == "take" and len(takers) < 3:
            takers.append(take(room, queue, credit=rng.choice((1, 5, 40))))
        elif what == "leave" and takers:
            takers.pop(rng.randrange(len(takers))).leave()
        elif what in ("ack", "requeue") and takers:
            taker = rng.choice(takers)
            if taker.entries:
                getattr(taker, what)(rng.randrange(len(taker.entries)))
        elif what == "purge" and rng.random() < 0.05:
            queue.purge()
        elif what == "search":
            room.clock.per_look_ms = rng.choice((0, 1))
            search.collect(found, rng.choice((1, 4, 50)), 1 << 20)
            room.clock.per_look_ms = 0
            looked += 1
        elif what in ("back", "settle") and found:
            (search.return_message if what == "back" else search.settle)(found.pop(rng.randrange(len(found))))
        room.turn.schedule()
        room.turns()
        index = search._index
        if not index._filling:
            assert index.entries == in_memory(search, end), what
        if search.ended:
            search.close()
            order = queue.order.window if kind == "groups" else queue.order
            assert not order.indexes
            search = None
    assert looked > 30


@pytest.mark.parametrize("kind", KINDS)
def test_what_came_back_is_not_gone_over_with_each_slice(room: Any, kind: str) -> None:
    """A slice looks at as many messages however many are in memory: at 3 looks of the clock, some 100."""
    looked = {}
    for count in (2_000, 8_000):
        name = f"{count}"
        queue = room.queue(name, durable=False, **KINDS[kind])
        for number in range(count):
            room.publish(name, b"", headers={"group": f"g{number % 7}", "n": number}, turn=number % 100 == 99)
        room.turn.schedule()
        room.turns()
        conditions = JobFilter(parse_selector("n < 0"), None)
        search = (GroupScan if kind == "groups" else PriorityScan)(queue, conditions, lambda: None)
        room.clock.per_look_ms = 1
        slices = []
        while not search.ended:
            before = conditions.looked_count
            search.collect([], 100, 1 << 20)
            slices.append(conditions.looked_count - before)
        room.clock.per_look_ms = 0
        search.close()
        assert conditions.looked_count == count
        looked[count] = max(slices)
    assert looked[2_000] == looked[8_000] >= 32, looked
