"""SCRAM-SHA-256 and SCRAM-SHA-512 of a server, without IO: credentials, and the messages of one login.

    client-first   n,,n=USER,r=CLIENT_NONCE
    server-first   r=CLIENT_NONCE SERVER_NONCE,s=SALT,i=ITERATIONS
    client-final   c=biws,r=NONCE,p=PROOF
    server-final   v=SIGNATURE

Neither password nor a key that could log in is stored: StoredKey checks a proof, ServerKey signs the last message.
They are made when the password is set. With them an attacker can guess passwords at ITERATIONS hashes a guess, which is
cheaper than with argon2id. So they are made only in a broker with a listener that uses SCRAM.

An unknown user, and one without credentials, gets credentials that no proof matches, with a salt that is the same at
each login. So a client cannot find out which users exist.

As with Kafka, names and passwords are UTF-8 without SASLprep, and there is no channel binding.

Spec: RFC 5802, RFC 7677.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from typing import Final, NamedTuple

ITERATIONS: Final = 16_384
"""Iterations of new credentials: the most that Kafka's tools accept. 10 ms for each mechanism."""
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000
SALT_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 4096

MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Names of the mechanisms, and their hashes."""


class ScramError(Exception):
    """A message of the client that ends the login. The text is for the log."""


class InvalidCredentials(ValueError):
    """Text that is no SCRAM credential."""


class ScramCredentials(NamedTuple):
    """Credentials of a user for one mechanism. As text: `ITERATIONS:SALT:STORED_KEY:SERVER_KEY`, the last three in
    base64.
    """

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        parts = (base64.b64encode(each).decode("ascii") for each in self[1:])
        return f"{self.iterations}:{':'.join(parts)}"


def make_credentials(mechanism: str, password: bytes, iterations: int = ITERATIONS) -> ScramCredentials:
    """Return credentials with a new salt. Cost: 10 ms for ITERATIONS, without the interpreter lock."""
    salt = os.urandom(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password, salt, iterations)
    return credentials_of(mechanism, salted, salt, iterations)


def credentials_of(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredentials:
    """Return credentials for a password that the client has hashed (SaltedPassword). Cost: 5 us."""
    digest = MECHANISMS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    server_key = hmac.digest(salted_password, b"Server Key", digest)
    return ScramCredentials(iterations, salt, hashlib.new(digest, client_key).digest(), server_key)


def parse_credentials(mechanism: str, text: str) -> ScramCredentials:
    """Return the credentials of a text. Raises: InvalidCredentials."""
    iterations, *rest = text.split(":")
    try:
        salt, stored_key, server_key = (base64.b64decode(each, validate=True) for each in rest)
    except ValueError:
        raise InvalidCredentials(f"expected iterations:salt:key:key for {mechanism}") from None
    size = hashlib.new(MECHANISMS[mechanism]).digest_size
    is_number = iterations.isascii() and iterations.isdecimal() and len(iterations) < 10
    if not is_number or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise InvalidCredentials(f"{mechanism} needs {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")
    if not 0 < len(salt) <= 255 or len(stored_key) != size or len(server_key) != size:
        raise InvalidCredentials(f"a salt or a key for {mechanism} has a wrong length")
    return ScramCredentials(int(iterations), salt, stored_key, server_key)


def unknown_user(mechanism: str, name: str, secret: bytes) -> ScramCredentials:
    """Return credentials that no proof matches, for a user without credentials.

    Args:
        secret: this broker's secret. It stays the same over restarts, so that salts do.
    """
    digest = MECHANISMS[mechanism]
    salt = hmac.digest(secret, f"{mechanism}:{name}".encode("utf-8", "surrogateescape"), digest)[:SALT_BYTES]
    size = hashlib.new(digest).digest_size
    return ScramCredentials(ITERATIONS, salt, os.urandom(size), os.urandom(size))


class ScramLogin:
    """The server's side of one login: `begin`, then `finish`.

    Attributes:
        user_name: from the first message.
    """

    def __init__(self, mechanism: str, message: bytes) -> None:
        """Read client-first. Raises: ScramError."""
        self.mechanism = mechanism
        text = _text(message)
        binding, *parts = text.split(",", 2)
        if binding not in ("n", "y") or len(parts) != 2:
            raise ScramError("a first message without `n,,`, or with channel binding")
        authorization_id, self._client_first = parts
        self._gs2_header = text[: len(text) - len(self._client_first)]
        name, nonce, *_ = (*self._client_first.split(","), "")
        if not name.startswith("n=") or not nonce.startswith("r=") or len(nonce) == 2:
            raise ScramError("a first message without a user name and a nonce")
        self.user_name = _unescaped(name[2:])
        if authorization_id and _unescaped(authorization_id.removeprefix("a=")) != self.user_name:
            raise ScramError("a login on behalf of another user")
        self._client_nonce = nonce[2:]
        self._nonce = ""
        self._server_first = ""
        self._credentials: ScramCredentials | None = None

    def begin(self, credentials: ScramCredentials, nonce: str = "") -> bytes:
        """Return server-first. nonce: the server's part, for tests; random otherwise."""
        self._credentials = credentials
        self._nonce = self._client_nonce + (nonce or base64.b64encode(os.urandom(18)).decode("ascii"))
        salt = base64.b64encode(credentials.salt).decode("ascii")
        self._server_first = f"r={self._nonce},s={salt},i={credentials.iterations}"
        return self._server_first.encode()

    def finish(self, message: bytes) -> bytes:
        """Check client-final and return server-final. Raises: ScramError, also for a wrong password. Cost: 20 us."""
        credentials, self._credentials = self._credentials, None
        if credentials is None:
            raise ScramError("a last message without a first one")
        without_proof, separator, proof_text = _text(message).rpartition(",p=")
        binding, nonce, *_ = (*without_proof.split(","), "")
        if not separator or binding != f"c={base64.b64encode(self._gs2_header.encode()).decode('ascii')}":
            raise ScramError("a last message without a proof, or with channel binding")
        if not hmac.compare_digest(nonce.encode(), f"r={self._nonce}".encode()):
            raise ScramError("a last message with a wrong nonce")
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            raise ScramError("a proof that is not base64") from None
        digest = MECHANISMS[self.mechanism]
        signed = f"{self._client_first},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(credentials.stored_key, signed, digest)
        if len(proof) != len(signature):
            raise ScramError("a proof of a wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credentials.stored_key):
            raise ScramError("invalid credentials")
        return b"v=" + base64.b64encode(hmac.digest(credentials.server_key, signed, digest))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message of {len(message)} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message that is not UTF-8") from None
    if "\0" in text:
        raise ScramError("a message with a NUL")
    return text


def _unescaped(name: str) -> str:
    """Return a user name without its escapes. Raises: ScramError."""
    parts = name.split("=")
    if not name or any(part[:2] not in ("2C", "3D") for part in parts[1:]):
        raise ScramError("a user name with a wrong escape")
    codes = {"2C": ",", "3D": "="}
    return parts[0] + "".join(codes[part[:2]] + part[2:] for part in parts[1:])
