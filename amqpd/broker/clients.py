"""What the broker has to tell those who are connected.

News goes up only through what was handed over: `amqpd.connection.connections` derives from this. A broker whom nobody
serves (a test's, or before the first listener) tells nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpd.auth.backends import AuthChange
    from amqpd.broker.catalogue.vhost import VHost
    from amqpd.broker.delivery import Source


class Clients:
    """Nobody."""

    def user_changed(self, change: AuthChange) -> None:
        """Rights were given or taken, or a user is gone."""

    def vhost_deleted(self, vhost: VHost) -> None:
        """Whoever is in it has to go."""

    def forget_offsets(self, queue: Source, ranges: list[tuple[int, int]]) -> None:
        """What is at these offsets (from, to) was not written: it is nobody's unacked message any more."""

    def alarm_ended(self) -> None:
        """Publishers that were held may go on."""
