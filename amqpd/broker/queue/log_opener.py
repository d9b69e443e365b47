"""Queues' logs are opened at their first use, and nobody but who asked waits for it.

Reading a log is the loop's work, in slices of SLICE_S a turn, however many are asked for. So is finding what waits in
it for its next try: a log that has more of that stands behind the others again. What recovery has to sync after a kill
is with another thread (`Storage.open_soon`). Until a queue is open it takes and gives nothing: its `prepare` raises
`LogNotOpen`, and the command that needs it is given once more when `when_open` says so.

Queues whose pump has raised: each is tried again later, and hurts nobody else meanwhile.

A log that cannot be read, or a bug of the broker, ends one queue's part of a turn; the turn goes on (`flow.Turn`). The
queue stays declared and takes messages, and whatever asks for its pump tries it at once. Beside that it is tried again
by itself, after FIRST_S, then twice as long each time, RETRY_S_MAX at most, until it went well or the queue is gone.

The log has a bug's traceback once per row of failures, and a line for every retry that failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from amqpd.broker.consumer import Destination, LogNotOpen, QueueBase
from amqpd.broker.queue.log_opening import LogOpening
from amqpd.errors import ResourceError

SLICE_S: Final = 0.005


class LogOpener:
    """Opens queues' logs, a slice of them a turn. One per broker.

    soon: calls a function in the next turn of the loop.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._line: deque[LogOpening] = deque()
        self._spent_s = 0.0
        self._scheduled = False

    def open(self, opening: LogOpening) -> bool:
        """Whether it is open now, or cannot be opened, which `prepare` tells; else `opening.end` is called then."""
        if self._line or self._spent_s >= SLICE_S:
            self._line.append(opening)
            self._go_on_soon()
            return False
        return self._begin(opening)

    def _begin(self, opening: LogOpening) -> bool:
        began = time.monotonic()
        opened = opening.begin()
        self._spent_s += time.monotonic() - began
        if not opened and not opening.asked:
            self._line.append(opening)
        self._go_on_soon()
        return opened

    def _go_on_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        self._spent_s = 0.0
        while self._line and self._spent_s < SLICE_S:
            opening = self._line.popleft()
            if self._begin(opening):
                opening.end()


def when_open(destinations: Sequence[Destination], done: Callable[[], object]) -> None:
    """Calls `done` once each of these, which `LogNotOpen` has named, is open or could not be opened."""
    count = len(destinations)

    def one() -> None:
        nonlocal count
        count -= 1
        if count == 0:
            done()

    for destination in destinations:
        destination.when_open(one)


async def opened(destination: Destination) -> bool:
    """Returns when it is open; False: it cannot be, the log says why."""
    while True:
        try:
            destination.prepare()
        except LogNotOpen as waits:
            await opening_over(waits.destinations)
        except ResourceError:
            return False
        else:
            return True


async def opening_over(destinations: Sequence[Destination]) -> None:
    """`when_open` for a task. Which of them could not be opened is told by the next `prepare`."""
    there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    when_open(destinations, partial(_answer, there))
    await there


def _answer(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)


log = logging.getLogger(__name__)

FIRST_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class FailedQueueRetry:
    """Tries the queues whose pump has raised again, each after its time. call_later: the event loop's."""

    def __init__(self, call_later: Callable[..., object]) -> None:
        self.call_later = call_later
        # Those that wait for their next try.
        self._waiting: set[QueueBase] = set()

    def failed(self, queue: QueueBase, error: Exception) -> None:
        """The queue's pump raised `error`. Does nothing where a retry is on its way already."""
        if queue in self._waiting:
            return
        _tell(queue, error, FIRST_S, first=True)
        self._later(queue, FIRST_S)

    def _later(self, queue: QueueBase, delay_s: float) -> None:
        self._waiting.add(queue)
        self.call_later(delay_s, self._again, queue, delay_s)

    def _again(self, queue: QueueBase, delay_s: float) -> None:
        self._waiting.discard(queue)
        if queue.deleted:
            return
        try:
            queue.dispatch()
        except Exception as error:  # noqa: BLE001  # it is told there
            delay_s = min(2 * delay_s, RETRY_S_MAX)
            _tell(queue, error, delay_s, first=False)
            self._later(queue, delay_s)


def _tell(queue: QueueBase, error: Exception, delay_s: float, first: bool) -> None:
    name = f"queue '{queue.name}' in vhost '{queue.vhost_name}'"
    if isinstance(error, OSError):
        log.error("%s cannot be read: %s; next try in %g s", name, error, delay_s)
    elif first:
        log.error("%s: a bug of the broker; next try to deliver in %g s", name, delay_s, exc_info=error)
    else:
        log.error("%s: the bug is still there (%r); next try to deliver in %g s", name, error, delay_s)
