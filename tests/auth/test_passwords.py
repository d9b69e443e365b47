"""Hashes, RabbitMQ's among them, the cache of verified passwords, and the one thread with its bounded queue."""

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
    PasswordThread,
    TooManyLogins,
    VerifiedCache,
    check_hash,
    hash_password,
    verify,
)

# The worked example of RabbitMQ's documentation on passwords: salt 908D C60A, password test12.
RABBIT_EXAMPLE = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def rabbit_hash(password: bytes, algorithm: str, salt: bytes = b"salt") -> str:
    name = {RABBIT_SHA256: "sha256", RABBIT_SHA512: "sha512"}[algorithm]
    return base64.b64encode(salt + hashlib.new(name, salt + password).digest()).decode()


def test_argon2_both_ways() -> None:
    stored = hash_password(b"secret")
    assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert hash_password(b"secret") != stored
    assert verify(b"secret", stored, ARGON2ID)
    assert not verify(b"Secret", stored, ARGON2ID)


def test_rabbits_own_example() -> None:
    assert verify(b"test12", RABBIT_EXAMPLE, RABBIT_SHA256)
    assert not verify(b"test13", RABBIT_EXAMPLE, RABBIT_SHA256)


@pytest.mark.parametrize("algorithm", [RABBIT_SHA256, RABBIT_SHA512])
def test_rabbit_hashes(algorithm: str) -> None:
    stored = rabbit_hash("pässwörd\0".encode(), algorithm)
    check_hash(stored, algorithm)
    assert verify("pässwörd\0".encode(), stored, algorithm)
    assert not verify(b"other", stored, algorithm)


def test_a_blank_password_opens_nothing() -> None:
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
def test_other_hashes_are_refused_and_open_nothing(
    stored: str, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidHash):
        check_hash(stored, algorithm)
    assert not verify(b"p", stored, algorithm)
    assert "cannot be verified" in caplog.text


@given(stored=st.text(max_size=80), algorithm=st.sampled_from([ARGON2ID, RABBIT_SHA256, RABBIT_SHA512]))
def test_check_hash_takes_any_text(stored: str, algorithm: str) -> None:
    try:
        check_hash(stored, algorithm)
    except InvalidHash:
        return
    assert stored == "" or algorithm != ARGON2ID


@pytest.mark.parametrize(
    ("stored", "algorithm"),
    [("", ARGON2ID), (rabbit_hash(b"secret", RABBIT_SHA256), RABBIT_SHA256), (None, ARGON2ID), ("nonsense", ARGON2ID)],
)
def test_every_check_costs_one_argon2(stored: str | None, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if stored is None:
        stored = hash_password(b"secret")
    costs = []
    checked = passwords._verify_argon2

    def counted(password: bytes, encoded: str) -> bool:
        costs.append(encoded.split("$")[3])
        return checked(password, encoded)

    monkeypatch.setattr(passwords, "_verify_argon2", counted)
    verify(b"secret", stored, algorithm)
    assert costs == ["m=19456,t=2,p=1"]


# --- the cache ----------------------------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_cache_holds_for_its_time_only() -> None:
    clock = Clock()
    cache = VerifiedCache(300.0, clock=clock)
    assert not cache.holds("u", b"p", "hash")
    cache.remember("u", b"p", "hash")
    assert cache.holds("u", b"p", "hash")
    clock.now += 299.9
    assert cache.holds("u", b"p", "hash")
    clock.now += 0.1
    assert not cache.holds("u", b"p", "hash")
    assert len(cache) == 0


def test_cache_is_of_user_password_and_hash() -> None:
    cache = VerifiedCache()
    cache.remember("u", b"p", "hash")
    assert not cache.holds("u", b"P", "hash")
    assert not cache.holds("U", b"p", "hash")
    assert not cache.holds("u", b"p", "other hash")
    cache.remember("ab", b"c", "hash")
    cache._entries["a"] = cache._entries["ab"]
    assert not cache.holds("a", b"bc", "hash")  # lengths are part of what is signed
    cache.forget("u")
    cache.forget("absent")
    assert not cache.holds("u", b"p", "hash")


def test_cache_is_bounded_and_the_oldest_goes() -> None:
    cache = VerifiedCache(entries_max=3)
    for user in ("a", "b", "c", "a", "d"):
        cache.remember(user, b"p", "hash")
    assert len(cache) == 3
    assert [user for user in "abcd" if cache.holds(user, b"p", "hash")] == ["a", "c", "d"]


def test_cache_keeps_no_password() -> None:
    cache = VerifiedCache()
    cache.remember("u", b"canary", "hash")
    assert b"canary" not in cache._entries["u"][0]
    other = VerifiedCache()
    other.remember("u", b"canary", "hash")
    assert cache._entries["u"][0] != other._entries["u"][0]  # the key is this cache's own


# --- the thread -------------------------------------------------------------------------------------------------------


async def test_thread_hashes_and_verifies_off_the_loop() -> None:
    thread = PasswordThread()
    stored = await thread.hash(b"secret")
    assert await thread.verify(b"secret", stored, ARGON2ID)
    assert not await thread.verify(b"wrong", stored, ARGON2ID)
    thread.close()


async def test_the_loop_goes_on_during_a_storm() -> None:
    thread = PasswordThread()
    storm = [asyncio.ensure_future(thread.verify(b"x", "", ARGON2ID)) for _ in range(8)]
    pauses = []
    while not all(check.done() for check in storm):
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        pauses.append(time.perf_counter() - before)
    thread.close()
    # With argon2 on the loop the longest pause would be all eight checks and there would be one of them.
    assert len(pauses) > 16
    assert await asyncio.gather(*storm) == [False] * 8


async def test_what_waits_is_bounded_and_cancelled_checks_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    checked = []

    def slow(password: bytes, stored: str, algorithm: str) -> bool:
        go.wait(10)
        checked.append(password)
        return True

    monkeypatch.setattr(passwords, "verify", slow)
    thread = PasswordThread(waiting_max=3)
    first, second, third = (asyncio.ensure_future(thread.verify(word, "", "")) for word in (b"1", b"2", b"3"))
    await asyncio.sleep(0)
    with pytest.raises(TooManyLogins, match="3 password checks"):
        await thread.verify(b"4", "", "")
    second.cancel()
    await asyncio.sleep(0)
    fifth = asyncio.ensure_future(thread.verify(b"5", "", ""))
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(first, third, fifth) == [True] * 3
    assert checked == [b"1", b"3", b"5"]
    thread.close()
