"""A slot's life on one node: taken, served, given up, ended; no Kafka needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from amqpd.cluster import slots as module
from amqpd.cluster.slots import Slots
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.kafka.outages import Outages
from amqpd.kafka.producer import KafkaRefused


class Slot:
    def __init__(self, slot: int, epoch: int) -> None:
        self.slot = slot
        self.epoch = epoch
        self.end_reason = ""
        self.end_event = asyncio.Event()

    def end(self, why: str) -> None:
        self.end_reason = why
        self.end_event.set()


class Fake:
    """A taker, and the group."""

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []
        self.epoch = 0
        self.errors: list[Exception] = []
        self.known = True
        self.asked: list[int] = []
        self.rejoined = 0
        self.empty: set[int] = set()
        self.taking: asyncio.Event | None = None
        self.slots = Slots(self, self.is_known, self.rejoin, lambda slot: slot not in self.empty, Outages())

    async def take_over(self, slot: int) -> Slot:
        self.did.append(("take", slot))
        if self.taking is not None:
            await self.taking.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.epoch += 1
        return Slot(slot, self.epoch)

    async def give_up(self, held: Slot) -> None:
        self.did.append(("give up", held.slot))

    async def unload(self, held: Slot) -> None:
        self.did.append(("drop", held.slot))

    async def is_known(self, generation: int) -> bool:
        self.asked.append(generation)
        return self.known

    def rejoin(self) -> None:
        self.rejoined += 1


@pytest.fixture(autouse=True)
def short(monkeypatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.02)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.1)
    monkeypatch.setattr(module, "KNOWN_PAUSE_S", 0.01)


@pytest.fixture
async def fake() -> Fake:
    return Fake()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # what it looks at has no event
            await asyncio.sleep(0.005)


async def test_it_takes_what_it_is_assigned_and_gives_up_what_is_left_out(fake) -> None:
    fake.slots.assigned(1, frozenset({1, 2}))
    assert fake.slots.announced_slots() == {1: 0, 2: 0}, "what is about to be taken is told, too"
    await until(lambda: len(fake.slots.held) == 2)
    assert fake.slots.announced_slots() == {1: 1, 2: 2}
    fake.slots.assigned(2, frozenset({2, 3}))
    await until(lambda: sorted(fake.slots.held) == [2, 3])
    await until(lambda: fake.rejoined == 1)
    assert ("give up", 1) in fake.did
    assert ("take", 2) not in fake.did[2:], "what stays is served on"
    assert 1 not in fake.slots.announced_slots()


async def test_one_with_nothing_in_it_is_not_taken_before_there_is(fake) -> None:
    fake.empty = {5}
    fake.slots.assigned(1, frozenset({5}))
    await asyncio.sleep(0.05)
    assert fake.did == []
    fake.empty = set()
    fake.slots.start_serving(5)
    await until(lambda: 5 in fake.slots.held)
    fake.slots.start_serving(6)
    assert ("take", 6) not in fake.did, "it is not ours"


async def test_nothing_is_taken_while_the_group_does_not_know_us(fake) -> None:
    fake.known = False
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: len(fake.asked) > 3)
    assert fake.did == []
    fake.known = True
    await until(lambda: 1 in fake.slots.held)


async def test_one_that_has_ended_is_dropped_and_taken_again_in_a_later_generation_only(fake) -> None:
    fake.slots.assigned(4, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)
    fake.slots.held[1].end("PRODUCER_FENCED")
    await until(lambda: ("drop", 1) in fake.did and fake.rejoined == 1)
    await asyncio.sleep(0.2)
    assert fake.did == [("take", 1), ("drop", 1)]
    fake.slots.assigned(5, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)
    assert fake.did == [("take", 1), ("drop", 1), ("take", 1)]


async def test_it_tries_again_where_kafka_is_away_and_waits_for_another_round_where_it_is_refused(fake) -> None:
    fake.errors = [KafkaDisconnected("away"), KafkaDisconnected("away"), KafkaRefused("PRODUCER_FENCED")]
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: fake.rejoined == 1)
    assert fake.did == [("take", 1)] * 3
    await asyncio.sleep(0.2)
    assert len(fake.did) == 3
    fake.slots.assigned(2, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)


async def test_an_assignment_that_changes_while_it_is_being_taken_is_obeyed(fake) -> None:
    fake.taking = asyncio.Event()
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: fake.did)
    fake.slots.assigned(2, frozenset())
    fake.taking.set()
    await until(lambda: ("give up", 1) in fake.did)
    assert not fake.slots.held


async def test_one_that_is_left_out_before_it_was_taken_is_asked_for_by_others(fake) -> None:
    """The group was told that this node has it, so nobody else was given it: in the next round somebody is."""
    fake.known = False
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: len(fake.asked) > 1)
    assert fake.slots.announced_slots() == {1: 0}
    fake.slots.assigned(2, frozenset())
    await until(lambda: fake.rejoined == 1)
    assert not fake.slots.announced_slots()
    fake.known, fake.errors = True, [KafkaRefused("PRODUCER_FENCED")]
    fake.slots.assigned(3, frozenset({1}))
    await until(lambda: fake.rejoined == 2)  # it waits for a later generation
    fake.slots.assigned(4, frozenset())
    await until(lambda: fake.rejoined == 3)
    assert not fake.slots.announced_slots()


async def test_a_stop_gives_all_up_and_asks_for_no_other_round(fake) -> None:
    fake.slots.assigned(1, frozenset({1, 2}))
    await until(lambda: len(fake.slots.held) == 2)
    await fake.slots.stop(5)
    assert sorted(fake.did[2:]) == [("give up", 1), ("give up", 2)]
    assert fake.rejoined == 0
    fake.slots.assigned(2, frozenset({1}))
    await asyncio.sleep(0.05)
    assert not fake.slots.held


async def test_what_is_not_given_up_in_time_is_dropped(fake) -> None:
    async def never(held: Slot) -> None:
        await asyncio.Event().wait()

    fake.give_up = never
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: fake.slots.held)
    await fake.slots.stop(0.05)
    assert not fake.slots.announced_slots()


async def test_a_bug_in_taking_is_logged_and_tried_again(fake, caplog) -> None:
    fake.errors = [RuntimeError("a bug")]
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)
    assert "a bug in amqpd, please report it" in caplog.text
