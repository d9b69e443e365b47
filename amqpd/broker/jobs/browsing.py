"""A page of a queue's messages, shown: nothing is taken, requeued or marked, and no order is touched.

Whoever wants more asks again from `next_offset`. A page ends with its number of messages, with PAGE_BYTES_MAX of
bodies, or after PAGE_MS of looking, so that a selector nothing matches does not keep its reader waiting.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from amqpd.broker.consumer import Entry
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.reading import Reading, Ready
from amqpd.broker.jobs.job import Conditions
from amqpd.errors import PreconditionFailed
from amqpd.routing.selector import Selector

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
PAGE_MS: Final = 1000
# The disk has answered within so long, or is asked again.
_DISK_S: Final = 0.02

READY: Final = "ready"
UNACKED: Final = "unacked"


class Page(NamedTuple):
    """messages: entries, which belong to nobody, with their state. next_offset: where the next page begins.

    ended: there was nothing behind it when it was made.
    """

    messages: list[tuple[Entry, str]]
    next_offset: int
    ended: bool


async def browse(
    queue: Queue, selector: Selector | None, count: int, begin: int = 0, begin_ms: int = 0
) -> Page:
    """The first `count` messages from the offset `begin` and the time `begin_ms` (ms since 1970) on.

    The queue's log is open. Cost: some 2 us a message it looks at, in slices of 2 ms. Raises: OSError,
    PreconditionFailed.
    """
    check_times(queue, begin_ms)
    arrived = asyncio.Event()
    reading = Reading(queue, Conditions(selector, None), arrived.set, False, begin, begin_ms)
    messages: list[tuple[Entry, str]] = []
    left = PAGE_BYTES_MAX
    until = time.monotonic() + PAGE_MS / 1000
    try:
        while not reading.ended and len(messages) < count and left > 0 and not queue.deleted:
            entries: list[Entry] = []
            arrived.clear()
            reading.collect(entries, count - len(messages), left)
            for entry, state in zip(entries, _states(queue, entries), strict=True):
                messages.append((entry, state))
                left -= entry.body_size
            if time.monotonic() >= until:
                break
            if reading.waits:
                try:
                    async with asyncio.timeout(_DISK_S):
                        await arrived.wait()
                except TimeoutError:
                    continue  # asked again
            else:
                await asyncio.sleep(0)
        return Page(messages, reading.next_offset, reading.ended)
    finally:
        reading.close()


def check_times(queue: Queue, begin_ms: int) -> None:
    """Whether one can begin at a time. Raises: PreconditionFailed where not every message is in a log."""
    if begin_ms > 0 and queue.log() is None:
        raise PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost_name}' is not durable: "
            "it does not know when its messages came"
        )


def _states(queue: Queue, entries: list[Entry]) -> list[str]:
    """Of these, read just now."""
    if queue.rules.stream:
        return [READY] * len(entries)
    states: list[str] = []
    ready: Ready | None = None
    for entry in entries:
        if ready is None or entry.offset >= ready.end:
            ready = Ready(queue, entry.offset)
        states.append(READY if ready.has(entry.offset) else UNACKED)
    return states
