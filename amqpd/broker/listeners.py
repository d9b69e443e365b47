"""Interface by which the broker notifies front ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange
    from amqpd.broker.consumer import QueueBase


class BrokerListener:
    """Listener of a front end for changes that concern its clients. All calls are on the loop.

    Each front end adds one to `Broker.clients`; `ConnectionRegistry` is AMQP's. The methods do nothing by default.
    """

    def on_user_changed(self, change: AuthChange) -> None:
        """Handle changed rights or a deleted user: drop cached permissions, close sessions that may not continue."""

    def vhost_deleted(self, name: str) -> None:
        """Close all sessions in the deleted vhost. A new vhost of that name has none yet."""

    def on_vhost_unloaded(self, name: str, why: str) -> None:
        """Close all sessions in a vhost that left this node. `why` is the text for clients."""

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """Handle a failed write: unacked messages at these offsets (first, last) are not in the log."""

    def on_alarm_end(self) -> None:
        """Resume blocked publishers."""
