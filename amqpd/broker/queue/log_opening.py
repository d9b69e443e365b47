"""The log of one queue until it is open: begun, failed, and who waits for it.

It opens in steps, so that the loop is not held: the disk is asked, and may take its time; then what waits in the log
for its next try is found, a slice at a time. Only when all of that is known does the queue know its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from amqpd.broker.consumer import LogNotOpen, QueueBase
from amqpd.errors import ResourceError
from amqpd.storage.queue_log import LogUnusable, QueueLog

log = logging.getLogger(__name__)


@final
class LogOpening:
    """A queue has one from its start until its log is open.

    open_soon: the host's. begun: the opener has it. asked: the disk has not answered yet. failed: it could not be
    opened, which the next `Queue.prepare` tells. waiting: called then once each, in order.
    """

    def __init__(self, queue: QueueBase, store: QueueLog, open_soon: Callable[[LogOpening], bool]) -> None:
        self._queue = queue
        self._store = store
        self._open_soon = open_soon
        self.begun = False
        self.asked = False
        self._answered = False
        self.failed = False
        self._waiting: list[Callable[[], object]] | None = None

    def when_done(self, done: Callable[[], object]) -> None:
        """Calls `done` when the log is open or could not be opened."""
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(done)

    def prepare(self) -> None:
        """As `Destination.prepare`. Raises: NotOpenYet, ResourceError."""
        if not self.failed:
            if not self.begun:
                self.begun = not self._open_soon(self)
            if self.begun:
                raise LogNotOpen([self._queue])
        self.failed = False
        if not self.can_open():
            queue = self._queue
            raise ResourceError(
                f"queue '{queue.name}' in vhost '{queue.vhost_name}' cannot be opened now; the broker's log says why"
            )

    def begin(self) -> bool:
        """One step. True: that was the last one, or it failed, and `end` comes next. False: where the disk is `asked`,
        the opener gets it back when the disk has answered; else there is more to do at once."""
        if self._queue.deleted:
            return True
        try:
            if self._answered:
                self._store.recover()
            elif not self._store.open_soon(self._go_on):
                self.asked = True
                return False
        except (OSError, LogUnusable):
            return True  # `can_open` meets it too, and tells
        return self._queue.find_delayed(self._store)

    def _go_on(self) -> None:
        """The disk has answered."""
        self.asked = False
        self._answered = True
        if self._open_soon(self):
            self.end()

    def end(self) -> None:
        """Finish: the log is open, or it cannot be opened."""
        self.begun = False
        self._answered = False
        if not self._queue.deleted:
            self.failed = not self._queue.can_open()
        waiting = self._waiting
        self._waiting = None
        if waiting is not None:
            for done in waiting:
                done()

    def can_open(self) -> bool:
        """Waits for the disk. False: it cannot be read, which the log says. The queue knows its log then."""
        queue = self._queue
        try:
            self._store.recover()
        except (OSError, LogUnusable) as error:
            about = {"vhost": queue.vhost_name, "queue": queue.name}
            log.error("queue '%s' cannot be opened: %s", queue.name, error, extra=about)
            return False
        queue.log_opened(self._store)
        return True
