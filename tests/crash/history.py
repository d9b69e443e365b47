"""The history of all client actions and received events, in order; `history_judge.py` judges it.

The test process keeps it, outside the broker's disk. An event has a time (`time.monotonic` seconds), a kind, the queue
and the message. A command has two events: one when it was written, one when it was answered. A command that was not
answered before the broker's life ended is uncertain. A message is a number; its message-id has lane and number, and its
body follows from both. The kinds of events, and what `more` holds:

publish Sent publish-again the same message again, with its producer number (`numbered`) confirmed, nacked, refused
heard-publish a plain publish: a later request on its channel was answered given Given; a delivery by consume or get
settle (number of the Given, "ack" | "reject" | "requeue", transaction or 0) heard (consumer, request time): a request
sent at that time, behind the settlements, was answered commit, committed, rollback, rolled back transaction purge,
purged, delete, deleted number of the command ruled a new policy of `ruled` was answered cancel, cancelled, uncancelled
number of the command rewind (number of the command, first batch, last batch) rewound (number of the command, messages
rewound) ended "kill" | "cut" | "stop": the life is about to end over the same: the life has ended
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
"""The lanes of publishers: each publishes to the queue of its name, `later` to delaying exchanges."""
LETTERS: Final = {
    "work": "work.dead",
    "aged": "aged.dead",
    "full": "full.dead",
    "limit": "limit.dead",
    "ruled": "ruled.dead",
    "retry": "retry.dead",
}
"""Queue -> queue of its dead letters; for `ruled` set by a policy."""
REASONS: Final = {
    "work": {"rejected"},
    "aged": {"rejected", "expired"},
    "full": {"rejected", "maxlen"},
    "limit": {"rejected", "delivery_limit"},
    "ruled": {"rejected", "expired", "maxlen"},
    "retry": {"rejected", "delivery_limit"},
}
PASSES: Final = {"moved": "moved.to", "redriven": "revived", "later": "due"}
"""Lane -> the queue to which its messages are moved, redriven or released. Further copies of a message are marked."""
COPIES: Final = LETTERS | PASSES
QUEUES: Final = (*(lane for lane in LANES if lane != "later"), *COPIES.values())
TTL_S: Final = 0.3
LENGTH_MAX: Final = 25
DELIVERY_LIMITS: Final = {"limit": 2, "retry": 3}
RETRY_MIN_MS: Final = 700
RETRY_MAX_MS: Final = 1800
"""Longer than a start takes, so that kills fall into it."""


def retry_s(count: int) -> float:
    """Return the delay in seconds of a message of `retry` after its `count`-th return."""
    return min(RETRY_MIN_MS * count, RETRY_MAX_MS) / 1000


class Sent(NamedTuple):
    """A publish.

    how: "confirm", "plain", "tx", or "old" for a replaced producer. transaction: its number, 0 for none. due: for
    `later`, the earliest delivery, in the time of events. batch: for `kept`.
    """

    how: str
    priority: int = 0
    transaction: int = 0
    due: float = 0.0
    batch: int = 0


class Given(NamedTuple):
    """A delivery.

    number: unique. returns: x-delivery-count. deaths: from x-death, as (reason, queue, exchange, routing-keys, count).
    by: the consumer. marked: its headers say that another copy may exist. home: x-source-queue.
    """

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
    """An unacked delivery."""

    number: int
    tag: int
    queue: str
    message: int


class Numbered(NamedTuple):
    """A message of `numbered`, the same bytes for each publish."""

    message: int
    properties: bytes
    body: bytes


@dataclass
class Producer:
    """The producer of `numbered`; it outlives the broker. sent: recent messages in order. unconfirmed: some of them."""

    epoch: int = 0
    sequence: int = 0
    sent: list[Numbered] = field(default_factory=list)
    unconfirmed: set[int] = field(default_factory=set)

    def confirmed(self) -> int:
        """Return how many messages at the front of `sent` are confirmed."""
        return next((at for at, each in enumerate(self.sent) if each.message in self.unconfirmed), len(self.sent))


@dataclass
class Batches:
    """The batches of `kept` in this epoch.

    begun: start time of each batch (seconds since 1970). uncertain: first and last batch of each unanswered rewind.
    """

    number: int = 0
    begun: dict[int, float] = field(default_factory=dict)
    uncertain: list[tuple[int, int]] = field(default_factory=list)


def properties_of(queue: str, message: int, priority: int = 0, table: bytes = b"") -> bytes:
    """Encode the properties. table: the headers with their length, or b"" for none."""
    name = b"%s %d" % (queue.encode(), message)
    flags = 1 << 12 | (1 << 13 if table else 0) | (1 << 11 if priority else 0) | 1 << 7
    field = bytes([priority]) if priority else b""
    return struct.pack(">H", flags) + table + bytes([PERSISTENT]) + field + bytes([len(name)]) + name


class History:
    """The recorded history. Clients add events; the judge takes and clears them, epoch by epoch."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.violations: list[str] = []  # found without the judge
        self.seen: set[str] = set()  # kinds of events
        self.confirmed = 0
        self.given = 0
        self.stream = StreamStory()  # judges each event at once
        self.groups = GroupsStory(1)  # judges each event at once
        self.producer = Producer()
        self.batches = Batches()
        self._number = 0

    def note(self, what: str, queue: str = "", message: int = -1, more: Any = None) -> None:
        self.seen.add(what)
        self.events.append(Event(time.monotonic(), what, queue, message, more))

    def drained(self) -> None:
        """Forget everything before: all queues are empty."""
        self.groups.drained()
        self.producer.sent.clear()
        self.producer.unconfirmed.clear()
        self.batches.begun.clear()
        self.batches.uncertain.clear()

    def next_number(self) -> int:
        """Return a new number; messages, deliveries, transactions and commands share the sequence."""
        self._number += 1
        return self._number

    def publish(self, queue: str, sent: Sent, table: bytes = b"") -> tuple[int, bytes, bytes]:
        """Return (number, properties, body) of a message that is about to be written. table: see `properties_of`."""
        message = self.next_number()
        self.note("publish", queue, message, sent)
        return message, properties_of(queue, message, sent.priority, table), body_of(LANES.index(queue), message)

    def answered(self, queue: str, message: int, acked: bool) -> None:
        self.confirmed += acked
        self.note("confirmed" if acked else "nacked", queue, message)

    def deliver(self, queue: str, by: str, message: Message) -> Held:
        """Note a delivery of that queue."""
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
        """Note that "ack", "reject" or "requeue" is about to be written."""
        self.note("settle", held.queue, held.message, (held.number, verdict, transaction))
