"""Who may log in, and what may they: the backend that keeps users itself.

`InternalBackend` holds users and permissions in memory and keeps them in the metadata. Every change is checked,
committed, and only then made in memory, on the loop, by the commit's own callback: so a caller that is cancelled
half-way leaves memory and database the same. Changes run one after another.

Invariants: `epoch` rises with every change, so a route cached with its permission knows when to ask again; listeners
hear of each change, so a deleted user's connections can be closed.

Names, hashes and patterns are checked here; the text for a client or an exit code is the caller's business.

Rows of users: what a user's name, tags and hash may be, and the rows of a first start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import copy_context
from typing import Final, Literal, NamedTuple, TypeAlias

from amqpd.auth.login_throttle import FailureBackoff, LoginStats
from amqpd.auth.passwords import (
    ALGORITHMS,
    ARGON2ID,
    RABBIT_SHA256,
    InvalidHash,
    PasswordHasherPool,
    VerifiedPasswordCache,
    check_hash,
    hash_password,
    renewed_at_login,
)
from amqpd.auth.permissions import Kind, Permissions, TopicKind
from amqpd.storage.metadata.interface import MetadataStore
from amqpd.storage.metadata.store import (
    Change,
    Delete,
    MetadataError,
    MetadataState,
    PermissionRow,
    Put,
    Row,
    TopicPermissionRow,
    UserRow,
    VhostRow,
    random_id,
)

KNOWN_TAGS: Final = ("administrator", "monitoring", "policymaker", "management", "impersonator")
"""Tags that mean something; any other word may be a tag too."""
TAGS_MAX: Final = 64
NAME_BYTES_MAX: Final = 255


class AuthError(Exception):
    """A change of users or permissions that is not made; the text is for whoever asked for it."""


class InvalidUser(AuthError):
    """A user name, tag or password hash that cannot be."""


def initial_rows(
    default_user: str,
    default_pass: str,
    default_vhost: str,
    tags: Sequence[str] = ("administrator",),
    permissions: tuple[str, str, str] = (".*", ".*", ".*"),
    hashing: str = ARGON2ID,
) -> list[Row]:
    """The rows of a first start, for `Metadata.open(seed=...)`: a vhost, and a user with these permissions in it.

    permissions: patterns for configure, write and read. hashing: `auth.password_hashing`.
    Cost: one argon2 hash, 21 ms, and argon2's import. Raises: InvalidUser.
    """
    check_name(default_user)
    hashed = hash_password(default_pass.encode(), hashing) if default_pass else ""
    return [
        VhostRow(default_vhost, random_id(), description="Default virtual host"),
        UserRow(default_user, hashed, hashing, checked_tags(tags)),
        PermissionRow(default_user, default_vhost, *permissions),
    ]


def user_row(name: str, tags: Iterable[str], password_hash: str, hashing_algorithm: str) -> UserRow:
    """A user with a hash made elsewhere; an empty one opens nothing. Raises: InvalidUser."""
    check_name(name)
    if not password_hash:
        return UserRow(name, "", ARGON2ID, checked_tags(tags))
    try:
        check_hash(password_hash, hashing_algorithm)
    except InvalidHash as error:
        raise InvalidUser(str(error)) from error
    return UserRow(name, password_hash, hashing_algorithm, checked_tags(tags))


def check_name(name: str) -> None:
    """Raises: InvalidUser."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidUser(f"user name {name!r} is not UTF-8") from None
    if not 0 < size <= NAME_BYTES_MAX or "\0" in name:
        raise InvalidUser(f"a user name has 1 to {NAME_BYTES_MAX} bytes and no NUL, not {name!r}")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order given. Raises: InvalidUser."""
    words = tuple(dict.fromkeys(tags))
    if len(words) > TAGS_MAX:
        raise InvalidUser(f"a user has at most {TAGS_MAX} tags")
    for word in words:
        # A comma separates tags in RabbitMQ's JSON, white space on the command line.
        if not 0 < len(word) <= NAME_BYTES_MAX or not word.isprintable() or set(word) & {",", " "}:
            raise InvalidUser(f"{word!r} is not a tag")
    return words


logger = logging.getLogger(__name__)


class UserExists(AuthError):
    """add_user: that name is taken."""


class NoSuchUser(AuthError):
    """No user of that name."""


class NoSuchVhost(AuthError):
    """No vhost of that name."""


class AuthenticationRefused(Exception):
    """A login that failed. reason: for the log, never for the client (which learns nothing but that)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class User(NamedTuple):
    """Somebody who has logged in."""

    name: str
    tags: tuple[str, ...] = ()


ChangeKind: TypeAlias = Literal["user_added", "user_deleted", "password", "tags", "permissions", "topic_permissions"]


SENTENCES: Final[dict[ChangeKind, str]] = {
    "user_added": "user '%s' was added",
    "user_deleted": "user '%s' was deleted",
    "password": "the password of user '%s' was changed",
    "tags": "the tags of user '%s' were changed",
    "permissions": "the permissions of user '%s' were changed",
    "topic_permissions": "the topic permissions of user '%s' were changed",
}


class AuthChange(NamedTuple):
    """What listeners hear, after the change is made. vhost: of permissions, else None."""

    what: ChangeKind
    user: str
    vhost: str | None = None


class BackendContext(NamedTuple):
    """What a backend is made from, after `Metadata.open`. password_hashing: the algorithm of new hashes."""

    metadata: MetadataStore
    state: MetadataState
    vhost_exists: Callable[[str], bool]
    loopback_users: Collection[str] = ("guest",)
    password_hashing: str = ARGON2ID


class InternalBackend:
    """Users and permissions in memory, persisted through the metadata. Everything is called on the loop."""

    def __init__(self, context: BackendContext, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: in seconds; how old a verified password is."""
        state = context.state
        self._metadata = context.metadata
        self._vhost_exists = context.vhost_exists
        self.loopback_users = frozenset(context.loopback_users)
        # Queues that only administrators may read, if their permissions let them, and nobody may change.
        self.closed_names: frozenset[str] = frozenset()
        """Users who are let in from a loopback address only. May be replaced while running."""
        self.listeners: list[Callable[[AuthChange], None]] = []
        self._users = {row.name: row for row in state.users}
        self._permissions = Permissions(state.permissions, state.topic_permissions)
        self._verified = VerifiedPasswordCache(clock=clock)
        self.failures = FailureBackoff(clock)
        """How long the answer to a wrong password waits."""
        self.attempts = LoginStats()
        """Counted by the front ends, which know the protocol."""
        self._passwords = PasswordHasherPool()
        self._hashing = context.password_hashing
        self.changing = asyncio.Lock()
        """Held from the checks of a change to its commit."""
        for user in state.users:
            if user.password_hash and user.hashing_algorithm not in ALGORITHMS:
                logger.warning("user %r cannot log in: unknown algorithm %r", user.name, user.hashing_algorithm)

    @property
    def epoch(self) -> int:
        """Rises with every change."""
        return self._permissions.epoch

    def close(self) -> None:
        """Logins that wait are cancelled."""
        self._passwords.close()

    # --- logging in -------------------------------------------------------------------------------------------------

    async def authenticate(self, username: str, password: bytes, peer_is_loopback: bool, address: str = "") -> User:
        """The user, when the password is right. Cost: 5 us if verified lately, else 21 ms in a password thread, once
        it is this address's turn. address: of the peer; empty is the broker's own operator.

        Raises: Refused: unknown user, wrong or blank password, a loopback user from elsewhere. How long whoever is
        refused waits for the answer is `failures`' and the caller's business.
        """
        row = self._users.get(username)
        if username in self.loopback_users and not peer_is_loopback:
            raise AuthenticationRefused(f"user {username!r} can only connect via a loopback address")
        if not password:
            raise AuthenticationRefused(f"user {username!r}: a blank password is never accepted")  # rabbit
        stored, algorithm = (row.password_hash, row.hashing_algorithm) if row is not None else ("", ARGON2ID)

        def known() -> bool:
            return row is not None and self._verified.holds(username, password, stored)

        if row is not None and known():
            return User(row.name, row.tags)
        right = await self._passwords.verify(password, stored, algorithm, address, username, known)
        if row is None or not right:
            raise AuthenticationRefused(f"user {username!r}: invalid credentials")
        now = self._users.get(username)
        if now is None:
            raise AuthenticationRefused(f"user {username!r} was deleted during the login")
        if now.password_hash != stored:
            # Another password, or the same one hashed anew for another login of the user.
            return await self.authenticate(username, password, peer_is_loopback, address)
        if renewed_at_login(algorithm, self._hashing):
            now = await self._rehash(now, password)
        self._verified.remember(username, password, now.password_hash)
        return User(now.name, now.tags)

    def authenticate_external(self, username: str, peer_is_loopback: bool) -> User:
        """The user whom a TLS client's certificate names; no password is asked for. Raises: Refused, as above."""
        row = self._users.get(username)
        if row is None:
            raise AuthenticationRefused(f"user {username!r}: invalid credentials")
        if username in self.loopback_users and not peer_is_loopback:
            raise AuthenticationRefused(f"user {username!r} can only connect via a loopback address")
        return User(row.name, row.tags)

    async def _rehash(self, row: UserRow, password: bytes) -> UserRow:
        """Replaces a hash that is of the other kind than is asked for, once per user: RabbitMQ's fast ones by argon2id,
        or argon2id by one that RabbitMQ can read. The login has succeeded, whatever happens here.

        Returns the row that `password` belongs to: the renewed one, or the one given.
        """
        other = await self._passwords.hash(password, self._hashing)
        async with self.changing:
            now = self._users.get(row.name)
            if now is None or now.password_hash != row.password_hash:
                return row
            renewed = now._replace(password_hash=other, hashing_algorithm=self._hashing)
            try:
                await self._commit([Put(renewed)], lambda: self._keep(renewed))
            except MetadataError as error:
                logger.warning("the password hash of user %r is not renewed: %s", row.name, error)
                return row
        return renewed

    # --- questions --------------------------------------------------------------------------------------------------

    def may_access_vhost(self, user: User, vhost: str) -> bool:
        """A permission for the vhost, whatever its patterns."""
        return self._permissions.may_access_vhost(user.name, vhost)

    def is_allowed(self, user: User, vhost: str, kind: Kind, name: str) -> bool:
        """Whether the pattern of `kind` matches. Cost: 0.3 us when asked before."""
        if name in self.closed_names and (kind != "read" or "administrator" not in user.tags):
            return False
        return self._permissions.may(user.name, vhost, kind, name)

    def has_topic_permissions(self, user: User, vhost: str, exchange: str) -> bool:
        """Whether the user has a topic permission for the exchange."""
        return self._permissions.topic_limited(user.name, vhost, exchange)

    def is_topic_allowed(self, user: User, vhost: str, exchange: str, kind: TopicKind, routing_key: str) -> bool:
        """True without a topic permission for the exchange. Cost: 0.2 us, 2 us with one."""
        return self._permissions.may_topic(user.name, vhost, exchange, kind, routing_key)

    # --- users ------------------------------------------------------------------------------------------------------

    def users(self) -> list[UserRow]:
        """All users, by name. The rows hold the hashes."""
        return sorted(self._users.values())

    def user(self, name: str) -> UserRow:
        """Raises: NoSuchUser."""
        row = self._users.get(name)
        if row is None:
            raise NoSuchUser(f"user '{name}' does not exist")
        return row

    async def add_user(
        self,
        name: str,
        password: bytes = b"",
        *,
        tags: Iterable[str] = (),
        password_hash: str | None = None,
        hashing_algorithm: str = RABBIT_SHA256,
        replace: bool = False,
    ) -> None:
        """A new user, without permissions; `replace`: or another password and other tags for the one there is.

        password_hash: instead of a password (import); hashing_algorithm belongs to it. Neither: no password opens the
        user. Raises: UserExists, InvalidUser, MetadataError (the database fails), as all the changes below.
        """
        check_name(name)
        words = checked_tags(tags)
        if name in self._users and not replace:  # before 21 ms are spent
            raise UserExists(f"user '{name}' already exists")
        stored, algorithm = await self._hashed(password, password_hash, hashing_algorithm)
        row = UserRow(name, stored, algorithm, words)
        async with self.changing:
            before = self._users.get(name)
            if before is not None and not replace:
                raise UserExists(f"user '{name}' already exists")
            changes = [AuthChange("user_added", name)]
            if before is not None:
                changes = [AuthChange("password", name), AuthChange("tags", name)]
            await self._commit([Put(row)], lambda: self._keep(row, *changes))

    async def delete_user(self, name: str) -> None:
        """The user and the permissions. Raises: NoSuchUser."""
        async with self.changing:
            row = self.user(name)
            await self._commit([Delete(row)], lambda: self._drop(row))

    async def change_password(
        self,
        name: str,
        password: bytes = b"",
        *,
        password_hash: str | None = None,
        hashing_algorithm: str = RABBIT_SHA256,
    ) -> None:
        """Another password; with neither password nor hash none opens the user. Raises: NoSuchUser, InvalidUser."""
        self.user(name)
        stored, algorithm = await self._hashed(password, password_hash, hashing_algorithm)
        async with self.changing:
            row = self.user(name)._replace(password_hash=stored, hashing_algorithm=algorithm)
            await self._commit([Put(row)], lambda: self._keep(row, AuthChange("password", name)))

    async def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """These tags instead of the former. Raises: NoSuchUser, InvalidUser."""
        words = checked_tags(tags)
        async with self.changing:
            row = self.user(name)._replace(tags=words)
            await self._commit([Put(row)], lambda: self._keep(row, AuthChange("tags", name)))

    # --- permissions ------------------------------------------------------------------------------------------------

    def permissions(self, user: str | None = None, vhost: str | None = None) -> list[PermissionRow]:
        """Of one user, in one vhost, both or all. Raises: NoSuchUser, NoSuchVhost."""
        self._check_exist(user, vhost)
        return self._permissions.rows(user, vhost)

    def topic_permissions(self, user: str | None = None, vhost: str | None = None) -> list[TopicPermissionRow]:
        """Likewise."""
        self._check_exist(user, vhost)
        return self._permissions.topic_rows(user, vhost)

    async def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Three patterns. Raises: NoSuchUser, NoSuchVhost, InvalidPattern."""
        await self._put_permission(PermissionRow(user, vhost, configure, write, read))

    async def clear_permissions(self, user: str, vhost: str) -> None:
        """No access to the vhost any more; no error if there was none. Raises: NoSuchUser, NoSuchVhost."""
        async with self.changing:
            await self._remove_permissions(self.permissions(user, vhost), AuthChange("permissions", user, vhost))

    async def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Two patterns; {username} and {vhost} stand for themselves, escaped. The exchange need not exist.

        Raises: NoSuchUser, NoSuchVhost, InvalidPattern.
        """
        await self._put_permission(TopicPermissionRow(user, vhost, exchange, write, read))

    async def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Of one exchange or of all; every key is allowed again. Raises: NoSuchUser, NoSuchVhost."""
        async with self.changing:
            rows = [row for row in self.topic_permissions(user, vhost) if exchange in (None, row.exchange)]
            await self._remove_permissions(rows, AuthChange("topic_permissions", user, vhost))

    # --- many at once -----------------------------------------------------------------------------------------------

    def save_all(self, users: Sequence[UserRow], permissions: Sequence[PermissionRow | TopicPermissionRow]) -> None:
        """These rows, which the caller has checked and committed while it held `changing`: new ones, or instead of the
        former.
        """
        for user in users:
            if user.name in self._users:
                self._keep(user, AuthChange("password", user.name), AuthChange("tags", user.name))
            else:
                self._keep(user, AuthChange("user_added", user.name))
        for row in permissions:
            self._permissions.put(row)
            self._tell(_changed(row))

    def forget_vhost(self, vhost: str) -> None:
        """The vhost is gone; the database has dropped its permissions with it, memory does so here."""
        rows = self._permissions.rows(vhost=vhost)
        topic_rows = self._permissions.topic_rows(vhost=vhost)
        self._permissions.remove([*rows, *topic_rows])
        for user in sorted({row.user for row in rows}):
            self._tell(AuthChange("permissions", user, vhost))

    def follow(self, change: Put | Delete) -> None:
        """A row that another node of a cluster has committed: of a user, a permission, a topic permission; others are
        nobody's here. Nothing where it is so already: what this node commits comes back to it.
        """
        row = change.row
        if isinstance(row, UserRow):
            self._follow_user(row, isinstance(change, Put))
        elif isinstance(row, PermissionRow | TopicPermissionRow):
            now = self._permissions.find(row)
            if isinstance(change, Put) and now != row:
                self._permissions.put(row)
                self._tell(_changed(row))
            elif isinstance(change, Delete) and now is not None:
                self._permissions.remove([now])
                self._tell(_changed(row))

    def _follow_user(self, row: UserRow, there: bool) -> None:
        now = self._users.get(row.name)
        if not there:
            if now is not None:
                self._drop(now)
        elif now is None:
            self._keep(row, AuthChange("user_added", row.name))
        elif now != row:
            changes = [AuthChange("tags", row.name)] if now.tags != row.tags else []
            if (now.password_hash, now.hashing_algorithm) != (row.password_hash, row.hashing_algorithm):
                changes.append(AuthChange("password", row.name))
            self._keep(row, *changes)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _put_permission(self, row: PermissionRow | TopicPermissionRow) -> None:
        self._permissions.check(row)

        def keep() -> None:
            self._permissions.put(row)
            self._tell(_changed(row))

        async with self.changing:
            self._check_exist(row.user, row.vhost)
            await self._commit([Put(row)], keep)

    async def _remove_permissions(self, rows: Sequence[PermissionRow | TopicPermissionRow], change: AuthChange) -> None:
        def drop() -> None:
            self._permissions.remove(rows)
            self._tell(change)

        if rows:
            await self._commit([Delete(row) for row in rows], drop)

    def _check_exist(self, user: str | None, vhost: str | None) -> None:
        if user is not None:
            self.user(user)
        if vhost is not None and not self._vhost_exists(vhost):
            raise NoSuchVhost(f"vhost '{vhost}' does not exist")

    async def _hashed(self, password: bytes, password_hash: str | None, algorithm: str) -> tuple[str, str]:
        """Stored hash and its algorithm. Raises: InvalidUser."""
        if password_hash is not None:
            try:
                check_hash(password_hash, algorithm)
            except InvalidHash as error:
                raise InvalidUser(str(error)) from error
            return password_hash, algorithm
        return (await self._passwords.hash(password, self._hashing) if password else ""), self._hashing

    async def hashed(self, name: str, password: bytes) -> tuple[str, str]:
        """Stored hash and algorithm for a user who is to come, or to stay, with this password: those there are, if it
        opens them; else new ones. Cost: 21 ms, or twice as much. Raises: nothing.
        """
        row = self._users.get(name)
        if row is not None and row.password_hash and not renewed_at_login(row.hashing_algorithm, self._hashing):
            stored, algorithm = row.password_hash, row.hashing_algorithm
            if await self._passwords.verify(password, stored, algorithm, "", "", _not_known):
                return stored, algorithm
        return await self._hashed(password, None, "")

    async def _commit(self, changes: Sequence[Change], apply: Callable[[], None]) -> None:
        """Commits, then calls `apply` on the loop, also when nobody waits any more. Raises: MetadataError."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        context = copy_context()  # who does it, for those who listen

        def done(error: BaseException | None) -> None:
            if error is None:
                try:
                    context.run(apply)
                except Exception as bug:  # what waits for it is answered with an error
                    logger.exception("auth: a bug of the broker behind a commit")
                    error = bug
            if committed.done():
                return  # the caller was cancelled
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        self._metadata.submit(changes, done)
        await committed

    def _keep(self, row: UserRow, *changes: AuthChange) -> None:
        self._users[row.name] = row
        self._verified.forget(row.name)
        self._permissions.changed()
        for change in changes:
            self._tell(change)

    def _drop(self, row: UserRow) -> None:
        if self._users.pop(row.name, None) is None:
            return  # of a cluster another node was told first
        self._verified.forget(row.name)
        self._permissions.remove([*self._permissions.rows(row.name), *self._permissions.topic_rows(row.name)])
        self._tell(AuthChange("user_deleted", row.name))

    def _tell(self, change: AuthChange) -> None:
        logger.info(SENTENCES[change.what], change.user, extra={"user": change.user, "vhost": change.vhost})
        for listener in self.listeners:
            try:
                listener(change)
            except Exception:
                # The change is made; one listener's bug must not hide that from the caller or from the other listeners.
                logger.exception("auth: a listener failed on %r", change)


def _not_known() -> bool:
    return False


def _changed(row: PermissionRow | TopicPermissionRow) -> AuthChange:
    return AuthChange("permissions" if isinstance(row, PermissionRow) else "topic_permissions", row.user, row.vhost)
