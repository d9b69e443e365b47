"""Contexts of TLS listeners: the cipher suites that they offer, and how long a client's chain may be."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from amqpd.config import TlsSettings
from amqpd.tls import server_context

OLDER = "ECDHE-ECDSA-AES256-GCM-SHA384"
NEWER = "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"
FILES = {"certificate": "cert", "key": "key", "ca": "ca"}
CHAINS = [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True)]
Make = Callable[..., TlsSettings]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def make(authority: trustme.CA, tmp_path: Path) -> Make:
    issued = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(tmp_path / "cert.pem", append=number > 0)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def made(**more: object) -> TlsSettings:
        files = {name: tmp_path / f"{path}.pem" for name, path in FILES.items()}
        return TlsSettings(**files, **more)  # type: ignore[arg-type]

    return made


def client(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def shake(server: ssl.SSLContext, asking: ssl.SSLContext) -> tuple[str, str]:
    """Shake hands in memory. Returns version and cipher suite. Raises: ssl.SSLError, of the side that refuses."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = asking.wrap_bio(down, up, server_hostname="localhost")
    other = server.wrap_bio(up, down, server_side=True)
    left = [one, other]
    for _ in range(20):
        for each in list(left):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(each)
        if not left:
            return str(other.version()), other.cipher()[0]  # type: ignore[index]
    raise AssertionError("no end")


def test_the_suite_that_is_named_is_spoken(make: Make, authority: trustme.CA) -> None:
    assert shake(server_context(make(), "amqp.tls"), client(authority))[0] == "TLSv1.3"
    server = server_context(make(ciphers=(OLDER,)), "amqp.tls")
    assert shake(server, client(authority)) == ("TLSv1.2", OLDER), "a list without suites of TLS 1.3 has no TLS 1.3"
    other = client(authority)
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError):
        shake(server, other)


def test_suites_of_tls_1_3_alone(make: Make, authority: trustme.CA) -> None:
    server = server_context(make(ciphers=(*NEWER, "TLS_AES_128_CCM_SHA256")), "amqp.tls")
    assert shake(server, client(authority))[0] == "TLSv1.3"
    older = client(authority)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(server, older)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("NO-SUCH-SUITE",), "OpenSSL knows none of NO-SUCH-SUITE"),
        ((OLDER, "NO-SUCH-SUITE"), "OpenSSL does not offer NO-SUCH-SUITE"),
        ((OLDER, NEWER[0]), "list all suites of TLS 1.3"),
        (("ALL",), "OpenSSL does not offer ALL"),
    ],
)
def test_a_list_that_cannot_be_obeyed_is_refused(make: Make, names: tuple[str, ...], why: str) -> None:
    with pytest.raises(OSError, match=f"amqp.tls.ciphers: {why}"):
        server_context(make(ciphers=names), "amqp.tls")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("between", "depth", "fits"), CHAINS)
def test_how_long_a_clients_chain_may_be(
    make: Make, authority: trustme.CA, version: ssl.TLSVersion, between: int, depth: int, fits: bool
) -> None:
    signer = authority
    for _ in range(between):
        signer = signer.create_child_ca(key_type=trustme.KeyType.ECDSA)
    asking = client(authority)
    asking.maximum_version = version
    signer.issue_cert("anna", key_type=trustme.KeyType.ECDSA).configure_cert(asking)
    server = server_context(make(verify_peer=True, fail_if_no_peer_certificate=True, depth=depth), "amqp.tls")
    if fits:
        shake(server, asking)
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match=f"{between} certificates are between"):
            shake(server, asking)


def test_a_client_without_a_certificate_has_no_chain(make: Make, authority: trustme.CA) -> None:
    shake(server_context(make(verify_peer=True, depth=0), "amqp.tls"), client(authority))
