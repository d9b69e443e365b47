"""A recorded history of all client actions over killed nodes and brokers, cut links and changed clocks. Every copy of
every message is accounted for. The judge is `tests/crash/history_judge.py`; `history_nodes.py` has the differences of a
cluster.

Two more vhosts have publishers and a consumer that reconnect as their connections end (`nodes_load.py`).
TEST_CLUSTER_KILLS, _BROKER_KILLS, _CUTS, _STOPS, _CLOCKS and _SEED set other counts; _SECONDS sets an earlier end. With
clocks nothing is judged by time (`StreamOfSetClocks`). A failed run prints its seed: the same seed gives the same
faults at nearly the same moments.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import kafka_hosts
import kafka_rig
import pytest
from amqpd_nodes import Nodes
from history import Event, History
from history_faults import CLOCK_S, ENDS, Faults
from history_load import prepare, queues
from history_nodes import WITHOUT, NodesCrowd, NodesJudge, NodesStream, http_api, request
from kafka_rig import Kafka
from nodes_load import Load
from nodes_story import LONG, loaded, note
from quickclient import Gone, connect
from streams_load import look
from wall_clock import WallClock

LIVES_PER_EPOCH = 8
BREAKS_S = 30.0
"""Clients must notice within this time that their node, or the node that serves them, has failed."""
BEGINS_S = 240.0
AT_STAKE = {"purged", "deleted", "committed", "rolled back", "ruled", "moved, by a job", "redriven, by a job"}
"""A run without these events has proved nothing about them."""
SETTINGS = {"storage.segment_size_bytes": 1 << 20, "storage.upkeep_interval_s": 0.2, "log.level": "warning"}
BESIDE = ("red", "green")


class Lives:
    """The history of one cluster, one life after the other."""

    def __init__(self, nodes: Nodes, faults: Faults, seed: int, *, clocks: bool) -> None:
        self.nodes = nodes
        self.faults = faults
        self.seed = seed
        self.clocks = clocks
        self.choose = random.Random(seed)
        self.history = History()
        self.history.stream = NodesStream()
        self.judge = NodesJudge(2.0 * CLOCK_S if clocks else 0.0)
        self.life = 0
        self.killed_at = 0.0
        self.took: list[float] = []  # from the kill of the owner until the next life could begin

    async def run(self, load: Load) -> None:
        """Run lives until no fault is left."""
        while self.faults.left:
            await self.one()
            if self.life % LIVES_PER_EPOCH == 0 or not self.faults.left:
                await self.account()
        assert load.account.confirmed

    async def one(self) -> None:
        """Run one life: load through a healthy node, two to four faults or the first fault that ends all
        connections.
        """
        began_at = time.monotonic()
        via = await self.begin()
        begun_at = time.monotonic()
        if self.killed_at:
            self.took.append(begun_at - self.killed_at)
            self.killed_at = 0.0
        crowd = self._crowd(via)
        crowd.start()
        await self._runs(crowd)
        runs_at = time.monotonic()
        struck = None
        for left in range(self.choose.choice((1, 1, 2, 3)), -1, -1):
            crowd.failed()
            await asyncio.sleep(self.choose.uniform(0.1, 1.5))
            if crowd.broken.is_set():
                break
            struck = await self.faults.strike(via, last=not left) or struck
            if struck is not None and struck.leads == ENDS:
                break
        ended_at = time.monotonic() if struck is None else struck.at
        if struck is not None and struck.leads == ENDS and not self.nodes[via].paused:
            await self._breaks(crowd, struck.what)
        await self.end_life(crowd, "stop" if struck is not None and struck.clean else "cut", ended_at)
        if struck is not None and struck.what == "kill of the owner":
            self.killed_at = ended_at
        times = ", ".join(f"{at - began_at:.1f}" for at in (begun_at, runs_at, ended_at, time.monotonic()))
        print(f"{self.life} by {via}, {times} s: {struck.what if struck else 'no fault'}; {crowd.why}", flush=True)

    def _crowd(self, via: int, *, draining: bool = False) -> NodesCrowd:
        node = self.nodes[via]
        seed = self.seed * 1_000_003 + self.life * 100
        crowd = NodesCrowd(node.amqp, node.http, self.history, seed, draining=draining)
        crowd.set_clocks = self.clocks
        return crowd

    async def begin(self) -> int:
        """Wait until nothing of the last life is left, declare everything, and return the node used. Raises:
        AssertionError.
        """
        deadline = time.monotonic() + BEGINS_S
        last: object = None
        while True:
            via = self.choose.choice(self.faults.well())
            node = self.nodes[via]
            ask = http_api(node.http)
            try:
                async with asyncio.timeout(40):
                    last = await self._left(node.http)
                    if not last:
                        await prepare(node.amqp[1], ask, node.amqp[0], WITHOUT)
                        await look(node.amqp[1], ask, self.history.stream, node.amqp[0])
                        return via
            except (Gone, OSError) as error:
                last = repr(error)
            assert time.monotonic() < deadline, f"no life can begin: {last}\n{self.logs()}"
            await asyncio.sleep(0.2)

    async def _left(self, http: tuple[str, int]) -> str:
        """Return what is left of the last life, as the owner reports it, or "". Raises: OSError."""
        status, connections = await request(http, "GET", "/api/vhosts/%2F/connections", None)
        if status != 200:
            return f"{status} {connections}"
        if connections:
            return f"{len(connections)} connections: {connections[0]}"
        status, found = await request(http, "GET", "/api/queues/%2F", None)
        if status != 200:
            return f"{status} {found}"
        waiting = [each["name"] for each in found if (each.get("kafka") or {}).get("waiting_bytes")]
        return f"not in Kafka yet: {waiting}" if waiting else ""

    async def _runs(self, crowd: NodesCrowd) -> None:
        wanted = self.history.confirmed + 50
        deadline = time.monotonic() + BEGINS_S
        while self.history.confirmed < wanted and not crowd.broken.is_set():
            assert time.monotonic() < deadline, f"the load does not begin\n{self.logs()}"
            crowd.failed()
            await asyncio.sleep(0.02)

    async def _breaks(self, crowd: NodesCrowd, what: str) -> None:
        try:
            async with asyncio.timeout(BREAKS_S):
                await crowd.broken.wait()
        except TimeoutError:
            self.history.violations.append(f"life {self.life}: {what}, and clients do not notice within {BREAKS_S:g} s")

    async def end_life(self, crowd: NodesCrowd, how: str, at: float) -> None:
        """Disconnect all clients and judge what they received."""
        await crowd.gone()
        history, judge = self.history, self.judge
        history.events.append(Event(at, "ended", more=how))
        history.note("over", more=how)
        judge.take(history.events)
        history.events.clear()
        history.stream.ended(how)
        history.groups.ended()
        self.life += 1
        self.stop_at_once()

    def stop_at_once(self) -> None:
        """Stop at the first violation: later ones may only be its consequences. Raises: AssertionError."""
        history = self.history
        found = history.violations + self.judge.violations + history.stream.violations + history.groups.failures
        assert not found, "\n".join([self.summary(), *found[:20], self.judge.tell(), self.logs()])

    async def account(self) -> None:
        """Drain all queues and account for every copy."""
        self.faults.clocks_are_right()
        await self.faults.calm()
        while not await self._drained():
            pass
        self.judge.account()
        self.stop_at_once()
        self.faults.resume_broker_faults()

    async def _drained(self) -> bool:
        """Drain once. Return False if the connections ended before the queues were empty."""
        via = await self.begin()
        crowd = self._crowd(via, draining=True)
        crowd.start()
        node = self.nodes[via]
        deadline = time.monotonic() + 600
        quiet = 0
        names = queues(WITHOUT)
        watcher = await connect(node.amqp[1], host=node.amqp[0], patience_s=60)
        try:
            while quiet < 5 and not crowd.broken.is_set():
                before = self.history.given
                await asyncio.sleep(0.2)
                crowd.failed()
                left = {queue: (await watcher.declare_queue(queue, passive=True))[1] for queue in names}
                status, found = await request(node.http, "GET", "/api/queues/%2F", None)
                waiting = 1
                if status == 200:
                    waiting = sum(each["messages"] for each in found if each["name"] in ("retry", "grouped"))
                done = not any(left.values()) and crowd.silent() and not self.history.groups.left() and not waiting
                quiet = quiet + 1 if done and self.history.given == before else 0
                assert time.monotonic() < deadline, f"the drain takes too long: {left}, {waiting} wait\n{self.logs()}"
        except (Gone, OSError):
            quiet = 0
        finally:
            watcher.abort()
        if quiet:
            self.history.drained()
        await self.end_life(crowd, "stop" if quiet else "cut", time.monotonic())
        return bool(quiet)

    def summary(self) -> str:
        """Return the totals in one line."""
        totals = ", ".join(f"{each} {number}" for each, number in sorted(self.judge.totals.items()))
        streams = ", ".join(f"{each} {number}" for each, number in self.history.stream.totals.items())
        faults = ", ".join(f"{each} {number}" for each, number in sorted(self.faults.counts.items()))
        return (
            f"seed {self.seed}: {self.life} lives; {dict(self.faults.done)}; {faults}; {totals}; stream: {streams}; "
            f"groups: {self.history.groups.deliveries} given"
        )

    def logs(self) -> str:
        return "\n".join(f"== {node.name}\n{node.log_text[-2500:]}" for node in self.nodes)


@pytest.fixture(scope="module")
def network() -> Iterator[kafka_hosts.Network]:
    """Hosts for three brokers and three nodes."""
    kafka_rig.need(kafka_rig.missing() or kafka_hosts.missing())
    with kafka_hosts.Network(6, number=7) as network:
        yield network


@pytest.fixture(scope="module")
def far_brokers(network: kafka_hosts.Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Three brokers on separate hosts."""
    with Kafka(tmp_path_factory.mktemp("kafka"), 3, hosts=network.hosts[:3]) as cluster:
        yield cluster


async def run_history(
    directory: Path, network: kafka_hosts.Network, kafka: Kafka, wanted: dict[str, int], seed: int, plant: str = ""
) -> Lives:
    """Run and judge the history of a cluster. Raises: AssertionError."""
    nodes = Nodes(
        *(directory, kafka, 3),
        name=f"history-{seed}-{plant}",
        hosts=network.hosts[3:],
        settings=SETTINGS,
        plant=plant,
        begin=False,
    )
    clocks = {}
    for node in nodes if wanted.get("clocks") else ():
        (directory / f"clock{node.number}").mkdir()
        clocks[node.number] = WallClock(directory / f"clock{node.number}")
        node.environment = clocks[node.number].env
    with nodes:
        for node in nodes:
            nodes.start(node.number, wait=False)
        for node in nodes:
            await asyncio.to_thread(nodes.wait_until_ready, node.number)
        async with loaded(nodes, BESIDE, publishers=1, rate=30.0) as load:
            seconds = float(os.environ.get("TEST_CLUSTER_SECONDS", "inf"))
            faults = Faults(nodes, kafka, network, wanted, random.Random(seed), clocks, seconds)
            story = Lives(nodes, faults, seed, clocks=bool(clocks))
            try:
                await story.run(load)
            finally:
                await faults.end()
                print(f"\n{story.summary()}")
                for host in network.hosts:
                    host.heal()
        tracebacks = [node.name for node in nodes if "Traceback" in node.log_text]
        assert not tracebacks, story.logs()
        took = sorted(round(each, 1) for each in story.took)
        note("history", told=story.summary(), beside=load.account.summary(), took=took)
    return story


def count(name: str, ci: int, whole: int) -> int:
    """Return the number of faults, or TEST_CLUSTER_name if it is set."""
    return int(os.environ.get(f"TEST_CLUSTER_{name}", whole if LONG else ci))


@pytest.mark.timeout(0 if LONG else 1200)
async def test_every_message_copy_is_accounted_for(
    tmp_path: Path, network: kafka_hosts.Network, far_brokers: Kafka
) -> None:
    wanted = {
        "node kills": count("KILLS", 2, 100),
        "broker kills": count("BROKER_KILLS", 1, 50),
        "cuts": count("CUTS", 1, 50),
        "stops": count("STOPS", 1, 20),
        "clocks": count("CLOCKS", 0, 0),
    }
    story = await run_history(tmp_path, network, far_brokers, wanted, count("SEED", 1, 1))
    totals = story.judge.totals
    assert totals["copies accounted for"] > 20 * story.life, f"hardly any load: {story.summary()}"
    if story.life > LIVES_PER_EPOCH:
        assert story.history.seen >= AT_STAKE, AT_STAKE - story.history.seen
        assert totals["settled for certain, ack"], story.summary()


@pytest.mark.on_demand
@pytest.mark.parametrize(
    ("plant", "seen"), [("confirm-early", "is lost"), ("no-settlements", "came back although it was settled")]
)
async def test_planted_faults_are_detected(
    tmp_path: Path, network: kafka_hosts.Network, far_brokers: Kafka, plant: str, seen: str
) -> None:
    """Planted faults: confirms before Kafka has the message; acks that are not sent to Kafka."""
    with pytest.raises(AssertionError, match=seen):
        await run_history(tmp_path, network, far_brokers, {"node kills": 10}, 2, plant)
