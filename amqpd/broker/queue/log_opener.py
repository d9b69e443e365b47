"""Opening of queue logs at their first use (`LogOpener`), and retries for queues whose pump failed.

The event loop reads logs in slices: SLICE_S per turn for all queues together. Finding the messages that wait for a
retry is part of it; a log with many of them goes behind the others again. After a kill another thread syncs recovered
files (`Storage.open_soon`). Until a queue is open, it accepts and delivers nothing: its `prepare` raises `LogNotOpen`,
and the command is repeated when `when_open` calls back.

`FailedQueueRetry`: if a log cannot be read, or a bug raises, the loop turn continues with the other queues
(`LoopTurn`). The queue stays declared and accepts messages. Its pump is tried again after FIRST_S, then after twice
the time, up to RETRY_S_MAX, until it succeeds or the queue is deleted. Any other event that needs the pump tries it at
once. The log gets one traceback per series of failures, and one line for each failed retry.
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
    """Opens the logs of queues, one slice per loop turn. One per broker.

    Args:
        soon: Calls a function in the next turn of the loop.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._line: deque[LogOpening] = deque()
        self._spent_s = 0.0
        self._scheduled = False

    def open(self, opening: LogOpening) -> bool:
        """Begin to open a log.

        Returns:
            True if it is open, or cannot be opened; then `prepare` raises the error. Otherwise the opener calls
            `opening.end` later.
        """
        if self._line or self._spent_s >= SLICE_S:
            self._line.append(opening)
            self._schedule_slice()
            return False
        return self._open_timed(opening)

    def _open_timed(self, opening: LogOpening) -> bool:
        began = time.monotonic()
        opened = opening.begin()
        self._spent_s += time.monotonic() - began
        if not opened and not opening.asked:
            self._line.append(opening)
        self._schedule_slice()
        return opened

    def _schedule_slice(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._run_slice)

    def _run_slice(self) -> None:
        self._scheduled = False
        self._spent_s = 0.0
        while self._line and self._spent_s < SLICE_S:
            opening = self._line.popleft()
            if self._open_timed(opening):
                opening.end()


def when_open(destinations: Sequence[Destination], done: Callable[[], object]) -> None:
    """Call `done` when the log of each destination is open or has failed. `LogNotOpen` has the destinations."""
    count = len(destinations)

    def count_one() -> None:
        nonlocal count
        count -= 1
        if count == 0:
            done()

    for destination in destinations:
        destination.when_open(count_one)


async def opened(destination: Destination) -> bool:
    """Wait until the destination is open. Return False if it cannot be opened; the log has the reason."""
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
    """Do the same as `when_open`, for a task. The next `prepare` raises the error of a failed one."""
    opened_all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    when_open(destinations, partial(_resolve, opened_all))
    await opened_all


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


log = logging.getLogger(__name__)

FIRST_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class FailedQueueRetry:
    """Retries the pump of queues that raised an error. call_later: that of the event loop."""

    def __init__(self, call_later: Callable[..., object]) -> None:
        self.call_later = call_later
        # Queues with a scheduled or running retry, with an error that was reported since.
        self._waiting: dict[QueueBase, Exception | None] = {}

    def failed(self, queue: QueueBase, error: Exception) -> None:
        """Log the error of a queue's pump and schedule a retry, if none is scheduled or running."""
        if queue in self._waiting:
            self._waiting[queue] = error
            return
        _log_failure(queue, error, FIRST_S, first=True)
        self._schedule(queue, FIRST_S)

    def _schedule(self, queue: QueueBase, delay_s: float) -> None:
        self._waiting[queue] = None
        self.call_later(delay_s, self._retry, queue, delay_s)

    def _retry(self, queue: QueueBase, delay_s: float) -> None:
        error: Exception | None = None
        self._waiting[queue] = None
        if not queue.deleted:
            try:
                queue.dispatch()
            except Exception as raised:  # noqa: BLE001  # logged by `_log_failure`
                error = raised
        reported = self._waiting.pop(queue)  # by a part of the dispatch
        error = error or reported
        if error is not None and not queue.deleted:
            delay_s = min(2 * delay_s, RETRY_S_MAX)
            _log_failure(queue, error, delay_s, first=False)
            self._schedule(queue, delay_s)


def _log_failure(queue: QueueBase, error: Exception, delay_s: float, first: bool) -> None:
    name = f"queue '{queue.name}' in vhost '{queue.vhost_name}'"
    if isinstance(error, OSError):
        log.error("%s cannot be read: %s; next try in %g s", name, error, delay_s)
    elif first:
        log.error("%s: a bug in amqpd, please report it; next try to deliver in %g s", name, delay_s, exc_info=error)
    else:
        log.error("%s: the bug is still there (%r); next try to deliver in %g s", name, error, delay_s)
