"""Return of memory to the operating system after connections have closed.

glibc keeps freed memory at the end and in the middle of its heap: tens of megabytes after a few clients with large
messages. `malloc_trim` returns it. `MallocTrimmer` calls it some seconds after enough bytes passed through closed
connections. Without glibc (musl) nothing happens.

Small objects are in the interpreter's arenas of 1 MiB, and one live object keeps an arena. After thousands of closed
connections these are objects in the interpreter's free lists (tuples, lists, dicts, floats, contexts). Only a full
collection empties the lists: see `empty_free_lists`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from typing import Final

# Bytes through closed connections that make a trim worthwhile.
GONE_BYTES_MIN: Final = 8_000_000
# Added for each closed connection, so that idle ones count too.
CONNECTION_BYTES: Final = 16 * 1024
# Delay of a trim, and the shortest time between two.
WAIT_S: Final = 2.0
# Connections below the peak that make a full collection worthwhile. Clients that only reconnect never cause one.
FEWER_MIN: Final = 1000


def malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim, or None if the C library has none."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_size_t,)
    found.restype = ctypes.c_int
    return lambda pad: int(found(pad))


def empty_free_lists() -> None:
    """Run a full collection for its side effect: it empties the free lists.

    All older objects are frozen first, so that the collection does not visit them. Garbage cycles among them are
    never freed; few exist, because connections are freed by reference counting.

    Cost: a walk over the youngest objects, 50,000 at most.
    """
    gc.collect(0)
    gc.freeze()
    gc.collect()


class MallocTrimmer:
    """Schedules trims. One per broker.

    Cost: a few ms per 100 MB of heap, not on the message path.

    Args:
        trim: glibc's malloc_trim; None disables it.
        collect: empties the free lists. Called at most once per FEWER_MIN closed connections.
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
        self._open_count = 0
        # Most connections at the same time since the last collection.
        self._peak = 0
        self._gone_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def on_opened(self) -> None:
        self._open_count += 1
        self._peak = max(self._peak, self._open_count)

    def on_closed(self, size: int) -> None:
        """Account for a closed connection through which `size` bytes passed."""
        self._open_count -= 1
        self._gone_bytes += size + CONNECTION_BYTES
        if self._gone_bytes >= GONE_BYTES_MIN and self._timer is None and self._trim is not None:
            self._timer = self._loop.call_later(WAIT_S, self._trim_heap)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _trim_heap(self) -> None:
        self._timer = None
        self._gone_bytes = 0
        if self._peak - self._open_count >= FEWER_MIN:
            self._peak = self._open_count
            self._collect()
        if self._trim is not None:
            self._trim(0)
