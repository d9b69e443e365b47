"""Message bodies on their way: how much of them the broker keeps in memory, all connections together.

A body is kept until its last octet is there. While more than the budget is kept, the connection whose body has been on
its way longest is read to that body's end, and the others with unfinished bodies are not read; when there is room again
they go on, the oldest first. So one message always comes through, and what is kept is at most twice the budget and one
read of each connection: what waits, and what the oldest adds to it.
"""

from __future__ import annotations

from typing import Final, Protocol

# What may come of a connection before it is looked at again.
READ_BYTES: Final = 256 * 1024


class Reader(Protocol):
    """A connection that is in the midst of a body."""

    def read_bodies(self, on: bool) -> None:
        """Whether it may be read, as far as bodies are concerned. Told more than once, too."""


class UnfinishedBodies:
    """One per broker. limit_bytes: the budget."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.kept_bytes = 0
        # By the age of its oldest body: bytes kept of a connection, and that body's serial there.
        self._readers: dict[Reader, tuple[int, int]] = {}
        # Somebody is held.
        self.full = False

    def __len__(self) -> int:
        """Connections with unfinished bodies."""
        return len(self._readers)

    def changed(self, reader: Reader, kept_bytes: int, oldest: int) -> None:
        """A connection was read. kept_bytes: of its unfinished bodies; oldest: serial of the oldest, 0 without one.

        Cost: a dict look-up; while some are held and there is room again, a look at all of them.
        """
        before, serial = self._readers.get(reader, (0, 0))
        self.kept_bytes += kept_bytes - before
        if serial and serial != oldest:
            # The others of the connection are not as old as that.
            del self._readers[reader]
            if self.full:
                reader.read_bodies(True)
        if oldest:
            self._readers[reader] = kept_bytes, oldest
        if self.full or self.kept_bytes > self.limit_bytes:
            self._look()

    def _look(self) -> None:
        room = self.limit_bytes - self.kept_bytes
        self.full = False
        for number, reader in enumerate(self._readers):
            reads = number == 0 or room >= READ_BYTES
            room -= READ_BYTES
            reader.read_bodies(reads)
            if not reads:
                self.full = True
