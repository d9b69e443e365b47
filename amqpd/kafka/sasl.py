"""Client side of SASL: PLAIN, and SCRAM with SHA-256 or SHA-512.

`make_mechanism` returns the client side. `first()` is the first message, `reply(data)` the answer to a server's
message (None: nothing more to send). `done` says that the exchange is complete; with SCRAM the server has proved
then that it knows the password. PLAIN sends the password itself, so use it only inside TLS.

User name and password are used unchanged in UTF-8, without SASLprep, which Kafka's own client lacks, too.

Source: RFC 4616, RFC 5802, RFC 7677.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from binascii import Error as BadBase64
from typing import Final

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS_MIN: Final = 4096
_ITERATIONS_MAX: Final = 1_000_000  # about 0.4 s of CPU; a larger number is an attack


class NotProved(Exception):
    """The server's messages are wrong, or do not prove that it knows the password."""


class PlainMechanism:
    """PLAIN: the password in clear text."""

    done = True

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise ValueError("PLAIN cannot carry a NUL")
        self._message = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        return self._message

    def reply(self, data: bytes) -> bytes | None:
        return None


class Scram:
    """SCRAM: both sides prove that they know the password, without sending it.

    Args:
        nonce: The client's nonce, for tests.

    Attributes:
        done: No more messages are expected.
    """

    def __init__(self, digest: str, username: str, password: str, nonce: str | None = None) -> None:
        self._digest = digest
        self._password = password.encode()
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(24)).decode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._server_signature = b""
        self.done = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def reply(self, data: bytes) -> bytes | None:
        """Return the answer to a server's message. Raises NotProved."""
        fields = _fields(data)
        if "e" in fields:
            raise NotProved(f"the server says: {fields['e']}")
        if self._server_signature:
            signature = _base64(fields.get("v", ""))
            if not hmac.compare_digest(signature, self._server_signature):
                raise NotProved("the server does not know the password")
            self.done = True
            return None
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        salt = _base64(fields.get("s", ""))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or not salt:
            raise NotProved("the server's first message is no SCRAM message, or answers another client")
        if not (iterations.isascii() and iterations.isdigit()) or len(iterations) > 9:
            raise NotProved("the server sends no number of iterations")
        if not _ITERATIONS_MIN <= int(iterations) <= _ITERATIONS_MAX:
            raise NotProved(f"{iterations} iterations: only {_ITERATIONS_MIN} to {_ITERATIONS_MAX} are accepted")
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        final = f"c=biws,r={nonce}"
        signed = f"{self._bare},{data.decode()},{final}".encode()
        signature = self._hmac(hashlib.new(self._digest, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._digest)


def make_mechanism(mechanism: str, username: str, password: str) -> PlainMechanism | Scram:
    """Return the client side of `mechanism`, one of MECHANISMS. Raises ValueError."""
    if mechanism == "PLAIN":
        return PlainMechanism(username, password)
    if mechanism in _DIGESTS:
        return Scram(_DIGESTS[mechanism], username, password)
    raise ValueError(f"unknown SASL mechanism {mechanism}")


def _fields(data: bytes) -> dict[str, str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise NotProved("the server's message is not UTF-8") from None
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (BadBase64, ValueError):
        raise NotProved("the server's message has invalid base64") from None
