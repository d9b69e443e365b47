"""Interface by which the broker notifies front ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange
    from amqpd.broker.consumer import QueueBase
    from amqpd.broker.session import Session


class ListedConnection(Protocol):
    """A connection of another protocol than AMQP, for lists of connections.

    Attributes:
        closed: it has ended.
    """

    closed: bool

    @property
    def name(self) -> str:
        """Return the name, unique among open connections."""

    @property
    def session(self) -> Session:
        """Return the session of the user that has logged in."""

    def details(self) -> dict[str, Any]:
        """Return the fields of the lists that session and name do not have."""

    def force(self, why: str) -> None:
        """Close the connection, because an operator asked for it."""


class BrokerListener:
    """Listener of a front end for changes that concern its clients. All calls are on the loop.

    Each front end adds one to `Broker.clients`; `ConnectionRegistry` is AMQP's. The methods do nothing by default.
    """

    def on_user_changed(self, change: AuthChange) -> None:
        """Handle changed rights or a deleted user: drop cached permissions, close sessions that may not continue."""

    def listed_connections(self) -> Iterable[ListedConnection]:
        """Return the connections that have logged in, if they do not speak AMQP."""
        return ()

    def vhost_deleted(self, name: str) -> None:
        """Close all sessions in the deleted vhost. A new vhost of that name has none yet."""

    def on_vhost_unloaded(self, name: str, why: str) -> None:
        """Close all sessions in a vhost that left this node. `why` is the text for clients."""

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """Handle a failed write: unacked messages at these offsets (first, last) are not in the log."""

    def on_alarm_end(self) -> None:
        """Resume blocked publishers."""
