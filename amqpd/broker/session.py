"""A session: somebody with rights in a vhost, for whom a front end publishes, consumes and declares.

A front end (AMQP, the admin API, whatever comes) makes one for each user that it serves, and hands it to the packages
below: they know sessions, and no front end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange, User
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.broker.flow.loop_turn import Turn

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
        self.turn: Turn = broker.turn
        self.vhost = vhost
        self.user = user
        self.name = name
        self.peer = peer
        self.capabilities: Mapping[str, object] = {} if capabilities is None else capabilities
        self.serial: int = next(_serials)

    def must_go(self, change: AuthChange) -> str:
        """Why it cannot last beyond this change of rights; empty where it can, with routes and answers asked anew.

        A front end is told of changes by `Clients.user_changed`.
        """
        if self.user.name != change.user:
            return ""
        if change.what == "user_deleted":
            return f"user '{change.user}' was deleted"
        if not self.broker.auth.may_access_vhost(self.user, self.vhost.name):
            return f"access to vhost '{self.vhost.name}' was revoked"
        return ""

    def can(self, capability: str) -> bool:
        """Whether the client has announced it."""
        return self.capabilities.get(capability) is True
