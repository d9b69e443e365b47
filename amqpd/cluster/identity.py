"""The certificate by which this node's inner port is known: of its own, made at its first start.

    <data_dir>/cluster-node.pem     key and certificate, mode 0600

Nobody signs it and no name in it counts: the node announces its fingerprint in the cluster's metadata, and who connects
takes that certificate and no other. It never expires: to have another, stop the node and remove the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import ssl
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

NAME: Final = "cluster-node.pem"
_BEGIN: Final = datetime(2020, 1, 1, tzinfo=UTC)  # whatever the clock of who looks at it says
_END: Final = datetime(9999, 12, 31, tzinfo=UTC)  # RFC 5280 4.1.2.5: there is no good date for its end


class Identity(NamedTuple):
    """context: of the inner port. fingerprint: SHA-256 of the certificate, in hexadecimal digits."""

    context: ssl.SSLContext
    fingerprint: str


def identity(data_dir: Path) -> Identity:
    """The one there is, or a new one. Reads and writes files, and imports `cryptography` for a new one (50 ms): a loop
    has it done by a thread. Raises: OSError; ssl.SSLError, which is one, for a file that is none of these.
    """
    path = data_dir / NAME
    if not path.exists():
        _write(path, _made())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody comes back to a session
    context.load_cert_chain(path)
    return Identity(context, fingerprint(ssl.PEM_cert_to_DER_cert(_certificate_of(path.read_text("ascii")))))


def fingerprint(certificate: bytes) -> str:
    """certificate: DER."""
    return hashlib.sha256(certificate).hexdigest()


def peer_context() -> ssl.SSLContext:
    """For connections to other nodes: the fingerprint is compared behind TLS's handshake, before anything is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _certificate_of(text: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + text.partition(begin)[2].partition(end)[0] + end


def _made() -> bytes:
    """Raises: OSError."""
    if find_spec("cryptography") is None:
        text = "the package cryptography, which makes the certificate, is missing: pip install 'amqpd[cluster]'"
        raise OSError(errno.ENOENT, text)
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "amqpd node")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + made.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(number)
    aside.rename(path)
