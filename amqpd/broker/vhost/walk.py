"""A walk over many things in slices: each is visited once, and the loop has its turn every SLICE_S.

Whoever changes something that all of them have to obey says `begin`; `when_done` tells when every thing has been
visited after that. Changes that come while a walk is under way share the next one, so there is one at a time, and the
last one visits everything in the state that holds then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

SLICE_S: Final = 0.003
"""How long a slice goes on before the loop has its turn, seconds; one visit may exceed it by what it takes."""

Thing = TypeVar("Thing")


class Walk(Generic[Thing]):
    """call_soon: the loop's. At rest it knows nobody: whoever has it goes without a collector."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._things: Callable[[], list[Thing]] | None = None
        self._visit: Callable[[Thing], None] | None = None
        self._left: list[Thing] = []
        self._due = False  # another one is wanted
        self._now: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []

    def begin(self, things: Callable[[], list[Thing]], visit: Callable[[Thing], None]) -> None:
        """Everything is visited, from the next turn of the loop on. A walker has the same two at every call.

        things: a snapshot of those there are. visit: may find that one has gone meanwhile; one that fails is logged
        and does not keep the others from being visited.
        """
        running = self._visit is not None
        self._things, self._visit = things, visit
        self._due = True
        if not running:
            self._call_soon(self._start)

    def when_done(self, done: Callable[[], None]) -> None:
        """Calls `done` when all is visited that a `begin` has asked for; at once where nothing is."""
        if self._due:
            self._later.append(done)
        elif self._visit is not None:
            self._now.append(done)
        else:
            done()

    def _start(self) -> None:
        assert self._things is not None  # since `begin`
        self._due = False
        self._now, self._later = self._later, []
        self._left = self._things()
        self._slice()

    def _slice(self) -> None:
        visit = self._visit
        assert visit is not None  # since `begin`
        until = time.perf_counter() + SLICE_S
        left = self._left
        while left:
            thing = left.pop()
            try:
                visit(thing)
            except Exception:  # its own matter; the others are to be visited all the same
                log.exception("%s could not be visited", thing)
            if time.perf_counter() >= until:
                self._call_soon(self._slice)
                return
        finished, self._now = self._now, []
        if self._due:
            self._call_soon(self._start)
        else:
            self._things = self._visit = None
        for done in finished:
            done()
