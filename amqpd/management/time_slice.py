"""Time slices: long work on the event loop pauses every SLICE_S seconds, so that the loop can do other work.

Lists, bodies, rates and the handlers use this module.
"""

from __future__ import annotations

import time
from asyncio import sleep
from typing import Final

SLICE_S: Final = 0.003
"""Length of a slice in seconds."""


class TimeSlice:
    """The current slice of a long loop, which calls `await slices.yield_if_due()` for each item."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_S

    async def yield_if_due(self) -> None:
        """Run the event loop once if the slice is over. Anything may have changed then. Cost: 0.2 us."""
        if time.perf_counter() >= self._until:
            await sleep(0)
            self._until = time.perf_counter() + SLICE_S


async def free_in_slices(value: object) -> None:
    """Free the items of a large document in slices. Freeing a million objects at once would block the loop.

    Empties its lists. Items that others refer to remain.
    """
    slices = TimeSlice()
    lists = list(value.values()) if isinstance(value, dict) else [value]
    for each in lists:
        if isinstance(each, list):
            while each:
                del each[-1000:]
                await slices.yield_if_due()
