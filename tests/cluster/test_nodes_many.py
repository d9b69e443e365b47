"""Many idle vhosts with many queues: the time to declare them, their cost when idle, the time to take them over. The
test records figures for README.md's table and checks that all queues exist.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kafka_rig
import pytest
from account import Account
from amqpd_nodes import Node, Nodes
from kafka_rig import SMALL, Kafka
from nodes_load import Load
from nodes_story import count, note, owner_of
from planted import requests_of
from quickclient import Gone

pytestmark = pytest.mark.on_demand
LARGE = ("-Xmx1g", *SMALL[1:])
IDLE_S = 30.0
SETTLED_S = 15.0
"""Time for the work that declarations leave behind."""
KINDS = {0: "produce", 1: "fetch", 3: "metadata", 12: "heartbeat"}


async def test_many_idle_queues_are_all_taken_over(tmp_path: Path, brokers: Kafka) -> None:
    """Acceptance 11: 100 vhosts with 500 durable queues on three nodes over three brokers."""
    with many(tmp_path, brokers) as nodes:
        await idle_queues("many", nodes, brokers, count(10, 100), 5)


async def test_ten_thousand_idle_queues_are_all_taken_over(tmp_path: Path) -> None:
    """More queues over one broker: this shows costs that grow faster than the number of queues."""
    kafka_rig.need(kafka_rig.missing())
    with Kafka(tmp_path / "kafka", java_options=LARGE) as kafka, many(tmp_path, kafka) as nodes:
        await idle_queues("ten thousand", nodes, kafka, count(20, 100), 100)


def many(directory: Path, kafka: Kafka) -> Nodes:
    """Create three nodes with the default number of slots."""
    return Nodes(directory, kafka, 3, name="many", plant="count-requests", settings={"cluster.slots": 64})


async def idle_queues(name: str, nodes: Nodes, kafka: Kafka, vhosts: int, queues: int, clients: int = 4) -> None:
    """Declare `queues` queues in each vhost with several clients, wait idle, then kill an owner."""
    empty = [_rss_mib(node) for node in nodes]
    load = Load(Account(), [node.amqp for node in nodes])
    began = time.monotonic()
    names = [f"vhost-{number}" for number in range(vhosts)]
    for vhost in names:
        await asyncio.to_thread(nodes.add_vhost, vhost)
    made_s = time.monotonic() - began
    left = iter(names)
    declares: list[list[float]] = []
    began = time.monotonic()
    await asyncio.gather(*(_declare(load, left, queues, declares) for _ in range(clients)))
    declared_s = time.monotonic() - began
    await asyncio.sleep(SETTLED_S)
    full = [_rss_mib(node) for node in nodes]
    began, cpu, kafka_cpu, requests = time.monotonic(), _cpu_s(nodes), _kafka_cpu_s(kafka), _requests(nodes)
    await asyncio.sleep(IDLE_S)
    idle_s = time.monotonic() - began
    cpu, kafka_cpu, requests = _cpu_s(nodes) - cpu, _kafka_cpu_s(kafka) - kafka_cpu, _requests(nodes) - requests
    times = sorted(each for some in declares for each in some)
    first, last = (sorted(each for some in part for each in some) for part in (declares[:10], declares[-10:]))
    note(
        name,
        vhosts=vhosts,
        queues=len(times),
        vhosts_made_s=round(made_s, 1),
        declared_s=round(declared_s, 1),
        declare_ms={share: round(times[int(len(times) * share)] * 1000, 1) for share in (0.5, 0.99, 0.999)},
        declare_ms_mean={"first": round(_mean_ms(first), 1), "last": round(_mean_ms(last), 1)},
        mib_before=[round(each) for each in empty],
        mib_after=[round(each) for each in full],
        idle_requests_a_second={
            KINDS.get(kind, str(kind)): round(requests[kind] / idle_s, 1) for kind in sorted(requests)
        },
        idle_processor_share=round(cpu / idle_s, 3),
        idle_kafka_processor_share=round(kafka_cpu / idle_s, 3),
    )
    await _take_over(name, nodes, load, names, queues)
    await load.leave()


async def _declare(load: Load, vhosts: Iterator[str], queues: int, times: list[list[float]]) -> None:
    for vhost in vhosts:
        link = await load._connect(vhost)
        took = []
        for queue in range(queues):
            began = time.monotonic()
            await link.declare_queue(f"queue-{queue}")
            took.append(time.monotonic() - began)
        times.append(took)
        link.close()
        await link.gone.wait()


async def _take_over(name: str, nodes: Nodes, load: Load, vhosts: list[str], queues: int) -> None:
    """Kill the owner of the first vhost and check that all queues of its vhosts exist elsewhere."""
    owners = {vhost: await owner_of(nodes, vhost) for vhost in vhosts}
    victim = owners[vhosts[0]]
    victim_vhosts = [vhost for vhost, owner in owners.items() if owner == victim]
    cpu = {node.number: _cpu_of(node) for node in nodes}
    since = time.monotonic()
    nodes.kill(victim)
    took = await asyncio.gather(*(_seconds_until_found(load, vhost, since) for vhost in victim_vhosts))
    for vhost in victim_vhosts:
        link = await load._connect(vhost)
        for queue in range(queues):
            await link.declare_queue(f"queue-{queue}", passive=True)
        link.close()
        await link.gone.wait()
    note(
        f"{name}, taken over",
        vhosts=len(victim_vhosts),
        queues=len(victim_vhosts) * queues,
        first_s=round(min(took), 1),
        last_s=round(max(took), 1),
        processor_s=round(sum(_cpu_of(node) - cpu[node.number] for node in nodes if node.running), 1),
    )


async def _seconds_until_found(load: Load, vhost: str, since: float) -> float:
    """Return the seconds until the vhost's first queue is found. Raises: AssertionError."""
    while True:
        assert time.monotonic() < since + 180, f"{vhost} is not served"
        link = await load._connect(vhost)
        try:
            await link.declare_queue("queue-0", passive=True)
            return time.monotonic() - since
        except (Gone, TimeoutError, OSError):
            await asyncio.sleep(0.05)
        finally:
            link.abort()


def _mean_ms(times: list[float]) -> float:
    return sum(times) / len(times) * 1000


def _requests(nodes: Nodes) -> Counter[int]:
    """Requests of all nodes to Kafka, by kind."""
    return sum((requests_of(node.directory) for node in nodes), Counter())


def _rss_mib(node: Node) -> float:
    assert node.process is not None
    for line in Path(f"/proc/{node.process.pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def _process_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _cpu_of(node: Node) -> float:
    return _process_cpu_s(node.process.pid) if node.process is not None else 0.0


def _cpu_s(nodes: Nodes) -> float:
    return sum(_cpu_of(node) for node in nodes)


def _kafka_cpu_s(kafka: Kafka) -> float:
    return sum(_process_cpu_s(each.process.pid) for each in kafka.brokers.values() if each.process is not None)
