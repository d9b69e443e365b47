"""One publish to very many queues, offered in slices, so that others keep their place on the loop.

What it owns: the message from its publish to its confirm. The channel is busy so long; what its client says meanwhile
waits, connection.close included. Each slice is written, as any turn is; when the last one is on the disk the publish
is confirmed, or refused if one queue refused it or its log failed. A publish that was begun goes on when its channel or
its connection ends.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.message import Message
    from amqpd.channel.channel import Channel
    from amqpd.channel.route import Route

# How long one turn may be at it, besides the logs that it leaves to be written (StoreContext.dirty_max). A new one of
# those counts as NEW_LOG.
SLICE_S: Final = 0.003
NEW_LOG: Final = 8
# How much is done between two looks at the clock.
_STEP: Final = 64


class Spread:
    """See the module. `start` begins it; the rest calls itself."""

    def __init__(self, channel: Channel, route: Route, message: Message) -> None:
        self._channel = channel
        self._route = route
        self._message = message
        self._waits = channel.confirming and route.durable and message.persistent
        self._next = 0
        self._accepted = True
        self._syncs = 0

    def start(self) -> None:
        self._channel.owner.begin_waiting(self._channel)
        self.step()

    def step(self) -> None:
        """One turn's share."""
        owner = self._channel.owner
        turn = self._channel.session.turn
        destinations = self._route.destinations
        message = self._message
        deadline = time.monotonic() + SLICE_S
        logs: list[QueueLog] = []
        stores = turn.stores
        cost = min(len(stores.dirty), stores.dirty_max // 2)  # others may have had theirs, but it goes on
        while self._next < len(destinations) and cost < stores.dirty_max:
            destination = destinations[self._next]
            self._next += 1
            if destination.gone():
                continue
            log = destination.log()
            if log is not None:
                cost += 1 if log.next_offset > 0 else NEW_LOG
                logs.append(log)
            if not destination.offer(message):
                self._accepted = False
            if self._next % _STEP == 0 and time.monotonic() >= deadline:
                break
        owner.soon(turn.run)  # at once, also where it was put off: there is more to come
        if self._waits and logs:
            self._syncs += 1
            turn.when_synced(partial(self._synced, logs))
        if self._next < len(destinations):
            owner.soon(self.step)
        elif self._syncs == 0:
            owner.soon(self._finish)

    def _synced(self, logs: list[QueueLog], failed: list[QueueLog]) -> None:
        self._syncs -= 1
        if failed and any(log in failed for log in logs):
            self._accepted = False
        if self._syncs == 0 and self._next == len(self._route.destinations):
            self._channel.owner.soon(self._finish)

    def _finish(self) -> None:
        self._channel.spread_ended(self._accepted)
