"""Sockets that have not logged in: they cost a descriptor each, and anybody may open them.

Nobody is refused by a count. With more than a share of the process's descriptors taken by AMQP sockets, those that have
not logged in go, the oldest first, of the address that has most of them: who connects and says nothing makes room for
who logs in. Some may always be on their way, so that a broker with many clients goes on to take new ones. A last part
of the descriptors is for files and the admin API: no socket gets those, logged in or not.

The limit is asked for with each socket: it may be changed while the broker runs (prlimit).
"""

from __future__ import annotations

import heapq
import ipaddress
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from amqpd import process

if TYPE_CHECKING:
    from amqpd.connection.interfaces import TransportBase

log = logging.getLogger(__name__)

# Of the descriptors: what is left to sockets on their way to a login however many others there are, and how many more
# than needed are closed at once, so that the addresses are not counted for each.
KEPT_SHARE: Final = 32
SLACK_SHARE: Final = 64
# For files and the admin API at most this part of the descriptors.
RESERVED_SHARE_MAX: Final = 4
LOG_S: Final = 1.0


class UnauthenticatedSockets:
    """Of one broker. soon: calls a function in the next turn of the loop. share: of the descriptors;
    reserved: descriptors that are for others than AMQP sockets.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], share: float, reserved: int) -> None:
        self._soon = soon
        self.share = share
        self.reserved = reserved
        self.closed_count = 0
        self._sockets: set[TransportBase] = set()
        # By address, the oldest first.
        self._waiting: dict[str, dict[TransportBase, None]] = {}
        self._waiting_count = 0
        self._log_at = 0.0

    def entered(self, wire: TransportBase) -> None:
        """A socket is there. Cost: 2 us, and what is closed for it."""
        self._sockets.add(wire)
        self._waiting.setdefault(_network(wire.peer[0]), {})[wire] = None
        self._waiting_count += 1
        limit = process.limit()
        over = len(self._sockets) - int(limit * self.share)
        if over > 0:
            self._make_room(min(over + limit // SLACK_SHARE, self._waiting_count - max(1, limit // KEPT_SHARE)), limit)
        if len(self._sockets) > limit - min(self.reserved, limit // RESERVED_SHARE_MAX):
            self._close(wire)
            self._tell(f"no descriptor is left for it but the reserved ones of {limit}", wire.peer[0])

    def opened(self, wire: TransportBase) -> None:
        """It has logged in and is not closed for others any more."""
        address = _network(wire.peer[0])
        waiting = self._waiting.get(address)
        if waiting is not None and wire in waiting:
            del waiting[wire]
            self._waiting_count -= 1
            if not waiting:
                del self._waiting[address]

    def left(self, wire: TransportBase) -> None:
        """It is gone. May be called of one that was closed here."""
        self.opened(wire)
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
            self._tell(f"more than {int(limit * self.share)} of {limit} descriptors are sockets", address)

    def _close(self, wire: TransportBase) -> None:
        self.left(wire)
        self.closed_count += 1
        # Not in the midst of its own connection_made.
        self._soon(wire.abort)

    def _tell(self, why: str, address: str) -> None:
        now = time.monotonic()
        if now - self._log_at >= LOG_S:
            self._log_at = now
            log.warning(
                "sockets that had not logged in were closed, the last of them of %s: %s (%d since the start)",
                address,
                why,
                self.closed_count,
            )


def _network(host: str) -> str:
    """What counts as one address: of IPv6 the network, as one host may take any address in it."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))
