"""A queue with groups: its publishers and consumers, and its judge, over the lives of a broker.

Two publishers with confirms write numbers under some groups, rising within each. Consumers with various prefetches ack
after some time, sometimes requeue everything they hold, or close their socket. All clients run on one event loop, so
events have one order.

With each delivery the judge checks:

- No other consumer holds an unacked message of the group.
- Every lower number of the group was acked, is held by this consumer, or was uncertain when a broker died.
- An acked message comes again only as redelivered.

At the end each confirmed number was acked (`left`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from quickclient import Gone, Link, Message, method

from amqpd.protocol.field_table import encode_table
from amqpd.protocol.properties import Properties, encode_properties

Connect: TypeAlias = Callable[[], Awaitable[Link]]
ARGUMENTS: Final = encode_table({"x-group-by": "header:customer"})
GROUPS: Final = [f"customer {number}" for number in range(40)]
NACK: Final = 0x003C0078


class Consumer:
    """held: unacked deliveries by tag. returning: messages being requeued; deliveries sent before the requeue may
    follow.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.held: dict[int, tuple[str, int]] = {}
        self.returning: set[tuple[str, int]] = set()


class GroupsStory:
    """answered: the acked numbers of each group. uncertain: unconfirmed when a broker died."""

    def __init__(self, seed: int, queue: str = "grouped") -> None:
        self.queue = queue
        self.chance = random.Random(seed)
        self.next = dict.fromkeys(GROUPS, 0)
        self.begin = dict.fromkeys(GROUPS, 0)  # all lower numbers are accounted for
        self.unconfirmed: dict[int, dict[int, tuple[str, int]]] = {0: {}, 1: {}}
        self.confirmed: dict[str, set[int]] = defaultdict(set)
        self.uncertain: set[tuple[str, int]] = set()
        self.answered: dict[str, set[int]] = defaultdict(set)
        self.holder: dict[str, Consumer] = {}
        self.failures: list[str] = []
        self.deliveries = 0

    # -- checks

    def deliver(self, consumer: Consumer, message: Message) -> None:
        group, _, digits = message.body.decode().partition("/")
        number = int(digits)
        self.deliveries += 1
        holder = self.holder.get(group)
        if holder is not None and holder is not consumer:
            self.failures.append(f"{group}/{number}: another consumer has not answered for the group")
        own_numbers = {each for of, each in consumer.held.values() if of == group}
        if number < self.begin[group]:
            self.failures.append(f"{group}/{number}: came after everything had been answered")
        missing = set(range(self.begin[group], number)) - self.answered[group] - own_numbers
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

    # -- clients

    async def publish(self, connect: Connect, publisher: int, pause_s: float = 0.01) -> None:
        """Publish until the connection ends. Each publisher has half of the groups, so that the order within a group
        is known.
        """
        link = await connect()
        await link.confirm_select()
        waiting = self.unconfirmed[publisher]

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
                group = self.chance.choice(GROUPS[publisher::2])
                number = self.next[group]
                self.next[group] += 1
                sequence += 1
                waiting[sequence] = (group, number)
                properties = encode_properties(Properties(headers={"customer": group}, delivery_mode=2))
                link.publish("", self.queue, properties, f"{group}/{number}".encode())
            await asyncio.sleep(pause_s)

    async def consume(self, connect: Connect, ended: Callable[[], bool]) -> None:
        while not ended():
            with contextlib.suppress(OSError, Gone):
                await self._consume(connect, ended)

    async def _consume(self, connect: Connect, ended: Callable[[], bool]) -> None:
        link = await connect()
        consumer = Consumer(link)
        link.on_deliver = lambda message: self.deliver(consumer, message)
        chance = self.chance
        try:
            await link.qos(chance.choice([1, 1, 5, 100, 0]))
            await link.consume(self.queue)
            while not ended() and not link.gone.is_set():
                await asyncio.sleep(chance.random() * 0.02)
                tags = list(consumer.held)
                if not tags:
                    continue
                draw_value = chance.random()
                if draw_value < 0.02:
                    return
                if draw_value < 0.06:
                    link.write(method(NACK, struct.pack(">QB", tags[-1], 3)))  # requeue everything it holds
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

    # -- restarts

    def ended(self) -> None:
        """The broker has died: unconfirmed messages may exist or not."""
        for waiting in self.unconfirmed.values():
            self.uncertain.update(waiting.values())
            waiting.clear()

    def left(self) -> bool:
        """Return whether a confirmed number was not acked yet."""
        return any(self.confirmed[group] - self.answered[group] for group in GROUPS)

    def drained(self) -> None:
        """Check that nothing is left, after the broker has read all acks; start a new epoch."""
        self.failures += [
            f"{group}/{number}: lost" for group in GROUPS for number in self.confirmed[group] - self.answered[group]
        ]
        for group in GROUPS:
            self.begin[group] = self.next[group]
            self.answered[group].clear()
            self.confirmed[group].clear()
        self.uncertain.clear()
