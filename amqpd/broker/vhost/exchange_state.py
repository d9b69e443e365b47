"""What exchanges keep of the messages they route, as the catalogue sees it: it is made with the exchange, told of what
is newly bound, and ends with the exchange.

The broker has the one that does it (broker/publish/exchange_state.py): it knows how messages are offered, which nobody
here does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpd.broker.vhost.exchange import Binding, Exchange
    from amqpd.storage.metadata.store import Change


class ExchangeStateHook:
    """Keeps nothing. vhost: the name of the one that it is in."""

    def begin(self, vhost: str, exchange: Exchange) -> None:
        """It is among its vhost's exchanges from now on."""

    def bound(self, vhost: str, binding: Binding) -> None:
        """A binding has been made, by a client and not by a start."""

    def end(self, vhost: str, exchange: Exchange) -> list[Change]:
        """It has been deleted. Returns the rows to be removed with its own."""
        return []
