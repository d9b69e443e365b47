"""Memory of connections that are gone goes back to the system, and does not wait in malloc for the next ones.

What a connection had is freed with it, but glibc keeps the free tail of its heap (it takes the largest block it ever
freed for usual), and free pages in the middle: after a few clients with large messages tens of megabytes. `malloc_trim`
gives both back. It is called a while after enough has passed through connections that are gone, for all of them
together; where there is no such call (musl), nothing happens.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

# Bytes that connections which are gone had received and sent: below, there is not enough to look for.
GONE_BYTES_MIN: Final = 8_000_000
# What a connection comes to that has hardly sent anything.
CONNECTION_BYTES: Final = 16 * 1024
# From the first that went until the heap is looked through; at most that often.
WAIT_S: Final = 2.0


def malloc_trim() -> Callable[[int], int] | None:
    """glibc's call; None where the C library has none."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_size_t,)
    found.restype = ctypes.c_int
    return lambda pad: int(found(pad))


class GiveBack:
    """One per broker. trim: `malloc_trim`'s; None does nothing. Cost: some ms per 100 MB of heap, off nobody's road."""

    def __init__(self, loop: asyncio.AbstractEventLoop, trim: Callable[[int], int] | None) -> None:
        self._loop = loop
        self._trim = trim
        self._gone_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def gone(self, size: int) -> None:
        """A connection is gone through which `size` bytes have passed."""
        self._gone_bytes += size + CONNECTION_BYTES
        if self._gone_bytes >= GONE_BYTES_MIN and self._timer is None and self._trim is not None:
            self._timer = self._loop.call_later(WAIT_S, self._give_back)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_back(self) -> None:
        self._timer = None
        self._gone_bytes = 0
        if self._trim is not None:
            self._trim(0)
