"""Apache Kafka for tests: one to three real brokers (KRaft) from jars, with small heaps, on loopback or in network
namespaces.

    with Kafka(directory, brokers=1) as kafka:
        kafka.bootstrap            # "127.0.0.1:41234"
        kafka.kill(1); kafka.start(1)

Every broker is also a controller. A cluster is formatted and started, and is ready once all brokers know each other
and have a controller. Its processes end with this one in any case, and are ended by process id.

Listeners of each broker: `PLAINTEXT`, also used between brokers; `PROXIED`, which advertises the address of a proxy;
`SECURE`, with SASL (PLAIN, SCRAM) over TLS, if a key store is given.

Jars: TEST_KAFKA_JARS, otherwise `.venv/kafka` of the sources, where `make kafka` puts them, or beside the environment
that runs the tests. Java 17 or later: JAVA_HOME, otherwise the PATH.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pytest
from kafka_hosts import Host

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

ROOT = Path(__file__).resolve().parents[2]
HEAP_MIB = 256
START_TIMEOUT_S = 420
"""A broker starts in 4 s on a quiet machine."""

_LISTENED = (15_000, 32_000)  # below the ports of outgoing connections (net.ipv4.ip_local_port_range)
_given: set[tuple[str, int]] = set()
SMALL = (
    f"-Xmx{HEAP_MIB}m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
)
"""Options of a small Java program: little memory and a quick compiler."""
AS_SHIPPED = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""Options that Kafka's scripts (kafka-server-start.sh, kafka-run-class.sh) give a broker."""
_QUIET = (
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dlog4j2.StatusLogger.level=OFF",
)


def jars() -> Path | None:
    """Return the folder of Kafka's jars, or None."""
    beside = Path(sys.prefix).parent / ".venv" / "kafka"
    for place in (os.environ.get("TEST_KAFKA_JARS"), ROOT / ".venv" / "kafka", beside):
        if place and list(Path(place).glob("kafka_2.13-*.jar")):
            return Path(place)
    return None


def spark_jars() -> list[Path]:
    """Return the jars of Spark's Kafka source, beside Kafka's own, where `make kafka-spark` puts them."""
    found = jars()
    return sorted(found.parent.glob("kafka-spark/*.jar")) if found else []


def java() -> str | None:
    """Return the program `java`, or None."""
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin", "java").is_file():
        return str(Path(home, "bin", "java"))
    return shutil.which("java")


def missing() -> str:
    """Return what is missing for a Kafka and how to get it, or ""."""
    if java() is None:
        return "no Java: apt install default-jre-headless"
    if jars() is None:
        return "no jars of Kafka: make kafka (Debian: apt install maven)"
    return ""


def need(lacking: str) -> None:
    """Skip the test if something is missing, or fail it if TEST_REQUIRE_KAFKA is set."""
    if lacking and os.environ.get("TEST_REQUIRE_KAFKA"):
        pytest.fail(lacking)
    if lacking:
        pytest.skip(lacking)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that are free and that the kernel does not assign by itself, so a restart gets the same port again.
    A run never returns a port twice, because a previous caller may not have begun to listen.
    """
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            port = random.randrange(*_LISTENED)
            if (host, port) in _given:
                continue
            try:
                sockets.append(socket.create_server((host, port)))
            except OSError:
                continue  # the port is in use
            _given.add((host, port))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _ends_with_us() -> list[str]:
    """Return a command prefix that ends the process together with this one."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def run_java(main: str, *arguments: str, timeout_s: float = 120, **options: str) -> str:
    """Run a Java program of Kafka's jars and return its output. options: Java system properties. Raises:
    CalledProcessError.
    """
    return subprocess.run(
        [*_ends_with_us(), *_java_command(main, *arguments, **options)],
        check=True,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    ).stdout


def _java_command(main: str, *arguments: str, java_options: Sequence[str] = SMALL, **options: str) -> list[str]:
    program = java()
    assert program is not None
    properties = [f"-D{name.replace('_', '.')}={value}" for name, value in options.items()]
    return [program, *java_options, *_QUIET, *properties, "-cp", f"{jars()}/*", main, *arguments]


@dataclass(frozen=True)
class Secure:
    """The listener SECURE: a PEM file with key and certificates, and the users that may log in."""

    key_store: Path
    users: dict[str, str]


@dataclass
class Broker:
    """One broker. proxy_port: advertised by the listener PROXIED, which listens on `proxied_port`."""

    number: int
    host: Host
    port: int
    controller_port: int
    proxied_port: int
    proxy_port: int
    secure_port: int
    directory: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    log: IO[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """The address of the listener PLAINTEXT."""
        return f"{self.host.address}:{self.port}"


def new_cluster_id() -> str:
    """Return an identifier like Kafka's own. It never begins with "-", which Kafka's tools take for an option."""
    first, *others = uuid.uuid4().bytes
    return urlsafe_b64encode(bytes([first & 0x7F, *others])).decode().rstrip("=")


class Kafka:
    """A cluster. settings: broker settings that override the defaults here. hosts: one per broker. java_options: of the
    brokers.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 1,
        settings: dict[str, str] | None = None,
        hosts: Sequence[Host] | None = None,
        secure: Secure | None = None,
        java_options: Sequence[str] = SMALL,
    ) -> None:
        self.directory = directory
        self.settings = settings or {}
        self.secure = secure
        self.java_options = java_options
        self.cluster_id = new_cluster_id()
        self.brokers: dict[int, Broker] = {}
        for number in range(1, brokers + 1):
            host = hosts[number - 1] if hosts else Host("", "127.0.0.1")
            ports = free_ports(5) if not hosts else [9092, 9093, 9094, 9095, 9096]
            self.brokers[number] = Broker(number, host, *ports, directory / f"broker{number}")

    def __enter__(self) -> Self:
        try:
            for number in self.brokers:
                self._format(self.brokers[number])
            for number in self.brokers:
                self.start(number, wait=False)
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def proxied(self) -> str:
        """The address of the first broker's proxy."""
        return f"{self.brokers[1].host.address}:{self.brokers[1].proxy_port}"

    # -- single brokers

    def start(self, number: int, wait: bool = True) -> None:
        """Start the broker and wait until the cluster is complete. Call from the main thread: a broker ends with the
        thread that started it.
        """
        broker = self.brokers[number]
        assert broker.process is None
        broker.log = (broker.directory / "log").open("ab")
        properties = str(broker.directory / "server.properties")
        java_command = _java_command("kafka.Kafka", properties, java_options=self.java_options)
        command = [*_ends_with_us(), *broker.host.prefix, *java_command]
        broker.process = subprocess.Popen(command, stdout=broker.log, stderr=broker.log, stdin=subprocess.DEVNULL)
        if wait:
            self.wait_until_ready()

    def kill(self, number: int, how: int = signal.SIGKILL) -> None:
        """End the broker with a signal."""
        broker = self.brokers[number]
        assert broker.process is not None and broker.log is not None
        broker.process.send_signal(how)
        try:
            broker.process.wait(60)
        except subprocess.TimeoutExpired:
            broker.process.kill()
            broker.process.wait()
        broker.log.close()
        broker.process = broker.log = None

    def suspend(self, number: int) -> None:
        """Stop the broker's process with SIGSTOP until `resume`. It keeps its connections."""
        process = self.brokers[number].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Continue the suspended process."""
        process = self.brokers[number].process
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all brokers. Their data is discarded."""
        for number, broker in self.brokers.items():
            if broker.process is not None:
                self.kill(number)

    # -- the cluster

    def wait_until_ready(self) -> None:
        """Wait until the running brokers know each other. Raises: RuntimeError, with the end of a broker's log."""
        running = [broker for broker in self.brokers.values() if broker.process is not None]
        deadline = time.monotonic() + START_TIMEOUT_S
        last: Exception | None = None
        while True:
            for broker in running:
                if broker.process is not None and broker.process.poll() is not None:
                    raise RuntimeError(f"Kafka's broker {broker.number} has ended:\n{self.log_tail(broker.number)}")
            try:
                if self._known(running[0]) >= len(running):
                    return
            except (KafkaError, OSError) as error:
                last = error
            if time.monotonic() > deadline:
                raise RuntimeError(f"Kafka is not there ({last!r}):\n{self.log_tail(running[0].number)}")
            time.sleep(0.2)

    def wait_until_in_sync(self) -> None:
        """Wait until every replica is in sync, so that the next broker may stop. Raises: RuntimeError."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                behind = [
                    f"{topic['name']} {part['partition_index']}"
                    for topic in self._described()
                    for part in topic["partitions"]
                    if len(part["isr_nodes"]) < len(part["replica_nodes"])
                ]
            except (
                KafkaError,
                OSError,
            ) as error:  # on a busy machine brokers may exceed the timeout
                behind = [repr(error)]
            if not behind:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"copies that are behind: {behind[:10]}")
            time.sleep(0.2)

    def in_sync(self, topic: str) -> dict[int, list[int]]:
        """Return the in-sync brokers of each partition."""
        (described,) = self._described([topic])
        return {part["partition_index"]: part["isr_nodes"] for part in described["partitions"]}

    def _described(self, topics: list[str] | None = None) -> list[dict[str, Any]]:
        """Return kafka-python's description of the topics; None: all topics."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","), bootstrap_timeout_ms=5000)
        try:
            found: list[dict[str, Any]] = admin.describe_topics(topics)
            return found
        finally:
            admin.close()

    def _known(self, broker: Broker) -> int:
        with socket.create_connection((broker.host.address, broker.port), 5):
            pass
        admin = KafkaAdminClient(bootstrap_servers=broker.address, bootstrap_timeout_ms=5000)
        try:
            return len(admin.describe_cluster()["brokers"])
        finally:
            admin.close()

    def log_tail(self, number: int) -> str:
        """Return the end of the broker's log."""
        return (self.brokers[number].directory / "log").read_text("utf-8", "replace")[-4000:]

    def until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait until the condition holds. Raises: TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.05)

    def partition_directory(self, number: int, topic: str, partition: int) -> Path:
        """Return the broker's directory of the partition."""
        return self.brokers[number].directory / "data" / f"{topic}-{partition}"

    def _format(self, broker: Broker) -> None:
        broker.directory.mkdir(parents=True)
        properties = broker.directory / "server.properties"
        text = "".join(f"{name}={value}\n" for name, value in self._properties(broker).items())
        properties.write_text(text, "utf-8")
        scram = (
            []
            if self.secure is None
            else [
                argument
                for user, password in self.secure.users.items()
                for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512")
                for argument in ("--add-scram", f"{kind}=[name={user},password={password}]")
            ]
        )
        run_java("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(properties), *scram)

    def _properties(self, broker: Broker) -> dict[str, str]:
        host = broker.host.address
        copies = str(min(3, len(self.brokers)))
        in_sync = str(min(2, len(self.brokers)))
        voters = (f"{each.number}@{each.host.address}:{each.controller_port}" for each in self.brokers.values())
        listeners = {"PLAINTEXT": broker.port, "CONTROLLER": broker.controller_port, "PROXIED": broker.proxied_port}
        advertised = {"PLAINTEXT": broker.port, "PROXIED": broker.proxy_port}
        kinds = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "PROXIED": "PLAINTEXT"}
        properties: dict[str, str] = {}
        if self.secure is not None:
            listeners["SECURE"] = advertised["SECURE"] = broker.secure_port
            kinds["SECURE"] = "SASL_SSL"
            properties = self._secure_properties(self.secure)
        return {
            "process.roles": "broker,controller",
            "node.id": str(broker.number),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(f"{name}://{host}:{port}" for name, port in listeners.items()),
            "advertised.listeners": ",".join(f"{name}://{host}:{port}" for name, port in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in kinds.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(broker.directory / "data"),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "log.cleaner.threads": "1",
            "log.cleaner.dedupe.buffer.size": "4194304",
            **properties,
            **self.settings,
        }

    @staticmethod
    def _secure_properties(secure: Secure) -> dict[str, str]:
        module = "org.apache.kafka.common.security"
        users = " ".join(f'user_{user}="{password}"' for user, password in secure.users.items())
        scram = f"{module}.scram.ScramLoginModule required;"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(secure.key_store),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {users};",
            "listener.name.secure.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
        }
