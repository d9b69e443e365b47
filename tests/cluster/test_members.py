"""Group membership of nodes with a real Kafka: join, leave, expiry, polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import aiokafka.admin
import pytest

from amqpd.kafka import group as module
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.group import Assignor, GroupMembership, Member

SLOTS = 6


class Node:
    """A node that takes assigned slots at once and gives up the others."""

    def __init__(self, access: KafkaAccess, topic: str, name: str, wishes: dict[int, str]) -> None:
        self.name = name
        self.held: dict[int, int] = {}
        self.busy: frozenset[int] = frozenset()
        self.draining = False
        self.generations: list[int] = []
        assignor = self.assignor = Assignor(topic, SLOTS, self.describe, lambda: wishes)
        self.members = GroupMembership(access, f"group-{topic}", assignor, topic, self.on_assigned, 6.0, 0.3)

    def describe(self) -> Member:
        return Member(self.name, dict(self.held), self.busy, self.draining, f"{self.name}:25672")

    def on_assigned(self, generation: int, slots: frozenset[int]) -> None:
        self.generations.append(generation)
        gives_up = [slot for slot in self.held if slot not in slots]
        self.held = {slot: self.held.get(slot, generation) for slot in slots}
        if gives_up:
            self.members.rejoin()


async def until(holds: Callable[[], object], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110  # the condition has no event
            await asyncio.sleep(0.05)


@pytest.fixture
async def slots_topic(access, topic) -> str:
    admin = aiokafka.admin.AIOKafkaAdminClient(**access.aiokafka_options())
    await admin.start()
    await admin.create_topics([aiokafka.admin.NewTopic(topic, SLOTS, 1)])
    await admin.close()
    return topic


@pytest.fixture
def wishes() -> dict[int, str]:
    return {}


@pytest.fixture
def start_node(access, slots_topic, wishes) -> Callable[[str], Node]:
    def make(name: str) -> Node:
        node = Node(access, slots_topic, name, wishes)
        node.members.start()
        return node

    return make


def all_of(*nodes: Node) -> list[int]:
    return sorted(slot for node in nodes for slot in node.held)


async def test_two_nodes_share_slots_a_wish_moves_one_and_leaving_is_quick(start_node, wishes) -> None:
    first = start_node("a")
    await until(lambda: len(first.held) == SLOTS)
    assert await first.members.is_current_generation(first.generations[-1])
    second = start_node("b")
    try:
        await until(lambda: len(first.held) == len(second.held) == SLOTS // 2)
        assert all_of(first, second) == list(range(SLOTS))
        for node in (first, second):
            assert [peer.node for peer in node.assignor.peers] == ["a", "b"], "the members do not know each other"
        first.busy = frozenset(first.held)
        slot = min(first.held)
        wishes[slot] = "b"
        first.members.rejoin()
        await until(lambda: slot in second.held)
        await until(lambda: all_of(first, second) == list(range(SLOTS)))
        del wishes[slot]
        began = asyncio.get_running_loop().time()
        await first.members.leave()
        await until(lambda: len(second.held) == SLOTS)
        assert asyncio.get_running_loop().time() - began < 6, "the leaving node was waited for as if killed"
        assert not await second.members.is_current_generation(second.generations[-1] - 1), (
            "an old generation is accepted"
        )
    finally:
        await second.members.leave()
        with suppress(Exception):
            await first.members.leave()


async def test_generation_checks_during_joins_do_not_cause_rejoins(start_node) -> None:
    """A slot asks for the generation until the group knows its node. A question sent after a join must not make the
    node join again.
    """
    nodes = [start_node("a")]
    asking: list[asyncio.Task[None]] = []

    async def ask(node: Node) -> None:
        while True:
            await node.members.is_current_generation(node.members.generation)
            await asyncio.sleep(0.02)

    try:
        await until(lambda: len(nodes[0].held) == SLOTS)
        asking = [asyncio.create_task(ask(nodes[0])) for _ in range(3)]
        for name in "bc":
            nodes.append(start_node(name))
            await until(lambda: all_of(*nodes) == list(range(SLOTS)) and all(node.held for node in nodes))
        asking += [asyncio.create_task(ask(node)) for node in nodes[1:]]
        generation = nodes[0].members.generation
        await asyncio.sleep(4)
        assert nodes[0].members.generation - generation <= 2, "the node joins again and again"
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for node in nodes:
            await node.members.leave()


async def test_rejoin_starts_a_new_round_even_without_changes(start_node) -> None:
    """Kafka answers an unchanged JoinGroup of a follower with the old round. Slots that wait for the next round would
    then wait for ever.
    """
    nodes = [start_node("a")]
    try:
        await until(lambda: len(nodes[0].held) == SLOTS)
        nodes.append(start_node("b"))
        await until(lambda: len(nodes[0].held) == len(nodes[1].held) == SLOTS // 2)
        for node in nodes:
            for _ in range(2):
                await until(lambda node=node: not node.members._coordinator._rejoin_needed_fut.done())
                generation = node.members.generation
                node.members.rejoin()
                await until(lambda node=node, last=generation: node.generations[-1] > last)
    finally:
        for node in nodes:
            await node.members.leave()


async def test_rejoin_during_a_join_starts_another_round(start_node) -> None:
    """Otherwise slots that the node gave up after its JoinGroup would never get an owner."""
    nodes = [start_node("a")]
    try:
        await until(lambda: len(nodes[0].held) == SLOTS)
        nodes.append(start_node("b"))
        await until(lambda: len(nodes[0].held) == len(nodes[1].held) == SLOTS // 2)
        for node in nodes:
            describe = node.assignor._describe_self
            asked_in: list[int] = []

            def describe_and_rejoin(
                node: Node = node, describe: Callable[[], Member] = describe, asked_in: list[int] = asked_in
            ) -> Member:
                if not asked_in:
                    asked_in.append(node.members.generation)
                    asyncio.get_running_loop().call_soon(node.members.rejoin)  # the JoinGroup is on its way
                return describe()

            node.assignor._describe_self = describe_and_rejoin
            node.members.rejoin()
            await until(lambda node=node, asked_in=asked_in: asked_in and node.generations[-1] >= asked_in[0] + 2)
    finally:
        for node in nodes:
            await node.members.leave()


async def test_member_that_is_not_polled_leaves_the_group(start_node, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_POLL_INTERVAL_S", 3.0)
    node = start_node("a")
    try:
        await until(lambda: len(node.held) == SLOTS)
        generation = node.members.generation
        await asyncio.sleep(6)
        assert node.members.generation == generation, "a polled member has left"

        async def never() -> None:
            await asyncio.Event().wait()

        task = node.members._task
        assert task is not None
        task.cancel()  # polling stops
        with suppress(asyncio.CancelledError):
            await task
        coordinator = node.members._coordinator
        await until(lambda: coordinator.generation != generation)
    finally:
        await node.members.leave()


async def test_slots_assigned_while_leaving_are_ignored(start_node) -> None:
    """aiokafka completes the current round while it is closed."""
    node = start_node("a")
    await until(lambda: node.generations)
    leaving = asyncio.create_task(node.members.leave())
    await until(lambda: node.members._coordinator is None)
    generations = list(node.generations)
    node.members.rejoin()
    node.members.on_partitions_assigned([])
    await leaving
    assert node.generations == generations


async def test_private_aiokafka_names_exist(start_node) -> None:
    """`is_current_generation` calls a private method of aiokafka."""
    node = start_node("a")
    await until(lambda: node.generations)
    assert asyncio.iscoroutinefunction(node.members._coordinator._do_heartbeat)
    assert not node.members._coordinator._rejoin_needed_fut.done()
    await node.members.leave()
