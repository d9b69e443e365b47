"""Rows of users: what a user's name, tags and hash may be, and the rows of a first start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from amqpd.auth.passwords import ARGON2ID, InvalidHash, check_hash, hash_password
from amqpd.storage.metadata.store import PermissionRow, Row, UserRow, VhostRow, random_id

KNOWN_TAGS: Final = ("administrator", "monitoring", "policymaker", "management", "impersonator")
"""Tags that mean something; any other word may be a tag too."""
TAGS_MAX: Final = 64
NAME_BYTES_MAX: Final = 255


class AuthError(Exception):
    """A change of users or permissions that is not made; the text is for whoever asked for it."""


class InvalidUser(AuthError):
    """A user name, tag or password hash that cannot be."""


def bootstrap(
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
