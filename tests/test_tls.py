"""TLS contexts of listeners: offered cipher suites, and the allowed length of a client's chain."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtensionOID, NameOID

from amqpd.config.schema import TlsSettings
from amqpd.tls import read_certificates, renew, server_context

DAY = timedelta(days=1)
YESTERDAY, TOMORROW = datetime.now(UTC) - DAY, datetime.now(UTC) + DAY
OLDER = "ECDHE-ECDSA-AES256-GCM-SHA384"
NEWER = "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"
FILES = {"certificate": "cert", "key": "key", "ca": "ca"}
CHAINS = [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True)]
MakeSettings = Callable[..., TlsSettings]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def make_settings(authority: trustme.CA, tmp_path: Path) -> MakeSettings:
    issued = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(tmp_path / "cert.pem", append=number > 0)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def make(**more: object) -> TlsSettings:
        files = {name: tmp_path / f"{path}.pem" for name, path in FILES.items()}
        return TlsSettings(**files, **more)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        ({"not_after": YESTERDAY}, "expired on"),
        ({"not_before": TOMORROW, "not_after": TOMORROW + DAY}, "is not valid before"),
        ({}, ""),
    ],
)
def test_certificate_that_clients_refuse_is_logged_at_start_and_renewal(
    make_settings: MakeSettings,
    authority: trustme.CA,
    caplog: pytest.LogCaptureFixture,
    dates: dict[str, datetime],
    words: str,
) -> None:
    settings = make_settings()
    context = server_context(settings, "amqp.tls")
    assert not caplog.messages
    assert settings.certificate is not None
    assert settings.key is not None
    issued = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA, **dates)
    issued.cert_chain_pems[0].write_to_path(settings.certificate)
    issued.private_key_pem.write_to_path(settings.key)
    renew(context, settings, "amqp.tls")
    assert [words in each for each in caplog.messages] == ([True] if words else [])


@pytest.mark.parametrize("case", ["trusted", "odd name"])
def test_certificate_that_only_openssl_can_read_is_used(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """The check of its dates must not prevent a start."""
    settings = make_settings()
    assert settings.certificate is not None
    assert settings.key is not None
    if case == "trusted":  # as `openssl x509 -trustout` writes it
        pem = settings.certificate.read_bytes().replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE")
        settings.certificate.write_bytes(pem)
    else:
        settings.certificate.write_bytes(with_odd_name(settings.key))
    server_context(settings, "amqp.tls")
    assert ["dates in" in each for each in caplog.messages] == [True]
    with pytest.raises(OSError, match="decod"):
        read_certificates(settings.certificate)


def with_odd_name(key_path: Path) -> bytes:
    """Return a certificate with an alternative name that is not ASCII, which no standard permits."""
    key: Any = load_pem_private_key(key_path.read_bytes(), None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, YESTERDAY, TOMORROW)
    odd = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x30\x03\x82\x01\xff")
    return builder.add_extension(odd, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)


def client(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def handshake(
    server: ssl.SSLContext, client_context: ssl.SSLContext, down: ssl.MemoryBIO | None = None
) -> tuple[str, str]:
    """Do a handshake in memory; return version and cipher suite. Raises ssl.SSLError of the refusing side.

    Args:
        down: Carries the server's bytes to the client.
    """
    up, down = ssl.MemoryBIO(), down or ssl.MemoryBIO()
    client_side = client_context.wrap_bio(down, up, server_hostname="localhost")
    server_side = server.wrap_bio(up, down, server_side=True)
    unfinished = [client_side, server_side]
    for _ in range(20):
        for each in list(unfinished):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(each)
        if not unfinished:
            return str(server_side.version()), server_side.cipher()[0]  # type: ignore[index]
    raise AssertionError("no end")


def test_configured_cipher_suite_is_used(make_settings: MakeSettings, authority: trustme.CA) -> None:
    assert handshake(server_context(make_settings(), "amqp.tls"), client(authority))[0] == "TLSv1.3"
    server = server_context(make_settings(ciphers=(OLDER,)), "amqp.tls")
    assert handshake(server, client(authority)) == ("TLSv1.2", OLDER), (
        "a list without suites of TLS 1.3 disables TLS 1.3"
    )
    other = client(authority)
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError):
        handshake(server, other)


def test_only_tls_1_3_suites_refuse_tls_1_2(make_settings: MakeSettings, authority: trustme.CA) -> None:
    server = server_context(make_settings(ciphers=(*NEWER, "TLS_AES_128_CCM_SHA256")), "amqp.tls")
    assert handshake(server, client(authority))[0] == "TLSv1.3"
    older = client(authority)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server, older)


def test_server_sends_nothing_after_the_handshake(make_settings: MakeSettings, authority: trustme.CA) -> None:
    down = ssl.MemoryBIO()
    assert handshake(server_context(make_settings(), "amqp.tls"), client(authority), down)[0] == "TLSv1.3"
    assert down.pending == 0, "a session ticket comes before the first frame: the Java client with NIO cannot read on"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("NO-SUCH-SUITE",), "OpenSSL knows none of NO-SUCH-SUITE"),
        ((OLDER, "NO-SUCH-SUITE"), "OpenSSL does not offer NO-SUCH-SUITE"),
        ((OLDER, NEWER[0]), "list all suites of TLS 1.3"),
        (("ALL",), "OpenSSL does not offer ALL"),
    ],
)
def test_unusable_cipher_list_is_refused(make_settings: MakeSettings, names: tuple[str, ...], why: str) -> None:
    with pytest.raises(OSError, match=f"amqp.tls.ciphers: {why}"):
        server_context(make_settings(ciphers=names), "amqp.tls")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("intermediate_count", "depth", "is_accepted"), CHAINS)
def test_depth_limits_client_chain(
    make_settings: MakeSettings,
    authority: trustme.CA,
    version: ssl.TLSVersion,
    intermediate_count: int,
    depth: int,
    is_accepted: bool,
) -> None:
    signer = authority
    for _ in range(intermediate_count):
        signer = signer.create_child_ca(key_type=trustme.KeyType.ECDSA)
    client_context = client(authority)
    client_context.maximum_version = version
    signer.issue_cert("anna", key_type=trustme.KeyType.ECDSA).configure_cert(client_context)
    server = server_context(make_settings(verify_peer=True, fail_if_no_peer_certificate=True, depth=depth), "amqp.tls")
    if is_accepted:
        handshake(server, client_context)
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match=f"{intermediate_count} certificates are between"):
            handshake(server, client_context)


def test_client_without_certificate_is_accepted_at_depth_0(make_settings: MakeSettings, authority: trustme.CA) -> None:
    handshake(server_context(make_settings(verify_peer=True, depth=0), "amqp.tls"), client(authority))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_refused_client_gets_an_alert_and_the_log_has_the_reason(
    make_settings: MakeSettings, authority: trustme.CA, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_context(make_settings(verify_peer=True), "amqp.tls")
    client_context = client(authority)
    client_context.maximum_version = version
    trustme.CA().issue_cert("anna").configure_cert(client_context)
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=server)
    async with listener:
        with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
            await _connect_and_read(listener.sockets[0].getsockname()[1], client_context)
    assert "a TLS handshake with amqp.tls failed: [SSL: CERTIFICATE_VERIFY_FAILED]" in caplog.text


async def _connect_and_read(port: int, context: ssl.SSLContext) -> None:
    """Do a handshake and read. With TLS 1.3 the client's part of it ends before the server has its certificate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        await reader.read()
    finally:
        writer.close()


async def test_client_without_tls_is_disconnected_at_once(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    listener = await asyncio.start_server(
        lambda reader, writer: None, "127.0.0.1", 0, ssl=server_context(make_settings(), "amqp.tls")
    )
    async with listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.sockets[0].getsockname()[1])
        writer.write(b"AMQP\x00\x00\x09\x01")
        assert await asyncio.wait_for(reader.read(), 30) == b""  # a handshake may take 60 s
        writer.close()
    assert "a TLS handshake with amqp.tls failed: [SSL: WRONG_VERSION_NUMBER]" in caplog.text


def test_unusable_certificate_is_named(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = replace(make_settings(), ca=None)
    (tmp_path / "cert.pem").write_text("")
    with pytest.raises(OSError, match=r"^amqp\.tls: \S+/cert\.pem, \S+/key\.pem: \[SSL\] PEM lib"):
        server_context(settings, "amqp.tls")
