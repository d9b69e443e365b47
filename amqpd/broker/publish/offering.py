"""One message to the queues it goes to: the lower half of every publish, whoever publishes.

Who has found the destinations (`router.py`) first has them prepared, so that a message is offered to all of them or to
none; then offers it. What a refusal means is the publisher's: a client is nacked for either kind, a dead letter is
dropped by a queue that is full and tried again at one whose log takes nothing.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from amqpd.broker.destination import Destination, NotOpenYet
from amqpd.broker.message import Message
from amqpd.storage.queue_log import QueueLog

# How an offer ended: every destination has the message; at least one refused it, and would again; at least one has a
# log that takes nothing now, say of a full disk, and may take it later.
TAKEN: Final = 0
REFUSED: Final = 1
FAILED: Final = 2


def prepare(destinations: list[Destination]) -> None:
    """All of them can take a message now. Cost: nothing to speak of after the first time.

    Raises: NotOpenYet, with all whose logs are being opened; ResourceError where one cannot be.
    """
    waits: list[Destination] | None = None
    for destination in destinations:
        try:
            destination.prepare()
        except NotOpenYet as error:
            waits = [*(waits or ()), *error.destinations]
    if waits is not None:
        raise NotOpenYet(waits)


def offer(destinations: list[Destination], message: Message, logs: list[QueueLog] | None) -> i64:
    """Offers the message to each, which have been prepared. Returns TAKEN, REFUSED or FAILED.

    logs: gets those that have to be synced before the message is safe.
    """
    outcome: i64 = TAKEN
    for destination in destinations:
        if outcome != TAKEN and destination.needs_all:
            continue
        taken = destination.offer(message)
        kept = message.persistent or destination.keeps_all
        log = destination.log() if kept and (logs is not None or not taken) else None
        if taken:
            if log is not None and logs is not None:
                logs.append(log)
        elif log is not None and log.failed:
            outcome = FAILED
        elif outcome == TAKEN:
            outcome = REFUSED
    if outcome != TAKEN:
        refuse(destinations)
    return outcome


def reserve(destinations: list[Destination]) -> None:
    """A publish to these is to come, or comes in slices: what exchanges keep of it counts already."""
    for destination in reversed(destinations):
        if destination.routed:
            break
        destination.reserve()


def refuse(destinations: list[Destination]) -> None:
    """A publish to these has failed: what exchanges keep of it goes."""
    for destination in reversed(destinations):
        if destination.routed:
            break
        destination.refuse()
