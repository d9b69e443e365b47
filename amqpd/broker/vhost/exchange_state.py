"""Interface to stored messages of exchanges (recent history, deduplication).

`broker/publish/exchange_state.py` implements it, because it needs to publish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpd.broker.vhost.exchange import Binding, Exchange
    from amqpd.storage.metadata.store import Change


class ExchangeStateHook:
    """Implementation that stores nothing. `vhost` is the name of the exchange's vhost."""

    def begin(self, vhost: str, exchange: Exchange) -> None:
        """Start for a new exchange."""

    def bound(self, vhost: str, binding: Binding) -> None:
        """Handle a new binding made by a client. A start does not call this."""

    def end(self, vhost: str, exchange: Exchange) -> list[Change]:
        """Stop for a deleted exchange. Return the rows to be deleted with its own."""
        return []
