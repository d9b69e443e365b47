"""The internal backend: logins, changes that last, changes that fail, and who hears of them."""

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
    BackendContext,
    InternalBackend,
    InvalidUser,
    NoSuchUser,
    NoSuchVhost,
    User,
    UserExists,
    initial_rows,
)
from amqpd.auth.passwords import ARGON2ID, RABBIT_SHA256, hash_password
from amqpd.auth.permissions import InvalidPattern
from amqpd.storage.metadata.store import (
    Delete,
    MetadataError,
    PermissionRow,
    Put,
    SqlMetadataStore,
    TopicPermissionRow,
    UserRow,
    VhostRow,
    WriteFailed,
    random_id,
)

GUEST_HASH = hash_password(b"guest")
GUEST = User("guest", ("administrator",))


def rabbit_hash(password: bytes) -> str:
    return base64.b64encode(b"salt" + hashlib.sha256(b"salt" + password).digest()).decode()


class House:
    """A backend over a real database that can be shut and opened again."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.vhosts = {"/", "shop"}
        self.now = 0.0
        self.heard: list[AuthChange] = []
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
        context = BackendContext(self.metadata, state, self.vhosts.__contains__)
        self.backend = InternalBackend(context, clock=lambda: self.now)
        self.backend.listeners.append(self.heard.append)

    def close(self) -> None:
        self.backend.close()
        self.metadata.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def heard_now(self) -> list[AuthChange]:
        heard = self.heard[:]
        self.heard.clear()
        return heard

    def break_database(self) -> Callable[[], None]:
        """Every write fails until the function returned is called."""
        store = self.metadata._core()
        write = store.write

        def broken(changes: object) -> None:
            raise OSError("the disk is on fire")

        store.write = broken  # type: ignore[method-assign, assignment]
        return lambda: setattr(store, "write", write)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


async def login(house: House, name: str, password: bytes) -> bool:
    try:
        user = await house.backend.authenticate(name, password, True)
    except AuthenticationRefused:
        return False
    assert user.name == name
    return True


def counted_checks(house: House, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the algorithms checked from now on in the password thread."""
    checks: list[str] = []
    verify = house.backend._passwords.verify

    async def counted(password: bytes, stored: str, algorithm: str, *turn: Any) -> bool:
        checks.append(algorithm)
        return await verify(password, stored, algorithm, *turn)

    monkeypatch.setattr(house.backend._passwords, "verify", counted)
    return checks


# --- logging in -------------------------------------------------------------------------------------------------------


async def test_login(house: House) -> None:
    assert await house.backend.authenticate("guest", b"guest", True) == GUEST
    for name, password in [("guest", b"Guest"), ("Guest", b"guest"), ("\udcff", b"x"), ("guest", b""), ("", b"")]:
        with pytest.raises(AuthenticationRefused) as refused:
            await house.backend.authenticate(name, password, True)
        assert repr(name) in refused.value.reason
        assert "Guest'" not in refused.value.reason or name == "Guest"  # no password in the log


async def test_guest_comes_from_loopback_only(house: House) -> None:
    await house.backend.authenticate("guest", b"guest", True)  # also with a verified password at hand
    with pytest.raises(AuthenticationRefused, match="loopback"):
        await house.backend.authenticate("guest", b"guest", False)
    await house.backend.add_user("far", b"away")
    assert (await house.backend.authenticate("far", b"away", False)).name == "far"
    house.backend.loopback_users = frozenset()
    assert await house.backend.authenticate("guest", b"guest", False) == GUEST


async def test_whom_a_certificate_names_needs_no_password(house: House) -> None:
    """But has to be there, and where he is from counts as ever."""
    await house.backend.add_user("anna", tags=["management"])  # no password opens it
    assert not await login(house, "anna", b"")
    assert house.backend.authenticate_external("anna", False) == User("anna", ("management",))
    assert house.backend.authenticate_external("guest", True) == GUEST
    with pytest.raises(AuthenticationRefused, match="loopback"):
        house.backend.authenticate_external("guest", False)
    for stranger in ("Anna", "anna\0", ""):
        with pytest.raises(AuthenticationRefused, match="invalid credentials"):
            house.backend.authenticate_external(stranger, True)
    await house.backend.delete_user("anna")
    with pytest.raises(AuthenticationRefused, match="invalid credentials"):
        house.backend.authenticate_external("anna", True)


async def test_a_verified_password_is_not_checked_again_for_five_minutes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = counted_checks(house, monkeypatch)
    assert await login(house, "guest", b"guest")
    assert await login(house, "guest", b"guest")
    assert len(checks) == 1
    assert not await login(house, "guest", b"wrong")
    assert len(checks) == 2
    assert await login(house, "guest", b"guest")
    house.now += 301
    assert await login(house, "guest", b"guest")
    assert len(checks) == 3


async def test_an_unknown_user_is_checked_as_well(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = counted_checks(house, monkeypatch)
    assert not await login(house, "nobody", b"x")
    assert checks == [ARGON2ID]


async def test_a_login_storm_refuses_nobody(house: House) -> None:
    storm = [asyncio.ensure_future(login(house, f"nobody{number}", b"x")) for number in range(300)]
    await asyncio.sleep(0)
    assert await house.backend.authenticate("guest", b"guest", True, "10.0.0.9") == GUEST
    assert sum(attempt.done() for attempt in storm) < 20
    for attempt in storm:
        attempt.cancel()
    await asyncio.gather(*storm, return_exceptions=True)


async def test_a_fleet_with_an_imported_hash_gets_in(house: House) -> None:
    """The first login hashes the password anew while the others are at the door."""
    await house.backend.add_user("u", password_hash=rabbit_hash(b"secret"))
    assert all(await asyncio.gather(*(login(house, "u", b"secret") for _ in range(10))))
    assert house.backend.user("u").hashing_algorithm == ARGON2ID


@pytest.mark.parametrize("change", ["delete", "password"])
async def test_a_user_who_changes_during_the_login_is_refused(
    house: House, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.backend.add_user("u", b"old")
    verify = house.backend._passwords.verify

    async def verify_then_change(*arguments: object) -> bool:
        right = await verify(*arguments)  # type: ignore[arg-type]
        if right:
            await (house.backend.delete_user("u") if change == "delete" else house.backend.change_password("u", b"new"))
        return right

    monkeypatch.setattr(house.backend._passwords, "verify", verify_then_change)
    with pytest.raises(
        AuthenticationRefused, match="deleted during the login" if change == "delete" else "invalid credentials"
    ):
        await house.backend.authenticate("u", b"old", True)
    monkeypatch.undo()
    assert not await login(house, "u", b"old")


async def test_an_imported_hash_opens_and_is_renewed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.backend.add_user("u", password_hash=rabbit_hash(b"secret"), tags=["monitoring"])
    assert not await login(house, "u", b"wrong")
    assert house.backend.user("u").hashing_algorithm == RABBIT_SHA256
    assert await house.backend.authenticate("u", b"secret", True) == User("u", ("monitoring",))
    assert house.backend.user("u").hashing_algorithm == ARGON2ID
    checks = counted_checks(house, monkeypatch)
    assert await login(house, "u", b"secret")
    assert checks == []
    house.reopen()
    assert house.backend.user("u").hashing_algorithm == ARGON2ID
    assert await login(house, "u", b"secret")


async def test_a_hash_that_cannot_be_renewed_opens_all_the_same(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.backend.add_user("u", password_hash=rabbit_hash(b"secret"))
    house.break_database()
    assert await login(house, "u", b"secret")
    assert "cannot renew the password hash" in caplog.text
    assert house.backend.user("u").hashing_algorithm == RABBIT_SHA256


# --- users ------------------------------------------------------------------------------------------------------------


async def test_users_last(house: House) -> None:
    await house.backend.add_user("ünï", b"pass", tags=["management", "own-word", "management"])
    await house.backend.add_user("silent")
    assert house.heard_now() == [AuthChange("user_added", "ünï"), AuthChange("user_added", "silent")]
    house.reopen()
    assert [row.name for row in house.backend.users()] == ["guest", "silent", "ünï"]
    assert house.backend.user("ünï").tags == ("management", "own-word")
    assert await login(house, "ünï", b"pass")
    assert not await login(house, "silent", b"")
    assert not await login(house, "silent", b"x")


async def test_add_user_twice(house: House) -> None:
    with pytest.raises(UserExists):
        await house.backend.add_user("guest", b"x")
    results = await asyncio.gather(*(house.backend.add_user("u", b"x") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results].count(UserExists) == 2
    assert house.heard_now() == [AuthChange("user_added", "u")]
    await house.backend.add_user("guest", b"new", replace=True)
    assert house.backend.user("guest").tags == ()
    assert await login(house, "guest", b"new")
    assert house.heard_now() == [AuthChange("password", "guest"), AuthChange("tags", "guest")]


async def test_change_password_is_felt_at_once(house: House) -> None:
    assert await login(house, "guest", b"guest")
    await house.backend.change_password("guest", b"new")
    assert not await login(house, "guest", b"guest")
    assert await login(house, "guest", b"new")
    assert house.heard_now() == [AuthChange("password", "guest")]
    await house.backend.change_password("guest")  # clear_password
    assert not await login(house, "guest", b"new")
    assert house.backend.user("guest").tags == ("administrator",)


async def test_tags(house: House) -> None:
    assert await login(house, "guest", b"guest")
    await house.backend.set_tags("guest", ["impersonator"])
    assert await house.backend.authenticate("guest", b"guest", True) == User("guest", ("impersonator",))
    assert house.heard_now() == [AuthChange("tags", "guest")]
    house.reopen()
    assert house.backend.user("guest").tags == ("impersonator",)


async def test_delete_user_takes_the_permissions_along(house: House) -> None:
    await house.backend.set_topic_permissions("guest", "/", "amq.topic", "x", "x")
    house.heard_now()
    assert await login(house, "guest", b"guest")
    await house.backend.delete_user("guest")
    assert house.heard_now() == [AuthChange("user_deleted", "guest")]
    assert not await login(house, "guest", b"guest")
    assert not house.backend.is_allowed(GUEST, "/", "read", "q")
    await house.backend.add_user("guest", b"guest")
    assert house.backend.permissions() == []
    assert house.backend.topic_permissions() == []
    assert not house.backend.may_access_vhost(GUEST, "/")
    house.reopen()
    assert house.backend.permissions() == []


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "a\0b", "\udcff"])
async def test_bad_names(house: House, name: str) -> None:
    with pytest.raises(InvalidUser):
        await house.backend.add_user(name, b"x")
    with pytest.raises(InvalidUser):
        initial_rows(name, "x", "/")


@pytest.mark.parametrize("tags", [[""], ["a,b"], ["a b"], ["x" * 256], ["a\n"], [f"t{n}" for n in range(65)]])
async def test_bad_tags(house: House, tags: list[str]) -> None:
    with pytest.raises(InvalidUser):
        await house.backend.set_tags("guest", tags)
    with pytest.raises(InvalidUser):
        await house.backend.add_user("u", b"x", tags=tags)


async def test_bad_hashes(house: House) -> None:
    with pytest.raises(InvalidUser, match="base64"):
        await house.backend.add_user("u", password_hash="!")
    with pytest.raises(InvalidUser, match="md5"):
        await house.backend.change_password("guest", password_hash="x", hashing_algorithm="md5")


async def test_strangers(house: House) -> None:
    backend = house.backend
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


async def test_permissions_last_and_are_felt_at_once(house: House) -> None:
    backend = house.backend
    assert backend.is_allowed(GUEST, "/", "read", "q")
    epoch = backend.epoch
    await backend.set_permissions("guest", "/", "^a", "", "^b")
    assert backend.epoch > epoch
    assert house.heard_now() == [AuthChange("permissions", "guest", "/")]
    assert not backend.is_allowed(GUEST, "/", "read", "q")
    assert backend.is_allowed(GUEST, "/", "read", "b")
    house.reopen()
    assert house.backend.permissions("guest", "/") == [PermissionRow("guest", "/", "^a", "", "^b")]
    assert house.backend.may_access_vhost(GUEST, "/")
    await house.backend.clear_permissions("guest", "/")
    await house.backend.clear_permissions("guest", "/")  # nothing there is no error
    assert not house.backend.may_access_vhost(GUEST, "/")
    assert house.heard_now() == [AuthChange("permissions", "guest", "/")]
    house.reopen()
    assert house.backend.permissions() == []


async def test_topic_permissions_last(house: House) -> None:
    await house.backend.set_topic_permissions("guest", "/", "amq.topic", "^{username}", ".*")
    await house.backend.set_topic_permissions("guest", "/", "other", "", "")
    assert house.heard_now() == [AuthChange("topic_permissions", "guest", "/")] * 2
    house.reopen()
    backend = house.backend
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
    house.reopen()
    assert house.backend.topic_permissions() == []


async def test_bad_patterns_change_nothing(house: House) -> None:
    with pytest.raises(InvalidPattern):
        await house.backend.set_permissions("guest", "/", ".*", "(", ".*")
    with pytest.raises(InvalidPattern):
        await house.backend.set_topic_permissions("guest", "/", "x", "(?=a)", "")
    assert house.backend.permissions() == [PermissionRow("guest", "/", ".*", ".*", ".*")]
    assert house.heard_now() == []


async def test_forget_vhost(house: House) -> None:
    await house.backend.set_permissions("guest", "shop", ".*", ".*", ".*")
    await house.backend.set_topic_permissions("guest", "shop", "t", "", "")
    house.heard_now()
    deleted = asyncio.get_running_loop().create_future()
    house.metadata.submit([Delete(VhostRow("shop", ""))], deleted.set_result)
    assert await deleted is None
    house.backend.remove_vhost("shop")
    assert house.heard_now() == [AuthChange("permissions", "guest", "shop")]
    assert not house.backend.is_allowed(GUEST, "shop", "read", "q")
    assert house.backend.is_allowed(GUEST, "/", "read", "q")
    house.reopen()
    assert [row.vhost for row in house.backend.permissions()] == ["/"]
    assert house.backend.topic_permissions() == []


# --- when things fail -------------------------------------------------------------------------------------------------


async def test_what_is_not_committed_is_not_in_memory(house: House) -> None:
    repair = house.break_database()
    backend = house.backend
    epoch = backend.epoch
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
    assert (backend.epoch, house.heard_now()) == (epoch, [])
    assert await login(house, "guest", b"guest")
    repair()
    await backend.set_tags("guest", [])
    assert backend.user("guest").tags == ()


async def test_a_cancelled_caller_leaves_memory_and_database_the_same(house: House) -> None:
    change = asyncio.ensure_future(house.backend.set_tags("guest", ["monitoring"]))
    await asyncio.sleep(0)
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    await house.backend.set_permissions("guest", "/", "", "", "")  # comes after it in the same thread
    in_memory = house.backend.user("guest").tags
    house.reopen()
    assert in_memory == house.backend.user("guest").tags == ("monitoring",)


async def test_a_failing_listener_does_not_cost_the_others_the_news(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(change: AuthChange) -> None:
        raise ZeroDivisionError

    house.backend.listeners.insert(0, fails)
    await house.backend.set_tags("guest", [])
    assert house.heard_now() == [AuthChange("tags", "guest")]
    assert "a listener failed" in caplog.text


async def test_a_row_with_an_unknown_algorithm_is_told_at_start(house: House, caplog: pytest.LogCaptureFixture) -> None:
    written = asyncio.get_running_loop().create_future()
    house.metadata.submit([Put(UserRow("odd", "x", "md5"))], written.set_result)
    assert await written is None
    house.reopen()
    assert "unknown algorithm 'md5'" in caplog.text
    assert not await login(house, "odd", b"x")
    assert await login(house, "guest", b"guest")


# --- the first start, and guests --------------------------------------------------------------------------------------


async def test_bootstrap(tmp_path: Path) -> None:
    metadata = SqlMetadataStore("", tmp_path, asyncio.get_running_loop().call_soon_threadsafe)
    state = metadata.open(lambda: initial_rows("boss", "pässword", "first"))
    backend = InternalBackend(BackendContext(metadata, state, {"first"}.__contains__, {"boss"}))
    with pytest.raises(AuthenticationRefused, match="loopback"):
        await backend.authenticate("boss", "pässword".encode(), False)
    boss = await backend.authenticate("boss", "pässword".encode(), True)
    assert boss == User("boss", ("administrator",))
    assert all(backend.is_allowed(boss, "first", kind, "any") for kind in ("configure", "write", "read"))
    assert [row.name for row in state.vhosts] == ["first"]
    backend.close()
    metadata.close()


def test_a_bootstrap_that_cannot_be_leaves_no_database(tmp_path: Path) -> None:
    metadata = SqlMetadataStore("", tmp_path, print)
    with pytest.raises(InvalidUser):
        metadata.open(lambda: initial_rows("", "x", "/"))
    assert not (tmp_path / "metadata.sqlite").exists()
    with pytest.raises(MetadataError):
        metadata.submit([], print)
