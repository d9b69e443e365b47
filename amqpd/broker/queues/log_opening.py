"""The log of one queue until it is open: begun, failed, and who waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from amqpd.broker.delivery import Source
from amqpd.broker.destination import NotOpenYet
from amqpd.errors import ResourceError
from amqpd.storage.queue_log import LogUnusable, QueueLog

log = logging.getLogger(__name__)


@final
class Opening:
    """A queue has one from its start until its log is open.

    begun: the opener has it. failed: it could not be opened, which the next `Queue.prepare` tells. waiting: called then
    once each, in order.
    """

    def __init__(self, queue: Source, store: QueueLog) -> None:
        self._queue = queue
        self._store = store
        self.begun = False
        self.failed = False
        self._waiting: list[Callable[[], object]] | None = None

    def when_done(self, done: Callable[[], object]) -> None:
        """Calls `done` when the log is open or could not be opened."""
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(done)

    def prepare(self, open_soon: Callable[[Opening], bool]) -> None:
        """As `Destination.prepare`. open_soon: the host's. Raises: NotOpenYet, ResourceError."""
        if not self.failed:
            if not self.begun:
                self.begun = not open_soon(self)
            if self.begun:
                raise NotOpenYet([self._queue])
        self.failed = False
        if not self.can_open():
            queue = self._queue
            raise ResourceError(
                f"queue '{queue.name}' in vhost '{queue.vhost_name}' cannot be opened now; the broker's log says why"
            )

    def begin(self) -> bool:
        """Reads the log. Whether that was all, or failed; else `end` is called when the disk has answered."""
        if self._queue.deleted:
            return True
        try:
            return self._store.open_soon(self.end)
        except (OSError, LogUnusable):
            return True  # `can_open` meets it too, and tells

    def end(self) -> None:
        """The disk has answered."""
        self.begun = False
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
