"""Password hashes including RabbitMQ's, the cache of verified passwords, and the hashing threads with their queue."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.auth import passwords
from amqpd.auth.passwords import (
    ARGON2ID,
    RABBIT_SHA256,
    RABBIT_SHA512,
    InvalidHash,
    PasswordHasherPool,
    VerifiedPasswordCache,
    check_hash,
    hash_password,
    verify,
)

# The worked example of RabbitMQ's documentation on passwords: salt 908D C60A, password test12.
RABBIT_EXAMPLE = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def rabbit_hash(password: bytes, algorithm: str, salt: bytes = b"salt") -> str:
    name = {RABBIT_SHA256: "sha256", RABBIT_SHA512: "sha512"}[algorithm]
    return base64.b64encode(salt + hashlib.new(name, salt + password).digest()).decode()


def test_argon2_hash_is_verified() -> None:
    stored = hash_password(b"secret")
    assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert hash_password(b"secret") != stored
    assert verify(b"secret", stored, ARGON2ID)
    assert not verify(b"Secret", stored, ARGON2ID)


def test_example_of_rabbitmq_documentation_is_verified() -> None:
    assert verify(b"test12", RABBIT_EXAMPLE, RABBIT_SHA256)
    assert not verify(b"test13", RABBIT_EXAMPLE, RABBIT_SHA256)


@pytest.mark.parametrize("algorithm", [RABBIT_SHA256, RABBIT_SHA512])
def test_rabbitmq_hash_is_verified(algorithm: str) -> None:
    stored = rabbit_hash("pässwörd\0".encode(), algorithm)
    check_hash(stored, algorithm)
    assert verify("pässwörd\0".encode(), stored, algorithm)
    assert not verify(b"other", stored, algorithm)


def test_blank_password_is_refused() -> None:
    assert not verify(b"", "", ARGON2ID)
    assert not verify(b"", hash_password(b""), ARGON2ID)
    assert not verify(b"", rabbit_hash(b"", RABBIT_SHA256), RABBIT_SHA256)
    assert not verify(b"x", "", RABBIT_SHA256)


@pytest.mark.parametrize(
    ("stored", "algorithm"),
    [
        ("x", "md5"),
        ("x", "rabbit_password_hashing_md5"),
        ("not base64!", RABBIT_SHA256),
        ("ünï", RABBIT_SHA256),
        (base64.b64encode(b"short").decode(), RABBIT_SHA256),
        (rabbit_hash(b"p", RABBIT_SHA256), RABBIT_SHA512),
        ("nonsense", ARGON2ID),
        ("$argon2i$v=19$m=19456,t=2,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA", ARGON2ID),
        ("$argon2id$v=19$m=99999999,t=2,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA", ARGON2ID),
        ("$argon2id$v=19$m=19456,t=9999,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA", ARGON2ID),
    ],
)
def test_malformed_hash_is_refused_and_matches_no_password(
    stored: str, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidHash):
        check_hash(stored, algorithm)
    assert not verify(b"p", stored, algorithm)
    assert "cannot be verified" in caplog.text


@given(stored=st.text(max_size=80), algorithm=st.sampled_from([ARGON2ID, RABBIT_SHA256, RABBIT_SHA512]))
def test_check_hash_accepts_any_text_without_other_errors(stored: str, algorithm: str) -> None:
    try:
        check_hash(stored, algorithm)
    except InvalidHash:
        return
    assert stored == "" or algorithm != ARGON2ID


@pytest.mark.parametrize(
    ("stored", "algorithm"),
    [("", ARGON2ID), (rabbit_hash(b"secret", RABBIT_SHA256), RABBIT_SHA256), (None, ARGON2ID), ("nonsense", ARGON2ID)],
)
def test_every_check_costs_one_argon2_computation(
    stored: str | None, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stored is None:
        stored = hash_password(b"secret")
    parameters = []
    verify_argon2 = passwords._verify_argon2

    def count_and_verify(password: bytes, encoded: str) -> bool:
        parameters.append(encoded.split("$")[3])
        return verify_argon2(password, encoded)

    monkeypatch.setattr(passwords, "_verify_argon2", count_and_verify)
    verify(b"secret", stored, algorithm)
    assert parameters == ["m=19456,t=2,p=1"]


# --- the cache ----------------------------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_cache_entry_expires() -> None:
    clock = Clock()
    cache = VerifiedPasswordCache(300.0, clock=clock)
    assert not cache.is_verified("u", b"p", "hash")
    cache.add("u", b"p", "hash")
    assert cache.is_verified("u", b"p", "hash")
    clock.now += 299.9
    assert cache.is_verified("u", b"p", "hash")
    clock.now += 0.1
    assert not cache.is_verified("u", b"p", "hash")
    assert len(cache) == 0


def test_cache_entry_belongs_to_user_password_and_hash() -> None:
    cache = VerifiedPasswordCache()
    cache.add("u", b"p", "hash")
    assert not cache.is_verified("u", b"P", "hash")
    assert not cache.is_verified("U", b"p", "hash")
    assert not cache.is_verified("u", b"p", "other hash")
    cache.add("ab", b"c", "hash")
    cache._entries["a"] = cache._entries["ab"]
    assert not cache.is_verified("a", b"bc", "hash")  # the signature covers the lengths
    cache.remove("u")
    cache.remove("absent")
    assert not cache.is_verified("u", b"p", "hash")


def test_cache_is_bounded_and_drops_the_oldest() -> None:
    cache = VerifiedPasswordCache(entries_max=3)
    for user in ("a", "b", "c", "a", "d"):
        cache.add(user, b"p", "hash")
    assert len(cache) == 3
    assert [user for user in "abcd" if cache.is_verified(user, b"p", "hash")] == ["a", "c", "d"]


def test_cache_stores_no_plaintext_password() -> None:
    cache = VerifiedPasswordCache()
    cache.add("u", b"canary", "hash")
    assert b"canary" not in cache._entries["u"][0]
    other = VerifiedPasswordCache()
    other.add("u", b"canary", "hash")
    assert cache._entries["u"][0] != other._entries["u"][0]  # each cache has its own key


# --- the threads ------------------------------------------------------------------------------------------------------


def never() -> bool:
    return False


async def check(threads: PasswordHasherPool, word: bytes, address: str = "a", user: str = "u") -> bool:
    return await threads.verify(word, "", ARGON2ID, address, user, never)


async def test_threads_hash_and_verify_off_the_loop() -> None:
    threads = PasswordHasherPool()
    stored = await threads.hash(b"secret")
    assert await threads.verify(b"secret", stored, ARGON2ID, "a", "u", never)
    assert not await threads.verify(b"wrong", stored, ARGON2ID, "a", "u", never)
    threads.close()


async def test_loop_runs_during_many_password_checks() -> None:
    threads = PasswordHasherPool()
    checks = [asyncio.ensure_future(check(threads, b"x")) for _ in range(8)]
    pauses = []
    while not all(each.done() for each in checks):
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        pauses.append(time.perf_counter() - before)
    threads.close()
    # With argon2 on the loop, there would be a single pause as long as all eight checks.
    assert len(pauses) > 8
    assert await asyncio.gather(*checks) == [False] * 8


class SlowVerify:
    """Fake of `verify`: checks wait until `go` is set. Counts the checks that run at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.running = 0
        self.running_max = 0
        self.checked: list[bytes] = []
        monkeypatch.setattr(passwords, "verify", self)

    def __call__(self, password: bytes, stored: str, algorithm: str) -> bool:
        with self.lock:
            self.checked.append(password)
            self.running += 1
            self.running_max = max(self.running, self.running_max)
        assert self.go.wait(60)
        with self.lock:
            self.running -= 1
        return True


async def test_flood_from_one_address_delays_other_addresses_by_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """No check is refused, however many wait. At most two run at once."""
    slow = SlowVerify(monkeypatch)
    threads = PasswordHasherPool()
    flood = [asyncio.ensure_future(check(threads, b"f", "guesser", f"u{n % 300}")) for n in range(1000)]
    await asyncio.sleep(0)
    other_address = asyncio.ensure_future(check(threads, b"right", "elsewhere"))
    other_user = asyncio.ensure_future(check(threads, b"beside", "guesser", "anna"))
    await asyncio.sleep(0)
    slow.go.set()
    assert await other_address and await other_user
    assert all(await asyncio.gather(*flood))
    assert slow.checked.index(b"right") <= 6
    assert slow.checked.index(b"beside") <= 2 + 2 * 300  # users of one address take turns, too
    assert slow.running_max <= 2
    threads.close()


async def test_cancelled_checks_leave_the_queue_but_keep_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowVerify(monkeypatch)
    threads = PasswordHasherPool()
    running = [asyncio.ensure_future(check(threads, b"run")) for _ in range(2)]
    waiting = [asyncio.ensure_future(check(threads, b"wait", f"{n}")) for n in range(50)]
    await asyncio.sleep(0)
    for each in [*running, *waiting]:
        each.cancel()
    await asyncio.wait([*running, *waiting])
    assert threads._turns._waiting == {}
    last = asyncio.ensure_future(check(threads, b"last"))
    await asyncio.sleep(0.05)
    assert not last.done()  # both threads are still busy
    slow.go.set()
    assert await last
    assert slow.checked == [b"run", b"run", b"last"]
    assert slow.running_max <= 2
    threads.close()


async def test_password_verified_meanwhile_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowVerify(monkeypatch)
    slow.go.set()
    threads = PasswordHasherPool()
    verified: list[bool] = []

    async def login() -> None:
        assert await threads.verify(b"x", "", ARGON2ID, "a", "u", lambda: bool(verified))
        verified.append(True)

    await asyncio.gather(*(login() for _ in range(100)))
    assert len(slow.checked) <= 4
    threads.close()


async def test_close_cancels_waiting_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowVerify(monkeypatch)
    threads = PasswordHasherPool()
    checks = [asyncio.ensure_future(check(threads, b"x")) for _ in range(5)]
    await asyncio.sleep(0)
    threads.close()
    slow.go.set()
    await asyncio.wait(checks)
    assert sum(each.cancelled() for each in checks) >= 3
