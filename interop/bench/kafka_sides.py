"""The two sides of `kafka.py`: amqpd with its listener for Kafka's clients, and one broker of Apache Kafka (KRaft).

Apache Kafka is that of tests/cluster, with the Java options of Kafka's scripts and Kafka's own defaults. Both keep
their data in the run's directory.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine
from .brokers import READY_LINE, Amqpd, StartFailed

ROOT = Path(__file__).resolve().parents[2]
RIG = ROOT / "tests" / "cluster"
if RIG.is_dir():
    sys.path.append(str(RIG))
if TYPE_CHECKING:
    from kafka_rig import Kafka

START_TIMEOUT_S = 120.0
VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
"""An ApiVersions request of version 0 with its length."""
AS_BY_DEFAULT = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.segment.delete.delay.ms": "1000",
}
"""Kafka's defaults where tests/cluster has others, what a single broker needs, and quick removal of deleted topics."""


def jars() -> Path:
    """Return the folder of Kafka 4.3's jars. Raises: StartFailed if it is missing."""
    clients = Path(os.environ.get("TEST_KAFKA_CLIENTS", ROOT / ".venv" / "kafka-clients"))
    if not list((clients / "java43").glob("kafka_2.13-*.jar")):
        raise StartFailed(f"no jars of Kafka in {clients / 'java43'}: make kafka-clients")
    return clients / "java43"


def answers(port: int) -> bool:
    """Return whether a Kafka listener answers ApiVersions."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as peer:
            peer.settimeout(1)
            peer.sendall(VERSIONS)
            return len(peer.recv(4)) == 4
    except OSError:
        return False


def memory_mb(pid: int) -> dict[str, float]:
    """Return `rss_mb` and `pss_mb` of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("Rss:", "Pss:"))}
    return {"rss_mb": kb["Rss"] / 1024, "pss_mb": kb["Pss"] / 1024}


class KafkaSide:
    """A broker with a Kafka listener on 127.0.0.1.

    Attributes:
        version: for the report.
        topic_configs: name of a column -> the configs of its topics.
    """

    def __init__(self, version: str, topic_configs: dict[str, dict[str, str]]) -> None:
        self.version = version
        self.topic_configs = topic_configs

    @property
    def port(self) -> int:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The process whose CPU and memory are measured."""
        raise NotImplementedError

    def spawn(self) -> None:
        """Start the process. Raises: StartFailed."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop it cleanly; the data stays. No effect if it does not run."""
        raise NotImplementedError

    def start(self) -> float:
        """Start, and return the milliseconds until ApiVersions was answered. Raises: StartFailed."""
        began = time.monotonic()
        self.spawn()
        while not answers(self.port):
            if time.monotonic() - began > START_TIMEOUT_S:
                raise StartFailed(f"{self.version} does not answer on port {self.port}")
            time.sleep(0.005)
        return (time.monotonic() - began) * 1000

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_times_ms(self, cycles: int) -> list[float]:
        """Return the times of so many starts over the data that is there. Raises: StartFailed."""
        times = []
        for _ in range(cycles):
            self.stop()
            times.append(self.start())
        return times

    def create_topic(self, topic: str, configs: dict[str, str]) -> None:
        """Create a topic with one partition."""
        self._with_admin(lambda admin, new: admin.create_topics([new(topic, 1, 1, topic_configs=configs)]))

    def delete_topic(self, topic: str) -> None:
        self._with_admin(lambda admin, _: admin.delete_topics([topic]))

    def _with_admin(self, work: Callable[..., object]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
            from kafka.admin import KafkaAdminClient, NewTopic
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            work(admin, NewTopic)
        finally:
            admin.close()


class AmqpdListener(KafkaSide):
    """The amqpd of this process's environment. Its streams are the topics."""

    def __init__(self, directory: Path) -> None:
        self._broker = Amqpd(directory)
        self._port = machine.free_port()
        options = ["--kafka.host", "127.0.0.1", "--kafka.port", str(self._port)]
        self._options = [*options, "--kafka.share_auto_offset_reset", "earliest", "--log.level", "warning"]
        super().__init__("amqpd", {"amqpd": {}})

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        return self._broker.pid

    def spawn(self) -> None:
        self._broker.launch(*self._options)

    def start(self) -> float:
        took = super().start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (ready := READY_LINE.search(self._broker.log_path.read_text("utf-8", errors="replace"))):
            if time.monotonic() > deadline:
                raise StartFailed("amqpd said nothing of being ready")
            time.sleep(0.02)
        self.version = ready["version"]
        return took

    def stop(self) -> None:
        self._broker.stop()


class ApacheKafka(KafkaSide):
    """One broker of Apache Kafka, which is its own controller."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kafka: Kafka | None = None
        super().__init__("Apache Kafka", {"kafka": {}, "kafka, synced": {"flush.messages": "1"}})

    @property
    def port(self) -> int:
        assert self._kafka is not None
        return self._kafka.brokers[1].port

    @property
    def pid(self) -> int:
        assert self._kafka is not None
        process = self._kafka.brokers[1].process
        assert process is not None
        return process.pid

    def spawn(self) -> None:
        if self._kafka is None:
            found = jars()
            os.environ["TEST_KAFKA_JARS"] = str(found)
            try:
                from kafka_rig import AS_SHIPPED, Kafka, missing
            except ImportError as error:
                raise StartFailed(f"tests/cluster and what it needs are not here ({error})") from None
            if lacking := missing():
                raise StartFailed(lacking)
            self._kafka = Kafka(self._directory, 1, AS_BY_DEFAULT, java_options=AS_SHIPPED).__enter__()
            self.version = f"Apache Kafka {next(found.glob('kafka_2.13-*.jar')).stem.rpartition('-')[2]}"
            return
        self._kafka.start(1, wait=False)

    def partition_directory(self, topic: str) -> Path:
        """Return the directory of a topic's only partition."""
        assert self._kafka is not None
        return self._kafka.partition_directory(1, topic, 0)

    def stop(self) -> None:
        if self._kafka is not None and self._kafka.brokers[1].process is not None:
            self._kafka.kill(1, signal.SIGTERM)
