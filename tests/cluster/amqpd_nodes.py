"""amqpd nodes for tests: processes over a Kafka of kafka_rig.py, on loopback or each on a host of its own.

    with Nodes(directory, kafka, 3) as nodes:
        nodes[1].amqp                  # ("127.0.0.1", 41234)
        nodes.kill(1); nodes.start(1)  # same ports, same data
        nodes.pause(2); nodes.resume(2)
        nodes.api(3, "GET", "/api/nodes")

Nodes run the amqpd that runs the tests, or tests/cluster/planted.py around it if a fault is planted. A node logs to
`log` in its directory; the report of a failed start has the log's end. All nodes end with this process.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from kafka_hosts import Host
from kafka_rig import Kafka, _ends_with_us, free_ports
from nodes_meta import Meta

from amqpd.testing import parse_ready_line

SECRET: Final = "the old pond, a frog jumps in"
START_TIMEOUT_S: Final = 120.0
PORTS: Final = (5672, 15672, 25672)
"""Ports for AMQP, HTTP and other nodes, of a node on a host of its own."""
PLANTED: Final = Path(__file__).with_name("planted.py")
_LOGIN: Final = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}


class NodeFailed(Exception):
    """A node did not start or answered with an error. The text has the end of its log."""


class Node:
    """One node. name: its name in the cluster. amqp, http, inner: host and port."""

    def __init__(self, number: int, directory: Path, host: Host, ports: Sequence[int] = ()) -> None:
        self.number = number
        self.name = f"amqpd-{number}"
        self.directory = directory
        self.host = host
        ports = ports or (free_ports(3) if not host.name else PORTS)
        self.amqp = (host.address, ports[0])
        self.http = (host.address, ports[1])
        self.inner = (host.address, ports[2])
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False
        self.starts = 0  # starts that became ready
        self.environment: dict[str, str] = {}  # in addition to this process's environment
        self.python = sys.executable  # the interpreter whose amqpd it runs
        self._log: IO[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log_text(self) -> str:
        """The log of all its lives."""
        log = self.directory / "log"
        return log.read_text("utf-8", "replace") if log.exists() else ""

    def begin(self, command: Sequence[str]) -> None:
        """Start the process. Call from the main thread: the process ends with the thread that started it."""
        assert not self.running
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log = (self.directory / "log").open("ab")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AMQPD_", "RABBITMQ_"))}
        self.process = subprocess.Popen(
            [*_ends_with_us(), *self.host.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment | self.environment,
        )
        self.paused = False

    def end(self, how: int, timeout_s: float) -> int:
        """Send a signal and return the exit code. Raises: NodeFailed on a timeout, after killing it."""
        process = self.process
        assert process is not None and self._log is not None
        if self.paused:
            process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeFailed(f"{self.name} did not end within {timeout_s:g} s:\n{self.log_text[-4000:]}") from None
        finally:
            self._log.close()
            self.process = self._log = None
        return code


class Nodes:
    """A cluster of nodes. settings: of all nodes, by dotted names. plant: a fault of planted.py in all nodes. ports:
    three per node instead of free ones. begin: start the nodes with the cluster.
    """

    def __init__(
        self,
        directory: Path,
        kafka: Kafka,
        count: int = 3,
        *,
        name: str = "test",
        hosts: Sequence[Host] | None = None,
        settings: Mapping[str, object] | None = None,
        plant: str = "",
        ports: Sequence[Sequence[int]] = (),
        begin: bool = True,
    ) -> None:
        self.kafka = kafka
        self.name = name
        self.plant = plant
        self.settings = dict(settings or {})
        self._begin = begin
        self._meta: Meta | None = None
        self._nodes = {
            number: Node(
                number,
                directory / f"node{number}",
                hosts[number - 1] if hosts else Host("", "127.0.0.1"),
                ports[number - 1] if ports else (),
            )
            for number in range(1, count + 1)
        }

    def __enter__(self) -> Self:
        try:
            for number in self._nodes if self._begin else ():
                self.start(number, wait=False)
            for number in self._nodes if self._begin else ():
                self.wait_until_ready(number)
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()
        if self._meta is not None:
            self._meta.close()

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    @property
    def running(self) -> list[Node]:
        """The nodes whose process exists, including suspended ones."""
        return [node for node in self if node.running]

    # -- single nodes

    def arguments(self, node: Node) -> list[str]:
        """Return the command-line arguments of the node."""
        copies = len(self.kafka.brokers)
        settings: dict[str, object] = {
            "data-dir": node.directory / "data",
            "amqp.host": node.amqp[0],
            "amqp.port": node.amqp[1],
            "amqp.loopback-users": "",
            "http.host": node.http[0],
            "http.port": node.http[1],
            "cluster.kafka": self.kafka.bootstrap,
            "cluster.name": self.name,
            "cluster.secret": SECRET,
            "cluster.node": node.name,
            "cluster.listen": f"{node.inner[0]}:{node.inner[1]}",
            "cluster.address": f"{node.inner[0]}:{node.inner[1]}",
            "cluster.slots": 8,
            "cluster.replication-factor": min(3, copies),
            "cluster.required-insync": min(2, copies),
            **{name.replace("_", "-"): value for name, value in self.settings.items()},
        }
        return [f"--{name}={_option(value)}" for name, value in settings.items()]

    def start(self, number: int, wait: bool = True) -> None:
        """Start the node; with `wait` until it is ready."""
        node = self[number]
        program = [str(PLANTED), self.plant] if self.plant else ["-m", "amqpd"]
        node.begin([node.python, "-P", *program, *self.arguments(node)])
        if wait:
            self.wait_until_ready(number)

    def wait_until_ready(self, number: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the process reports that it is ready. Raises: NodeFailed."""
        node = self[number]
        deadline = time.monotonic() + timeout_s
        while True:
            said = sum(parse_ready_line(line) is not None for line in node.log_text.splitlines())
            if said > node.starts:
                node.starts = said
                return
            if not node.running:
                code = node.process.poll() if node.process is not None else None
                raise NodeFailed(f"{node.name} ended with {code}:\n{node.log_text[-4000:]}")
            if time.monotonic() > deadline:
                raise NodeFailed(f"{node.name} is not ready:\n{node.log_text[-4000:]}")
            time.sleep(0.02)

    def kill(self, number: int) -> None:
        """Kill the node with SIGKILL."""
        self[number].end(signal.SIGKILL, 60)

    def stop(self, number: int, timeout_s: float = 60) -> None:
        """Stop the node cleanly. Raises: NodeFailed on a timeout or an exit code other than 0."""
        node = self[number]
        code = node.end(signal.SIGTERM, timeout_s)
        if code:
            raise NodeFailed(f"{node.name} ended with {code}:\n{node.log_text[-4000:]}")

    def start_stop(self, number: int) -> None:
        """Request a clean stop and do not wait."""
        process = self[number].process
        assert process is not None
        process.send_signal(signal.SIGTERM)

    def wait_until_ended(self, number: int, timeout_s: float = 60) -> None:
        """Wait for the end after `start_stop`. Raises: NodeFailed."""
        self.stop(number, timeout_s)

    def pause(self, number: int) -> None:
        """Suspend the process with SIGSTOP. Its sockets stay open."""
        node = self[number]
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        node.paused = True

    def resume(self, number: int) -> None:
        """Continue the process with SIGCONT."""
        node = self[number]
        assert node.process is not None
        node.process.send_signal(signal.SIGCONT)
        node.paused = False

    def stop_all(self) -> None:
        """End all nodes. Their data is discarded."""
        for node in self:
            if node.process is not None:
                node.end(signal.SIGKILL, 60)

    # -- what they say

    def api(self, number: int, method: str, path: str, body: object = None, timeout_s: float = 60.0) -> Any:
        """Send one request to the node's HTTP API as guest. Return the JSON, or None without a body. Raises: NodeFailed
        for a status of 400 or more; OSError.
        """
        node = self[number]
        connection = http.client.HTTPConnection(*node.http, timeout=timeout_s)
        try:
            headers = {**_LOGIN, "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise NodeFailed(f"{node.name}: {method} {path}: {answer.status} {content.decode('utf-8', 'replace')}")
        return json.loads(content) if content else None

    def metric(self, number: int, name: str) -> float:
        """Return the value of a metric without labels. Raises: OSError, StopIteration if there is no such metric."""
        host, port = self[number].http
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))

    def ctl(self, number: int, *arguments: str, timeout_s: float = 120.0) -> str:
        """Return the output of amqpctl for this node. Raises: NodeFailed."""
        node = self[number]
        command = [node.python, "-P", "-m", "amqpd.cli", "--data-dir", str(node.directory / "data"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise NodeFailed(f"{' '.join(arguments)}: {done.returncode} {done.stdout} {done.stderr}")
        return done.stdout

    def add_vhost(self, name: str, node: int = 0) -> None:
        """Create a vhost in which guest has all permissions. node: the node; 0: the first running one."""
        number = node or self.running[0].number
        self.put(number, f"/api/vhosts/{_quoted(name)}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.put(number, f"/api/permissions/{_quoted(name)}/guest", everything)

    def put(self, number: int, path: str, body: object, timeout_s: float = 180.0) -> None:
        """Send a change to the node, and repeat it while its vhost moves or Kafka is slow. Raises: NodeFailed;
        OSError.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.api(number, "PUT", path, body)
                return
            except NodeFailed as error:
                if "503" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def owner_of(self, vhost: str, timeout_s: float = 60.0) -> int:
        """Return the number of the node that announced last that it serves the vhost. Raises: NodeFailed if
        none did.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            name = self.meta.owner_of(vhost)
            for node in self:
                if node.name == name:
                    return node.number
            if time.monotonic() > deadline:
                raise NodeFailed(f"nobody serves {vhost}: {name}")
            time.sleep(0.05)

    @property
    def meta(self) -> Meta:
        """The cluster's records in Kafka."""
        if self._meta is None:
            self._meta = Meta(self.kafka.bootstrap, self.name)
        return self._meta

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 120) -> float:
        """Wait until the condition holds; a node's error counts as false. Return the seconds. Raises: NodeFailed."""
        began = time.monotonic()
        last: Exception | None = None
        while True:
            try:
                if condition():
                    return time.monotonic() - began
            except (OSError, NodeFailed, http.client.HTTPException) as error:
                last = error
            if time.monotonic() - began > timeout_s:
                logs = "\n".join(f"== {node.name}\n{node.log_text[-3000:]}" for node in self)
                raise NodeFailed(f"{what}: not within {timeout_s:g} s ({last!r})\n{logs}")
            time.sleep(0.05)


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
