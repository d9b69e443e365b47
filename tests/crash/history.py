"""What every client asked and heard, in order: the history that `history_judge.py` judges.

It is kept in this process, outside the broker's disk. An event has its time (`time.monotonic` seconds), what
happened, the queue and the message; commands have two events, one when they were written and one when they were
answered. A command without an answer before the broker's life ends is uncertain. A message is its number; it names
itself and its lane in its message-id, and its body follows from the two. Events, and what `more` holds:

    publish            Sent
    confirmed, nacked
    heard-publish      a plain publish: what was asked behind it on its channel was answered
    given              Given; by consume or by get
    settle             (given's number, "ack" | "reject" | "requeue", transaction or 0)
    heard              (consumer, when it was asked): what was asked behind the settlements until then has been answered
    commit, committed, rollback, rolled back                                    transaction
    purge, purged, delete, deleted                                              number of the command
    ruled                                                                       another policy of `ruled` was answered
    ended              "kill" | "cut" | "stop"
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pamqp.header
from ledger import PERSISTENT, body_of
from quickclient import Message
from streams_story import StreamStory

LANES: Final = ("work", "rank", "aged", "full", "limit", "tx.a", "tx.b", "purge", "again", "plain", "ruled")
"""Who publishes; each to the queue of its name."""
LETTERS: Final = {
    "work": "work.dead",
    "aged": "aged.dead",
    "full": "full.dead",
    "limit": "limit.dead",
    "ruled": "ruled.dead",
}
"""Queue -> where its dead letters go; of `ruled` a policy says so."""
REASONS: Final = {
    "work": {"rejected"},
    "aged": {"rejected", "expired"},
    "full": {"rejected", "maxlen"},
    "limit": {"rejected", "delivery_limit"},
    "ruled": {"rejected", "expired", "maxlen"},
}
TTL_S: Final = 0.3
LENGTH_MAX: Final = 25
DELIVERY_LIMIT: Final = 2


class Sent(NamedTuple):
    """how: "confirm", "plain" or "tx". transaction: its number, 0 for none."""

    how: str
    priority: int = 0
    transaction: int = 0


class Given(NamedTuple):
    """number: of the delivery, unique. returns: x-delivery-count. deaths: of x-death (reason, queue, exchange,
    routing-keys, count). by: the consumer."""

    number: int
    redelivered: bool
    by: str
    returns: int = 0
    deaths: tuple[tuple[Any, ...], ...] = ()


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


def properties_of(queue: str, message: int, priority: int = 0) -> bytes:
    name = b"%s %d" % (queue.encode(), message)
    flags = 1 << 12 | (1 << 11 if priority else 0) | 1 << 7
    field = bytes([priority]) if priority else b""
    return struct.pack(">HB", flags, PERSISTENT) + field + bytes([len(name)]) + name


class History:
    """What every client asked and heard. Clients write here; the judge takes and empties `events`, epoch by epoch."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.violations: list[str] = []  # what can be told at once, without a history
        self.seen: set[str] = set()  # kinds of events
        self.confirmed = 0
        self.given = 0
        self.stream = StreamStory()  # which judges at once
        self._number = 0

    def note(self, what: str, queue: str = "", message: int = -1, more: Any = None) -> None:
        self.seen.add(what)
        self.events.append(Event(time.monotonic(), what, queue, message, more))

    def next_number(self) -> int:
        """For messages, deliveries, transactions and commands: no two have the same."""
        self._number += 1
        return self._number

    def publish(self, queue: str, sent: Sent) -> tuple[int, bytes, bytes]:
        """(number, properties, body) of a message that is about to be written."""
        message = self.next_number()
        self.note("publish", queue, message, sent)
        return message, properties_of(queue, message, sent.priority), body_of(LANES.index(queue), message)

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
        if queue not in (name, LETTERS.get(name)):
            self.violations.append(f"{queue}: {name} {found} does not belong there")
        self.given += 1
        delivery = self.next_number()
        self.note(
            "given", queue, found, Given(delivery, message.redelivered, by, headers.get("x-delivery-count", 0), deaths)
        )
        return Held(delivery, message.tag, queue, found)

    def settle(self, held: Held, verdict: str, transaction: int = 0) -> None:
        """ "ack", "reject" or "requeue" is about to be written."""
        self.note("settle", held.queue, held.message, (held.number, verdict, transaction))
