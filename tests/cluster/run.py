"""`make cluster-run`: three nodes over three Kafka brokers on this machine, and clients that survive kills.

    python tests/cluster/run.py [--directory DIR] [--seconds N] [--vhosts a,b,c] [--quiet]

It prints all addresses and process ids, then one line a second: confirmed, delivered and missing messages, and the node
of each vhost. Kill any process (`kill -9 PID`); it is restarted after 20 s. Ctrl-C ends everything; without --directory
nothing is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "crash"))

import kafka_rig
from account import Account
from amqpd_nodes import PORTS, Nodes
from kafka_rig import Kafka
from nodes_load import Load

NODES: Final = 3
AGAIN_S: Final = 20.0
RATE: Final = 50.0


def usual_ports() -> list[tuple[int, ...]]:
    """Return 5672 and its neighbours if all are free, else nothing, so that free ports are used."""
    found = [tuple(port + number for port in PORTS) for number in range(NODES)]
    for port in (port for ports in found for port in ports):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            return []
    return found


class Run:
    """One cluster, supervised until its end."""

    def __init__(self, nodes: Nodes, kafka: Kafka, vhosts: Sequence[str], quiet: bool) -> None:
        self.nodes = nodes
        self.kafka = kafka
        self.vhosts = vhosts
        self.quiet = quiet
        self.load = Load(Account(), [node.amqp for node in nodes])
        self._ended: dict[str, float] = {}

    def show(self) -> None:
        """Print all addresses."""
        for number, broker in self.kafka.brokers.items():
            assert broker.process is not None
            print(f"kafka-{number}    {broker.address:<24}                              pid {broker.process.pid}")
        for node in self.nodes:
            assert node.process is not None
            urls = f"amqp://guest:guest@127.0.0.1:{node.amqp[1]}/  http://127.0.0.1:{node.http[1]}/"
            print(f"{node.name}    {urls}  pid {node.process.pid}  log {node.directory / 'log'}")
        print(flush=True)

    async def go(self, seconds: float) -> None:
        """Run for that time or until interrupted. Raises: AssertionError if a confirmed message is missing."""
        for vhost in self.vhosts:
            await asyncio.to_thread(self.nodes.add_vhost, vhost)
            await self.load.declare(vhost, vhost)
            self.load.consume(vhost, vhost)
            self.load.publish(vhost, vhost, RATE)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop.set)
        began = time.monotonic()
        try:
            while not stop.is_set() and time.monotonic() - began < seconds:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await stop.wait()
                await self._look()
            print("nobody publishes any more; what is left is delivered", flush=True)
            await self.load.drain(60.0)
        finally:
            await self.load.leave()
        print(self.load.account.summary(), flush=True)
        self.load.account.judge()

    async def _look(self) -> None:
        account = self.load.account
        owners = await asyncio.to_thread(self.nodes.meta.vhosts)
        where = "  ".join(f"{vhost}: {owners.get(vhost, 'nobody')}" for vhost in self.vhosts)
        delivered = sum(map(len, account.seen.values()))
        if not self.quiet:
            print(
                f"{time.strftime('%H:%M:%S')}  confirmed {account.confirmed:>7,}  delivered {delivered:>7,}  "
                f"again {account.repeats():>4}  on their way {len(account.missing()):>4}  {where}",
                flush=True,
            )
        for name, ended, start in self._parts():
            if not ended:
                self._ended.pop(name, None)
            elif name not in self._ended:
                self._ended[name] = time.monotonic()
                print(f"{name} has ended; it is started again in {AGAIN_S:g} s", flush=True)
            elif time.monotonic() - self._ended[name] > AGAIN_S:
                start()

    def _parts(self) -> list[tuple[str, bool, Callable[[], None]]]:
        """Return each process: its name, whether it has ended, and the function that restarts it."""
        found: list[tuple[str, bool, Callable[[], None]]] = []
        for number, broker in self.kafka.brokers.items():
            ended = broker.process is not None and broker.process.poll() is not None
            found.append((f"kafka-{number}", ended, partial(self._start_broker, number)))
        found += [(node.name, not node.running, partial(self._start_node, node.number)) for node in self.nodes]
        return found

    def _start_broker(self, number: int) -> None:
        self.kafka.kill(number)  # ends remains of the process
        self.kafka.start(number, wait=False)
        print(f"kafka-{number} is started again: pid {self.kafka.brokers[number].process.pid}", flush=True)  # type: ignore[union-attr]

    def _start_node(self, number: int) -> None:
        node = self.nodes[number]
        node.end(signal.SIGKILL, 10)  # ends remains of the process
        self.nodes.start(number, wait=False)
        print(f"{node.name} is started again: pid {node.process.pid}", flush=True)  # type: ignore[union-attr]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="make cluster-run", description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--directory", type=Path, help="where data and logs go; a temporary one, removed at the end")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="ends by itself after that time")
    parser.add_argument("--vhosts", default="orders,bills,mails", help="whose clients are run")
    parser.add_argument("--quiet", action="store_true", help="no line a second")
    given = parser.parse_args(argv)
    lacking = kafka_rig.missing()
    if lacking:
        print(lacking, file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        directory = given.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amqpd-cluster-")))
        directory.mkdir(parents=True, exist_ok=True)
        print(f"three brokers of Kafka start; all data is in {directory}", flush=True)
        kafka = stack.enter_context(Kafka(directory / "kafka", 3))
        print("three nodes of amqpd start", flush=True)
        nodes = stack.enter_context(Nodes(directory, kafka, NODES, name="demo", ports=usual_ports()))
        run = Run(nodes, kafka, given.vhosts.split(","), given.quiet)
        run.show()
        asyncio.run(run.go(given.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
