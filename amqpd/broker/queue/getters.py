"""basic.get that found nothing in memory: it waits until the disk has answered, and is given once more then."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mypy_extensions import i64


@final
class Getters:
    """Those of one queue that wait, in order."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def add(self, getter: Callable[[], object]) -> None:
        """Calls it when there may be an answer, once."""
        self._waiting.append(getter)

    def call(self) -> None:
        """There may be one. Who finds the disk asked again adds himself again. Raises: what one of them raises; the
        others are still to be called.
        """
        waiting = self._waiting
        self._waiting = []
        done: i64 = 0
        try:
            for getter in waiting:
                done += 1
                getter()
        finally:
            if done < len(waiting):
                self._waiting = waiting[done:] + self._waiting

    def __len__(self) -> int:
        return len(self._waiting)
