"""Whether a node is there: one link to each node that serves clients of this one, on which both ends say a byte every
PING_S, and which is dead when nothing came for DEAD_S. With the link all end that were relayed between the two.

The byte is a number: the resource alarms of who says it (MEMORY, DISK; 0 for none), said at once when it changes. Who
serves clients of a node with an alarm holds those that publish (relayed.py).

The streams that are relayed carry clients' bytes and nothing else, so nothing can be asked on them. TCP itself could
say that a host is gone (TCP_USER_TIMEOUT), but it counts a peer that is there and does not read for dead as well:
DECISIONS.md. A stopped process (SIGSTOP) whose kernel goes on answering is found here, and by no option of TCP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

log = logging.getLogger(__name__)

PING_S: Final = 2.0
DEAD_S: Final = 6.0
MEMORY: Final = 1
DISK: Final = 2


class Link(asyncio.Protocol):
    """One end. node: at the other. ended: called once, when it is no more, for whatever reason. heard: called when the
    other end says another number than before; at first it is 0. says: what this end says.
    """

    def __init__(
        self,
        node: str,
        ended: Callable[[Link], None],
        ping_s: float = PING_S,
        dead_s: float = DEAD_S,
        heard: Callable[[int], None] = lambda _: None,
        says: int = 0,
    ) -> None:
        self.node = node
        self._heard = heard
        self._says = says
        self._said = 0  # by the other end
        self._ended = ended
        self._ping_s, self._dead_s = ping_s, dead_s
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._ticked_at = 0.0

    @property
    def alive(self) -> bool:
        """From `connection_made` to its end."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._heard_at = self._ticked_at = loop.time()
        self._timer = loop.call_later(self._ping_s, self._tick)
        if self._says:
            self._transport.write(bytes((self._says,)))

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if data[-1] != self._said:
            self._said = data[-1]
            self._heard(self._said)

    def say(self, number: int) -> None:
        """From here on."""
        if number != self._says:
            self._says = number
            if self._transport is not None:
                self._transport.write(bytes((number,)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def close(self) -> None:
        """Ends it from this side."""
        transport = self._transport
        if transport is not None:
            self._finish()
            transport.abort()

    def _finish(self) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        transport = self._transport
        assert transport is not None  # its timer ends with it
        now = loop.time()
        if now - self._ticked_at > 2 * self._ping_s:
            self._heard_at = now  # it is this loop that stood still: what came meanwhile is read next
        self._ticked_at = now
        if now - self._heard_at > self._dead_s:
            text = "node %s is silent for %g s: what was relayed between it and this one ends"
            log.warning(text, self.node, self._dead_s)
            self.close()
            return
        # A byte every other second: where it does not read them it is found silent long before they matter.
        transport.write(bytes((self._says,)))
        self._timer = loop.call_later(self._ping_s, self._tick)
