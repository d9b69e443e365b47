"""Kafka Connect in distributed mode: a file goes through a topic into another file, while workers and the broker are
killed.

Two workers of one group run the connectors for files, with their three internal topics at the broker. The worker that
runs the task of the sink is killed, then the broker, then the worker with the task of the source, and so on. A kill
counts if the sink had some of the last lines before it, and not all of them after it. The test writes lines until
enough kills count.

TEST_CONNECT_KILLS: how many kills; 2. TEST_CONNECT_LINES: lines before a kill.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import socket
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from amqpd.testing import BrokerProcess

from .kafka_programs import address_of, documented_settings, java

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaConsumer, TopicPartition

KILLS: Final = int(os.environ.get("TEST_CONNECT_KILLS", "2"))
LINES: Final = int(os.environ.get("TEST_CONNECT_LINES", "3000"))
TIMEOUT_S: Final = 300
LINE_SIZE: Final = 600
"""The source has a buffer of 1024 characters. After a full batch it keeps whole lines that are in it until the file
grows, so two lines must not fit.
"""
PROGRAM: Final = "org.apache.kafka.connect.cli.ConnectDistributed"
TOPIC: Final = "lines"
INTERNAL: Final = {"connect-offsets": 25, "connect-status": 5, "connect-configs": 1}
"""Internal topic -> its partitions, as Connect creates them by default."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.external,
    pytest.mark.timeout(600 * KILLS),
    # kafka-python leaks the socket of a connection that it cannot make.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until the condition is true, and return its value."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Worker:
    """A worker as a process. Its output goes to `log`.

    Attributes:
        id: as the REST API names it.
    """

    def __init__(self, broker: str, folder: Path, exactly_once: str) -> None:
        self._port = free_port()
        self.id = f"127.0.0.1:{self._port}"
        self.log = folder / f"worker-{self._port}.log"
        settings = folder / f"worker-{self._port}.properties"
        settings.write_text(
            f"""{documented_settings("Kafka Connect", broker)}
            exactly.once.source.support={exactly_once}
            listeners=http://{self.id}
            # A killed worker is removed after this time, and its tasks are given to others after one second more.
            session.timeout.ms=6000
            heartbeat.interval.ms=1000
            scheduled.rebalance.max.delay.ms=1000
            offset.flush.interval.ms=500
            plugin.discovery=service_load
            """
        )
        self._command = [*java("43-connect", PROGRAM), str(settings)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON answer of the REST API; None if it has no answer now, as during a rebalance."""
        self.check()
        connection = http.client.HTTPConnection(self.id, timeout=TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            return None
        finally:
            connection.close()
        assert answer.status in (200, 201, 404, 409, 500, 503), content
        return json.loads(content) if answer.status < 300 else None

    def configure(self, name: str, config: dict[str, str]) -> None:
        wait_until(lambda: self.request("PUT", f"/connectors/{name}/config", config), f"connector {name}")

    def worker_of(self, name: str) -> str:
        """Wait until the task of a connector runs, and return the id of its worker."""

        def running() -> str:
            tasks = (self.request("GET", f"/connectors/{name}/status") or {}).get("tasks", [])
            return str(tasks[0]["worker_id"]) if tasks and tasks[0]["state"] == "RUNNING" else ""

        worker: str = wait_until(running, f"the task of {name} does not run")
        return worker


class Files:
    """The file of the source, and the one of the sink. A line is `<number>` and dots.

    A kill may tear the last line that the sink has written, so lines are found by their brackets.
    """

    def __init__(self, folder: Path) -> None:
        self.source, self.sink = folder / "source.txt", folder / "sink.txt"
        self.count = 0
        self._received: set[int] = set()
        self._read = 0

    def write(self, count: int) -> None:
        with self.source.open("a") as file:
            numbers = range(self.count, self.count + count)
            file.writelines(f"<{number}>".ljust(LINE_SIZE, ".") + "\n" for number in numbers)
        self.count += count

    def received(self) -> set[int]:
        """Return the numbers of the lines that the sink has written."""
        if self.sink.exists():
            with self.sink.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            end = data.rfind(b">") + 1
            self._received.update(int(number) for number in re.findall(rb"<(\d+)>", data[:end]))
            self._read += end
        return self._received


@pytest.fixture
def kafka_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that has the same Kafka port after a restart."""
    with BrokerProcess(tmp_path / "data", settings={"kafka.port": 0, "kafka.host": "127.0.0.1"}) as broker:
        assert broker.ready is not None
        broker.settings["kafka.port"] = broker.ready.listeners["kafka"][1]
        yield broker
        assert "Traceback" not in broker.stderr, broker.stderr


def numbers_in_topic(address: str) -> list[int]:
    """Return the committed lines in the topic."""
    consumer = KafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")
    place = TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.seek_to_beginning()
    end = consumer.end_offsets([place])[place]
    numbers: list[int] = []
    while consumer.position(place) < end:
        for record in consumer.poll(timeout_ms=500).get(place, ()):
            numbers.append(int(record.value.strip(b"<>.")))
    consumer.close()
    return numbers


def partitions_of_internal_topics(address: str) -> dict[str, int]:
    consumer = KafkaConsumer(bootstrap_servers=address)
    counts = {name: len(consumer.partitions_for_topic(name)) for name in INTERNAL}
    consumer.close()
    return counts


def connect_files(worker: Worker, files: Files) -> None:
    """Create the two connectors."""
    source = {
        "connector.class": "FileStreamSource",
        "file": str(files.source),
        "topic": TOPIC,
        "batch.size": "100",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }
    sink = {
        "connector.class": "FileStreamSink",
        "file": str(files.sink),
        "topics": TOPIC,
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.max.poll.records": "100",
        # A killed task keeps its partition for this time.
        "consumer.override.session.timeout.ms": "6000",
    }
    worker.configure("source", source)
    worker.configure("sink", sink)


def kill_worker_of(name: str, workers: list[Worker]) -> None:
    """Kill the worker that runs the task of this connector, and start it again."""
    worker_id = workers[0].worker_of(name)
    (worker,) = (each for each in workers if each.id == worker_id)
    worker.kill()
    worker.start()


@pytest.mark.parametrize("exactly_once", ["disabled", "enabled"])
def test_connect_loses_no_line_over_kills(kafka_broker: BrokerProcess, tmp_path: Path, exactly_once: str) -> None:
    address = address_of(kafka_broker)
    workers = [Worker(address, tmp_path, exactly_once) for _ in range(2)]
    files = Files(tmp_path)
    victims = itertools.cycle(("sink", "broker", "source"))
    victim, kills, lines = next(victims), 0, LINES
    try:
        for worker in workers:
            worker.start()
        files.write(1)
        connect_files(workers[0], files)
        while kills < KILLS:
            before = files.count
            files.write(lines)
            wait_until(lambda before=before: len(files.received()) > before, "the sink writes nothing")
            if victim == "broker":
                kafka_broker.kill()
                is_hit = len(files.received()) < files.count
                kafka_broker.start()
            else:
                kill_worker_of(victim, workers)
                is_hit = len(files.received()) < files.count
            wait_until(lambda: len(files.received()) == files.count, "lines are missing")
            if is_hit:
                victim, kills = next(victims), kills + 1
            else:
                lines *= 2
    finally:
        for worker in workers:
            worker.kill()
    assert files.received() == set(range(files.count))
    numbers = numbers_in_topic(address)
    if exactly_once == "enabled":
        assert numbers == list(range(files.count))
    else:
        assert set(numbers) == set(range(files.count))
    assert partitions_of_internal_topics(address) == INTERNAL
