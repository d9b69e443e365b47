"""The judge of a stream with many readers, over the lives of a broker; it judges each event at once.

The stream `flow` has one publisher with confirms, whose messages are numbers. It has readers that start anywhere, a
named reader that stores its offset with its acks, an operator who sets an offset, and retention policies. After each
start the whole stream is read (`found`). The rules, for any end of the life before:

- An offset always shows the same message, and a message has one offset. A message that a reader received is there after
  a kill and a power cut, confirmed or not, since readers get only synced messages.
- Confirmed messages are there, except if retention may have deleted them: older than AGE_S, or older than the newest
  KEPT_BYTES.
- Deleted messages stay deleted. Messages are in the order of publishing, and no offset is missing, except if a power
  cut took unread and unconfirmed messages and kept the next file.
- A reader starts at the requested place and skips only deleted messages.
- The stored offset of a name is never beyond what its consumers acked in order, and never behind what was reported as
  written. After a clean stop it is not behind what the broker has read. The next reader of that name continues there.
- An offset that the operator set counts once answered; before, it may count.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

STREAM: Final = "flow"
NAMED: Final = "reader"
OPERATED: Final = "operator"
KEPT_BYTES: Final = 75_000
"""Bytes of bodies that every policy keeps: half of the smallest max-length-bytes; records are larger than bodies."""
AGE_S: Final = 4.0
"""The smallest max-age."""


def body(number: int) -> bytes:
    rng = random.Random(number)
    return b"%d %s" % (number, rng.randbytes(rng.choice((5, 50, 300, 900))).hex().encode())


@dataclass
class Reader:
    """A consumer. argument: x-stream-offset as a number: the offset, or seconds since 1970. name: "" for none.

    newest: the newest confirmed number when its consume was written. above: the offset above all those seen then.
    begun: number of published messages when consume was answered, -1 before. unacked: offsets, in order.
    """

    kind: str
    argument: int = 0
    name: str = ""
    newest: int = -1
    above: int = 0
    begun: int = -1
    first: int = -1
    last: int = -1
    unacked: dict[int, None] = field(default_factory=dict)

    @property
    def frontier(self) -> int:
        """The offset below which it has acked everything; -1 before its first delivery."""
        return next(iter(self.unacked), self.last + 1) if self.last >= 0 else -1


class StreamStory:
    """The judge over all lives. Times are wall-clock seconds, as in the broker's log."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.life = 0
        self.totals = {"published": 0, "seen": 0, "cut": 0, "readers": 0, "stored": 0}
        self.sent_at: list[float] = []
        self.confirmed_at: list[float] = []  # 0.0: not confirmed
        self.newest = -1  # newest confirmed number
        self.at: dict[int, int] = {}  # offset -> number
        self.place: dict[int, int] = {}  # number -> offset
        self.start = 0  # lower offsets were deleted at the last start
        self.above = 0  # greater than every offset seen
        self.cut_to = 0  # a reader skipped lower offsets
        self.holes: dict[
            int, int
        ] = {}  # lost in a power cut between two files: offset behind the hole -> first offset of the hole
        self._after_cut = False
        self._cut_by = ""
        # Of the named reader: how far it has ever acked in order, how far the broker has read acks in this life, what
        # was reported as written, and what must be stored exactly; -1: nothing.
        self.acked = self.heard = self.told = self.stored = -1
        self.set: int | None = None  # answered commands of the operator
        self.asked: set[int] = set()  # commands without an answer

    def violate(self, text: str) -> None:
        if len(self.violations) < 50:
            self.violations.append(f"life {self.life}: {STREAM}: {text}")

    # -- the publisher

    def publish(self, now: float | None = None) -> int:
        self.sent_at.append(time.time() if now is None else now)
        self.confirmed_at.append(0.0)
        self.totals["published"] += 1
        return len(self.sent_at) - 1

    def confirmed(self, number: int, now: float | None = None) -> None:
        self.confirmed_at[number] = time.time() if now is None else now
        self.newest = max(self.newest, number)

    def nacked(self, number: int) -> None:
        self.violate(f"message {number} was nacked")

    # -- readers

    def asks(self, kind: str, argument: int = 0, name: str = "") -> Reader:
        """The consume of a new reader is about to be written."""
        self.totals["readers"] += 1
        return Reader(kind, argument, name, self.newest, self.above)

    def begins(self, reader: Reader) -> None:
        """Its consume was answered."""
        reader.begun = len(self.sent_at)

    def given(self, reader: Reader, offset: int, number: int) -> None:
        self.see(offset, number)
        self.totals["seen"] += 1
        if reader.last < 0:
            reader.first = offset
            self._judge_begin(reader, offset, number)
        elif offset <= reader.last:
            self.violate(f"offset {offset} came after {reader.last}")
        elif reader.last + 1 < self.holes.get(offset, offset):
            self._passes_over(offset, reader)
        reader.last = offset
        reader.unacked[offset] = None

    def see(self, offset: int, number: int) -> None:
        if not 0 <= number < len(self.sent_at):
            self.violate(f"offset {offset} shows {number}, which was never published")
        if self.at.setdefault(offset, number) != number:
            self.violate(f"offset {offset} showed message {self.at[offset]}, now it shows {number}")
        if self.place.setdefault(number, offset) != offset:
            self.violate(f"message {number} stood at offset {self.place[number]}, now it stands at {offset}")
        if offset < self.start:
            self.violate(f"offset {offset} was cut, and is back")
        self.above = max(self.above, offset + 1)

    def _judge_begin(self, reader: Reader, offset: int, number: int) -> None:
        """Check the start of a reader. A late start means deleted messages (checked in `found`); an early start is a
        violation.
        """
        if reader.kind == "offset":
            due = reader.argument
            if offset < due:
                self.violate(f"a reader from offset {due} on was given {offset}")
        elif reader.kind == "stored":
            due = self._due(reader, offset)
            if offset < due:
                self.violate(f"{NAMED} had stored {due}, and was given {offset}")
        elif reader.kind == "first":
            due = self.start
        elif reader.kind == "time":
            wanted = bisect_left(self.sent_at, reader.argument)
            due = offset if number <= wanted else offset + 1
            if 0 < self.confirmed_at[number] < reader.argument:
                self.violate(f"a reader of what is not older than {reader.argument} was given message {number}")
            if number > wanted:
                self._passes_over(offset, reader)
            return
        else:
            # Messages published after the answer are not skipped.
            if number > reader.begun >= 0:
                self._passes_over(offset, reader)
            if reader.kind == "next" and offset < reader.above:
                self.violate(f"a reader of what comes next was given {offset}, which had been seen")
            elif reader.kind == "last" and reader.newest >= 0:
                confirmed = self.confirmed_at[number]
                if 0 < confirmed < self.sent_at[reader.newest]:
                    self.violate(f"a reader from the last batch on was given message {number}, of an earlier one")
            return
        if due < self.holes.get(offset, offset):
            self._passes_over(offset, reader)

    def _due(self, reader: Reader, offset: int) -> int:
        """Return where a reader of a name must continue whose first delivery is `offset`."""
        return reader.argument

    def _passes_over(self, offset: int, reader: Reader) -> None:
        """Note that lower offsets were skipped and must be deleted; `found` checks it."""
        if offset > self.cut_to:
            self.cut_to = offset
            self._cut_by = f"from {reader.kind} {reader.argument}, given {reader.first} first and {reader.last} last"

    def acks(self, reader: Reader, offset: int) -> None:
        """The ack is about to be written."""
        del reader.unacked[offset]
        if reader.name:
            self.acked = max(self.acked, reader.frontier)

    def hears(self, reader: Reader, frontier: int) -> None:
        """The broker has read its acks up to `frontier`."""
        if reader.name:
            self.heard = max(self.heard, frontier)

    def ends(self, reader: Reader) -> None:
        """Handle the answer to channel.close: all acks were read. The next reader of its name continues there."""
        if reader.name and reader.frontier > reader.first:
            self.stored = reader.frontier

    # -- stored offsets

    def tells(self, name: str, offset: int, written: bool) -> None:
        """The broker reported the offset of a name."""
        if name != NAMED:
            return
        self._not_beyond(offset)
        if written:
            self.told = max(self.told, offset)

    def _not_beyond(self, offset: int) -> None:
        if offset > max(self.acked, self.start, self.cut_to):
            self.violate(f"{offset} is stored for {NAMED}, which has acked up to {self.acked}")

    def sets(self, offset: int) -> None:
        self.asked.add(offset)

    def answered(self, offset: int) -> None:
        self.asked.clear()
        self.set = offset

    # -- restarts

    def ended(self, how: str) -> None:
        """how: kill, cut or stop."""
        if how == "stop":
            self.told = max(self.told, self.heard)
        self.heard = self.stored = -1
        self._after_cut = how == "cut"
        self.life += 1

    def found(self, messages: Iterable[tuple[int, int]], stored: dict[str, int], now: float | None = None) -> None:
        """Check the content at a start, as (offset, number), and the stored offsets."""
        now = time.time() if now is None else now
        all_found = list(messages)
        start = all_found[0][0]
        for offset, number in all_found:
            self.see(offset, number)
        for (before, older), (offset, newer) in pairwise(all_found):
            if before + 1 < self.holes.get(offset, offset):
                if not self._after_cut or any(each in self.at for each in range(before + 1, offset)):
                    self.violate(f"offset {offset} follows {before}")
                self.holes[offset] = before + 1
            if newer <= older:
                self.violate(f"message {newer} follows {older}")
        if start < self.cut_to:
            self.violate(f"a reader passed over {start} to {self.cut_to - 1}, which are there ({self._cut_by})")
        end = all_found[-1][0] + 1
        if end < self.above:
            self.violate(f"{end} to {self.above - 1} have been seen, and are lost")
        numbers = {number for _, number in all_found}
        first = all_found[0][1]
        kept = 0
        for number in range(len(self.sent_at) - 1, -1, -1):
            if number in numbers:
                kept += len(body(number))
            elif self.confirmed_at[number] and number > first:
                self.violate(f"message {number} was confirmed, and is lost")
            elif self.confirmed_at[number] and kept < KEPT_BYTES and now - self.sent_at[number] < AGE_S:
                self.violate(f"message {number} was confirmed, and is cut, though only {kept} bytes are newer")
            elif number < first and kept >= KEPT_BYTES:
                break
        self.totals["cut"] += max(0, start - self.start)
        self.start = max(self.start, start)
        self._after_cut = False
        self._judge_stored(stored)

    def _judge_stored(self, stored: dict[str, int]) -> None:
        offset = stored.get(NAMED, -1)
        if offset >= 0:
            self.totals["stored"] += 1
            self._not_beyond(offset)
        if offset < self.told:
            self.violate(f"{offset} is stored for {NAMED}, and {self.told} was written")
        self.told = self.stored = offset
        operated = stored.get(OPERATED)
        if operated != self.set and operated not in self.asked:
            self.violate(f"{operated} is stored for {OPERATED}, {self.set} was answered, {sorted(self.asked)} asked")
        self.set = operated
        self.asked.clear()
