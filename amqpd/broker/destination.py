"""Where a route ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import i64

if TYPE_CHECKING:
    from amqpd.broker.message import Message
    from amqpd.storage.log.prepared import Prepared
    from amqpd.storage.queue_log import QueueLog


class NotOpenYet(Exception):
    """These queues' logs are being opened: what needs them is tried again when they are (opening.when_open)."""

    def __init__(self, destinations: list[Destination]) -> None:
        super().__init__()
        self.destinations = destinations


class Versioned:
    """Something routes depend on. A route made under another version is made anew."""

    def __init__(self) -> None:
        self.version: i64 = 0


class Destination(Versioned):
    """Where a route ends: a queue, or the consumer behind a direct reply-to key."""

    def __init__(self) -> None:
        super().__init__()
        # Whether a confirm has to wait for a log that is synced.
        self.durable = False
        # Whether it keeps every message, whatever its delivery mode.
        self.keeps_all = False
        # Whether a message that ends here has been routed. False: an exchange keeps something of it for itself
        # (publishing/seen.py, history.py); such a destination is offered each message after the others.
        self.routed = True
        # Likewise, and only what all of them have taken.
        self.needs_all = False

    def prepare(self) -> None:
        """Called before the first use: a queue that was there before the start reads its log now.

        Raises: NotOpenYet while that takes the disk; ResourceError where it cannot be read; the next call tries again.
        """

    def can_open(self) -> bool:
        """As `prepare`, for those who can do without: False where the log cannot be read now. It may wait for the disk,
        and the loop with it.
        """
        return True

    def when_open(self, done: Callable[[], object]) -> None:
        """Calls `done` once it is open or could not be opened, after `prepare` has raised NotOpenYet."""
        done()

    def log(self) -> QueueLog | None:
        """The synced log that a persistent message to here ends in, if any."""
        return None

    def gone(self) -> bool:
        """Whether it takes nothing any more: the queue is deleted, the consumer cancelled."""
        return False

    def offer(self, message: Message) -> bool:
        """Takes the message. False: refused (overflow reject-publish, a log that accepts nothing), the publisher is
        nacked."""
        raise NotImplementedError

    def goes_with(self, targets: list[Destination]) -> bool:
        """Of one that is not `routed`: where else the message goes. Whether it is to go here, too."""
        return True

    def reserve(self) -> None:
        """Likewise: the message waits for its transaction's commit, or for those that have it before."""

    def refuse(self) -> None:
        """Likewise: the publish has failed, what was offered here or reserved is as if it had not been."""

    def begin_transaction(self) -> None:
        """What is offered until `end_transaction`, in the same turn, is there after a crash as a whole or not at all.

        Raises: LogFailed.
        """

    def end_transaction(self) -> None:
        """Ends it. Raises nothing."""

    def takes_prepared(self) -> bool:
        """Whether `enqueue_prepared` may be called: there is a log, and no rule looks at single messages."""
        return False

    def enqueue_prepared(self, prepared: Prepared, first: list[Message]) -> None:
        """Takes all messages of a transaction at once. first: the oldest of them, for the window."""
        raise NotImplementedError
