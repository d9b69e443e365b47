"""Why a connection is not read: a set of reasons, each with one that adds it and one that takes it away.

The gate alone pauses the socket (with the first reason) and resumes it (with the last). Who asks whether silence is
the peer's own, as heartbeats do, asks here: while there is a reason, it is we who do not listen.

    SYNC     more is unsynced than may be; until the committer has caught up
    BACKLOG  commands wait behind busy channels; until few enough do
    ALARM    a publish met a resource alarm; until it is over
    OUTPUT   the peer does not read its answers; until it does
    SHARING  a read of publishes to a thousand queues each goes in slices; until the others had their turn
    PACED    it sent its share of the turn; until one of the next turns
    BODIES   others' unfinished message bodies are older, and as much of them is kept as may be; until there is room
"""

from __future__ import annotations

from typing import Any, Final, final

from mypy_extensions import i64

SYNC: Final = 1
BACKLOG: Final = 2
ALARM: Final = 4
OUTPUT: Final = 8
SHARING: Final = 16
PACED: Final = 32
BODIES: Final = 64


@final
class ReadGate:
    """Of one connection. transport: pause_reading(), resume_reading(). No reasons: it is read."""

    def __init__(self, transport: Any) -> None:
        self.reasons: i64 = 0
        self._transport = transport
        self._open_for_good = False

    def holds(self, reason: i64) -> bool:
        """Whether this is one of the reasons."""
        return self.reasons & reason != 0

    def hold(self, reason: i64) -> None:
        """The connection is not read from here on, until `release` takes the last reason away."""
        if self._open_for_good:
            return
        if self.reasons == 0:
            self._transport.pause_reading()
        self.reasons |= reason

    def release(self, reason: i64) -> None:
        """Nothing happens where it was none of the reasons."""
        if self.reasons & reason == 0:
            return
        self.reasons &= ~reason
        if self.reasons == 0:
            self._transport.resume_reading()

    def open_for_good(self) -> None:
        """The connection is ending: only the peer's own end is still of interest, and nothing may keep us from it."""
        self._open_for_good = True
        if self.reasons != 0:
            self.reasons = 0
            self._transport.resume_reading()
