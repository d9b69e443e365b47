"""Kafka's protocol over TLS: a listener of its own beside the one without."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from kafka.protocol.metadata import MetadataRequest
from kafka_socket import KafkaSocket

from amqpd.testing import BrokerProcess


def advertised_to(broker: BrokerProcess, listener: str, authority: trustme.CA) -> tuple[str, int]:
    """Return the address of the broker in a Metadata response of this listener."""
    assert broker.ready is not None
    host, port = broker.ready.listeners[listener]
    with KafkaSocket(f"{host}:{port}") as client:
        if listener == "kafkas":
            context = ssl.create_default_context()
            authority.configure_trust(context)
            client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        (found,) = client.ask(MetadataRequest(topics=[]), 1).brokers
    return found.host, found.port


@pytest.mark.parametrize(
    ("setting", "expected"), [({}, None), ({"kafka.tls.advertised": "tls.example.com:9093"}, ("tls.example.com", 9093))]
)
def test_clients_of_tls_do_not_get_the_address_that_is_advertised_without(
    tmp_path: Path, setting: dict[str, str], expected: tuple[str, int] | None
) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    certificate = tmp_path / "server.pem"
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    issued.private_key_and_cert_chain_pem.write_to_path(certificate)
    settings = {
        "kafka.port": 0,
        "kafka.host": "127.0.0.1",
        "kafka.advertised": "plain.example.com:9092",
        "kafka.tls.port": 0,
        "kafka.tls.certificate": certificate,
        "kafka.tls.key": certificate,
        **setting,
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        assert broker.ready is not None
        assert advertised_to(broker, "kafka", authority) == ("plain.example.com", 9092)
        assert advertised_to(broker, "kafkas", authority) == (expected or broker.ready.listeners["kafkas"])
