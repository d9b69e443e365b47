"""TLS and SASL: amqpd and aiokafka with the same settings, and refused settings."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiokafka.admin import AIOKafkaAdminClient
from cryptography.hazmat.primitives import serialization
from kafka_logs import Logs, Producer, append, create_topic, fetch_all, on_disk, take
from kafka_rig import Kafka, Secure, missing, need

from amqpd.kafka.config import InvalidKafkaConfig, KafkaAccess
from amqpd.kafka.connection import KafkaIncompatible, open_connection
from amqpd.kafka.producer import KafkaRefused, init_producer_id

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "s3cret-of-amqpd"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kafka, Path]]:
    """A broker with a listener SECURE, and the file with its CA certificate."""
    need(missing())
    directory = tmp_path_factory.mktemp("secure")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    store, signed_by = directory / "store.pem", directory / "ca.pem"
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # the only format that Java accepts
    store.write_bytes(key + b"".join(each.bytes() for each in certificate.cert_chain_pems))
    authority.cert_pem.write_to_path(str(signed_by))
    settings = {
        "listener.name.secure.connections.max.reauth.ms": "10000"
    }  # the client logs in again after 8.5 s of these
    with Kafka(directory / "kafka", settings=settings, secure=Secure(store, {"amqpd": PASSWORD})) as kafka:
        yield kafka, signed_by


def access_to(secure: tuple[Kafka, Path], **instead: Any) -> KafkaAccess:
    kafka, signed_by = secure
    settings: dict[str, Any] = {
        "kafka": (f"127.0.0.1:{kafka.brokers[1].secure_port}",),
        "tls": True,
        "ca_file": str(signed_by),
        "sasl_mechanism": "PLAIN",
        "sasl_username": "amqpd",
        "sasl_password": PASSWORD,
    }
    return KafkaAccess(**{**settings, **instead})


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_publish_with_each_mechanism(
    secure: tuple[Kafka, Path], mechanism: str, topic: str, tmp_path: Path
) -> None:
    access = access_to(secure, sasl_mechanism=mechanism)
    create_topic(secure[0].bootstrap, topic)
    logs = Logs(tmp_path)
    log = logs.new("tasks", await init_producer_id(access, topic))
    append(log, b"a", b"b")
    logs.turn()
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        producer.offer(partition, take(log))
        await producer.until(partition)
        assert partition.high_watermark == 2
    assert [batch[16:] for batch in await fetch_all(access, topic, 0)] == [
        batch[16:] for batch in on_disk(log.directory)
    ]


async def test_connection_is_replaced_before_its_login_expires(
    secure: tuple[Kafka, Path], topic: str, tmp_path: Path
) -> None:
    """Kafka closes connections whose login is too old, so the client opens a new one earlier."""
    access = access_to(secure, sasl_mechanism="SCRAM-SHA-512")
    create_topic(secure[0].bootstrap, topic)
    logs = Logs(tmp_path)
    log = logs.new("tasks", await init_producer_id(access, topic))
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        seen: set[int] = set()
        held = []
        while len(seen) < 2:
            append(log, b"again")
            logs.turn()
            producer.offer(partition, take(log))
            await producer.until(partition)
            assert producer.ended == producer.refused == []
            held.append(producer.kafka._connections.get(int(partition.leader)))  # held, so that no id is used twice
            seen |= {id(each) for each in held if each is not None}
            await asyncio.sleep(0.1)
        assert partition.high_watermark == log.next_offset
    assert [batch[16:] for batch in await fetch_all(access, topic, 0)] == [
        batch[16:] for batch in on_disk(log.directory)
    ]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_connects_with_the_same_settings(secure: tuple[Kafka, Path], mechanism: str) -> None:
    admin = AIOKafkaAdminClient(**access_to(secure, sasl_mechanism=mechanism).aiokafka_options())
    await admin.start()
    try:
        assert len((await admin.describe_cluster())["brokers"]) == 1
    finally:
        await admin.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_wrong_password_is_refused(secure: tuple[Kafka, Path], mechanism: str) -> None:
    access = access_to(secure, sasl_mechanism=mechanism, sasl_password="wrong")
    host, port = access.addresses[0]
    with pytest.raises(KafkaIncompatible, match="SASL_AUTHENTICATION_FAILED"):
        await open_connection(access, host, port)
    with pytest.raises(KafkaRefused, match="SASL_AUTHENTICATION_FAILED"):
        await init_producer_id(access, "slot")
    assert "wrong" not in repr(access)


async def test_certificate_of_an_unknown_ca_is_refused(secure: tuple[Kafka, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    access = access_to(secure, ca_file=str(other))
    with pytest.raises(ssl.SSLCertVerificationError):
        await open_connection(access, *access.addresses[0])


async def test_sasl_on_a_plain_listener_is_refused(secure: tuple[Kafka, Path]) -> None:
    kafka, _ = secure
    plain = KafkaAccess((kafka.bootstrap,), sasl_mechanism="SCRAM-SHA-512", sasl_username="amqpd", sasl_password="x")
    with pytest.raises(KafkaIncompatible, match="ILLEGAL_SASL_STATE"):
        await open_connection(plain, *plain.addresses[0])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kafka": ()}, "no Kafka broker"),
        ({"kafka": ("host",)}, "'host' is not a broker address"),
        ({"kafka": ("host:0",)}, "not a broker address"),
        ({"kafka": ("host:99999",)}, "not a broker address"),
        ({"sasl_mechanism": "GSSAPI"}, "unknown SASL mechanism GSSAPI; expected one of PLAIN"),
        ({"sasl_mechanism": "PLAIN"}, "needs a user name"),
        ({"ca_file": "x"}, "TLS is not enabled"),
        ({"tls": True, "key_file": "x"}, "no certificate"),
    ],
)
def test_inconsistent_settings_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidKafkaConfig, match=why):
        KafkaAccess(**{"kafka": ("[::1]:9092",), **settings})


def test_missing_certificate_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidKafkaConfig, match=r"gone\.pem"):
        KafkaAccess(("a:1",), tls=True, ca_file=str(tmp_path / "gone.pem")).ssl_context()
