"""Login with a TLS client certificate: SASL EXTERNAL over AMQP, and HTTPS without a password.

The names are those that RabbitMQ 3.10.8 with rabbitmq_auth_mechanism_ssl showed for these subjects.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pika.exceptions
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier
from pika.credentials import ExternalCredentials

from amqpd.auth.internal_backend import AuthenticationRefused
from amqpd.config.schema import AuthSettings
from amqpd.connection import peer_certificate
from amqpd.testing import BrokerProcess
from amqpd.tls import read_certificates

CN, ORG, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
Subject = list[list[x509.NameAttribute[str]]]
NOW = dt.datetime.now(dt.UTC)


def subject_of(*parts: tuple[ObjectIdentifier, str]) -> Subject:
    return [[x509.NameAttribute(kind, value)] for kind, value in parts]


KINDS = (
    (NameOID.COUNTRY_NAME, "DE"), (NameOID.DOMAIN_COMPONENT, "example"), (NameOID.USER_ID, "u1"),
    (NameOID.EMAIL_ADDRESS, "a@example.org"), (NameOID.SERIAL_NUMBER, "77"), (ObjectIdentifier("1.2.3.4.5"), "own"),
    (NameOID.BUSINESS_CATEGORY, "biz"), (NameOID.POSTAL_CODE, "123"), (NameOID.DN_QUALIFIER, "dnq"),
    (NameOID.PSEUDONYM, "ps"), (NameOID.GIVEN_NAME, "gn"), (NameOID.SURNAME, "sn"), (NameOID.TITLE, "t"),
    (NameOID.STREET_ADDRESS, "s"), (NameOID.STATE_OR_PROVINCE_NAME, "st"), (NameOID.LOCALITY_NAME, "l"),
    (NameOID.GENERATION_QUALIFIER, "g"), (NameOID.INITIALS, "i"), (CN, "k"),
)  # fmt: skip
ALL_KINDS_NAME = (
    "CN=k,INITIALS=i,GENERATIONQUALIFIER=g,L=l,ST=st,2.5.4.9=s,TITLE=t,SN=sn,GIVENNAME=gn,PSEUDONYM=ps,2.5.4.46=dnq,"
    "2.5.4.17=123,2.5.4.15=biz,1.2.3.4.5=own,SERIALNUMBER=77,EMAILADDRESS=a@example.org,UID=u1,DC=example,C=DE"
)
NAMES: dict[str, tuple[Subject, str, str]] = {
    "plain": (subject_of((ORG, "shop"), (CN, "anna")), "CN=anna,O=shop", "anna"),
    "escapes": (
        subject_of((ORG, '#a;b<c>"d\\e+f=g'), (CN, " anna, of the shop ")),
        'CN=\\ anna\\, of the shop\\ ,O=\\#a\\;b\\<c\\>\\"d\\\\e\\+f=g',
        " anna, of the shop ",
    ),
    "utf-8": (
        subject_of((ORG, "Müller"), (CN, "Jürgen Ωж")),
        "CN=J\\C3\\BCrgen \\CE\\A9\\D0\\B6,O=M\\C3\\BCller",
        "Jürgen Ωж",
    ),
    "two": (subject_of((CN, "first"), (CN, "second")), "CN=second,CN=first", "first,second"),
    "NUL": (subject_of((CN, "guest\0.evil")), "CN=guest\\00.evil", "guest\0.evil"),
    "in one part": (
        [*subject_of((ORG, "shop")), [x509.NameAttribute(CN, "x"), x509.NameAttribute(OU, "y")]],
        "CN=x+OU=y,O=shop",
        "x",
    ),
    "BMP": ([[x509.NameAttribute(CN, "bärbel", _ASN1Type.BMPString)]], "CN=b\\C3\\A4rbel", "bärbel"),
    "unprinted": (subject_of((CN, "a~b\x7f\n\tc")), "CN=a\\7Eb\\7F\\0A\\09c", "a~b\x7f\n\tc"),
    "odd ones": (subject_of((CN, "#"), (CN, " "), (CN, "a b")), "CN=a b,CN=\\ ,CN=\\#", "#, ,a b"),
    "kinds": (subject_of(*KINDS), ALL_KINDS_NAME, "k"),
}


class Authority:
    """A CA that signs any certificate, also a hostile one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(CN, "Test CA"), x509.NameAttribute(ORG, "Shop, Inc.")])
        builder = self.builder(self.name, self.key).add_extension(x509.BasicConstraints(True, None), True)
        usage = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment"), False)
        usage |= dict.fromkeys(("data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False)
        builder = builder.add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), True)
        (folder / "ca.pem").write_bytes(self.signed(builder))

    def builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(authority, False)  # Python 3.13 wants it
        return builder.not_valid_before(NOW - dt.timedelta(days=1)).not_valid_after(NOW + dt.timedelta(days=30))

    def signed(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, subject: Subject, *extensions: x509.ExtensionType) -> Path:
        """Return a PEM file with the certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self.builder(x509.Name([x509.RelativeDistinguishedName(part) for part in subject]), key)
        for each in extensions:
            builder = builder.add_extension(each, False)
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        path = self.folder / f"{key.private_numbers().private_value:x}.pem"
        path.write_bytes(self.signed(builder) + pem)
        return path

    def client(self, certificate: Path | None) -> ssl.SSLContext:
        """Return the TLS context of a client that presents this certificate."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def settings(authority: Authority) -> dict[str, object]:
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = authority.issue(subject_of((CN, "localhost")), x509.SubjectAlternativeName(names))
    tls_settings = {
        "port": 0,
        "certificate": certificate,
        "key": certificate,
        "ca": authority.folder / "ca.pem",
        "verify_peer": True,
    }
    all_settings = {
        f"{section}.tls.{name}": value for section in ("amqp", "http") for name, value in tls_settings.items()
    }
    return {**all_settings, "auth.mechanisms": "PLAIN,AMQPLAIN,EXTERNAL"}


@pytest.fixture(scope="module")
def broker(settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=settings) as process:
        add_user(process, "CN=anna,O=shop", "management")
        yield process
        assert "Traceback" not in process.stderr, process.stderr


def add_user(broker: BrokerProcess, name: str, tags: str = "", allowed: bool = True) -> None:
    """Add a user without a password: only a certificate lets it log in."""
    broker.api("PUT", f"/api/users/{quote(name, safe='')}", {"password_hash": "", "tags": tags})
    if allowed:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        broker.api("PUT", f"/api/permissions/%2F/{quote(name, safe='')}", everything)


def port(broker: BrokerProcess, protocol: str) -> int:
    assert broker.ready is not None
    return broker.ready.listeners[protocol][1]


def connect(broker: BrokerProcess, context: ssl.SSLContext) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            port(broker, "amqps"),
            credentials=ExternalCredentials(),
            ssl_options=pika.SSLOptions(context, "localhost"),
            socket_timeout=30,
            blocked_connection_timeout=30,
        )
    )


def refused_login(broker: BrokerProcess, context: ssl.SSLContext) -> str:
    with pytest.raises(pika.exceptions.AMQPConnectionError) as failed:
        connect(broker, context)
    return repr(failed.value)


def mechanisms(sock: socket.socket) -> str:
    """Return the mechanisms that connection.start offers."""
    sock.sendall(b"AMQP\0\0\x09\x01")
    received = b""
    while len(received) < 7 or len(received) < 8 + int.from_bytes(received[3:7], "big"):
        received += sock.recv(4096)
    table = int.from_bytes(received[13:17], "big")
    start = 17 + table
    size = int.from_bytes(received[start : start + 4], "big")
    return received[start + 4 : start + 4 + size].decode()


def offered_mechanisms(broker: BrokerProcess, context: ssl.SSLContext | None) -> str:
    at = port(broker, "amqp" if context is None else "amqps")
    with socket.create_connection(("127.0.0.1", at), timeout=30) as plain:
        if context is None:
            return mechanisms(plain)
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            return mechanisms(sock)


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", NAMES)
def test_subject_is_formatted_as_by_rabbitmq(authority: Authority, case: str) -> None:
    subject, distinguished, common = NAMES[case]
    (certificate,) = read_certificates(authority.issue(subject))
    assert peer_certificate.tls_info(certificate)["peer_cert_subject"] == distinguished
    assert peer_certificate.tls_info(certificate)["peer_cert_issuer"] == "O=Shop\\, Inc.,CN=Test CA"
    assert peer_certificate.external_user_name(certificate, AuthSettings()) == distinguished
    assert peer_certificate.external_user_name(certificate, AuthSettings(ssl_cert_login_from="common_name")) == common


def test_user_name_from_alternative_names(authority: Authority) -> None:
    names: list[x509.GeneralName] = [
        x509.DNSName("one.example"),
        x509.DNSName("two.example"),
        x509.RFC822Name("m@example.org"),
        x509.UniformResourceIdentifier("spiffe://a/b"),
        x509.IPAddress(ipaddress.ip_address("fd00::9")),
    ]
    (certificate,) = read_certificates(authority.issue(subject_of((CN, "s")), x509.SubjectAlternativeName(names)))

    def user_name(kind: Any, index: int = 0) -> str:
        auth = AuthSettings(
            ssl_cert_login_from="subject_alternative_name",
            ssl_cert_login_san_type=kind,
            ssl_cert_login_san_index=index,
        )
        return peer_certificate.external_user_name(certificate, auth)

    assert [user_name("dns"), user_name("dns", 1), user_name("email"), user_name("uri")] == [
        "one.example", "two.example", "m@example.org", "spiffe://a/b",
    ]  # fmt: skip
    assert user_name("ip") == "fd00::9"  # unlike RabbitMQ, whose user name would be the sixteen bytes
    with pytest.raises(AuthenticationRefused, match="no name found"):
        user_name("dns", 2)
    # OpenSSL reports `<invalid>` for an address that has neither 4 nor 16 bytes.
    auth = AuthSettings(ssl_cert_login_from="subject_alternative_name", ssl_cert_login_san_type="ip")
    with pytest.raises(AuthenticationRefused, match="invalid IP address: '<invalid>'"):
        peer_certificate.external_user_name({"subject": (), "subjectAltName": (("IP Address", "<invalid>"),)}, auth)


@pytest.mark.parametrize("login_from", ["distinguished_name", "common_name", "subject_alternative_name"])
def test_certificate_without_the_name_is_refused(authority: Authority, login_from: Any) -> None:
    (certificate,) = read_certificates(
        authority.issue([] if login_from == "distinguished_name" else subject_of((ORG, "shop")))
    )
    with pytest.raises(AuthenticationRefused, match="no name found"):
        peer_certificate.external_user_name(certificate, AuthSettings(ssl_cert_login_from=login_from))
    with pytest.raises(AuthenticationRefused, match="connection peer presented no TLS"):
        peer_certificate.external_user_name({}, AuthSettings(ssl_cert_login_from=login_from))


@pytest.mark.parametrize(
    ("version", "suite", "words"),
    [
        ("TLSv1.3", "TLS_AES_256_GCM_SHA384", "tlsv1.3 any aes_256_gcm aead"),
        ("TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256", "tlsv1.3 any chacha20_poly1305 aead"),
        ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384", "tlsv1.2 ecdhe_ecdsa aes_256_gcm aead"),
        ("TLSv1.2", "ECDHE-RSA-CHACHA20-POLY1305", "tlsv1.2 ecdhe_rsa chacha20_poly1305 aead"),
        ("TLSv1.2", "ECDHE-ECDSA-AES128-CCM8", "tlsv1.2 ecdhe_ecdsa aes_128_ccm_8 aead"),
        ("TLSv1.2", "DHE-RSA-AES128-SHA256", "tlsv1.2 dhe_rsa aes_128_cbc sha256"),
        ("TLSv1.2", "AES256-SHA", "tlsv1.2 rsa aes_256_cbc sha"),
    ],
)
def test_cipher_suite_names(version: str, suite: str, words: str) -> None:
    assert list(peer_certificate.ciphers(version, suite).values()) == words.split()
    assert peer_certificate.ciphers("", "") == {}


# -- AMQP -------------------------------------------------------------------------------------------------------------


def test_login_with_certificate(broker: BrokerProcess, authority: Authority) -> None:
    """Connection lists, events and the audit log name the user."""
    anna_tls = authority.client(authority.issue(subject_of((ORG, "shop"), (CN, "anna"))))
    connection = connect(broker, anna_tls)
    channel = connection.channel()
    channel.queue_declare("annas", exclusive=True)
    channel.basic_publish("", "annas", b"hers", pika.BasicProperties(user_id="CN=anna,O=shop"))
    assert channel.basic_get("annas", auto_ack=True)[2] == b"hers"
    (listed,) = broker.api("GET", "/api/connections")
    shown_fields = {key: value for key, value in listed.items() if key.startswith(("peer_cert", "ssl", "user", "auth"))}
    validity = shown_fields.pop("peer_cert_validity")
    assert validity.startswith((NOW - dt.timedelta(days=1)).strftime("%Y-%m-%dT"))
    assert shown_fields == {
        "user": "CN=anna,O=shop",
        "user_who_performed_action": "CN=anna,O=shop",
        "auth_mechanism": "EXTERNAL",
        "ssl": True,
        "ssl_protocol": "tlsv1.3",
        "ssl_key_exchange": "any",
        "ssl_cipher": "aes_256_gcm",
        "ssl_hash": "aead",
        "peer_cert_subject": "CN=anna,O=shop",
        "peer_cert_issuer": "O=Shop\\, Inc.,CN=Test CA",
    }
    columns = ("user", "ssl", "ssl_protocol", "ssl_cipher", "peer_cert_subject")
    table = broker.ctl("list_connections", "-q", *columns).stdout.splitlines()[1]
    assert table.split("\t") == ["CN=anna,O=shop", "true", "tlsv1.3", "aes_256_gcm", "CN=anna,O=shop"]
    records = broker.api("GET", "/api/audit?where=" + quote("event = 'user.authentication.success'"))["records"]
    details = next(each["details"] for each in records if each.get("user") == "CN=anna,O=shop")
    assert details["auth_mechanism"] == "EXTERNAL"
    assert details["peer_cert_subject"] == "CN=anna,O=shop"
    assert details["peer_cert_validity"] == validity
    connection.close()


def test_unknown_certificate_is_refused(broker: BrokerProcess, authority: Authority) -> None:
    """RabbitMQ: the client gets 403 without a reason; the reason is in the log."""
    refused = "Login was refused using authentication mechanism EXTERNAL. For details see the broker logfile."
    assert refused in refused_login(broker, authority.client(authority.issue(subject_of((CN, "nobody")))))
    assert broker.says("user 'CN=nobody': invalid credentials")
    assert refused in refused_login(broker, authority.client(None))
    assert broker.says("connection peer presented no TLS (x.509) certificate")
    assert refused in refused_login(broker, authority.client(authority.issue([])))
    assert broker.says("no name found")


def test_permissions_and_deletion_apply_to_certificate_user(broker: BrokerProcess, authority: Authority) -> None:
    carl_tls = authority.client(authority.issue(subject_of((CN, "carl"))))
    add_user(broker, "CN=carl", allowed=False)
    assert "access to vhost '/' refused for user 'CN=carl'" in refused_login(broker, carl_tls).replace("\\", "")
    add_user(broker, "CN=carl")
    connection = connect(broker, carl_tls)
    broker.api("DELETE", "/api/users/CN%3Dcarl")
    with pytest.raises(pika.exceptions.AMQPError):
        connection.process_data_events(30)
    assert "invalid credentials" not in refused_login(broker, carl_tls)


def test_client_with_certificate_may_use_password(broker: BrokerProcess, authority: Authority) -> None:
    """A client with a certificate may log in with a password. A user without a password is refused even with an empty
    one.
    """
    context = authority.client(authority.issue(subject_of((CN, "nobody"))))
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port(broker, "amqps"), ssl_options=pika.SSLOptions(context, "localhost")
    )
    pika.BlockingConnection(parameters).close()
    for password in ("", "CN=anna,O=shop"):
        parameters.credentials = pika.PlainCredentials("CN=anna,O=shop", password)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(parameters)


def test_external_is_offered_where_certificates_are_verified(broker: BrokerProcess, authority: Authority) -> None:
    """As RabbitMQ, EXTERNAL is offered where certificates are verified, also to a client without one; nowhere else."""
    for certificate in (None, authority.issue(subject_of((CN, "anybody")))):
        assert offered_mechanisms(broker, authority.client(certificate)) == "PLAIN AMQPLAIN EXTERNAL"
    assert offered_mechanisms(broker, None) == "PLAIN AMQPLAIN"


def test_external_is_disabled_by_default(settings: dict[str, object], authority: Authority, tmp_path: Path) -> None:
    """A broker that already verifies certificates accepts none as a login after an upgrade, over HTTPS neither."""
    before = {name: value for name, value in settings.items() if name != "auth.mechanisms"}
    guest = authority.client(authority.issue(subject_of((CN, "guest"))))
    with BrokerProcess(tmp_path, settings={**before, "auth.ssl_cert_login_from": "common_name"}) as broker:
        assert offered_mechanisms(broker, guest) == "PLAIN AMQPLAIN"
        with pytest.raises(pika.exceptions.AuthenticationError):  # pika sees that EXTERNAL is not offered_mechanisms
            connect(broker, guest)
        assert https(broker, "/api/whoami", guest)[0] == 401


@pytest.mark.slow
def test_external_on_plain_port_closes_socket(broker: BrokerProcess) -> None:
    """On the plain port EXTERNAL is an unknown mechanism: no reply, then the socket is closed."""
    with socket.create_connection(("127.0.0.1", port(broker, "amqp")), timeout=30) as sock:
        assert "EXTERNAL" not in mechanisms(sock)
        payload = b"\x00\x0a\x00\x0b" + b"\0\0\0\0" + b"\x08EXTERNAL" + b"\0\0\0\0" + b"\x05en_US"
        sock.sendall(b"\x01\0\0" + len(payload).to_bytes(4, "big") + payload + b"\xce")
        assert sock.recv(100) == b""
    assert broker.says("unknown mechanism 'EXTERNAL'")


@pytest.mark.slow
def test_login_by_common_name(settings: dict[str, object], authority: Authority, tmp_path: Path) -> None:
    """Names are compared as a whole, including a NUL and the text after it, and a second common name."""
    with BrokerProcess(tmp_path, settings={**settings, "auth.ssl_cert_login_from": "common_name"}) as broker:
        connect(broker, authority.client(authority.issue(subject_of((ORG, "shop"), (CN, "guest"))))).close()
        for subject in (
            subject_of((CN, "guest\0.evil")),
            subject_of((CN, "guest"), (CN, "x")),
            subject_of((CN, "Guest")),
        ):
            assert "Login was refused" in refused_login(broker, authority.client(authority.issue(subject)))
        add_user(broker, "Jürgen Ωж")
        connect(broker, authority.client(authority.issue(NAMES["utf-8"][0]))).close()
        assert "Traceback" not in broker.stderr, broker.stderr


def test_malformed_or_oversized_certificate_is_refused(broker: BrokerProcess, authority: Authority) -> None:
    """A signed certificate with an undecodable alternative name, and a subject of twenty thousand bytes."""
    bad = b"\x30\x06\x82\x04\xff\xfe\x00\xc3"
    san = x509.UnrecognizedExtension(ObjectIdentifier("2.5.29.17"), bad)
    for certificate in (
        authority.issue(subject_of((CN, "h")), san),
        authority.issue(subject_of(*[(OU, "x" * 60)] * 300, (CN, "long"))),
    ):
        context = authority.client(certificate)
        with pytest.raises((pika.exceptions.AMQPError, OSError)):
            connect(broker, context)
        with pytest.raises((AssertionError, OSError)):
            assert https(broker, "/api/whoami", context)[0] == 200
    assert broker.says("a TLS handshake failed: UnicodeDecodeError")
    assert broker.says("the name in the certificate is too long for a user")
    connect(broker, authority.client(authority.issue(subject_of((ORG, "shop"), (CN, "anna"))))).close()
    assert "Traceback" not in broker.stderr, broker.stderr


# -- HTTPS ------------------------------------------------------------------------------------------------------------


def https(
    broker: BrokerProcess, path: str, context: ssl.SSLContext, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    request = urllib.request.Request(f"https://localhost:{port(broker, 'https')}{path}", headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}


@pytest.mark.slow
def test_admin_api_login_with_certificate(broker: BrokerProcess, authority: Authority) -> None:
    anna_tls = authority.client(authority.issue(subject_of((ORG, "shop"), (CN, "anna"))))
    status, whoami = https(broker, "/api/whoami", anna_tls)
    assert (status, whoami["name"], whoami["tags"]) == (200, "CN=anna,O=shop", ["management"])
    assert https(broker, "/api/users", anna_tls)[0] == 401  # not an administrator
    # Basic credentials take precedence over the certificate.
    assert https(broker, "/api/whoami", anna_tls, basic("guest", "guest"))[1]["name"] == "guest"
    assert https(broker, "/api/whoami", anna_tls, basic("guest", "wrong"))[0] == 401
    unknown_tls = authority.client(authority.issue(subject_of((CN, "nobody"))))
    assert https(broker, "/api/whoami", unknown_tls)[0] == 401
    assert https(broker, "/api/whoami", authority.client(None))[0] == 401
    records = broker.api("GET", "/api/audit?where=" + quote("front_end = 'http' AND user = 'CN=anna,O=shop'"))
    assert records["records"][0]["details"]["peer_cert_subject"] == "CN=anna,O=shop"
