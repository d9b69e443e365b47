"""Memory of connections that are gone goes back to the system, and does not wait in malloc for the next ones.

What a connection had is freed with it, but glibc keeps the free tail of its heap (it takes the largest block it ever
freed for usual), and free pages in the middle: after a few clients with large messages tens of megabytes. `malloc_trim`
gives both back. It is called a while after enough has passed through connections that are gone, for all of them
together; where there is no such call (musl), nothing happens.

Small objects lie in the interpreter's own arenas of 1 MiB, and one object keeps a whole arena. What keeps them when
thousands went together are the interpreter's free lists (2,000 tuples of each length, lists, dicts, floats, contexts),
which take what is freed first, from wherever it lies. Only a full collection empties them; it is done without its walk
over everything that lives (`empty_free_lists`).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from typing import Final

# Bytes that connections which are gone had received and sent: below, there is not enough to look for.
GONE_BYTES_MIN: Final = 8_000_000
# What a connection comes to that has hardly sent anything.
CONNECTION_BYTES: Final = 16 * 1024
# From the first that went until the heap is looked through; at most that often.
WAIT_S: Final = 2.0
# Connections fewer than at the peak before the free lists are emptied: whose connections come and go never pays for it.
FEWER_MIN: Final = 1000


def malloc_trim() -> Callable[[int], int] | None:
    """glibc's call; None where the C library has none."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_size_t,)
    found.restype = ctypes.c_int
    return lambda pad: int(found(pad))


def empty_free_lists() -> None:
    """What a full collection does besides collecting. Cost: a walk over the youngest objects, 50,000 at most, whatever
    else lives: all the others are first put where the collector never looks. Circles among them that are garbage one
    day stay; there are hardly any, as what ends here ends by reference counting, and this is done once per thousands of
    connections.
    """
    gc.collect(0)
    gc.freeze()
    gc.collect()


class MallocTrimmer:
    """One per broker. trim: `malloc_trim`'s; None does nothing. collect: `empty_free_lists`.

    Cost: some ms per 100 MB of heap, on nobody's way; free lists at most once for FEWER_MIN connections that the
    broker has fewer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        trim: Callable[[int], int] | None,
        collect: Callable[[], object] = empty_free_lists,
    ) -> None:
        self._loop = loop
        self._trim = trim
        self._collect = collect
        self._there = 0
        # The most that were there since the last collection, or are left of them.
        self._peak = 0
        self._gone_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def came(self) -> None:
        self._there += 1
        self._peak = max(self._peak, self._there)

    def gone(self, size: int) -> None:
        """A connection that came is gone; `size` bytes have passed through it."""
        self._there -= 1
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
        if self._peak - self._there >= FEWER_MIN:
            self._peak = self._there
            self._collect()
        if self._trim is not None:
            self._trim(0)
