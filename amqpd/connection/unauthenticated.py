"""Limit on sockets that have not logged in. Any client can open them, and each uses a descriptor.

Above a share of the process's descriptors, the broker closes sockets without a login: the oldest ones of the address
that has most. A small number always remains, so that a broker with many clients accepts new ones. The last
descriptors are reserved for files and the HTTP API.

Sockets of Kafka's clients count as those of AMQP's.

The process limit is read for each socket, because prlimit can change it at run time.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from amqpd import process
from amqpd.auth.login_throttle import network

log = logging.getLogger(__name__)

# Shares of the descriptors. KEPT_SHARE: sockets without a login that always remain. SLACK_SHARE: sockets closed at
# once beyond the need, so that addresses are not counted for each new socket.
KEPT_SHARE: Final = 32
SLACK_SHARE: Final = 64
# At most a quarter of the descriptors can be reserved for files and the HTTP API.
RESERVED_SHARE_MAX: Final = 4
LOG_S: Final = 1.0


class LoginSocket(Protocol):
    """A socket that may have no login yet.

    Attributes:
        peer: address and port.
    """

    peer: tuple[str, int]

    def abort(self) -> None:
        """Close the socket at once."""


class UnauthenticatedSockets:
    """The sockets of a broker, and those without a login by address.

    Args:
        soon: calls a function in the next loop turn.
        share: share of the descriptors for AMQP sockets.
        reserved: descriptors for other uses.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], share: float, reserved: int) -> None:
        self._soon = soon
        self.share = share
        self.reserved = reserved
        self.closed_count = 0
        self._sockets: set[LoginSocket] = set()
        # By network (an IPv4 address or an IPv6 /64), oldest first.
        self._waiting: dict[str, dict[LoginSocket, None]] = {}
        self._waiting_count = 0
        self._log_at = 0.0

    def add(self, wire: LoginSocket) -> None:
        """Add a new socket and close others if necessary. Cost: 2 us, and the closes."""
        self._sockets.add(wire)
        self._waiting.setdefault(network(wire.peer[0]), {})[wire] = None
        self._waiting_count += 1
        limit = process.limit()
        over = len(self._sockets) - int(limit * self.share)
        if over > 0:
            self._make_room(min(over + limit // SLACK_SHARE, self._waiting_count - max(1, limit // KEPT_SHARE)), limit)
        if len(self._sockets) > limit - min(self.reserved, limit // RESERVED_SHARE_MAX):
            self._close(wire)
            self._log_closed(f"only reserved descriptors of {limit} are free", wire.peer[0])

    def mark_logged_in(self, wire: LoginSocket) -> None:
        """Mark the socket as logged in. It is not closed to make room."""
        address = network(wire.peer[0])
        waiting = self._waiting.get(address)
        if waiting is not None and wire in waiting:
            del waiting[wire]
            self._waiting_count -= 1
            if not waiting:
                del self._waiting[address]

    def remove(self, wire: LoginSocket) -> None:
        """Remove a closed socket. Can be called for one that this class closed."""
        self.mark_logged_in(wire)
        self._sockets.discard(wire)

    def _make_room(self, count: int, limit: int) -> None:
        heap = [(-len(waiting), address) for address, waiting in self._waiting.items()]
        heapq.heapify(heap)
        address = ""
        for _ in range(count):
            size, address = heap[0]
            self._close(next(iter(self._waiting[address])))
            if size < -1:
                heapq.heapreplace(heap, (size + 1, address))
            else:
                heapq.heappop(heap)
        if count > 0:
            self._log_closed(f"more than {int(limit * self.share)} of {limit} descriptors are sockets", address)

    def _close(self, wire: LoginSocket) -> None:
        self.remove(wire)
        self.closed_count += 1
        # Deferred: `wire` may be in its own connection_made.
        self._soon(wire.abort)

    def _log_closed(self, why: str, address: str) -> None:
        now = time.monotonic()
        if now - self._log_at >= LOG_S:
            self._log_at = now
            log.warning(
                "sockets without a login were closed, the last one from %s: %s (%d since the start)",
                address,
                why,
                self.closed_count,
            )
