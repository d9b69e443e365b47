"""A session: somebody with rights in a vhost, for whom a front end publishes, consumes and declares.

A front end (AMQP, the admin API, whatever comes) makes one for each user that it serves, and hands it to the rooms
below: they know sessions, and no front end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from amqpd.auth.backends import User
    from amqpd.broker.broker import Broker
    from amqpd.broker.catalogue.vhost import VHost
    from amqpd.broker.flow.turn import Turn


@final
class Session:
    """name: of the connection or whatever it is, for the log. It lasts as long as the user may stay in the vhost."""

    def __init__(self, broker: Broker, vhost: VHost, user: User, name: str) -> None:
        # Above permissions: whoever the operating system lets in as the operator.
        self.operator = False
        self.broker = broker
        self.turn: Turn = broker.turn
        self.vhost = vhost
        self.user = user
        self.name = name
