"""The two sides of `cluster.py`: three replicating nodes of one kind on this machine.

Each is started completely, proves that one of its queues has three copies, and is stopped completely. Its first port is
that of the node with the (first) queue of a run.

amqpd's nodes and their Kafka are those of tests/cluster, except Java's options, which are those of Kafka's scripts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import generator, rabbitmq
from .brokers import READY_LINE, StartFailed

RIG = Path(__file__).resolve().parents[2] / "tests" / "cluster"
if RIG.is_dir():
    sys.path.append(str(RIG))
if TYPE_CHECKING:
    from amqpd_nodes import Nodes
    from kafka_rig import Kafka

NODES = 3
IN_SYNC = 2
PROOF = "proof"
TICKS = os.sysconf("SC_CLK_TCK")


class Side:
    """Three nodes. pids: of the nodes; besides: of processes that work for them; version: for the report."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = name
        self.ports: list[int] = []
        self.pids: list[int] = []
        self.besides: list[int] = []

    def start(self) -> None:
        """Start all nodes. Raises: StartFailed."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop everything. No effect if nothing runs."""
        raise NotImplementedError

    def copies(self, queue: str) -> int:
        """Return how many nodes have that queue of the vhost `/`, as the cluster reports it."""
        raise NotImplementedError

    def options(self, spread: bool = True) -> list[str]:
        """Return the generator's options: where to connect and whose CPU to count. spread: connect to all nodes, else
        the first.
        """
        ports = self.ports if spread else self.ports[:1]
        chosen = ["--quorum", str(NODES), "--ports", _joined(ports), "--pid", _joined(self.pids)]
        return [*chosen, "--beside", _joined(self.besides)] if self.besides else chosen

    def prove(self, program: Path) -> None:
        """Declare a queue with a message as a run does. Raises: StartFailed if there are not three copies."""
        one = ["-s", "S3", "--count", "1", "--warm", "0", "--prefix", PROOF, *self.options()]
        generator.run(program, "127.0.0.1", 0, 0, [*one, "--pubonly", "--keep"])
        found = self.copies(f"{PROOF}.q0")
        generator.run(program, "127.0.0.1", 0, 0, [*one, "--drain"])
        if found != NODES:
            raise StartFailed(f"{self.name}: a queue has {found} copies, not {NODES}")

    def idle_cores(self, seconds: float) -> float:
        """Return the CPU of all processes without clients."""
        before = self._cpu_s()
        began = time.monotonic()
        time.sleep(seconds)
        return (self._cpu_s() - before) / (time.monotonic() - began)

    def _cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in [*self.pids, *self.besides])


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process since its start: all threads, user and kernel time."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


class Rabbits(Side):
    """RabbitMQ of Debian's package: the second and third node join the first."""

    def __init__(self, directory: Path) -> None:
        super().__init__("rabbitmq")
        first = rabbitmq.RabbitMQ(directory / "rabbitmq1")
        others = (rabbitmq.RabbitMQ(directory / f"rabbitmq{n}", joins=first) for n in range(2, NODES + 1))
        self.nodes = [first, *others]
        self.version = f"{rabbitmq.version()}, {NODES} nodes, quorum queues of {NODES} members"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.ports = [node.port for node in self.nodes]
        self.pids = [node.pid for node in self.nodes]
        status = json.loads(self.nodes[0].control("cluster_status", "--formatter", "json"))
        if len(status["running_nodes"]) != NODES:
            raise StartFailed(f"rabbitmq: a cluster of {status['running_nodes']}")

    def stop(self) -> None:
        for node in reversed(self.nodes):  # the first node has the epmd of all
            node.stop()

    def copies(self, queue: str) -> int:
        listed = self.nodes[0].control("list_queues", "name", "type", "online", "--formatter", "json")
        (row,) = (row for row in json.loads(listed) if row["name"] == queue)
        return len(row["online"]) if row["type"] == "quorum" else 1


class OverKafka(Side):
    """amqpd, as imported by this interpreter with -P, over three Kafka brokers. synced: Kafka syncs each batch before
    it confirms, as RabbitMQ does; by default Kafka does not.
    """

    def __init__(self, directory: Path, synced: bool) -> None:
        super().__init__("amqpd")
        self._directory = directory
        self._synced = synced
        self._stack = ExitStack()
        self._kafka: Kafka | None = None
        self._nodes: Nodes | None = None

    def start(self) -> None:
        try:
            from amqpd_nodes import NodeFailed, Nodes
            from kafka_rig import AS_SHIPPED, Kafka, missing
        except ImportError as error:
            raise StartFailed(f"tests/cluster and what it needs are not here ({error})") from None
        if lacking := missing():
            raise StartFailed(lacking)
        settings = {"log.flush.interval.messages": "1"} if self._synced else {}
        try:
            kafka = Kafka(self._directory / "kafka", NODES, settings, java_options=AS_SHIPPED)
            self._kafka = self._stack.enter_context(kafka)
            self._nodes = self._stack.enter_context(Nodes(self._directory, kafka, NODES, name="bench"))
            owner = self._nodes.owner_of("/")
        except (NodeFailed, RuntimeError) as error:
            raise StartFailed(str(error)) from None
        nodes = sorted(self._nodes, key=lambda node: node.number != owner)
        self.ports = [node.amqp[1] for node in nodes]
        self.pids = [_pid(node) for node in nodes]
        self.besides = [_pid(broker) for broker in kafka.brokers.values()]
        ready = READY_LINE.search(nodes[0].log_text)
        said = ready["version"] if ready else "amqpd"
        sync = "each batch synced" if self._synced else "not synced, as Kafka is by default"
        self.version = f"{said}, {NODES} nodes, over Kafka, {NODES} brokers, {NODES} copies, {IN_SYNC} in sync, {sync}"

    def stop(self) -> None:
        self._stack.close()

    def copies(self, queue: str) -> int:
        assert self._kafka is not None and self._nodes is not None
        place: dict[str, Any] = self._nodes.api(1, "GET", f"/api/queues/%2F/{queue}")["kafka"]
        return len(self._kafka.in_sync(place["topic"])[place["partition"]])


def _pid(part: Any) -> int:
    """Return the process id of a node or a broker."""
    assert part.process is not None
    found: int = part.process.pid
    return found
