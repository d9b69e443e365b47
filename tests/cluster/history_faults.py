"""The faults during a recorded history of a cluster: nodes and brokers are killed, stopped or suspended; links are cut
in one or both directions; clocks are changed. The order is random from one seed, until each kind was done as often as
requested.

`Faults` knows which node has the vhost `/` and through which node the clients connect (`via`). So it knows the effect
of each fault: ENDS, the connections end; MAY_END; GOES_ON. Faults of nodes, links and clocks happen one at a time, when
all nodes serve again. Brokers are killed independently, one after the other.
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
"""Longer than the 6 s after which other nodes take over from a suspended or cut-off node."""
HEALTHY_S: Final = 180.0
CLOCK_S: Final = 60


@dataclass
class Struck:
    """A fault. at: when; leads: ENDS, MAY_END or GOES_ON; clean: after this end everything read counts."""

    what: str
    leads: str
    clean: bool = False
    at: float = field(default_factory=time.monotonic)


class Faults:
    """wanted: the minimum count of each kind, if time allows. done: the counts so far."""

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
        self.counts: Counter[str] = Counter()
        self._network = network
        self._choose = choose
        self._clocks = clocks
        self._tasks: set[asyncio.Task[None]] = set()
        self._healing: set[int] = set()  # nodes that have not recovered yet
        self._calm = asyncio.Event()  # set: brokers may be killed
        self._calm.set()
        self.broker_down = False
        self._until = time.monotonic() + seconds
        self._brokers = asyncio.create_task(self._strike_brokers())

    # -- what there is to do

    @property
    def left(self) -> list[str]:
        """Return the kinds that are not done often enough; none after the end of the time."""
        if time.monotonic() > self._until:
            return []
        return [kind for kind, count in self.wanted.items() if self.done[kind] < count]

    async def strike(self, via: int, *, last: bool) -> Struck | None:
        """Cause one fault; with `last` preferably one that ends the life. None: only broker faults are left."""
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
        self.counts[what] += 1
        return Struck(what, leads, clean)

    def _some_node(self, owner: int, via: int, *, last: bool) -> tuple[int, str, str]:
        """Return (number, role, effect of its end)."""
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
        self.nodes.start(number, wait=False)  # not in a thread: the process ends with the thread that started it
        await asyncio.to_thread(self.nodes.wait_until_ready, number)

    async def _pause(self, owner: int, via: int) -> Struck:
        """Suspend a node, either too briefly to be noticed or until other nodes have taken over."""
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
        """Cut a link, briefly or for long, in one direction or both."""
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
        """Set all clocks right."""
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
            self.counts[f"{how.name} of a broker"] += 1
            await asyncio.sleep(self._choose.uniform(0.5, 12.0))
            self.kafka.start(number, wait=False)
            await asyncio.to_thread(self.kafka.wait_until_ready)
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
        """Return the nodes that have recovered or had no fault."""
        self._failed()
        return [node.number for node in self.nodes if node.number not in self._healing]

    async def healthy(self) -> None:
        """Wait until all nodes run and answer. Raises: TimeoutError."""
        async with asyncio.timeout(HEALTHY_S):
            while True:
                if len(self.well()) == len(list(self.nodes)):
                    answers = await asyncio.gather(*(self._answers(node.http) for node in self.nodes))
                    if all(answers):
                        return
                await asyncio.sleep(0.1)

    async def calm(self) -> None:
        """Wait until nodes and brokers have recovered, and stop killing brokers."""
        self._calm.clear()
        async with asyncio.timeout(HEALTHY_S):
            while self.broker_down:
                self._failed()
                await asyncio.sleep(0.1)
        await self.healthy()

    def resume_broker_faults(self) -> None:
        """Kill brokers again."""
        self._calm.set()

    async def end(self) -> None:
        """Cause no more faults. Raises: the error that ended one of the tasks."""
        tasks = [self._brokers, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failed()

    async def _owner(self) -> int:
        """Return the node that serves `/`, when all nodes agree. Raises: TimeoutError."""
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
