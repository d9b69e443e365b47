"""What the broker has to tell those who are connected.

News goes up only through what was handed over: each front end has a `BrokerListener` in the list `Broker.clients`
(`amqpd.connection.registry` is AMQP's). A broker whom nobody serves, a test's, tells nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange
    from amqpd.broker.consumer import QueueBase


class BrokerListener:
    """Those who are connected by one front end, as the broker sees them. It hears everything on the loop.

    A front end overrides what concerns it: nothing here does anything.
    """

    def on_user_changed(self, change: AuthChange) -> None:
        """Rights were given or taken, or a user is gone: what was allowed is asked anew, who may not stay goes."""

    def vhost_deleted(self, name: str) -> None:
        """Whoever is in it has to go. Nobody can be in another vhost of that name yet."""

    def on_vhost_unloaded(self, name: str, why: str) -> None:
        """It is not here any more: likewise. why: the text for clients."""

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """What is at these offsets (from, to) was not written: it is nobody's unacked message any more."""

    def alarm_ended(self) -> None:
        """Publishers that were held may go on."""
