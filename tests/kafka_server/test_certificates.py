"""Logins with a TLS client certificate instead of SASL."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from kafka_socket import audit_records, until

from amqpd.testing import BrokerFailed, BrokerProcess

NOW = dt.datetime.now(dt.UTC)


class Authority:
    """Issues certificates, as PEM files with their keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / "ca.pem"
        usage = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment"), False)
        usage |= dict.fromkeys(("data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False)
        extensions = x509.BasicConstraints(True, None), x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True)
        self.ca.write_bytes(self._sign("ca", self._key, *extensions))

    def issue(self, name: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        path = self.folder / f"{name}.pem"
        path.write_bytes(self._sign(name, key, x509.SubjectAlternativeName([address])) + pem)
        return path

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> bytes:
        def distinguished(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        builder = x509.CertificateBuilder(distinguished("ca"), distinguished(name), key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for each in (*extensions, key_id, authority):  # Python 3.13 wants the authority's
            builder = builder.add_extension(each, isinstance(each, x509.BasicConstraints | x509.KeyUsage))
        builder = builder.not_valid_before(NOW - dt.timedelta(days=1)).not_valid_after(NOW + dt.timedelta(days=30))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with `kafka.tls.port`, which asks for certificates, and the user `ann` without a password."""
    certificate = authority.issue("server")
    settings = {
        "kafka.host": "127.0.0.1",
        "kafka.tls.port": 0,
        "kafka.tls.certificate": certificate,
        "kafka.tls.key": certificate,
        "kafka.tls.ca": authority.ca,
        "kafka.tls.verify_peer": True,
        "auth.ssl_cert_login_from": "common_name",
    }
    with BrokerProcess(tmp_path_factory.mktemp("tls-broker"), settings=settings) as broker:
        broker.api("PUT", "/api/users/ann", {"password_hash": "", "tags": ""})
        broker.api("PUT", "/api/permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"})
        yield broker
        assert "Traceback" not in broker.stderr


def admin(
    broker: BrokerProcess, authority: Authority, certificate: Path | None, **settings: object
) -> KafkaAdminClient:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if certificate is not None:
        context.load_cert_chain(certificate)
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafkas"]
    given = {"security_protocol": "SSL", "ssl_context": context, "bootstrap_timeout_ms": 3000, **settings}
    return KafkaAdminClient(bootstrap_servers=f"{host}:{port}", **given)


def user_of(broker: BrokerProcess, client: KafkaAdminClient) -> list[tuple[str, str]]:
    """Return user and mechanism of the connections, and close the client."""
    assert isinstance(client.list_topics(), list)
    found = broker.api("GET", "/api/connections")
    assert isinstance(found, list)
    client.close()
    until(lambda: not broker.api("GET", "/api/connections"))
    return sorted({(each["user"], each["auth_mechanism"]) for each in found})


def test_user_of_the_certificate_needs_no_password(tls_broker: BrokerProcess, authority: Authority) -> None:
    assert user_of(tls_broker, admin(tls_broker, authority, authority.issue("ann"))) == [("ann", "EXTERNAL")]
    records = until(lambda: [each for each in audit_records(tls_broker) if each["user"] == "ann"])
    assert records[0]["event"] == "user.authentication.success"
    assert records[0]["details"]["peer_cert_subject"] == "CN=ann"


def test_unknown_user_of_a_certificate_is_not_anonymous(tls_broker: BrokerProcess, authority: Authority) -> None:
    with pytest.raises(KafkaError):
        admin(tls_broker, authority, authority.issue("eve"))
    assert tls_broker.says("user 'eve': invalid credentials")


def test_client_without_a_certificate_is_anonymous(tls_broker: BrokerProcess, authority: Authority) -> None:
    assert user_of(tls_broker, admin(tls_broker, authority, None)) == [("guest", "")]


def test_sasl_takes_precedence_over_the_certificate(tls_broker: BrokerProcess, authority: Authority) -> None:
    login = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "guest",
        "sasl_plain_password": "guest",
    }
    client = admin(tls_broker, authority, authority.issue("ann"), **login)
    assert user_of(tls_broker, client) == [("guest", "SCRAM-SHA-256")]


def test_certificate_of_the_listener_is_listed(tls_broker: BrokerProcess) -> None:
    found = tls_broker.api("GET", "/api/amqpd/certificates")
    assert str(tls_broker.settings["kafka.tls.certificate"]) in {each["path"] for each in found}
    with pytest.raises(BrokerFailed, match='"protocol":"kafkas"'):
        tls_broker.api("GET", "/api/health/checks/certificate-expiration/100/years")
