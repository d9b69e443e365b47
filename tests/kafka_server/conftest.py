"""A broker with Kafka's listener for all tests of this folder, which is put on the import path."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqpd.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("kafka_socket")

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401


def address_of(broker: BrokerProcess) -> str:
    """Return `host:port` of the broker's Kafka listener."""
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafka"]
    return f"{host}:{port}"


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Return the first true result of a condition that the broker makes true later."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def audit_records(broker: BrokerProcess) -> list[dict[str, Any]]:
    """Return the newest records of the audit log, as far as they are synced."""
    found: Any = broker.api("GET", "/api/audit?count=1000")
    return [each for each in found["records"] if each.get("front_end") == "kafka"]


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with `kafka.port` on 127.0.0.1."""
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path_factory.mktemp("kafka-broker"), settings=settings) as broker:
        yield broker
        assert "Traceback" not in broker.stderr


@pytest.fixture(scope="session")
def kafka_address(kafka_broker: BrokerProcess) -> str:
    """`127.0.0.1:PORT` of the Kafka listener."""
    return address_of(kafka_broker)
