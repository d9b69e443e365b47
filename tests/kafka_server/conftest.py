"""A broker with Kafka's listener for all tests of this folder, which is put on the import path."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqpd.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("kafka_socket")

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

from kafka_socket import address_of  # noqa: E402  # found by the path above


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
