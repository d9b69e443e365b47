"""Kafka's stock clients: the program of each one does its steps against a broker, once without and once with TLS and a
login.

The programs need what `make kafka-clients` puts into `.venv/kafka-clients`, or the folder TEST_KAFKA_CLIENTS. A client
that is missing is skipped; with TEST_REQUIRE_KAFKA_CLIENTS its test fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trustme

from amqpd.testing import BrokerProcess

from .kafka_programs import HERE, INSTALLED, address_of, java, need

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

RECORDS: Final = os.environ.get("TEST_KAFKA_RECORDS", "10000")
TIMEOUT_S: Final = 300
STEPS: Final = str(HERE / "java" / "Steps.java")

pytestmark = [pytest.mark.slow, pytest.mark.external]


class Listener(NamedTuple):
    """A Kafka listener, and the environment with which the programs connect to it."""

    broker: BrokerProcess
    name: str
    environment: dict[str, str]

    @property
    def address(self) -> str:
        return address_of(self.broker, self.name)


@pytest.fixture(scope="module")
def kafka_clients_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker with a listener for each kind of connection, and the certificate of its authority."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    issued = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA)
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    settings = {
        "kafka.port": 0,
        "kafka.host": "127.0.0.1",
        "kafka.tls.port": 0,
        "kafka.tls.certificate": folder / "server.pem",
        "kafka.tls.key": folder / "server.pem",
    }
    with BrokerProcess(tmp_path_factory.mktemp("kafka-clients"), settings=settings) as broker:
        yield broker, folder / "ca.pem"
        assert "Traceback" not in broker.stderr, broker.stderr


@pytest.fixture(params=["plain", "tls"])
def listener(request: pytest.FixtureRequest, kafka_clients_broker: tuple[BrokerProcess, Path]) -> Listener:
    broker, ca = kafka_clients_broker
    if request.param == "plain":
        return Listener(broker, "kafka", {})
    return Listener(broker, "kafkas", {"STEPS_CA": str(ca), "STEPS_USER": "/:guest", "STEPS_PASSWORD": "guest"})


def python(program: str, package: str) -> list[str]:
    library = INSTALLED / "python"
    check = [sys.executable, "-c", f"import {package}"]
    environment = {**os.environ, "PYTHONPATH": str(library)}
    need(package, subprocess.run(check, check=False, capture_output=True, env=environment).returncode == 0)
    return [sys.executable, "-W", "ignore", str(HERE / "python" / program)]


def go(name: str) -> list[str]:
    need(name, (INSTALLED / name).is_file())
    return [str(INSTALLED / name)]


def kafkajs() -> list[str]:
    need("kafkajs", shutil.which("node") is not None and (INSTALLED / "kafkajs/node_modules/kafkajs").is_dir())
    return ["node", str(HERE / "kafkajs" / "steps.mjs")]


CLIENTS: Final[dict[str, Callable[[], list[str]]]] = {
    "java39": lambda: java("39", STEPS),
    "java43": lambda: java("43", STEPS),
    "confluent": lambda: python("confluent.py", "confluent_kafka"),
    "kafka-python": lambda: python("kafka_python.py", "kafka"),
    "aiokafka": lambda: python("aio.py", "aiokafka"),
    "franz-go": lambda: go("franz"),
    "sarama": lambda: go("sarama"),
    "kafkajs": kafkajs,
}


def run_steps(command: list[str], listener: Listener) -> None:
    """Run a program; fail unless each of its lines is a step that went well."""
    environment = {
        **os.environ,
        **listener.environment,
        "NODE_PATH": str(INSTALLED / "kafkajs" / "node_modules"),
        "PYTHONPATH": str(INSTALLED / "python"),
    }
    process = subprocess.run(
        [*command, "--records", RECORDS],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
    )
    print(process.stdout, process.stderr)
    steps = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(steps) >= 7
    assert [step for step in steps if not step["ok"]] == []
    assert process.returncode == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_all_steps_of_a_client_succeed(client: str, listener: Listener) -> None:
    command = CLIENTS[client]()
    run_steps([*command, listener.address], listener)


def test_all_steps_of_kcat_succeed(kafka_clients_broker: tuple[BrokerProcess, Path], listener: Listener) -> None:
    need("kcat", shutil.which("kcat") is not None)
    topic = f"kcat-{listener.name}"
    admin = KafkaAdminClient(bootstrap_servers=address_of(kafka_clients_broker[0]))
    admin.create_topics([NewTopic(topic, 1, 1)])
    run_steps([str(HERE / "kcat" / "steps.sh"), listener.address, topic], listener)
    admin.delete_topics([topic])
    admin.close()
