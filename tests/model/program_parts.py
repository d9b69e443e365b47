"""The parts of the naive twin of a broker: messages, queues, exchanges and bindings as plain objects.

If an order is not specified (dead letters of two queues reach a third queue at the same moment), the twin raises
`Unspecified` and the program ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Unspecified(Exception):
    """The next result depends on an order that is not specified."""


class TwinMismatch(AssertionError):
    """The broker and its twin disagree."""


@dataclass(frozen=True)
class Death:
    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    expiration: str
    count: int = 1


@dataclass
class TwinMessage:
    """A message in one queue.

    - deaths: newest first.
    - deliveries: the number of returns, which a quorum queue shows.
    - ttl_start_ms: start of the time to live, shared by the copies in all queues: the arrival if a time to live applied
      then, otherwise the moment when one first applied.
    - logged_ms: arrival in its queue, the only time that a restart knows.
    - redelivered: None where both values are allowed.
    - age_uncertain: returned, so that it may be read from the log again, with the arrival time of the log.
    - offset: in the log of its queue.
    - optional_headers: headers that may be missing.
    """

    body: bytes
    exchange: str
    key: str
    expiration: str = ""
    priority: int = 0
    deaths: tuple[Death, ...] = ()
    first: tuple[str, str, str] | None = None
    position: int = 0
    offset: int = 0
    ttl_start_ms: list[int] = field(default_factory=list)
    redelivered: bool | None = False
    deliveries: int = 0
    headers: dict[str, Any] = field(default_factory=dict)
    persistent: bool = True
    logged_ms: int = 0
    age_uncertain: bool = False
    optional_headers: tuple[str, ...] = ()


@dataclass(eq=False)
class TwinConsumer:
    """A consumer with a channel of its own."""

    channel: int
    prefetch: int
    no_ack: bool
    in_flight: int = 0

    @property
    def can_take(self) -> bool:
        return self.no_ack or self.in_flight < self.prefetch


class Waiting(NamedTuple):
    """A message that waits for its next try."""

    due_ms: int
    message: TwinMessage


@dataclass(eq=False)
class TwinQueue:
    """A queue.

    - consumers: at most one, except for a queue with groups.
    - unacked: each message with its consumer; None after basic.get.
    - waiting: messages that wait for their next try.
    - settled: settled messages of a queue that retains them.
    - producers: epoch and last sequence of each producer.
    """

    name: str
    kind: str
    arguments: dict[str, Any]
    durable: bool = True
    consumers: list[TwinConsumer] = field(default_factory=list)
    delivered: bool = False  # any message, in this life or before
    ready: list[TwinMessage] = field(default_factory=list)
    unacked: list[tuple[TwinMessage, TwinConsumer | None]] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    settled: list[TwinMessage] = field(default_factory=list)
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Transient messages that were lost in a restart; a rewind may return them or not.
    lost: list[TwinMessage] = field(default_factory=list)
    places: int = 0
    offsets: int = 0
    ages: bool = False
    # The next message may be read from the log, like those before it.
    reads_from_log: bool = False
    # The offsets of its messages are unknown: dead letters arrived during a transaction.
    offsets_uncertain: bool = False
    in_transaction: bool = False
    # The source queues of the dead letters that arrived at this moment.
    sources: set[str] = field(default_factory=set)

    @property
    def group_by(self) -> str:
        return str(self.arguments.get("x-group-by", ""))

    @property
    def retains(self) -> bool:
        return "x-retain" in self.arguments

    def group(self, message: TwinMessage) -> str | None:
        """Return the group of a message; None if it has none."""
        if self.group_by == "routing_key":
            return message.key
        value = message.headers.get(self.group_by.removeprefix("header:"))
        return None if value is None or isinstance(value, (bool, list, dict)) else str(value)

    def add_unacked(self, message: TwinMessage) -> None:
        self.unacked.append((message, None))

    def remove_unacked(self, message: TwinMessage) -> None:
        self.unacked = [each for each in self.unacked if each[0] is not message]

    def note_settled(self, message: TwinMessage) -> None:
        """Note that a message has left the queue."""
        if self.retains and message.offset >= 0:
            self.settled.append(message)


@dataclass
class SeenId:
    """An id that a deduplicating exchange knows. until_ms: None for ever. stored: survives a restart."""

    until_ms: int | None
    stored: bool


@dataclass
class TwinExchange:
    """An exchange.

    - kind: the type by which it routes.
    - arguments: as declared.
    - history: of x-recent-history.
    - seen: ids of x-message-deduplication, oldest first.
    - hashed_choices: for hashing types, the weights of the bindings and the chosen destination of each hashed value.
    """

    name: str
    kind: str
    alternate: str | None
    durable: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    declared: str = ""
    history: list[TwinMessage] = field(default_factory=list)
    seen: dict[Any, SeenId] = field(default_factory=dict)
    hashed_choices: dict[Any, tuple[dict[str, int], str]] = field(default_factory=dict)


class Binding(NamedTuple):
    """A binding. to_queue: otherwise to an exchange. arguments: sorted; only for headers and x-jms-topic exchanges."""

    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass
class RouteResult:
    """The destinations of a message.

    - waits: exchanges that delay it, and until when.
    - kept: exchanges that store it in their history.
    - noted: exchanges with a new deduplication id, which is stored if the message reaches a destination.
    """

    queues: list[str] = field(default_factory=list)
    waits: list[tuple[str, int]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    noted: list[tuple[str, Any, int | None]] = field(default_factory=list)

    @property
    def leads_nowhere(self) -> bool:
        return not self.queues and not self.waits
