"""The life of a slot on one node: taken, served, given up, ended. No Kafka needed."""

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
    """A fake slot owner and a fake group."""

    def __init__(self) -> None:
        self.actions: list[tuple[str, int]] = []
        self.epoch = 0
        self.errors: list[Exception] = []
        self.known = True
        self.checked_generations: list[int] = []
        self.rejoined = 0
        self.empty: set[int] = set()
        self.taking: asyncio.Event | None = None
        self.slots = Slots(self, self.is_known, self.rejoin, lambda slot: slot not in self.empty, Outages())

    async def take_over(self, slot: int) -> Slot:
        self.actions.append(("take", slot))
        if self.taking is not None:
            await self.taking.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.epoch += 1
        return Slot(slot, self.epoch)

    async def give_up(self, held: Slot) -> None:
        self.actions.append(("give up", held.slot))

    async def unload(self, held: Slot) -> None:
        self.actions.append(("drop", held.slot))

    async def is_known(self, generation: int) -> bool:
        self.checked_generations.append(generation)
        return self.known

    def rejoin(self) -> None:
        self.rejoined += 1


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.02)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.1)
    monkeypatch.setattr(module, "KNOWN_PAUSE_S", 0.01)


@pytest.fixture
async def fake() -> Fake:
    return Fake()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0.005)


async def test_assigned_slots_are_taken_and_others_given_up(fake) -> None:
    fake.slots.assigned(1, frozenset({1, 2}))
    assert fake.slots.announced_slots() == {1: 0, 2: 0}, "slots about to be taken must be announced"
    await until(lambda: len(fake.slots.held) == 2)
    assert fake.slots.announced_slots() == {1: 1, 2: 2}
    fake.slots.assigned(2, frozenset({2, 3}))
    await until(lambda: sorted(fake.slots.held) == [2, 3])
    await until(lambda: fake.rejoined == 1)
    assert ("give up", 1) in fake.actions
    assert ("take", 2) not in fake.actions[2:], "a slot that stays assigned was taken again"
    assert 1 not in fake.slots.announced_slots()


async def test_empty_slot_is_not_taken_until_it_has_a_vhost(fake) -> None:
    fake.empty = {5}
    fake.slots.assigned(1, frozenset({5}))
    await asyncio.sleep(0.05)
    assert fake.actions == []
    fake.empty = set()
    fake.slots.start_serving(5)
    await until(lambda: 5 in fake.slots.held)
    fake.slots.start_serving(6)
    assert ("take", 6) not in fake.actions, "slot 6 is not assigned to this node"


async def test_slot_is_not_taken_while_the_group_does_not_know_the_node(fake) -> None:
    fake.known = False
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: len(fake.checked_generations) > 3)
    assert fake.actions == []
    fake.known = True
    await until(lambda: 1 in fake.slots.held)


async def test_ended_slot_is_retaken_only_in_a_later_generation(fake) -> None:
    fake.slots.assigned(4, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)
    fake.slots.held[1].end("PRODUCER_FENCED")
    await until(lambda: ("drop", 1) in fake.actions and fake.rejoined == 1)
    await asyncio.sleep(0.2)
    assert fake.actions == [("take", 1), ("drop", 1)]
    fake.slots.assigned(5, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)
    assert fake.actions == [("take", 1), ("drop", 1), ("take", 1)]


async def test_takeover_is_retried_when_kafka_is_away_but_not_when_refused(fake) -> None:
    fake.errors = [KafkaDisconnected("away"), KafkaDisconnected("away"), KafkaRefused("PRODUCER_FENCED")]
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: fake.rejoined == 1)
    assert fake.actions == [("take", 1)] * 3
    await asyncio.sleep(0.2)
    assert len(fake.actions) == 3
    fake.slots.assigned(2, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)


async def test_slot_unassigned_during_its_takeover_is_given_up(fake) -> None:
    fake.taking = asyncio.Event()
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: fake.actions)
    fake.slots.assigned(2, frozenset())
    fake.taking.set()
    await until(lambda: ("give up", 1) in fake.actions)
    assert not fake.slots.held


async def test_slot_unassigned_before_its_takeover_requests_a_round(fake) -> None:
    """The group believes that this node has the slot, so only another round assigns it to another node."""
    fake.known = False
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: len(fake.checked_generations) > 1)
    assert fake.slots.announced_slots() == {1: 0}
    fake.slots.assigned(2, frozenset())
    await until(lambda: fake.rejoined == 1)
    assert not fake.slots.announced_slots()
    fake.known, fake.errors = True, [KafkaRefused("PRODUCER_FENCED")]
    fake.slots.assigned(3, frozenset({1}))
    await until(lambda: fake.rejoined == 2)  # the slot waits for a later generation
    fake.slots.assigned(4, frozenset())
    await until(lambda: fake.rejoined == 3)
    assert not fake.slots.announced_slots()


async def test_stop_gives_up_all_slots_without_a_rejoin(fake) -> None:
    fake.slots.assigned(1, frozenset({1, 2}))
    await until(lambda: len(fake.slots.held) == 2)
    await fake.slots.stop(5)
    assert sorted(fake.actions[2:]) == [("give up", 1), ("give up", 2)]
    assert fake.rejoined == 0
    fake.slots.assigned(2, frozenset({1}))
    await asyncio.sleep(0.05)
    assert not fake.slots.held


async def test_slot_not_given_up_in_time_is_dropped(fake) -> None:
    async def never(held: Slot) -> None:
        await asyncio.Event().wait()

    fake.give_up = never
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: fake.slots.held)
    await fake.slots.stop(0.05)
    assert not fake.slots.announced_slots()


async def test_error_during_a_takeover_is_logged_and_retried(fake, caplog) -> None:
    fake.errors = [RuntimeError("a bug")]
    fake.slots.assigned(1, frozenset({1}))
    await until(lambda: 1 in fake.slots.held)
    assert "a bug in amqpd, please report it" in caplog.text
