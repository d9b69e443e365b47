"""A session: somebody with rights in a vhost, for whom a front end publishes, consumes and declares.

A front end (AMQP, the admin API, whatever comes) makes one for each user that it serves, and hands it to the packages
below: they know sessions, and no front end.

May the session's user do this? Asked by whoever does something for a client; the auth backend remembers answers.
"""

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
    """It lasts as long as the user may stay in the vhost; its exclusive queues last as long.

    name: of the connection or whatever it is, for logs and lists. peer: address and port it comes from.
    capabilities: what its client has announced. serial: no other session of this process has it.
    """

    def __init__(
        self,
        broker: Broker,
        vhost: VHost,
        user: User,
        name: str,
        peer: tuple[str, int] = ("", 0),
        capabilities: Mapping[str, object] | None = None,
    ) -> None:
        # Above permissions: whoever the operating system lets in as the operator.
        self.operator = False
        self.broker = broker
        self.turn: LoopTurn = broker.turn
        self.vhost = vhost
        self.user = user
        self.name = name
        self.peer = peer
        self.capabilities: Mapping[str, object] = {} if capabilities is None else capabilities
        self.serial: int = next(_serials)

    def revocation_reason(self, change: AuthChange) -> str:
        """Why it cannot last beyond this change of rights; empty where it can, with routes and answers asked anew.

        A front end is told of changes by `BrokerListener.user_changed`.
        """
        if self.user.name != change.user:
            return ""
        if change.what == "user_deleted":
            return f"user '{change.user}' was deleted"
        if not self.broker.auth.may_access_vhost(self.user, self.vhost.name):
            return f"access to vhost '{self.vhost.name}' was revoked"
        return ""

    def has_capability(self, capability: str) -> bool:
        """Whether the client has announced it."""
        return self.capabilities.get(capability) is True


def check_permission(session: Session, kind: Kind, thing: str, name: str) -> None:
    """May the session's user configure, write to or read this queue or exchange (`thing`)?

    Cost: a dict look-up after the first time. Raises: AccessRefused.
    """
    shown = name or "amq.default"
    if not session.operator and not session.broker.auth.is_allowed(session.user, session.vhost.name, kind, shown):
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
        if not session.broker.auth.is_topic_allowed(session.user, session.vhost.name, exchange.name, kind, key):
            raise AccessRefused(
                f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{session.vhost.name}' "
                f"refused for user '{session.user.name}'"
            )


def is_topic_limited(session: Session, exchange: Exchange) -> bool:
    """Whether some keys of this exchange may be closed to the user: each new one has to be asked for."""
    if session.operator or exchange.kind != "topic":
        return False
    return session.broker.auth.has_topic_permissions(session.user, session.vhost.name, exchange.name)
