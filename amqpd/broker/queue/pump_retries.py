"""Queues whose pump has raised: each is tried again later, and hurts nobody else meanwhile.

A log that cannot be read, or a bug of the broker, ends one queue's part of a turn; the turn goes on (`flow.Turn`). The
queue stays declared and takes messages, and whatever asks for its pump tries it at once. Beside that it is tried again
by itself, after FIRST_S, then twice as long each time, RETRY_S_MAX at most, until it went well or the queue is gone.

The log has a bug's traceback once per row of failures, and a line for every retry that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from amqpd.broker.consumer import Source

log = logging.getLogger(__name__)

FIRST_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class PumpRetries:
    """Tries the queues whose pump has raised again, each after its time. call_later: the event loop's."""

    def __init__(self, call_later: Callable[..., object]) -> None:
        self.call_later = call_later
        # Those that wait for their next try.
        self._waiting: set[Source] = set()

    def failed(self, queue: Source, error: Exception) -> None:
        """The queue's pump raised `error`. Does nothing where a retry is on its way already."""
        if queue in self._waiting:
            return
        _tell(queue, error, FIRST_S, first=True)
        self._later(queue, FIRST_S)

    def _later(self, queue: Source, delay_s: float) -> None:
        self._waiting.add(queue)
        self.call_later(delay_s, self._again, queue, delay_s)

    def _again(self, queue: Source, delay_s: float) -> None:
        self._waiting.discard(queue)
        if queue.deleted:
            return
        try:
            queue.pump()
        except Exception as error:  # noqa: BLE001  # it is told there
            delay_s = min(2 * delay_s, RETRY_S_MAX)
            _tell(queue, error, delay_s, first=False)
            self._later(queue, delay_s)


def _tell(queue: Source, error: Exception, delay_s: float, first: bool) -> None:
    name = f"queue '{queue.name}' in vhost '{queue.vhost_name}'"
    if isinstance(error, OSError):
        log.error("%s cannot be read: %s; next try in %g s", name, error, delay_s)
    elif first:
        log.error("%s: a bug of the broker; next try to deliver in %g s", name, delay_s, exc_info=error)
    else:
        log.error("%s: the bug is still there (%r); next try to deliver in %g s", name, error, delay_s)
