"""Every message accounted, over several nodes: what was published, confirmed and delivered, kept outside all of them.

A message is (session, sequence): a session is one connection of one publisher, and order is a session's. What a session
had sent when it ended may come or not, and nothing says when, beside what the next session publishes: it went by
another node. A message names itself in its message-id, and its body follows from the name.

Judged: confirmed is delivered; nothing is delivered that was not published; first deliveries of a session come in its
order; a repeat says `redelivered`; a message is confirmed once, and not nacked as well. What was acked and returns is
counted by how old the ack was (`returned`), for tests that make a promise about it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PERSISTENT: Final = 2
VIOLATIONS_MAX: Final = 50


class Name(NamedTuple):
    """Of a message."""

    session: int
    sequence: int


@dataclass
class Session:
    """One connection of a publisher. answered: sequences, and whether they were confirmed."""

    number: int
    queue: str
    published: int = 0
    answered: dict[int, bool] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)

    def sent_at(self, sequence: int) -> float:
        """When it was written."""
        return self.times[sequence - 1]


@dataclass
class Copy:
    """A message in its queue. Times are of `time.monotonic`; acked_at: 0 while no ack was written."""

    first_at: float
    times: int = 1
    acked_at: float = 0.0
    heard_at: float = 0.0


class Returned(NamedTuple):
    """A message that came again although it had been acked. heard_at: when what was asked behind its ack had been
    answered, 0: it had not.
    """

    queue: str
    name: Name
    heard_at: float


def properties_of(name: Name) -> bytes:
    """delivery-mode and message-id."""
    text = b"%d.%d" % name
    return struct.pack(">HB", 1 << 12 | 1 << 7, PERSISTENT) + bytes([len(text)]) + text


def name_of(properties: bytes) -> Name:
    """Raises: ValueError where a header frame was added, which no queue of these does."""
    size = properties[3]
    session, _, sequence = properties[4 : 4 + size].partition(b".")
    return Name(int(session), int(sequence))


def body_of(name: Name, size: int = 0) -> bytes:
    """The name, and so many bytes that follow from it."""
    text = b"%d.%d;" % name
    return text + bytes((name.sequence + at) % 256 for at in range(256)) * (size // 256) if size else text


class Account:
    """What all clients did, in one process. size: bytes of a body, about. cut: consumers may have been given messages
    that never reached them, while their node is well: those come later than what follows them, as redelivered.
    """

    def __init__(self, size: int = 0, cut: bool = False) -> None:
        self.size = size
        self.cut = cut
        self.sessions: list[Session] = []
        self.seen: dict[str, dict[Name, Copy]] = {}
        self.violations: list[str] = []
        self.returned: list[Returned] = []
        self.nacked = 0
        self.newest_at: dict[str, float] = {}
        """Of each queue: when the newest message that it has delivered was published."""
        self.newest_confirmed_at: dict[str, float] = {}
        """The same of confirms."""
        self._last: dict[tuple[str, int], int] = {}

    def violate(self, text: str) -> None:
        """The first of them are told: a broken cluster must not fill the memory."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)

    # -- publishers

    def session(self, queue: str) -> Session:
        """A publisher has connected."""
        self.sessions.append(Session(len(self.sessions), queue))
        return self.sessions[-1]

    def publish(self, session: Session) -> tuple[bytes, bytes]:
        """Properties and body of its next message, which is about to be written."""
        session.published += 1
        session.times.append(time.monotonic())
        name = Name(session.number, session.published)
        return properties_of(name), body_of(name, self.size)

    def answered(self, session: Session, tag: int, multiple: bool, confirmed: bool) -> None:
        """A confirm, or a nack: tags are the sequences."""
        tags = [each for each in range(1, tag + 1) if each not in session.answered] if multiple else [tag]
        for each in tags:
            if each in session.answered or each > session.published:
                self.violate(f"{session.queue}: {session.number}.{each} was answered twice, or never published")
            session.answered[each] = confirmed
            self.nacked += not confirmed
            if confirmed and each <= session.published:
                newest = self.newest_confirmed_at.get(session.queue, 0.0)
                self.newest_confirmed_at[session.queue] = max(newest, session.sent_at(each))

    def unanswered(self, session: Session) -> int:
        return session.published - len(session.answered)

    # -- consumers

    def delivered(self, queue: str, properties: bytes, body: bytes, redelivered: bool) -> Name:
        """Judges a delivery."""
        now = time.monotonic()
        name = name_of(properties)
        seen = self.seen.setdefault(queue, {})
        if name.session >= len(self.sessions) or name.sequence > self.sessions[name.session].published:
            self.violate(f"{queue}: {name} was never published")
            return name
        session = self.sessions[name.session]
        if session.queue != queue:
            self.violate(f"{queue}: {name} belongs to {session.queue}")
        self.newest_at[queue] = max(self.newest_at.get(queue, 0.0), session.sent_at(name.sequence))
        if body != body_of(name, self.size):
            self.violate(f"{queue}: {name} has another body ({len(body)} bytes)")
        copy = seen.get(name)
        if copy is not None:
            copy.times += 1
            if not redelivered:
                self.violate(f"{queue}: {name} came again, not as redelivered")
            if copy.acked_at:
                self.returned.append(Returned(queue, name, copy.heard_at))
            return name
        seen[name] = Copy(now)
        last = self._last.get((queue, name.session), 0)
        if name.sequence < last and not (self.cut and redelivered):
            self.violate(f"{queue}: {name} came first behind {last}")
        self._last[queue, name.session] = max(last, name.sequence)
        return name

    def acked(self, queue: str, name: Name) -> None:
        """Its ack is being written now."""
        copy = self.seen[queue].get(name)
        if copy is not None:
            copy.acked_at = time.monotonic()

    def heard(self, queue: str, names: Iterable[Name]) -> None:
        """What was asked behind their acks has been answered: the node has read them."""
        now = time.monotonic()
        for name in names:
            copy = self.seen[queue].get(name)
            if copy is not None and not copy.heard_at:
                copy.heard_at = now

    # -- the verdict

    @property
    def confirmed(self) -> int:
        return sum(sum(session.answered.values()) for session in self.sessions)

    def missing(self) -> list[tuple[str, Name]]:
        """Confirmed and not delivered yet."""
        return [
            (session.queue, name)
            for session in self.sessions
            for sequence, confirmed in session.answered.items()
            if confirmed and (name := Name(session.number, sequence)) not in self.seen.get(session.queue, {})
        ]

    def repeats(self) -> int:
        return sum(copy.times - 1 for seen in self.seen.values() for copy in seen.values())

    def told(self) -> str:
        """In one line."""
        published = sum(session.published for session in self.sessions)
        return (
            f"{len(self.sessions)} sessions, {published} published, {self.confirmed} confirmed, {self.nacked} nacked, "
            f"{sum(map(len, self.seen.values()))} delivered, {self.repeats()} again, {len(self.returned)} after their "
            f"ack, {len(self.missing())} missing, {len(self.violations)} violations"
        )

    def judge(self) -> None:
        """After a drain. Raises: AssertionError."""
        missing = self.missing()
        found = [f"{len(missing)} confirmed messages are lost, first {missing[:5]}"] if missing else []
        found += self.violations
        assert not found, "\n".join([self.told(), *found])
