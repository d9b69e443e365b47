"""May the session's user do this? Asked by whoever does something for a client; the auth backend remembers answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amqpd.errors import AccessRefused

if TYPE_CHECKING:
    from amqpd.auth.permissions import Kind, TopicKind
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.session import Session


def check(session: Session, kind: Kind, thing: str, name: str) -> None:
    """May the session's user configure, write to or read this queue or exchange (`thing`)?

    Cost: a dict look-up after the first time. Raises: AccessRefused.
    """
    shown = name or "amq.default"
    if not session.operator and not session.broker.auth.may(session.user, session.vhost.name, kind, shown):
        raise AccessRefused(
            f"access to {thing} '{shown}' in vhost '{session.vhost.name}' refused for user '{session.user.name}'"
        )


def check_topic_keys(session: Session, exchange: Exchange, keys: Sequence[str], kind: TopicKind = "write") -> None:
    """Topic permissions: may the user publish or bind under these routing keys? Asked of topic exchanges alone.

    Raises: AccessRefused.
    """
    if session.operator or exchange.kind != "topic":
        return
    for key in keys:
        if not session.broker.auth.may_topic(session.user, session.vhost.name, exchange.name, kind, key):
            raise AccessRefused(
                f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{session.vhost.name}' "
                f"refused for user '{session.user.name}'"
            )


def is_topic_limited(session: Session, exchange: Exchange) -> bool:
    """Whether some keys of this exchange may be closed to the user: each new one has to be asked for."""
    if session.operator or exchange.kind != "topic":
        return False
    return session.broker.auth.topic_limited(session.user, session.vhost.name, exchange.name)
