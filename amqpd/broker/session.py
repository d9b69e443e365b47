"""Sessions of users in a vhost, and their permission checks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

from amqpd.errors import AccessRefused

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange, User
    from amqpd.auth.permissions import Kind, TopicKind
    from amqpd.broker.broker import Broker
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost


_serials: Final = itertools.count(1)


@final
class Session:
    """A user's session in a vhost: for an AMQP connection, an HTTP request or another front end.

    The packages below know sessions and no front end. Exclusive queues last as long as their session.

    Attributes:
        operator: the operating system authenticated the operator; permissions do not apply.
        name: the connection's name in logs and lists.
        peer: address and port.
        front_end: `amqp` or `kafka`, for the audit log.
        capabilities: announced by the client.
        serial: unique in this process.
    """

    def __init__(
        self,
        broker: Broker,
        vhost: VHost,
        user: User,
        name: str,
        peer: tuple[str, int] = ("", 0),
        capabilities: Mapping[str, object] | None = None,
        front_end: str = "amqp",
    ) -> None:
        self.operator = False
        self.broker = broker
        self.turn: LoopTurn = broker.turn
        self.vhost = vhost
        self.user = user
        self.name = name
        self.peer = peer
        self.front_end = front_end
        self.capabilities: Mapping[str, object] = {} if capabilities is None else capabilities
        self.serial: int = next(_serials)

    def revocation_reason(self, change: AuthChange) -> str:
        """Return why the change of rights ends this session, or "". Changed tags apply to it at once.

        Front ends call this from `BrokerListener.on_user_changed`. A session that continues must drop cached
        permissions.
        """
        if self.user.name != change.user:
            return ""
        if change.kind == "user_deleted":
            return f"user '{change.user}' was deleted"
        if change.kind == "tags":
            self.user = self.user._replace(tags=self.broker.auth.user(change.user).tags)
        if not self.broker.auth.may_access_vhost(self.user, self.vhost.name):
            return f"access to vhost '{self.vhost.name}' was revoked"
        return ""

    def has_capability(self, capability: str) -> bool:
        """Return whether the client announced the capability."""
        return self.capabilities.get(capability) is True


def check_permission(session: Session, kind: Kind, thing: str, name: str) -> None:
    """Check that the user may configure, write to or read this queue or exchange.

    Args:
        thing: "queue" or "exchange".

    Cost: a dict look-up after the first time.

    Raises:
        AccessRefused: no permission.
    """
    shown = name or "amq.default"
    if not session.operator and not session.broker.auth.is_allowed(session.user, session.vhost.name, kind, shown):
        raise AccessRefused(
            f"access to {thing} '{shown}' in vhost '{session.vhost.name}' refused for user '{session.user.name}'"
        )


def check_topic_keys(session: Session, exchange: Exchange, keys: Sequence[str], kind: TopicKind = "write") -> None:
    """Check the topic permissions for these routing keys. Applies only to topic exchanges.

    Raises:
        AccessRefused: no permission.
    """
    if session.operator or exchange.kind != "topic":
        return
    for key in keys:
        if not session.broker.auth.is_topic_allowed(session.user, session.vhost.name, exchange.name, kind, key):
            raise AccessRefused(
                f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{session.vhost.name}' "
                f"refused for user '{session.user.name}'"
            )


def is_topic_limited(session: Session, exchange: Exchange) -> bool:
    """Return whether the user has topic permissions on the exchange, so that each new key must be checked."""
    if session.operator or exchange.kind != "topic":
        return False
    return session.broker.auth.has_topic_permissions(session.user, session.vhost.name, exchange.name)
