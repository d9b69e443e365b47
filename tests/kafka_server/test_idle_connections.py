"""Connections that send nothing for longer than `amqp.handshake_timeout_s`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.sasl import SaslHandshakeRequest
from kafka_socket import KafkaSocket

from amqpd.testing import BrokerProcess


@pytest.fixture(scope="module", params=["guest", ""])
def idle_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose anonymous user is guest, or that has none."""
    settings = {
        "kafka.port": 0,
        "kafka.host": "127.0.0.1",
        "kafka.anonymous_user": request.param,
        "amqp.handshake_timeout_s": 1,
    }
    with BrokerProcess(tmp_path_factory.mktemp("idle"), settings=settings) as broker:
        yield broker


def connect(broker: BrokerProcess) -> KafkaSocket:
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafka"]
    return KafkaSocket(f"{host}:{port}")


def wait_for_log_line(broker: BrokerProcess, text: str) -> str:
    """Return the first line of the log with this text."""
    deadline = time.monotonic() + 30
    while True:
        for line in broker.stderr.splitlines():
            if text in line:
                return line
        assert time.monotonic() < deadline, broker.stderr
        time.sleep(0.05)


@pytest.mark.slow
def test_a_connection_that_only_asked_for_versions_stays_open_if_anonymous_clients_are_allowed(
    idle_broker: BrokerProcess,
) -> None:
    with connect(idle_broker) as client:
        client.ask(ApiVersionsRequest(), 0)
        port = client.socket.getsockname()[1]
        if not idle_broker.settings["kafka.anonymous_user"]:
            assert client.is_closed()
            return
        line = wait_for_log_line(idle_broker, f"127.0.0.1:{port} -> ")
        assert "has logged in" in line
        assert client.ask(MetadataRequest(topics=[]), 1).brokers


def test_a_connection_without_a_request_is_closed(idle_broker: BrokerProcess) -> None:
    with connect(idle_broker) as client:
        assert client.is_closed()


@pytest.mark.slow
def test_a_connection_with_an_unfinished_login_is_closed(idle_broker: BrokerProcess) -> None:
    with connect(idle_broker) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        assert client.is_closed()
