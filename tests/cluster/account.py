"""An account of all messages over several nodes: published, confirmed and delivered, recorded outside all nodes.

A message is (session, sequence); a session is one connection of one publisher, and order is kept per session. Messages
that were unconfirmed when a session ended may arrive late or never, in any order with those of the next session, which
uses another node. The message-id names the message, and its body follows from the name.

Judged: Each confirmed message is delivered, and nothing unpublished is. First deliveries of a session keep its order. A
repeat is flagged `redelivered`. A message is confirmed once and not also nacked. Messages that return after their ack
are listed with the age of the ack (`returned`), for tests of that guarantee.
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
    """The name of a message."""

    session: int
    sequence: int


@dataclass
class Session:
    """One connection of a publisher. answered: sequence -> whether it was confirmed."""

    number: int
    queue: str
    published: int = 0
    answered: dict[int, bool] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)

    def sent_at(self, sequence: int) -> float:
        """Return the time at which the message was written."""
        return self.times[sequence - 1]


@dataclass
class Copy:
    """A message in its queue. Times are `time.monotonic`; acked_at is 0 until an ack is written."""

    first_at: float
    times: int = 1
    acked_at: float = 0.0
    heard_at: float = 0.0


class Returned(NamedTuple):
    """A message that was delivered again after its ack. heard_at: when the node answered a request sent after the ack,
    or 0 if it did not.
    """

    queue: str
    name: Name
    heard_at: float


def properties_of(name: Name) -> bytes:
    """Encode delivery-mode and message-id."""
    text = b"%d.%d" % name
    return struct.pack(">HB", 1 << 12 | 1 << 7, PERSISTENT) + bytes([len(text)]) + text


def name_of(properties: bytes) -> Name:
    """Decode the message-id. Raises: ValueError if a header frame was added, which these queues never do."""
    size = properties[3]
    session, _, sequence = properties[4 : 4 + size].partition(b".")
    return Name(int(session), int(sequence))


def body_of(name: Name, size: int = 0) -> bytes:
    """Return the name followed by `size` bytes derived from it."""
    text = b"%d.%d;" % name
    return text + bytes((name.sequence + at) % 256 for at in range(256)) * (size // 256) if size else text


class Account:
    """The actions of all clients in one process. size: approximate body size in bytes. cut: deliveries to unreachable
    consumers may be lost on a healthy node; such messages arrive late, flagged redelivered.
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
        """For each queue, the publish time of the newest delivered message."""
        self.newest_confirmed_at: dict[str, float] = {}
        """For each queue, the publish time of the newest confirmed message."""
        self._last: dict[tuple[str, int], int] = {}

    def record_violation(self, text: str) -> None:
        """Record a violation. Only the first ones are kept, to bound the memory."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)

    # -- publishers

    def session(self, queue: str) -> Session:
        """Record a new connection of a publisher."""
        self.sessions.append(Session(len(self.sessions), queue))
        return self.sessions[-1]

    def publish(self, session: Session) -> tuple[bytes, bytes]:
        """Return properties and body of the session's next message, just before it is written."""
        session.published += 1
        session.times.append(time.monotonic())
        name = Name(session.number, session.published)
        return properties_of(name), body_of(name, self.size)

    def record_confirm(self, session: Session, tag: int, multiple: bool, confirmed: bool) -> None:
        """Record a confirm or a nack. Delivery tags equal sequences."""
        tags = [each for each in range(1, tag + 1) if each not in session.answered] if multiple else [tag]
        for each in tags:
            if each in session.answered or each > session.published:
                self.record_violation(f"{session.queue}: {session.number}.{each} was answered twice or never published")
            session.answered[each] = confirmed
            self.nacked += not confirmed
            if confirmed and each <= session.published:
                newest = self.newest_confirmed_at.get(session.queue, 0.0)
                self.newest_confirmed_at[session.queue] = max(newest, session.sent_at(each))

    def unanswered(self, session: Session) -> int:
        return session.published - len(session.answered)

    # -- consumers

    def record_delivery(self, queue: str, properties: bytes, body: bytes, redelivered: bool) -> Name:
        """Check and record a delivery."""
        now = time.monotonic()
        name = name_of(properties)
        seen = self.seen.setdefault(queue, {})
        if name.session >= len(self.sessions) or name.sequence > self.sessions[name.session].published:
            self.record_violation(f"{queue}: {name} was never published")
            return name
        session = self.sessions[name.session]
        if session.queue != queue:
            self.record_violation(f"{queue}: {name} belongs to {session.queue}")
        self.newest_at[queue] = max(self.newest_at.get(queue, 0.0), session.sent_at(name.sequence))
        if body != body_of(name, self.size):
            self.record_violation(f"{queue}: {name} has another body ({len(body)} bytes)")
        copy = seen.get(name)
        if copy is not None:
            copy.times += 1
            if not redelivered:
                self.record_violation(f"{queue}: {name} came again, not as redelivered")
            if copy.acked_at:
                self.returned.append(Returned(queue, name, copy.heard_at))
            return name
        seen[name] = Copy(now)
        last = self._last.get((queue, name.session), 0)
        if name.sequence < last and not (self.cut and redelivered):
            self.record_violation(f"{queue}: {name} came first behind {last}")
        self._last[queue, name.session] = max(last, name.sequence)
        return name

    def record_ack(self, queue: str, name: Name) -> None:
        """Record that an ack is being written."""
        copy = self.seen[queue].get(name)
        if copy is not None:
            copy.acked_at = time.monotonic()

    def record_ack_read(self, queue: str, names: Iterable[Name]) -> None:
        """Record that the node has read these acks: it answered a request sent after them."""
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
        """Return the messages that were confirmed and not yet delivered."""
        return [
            (session.queue, name)
            for session in self.sessions
            for sequence, confirmed in session.answered.items()
            if confirmed and (name := Name(session.number, sequence)) not in self.seen.get(session.queue, {})
        ]

    def repeats(self) -> int:
        return sum(copy.times - 1 for seen in self.seen.values() for copy in seen.values())

    def summary(self) -> str:
        """Return a summary in one line."""
        published = sum(session.published for session in self.sessions)
        return (
            f"{len(self.sessions)} sessions, {published} published, {self.confirmed} confirmed, {self.nacked} nacked, "
            f"{sum(map(len, self.seen.values()))} delivered, {self.repeats()} again, {len(self.returned)} after their "
            f"ack, {len(self.missing())} missing, {len(self.violations)} violations"
        )

    def judge(self) -> None:
        """Judge after a drain. Raises: AssertionError."""
        missing = self.missing()
        found = [f"{len(missing)} confirmed messages are lost, first {missing[:5]}"] if missing else []
        found += self.violations
        assert not found, "\n".join([self.summary(), *found])
