"""A queue with groups under load; its consumers go without a word, and the broker is killed.

Two publishers with confirms write numbers under some groups, rising within each. Consumers of all prefetches answer
some time later, return all they have now and then, or close their socket; after each kill -9 the load goes on, and at
the end everything is drained. All clients live on one loop, so their order of events is one. Judged with each
delivery: nobody else has anything of the group that he has not answered, and every lower number of the group was
answered, or is with this very consumer, or was on its way when a broker died. At the end each confirmed number was
answered.
`TEST_CRASH_CYCLES` and `TEST_CRASH_SEED` set other cycles.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from quickclient import Gone, Link, Message, connect, method

from amqpd.protocol.codec import encode_table
from amqpd.protocol.properties import Properties, encode_properties
from amqpd.testing import BrokerProcess

GROUPS: Final = [f"customer {number}" for number in range(40)]
CONSUMERS: Final = 12
NACK: Final = 0x003C0078
LIFE_S: Final = 1.5


class Consumer:
    """held: by tag, what it has not answered. returning: what it has just returned: behind it come those that had been
    sent before."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.held: dict[int, tuple[str, int]] = {}
        self.returning: set[tuple[str, int]] = set()


class Story:
    """published, answered: of each group. uncertain: sent and not confirmed when a broker died, or still on its way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.next = dict.fromkeys(GROUPS, 0)
        self.unconfirmed: dict[int, dict[int, tuple[str, int]]] = {0: {}, 1: {}}
        self.confirmed: dict[str, set[int]] = defaultdict(set)
        self.uncertain: set[tuple[str, int]] = set()
        self.answered: dict[str, set[int]] = defaultdict(set)
        self.holder: dict[str, Consumer] = {}
        self.failures: list[str] = []
        self.deliveries = 0

    # -- what is judged

    def deliver(self, consumer: Consumer, message: Message) -> None:
        group, _, digits = message.body.decode().partition("/")
        number = int(digits)
        self.deliveries += 1
        holder = self.holder.get(group)
        if holder is not None and holder is not consumer:
            self.failures.append(f"{group}/{number}: another consumer has not answered for the group")
        mine = {each for of, each in consumer.held.values() if of == group}
        missing = set(range(number)) - self.answered[group] - mine
        missing -= {each for of, each in self.uncertain | consumer.returning if of == group}
        if missing:
            self.failures.append(f"{group}/{number}: before {sorted(missing)}")
        if number in self.answered[group] and not message.redelivered:
            self.failures.append(f"{group}/{number}: answered before, and not marked")
        self.holder[group] = consumer
        consumer.held[message.tag] = (group, number)

    def leave(self, consumer: Consumer, tags: list[int], *, done: bool) -> None:
        for tag in tags:
            group, number = consumer.held.pop(tag)
            if done:
                self.answered[group].add(number)
            if not any(of == group for of, _ in consumer.held.values()) and self.holder.get(group) is consumer:
                del self.holder[group]

    # -- who takes part

    async def publish(self, port: int, who: int) -> None:
        """Each publisher has half of the groups, so that order within one is known."""
        link = await connect(port)
        await link.confirm_select()
        waiting = self.unconfirmed[who]

        def confirmed(tag: int, multiple: bool, acked: bool) -> None:
            for each in [each for each in waiting if each == tag or (multiple and each <= tag)]:
                group, number = waiting.pop(each)
                if acked:
                    self.confirmed[group].add(number)
                else:
                    self.uncertain.add((group, number))

        link.on_confirm = confirmed
        sequence = 0
        while not link.gone.is_set():
            for _ in range(self.chance.randint(1, 20)):
                group = self.chance.choice(GROUPS[who::2])
                number = self.next[group]
                self.next[group] += 1
                sequence += 1
                waiting[sequence] = (group, number)
                properties = encode_properties(Properties(headers={"customer": group}, delivery_mode=2))
                link.publish("", "q", properties, f"{group}/{number}".encode())
            await asyncio.sleep(0.01)

    async def consume(self, port: int, ends: asyncio.Event) -> None:
        while not ends.is_set():
            with contextlib.suppress(OSError, Gone):
                await self._consume(port, ends)

    async def _consume(self, port: int, ends: asyncio.Event) -> None:
        link = await connect(port)
        consumer = Consumer(link)
        link.on_deliver = lambda message: self.deliver(consumer, message)
        chance = self.chance
        try:
            await link.qos(chance.choice([1, 1, 5, 100, 0]))
            await link.consume("q")
            while not ends.is_set() and not link.gone.is_set():
                await asyncio.sleep(chance.random() * 0.02)
                tags = list(consumer.held)
                if not tags:
                    continue
                lot = chance.random()
                if lot < 0.02:
                    return
                if lot < 0.06:
                    link.write(method(NACK, struct.pack(">QB", tags[-1], 3)))  # all it has, back to their places
                    consumer.returning = set(consumer.held.values())
                    self.leave(consumer, tags, done=False)
                    await link.qos(chance.choice([1, 5, 100]))
                    consumer.returning.clear()
                    continue
                for tag in tags[: chance.randint(1, 30)]:
                    link.ack(tag)
                    self.leave(consumer, [tag], done=True)
        finally:
            link.on_deliver = None
            link.close()
            self.leave(consumer, list(consumer.held), done=False)

    # -- lives

    def ended(self) -> None:
        """The broker has died: what was not confirmed may be there or not."""
        for waiting in self.unconfirmed.values():
            self.uncertain.update(waiting.values())
            waiting.clear()

    async def life(self, broker: BrokerProcess, seconds: float) -> None:
        ends = asyncio.Event()
        tasks = [asyncio.create_task(self.consume(broker.amqp_port, ends)) for _ in range(CONSUMERS)]
        publishers = [asyncio.create_task(self.publish(broker.amqp_port, who)) for who in (0, 1)]
        await asyncio.sleep(seconds * (0.5 + self.chance.random()))
        await asyncio.to_thread(broker.kill)
        ends.set()
        await asyncio.gather(*tasks, *publishers, return_exceptions=True)
        self.ended()

    async def drain(self, broker: BrokerProcess) -> None:
        ends = asyncio.Event()
        tasks = [asyncio.create_task(self.consume(broker.amqp_port, ends)) for _ in range(CONSUMERS)]
        async with asyncio.timeout(120):
            while any(self.confirmed[group] - self.answered[group] for group in GROUPS):
                await asyncio.sleep(0.1)
                assert not self.failures, self.failures[:5]
        ends.set()
        await asyncio.gather(*tasks)


async def run(data: Path, seed: int, cycles: int) -> Story:
    story = Story(seed)
    with BrokerProcess(data) as broker:
        link = await connect(broker.amqp_port)
        await link.declare_queue("q", table=encode_table({"x-group-by": "header:customer"}))
        link.close()
        for _ in range(cycles):
            await story.life(broker, LIFE_S)
            assert not story.failures, story.failures[:5]
            broker.start()
        await story.drain(broker)
    return story


@pytest.mark.parametrize("seed", [int(os.environ.get("TEST_CRASH_SEED", "1"))])
def test_each_group_in_order_over_kills(tmp_path: Path, seed: int) -> None:
    cycles = int(os.environ.get("TEST_CRASH_CYCLES", "3"))
    story = asyncio.run(run(tmp_path / "data", seed, cycles))
    print(f"{cycles} kills, {story.deliveries} deliveries, {sum(map(len, story.confirmed.values()))} confirmed")
    assert not story.failures, story.failures[:5]
    assert story.deliveries > 100
