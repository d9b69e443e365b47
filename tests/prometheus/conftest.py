"""A Prometheus that scrapes a broker under load, for this folder only."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import pika
import pika.exceptions
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

REQUIRED = "TEST_REQUIRE_PROMETHEUS"
"""If set, the tests fail instead of being skipped: .ci/run sets it as root."""

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SHORT_INTERVAL = "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"


def configuration(target: str) -> str:
    """Return the page's configuration, with another interval and port."""
    block = re.search(r"^```yaml\n(scrape_configs:\n.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    assert block[1].count("127.0.0.1:15692") == 2
    return SHORT_INTERVAL + block[1].replace("127.0.0.1:15692", target)


def tool(name: str) -> str:
    """Return the path of prometheus or promtool. Skip if it is missing, unless that is forbidden."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not here: Debian's package prometheus has it"
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    return tool("promtool")


class Prometheus:
    """Client of the Prometheus HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """Raises: urllib.error.URLError."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{urlencode(query)}", timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression now. Fails if it is invalid or cannot be joined."""
        found = self.get("/api/v1/query", query=expression)
        assert found["resultType"] == "vector", expression
        samples: list[dict[str, Any]] = found["result"]
        return samples


class Load:
    """Load of many kinds until exit: publishers, consumers, dropped, returned and dead-lettered messages."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._stopped = threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(30)

    def _run(self) -> None:
        try:
            with pika.BlockingConnection(pika.URLParameters(self._broker.url)) as connection:
                self._declare(connection.channel())
                publisher, consumer = connection.channel(), connection.channel()
                consumer.basic_qos(prefetch_count=5)
                consumer.basic_consume("acked", lambda channel, method, *_: channel.basic_ack(method.delivery_tag))
                consumer.basic_consume("unasked", lambda *_: None, auto_ack=True)
                consumer.basic_consume("events", lambda *_: None, arguments={"x-stream-offset": "first"})
                publisher.confirm_delivery()
                host, port = self._broker.ready.listeners["kafka"]
                producer = KafkaProducer(bootstrap_servers=f"{host}:{port}")
                while not self._stopped.is_set():
                    self._run_once(publisher)
                    producer.send("events", b"x").get(10)
                    connection.process_data_events(0.05)
                    with pika.BlockingConnection(pika.URLParameters(self._broker.url)) as short_lived:
                        short_lived.channel()
                producer.close()
        except (pika.exceptions.AMQPError, KafkaError, BrokerFailed, OSError) as error:
            self.error = error

    def _declare(self, channel: Any) -> None:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        for name in ("acked", "unasked", "got", "dead", "exported"):
            channel.queue_declare(name, durable=True)
        channel.queue_declare("dying", durable=True, arguments={**dead, "x-max-length": 2})
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        self._broker.api("PUT", "/api/amqpd/exports/%2F/exported", {"name": "lake"})
        group = "/api/amqpd/kafka/groups/%2F/behind/offsets"
        self._broker.api("POST", group, {"topic": "events", "to": "earliest"})

    def _run_once(self, channel: Any) -> None:
        persistent = pika.BasicProperties(delivery_mode=2)
        for name in ("acked", "unasked", "got", "exported", "dying", "dying", "dying", "events"):
            channel.basic_publish("", name, b"x" * 200, persistent)
        channel.basic_publish("amq.direct", "nowhere", b"x")
        with suppress(pika.exceptions.UnroutableError):
            channel.basic_publish("amq.direct", "nowhere", b"x", mandatory=True)
        channel.basic_get("got", auto_ack=True)
        channel.basic_get("got")
        channel.basic_get("dead")
        method = channel.basic_get("dying")[0]
        if method is not None:
            channel.basic_reject(method.delivery_tag, requeue=False)
        name = channel.queue_declare("").method.queue
        channel.queue_delete(name)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# The load ends with the module: kafka-python's threads use `random`, and Hypothesis fails in the tests after it.
@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, promtool: str) -> Generator[BrokerProcess]:
    settings = {"metrics.port": 0, "kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path_factory.mktemp("prometheus"), settings=settings) as process:
        yield process


@pytest.fixture(scope="module")
def prometheus(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Generator[Prometheus]:
    """A Prometheus with some seconds of samples; the load continues."""
    folder = tmp_path_factory.mktemp("data")
    host, port = broker.ready.listeners["prometheus"]
    (folder / "prometheus.yml").write_text(configuration(f"{host}:{port}"), "utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(tool("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    ]
    with (
        (folder / "log").open("wb") as log_file,
        subprocess.Popen(command, stdout=log_file, stderr=log_file) as process,
    ):
        try:
            with Load(broker) as load:
                client = Prometheus(f"http://{address}")
                _await_samples(client, process, folder / "log", load)
                yield client
            assert load.error is None, load.error
        finally:
            process.terminate()
            process.wait(30)


def _await_samples(prometheus_client: Prometheus, process: subprocess.Popen[bytes], log: Path, load: Load) -> None:
    """Wait until both targets have been scraped often enough for a rate of counters."""
    deadline = time.monotonic() + 90
    while True:
        assert process.poll() is None, log.read_text("utf-8")
        assert load.error is None, load.error
        try:
            counted = prometheus_client.ask(
                'count_over_time(rabbitmq_global_messages_received_total{protocol="amqp091"}[1m])'
            )
            detailed = prometheus_client.ask("count_over_time(rabbitmq_detailed_stream_consumer_max_offset_lag[1m])")
            if counted and detailed and min(float(each["value"][1]) for each in (*counted, *detailed)) >= 5:
                return
        except OSError:
            pass  # it does not listen yet
        assert time.monotonic() < deadline, prometheus_client.get("/api/v1/targets")
        time.sleep(0.5)
