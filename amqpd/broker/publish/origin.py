"""Who has messages published once more (`Origin`), what they look like (`Dressed`), and each on its way (`Pending`).

Of republisher.py, which says how they go together.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.destination import Destination
from amqpd.broker.message import Envelope, Message
from amqpd.protocol.properties import PropertyInfo
from amqpd.storage.queue_log import QueueLog


@final
class Dressed:
    """A message as it is published once more, without its body, and where to.

    properties: flags and fields, encoded; info: what `scan` found in them.
    """

    def __init__(
        self, envelope: Envelope, properties: bytes, info: PropertyInfo, destinations: list[Destination]
    ) -> None:
        self.envelope = envelope
        self.properties = properties
        self.info = info
        self.destinations = destinations


# What `Origin.dress` answers of a message that cannot go anywhere now: it is given back by `Origin.kept`.
STAYS: Final = Dressed(Envelope("", ""), b"", PropertyInfo(0), [])


@final
class Went:
    """How many messages of an origin, or of several that share it, were published once more, each once."""

    def __init__(self) -> None:
        self.count: i64 = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Origin:
    """Where messages come from that are published once more, and what becomes of them: what a user subclasses.

    Ranges of one origin that follow each other become one, so messages of one kind should share theirs. kind: of
    message, as the broker's log tells of it ("dead-letter"). offset: of what is dressed just now, -1 if it has none;
    again: whether an earlier try in this life may have brought it to some of its targets. went: how many of them were.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.offset: i64 = -1
        self.again = False
        self.went = Went()

    def log(self) -> QueueLog | None:
        """The log that offsets are of; None when nothing is in one. It is settled, and read for what is not in memory.

        It has no message whose offset is below its start.
        """
        raise NotImplementedError

    def lasts(self) -> bool:
        """Whether that log outlives the broker, so that it has to keep a message until the targets are safe."""
        return True

    def gone(self) -> bool:
        """The source is deleted: what is not published yet ends."""
        return False

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> Envelope:
        """What messages of this route share that are read from the log."""
        return Envelope(exchange.decode(), routing_key.decode("utf-8", "surrogateescape"))

    def dress(self, envelope: Envelope, properties: bytes) -> Dressed | None:
        """The message that becomes of one of this route and these properties; None: it goes nowhere, and is over;
        STAYS: it goes nowhere now, and its source has it back (`kept`).

        What is found out for one message may be kept for the rest of the slice (`Republisher.slice_number`).
        """
        raise NotImplementedError

    def safe(self, first: i64, last: i64, size: i64) -> None:
        """These offsets, ends included, are with their targets, or over: they need their source no longer and are
        settled in its log. Called once for each offset, in any order.

        size: bytes of each body.
        """
        store = self.log()
        if store is not None:
            offset = first
            while offset <= last:
                store.settle(offset, size)
                offset += 1

    def kept(self, offset: i64) -> None:
        """Of this one `dress` has said STAYS: it is neither settled nor published again."""
        raise NotImplementedError

    def left(self, offset: i64, again: bool) -> None:
        """The broker stops cleanly, and this message, which is in memory, stays where it was.

        again: some of its targets may have it, and the next life publishes it again.
        """

    def refused(self, offset: i64) -> bool:
        """A target does not take it, and would not. Whether its source has it back; else that is its end."""
        return False

    def waits(self, count: i64) -> None:
        """So many more (1) or less (-1) wait that are in the log alone: it may not be given up meanwhile."""

    def about(self) -> dict[str, object]:
        """Fields that tell of it in the broker's log."""
        return {}


@final
class Pending:
    """One message on its way, or neighbours in one log.

    first, last: offsets at the source, ends included; -1: a message that never had one. size: bytes of each body.
    message: of a single one, where it is in memory; None: the log has it, as it has those of a longer range.
    again_end: those below it were published before, to some of their targets at least.
    """

    def __init__(self, origin: Origin, first: i64, last: i64, size: i64, message: Message | None) -> None:
        self.origin = origin
        self.first = first
        self.last = last
        self.size = size
        self.message = message
        self.again_end: i64 = -1
        # The logs that it was published to, while it is not safe there: whether the local ones are synced, and how many
        # of the others have not answered.
        self.targets: list[QueueLog] = []
        self.synced = False
        self.missing: i64 = 0
        self.failed = False
