"""What the naive twin of a broker is made of: messages, queues, exchanges, bindings as plain objects.

Where nobody is owed an order (dead letters of two queues that reach a third in the same moment) the twin raises
`Anyhow`: what follows depends on that order, so the program ends there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Anyhow(Exception):
    """The order of what happens next is nobody's promise."""


class Different(AssertionError):
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
class Letter:
    """A message in one queue. deaths: newest first. deliveries: how often it came back, which a quorum queue shows.
    born_ms: shared by its copies in all queues: when it came, if a time to live was to be obeyed then; else when one
    first was. logged_ms: when it came to its queue, which is all that a restart knows. redelivered: None where it may
    say either. vague: it came back, and may be read from the log again, which knows when it came; or not. offset: in
    its queue's log. maybe: headers that it may have or not.
    """

    body: bytes
    exchange: str
    key: str
    expiration: str = ""
    priority: int = 0
    deaths: tuple[Death, ...] = ()
    first: tuple[str, str, str] | None = None
    place: int = 0
    offset: int = 0
    born_ms: list[int] = field(default_factory=list)
    redelivered: bool | None = False
    deliveries: int = 0
    headers: dict[str, Any] = field(default_factory=dict)
    persistent: bool = True
    logged_ms: int = 0
    vague: bool = False
    maybe: tuple[str, ...] = ()


@dataclass(eq=False)
class TwinConsumer:
    """channel: its own."""

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
    letter: Letter


@dataclass(eq=False)
class TwinQueue:
    """consumers: one at most, but of a queue with groups. unacked: with who has it; None: it was got. waiting: for
    their next try. settled: of a queue that retains. producers: of each its epoch and its last sequence.
    """

    name: str
    kind: str
    arguments: dict[str, Any]
    durable: bool = True
    consumers: list[TwinConsumer] = field(default_factory=list)
    delivered: bool = False  # something, in this life or before
    ready: list[Letter] = field(default_factory=list)
    unacked: list[tuple[Letter, TwinConsumer | None]] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    settled: list[Letter] = field(default_factory=list)
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Transient ones that a restart has ended, and which may be had once more, or not.
    lost: list[Letter] = field(default_factory=list)
    places: int = 0
    offsets: int = 0
    ages: bool = False
    # What comes next may be read from the log, behind what is read from there.
    cold: bool = False
    # Which offsets its messages have is not known any more: dead letters came beside a transaction.
    unsure: bool = False
    in_transaction: bool = False
    # Dead letters that came in this moment: the queues they died in.
    sources: set[str] = field(default_factory=set)

    @property
    def group_by(self) -> str:
        return str(self.arguments.get("x-group-by", ""))

    @property
    def retains(self) -> bool:
        return "x-retain" in self.arguments

    def group(self, letter: Letter) -> str | None:
        """None: of no group."""
        if self.group_by == "routing_key":
            return letter.key
        value = letter.headers.get(self.group_by.removeprefix("header:"))
        return None if value is None or isinstance(value, (bool, list, dict)) else str(value)

    def holds(self, letter: Letter) -> None:
        self.unacked.append((letter, None))

    def lets_go(self, letter: Letter) -> None:
        self.unacked = [each for each in self.unacked if each[0] is not letter]

    def handled(self, letter: Letter) -> None:
        """It has left, if it was ever there."""
        if self.retains and letter.offset >= 0:
            self.settled.append(letter)


@dataclass
class Seen:
    """An id that a deduplicating exchange knows. until_ms: None: for ever. stored: a restart does not forget it."""

    until_ms: int | None
    stored: bool


@dataclass
class TwinExchange:
    """kind: by which it routes. arguments: as declared. history: of x-recent-history. seen: of
    x-message-deduplication, the oldest first. learnt: of those that hash, the weights of what was bound and where it
    went, for each thing that was hashed.
    """

    name: str
    kind: str
    alternate: str | None
    durable: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    declared: str = ""
    history: list[Letter] = field(default_factory=list)
    seen: dict[Any, Seen] = field(default_factory=dict)
    learnt: dict[Any, tuple[dict[str, int], str]] = field(default_factory=dict)


class Binding(NamedTuple):
    """to_queue: else to an exchange. arguments: sorted; of headers and x-jms-topic exchanges only."""

    source: str
    to_queue: bool
    destination: str
    key: str
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass
class Way:
    """Where a message goes. waits: names of exchanges that delay it, till when. kept: exchanges that remember it.
    noted: exchanges that have not seen its id, which is remembered where it gets anywhere.
    """

    queues: list[str] = field(default_factory=list)
    waits: list[tuple[str, int]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    noted: list[tuple[str, Any, int | None]] = field(default_factory=list)

    @property
    def leads_nowhere(self) -> bool:
        return not self.queues and not self.waits
