"""What is done to a cluster while its history is written: nodes and brokers killed, stopped, standing still; links cut,
one way and both; clocks set. All by chance, from one seed, until each has been done as often as asked.

`Faults` knows which node has the vhost `/` and by which one its clients come (`via`), and so what a fault must lead to:
ENDS: the clients' connections end; MAY_END; GOES_ON. One fault of nodes, links and clocks at a time: the next waits
until all nodes serve again. Brokers are killed beside them, in a time of their own, one after the other.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from amqpd_nodes import Nodes
from history_nodes import request
from kafka_hosts import Network
from kafka_rig import Kafka
from wall_clock import WallClock

ENDS: Final = "ends"
MAY_END: Final = "may end"
GOES_ON: Final = "goes on"
STILL_S: Final = 8.5
"""A node that stands still, or is cut off, for so long is left by the others: after 6 s."""
HEALTHY_S: Final = 180.0
CLOCK_S: Final = 60


@dataclass
class Struck:
    """A fault. at: when; leads: ENDS, MAY_END or GOES_ON; clean: an end after which all that was read counts."""

    what: str
    leads: str
    clean: bool = False
    at: float = field(default_factory=time.monotonic)


class Faults:
    """wanted: how often each kind is to be done at least, if there is time. done: how often it has been."""

    def __init__(
        self,
        nodes: Nodes,
        kafka: Kafka,
        network: Network,
        wanted: dict[str, int],
        choose: random.Random,
        clocks: dict[int, WallClock],
        seconds: float = inf,
    ) -> None:
        self.nodes = nodes
        self.kafka = kafka
        self.wanted = wanted
        self.done: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self._network = network
        self._choose = choose
        self._clocks = clocks
        self._tasks: set[asyncio.Task[None]] = set()
        self._healing: set[int] = set()  # nodes that are not yet what they were
        self._calm = asyncio.Event()  # brokers may be struck
        self._calm.set()
        self.broker_down = False
        self._until = time.monotonic() + seconds
        self._brokers = asyncio.create_task(self._strike_brokers())

    # -- what there is to do

    @property
    def left(self) -> list[str]:
        """Kinds that have not been done as often as asked; none when the time is over."""
        if time.monotonic() > self._until:
            return []
        return [kind for kind, count in self.wanted.items() if self.done[kind] < count]

    async def strike(self, via: int, *, last: bool) -> Struck | None:
        """One fault; last: of this life, so rather one that ends it. None: nothing is left to do but to brokers."""
        kinds = [kind for kind in self.left if kind != "broker kills"]
        if not kinds:
            return None
        await self.healthy()
        owner = await self._owner()
        if self._choose.random() < 0.15:
            return await self._pause(owner, via)
        weights = [self.wanted[kind] - self.done[kind] for kind in kinds]
        kind = self._choose.choices(kinds, weights)[0]
        self.done[kind] += 1
        if kind == "node kills":
            return self._kill(owner, via, last=last)
        if kind == "stops":
            return await self._stop(owner, via, last=last)
        if kind == "clocks":
            return self._set_clock(owner)
        return await self._cut(owner, via, last=last)

    def _tell(self, what: str, leads: str, *, clean: bool = False) -> Struck:
        self.told[what] += 1
        return Struck(what, leads, clean)

    def _some_node(self, owner: int, via: int, *, last: bool) -> tuple[int, str, str]:
        """(number, who that is, what its end leads to)."""
        other = [node.number for node in self.nodes if node.number not in (owner, via)]
        if last or not other or self._choose.random() < 0.5:
            number = self._choose.choice((owner, owner, via))
        else:
            number = self._choose.choice(other)
        who = "the owner" if number == owner else "the node between" if number == via else "another"
        return number, who, ENDS if number in (owner, via) else GOES_ON

    # -- nodes

    def _kill(self, owner: int, via: int, *, last: bool) -> Struck:
        number, who, leads = self._some_node(owner, via, last=last)
        struck = self._tell(f"kill of {who}", leads)
        self.nodes.kill(number)
        self._heal(number, self._start_again(number))
        return struck

    async def _stop(self, owner: int, via: int, *, last: bool) -> Struck:
        number, who, leads = self._some_node(owner, via, last=last)
        clean = number == owner and not self.broker_down
        struck = self._tell(f"stop of {who}", leads, clean=clean)
        await asyncio.to_thread(self.nodes.stop, number, 120)
        struck.clean = clean and not self.broker_down
        self._heal(number, self._start_again(number))
        return struck

    async def _start_again(self, number: int) -> None:
        await asyncio.sleep(self._choose.uniform(0.0, 1.5))
        self.nodes.start(number, wait=False)  # here: it ends with the thread that started it
        await asyncio.to_thread(self.nodes.wait_until_ready, number)

    async def _pause(self, owner: int, via: int) -> Struck:
        """Standing still: so short that nobody misses it, or until others have what was its."""
        number = self._choose.choice((owner, via))
        who = "the owner" if number == owner else "the node between"
        if self._choose.random() < 0.5:
            struck = self._tell(f"short stand of {who}", MAY_END)
            self.nodes.pause(number)
            await asyncio.sleep(self._choose.uniform(0.3, 3.0))
            self.nodes.resume(number)
            return struck
        struck = self._tell(f"long stand of {who}", ENDS)
        self.nodes.pause(number)
        await asyncio.sleep(STILL_S)
        self._heal(number, self._resume(number))
        return struck

    async def _resume(self, number: int) -> None:
        await asyncio.sleep(self._choose.uniform(0.0, 6.0))
        self.nodes.resume(number)
        await asyncio.sleep(2.0)

    # -- links, clocks

    async def _cut(self, owner: int, via: int, *, last: bool) -> Struck:
        """A link, for so long that it is noticed or not; in one direction or both."""
        long = last and self._choose.random() < 0.7
        brokers = [broker.host.address for broker in self.kafka.brokers.values()]
        number, who = self._choose.choice(((owner, "the owner"), (via, "the node between")))
        way = self._choose.choice(("from", "to", "both"))
        links = {"Kafka": brokers, "a broker": [self._choose.choice(brokers)], "clients": [self._network.address]}
        if owner != via:
            links["the other node"] = [self.nodes[owner if number == via else via].host.address]
        name = self._choose.choice(tuple(links))
        if name == "clients":
            number, who, long = via, "the node of the clients", False
        host = self.nodes[number].host
        struck = self._tell(f"{'long' if long else 'short'} cut, {way}: {who} and {name}", MAY_END)
        if way != "to":
            host.drop_from(*links[name])
        if way != "from":
            host.drop_to(*links[name])
        self._healing.add(number)
        try:
            await asyncio.sleep(self._choose.uniform(STILL_S, 14.0) if long else self._choose.uniform(0.3, 4.0))
        finally:
            host.heal()
        self._heal(number, asyncio.sleep(1.0))
        return struck

    def _set_clock(self, owner: int) -> Struck:
        number = self._choose.choice((owner, owner, *self._clocks))
        seconds = self._choose.choice((-CLOCK_S, 0, CLOCK_S))
        self._clocks[number].jump(seconds)
        return self._tell(f"clock of {'the owner' if number == owner else 'another'} set to {seconds:+d} s", GOES_ON)

    def clocks_are_right(self) -> None:
        """From now on."""
        for clock in self._clocks.values():
            clock.jump(0)

    # -- brokers

    async def _strike_brokers(self) -> None:
        while "broker kills" in self.left:
            await asyncio.sleep(self._choose.uniform(0.5, 4.0))
            await self._calm.wait()
            number = self._choose.choice(tuple(self.kafka.brokers))
            how = signal.SIGKILL if self._choose.random() < 0.75 else signal.SIGTERM
            self.broker_down = True
            await asyncio.to_thread(self.kafka.kill, number, how)
            self.done["broker kills"] += 1
            self.told[f"{how.name} of a broker"] += 1
            await asyncio.sleep(self._choose.uniform(0.5, 12.0))
            self.kafka.start(number, wait=False)
            await asyncio.to_thread(self.kafka.wait_until_there)
            await asyncio.to_thread(self.kafka.wait_until_in_sync)
            self.broker_down = False

    # -- until all is well again

    def _heal(self, number: int, healing: Coroutine[Any, Any, None]) -> None:
        self._healing.add(number)

        async def healed() -> None:
            await healing
            self._healing.discard(number)

        task = asyncio.create_task(healed())
        self._tasks.add(task)

    def well(self) -> list[int]:
        """Nodes to which nothing has been done, or nothing any more."""
        self._failed()
        return [node.number for node in self.nodes if node.number not in self._healing]

    async def healthy(self) -> None:
        """Until all nodes are there and answer. Raises: TimeoutError."""
        async with asyncio.timeout(HEALTHY_S):
            while True:
                if len(self.well()) == len(list(self.nodes)):
                    answers = await asyncio.gather(*(self._answers(node.http) for node in self.nodes))
                    if all(answers):
                        return
                await asyncio.sleep(0.1)

    async def calm(self) -> None:
        """Nodes and brokers are what they were, and brokers are left alone."""
        self._calm.clear()
        async with asyncio.timeout(HEALTHY_S):
            while self.broker_down:
                self._failed()
                await asyncio.sleep(0.1)
        await self.healthy()

    def go_on(self) -> None:
        """Brokers are struck again."""
        self._calm.set()

    async def end(self) -> None:
        """Nothing more is done. Raises: what has ended one of the tasks."""
        tasks = [self._brokers, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failed()

    async def _owner(self) -> int:
        """The node that serves `/`, as all of them say. Raises: TimeoutError."""
        async with asyncio.timeout(HEALTHY_S):
            while True:
                said = await asyncio.gather(*(self._owner_as(node.http) for node in self.nodes))
                for node in self.nodes:
                    if set(said) == {node.name}:
                        return node.number
                await asyncio.sleep(0.1)

    async def _owner_as(self, http: tuple[str, int]) -> str | None:
        try:
            status, found = await request(http, "GET", "/api/amqpd/cluster", None, 5.0)
        except OSError:
            return None
        return next((each["node"] for each in found["vhosts"] if each["name"] == "/"), None) if status == 200 else None

    async def _answers(self, http: tuple[str, int]) -> bool:
        try:
            status, _ = await request(http, "GET", "/api/whoami", None, 5.0)
        except OSError:
            return False
        return status == 200

    def _failed(self) -> None:
        for task in (self._brokers, *self._tasks):
            if task.done() and not task.cancelled():
                task.result()
        self._tasks = {task for task in self._tasks if not task.done()}
