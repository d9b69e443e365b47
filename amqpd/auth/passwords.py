"""Password hashes: creating them, checking them in threads, and a cache of verified passwords.

New hashes are argon2id in argon2's text form: t=2, m=19 MiB, p=1, the second choice of OWASP, 21 ms. RabbitMQ's
hashes can be imported and verified: base64 of a 4-byte salt and of SHA-256, SHA-512 or MD5 over salt and password.
They are fast to guess, so the first login replaces them by argon2id. If `auth.password_hashing` asks for one of
RabbitMQ's algorithms, new hashes use it and RabbitMQ's stay, so that users can be moved back.

Checks run in two threads, because argon2 releases the interpreter lock, and `PasswordCheckQueue` orders them. A
verified password is cached for five minutes: when many clients reconnect, each user costs one check.

Timing reveals nothing: every check costs one argon2, also for an unknown user, an empty hash or a hash of RabbitMQ.

The cache stores no passwords, only an HMAC with a key of this process. The HMAC covers the stored hash, so that a
changed password makes the entry invalid.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from amqpd.auth.login_throttle import CHECKS_AT_ONCE, PasswordCheckQueue
from amqpd.auth.scram import make_credentials

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)

T = TypeVar("T")

ARGON2ID: Final = "argon2id"
RABBIT_SHA256: Final = "rabbit_password_hashing_sha256"
RABBIT_SHA512: Final = "rabbit_password_hashing_sha512"
RABBIT_MD5: Final = "rabbit_password_hashing_md5"

TIME_COST: Final = 2
MEMORY_KIB: Final = 19 * 1024
_RABBIT_SALT_BYTES: Final = 4
_RABBIT_DIGESTS: Final = {RABBIT_SHA256: "sha256", RABBIT_SHA512: "sha512", RABBIT_MD5: "md5"}
ALGORITHMS: Final = (ARGON2ID, RABBIT_SHA256, RABBIT_SHA512, RABBIT_MD5)

# An imported argon2 hash has its own cost. Above these limits, one login would block all others or exhaust memory.
_TIME_COST_MAX: Final = 10
_MEMORY_KIB_MAX: Final = 256 * 1024
_PARALLELISM_MAX: Final = 8

# Checked if there is no hash, so that the time is the same. Salt and digest are zeros: no password is known for it.
_DUMMY: Final = f"$argon2id$v=19$m={MEMORY_KIB},t={TIME_COST},p=1${'A' * 22}${'A' * 43}"

VERIFIED_S: Final = 300.0
VERIFIED_MAX: Final = 4096


class NewPassword(NamedTuple):
    """Hash and credentials of a password, as they are stored.

    Attributes:
        hash: "" if no password is accepted.
        scram: SCRAM credentials with SHA-256 and SHA-512 as text; None if there are none.
    """

    hash: str
    algorithm: str
    scram: tuple[str, str] | None = None


class InvalidHash(ValueError):
    """A password hash that cannot be verified. The text is the reason."""


def hash_password(password: bytes, algorithm: str = ARGON2ID) -> str:
    """Return a hash with a new salt. Cost: argon2id 21 ms and 19 MiB, the others 5 us."""
    if algorithm != ARGON2ID:
        salt = os.urandom(_RABBIT_SALT_BYTES)
        return base64.b64encode(salt + _rabbit_digest(salt + password, algorithm)).decode("ascii")
    from argon2.low_level import Type, hash_secret

    encoded = hash_secret(password, os.urandom(16), TIME_COST, MEMORY_KIB, 1, 32, Type.ID)
    return encoded.decode("ascii")


def secrets_of(password: bytes, algorithm: str, with_scram: bool) -> NewPassword:
    """Return what to store for a password. Cost: of `hash_password`, and 20 ms with SCRAM."""
    scram = None
    if with_scram:
        scram = str(make_credentials("SCRAM-SHA-256", password)), str(make_credentials("SCRAM-SHA-512", password))
    return NewPassword(hash_password(password, algorithm), algorithm, scram)


def check_hash(stored: str, algorithm: str) -> None:
    """Raise InvalidHash if `verify` cannot use the hash. An empty hash is valid and matches no password."""
    if not stored:
        return
    if algorithm == ARGON2ID:
        _check_argon2(stored)
    elif algorithm in _RABBIT_DIGESTS:
        _rabbit_parts(stored, algorithm)
    else:
        raise InvalidHash(f"hashing algorithm {algorithm!r} is not one of {', '.join(ALGORITHMS)}")


def algorithm_of(stored: str) -> str:
    """Return which of RabbitMQ's algorithms produced a hash that is given without its algorithm.

    RabbitMQ assumes SHA-256 for every such hash, so that a longer one matches no password. rabbitmqadmin sends
    SHA-512 this way: salt and digest have 68 bytes.
    """
    try:
        size_bytes = len(base64.b64decode(stored, validate=True))
    except ValueError:
        return RABBIT_SHA256  # `check_hash` rejects it
    return RABBIT_SHA512 if size_bytes == _RABBIT_SALT_BYTES + hashlib.sha512().digest_size else RABBIT_SHA256


def verify(password: bytes, stored: str, algorithm: str) -> bool:
    """Return whether `password` matches the hash. A hash that `check_hash` rejects is logged and matches nothing.

    Cost: one argon2 check, 21 ms for every hash.
    """
    try:
        check_hash(stored, algorithm)
    except InvalidHash as error:
        logger.error("a stored password hash cannot be verified: %s", error)
        stored = ""
    if stored and password and algorithm == ARGON2ID:
        return _verify_argon2(password, stored)
    _verify_argon2(password, _DUMMY)
    if not stored or not password:
        return False
    salt, digest = _rabbit_parts(stored, algorithm)
    return hmac.compare_digest(_rabbit_digest(salt + password, algorithm), digest)


def needs_rehash(algorithm: str, wanted: str) -> bool:
    """Return whether a login replaces a hash of `algorithm` by one of `wanted`.

    A hash of RabbitMQ does not replace another one of RabbitMQ.
    """
    return algorithm != wanted and ARGON2ID in (algorithm, wanted)


def _rabbit_digest(salted: bytes, algorithm: str) -> bytes:
    return hashlib.new(_RABBIT_DIGESTS[algorithm], salted, usedforsecurity=False).digest()


def _verify_argon2(password: bytes, stored: str) -> bool:
    from argon2.exceptions import VerificationError
    from argon2.low_level import Type, verify_secret

    try:
        return verify_secret(stored.encode("ascii"), password, Type.ID)
    except VerificationError:
        return False


def _check_argon2(stored: str) -> None:
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHashError
    from argon2.low_level import Type

    try:
        parameters = extract_parameters(stored)
    except InvalidHashError:
        raise InvalidHash("not an argon2id hash") from None
    if parameters.type is not Type.ID or not stored.isascii():
        raise InvalidHash("not an argon2id hash")
    if (
        parameters.time_cost > _TIME_COST_MAX
        or parameters.memory_cost > _MEMORY_KIB_MAX
        or parameters.parallelism > _PARALLELISM_MAX
    ):
        raise InvalidHash(
            f"an argon2id hash may cost at most t={_TIME_COST_MAX}, m={_MEMORY_KIB_MAX}, p={_PARALLELISM_MAX}"
        )


def _rabbit_parts(stored: str, algorithm: str) -> tuple[bytes, bytes]:
    """Return salt and digest. RabbitMQ: rabbit_password:hash/2."""
    try:
        raw = base64.b64decode(stored, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidHash(f"a hash of {algorithm} must be base64") from None
    salt, digest = raw[:_RABBIT_SALT_BYTES], raw[_RABBIT_SALT_BYTES:]
    if len(digest) != len(_rabbit_digest(b"", algorithm)):
        raise InvalidHash(f"a hash of {algorithm} must have a 4-byte salt and a digest")
    return salt, digest


class VerifiedPasswordCache:
    """Recently verified passwords, one per user. Bounded; the oldest is dropped first."""

    def __init__(
        self,
        lifetime_s: float = VERIFIED_S,
        entries_max: int = VERIFIED_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lifetime_s = lifetime_s
        self._entries_max = entries_max
        self._clock = clock
        self._key = os.urandom(32)
        self._entries: dict[str, tuple[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def is_verified(self, username: str, password: bytes, stored: str) -> bool:
        """Return whether this password was verified against this hash in the last `lifetime_s`. Cost: 3 us."""
        entry = self._entries.get(username)
        if entry is None:
            return False
        if self._clock() >= entry[1]:
            del self._entries[username]
            return False
        return hmac.compare_digest(entry[0], self._sign(username, password, stored))

    def add(self, username: str, password: bytes, stored: str) -> None:
        """Add a password that `verify` has accepted."""
        self._entries.pop(username, None)  # moves the entry to the end
        if len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        self._entries[username] = (self._sign(username, password, stored), self._clock() + self._lifetime_s)

    def remove(self, username: str) -> None:
        """Drop the entry of a user that was changed or deleted."""
        self._entries.pop(username, None)

    def _sign(self, username: str, password: bytes, stored: str) -> bytes:
        parts = (username.encode("utf-8", "surrogateescape"), password, stored.encode())
        return hmac.digest(self._key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


class PasswordHasherPool:
    """The threads for argon2, started at the first use. `PasswordCheckQueue` orders the checks. Call it on the loop."""

    def __init__(self) -> None:
        self._turns = PasswordCheckQueue()
        self._executor: ThreadPoolExecutor | None = None

    async def verify(
        self, password: bytes, stored: str, algorithm: str, address: str, user: str, is_verified: Callable[[], bool]
    ) -> bool:
        """Call `verify` in a thread. A caller that is cancelled before its turn costs nothing.

        Args:
            address, user: order of the checks, see `PasswordCheckQueue`.
            is_verified: called when the turn comes. If it returns True, the password is accepted without a check. Many
                connections of one user then cost one check.
        """
        await self._turns.acquire(address, user)
        if is_verified():
            self._turns.release()
            return True
        return await self._run(verify, password, stored, algorithm)

    async def hash(self, password: bytes, algorithm: str = ARGON2ID) -> str:
        """Call `hash_password` in a thread. Administrators' requests share one address in the queue."""
        await self._turns.acquire("", "")
        return await self._run(hash_password, password, algorithm)

    async def make(self, password: bytes, algorithm: str, with_scram: bool) -> NewPassword:
        """Call `secrets_of` in a thread, with a turn as of `hash`."""
        await self._turns.acquire("", "")
        return await self._run(secrets_of, password, algorithm, with_scram)

    def close(self) -> None:
        """Cancel waiting checks. Running ones finish."""
        self._turns.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        from concurrent.futures import ThreadPoolExecutor

        if self._executor is None:
            self._executor = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="amqpd-passwords")
        running = asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        # The turn ends with the check, not with the caller: a client that disconnects does not free the thread.
        running.add_done_callback(lambda _: self._turns.release())
        return await asyncio.shield(running)
