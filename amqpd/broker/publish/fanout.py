"""Fan-out: one publish to very many queues, in slices, so that other clients keep their share of the loop.

`SlicedFanout` owns the message until it is in all queues and, if required, on the disk. Each slice is written like any
loop turn. A fan-out continues if its channel or connection closes. Until it is done, the front end delays the later
commands of its client, so that their order stays.
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
# Limits of one slice: SLICE_S seconds, and StoreContext.dirty_max logs to write. A new log counts as NEW_LOG logs.
SLICE_S: Final = 0.003
NEW_LOG: Final = 8
# Queues between two readings of the clock.
_STEP: Final = 64


class SlicedFanout:
    """One publish to many queues. Call `step` to start it.

    Args:
        waits: call `done` after the durable queues have synced the message.
        done: called once, from the event loop; with False if a queue refused the message or its log failed.
    """

    def __init__(
        self, session: Session, route: Route, message: Message, waits: bool, done: Callable[[bool], None]
    ) -> None:
        self._turn = session.turn
        self._call_soon: Callable[..., object] = session.broker.loop.call_soon
        self._route = route
        self._message = message
        self._waits = waits and route.durable
        self._done = done
        self._next = 0
        self._accepted = True
        self._pending_syncs = 0
        reserve(route.destinations)

    def step(self) -> None:
        """Enqueue one slice. The first call starts the fan-out, which then schedules the other slices itself."""
        turn = self._turn
        destinations = self._route.destinations
        message = self._message
        deadline = time.monotonic() + SLICE_S
        logs: list[QueueLog] = []  # logs that store the message
        stores = turn.stores
        cost = min(len(stores.dirty), stores.dirty_max // 2)  # a slice gets at least half of the logs of a turn
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
        self._call_soon(turn.run)  # write now, although the turn may have been postponed
        if self._waits and logs:
            self._pending_syncs += 1
            when_safe(turn, logs, self._synced)
        if self._next < len(destinations):
            self._call_soon(self.step)
        elif self._pending_syncs == 0:
            self._call_soon(self._finish)

    def _synced(self, safe: bool) -> None:
        self._pending_syncs -= 1
        if not safe:
            self._accepted = False
        if self._pending_syncs == 0 and self._next == len(self._route.destinations):
            self._call_soon(self._finish)

    def _finish(self) -> None:
        if not self._accepted:
            refuse(self._route.destinations)
        self._done(self._accepted)
