"""Test rig: brokers that proxy to each other, as processes of `relay_node.py`, and their table of owners."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from amqpd.cluster.view import NodeState
from amqpd.testing import BrokerFailed, BrokerProcess

PROGRAM = Path(__file__).with_name("relay_node.py")
SECRET = "a secret of these tests, long enough"


class Rig:
    """A cluster of brokers. names: of the nodes, each with its own data directory. troubled: a node that answers 503
    to all requests of other nodes. settings: of all nodes.
    """

    def __init__(
        self, folder: Path, names: tuple[str, ...] = ("a", "b"), troubled: str = "", **settings: object
    ) -> None:
        self.table = folder / "table"
        self.table.mkdir(parents=True)
        if troubled:
            (self.table / f"{troubled}.troubled").touch()
        self.owners: dict[str, str | None] = {}
        self.nodes: dict[str, BrokerProcess] = {}
        self._write()
        self.nodes = {
            name: BrokerProcess(
                folder / name,
                settings=settings,
                command=[sys.executable, "-P", str(PROGRAM), name, str(self.table), SECRET],
            )
            for name in names
        }

    def __enter__(self) -> Self:
        with ThreadPoolExecutor() as pool:
            list(pool.map(BrokerProcess.start, self.nodes.values()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        problems = [problem for name, node in self.nodes.items() for problem in self.problems(name)]
        for node in self.nodes.values():
            node.kill() if kind is not None else node.close()
        if kind is None:
            assert not problems, "".join(problems)
        else:
            print(*(f"--- {name}\n{node.stderr}" for name, node in self.nodes.items()), sep="\n", file=sys.stderr)

    def problems(self, name: str) -> list[str]:
        """Return the node's log if it has a traceback or a bug report, in a list."""
        text = self.nodes[name].stderr
        return [f"{name}: {text}"] if "Traceback" in text or "a bug in amqpd, please report it" in text else []

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.nodes[name]

    def own(self, vhost: str, name: str | None) -> None:
        """Assign the vhost to this node, which creates it if necessary. None: no node owns it."""
        self.owners[vhost] = name
        self._write()
        if name is not None and not vhost.startswith("late"):
            wait_until(lambda: self._runs(name, vhost), "the vhost is created")

    def _runs(self, name: str, vhost: str) -> bool:
        try:
            self.nodes[name].api("GET", f"/api/queues/{vhost}")
            permissions: Any = self.nodes[name].api("GET", f"/api/permissions/{vhost}/guest")
        except BrokerFailed:
            return False
        return bool(permissions)

    def forget(self, vhost: str) -> None:
        """Remove the vhost from the cluster."""
        del self.owners[vhost]
        self._write()

    def _write(self) -> None:
        new_file = self.table / "owners.new"
        text = json.dumps(self.owners)
        new_file.write_text(text, "utf-8")
        new_file.rename(self.table / "owners.json")
        running = [name for name, node in self.nodes.items() if node.running]
        wait_until(lambda: all(self._seen(name) == text for name in running), "all nodes have read the table")

    def _seen(self, name: str) -> str:
        seen = self.table / f"{name}.seen"
        return seen.read_text("utf-8") if seen.exists() else ""

    def position(self, name: str, offset: int) -> None:
        """Set the offset up to which the node has read the cluster's metadata."""
        new_file = self.table / f"{name}.position.new"
        new_file.write_text(str(offset), "utf-8")
        new_file.rename(self.table / f"{name}.position")

    def close(self, name: str, reason: str) -> None:
        """Make the node close its clients with this reason; "" lets them connect again."""
        new_file = self.table / f"{name}.closed.new"
        new_file.write_text(reason, "utf-8")
        new_file.rename(self.table / f"{name}.closed")

    def node(self, name: str) -> NodeState:
        """Return the address of the node's peer port."""
        address: dict[str, Any] = json.loads((self.table / f"{name}.json").read_text("utf-8"))
        return NodeState(name, address["host"], address["port"], address["fingerprint"])

    def url(self, name: str, vhost: str, user: str = "guest", query: str = "") -> str:
        """Return the URL of a vhost at this node; any node may own it."""
        return f"amqp://{user}:{user}@127.0.0.1:{self.nodes[name].amqp_port}/{vhost}{query}"


def wait_until(condition: Callable[[], bool], description: str, wait_s: float = 60.0) -> None:
    """Wait for the condition. Fails after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {wait_s:g} s: {description}"
        time.sleep(0.02)


def connections(rig: Rig, name: str) -> list[Mapping[str, Any]]:
    """Return the connections that this node owns, as it lists them."""
    found: Any = rig[name].api("GET", "/api/connections")
    return [each for each in found if each.get("owner", each["node"]) == name]
