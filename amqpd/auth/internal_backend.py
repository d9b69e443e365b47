"""Internal authentication backend: users and permissions in memory, stored in the metadata database.

`InternalBackend` checks each change, commits it, and applies it in memory in the callback of the commit, on the event
loop. So memory and database agree even if the caller was cancelled meanwhile. Changes run one after another.

Invariant: listeners get each change. They drop routes cached together with a permission, and close the connections of
a deleted user.

This module checks names, hashes and patterns. The caller chooses the text or the exit code for its client.
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
    NewPassword,
    PasswordHasherPool,
    VerifiedPasswordCache,
    check_hash,
    needs_rehash,
    secrets_of,
)
from amqpd.auth.permissions import Kind, Permissions, TopicKind
from amqpd.auth.scram import InvalidCredentials, ScramCredentials, parse_credentials, unknown_user
from amqpd.storage.metadata.rows import (
    Change,
    Delete,
    PermissionRow,
    Put,
    Row,
    ScramRow,
    TopicPermissionRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.store import MetadataError, MetadataState, MetadataStore, random_id

TAGS_MAX: Final = 64
NAME_BYTES_MAX: Final = 255


class AuthError(Exception):
    """A rejected change of users or permissions. The text is for the user that asked for the change."""


class InvalidUser(AuthError):
    """Invalid user name, tag or password hash."""


def initial_rows(
    default_user: str,
    default_pass: str,
    default_vhost: str,
    tags: Sequence[str] = ("administrator",),
    permissions: tuple[str, str, str] = (".*", ".*", ".*"),
    hashing: str = ARGON2ID,
    with_scram: bool = False,
) -> list[Row]:
    """Return the rows of a first start for `Metadata.open(seed=...)`: a vhost, and a user with permissions in it.

    Args:
        permissions: patterns for configure, write and read.
        hashing: the setting `auth.password_hashing`.
        with_scram: make SCRAM credentials, too.

    Raises: InvalidUser.
    Cost: one argon2 hash, 21 ms, and the import of argon2; SCRAM credentials 20 ms.
    """
    check_name(default_user)
    secrets = secrets_of(default_pass.encode(), hashing, with_scram) if default_pass else NewPassword("", hashing)
    scram = [ScramRow(default_user, *secrets.scram)] if secrets.scram is not None else []
    return [
        VhostRow(default_vhost, random_id(), description="Default virtual host"),
        UserRow(default_user, secrets.hash, hashing, validate_tags(tags)),
        PermissionRow(default_user, default_vhost, *permissions),
        *scram,
    ]


def user_row(name: str, tags: Iterable[str], password_hash: str, hashing_algorithm: str) -> UserRow:
    """Return the row of a user with an existing hash. With an empty hash no password is accepted.

    Raises: InvalidUser.
    """
    check_name(name)
    if not password_hash:
        return UserRow(name, "", ARGON2ID, validate_tags(tags))
    try:
        check_hash(password_hash, hashing_algorithm)
    except InvalidHash as error:
        raise InvalidUser(str(error)) from error
    return UserRow(name, password_hash, hashing_algorithm, validate_tags(tags))


def check_name(name: str) -> None:
    """Raise InvalidUser unless `name` is a valid user name."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidUser(f"user name {name!r} is not UTF-8") from None
    if not 0 < size <= NAME_BYTES_MAX or "\0" in name:
        raise InvalidUser(f"a user name must have 1 to {NAME_BYTES_MAX} bytes and no NUL, not {name!r}")


def validate_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags without duplicates, in the given order. Raises: InvalidUser."""
    words = tuple(dict.fromkeys(tags))
    if len(words) > TAGS_MAX:
        raise InvalidUser(f"a user can have at most {TAGS_MAX} tags")
    for word in words:
        # Commas separate tags in RabbitMQ's JSON, spaces on the command line.
        if not 0 < len(word) <= NAME_BYTES_MAX or not word.isprintable() or set(word) & {",", " "}:
            raise InvalidUser(f"{word!r} is not a valid tag")
    return words


logger = logging.getLogger(__name__)


class UserExists(AuthError):
    """A user with this name exists already."""


class NoSuchUser(AuthError):
    """The user does not exist."""


class NoSuchVhost(AuthError):
    """The vhost does not exist."""


class AuthenticationRefused(Exception):
    """A failed login. `reason` is for the log. The client must not see it: it would learn why the login failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class User(NamedTuple):
    """A logged-in user."""

    name: str
    tags: tuple[str, ...] = ()


ChangeKind: TypeAlias = Literal["user_added", "user_deleted", "password", "tags", "permissions", "topic_permissions"]


CHANGE_LOG_TEXTS: Final[dict[ChangeKind, str]] = {
    "user_added": "user '%s' was added",
    "user_deleted": "user '%s' was deleted",
    "password": "the password of user '%s' was changed",
    "tags": "the tags of user '%s' were changed",
    "permissions": "the permissions of user '%s' were changed",
    "topic_permissions": "the topic permissions of user '%s' were changed",
}


class AuthChange(NamedTuple):
    """A change that the backend has applied, for listeners.

    Attributes:
        vhost: the vhost of changed permissions, else None.
    """

    kind: ChangeKind
    user: str
    vhost: str | None = None


class InternalBackend:
    """Users and permissions in memory, stored in the metadata database. Call all methods on the event loop.

    Attributes:
        loopback_users: users that may log in from a loopback address only. May be replaced while the broker runs.
        closed_names: queues that only administrators may read, if their permissions allow it. No user may write or
            configure them.
        failure_backoff: computes how long the answer to a wrong password is delayed.
        login_stats: login counters, updated by the AMQP and HTTP servers, which know the protocol.
        change_lock: lock held from the checks of a change until its commit.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        state: MetadataState,
        vhost_exists: Callable[[str], bool],
        loopback_users: Collection[str] = ("guest",),
        password_hashing: str = ARGON2ID,
        with_scram: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the backend from the rows of the database.

        Args:
            password_hashing: the algorithm of new hashes.
            with_scram: make SCRAM credentials when a password is set.
            clock: returns seconds; it measures the age of verified passwords and of failed logins.
        """
        self._metadata = metadata
        self._vhost_exists = vhost_exists
        self.loopback_users = frozenset(loopback_users)
        self.closed_names: frozenset[str] = frozenset()
        self.listeners: list[Callable[[AuthChange], None]] = []
        self._users = {row.name: row for row in state.users}
        self._scram = {row.user: row for row in state.scram_credentials}
        self._scram_secret = state.instance_id.encode()
        self._with_scram = with_scram
        self._permissions = Permissions(state.permissions, state.topic_permissions)
        self._verified = VerifiedPasswordCache(clock=clock)
        self.failure_backoff = FailureBackoff(clock)
        self.login_stats = LoginStats()
        self._passwords = PasswordHasherPool()
        self._hashing = password_hashing
        self.change_lock = asyncio.Lock()
        for user in state.users:
            if user.password_hash and user.hashing_algorithm not in ALGORITHMS:
                logger.warning("user %r cannot log in: unknown algorithm %r", user.name, user.hashing_algorithm)

    def close(self) -> None:
        """Cancel waiting logins and stop the password threads."""
        self._passwords.close()

    # --- logging in -------------------------------------------------------------------------------------------------

    async def authenticate(self, username: str, password: bytes, peer_is_loopback: bool, address: str = "") -> User:
        """Check a password and return the user.

        Args:
            address: the address of the peer; empty for the operator of this node.

        Raises: AuthenticationRefused: unknown user, wrong or blank password, or a loopback user from another address.
        Cost: 5 us if the password was verified recently, else 21 ms in a password thread and the wait for a turn.
        """
        row = self._users.get(username)
        if username in self.loopback_users and not peer_is_loopback:
            raise AuthenticationRefused(f"user {username!r} can only connect via a loopback address")
        if not password:
            raise AuthenticationRefused(f"user {username!r}: a blank password is never accepted")  # RabbitMQ
        stored, algorithm = (row.password_hash, row.hashing_algorithm) if row is not None else ("", ARGON2ID)

        def is_verified() -> bool:
            return row is not None and self._verified.is_verified(username, password, stored)

        if row is not None and is_verified():
            return User(row.name, row.tags)
        is_correct = await self._passwords.verify(password, stored, algorithm, address, username, is_verified)
        if row is None or not is_correct:
            raise AuthenticationRefused(f"user {username!r}: invalid credentials")
        now = self._users.get(username)
        if now is None:
            raise AuthenticationRefused(f"user {username!r} was deleted during the login")
        if now.password_hash != stored:
            # The password has changed, or another login of the user has replaced the hash.
            return await self.authenticate(username, password, peer_is_loopback, address)
        if needs_rehash(algorithm, self._hashing):
            now = await self._rehash(now, password)
        self._verified.add(username, password, now.password_hash)
        return User(now.name, now.tags)

    def authenticate_external(self, username: str, peer_is_loopback: bool) -> User:
        """Return the user that is named by a TLS client's certificate, without a password.

        Raises: AuthenticationRefused.
        """
        row = self._users.get(username)
        if row is None:
            raise AuthenticationRefused(f"user {username!r}: invalid credentials")
        if username in self.loopback_users and not peer_is_loopback:
            raise AuthenticationRefused(f"user {username!r} can only connect via a loopback address")
        return User(row.name, row.tags)

    def scram_credentials(self, username: str, mechanism: str) -> ScramCredentials | None:
        """Return the SCRAM credentials of a user, or None. Cost: 5 us."""
        row = self._scram.get(username)
        text = "" if row is None else row.sha256 if mechanism == "SCRAM-SHA-256" else row.sha512
        try:
            return parse_credentials(mechanism, text) if text else None
        except InvalidCredentials as error:  # another version, or another program, wrote it
            logger.error("the SCRAM credentials of user %r are ignored: %s", username, error)
            return None

    def unknown_scram_user(self, username: str, mechanism: str) -> ScramCredentials:
        """Return credentials that no client can match, with the same salt each time. Cost: 5 us."""
        return unknown_user(mechanism, username, self._scram_secret)

    async def _rehash(self, row: UserRow, password: bytes) -> UserRow:
        """Replace a hash of RabbitMQ by argon2id, or argon2id by RabbitMQ's, as `auth.password_hashing` asks.

        The login succeeds even if this fails.

        Returns: The row that `password` belongs to: the new one or `row`.
        """
        other = await self._passwords.hash(password, self._hashing)
        async with self.change_lock:
            now = self._users.get(row.name)
            if now is None or now.password_hash != row.password_hash:
                return row
            renewed = now._replace(password_hash=other, hashing_algorithm=self._hashing)
            try:
                await self._commit([Put(renewed)], lambda: self._apply_user(renewed))
            except MetadataError as error:
                logger.warning("cannot renew the password hash of user %r: %s", row.name, error)
                return row
        return renewed

    # --- questions --------------------------------------------------------------------------------------------------

    def may_access_vhost(self, user: User, vhost: str) -> bool:
        """Return whether the user has permissions in the vhost, with any patterns."""
        return self._permissions.may_access_vhost(user.name, vhost)

    def is_allowed(self, user: User, vhost: str, kind: Kind, name: str) -> bool:
        """Return whether the pattern of `kind` matches, and `closed_names` permits it. Cost: 0.3 us from the cache."""
        if name in self.closed_names and (kind != "read" or "administrator" not in user.tags):
            return False
        return self._permissions.is_allowed(user.name, vhost, kind, name)

    def has_topic_permissions(self, user: User, vhost: str, exchange: str) -> bool:
        """Return whether the user has a topic permission for the exchange."""
        return self._permissions.has_topic_permission(user.name, vhost, exchange)

    def is_topic_allowed(self, user: User, vhost: str, exchange: str, kind: TopicKind, routing_key: str) -> bool:
        """Return whether the routing key is allowed; without a topic permission all are.

        Cost: 0.2 us, with one 2 us.
        """
        return self._permissions.is_topic_allowed(user.name, vhost, exchange, kind, routing_key)

    # --- users ------------------------------------------------------------------------------------------------------

    def users(self) -> list[UserRow]:
        """Return all users by name. The rows contain the hashes."""
        return sorted(self._users.values())

    def user(self, name: str) -> UserRow:
        """Return the row of a user. Raises: NoSuchUser."""
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
        """Add a user without permissions, or replace password and tags of an existing one.

        Without password and hash, the user cannot log in with a password.

        Args:
            password_hash: an imported hash, instead of a password.
            hashing_algorithm: the algorithm of `password_hash`.
            replace: replace an existing user instead of raising UserExists.

        Raises: UserExists, InvalidUser, MetadataError if the commit fails. All changes below can raise MetadataError.
        """
        check_name(name)
        words = validate_tags(tags)
        if name in self._users and not replace:  # before spending 21 ms
            raise UserExists(f"user '{name}' already exists")
        secrets = await self._secrets(password, password_hash, hashing_algorithm)
        row = UserRow(name, secrets.hash, secrets.algorithm, words)
        async with self.change_lock:
            before = self._users.get(name)
            if before is not None and not replace:
                raise UserExists(f"user '{name}' already exists")
            changes = [AuthChange("user_added", name)]
            if before is not None:
                changes = [AuthChange("password", name), AuthChange("tags", name)]
            await self._commit_password(row, secrets, *changes)

    async def delete_user(self, name: str) -> None:
        """Delete a user with its permissions. Raises: NoSuchUser."""
        async with self.change_lock:
            row = self.user(name)
            await self._commit([Delete(row)], lambda: self._apply_deletion(row))

    async def change_password(self, name: str, password: bytes = b"") -> None:
        """Change a password; an empty one: the user cannot log in with a password. Raises: NoSuchUser."""
        self.user(name)
        secrets = await self._secrets(password, None, "")
        async with self.change_lock:
            row = self.user(name)._replace(password_hash=secrets.hash, hashing_algorithm=secrets.algorithm)
            await self._commit_password(row, secrets, AuthChange("password", name))

    async def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Replace the tags of a user. Raises: NoSuchUser, InvalidUser."""
        words = validate_tags(tags)
        async with self.change_lock:
            row = self.user(name)._replace(tags=words)
            await self._commit([Put(row)], lambda: self._apply_user(row, AuthChange("tags", name)))

    # --- permissions ------------------------------------------------------------------------------------------------

    def permissions(self, user: str | None = None, vhost: str | None = None) -> list[PermissionRow]:
        """Return permissions, filtered by user and vhost if given. Raises: NoSuchUser, NoSuchVhost."""
        self._check_exist(user, vhost)
        return self._permissions.rows(user, vhost)

    def topic_permissions(self, user: str | None = None, vhost: str | None = None) -> list[TopicPermissionRow]:
        """Return topic permissions, filtered by user and vhost if given. Raises: NoSuchUser, NoSuchVhost."""
        self._check_exist(user, vhost)
        return self._permissions.topic_rows(user, vhost)

    async def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Set the three patterns of a user in a vhost. Raises: NoSuchUser, NoSuchVhost, InvalidPattern."""
        await self._put_permission(PermissionRow(user, vhost, configure, write, read))

    async def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove the permissions of a user in a vhost, if there are any. Raises: NoSuchUser, NoSuchVhost."""
        async with self.change_lock:
            await self._remove_permissions(self.permissions(user, vhost), AuthChange("permissions", user, vhost))

    async def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Set the two patterns for routing keys of an exchange, which need not exist.

        The patterns may contain the variables {username} and {vhost}. Raises: NoSuchUser, NoSuchVhost,
        InvalidPattern.
        """
        await self._put_permission(TopicPermissionRow(user, vhost, exchange, write, read))

    async def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Remove topic permissions for one exchange or for all. Raises: NoSuchUser, NoSuchVhost."""
        async with self.change_lock:
            rows = [row for row in self.topic_permissions(user, vhost) if exchange in (None, row.exchange)]
            await self._remove_permissions(rows, AuthChange("topic_permissions", user, vhost))

    # -- changes without a commit of our own ---------------------------------------------------------------------------

    def apply_committed(
        self,
        users: Sequence[UserRow],
        permissions: Sequence[PermissionRow | TopicPermissionRow],
        scram: Sequence[Put | Delete] = (),
    ) -> None:
        """Apply rows that the caller has checked and committed while it held `change_lock`.

        Args:
            scram: changes of SCRAM credentials, from `scram_change`.
        """
        for change in scram:
            self._apply_scram(change)
        for user in users:
            if user.name in self._users:
                self._apply_user(user, AuthChange("password", user.name), AuthChange("tags", user.name))
            else:
                self._apply_user(user, AuthChange("user_added", user.name))
        for row in permissions:
            self._permissions.put(row)
            self._notify(_changed(row))

    def remove_vhost(self, vhost: str) -> None:
        """Remove the permissions of a deleted vhost from memory. The database removes its rows with the vhost."""
        rows = self._permissions.rows(vhost=vhost)
        topic_rows = self._permissions.topic_rows(vhost=vhost)
        self._permissions.remove([*rows, *topic_rows])
        for user in sorted({row.user for row in rows}):
            self._notify(AuthChange("permissions", user, vhost))

    def apply_change(self, change: Put | Delete) -> None:
        """Apply a change that a node of the cluster has committed, this one included.

        Rows other than users, permissions and topic permissions are ignored, and so are rows that are equal in
        memory.
        """
        row = change.row
        if isinstance(row, UserRow):
            self._follow_user(row, isinstance(change, Put))
        elif isinstance(row, ScramRow):
            self._apply_scram(change)
        elif isinstance(row, PermissionRow | TopicPermissionRow):
            now = self._permissions.find(row)
            if isinstance(change, Put) and now != row:
                self._permissions.put(row)
                self._notify(_changed(row))
            elif isinstance(change, Delete) and now is not None:
                self._permissions.remove([now])
                self._notify(_changed(row))

    def _follow_user(self, row: UserRow, exists: bool) -> None:
        now = self._users.get(row.name)
        if not exists:
            if now is not None:
                self._apply_deletion(now)
        elif now is None:
            self._apply_user(row, AuthChange("user_added", row.name))
        elif now != row:
            changes = [AuthChange("tags", row.name)] if now.tags != row.tags else []
            if (now.password_hash, now.hashing_algorithm) != (row.password_hash, row.hashing_algorithm):
                changes.append(AuthChange("password", row.name))
            self._apply_user(row, *changes)

    # -- helpers -------------------------------------------------------------------------------------------------------

    async def _put_permission(self, row: PermissionRow | TopicPermissionRow) -> None:
        self._permissions.check_patterns(row)

        def keep() -> None:
            self._permissions.put(row)
            self._notify(_changed(row))

        async with self.change_lock:
            self._check_exist(row.user, row.vhost)
            await self._commit([Put(row)], keep)

    async def _remove_permissions(self, rows: Sequence[PermissionRow | TopicPermissionRow], change: AuthChange) -> None:
        def drop() -> None:
            self._permissions.remove(rows)
            self._notify(change)

        if rows:
            await self._commit([Delete(row) for row in rows], drop)

    def _check_exist(self, user: str | None, vhost: str | None) -> None:
        if user is not None:
            self.user(user)
        if vhost is not None and not self._vhost_exists(vhost):
            raise NoSuchVhost(f"vhost '{vhost}' does not exist")

    async def _secrets(self, password: bytes, password_hash: str | None, algorithm: str) -> NewPassword:
        """Return what to store for a password or a hash. Raises: InvalidUser."""
        if password_hash is not None:
            try:
                check_hash(password_hash, algorithm)
            except InvalidHash as error:
                raise InvalidUser(str(error)) from error
            return NewPassword(password_hash, algorithm)
        if not password:
            return NewPassword("", self._hashing)
        return await self._passwords.make(password, self._hashing, self._with_scram)

    async def secrets_for_user(self, name: str, password: bytes) -> NewPassword:
        """Return what to store for a user that will have this password. Does not raise.

        If the user's stored hash matches the password, it is returned unchanged. Cost: 21 ms, or twice that if it
        does not match; SCRAM credentials 20 ms.
        """
        row = self._users.get(name)
        if row is not None and row.password_hash and not needs_rehash(row.hashing_algorithm, self._hashing):
            stored, algorithm = row.password_hash, row.hashing_algorithm
            if await self._passwords.verify(password, stored, algorithm, "", "", lambda: False):
                scram = self._scram.get(name)
                if scram is not None or not self._with_scram:
                    return NewPassword(stored, algorithm, None if scram is None else (scram.sha256, scram.sha512))
                made = await self._passwords.make(password, algorithm, True)
                return made._replace(hash=stored)
        return await self._secrets(password, None, "")

    def scram_change(self, row: UserRow, scram: tuple[str, str] | None) -> Put | Delete | None:
        """Return the change of a user's SCRAM credentials that belongs to this new row, or None.

        Args:
            scram: the new credentials; None: keep the present ones, unless the password's hash changes.
        """
        if scram is not None:
            return Put(ScramRow(row.name, *scram))
        now = self._users.get(row.name)
        if row.name not in self._scram or (now is not None and now.password_hash == row.password_hash):
            return None
        return Delete(ScramRow(row.name, "", ""))

    async def set_scram(self, name: str, sha256: str, sha512: str) -> None:
        """Replace the SCRAM credentials of a user; empty texts remove them. Raises: NoSuchUser.

        The caller holds `change_lock`, from its look at the present ones on.
        """
        self.user(name)
        row = ScramRow(name, sha256, sha512)
        change: Put | Delete = Put(row) if sha256 or sha512 else Delete(row)

        def apply() -> None:
            self._apply_scram(change)
            self._notify(AuthChange("password", name))

        await self._commit([change], apply)

    async def _commit_password(self, row: UserRow, secrets: NewPassword, *changes: AuthChange) -> None:
        scram = self.scram_change(row, secrets.scram)
        if scram is None and not secrets.hash and row.name in self._scram:
            scram = Delete(ScramRow(row.name, "", ""))

        def apply() -> None:
            if scram is not None:
                self._apply_scram(scram)
            self._apply_user(row, *changes)

        await self._commit([Put(row)] if scram is None else [Put(row), scram], apply)

    async def _commit(self, changes: Sequence[Change], apply: Callable[[], None]) -> None:
        """Commit the changes, then call `apply` on the loop, even if the caller was cancelled.

        Raises: MetadataError.
        """
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        context = copy_context()  # for the audit log: listeners see the user that made the change

        def done(error: BaseException | None) -> None:
            if error is None:
                try:
                    context.run(apply)
                except Exception as bug:  # the caller gets it
                    logger.exception("auth: a listener failed after a commit: a bug in amqpd, please report it")
                    error = bug
            if committed.done():
                return  # the caller was cancelled
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        self._metadata.submit(changes, done)
        await committed

    def _apply_user(self, row: UserRow, *changes: AuthChange) -> None:
        self._users[row.name] = row
        self._verified.remove(row.name)
        self._permissions.clear_cache()
        for change in changes:
            self._notify(change)

    def _apply_scram(self, change: Put | Delete) -> None:
        row = change.row
        assert isinstance(row, ScramRow)
        if isinstance(change, Put):
            self._scram[row.user] = row
        else:
            self._scram.pop(row.user, None)

    def _apply_deletion(self, row: UserRow) -> None:
        if self._users.pop(row.name, None) is None:
            return  # in a cluster, another node's deletion may have arrived before
        self._verified.remove(row.name)
        self._scram.pop(row.name, None)
        self._permissions.remove([*self._permissions.rows(row.name), *self._permissions.topic_rows(row.name)])
        self._notify(AuthChange("user_deleted", row.name))

    def _notify(self, change: AuthChange) -> None:
        logger.info(CHANGE_LOG_TEXTS[change.kind], change.user, extra={"user": change.user, "vhost": change.vhost})
        for listener in self.listeners:
            try:
                listener(change)
            except Exception:
                # The change is applied. An error of one listener must not hide it from the caller or from other
                # listeners.
                logger.exception("auth: a listener failed on %r", change)


def _changed(row: PermissionRow | TopicPermissionRow) -> AuthChange:
    return AuthChange("permissions" if isinstance(row, PermissionRow) else "topic_permissions", row.user, row.vhost)
