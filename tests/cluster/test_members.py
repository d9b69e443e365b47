"""The group of the nodes, with a real Kafka: who joins and leaves, who is missed, who is polled."""

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
    """One that serves what it is assigned at once, and gives up what it is not."""

    def __init__(self, access: KafkaAccess, topic: str, name: str, wishes: dict[int, str]) -> None:
        self.name = name
        self.held: dict[int, int] = {}
        self.busy: frozenset[int] = frozenset()
        self.draining = False
        self.generations: list[int] = []
        assignor = self.assignor = Assignor(topic, SLOTS, self.said, lambda: wishes, False)
        self.members = GroupMembership(access, f"group-{topic}", assignor, topic, self.assigned, 6.0, 0.3)

    def said(self) -> Member:
        return Member(self.name, dict(self.held), self.busy, self.draining)

    def assigned(self, generation: int, slots: frozenset[int]) -> None:
        self.generations.append(generation)
        gives_up = [slot for slot in self.held if slot not in slots]
        self.held = {slot: self.held.get(slot, generation) for slot in slots}
        if gives_up:
            self.members.rejoin()


async def until(holds: Callable[[], object], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110  # what it looks at has no event
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
def made(access, slots_topic, wishes) -> Callable[[str], Node]:
    def make(name: str) -> Node:
        node = Node(access, slots_topic, name, wishes)
        node.members.start()
        return node

    return make


def all_of(*nodes: Node) -> list[int]:
    return sorted(slot for node in nodes for slot in node.held)


async def test_two_share_a_wish_moves_one_and_who_leaves_is_followed_at_once(made, wishes) -> None:
    first = made("a")
    await until(lambda: len(first.held) == SLOTS)
    assert await first.members.is_current_generation(first.generations[-1])
    second = made("b")
    try:
        await until(lambda: len(first.held) == len(second.held) == SLOTS // 2)
        assert all_of(first, second) == list(range(SLOTS))
        for node in (first, second):
            assert [peer.node for peer in node.assignor.peers] == ["a", "b"], "everybody knows who is there"
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
        assert asyncio.get_running_loop().time() - began < 6, "it was waited for as if it had been killed"
        assert not await second.members.is_current_generation(second.generations[-1] - 1), (
            "of a generation that is over"
        )
    finally:
        await second.members.leave()
        with suppress(Exception):
            await first.members.leave()


async def test_who_asks_while_others_join_does_not_keep_the_group_from_its_rest(made) -> None:
    """A slot asks whether the group knows its node until it does: a question behind a joining has it join anew."""
    nodes = [made("a")]
    asking: list[asyncio.Task[None]] = []

    async def ask(node: Node) -> None:
        while True:
            await node.members.is_current_generation(node.members.generation)
            await asyncio.sleep(0.02)

    try:
        await until(lambda: len(nodes[0].held) == SLOTS)
        asking = [asyncio.create_task(ask(nodes[0])) for _ in range(3)]
        for name in "bc":
            nodes.append(made(name))
            await until(lambda: all_of(*nodes) == list(range(SLOTS)) and all(node.held for node in nodes))
        asking += [asyncio.create_task(ask(node)) for node in nodes[1:]]
        generation = nodes[0].members.generation
        await asyncio.sleep(4)
        assert nodes[0].members.generation - generation <= 2, "it joins again and again"
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for node in nodes:
            await node.members.leave()


async def test_a_round_that_is_asked_for_comes_though_nothing_has_changed_and_whoever_asks(made) -> None:
    """Kafka gives who is not the leader, and says what it said before, the round that is over: its slots, which wait
    for the next one before they are taken again, would wait for ever.
    """
    nodes = [made("a")]
    try:
        await until(lambda: len(nodes[0].held) == SLOTS)
        nodes.append(made("b"))
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


async def test_a_round_that_is_asked_for_while_the_node_joins_comes_behind_that_one(made) -> None:
    """What a node has given up since it said what it has would be nobody's for ever."""
    nodes = [made("a")]
    try:
        await until(lambda: len(nodes[0].held) == SLOTS)
        nodes.append(made("b"))
        await until(lambda: len(nodes[0].held) == len(nodes[1].held) == SLOTS // 2)
        for node in nodes:
            said = node.assignor._describe_self
            asked_in: list[int] = []

            def say(node: Node = node, said: Callable[[], Member] = said, asked_in: list[int] = asked_in) -> Member:
                if not asked_in:
                    asked_in.append(node.members.generation)
                    asyncio.get_running_loop().call_soon(node.members.rejoin)  # the JoinGroup is on its way
                return said()

            node.assignor._describe_self = say
            node.members.rejoin()
            await until(lambda node=node, asked_in=asked_in: asked_in and node.generations[-1] >= asked_in[0] + 2)
    finally:
        for node in nodes:
            await node.members.leave()


async def test_one_that_is_not_polled_leaves_and_one_that_is_polled_stays(made, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_POLL_INTERVAL_S", 3.0)
    node = made("a")
    try:
        await until(lambda: len(node.held) == SLOTS)
        generation = node.members.generation
        await asyncio.sleep(6)
        assert node.members.generation == generation, "it was polled, and has left"

        async def never() -> None:
            await asyncio.Event().wait()

        task = node.members._task
        assert task is not None
        task.cancel()  # nobody polls any more
        with suppress(asyncio.CancelledError):
            await task
        coordinator = node.members._coordinator
        await until(lambda: coordinator.generation != generation)
    finally:
        await node.members.leave()


async def test_one_that_is_assigned_slots_as_it_leaves_does_not_hear_of_them(made) -> None:
    """aiokafka ends the round that it is in while it is being closed."""
    node = made("a")
    await until(lambda: node.generations)
    leaving = asyncio.create_task(node.members.leave())
    await until(lambda: node.members._coordinator is None)
    told = list(node.generations)
    node.members.rejoin()
    node.members.on_partitions_assigned([])
    await leaving
    assert node.generations == told


async def test_what_it_needs_of_aiokafka_is_there(made) -> None:
    """`known` asks by a method that is aiokafka's own."""
    node = made("a")
    await until(lambda: node.generations)
    assert asyncio.iscoroutinefunction(node.members._coordinator._do_heartbeat)
    assert not node.members._coordinator._rejoin_needed_fut.done()
    await node.members.leave()
