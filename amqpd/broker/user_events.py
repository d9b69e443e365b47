"""Changes of users and their rights as events: keys and headers of RabbitMQ 3.10.8, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from amqpd.auth.internal_backend import NoSuchUser, NoSuchVhost

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange, InternalBackend

RowT = TypeVar("RowT")


def told_of(auth: InternalBackend, change: AuthChange) -> Iterator[tuple[str, dict[str, object]]]:
    """Key and headers of each event that the change is. auth: as it is after it."""
    what, name = change.what, change.user
    if what == "user_added":
        yield "user.created", {"name": name}
        yield "user.tags.set", {"name": name, "tags": _tags(auth, name)}
    elif what == "password":
        yield "user.password.changed", {"name": name}
    elif what == "tags":
        yield "user.tags.set", {"name": name, "tags": _tags(auth, name)}
    elif what == "user_deleted":
        yield "user.deleted", {"name": name}
    elif what == "permissions":
        about: dict[str, object] = {"user": name, "vhost": change.vhost}
        rows = _left(auth.permissions, name, change.vhost)
        for row in rows:
            yield "permission.created", {**about, "configure": row.configure, "write": row.write, "read": row.read}
        if not rows:
            yield "permission.deleted", about
    elif what == "topic_permissions":
        about = {"user": name, "vhost": change.vhost}
        topic_rows = _left(auth.topic_permissions, name, change.vhost)
        for each in topic_rows:
            rights = {"exchange": each.exchange, "write": each.write, "read": each.read}
            yield "topic.permission.created", {**about, **rights}
        if not topic_rows:
            yield "topic.permission.deleted", about


def _left(read: Callable[[str | None, str | None], list[RowT]], user: str, vhost: str | None) -> list[RowT]:
    """What the user may in the vhost; nothing where one of them has gone, and the rights with it."""
    try:
        return read(user, vhost)
    except (NoSuchUser, NoSuchVhost):
        return []


def _tags(auth: InternalBackend, name: str) -> list[str]:
    return next((list(row.tags) for row in auth.users() if row.name == name), [])
