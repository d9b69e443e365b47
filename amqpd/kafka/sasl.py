"""How a client proves to Kafka who it is: PLAIN, and SCRAM with SHA-256 or SHA-512.

`conversation` makes the client's side of it: `first()` is what is sent, `reply(data)` what answers the server's message
(None: nothing more is sent), and `done` says whether the server has proved that it knows the password, too. PLAIN
proves nothing and sends the password itself: only inside TLS.

User name and password are used as they are, in UTF-8 (no SASLprep, which Kafka's own client lacks as well).

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
_ITERATIONS_MAX: Final = 1_000_000  # some 0.4 s of a processor: more is a server that wants to hold us up


class NotProved(Exception):
    """The server's messages are not those of one that knows the password, or none of the mechanism's."""


class SaslMechanism:
    """The client's side of one mechanism. done: nothing more is expected of the server."""

    done: bool = False

    def first(self) -> bytes:
        """The first message."""
        raise NotImplementedError

    def reply(self, data: bytes) -> bytes | None:
        """What answers the server's message. Raises: NotProved."""
        raise NotImplementedError


class PlainMechanism(SaslMechanism):
    """The password in clear."""

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise ValueError("PLAIN cannot carry a NUL")
        self._message = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        self.done = True
        return self._message

    def reply(self, data: bytes) -> bytes | None:
        return None


class Scram(SaslMechanism):
    """A proof of the password that tells it to nobody, and one by the server. nonce: of ours, for tests."""

    def __init__(self, digest: str, username: str, password: str, nonce: str | None = None) -> None:
        self._digest = digest
        self._password = password.encode()
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(24)).decode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def reply(self, data: bytes) -> bytes | None:
        fields = _fields(data)
        if "e" in fields:
            raise NotProved(f"the server says: {fields['e']}")
        if self._server_signature:
            signature = _base64(fields.get("v", ""))
            if not hmac.compare_digest(signature, self._server_signature):
                raise NotProved("the server does not know the password either")
            self.done = True
            return None
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        salt = _base64(fields.get("s", ""))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or not salt:
            raise NotProved("the server's first message is none of SCRAM's, or answers somebody else's")
        if not (iterations.isascii() and iterations.isdigit()) or len(iterations) > 9:
            raise NotProved("the server names no number of iterations")
        if not _ITERATIONS_MIN <= int(iterations) <= _ITERATIONS_MAX:
            raise NotProved(f"{iterations} iterations: {_ITERATIONS_MIN} to {_ITERATIONS_MAX} are taken")
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


def conversation(mechanism: str, username: str, password: str) -> SaslMechanism:
    """The client's side of `mechanism`, one of MECHANISMS. Raises: ValueError."""
    if mechanism == "PLAIN":
        return PlainMechanism(username, password)
    if mechanism in _DIGESTS:
        return Scram(_DIGESTS[mechanism], username, password)
    raise ValueError(f"there is no mechanism {mechanism}")


def _fields(data: bytes) -> dict[str, str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise NotProved("the server's message is no text") from None
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (BadBase64, ValueError):
        raise NotProved("the server's message has no base64 where it has to") from None
