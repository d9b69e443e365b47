"""The opening of one queue's log after a start, with the callers that wait for it.

Opening is done in steps, so that the event loop is not blocked. First the storage recovers the log in the background.
Then the loop finds the messages that wait for their next try, a slice per turn. The queue uses its log only after
the last step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from amqpd.broker.consumer import LogNotOpen
from amqpd.errors import ResourceError
from amqpd.storage.queue_log import LogUnusable, QueueLog

if TYPE_CHECKING:
    from amqpd.broker.queue.log_opener import LogOpener
    from amqpd.broker.queue.queue import Queue

log = logging.getLogger(__name__)


@final
class LogOpening:
    """The state of an opening. A queue has one from its start until its log is open.

    Attributes:
        begun: the opener (log_opener.py) works on it.
        asked: the storage recovers the log.
        failed: the log could not be opened; the next `prepare` reports it.
    """

    def __init__(self, queue: Queue, store: QueueLog, opener: LogOpener) -> None:
        self._queue = queue
        self._store = store
        self._opener = opener
        self.begun = False
        self.asked = False
        self._recovered = False
        self.failed = False
        self._waiting: list[Callable[[], object]] | None = None

    def when_done(self, done: Callable[[], object]) -> None:
        """Call `done` when the log is open or could not be opened."""
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(done)

    def prepare(self) -> None:
        """Begin to open the log, or report the result: see `Destination.prepare`.

        Raises:
            LogNotOpen: the log is being opened.
            ResourceError: the log cannot be opened.
        """
        if not self.failed:
            if not self.begun:
                self.begun = not self._opener.open(self)
            if self.begun:
                raise LogNotOpen([self._queue])
        self.failed = False
        if not self.can_open():
            queue = self._queue
            raise ResourceError(
                f"queue '{queue.name}' in vhost '{queue.vhost_name}' cannot be opened now; the broker's log says why"
            )

    def begin(self) -> bool:
        """Do one step.

        Returns:
            True if this was the last step or it failed; the caller then calls `end`. False if there is more to do.
            While `asked` is set, the storage works, and the opening returns to the opener by itself.
        """
        if self._queue.deleted:
            return True
        try:
            if self._recovered:
                self._store.recover()
            elif not self._store.open_soon(self._recovery_done):
                self.asked = True
                return False
        except (OSError, LogUnusable):
            return True  # `can_open` meets the same error and logs it
        limits = self._queue.enforcement
        return self._queue.opening is None or limits is None or limits.find_delayed(self._store)

    def _recovery_done(self) -> None:
        """Return to the opener: the storage has recovered the log."""
        self.asked = False
        self._recovered = True
        if self._opener.open(self):
            self.end()

    def end(self) -> None:
        """Finish: report success or failure to all waiting callers."""
        self.begun = False
        self._recovered = False
        if not self._queue.deleted:
            self.failed = not self._queue.can_open()
        waiting = self._waiting
        self._waiting = None
        if waiting is not None:
            for done in waiting:
                done()

    def can_open(self) -> bool:
        """Open the log now and wait for the disk. Return False if it cannot be read; the reason is logged."""
        queue = self._queue
        try:
            self._store.recover()
        except (OSError, LogUnusable) as error:
            about = {"vhost": queue.vhost_name, "queue": queue.name}
            log.error("queue '%s' cannot be opened: %s", queue.name, error, extra=about)
            return False
        queue.log_opened(self._store)
        return True
