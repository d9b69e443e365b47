"""Pausing and resuming reads from one client socket.

A connection can have several reasons not to read. `ReadPause` pauses the socket when the first reason is added, and
resumes it when the last one is removed. The heartbeat monitor ignores the silence of a paused connection.

The reasons:

    SYNC     too many bytes are unsynced, or too many messages wait to be republished
    BACKLOG  too many commands wait for busy channels
    ALARM    a publish met a resource alarm
    OUTPUT   the client does not read its replies
    SHARING  a read of publishes to thousands of queues is processed in slices
    PACED    the connection used its share of this turn
    BODIES   incomplete message bodies use their memory budget, and other connections have older ones
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.flow.loop_turn import LoopTurn

if TYPE_CHECKING:
    from amqpd.connection.transport import Transport

SYNC: Final = 1
BACKLOG: Final = 2
ALARM: Final = 4
OUTPUT: Final = 8
SHARING: Final = 16
PACED: Final = 32
BODIES: Final = 64


def _do_nothing() -> None:
    """Do nothing: the connection has ended."""


@final
class ReadPause:
    """The set of reasons for which one connection is not read.

    Attributes:
        on_resume: called to process data that arrived during the pause. It checks the other reasons again.
        closing: the connection ends and gets no more turns.
    """

    def __init__(self, wire: Transport, turn: LoopTurn) -> None:
        self.reasons: i64 = 0
        self.on_resume: Callable[[], None] = _do_nothing
        self.closing = False
        self._wire = wire
        self._turn = turn
        self._disabled = False

    def is_set(self, reason: i64) -> bool:
        return self.reasons & reason != 0

    def pause(self, reason: i64) -> None:
        """Stop reading until `resume` has removed every reason."""
        if self._disabled:
            return
        if self.reasons == 0:
            self._wire.pause_reading()
        self.reasons |= reason

    def resume(self, reason: i64) -> None:
        """Remove a reason. Does nothing if it was not set."""
        if self.reasons & reason == 0:
            return
        self.reasons &= ~reason
        if self.reasons == 0:
            self._wire.resume_reading()

    def disable(self) -> None:
        """Read again and ignore later `pause` calls: the connection is closing and waits for the client's end."""
        self._disabled = True
        if self.reasons != 0:
            self.reasons = 0
            self._wire.resume_reading()

    # -- in its turn -------------------------------------------------------------------------------------------------

    def pause_for_turn(self) -> None:
        """Pause because the connection used its share of this turn."""
        if not self.closing and not self.is_set(PACED):
            self.pause(PACED)
            self._turn.pause_until_next_turn(self)

    def resume_in_later_turn(self, reason: i64) -> None:
        """Remove a reason that many connections share.

        They resume in later turns, so that they do not all read at once.
        """
        self.pause_for_turn()
        self.resume(reason)

    def pause_until_synced(self) -> None:
        """Pause until fewer bytes are unsynced and fewer messages wait to be republished."""
        if not self.is_set(SYNC):
            self.pause(SYNC)
            self._turn.pause_until_synced(self)

    def on_synced(self) -> None:
        """Remove SYNC: the data is on the disk."""
        self.resume_in_later_turn(SYNC)

    def read_bodies(self, on: bool) -> None:
        """Allow or stop reading, as far as memory for incomplete bodies is concerned."""
        if not on:
            self.pause(BODIES)
        elif self.is_set(BODIES):
            self.resume_in_later_turn(BODIES)

    def on_next_turn(self) -> None:
        """Remove PACED: another turn has begun."""
        self.resume(PACED)
        if not self.is_set(SHARING):
            self.on_resume()

    def dispose(self) -> None:
        """Drop the callback: the socket is closed."""
        self.on_resume = _do_nothing
