"""The internal backend: logins, committed changes, failing changes, and listeners."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from amqpd.auth.internal_backend import (
    AuthChange,
    AuthenticationRefused,
    InternalBackend,
    InvalidUser,
    NoSuchUser,
    NoSuchVhost,
    User,
    UserExists,
    initial_rows,
)
from amqpd.auth.passwords import ARGON2ID, RABBIT_SHA256, hash_password
from amqpd.auth.patterns import InvalidPattern
from amqpd.storage.metadata.rows import Delete, PermissionRow, Put, TopicPermissionRow, UserRow, VhostRow
from amqpd.storage.metadata.store import MetadataError, SqlMetadataStore, WriteFailed, random_id

GUEST_HASH = hash_password(b"guest")
GUEST = User("guest", ("administrator",))


def rabbit_hash(password: bytes) -> str:
    return base64.b64encode(b"salt" + hashlib.sha256(b"salt" + password).digest()).decode()


class BackendHarness:
    """A backend over a real database that can be closed and opened again."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.vhosts = {"/", "shop"}
        self.now = 0.0
        self.changes: list[AuthChange] = []
        self.open()

    def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.metadata = SqlMetadataStore("", self.data_dir, loop.call_soon_threadsafe)
        state = self.metadata.open(
            lambda: [
                *(VhostRow(name, random_id()) for name in sorted(self.vhosts)),
                UserRow("guest", GUEST_HASH, ARGON2ID, ("administrator",)),
                PermissionRow("guest", "/", ".*", ".*", ".*"),
            ]
        )
        self.backend = InternalBackend(self.metadata, state, self.vhosts.__contains__, clock=lambda: self.now)
        self.backend.listeners.append(self.changes.append)

    def close(self) -> None:
        self.backend.close()
        self.metadata.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def take_changes(self) -> list[AuthChange]:
        taken_changes = self.changes[:]
        self.changes.clear()
        return taken_changes

    def break_database(self) -> Callable[[], None]:
        """Make every write fail until the returned function is called."""
        store = self.metadata._connected()
        write = store.write

        def fail(changes: object) -> None:
            raise OSError("the disk is on fire")

        store.write = fail  # type: ignore[method-assign, assignment]
        return lambda: setattr(store, "write", write)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[BackendHarness]:
    harness = BackendHarness(tmp_path)
    yield harness
    harness.close()


async def login(harness: BackendHarness, name: str, password: bytes) -> bool:
    try:
        user = await harness.backend.authenticate(name, password, True)
    except AuthenticationRefused:
        return False
    assert user.name == name
    return True


def record_checks(harness: BackendHarness, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every later password check adds its algorithm."""
    checks: list[str] = []
    verify = harness.backend._passwords.verify

    async def record_and_verify(password: bytes, stored: str, algorithm: str, *turn: Any) -> bool:
        checks.append(algorithm)
        return await verify(password, stored, algorithm, *turn)

    monkeypatch.setattr(harness.backend._passwords, "verify", record_and_verify)
    return checks


# --- logging in -------------------------------------------------------------------------------------------------------


async def test_login_needs_exact_name_and_password(harness: BackendHarness) -> None:
    assert await harness.backend.authenticate("guest", b"guest", True) == GUEST
    for name, password in [("guest", b"Guest"), ("Guest", b"guest"), ("\udcff", b"x"), ("guest", b""), ("", b"")]:
        with pytest.raises(AuthenticationRefused) as raised:
            await harness.backend.authenticate(name, password, True)
        assert repr(name) in raised.value.reason
        assert "Guest'" not in raised.value.reason or name == "Guest"  # no password in the log


async def test_guest_may_log_in_only_from_loopback(harness: BackendHarness) -> None:
    await harness.backend.authenticate("guest", b"guest", True)  # fills the cache of verified passwords
    with pytest.raises(AuthenticationRefused, match="loopback"):
        await harness.backend.authenticate("guest", b"guest", False)
    await harness.backend.add_user("far", b"away")
    assert (await harness.backend.authenticate("far", b"away", False)).name == "far"
    harness.backend.loopback_users = frozenset()
    assert await harness.backend.authenticate("guest", b"guest", False) == GUEST


async def test_external_login_needs_no_password_but_existing_user(harness: BackendHarness) -> None:
    """The loopback rule applies to users named by a certificate, too."""
    await harness.backend.add_user("anna", tags=["management"])  # a user without a password
    assert not await login(harness, "anna", b"")
    assert harness.backend.authenticate_external("anna", False) == User("anna", ("management",))
    assert harness.backend.authenticate_external("guest", True) == GUEST
    with pytest.raises(AuthenticationRefused, match="loopback"):
        harness.backend.authenticate_external("guest", False)
    for unknown in ("Anna", "anna\0", ""):
        with pytest.raises(AuthenticationRefused, match="invalid credentials"):
            harness.backend.authenticate_external(unknown, True)
    await harness.backend.delete_user("anna")
    with pytest.raises(AuthenticationRefused, match="invalid credentials"):
        harness.backend.authenticate_external("anna", True)


async def test_verified_password_is_not_checked_again_for_five_minutes(
    harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = record_checks(harness, monkeypatch)
    assert await login(harness, "guest", b"guest")
    assert await login(harness, "guest", b"guest")
    assert len(checks) == 1
    assert not await login(harness, "guest", b"wrong")
    assert len(checks) == 2
    assert await login(harness, "guest", b"guest")
    harness.now += 301
    assert await login(harness, "guest", b"guest")
    assert len(checks) == 3


async def test_unknown_user_costs_a_password_check(harness: BackendHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = record_checks(harness, monkeypatch)
    assert not await login(harness, "nobody", b"x")
    assert checks == [ARGON2ID]


async def test_login_during_many_failed_attempts_succeeds(harness: BackendHarness) -> None:
    attempts = [asyncio.ensure_future(login(harness, f"nobody{number}", b"x")) for number in range(300)]
    await asyncio.sleep(0)
    assert await harness.backend.authenticate("guest", b"guest", True, "10.0.0.9") == GUEST
    assert sum(attempt.done() for attempt in attempts) < 20
    for attempt in attempts:
        attempt.cancel()
    await asyncio.gather(*attempts, return_exceptions=True)


async def test_concurrent_logins_with_imported_hash_succeed(harness: BackendHarness) -> None:
    """The first login replaces the hash while the others wait for their check."""
    await harness.backend.add_user("u", password_hash=rabbit_hash(b"secret"))
    assert all(await asyncio.gather(*(login(harness, "u", b"secret") for _ in range(10))))
    assert harness.backend.user("u").hashing_algorithm == ARGON2ID


@pytest.mark.parametrize("change", ["delete", "password"])
async def test_user_changed_during_login_is_refused(
    harness: BackendHarness, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.backend.add_user("u", b"old")
    verify = harness.backend._passwords.verify

    async def verify_then_change(*arguments: object) -> bool:
        is_valid = await verify(*arguments)  # type: ignore[arg-type]
        if is_valid:
            await (
                harness.backend.delete_user("u") if change == "delete" else harness.backend.change_password("u", b"new")
            )
        return is_valid

    monkeypatch.setattr(harness.backend._passwords, "verify", verify_then_change)
    with pytest.raises(
        AuthenticationRefused, match="deleted during the login" if change == "delete" else "invalid credentials"
    ):
        await harness.backend.authenticate("u", b"old", True)
    monkeypatch.undo()
    assert not await login(harness, "u", b"old")


async def test_imported_hash_is_replaced_by_argon2_at_login(
    harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.backend.add_user("u", password_hash=rabbit_hash(b"secret"), tags=["monitoring"])
    assert not await login(harness, "u", b"wrong")
    assert harness.backend.user("u").hashing_algorithm == RABBIT_SHA256
    assert await harness.backend.authenticate("u", b"secret", True) == User("u", ("monitoring",))
    assert harness.backend.user("u").hashing_algorithm == ARGON2ID
    checks = record_checks(harness, monkeypatch)
    assert await login(harness, "u", b"secret")
    assert checks == []
    harness.reopen()
    assert harness.backend.user("u").hashing_algorithm == ARGON2ID
    assert await login(harness, "u", b"secret")


async def test_login_succeeds_when_hash_cannot_be_replaced(
    harness: BackendHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.backend.add_user("u", password_hash=rabbit_hash(b"secret"))
    harness.break_database()
    assert await login(harness, "u", b"secret")
    assert "cannot renew the password hash" in caplog.text
    assert harness.backend.user("u").hashing_algorithm == RABBIT_SHA256


# --- users ------------------------------------------------------------------------------------------------------------


async def test_users_survive_reopen(harness: BackendHarness) -> None:
    await harness.backend.add_user("ünï", b"pass", tags=["management", "own-word", "management"])
    await harness.backend.add_user("silent")
    assert harness.take_changes() == [AuthChange("user_added", "ünï"), AuthChange("user_added", "silent")]
    harness.reopen()
    assert [row.name for row in harness.backend.users()] == ["guest", "silent", "ünï"]
    assert harness.backend.user("ünï").tags == ("management", "own-word")
    assert await login(harness, "ünï", b"pass")
    assert not await login(harness, "silent", b"")
    assert not await login(harness, "silent", b"x")


async def test_add_existing_user_is_refused_without_replace(harness: BackendHarness) -> None:
    with pytest.raises(UserExists):
        await harness.backend.add_user("guest", b"x")
    results = await asyncio.gather(*(harness.backend.add_user("u", b"x") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results].count(UserExists) == 2
    assert harness.take_changes() == [AuthChange("user_added", "u")]
    await harness.backend.add_user("guest", b"new", replace=True)
    assert harness.backend.user("guest").tags == ()
    assert await login(harness, "guest", b"new")
    assert harness.take_changes() == [AuthChange("password", "guest"), AuthChange("tags", "guest")]


async def test_changed_password_applies_at_once(harness: BackendHarness) -> None:
    assert await login(harness, "guest", b"guest")
    await harness.backend.change_password("guest", b"new")
    assert not await login(harness, "guest", b"guest")
    assert await login(harness, "guest", b"new")
    assert harness.take_changes() == [AuthChange("password", "guest")]
    await harness.backend.change_password("guest")  # clear_password
    assert not await login(harness, "guest", b"new")
    assert harness.backend.user("guest").tags == ("administrator",)


async def test_changed_tags_apply_at_once_and_survive_reopen(harness: BackendHarness) -> None:
    assert await login(harness, "guest", b"guest")
    await harness.backend.set_tags("guest", ["impersonator"])
    assert await harness.backend.authenticate("guest", b"guest", True) == User("guest", ("impersonator",))
    assert harness.take_changes() == [AuthChange("tags", "guest")]
    harness.reopen()
    assert harness.backend.user("guest").tags == ("impersonator",)


async def test_delete_user_deletes_permissions(harness: BackendHarness) -> None:
    await harness.backend.set_topic_permissions("guest", "/", "amq.topic", "x", "x")
    harness.take_changes()
    assert await login(harness, "guest", b"guest")
    await harness.backend.delete_user("guest")
    assert harness.take_changes() == [AuthChange("user_deleted", "guest")]
    assert not await login(harness, "guest", b"guest")
    assert not harness.backend.is_allowed(GUEST, "/", "read", "q")
    await harness.backend.add_user("guest", b"guest")
    assert harness.backend.permissions() == []
    assert harness.backend.topic_permissions() == []
    assert not harness.backend.may_access_vhost(GUEST, "/")
    harness.reopen()
    assert harness.backend.permissions() == []


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "a\0b", "\udcff"])
async def test_bad_user_name_is_refused(harness: BackendHarness, name: str) -> None:
    with pytest.raises(InvalidUser):
        await harness.backend.add_user(name, b"x")
    with pytest.raises(InvalidUser):
        initial_rows(name, "x", "/")


@pytest.mark.parametrize("tags", [[""], ["a,b"], ["a b"], ["x" * 256], ["a\n"], [f"t{n}" for n in range(65)]])
async def test_bad_tags_are_refused(harness: BackendHarness, tags: list[str]) -> None:
    with pytest.raises(InvalidUser):
        await harness.backend.set_tags("guest", tags)
    with pytest.raises(InvalidUser):
        await harness.backend.add_user("u", b"x", tags=tags)


async def test_bad_hash_is_refused(harness: BackendHarness) -> None:
    with pytest.raises(InvalidUser, match="base64"):
        await harness.backend.add_user("u", password_hash="!")
    with pytest.raises(InvalidUser, match="md5"):
        await harness.backend.add_user("guest", password_hash="x", hashing_algorithm="md5", replace=True)


async def test_missing_user_or_vhost_is_refused(harness: BackendHarness) -> None:
    backend = harness.backend
    for call in (
        backend.delete_user("nobody"),
        backend.change_password("nobody", b"x"),
        backend.set_tags("nobody", []),
        backend.set_permissions("nobody", "/", "", "", ""),
        backend.clear_permissions("nobody", "/"),
        backend.set_topic_permissions("nobody", "/", "x", "", ""),
        backend.clear_topic_permissions("nobody", "/"),
    ):
        with pytest.raises(NoSuchUser, match="nobody"):
            await call
    for call in (
        backend.set_permissions("guest", "nowhere", "", "", ""),
        backend.clear_permissions("guest", "nowhere"),
        backend.set_topic_permissions("guest", "nowhere", "x", "", ""),
        backend.clear_topic_permissions("guest", "nowhere"),
    ):
        with pytest.raises(NoSuchVhost, match="nowhere"):
            await call
    with pytest.raises(NoSuchUser):
        backend.permissions("nobody")
    with pytest.raises(NoSuchVhost):
        backend.topic_permissions(vhost="nowhere")


# --- permissions ------------------------------------------------------------------------------------------------------


async def test_permissions_apply_at_once_and_survive_reopen(harness: BackendHarness) -> None:
    backend = harness.backend
    assert backend.is_allowed(GUEST, "/", "read", "q")
    await backend.set_permissions("guest", "/", "^a", "", "^b")
    assert harness.take_changes() == [AuthChange("permissions", "guest", "/")]
    assert not backend.is_allowed(GUEST, "/", "read", "q")
    assert backend.is_allowed(GUEST, "/", "read", "b")
    harness.reopen()
    assert harness.backend.permissions("guest", "/") == [PermissionRow("guest", "/", "^a", "", "^b")]
    assert harness.backend.may_access_vhost(GUEST, "/")
    await harness.backend.clear_permissions("guest", "/")
    await harness.backend.clear_permissions("guest", "/")  # clearing a missing permission is not an error
    assert not harness.backend.may_access_vhost(GUEST, "/")
    assert harness.take_changes() == [AuthChange("permissions", "guest", "/")]
    harness.reopen()
    assert harness.backend.permissions() == []


async def test_topic_permissions_survive_reopen(harness: BackendHarness) -> None:
    await harness.backend.set_topic_permissions("guest", "/", "amq.topic", "^{username}", ".*")
    await harness.backend.set_topic_permissions("guest", "/", "other", "", "")
    assert harness.take_changes() == [AuthChange("topic_permissions", "guest", "/")] * 2
    harness.reopen()
    backend = harness.backend
    assert backend.topic_permissions("guest") == [
        TopicPermissionRow("guest", "/", "amq.topic", "^{username}", ".*"),
        TopicPermissionRow("guest", "/", "other", "", ""),
    ]
    assert backend.is_topic_allowed(GUEST, "/", "amq.topic", "write", "guest.1")
    assert not backend.is_topic_allowed(GUEST, "/", "amq.topic", "write", "x")
    await backend.clear_topic_permissions("guest", "/", "amq.topic")
    assert backend.is_topic_allowed(GUEST, "/", "amq.topic", "write", "x")
    assert not backend.is_topic_allowed(GUEST, "/", "other", "write", "x")
    await backend.clear_topic_permissions("guest", "/")
    assert backend.is_topic_allowed(GUEST, "/", "other", "write", "x")
    harness.reopen()
    assert harness.backend.topic_permissions() == []


async def test_bad_pattern_is_refused_and_changes_nothing(harness: BackendHarness) -> None:
    with pytest.raises(InvalidPattern):
        await harness.backend.set_permissions("guest", "/", ".*", "(", ".*")
    with pytest.raises(InvalidPattern):
        await harness.backend.set_topic_permissions("guest", "/", "x", "(?=a)", "")
    assert harness.backend.permissions() == [PermissionRow("guest", "/", ".*", ".*", ".*")]
    assert harness.take_changes() == []


async def test_remove_vhost_removes_its_permissions(harness: BackendHarness) -> None:
    await harness.backend.set_permissions("guest", "shop", ".*", ".*", ".*")
    await harness.backend.set_topic_permissions("guest", "shop", "t", "", "")
    harness.take_changes()
    deleted = asyncio.get_running_loop().create_future()
    harness.metadata.submit([Delete(VhostRow("shop", ""))], deleted.set_result)
    assert await deleted is None
    harness.backend.remove_vhost("shop")
    assert harness.take_changes() == [AuthChange("permissions", "guest", "shop")]
    assert not harness.backend.is_allowed(GUEST, "shop", "read", "q")
    assert harness.backend.is_allowed(GUEST, "/", "read", "q")
    harness.reopen()
    assert [row.vhost for row in harness.backend.permissions()] == ["/"]
    assert harness.backend.topic_permissions() == []


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_failed_commit_changes_nothing_in_memory(harness: BackendHarness) -> None:
    repair = harness.break_database()
    backend = harness.backend
    for call in (
        backend.add_user("u", b"x"),
        backend.delete_user("guest"),
        backend.change_password("guest", b"x"),
        backend.set_tags("guest", []),
        backend.set_permissions("guest", "/", "", "", ""),
        backend.clear_permissions("guest", "/"),
        backend.set_topic_permissions("guest", "/", "x", "", ""),
    ):
        with pytest.raises(WriteFailed, match="on fire"):
            await call
    assert [row.name for row in backend.users()] == ["guest"]
    assert backend.is_allowed(GUEST, "/", "write", "q")
    assert backend.topic_permissions() == []
    assert harness.take_changes() == []
    assert await login(harness, "guest", b"guest")
    repair()
    await backend.set_tags("guest", [])
    assert backend.user("guest").tags == ()


async def test_cancelled_change_is_in_memory_and_in_database(harness: BackendHarness) -> None:
    change = asyncio.ensure_future(harness.backend.set_tags("guest", ["monitoring"]))
    await asyncio.sleep(0)
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    await harness.backend.set_permissions("guest", "/", "", "", "")  # runs after the change in the same thread
    in_memory = harness.backend.user("guest").tags
    harness.reopen()
    assert in_memory == harness.backend.user("guest").tags == ("monitoring",)


async def test_failing_listener_does_not_stop_other_listeners(
    harness: BackendHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(change: AuthChange) -> None:
        raise ZeroDivisionError

    harness.backend.listeners.insert(0, fails)
    await harness.backend.set_tags("guest", [])
    assert harness.take_changes() == [AuthChange("tags", "guest")]
    assert "a listener failed" in caplog.text


async def test_unknown_hash_algorithm_is_logged_at_start(
    harness: BackendHarness, caplog: pytest.LogCaptureFixture
) -> None:
    written = asyncio.get_running_loop().create_future()
    harness.metadata.submit([Put(UserRow("odd", "x", "md5"))], written.set_result)
    assert await written is None
    harness.reopen()
    assert "unknown algorithm 'md5'" in caplog.text
    assert not await login(harness, "odd", b"x")
    assert await login(harness, "guest", b"guest")


# --- the first start --------------------------------------------------------------------------------------------------


async def test_first_start_creates_administrator_and_vhost(tmp_path: Path) -> None:
    metadata = SqlMetadataStore("", tmp_path, asyncio.get_running_loop().call_soon_threadsafe)
    state = metadata.open(lambda: initial_rows("boss", "pässword", "first"))
    backend = InternalBackend(metadata, state, {"first"}.__contains__, {"boss"})
    with pytest.raises(AuthenticationRefused, match="loopback"):
        await backend.authenticate("boss", "pässword".encode(), False)
    boss = await backend.authenticate("boss", "pässword".encode(), True)
    assert boss == User("boss", ("administrator",))
    assert all(backend.is_allowed(boss, "first", kind, "any") for kind in ("configure", "write", "read"))
    assert [row.name for row in state.vhosts] == ["first"]
    backend.close()
    metadata.close()


def test_failed_first_start_leaves_no_database(tmp_path: Path) -> None:
    metadata = SqlMetadataStore("", tmp_path, print)
    with pytest.raises(InvalidUser):
        metadata.open(lambda: initial_rows("", "x", "/"))
    assert not (tmp_path / "metadata.sqlite").exists()
    with pytest.raises(MetadataError):
        metadata.submit([], print)
