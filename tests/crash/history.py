"""What every client asked and heard, in order: the history that `history_judge.py` judges.

It is kept in this process, outside the broker's disk. An event has its time (`time.monotonic` seconds), what
happened, the queue and the message; commands have two events, one when they were written and one when they were
answered. A command without an answer before the broker's life ends is uncertain. A message is its number; it names
itself and its lane in its message-id, and its body follows from the two. Events, and what `more` holds:

    publish            Sent
    publish-again      the same once more, under the number it has for the broker (`numbered`)
    confirmed, nacked, refused
    heard-publish      a plain publish: what was asked behind it on its channel was answered
    given              Given; by consume or by get
    settle             (given's number, "ack" | "reject" | "requeue", transaction or 0)
    heard              (consumer, when it was asked): what was asked behind the settlements until then has been answered
    commit, committed, rollback, rolled back                                    transaction
    purge, purged, delete, deleted                                              number of the command
    ruled                                                                       another policy of `ruled` was answered
    cancel, cancelled, uncancelled                                              number of the command
    rewind             (number of the command, first batch, last batch)
    rewound            (the same, how many came back)
    ended              "kill" | "cut" | "stop": is about to
    over               the same: it has
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pamqp.header
from groups_story import GroupsStory
from ledger import PERSISTENT, body_of
from quickclient import Message
from streams_story import StreamStory

LANES: Final = (
    *("work", "rank", "aged", "full", "limit", "tx.a", "tx.b", "purge", "again", "plain", "ruled"),
    *("retry", "numbered", "moved", "redriven", "later", "kept"),
)
"""Who publishes; each to the queue of its name, `later` to exchanges that delay."""
LETTERS: Final = {
    "work": "work.dead",
    "aged": "aged.dead",
    "full": "full.dead",
    "limit": "limit.dead",
    "ruled": "ruled.dead",
    "retry": "retry.dead",
}
"""Queue -> where its dead letters go; of `ruled` a policy says so."""
REASONS: Final = {
    "work": {"rejected"},
    "aged": {"rejected", "expired"},
    "full": {"rejected", "maxlen"},
    "limit": {"rejected", "delivery_limit"},
    "ruled": {"rejected", "expired", "maxlen"},
    "retry": {"rejected", "delivery_limit"},
}
PASSES: Final = {"moved": "moved.to", "redriven": "revived", "later": "due"}
"""Lane -> the queue to which its messages are moved, sent back or released: there is one copy of each, or all further
ones say that they are."""
COPIES: Final = LETTERS | PASSES
QUEUES: Final = (*(lane for lane in LANES if lane != "later"), *COPIES.values())
TTL_S: Final = 0.3
LENGTH_MAX: Final = 25
DELIVERY_LIMITS: Final = {"limit": 2, "retry": 3}
RETRY_MIN_MS: Final = 700
RETRY_MAX_MS: Final = 1800
"""Longer than a start takes, so that a kill comes into it."""


def retry_s(count: int) -> float:
    """How long a message of `retry` waits that came back for the `count`-th time."""
    return min(RETRY_MIN_MS * count, RETRY_MAX_MS) / 1000


class Sent(NamedTuple):
    """how: "confirm", "plain" or "tx"; "old": of a producer that has been replaced. transaction: its number, 0 for
    none. due: of `later`, not before this time, as events have it. batch: of `kept`.
    """

    how: str
    priority: int = 0
    transaction: int = 0
    due: float = 0.0
    batch: int = 0


class Given(NamedTuple):
    """number: of the delivery, unique. returns: x-delivery-count. deaths: of x-death (reason, queue, exchange,
    routing-keys, count). by: the consumer. marked: its headers say that there may be another copy. home: the queue it
    says it was moved from."""

    number: int
    redelivered: bool
    by: str
    returns: int = 0
    deaths: tuple[tuple[Any, ...], ...] = ()
    marked: bool = False
    home: str = ""


class Event(NamedTuple):
    at: float
    what: str
    queue: str = ""
    message: int = -1
    more: Any = None


@dataclass
class Held:
    """A delivery its consumer has yet to settle."""

    number: int
    tag: int
    queue: str
    message: int


class Numbered(NamedTuple):
    """A message of `numbered` as it is written, however often."""

    message: int
    properties: bytes
    body: bytes


@dataclass
class Producer:
    """Of `numbered`; it lives longer than the broker. sent: the last ones, in order; unconfirmed: of them, messages."""

    epoch: int = 0
    sequence: int = 0
    sent: list[Numbered] = field(default_factory=list)
    unconfirmed: set[int] = field(default_factory=set)

    def confirmed(self) -> int:
        """So many at the front of `sent` are."""
        return next((at for at, each in enumerate(self.sent) if each.message in self.unconfirmed), len(self.sent))


@dataclass
class Batches:
    """Of `kept`, in this epoch. begun: of each number, when (seconds since 1970). uncertain: first and last of each
    rewind without an answer."""

    number: int = 0
    begun: dict[int, float] = field(default_factory=dict)
    uncertain: list[tuple[int, int]] = field(default_factory=list)


def properties_of(queue: str, message: int, priority: int = 0, table: bytes = b"") -> bytes:
    """table: of headers, with its length; none where it is empty."""
    name = b"%s %d" % (queue.encode(), message)
    flags = 1 << 12 | (1 << 13 if table else 0) | (1 << 11 if priority else 0) | 1 << 7
    field = bytes([priority]) if priority else b""
    return struct.pack(">H", flags) + table + bytes([PERSISTENT]) + field + bytes([len(name)]) + name


class History:
    """What every client asked and heard. Clients write here; the judge takes and empties `events`, epoch by epoch."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.violations: list[str] = []  # what can be told at once, without a history
        self.seen: set[str] = set()  # kinds of events
        self.confirmed = 0
        self.given = 0
        self.stream = StreamStory()  # which judges at once
        self.groups = GroupsStory(1)  # and this one
        self.producer = Producer()
        self.batches = Batches()
        self._number = 0

    def note(self, what: str, queue: str = "", message: int = -1, more: Any = None) -> None:
        self.seen.add(what)
        self.events.append(Event(time.monotonic(), what, queue, message, more))

    def drained(self) -> None:
        """All queues are empty: nobody speaks of what was before."""
        self.groups.drained()
        self.producer.sent.clear()
        self.producer.unconfirmed.clear()
        self.batches.begun.clear()
        self.batches.uncertain.clear()

    def next_number(self) -> int:
        """For messages, deliveries, transactions and commands: no two have the same."""
        self._number += 1
        return self._number

    def publish(self, queue: str, sent: Sent, table: bytes = b"") -> tuple[int, bytes, bytes]:
        """(number, properties, body) of a message that is about to be written. table: see `properties_of`."""
        message = self.next_number()
        self.note("publish", queue, message, sent)
        return message, properties_of(queue, message, sent.priority, table), body_of(LANES.index(queue), message)

    def answered(self, queue: str, message: int, acked: bool) -> None:
        self.confirmed += acked
        self.note("confirmed" if acked else "nacked", queue, message)

    def deliver(self, queue: str, by: str, message: Message) -> Held:
        """What a consumer of that queue was given."""
        header = pamqp.header.ContentHeader()
        header.unmarshal(struct.pack(">HHQ", 60, 0, len(message.body)) + message.properties)
        name, _, number = str(header.properties.message_id).rpartition(" ")
        found = int(number)
        headers = header.properties.headers or {}
        deaths = tuple(
            (each["reason"], each["queue"], each["exchange"], tuple(each["routing-keys"]), each["count"])
            for each in headers.get("x-death", ())
        )
        if name not in LANES or message.body != body_of(LANES.index(name), found):
            self.violations.append(f"{queue}: {name} {found} has another body ({len(message.body)} bytes)")
        if queue not in (name, COPIES.get(name)):
            self.violations.append(f"{queue}: {name} {found} does not belong there")
        self.given += 1
        delivery = self.next_number()
        marked = any(headers.get(f"x-{each}-redelivered") for each in ("source", "delayed", "death"))
        home = headers.get("x-source-queue", "")
        returns = headers.get("x-delivery-count", 0)
        self.note("given", queue, found, Given(delivery, message.redelivered, by, returns, deaths, marked, home))
        return Held(delivery, message.tag, queue, found)

    def settle(self, held: Held, verdict: str, transaction: int = 0) -> None:
        """ "ack", "reject" or "requeue" is about to be written."""
        self.note("settle", held.queue, held.message, (held.number, verdict, transaction))
