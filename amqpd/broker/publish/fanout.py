"""One publish to very many queues, offered in slices, so that others keep their place on the loop.

What it owns: the message from its publish until it is in all queues, and on the disk where it has to be. Each slice is
written, as any turn is. A publish that was begun goes on when its channel or its connection ends. Until it is done the
front end keeps what its client says next waiting, so that everything stays in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from amqpd.broker.publish.confirms import when_safe
from amqpd.broker.publish.route import refuse, reserve
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.message import Message
    from amqpd.broker.publish.route import Route
    from amqpd.broker.session import Session

# A publish to more queues than this is offered in slices.
WIDE_COUNT: Final = 256
# How long one turn may be at it, besides the logs that it leaves to be written (StoreContext.dirty_max). A new one of
# those counts as NEW_LOG.
SLICE_S: Final = 0.003
NEW_LOG: Final = 8
# How much is done between two looks at the clock.
_STEP: Final = 64


class SlicedFanout:
    """waits: whether `done` is to wait until what is durable is on the disk.

    done: called once, in a turn of the loop by itself; False: a queue has refused it, or its log has failed.
    """

    def __init__(
        self, session: Session, route: Route, message: Message, waits: bool, done: Callable[[bool], None]
    ) -> None:
        self._turn = session.turn
        self._soon: Callable[..., object] = session.broker.loop.call_soon
        self._route = route
        self._message = message
        self._waits = waits and route.durable
        self._done = done
        self._next = 0
        self._accepted = True
        self._syncs = 0
        reserve(route.destinations)

    def step(self) -> None:
        """One turn's share. The first call begins it; the others come by themselves."""
        turn = self._turn
        destinations = self._route.destinations
        message = self._message
        deadline = time.monotonic() + SLICE_S
        logs: list[QueueLog] = []  # that keep it
        stores = turn.stores
        cost = min(len(stores.dirty), stores.dirty_max // 2)  # others may have had theirs, but it goes on
        while self._next < len(destinations) and cost < stores.dirty_max:
            destination = destinations[self._next]
            self._next += 1
            if destination.is_deleted() or (destination.requires_all_accepted and not self._accepted):
                continue
            log = destination.log()
            if log is not None:
                cost += 1 if log.next_offset > 0 else NEW_LOG
                if message.persistent or destination.keeps_all:
                    logs.append(log)
            if not destination.enqueue(message):
                self._accepted = False
            if self._next % _STEP == 0 and time.monotonic() >= deadline:
                break
        self._soon(turn.run)  # at once, also where it was put off: there is more to come
        if self._waits and logs:
            self._syncs += 1
            when_safe(turn, logs, self._synced)
        if self._next < len(destinations):
            self._soon(self.step)
        elif self._syncs == 0:
            self._soon(self._finish)

    def _synced(self, safe: bool) -> None:
        self._syncs -= 1
        if not safe:
            self._accepted = False
        if self._syncs == 0 and self._next == len(self._route.destinations):
            self._soon(self._finish)

    def _finish(self) -> None:
        if not self._accepted:
            refuse(self._route.destinations)
        self._done(self._accepted)
