"""Brokers that relay to each other, as processes: `relay_node.py`, and the table of owners they look at."""

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
    """names: of the nodes, each a broker with a data directory of its own. troubled: one that answers 503 to all that
    other nodes ask. settings: of all of them.
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
        with ThreadPoolExecutor() as starting:
            list(starting.map(BrokerProcess.start, self.nodes.values()))
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
        """What no node says."""
        text = self.nodes[name].stderr
        return [f"{name}: {text}"] if "Traceback" in text or "a bug in amqpd, please report it" in text else []

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.nodes[name]

    def own(self, vhost: str, name: str | None) -> None:
        """This node runs the vhost from now on, and makes it where it has none; None: nobody does."""
        self.owners[vhost] = name
        self._write()
        if name is not None and not vhost.startswith("late"):
            wait_until(lambda: self._runs(name, vhost), "it is made")

    def _runs(self, name: str, vhost: str) -> bool:
        try:
            self.nodes[name].api("GET", f"/api/queues/{vhost}")
            permissions: Any = self.nodes[name].api("GET", f"/api/permissions/{vhost}/guest")
        except BrokerFailed:
            return False
        return bool(permissions)

    def forget(self, vhost: str) -> None:
        """There is no such vhost in the cluster."""
        del self.owners[vhost]
        self._write()

    def _write(self) -> None:
        aside = self.table / "owners.new"
        text = json.dumps(self.owners)
        aside.write_text(text, "utf-8")
        aside.rename(self.table / "owners.json")
        running = [name for name, node in self.nodes.items() if node.running]
        wait_until(lambda: all(self._seen(name) == text for name in running), "the nodes know it")

    def _seen(self, name: str) -> str:
        seen = self.table / f"{name}.seen"
        return seen.read_text("utf-8") if seen.exists() else ""

    def position(self, name: str, offset: int) -> None:
        """That node has read what is the cluster's up to there."""
        aside = self.table / f"{name}.position.new"
        aside.write_text(str(offset), "utf-8")
        aside.rename(self.table / f"{name}.position")

    def close(self, name: str, why: str) -> None:
        """That node sends its clients away; "": it lets them in again."""
        aside = self.table / f"{name}.closed.new"
        aside.write_text(why, "utf-8")
        aside.rename(self.table / f"{name}.closed")

    def node(self, name: str) -> NodeState:
        """How its inner port is reached."""
        said: dict[str, Any] = json.loads((self.table / f"{name}.json").read_text("utf-8"))
        return NodeState(name, said["host"], said["port"], said["fingerprint"])

    def url(self, name: str, vhost: str, user: str = "guest", query: str = "") -> str:
        """Of a vhost, at that node, whoever runs it."""
        return f"amqp://{user}:{user}@127.0.0.1:{self.nodes[name].amqp_port}/{vhost}{query}"


def wait_until(true: Callable[[], bool], what: str, wait_s: float = 60.0) -> None:
    """Fails when it does not come to that."""
    deadline = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < deadline, f"not in {wait_s:g} s: {what}"
        time.sleep(0.02)


def connections(rig: Rig, name: str) -> list[Mapping[str, Any]]:
    """Those that this node serves, as it lists them."""
    found: Any = rig[name].api("GET", "/api/connections")
    return [each for each in found if each.get("owner", each["node"]) == name]
