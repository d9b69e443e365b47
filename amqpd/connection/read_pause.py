"""Why a connection is not read: a set of reasons, each with one that adds it and one that takes it away.

The gate alone pauses the socket (with the first reason) and resumes it (with the last). Who asks whether silence is
the peer's own, as heartbeats do, asks here: while there is a reason, it is we who do not listen.

    SYNC     more is unsynced, or waits to be published again, than may be; until there is less
    BACKLOG  commands wait behind busy channels; until few enough do
    ALARM    a publish met a resource alarm; until it is over
    OUTPUT   the peer does not read its answers; until it does
    SHARING  a read of publishes to a thousand queues each goes in slices; until the others had their turn
    PACED    it sent its share of the turn; until one of the next turns
    BODIES   others' unfinished message bodies are older, and as much of them is kept as may be; until there is room
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.connection.interfaces import TransportBase

SYNC: Final = 1
BACKLOG: Final = 2
ALARM: Final = 4
OUTPUT: Final = 8
SHARING: Final = 16
PACED: Final = 32
BODIES: Final = 64


def _nobody() -> None:
    """Nobody waits for the gate."""


@final
class ReadPause:
    """Of one connection. No reasons: it is read."""

    def __init__(self, wire: TransportBase, turn: LoopTurn) -> None:
        self.reasons: i64 = 0
        # Works off what came meanwhile; its owner brings it, and asks again what it may.
        self.on_resume: Callable[[], None] = _nobody
        # The connection ends, and takes no turns any more.
        self.closing = False
        self._wire = wire
        self._turn = turn
        self._open_for_good = False

    def holds(self, reason: i64) -> bool:
        """Whether this is one of the reasons."""
        return self.reasons & reason != 0

    def pause(self, reason: i64) -> None:
        """The connection is not read from here on, until `release` takes the last reason away."""
        if self._open_for_good:
            return
        if self.reasons == 0:
            self._wire.pause_reading()
        self.reasons |= reason

    def resume(self, reason: i64) -> None:
        """Nothing happens where it was none of the reasons."""
        if self.reasons & reason == 0:
            return
        self.reasons &= ~reason
        if self.reasons == 0:
            self._wire.resume_reading()

    def disable(self) -> None:
        """The connection is ending: only the peer's own end is still of interest, and nothing may keep us from it."""
        self._open_for_good = True
        if self.reasons != 0:
            self.reasons = 0
            self._wire.resume_reading()

    # -- in its turn -------------------------------------------------------------------------------------------------

    def pause_for_turn(self) -> None:
        """It has had its share: it is read on in one of the next turns."""
        if not self.closing and not self.holds(PACED):
            self.pause(PACED)
            self._turn.pause_until_next_turn(self)

    def release_in_turn(self, reason: i64) -> None:
        """With all the others that were held for this reason: each in its turn."""
        self.pause_for_turn()
        self.resume(reason)

    def hold_for_sync(self) -> None:
        """Until what is unsynced is on disk, and what waits to be published again does not fill memory."""
        if not self.holds(SYNC):
            self.pause(SYNC)
            self._turn.pause_until_synced(self)

    def synced(self) -> None:
        """What was unsynced is on disk."""
        self.release_in_turn(SYNC)

    def read_bodies(self, on: bool) -> None:
        """Whether there is room for more of an unfinished body."""
        if not on:
            self.pause(BODIES)
        elif self.holds(BODIES):
            self.release_in_turn(BODIES)

    def read_on(self) -> None:
        """Another turn has come."""
        self.resume(PACED)
        if not self.holds(SHARING):
            self.on_resume()

    def let_go(self) -> None:
        """The socket is gone."""
        self.on_resume = _nobody
