"""Long work in slices: whoever walks over a hundred thousand things lets the loop have its turn every SLICE_S.

At the bottom of this package: lists, bodies, rates and the handlers all rest by it.
"""

from __future__ import annotations

import time
from asyncio import sleep
from typing import Final

SLICE_S: Final = 0.003
"""How long a piece of work goes on before the loop has its turn, seconds."""


class TimeSlice:
    """Keeps a long piece of work from holding the loop: `if slices.due: await slices.rest()` in its loop."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_S

    @property
    def expired(self) -> bool:
        """Whether it has worked for SLICE_S since the last rest. Cost: 0.1 us."""
        return time.perf_counter() >= self._until

    async def yield_loop(self) -> None:
        """One turn of the loop; what was looked at before may have changed behind it."""
        await sleep(0)
        self._until = time.perf_counter() + SLICE_S


async def release(value: object) -> None:
    """Lets go of a large document's items little by little: a million objects that go at once hold the loop as well.

    Empties its lists; what they held stays with whoever else has it.
    """
    slices = TimeSlice()
    lists = list(value.values()) if isinstance(value, dict) else [value]
    for each in lists:
        if isinstance(each, list):
            while each:
                del each[-1000:]
                if slices.expired:
                    await slices.yield_loop()
