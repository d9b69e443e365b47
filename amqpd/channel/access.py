"""May the session's user do this? Asked by every handler; the answers are remembered by the auth backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amqpd.errors import AccessRefused

if TYPE_CHECKING:
    from amqpd.auth.permissions import Kind, TopicKind
    from amqpd.broker.catalogue.exchange import Exchange
    from amqpd.broker.session import Session


def check(session: Session, kind: Kind, thing: str, name: str) -> None:
    """May the session's user do this? kind: configure, write or read; thing: queue or exchange.

    Cost: a dict look-up after the first time. Raises: AccessRefused.
    """
    if not session.broker.auth.may(session.user, session.vhost.name, kind, name or "amq.default"):
        shown = name or "amq.default"
        raise AccessRefused(
            f"access to {thing} '{shown}' in vhost '{session.vhost.name}' refused for user "
            f"'{session.user.name}'"
        )


def check_topic_keys(
    session: Session, exchange: Exchange, keys: Sequence[str], kind: TopicKind = "write"
) -> None:
    """Topic permissions: routing keys on topic exchanges. Raises: AccessRefused."""
    if exchange.kind != "topic":
        return
    for key in keys:
        if not session.broker.auth.may_topic(session.user, session.vhost.name, exchange.name, kind, key):
            raise AccessRefused(
                f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{session.vhost.name}' "
                f"refused for user '{session.user.name}'"
            )
