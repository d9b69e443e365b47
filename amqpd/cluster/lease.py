"""Whether what this node owns is still its own, as far as it can tell without being told.

A node that Kafka does not answer may have been replaced: after the session time-out the group gives its slots away. So
a slot's durable queues deliver nothing from the moment on at which the last request that Kafka has answered was
*sent* longer ago than that; and go on when Kafka answers again and has not given the slot away. Publishers are nobody's
danger: they are confirmed by Kafka's answers alone.

The lease is kept by the same requests that confirm. Where nothing is published or settled, a record goes to the slot's
`settled` now and then (PROLONG_SHARE of the time-out), by the same way and under the same epoch.

A queue is halted, its consumers stay: they are served on when Kafka is back, and told by the end of their connection
when it has given the slot away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from amqpd.cluster.ownership import OwnedSlot

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
PROLONG_SHARE: Final = 1 / 3


class Leases:
    """Of all slots of a node. owned: those just now. prolong: writes a slot's record. session_timeout_s: of the group.
    """

    def __init__(
        self,
        owned: Callable[[], Iterable[OwnedSlot]],
        prolong: Callable[[OwnedSlot], None],
        session_timeout_s: float,
    ) -> None:
        self._owned = owned
        self._prolong = prolong
        self._timeout_s = session_timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Looks each LOOK_S."""
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        now = self._loop.time()
        waiting: list[int] = []
        going_on: list[int] = []
        for owned in list(self._owned()):
            age_s = now - owned.producer.answered_s
            if age_s > self._timeout_s * PROLONG_SHARE:
                self._prolong(owned)
            lapsed = age_s > self._timeout_s
            if lapsed and not owned.halted:
                waiting.append(owned.slot)
            elif owned.halted and not lapsed:
                going_on.append(owned.slot)
            if lapsed or owned.halted:
                owned.halted = lapsed
                halt(owned)
        if waiting:
            text = "Kafka has not answered for longer than %g s: the durable queues of slots %s wait"
            logger.warning(text, self._timeout_s, ", ".join(map(str, waiting)))
        if going_on:
            logger.warning("Kafka answers: the durable queues of slots %s go on", ", ".join(map(str, going_on)))


def halt(owned: OwnedSlot) -> None:
    """Its queues are served, or not, as `owned.halted` says; those that came since among them."""
    for vhost in owned.vhosts.values():
        for queue in vhost.queues.values():
            store = queue.store
            if store is not None and not store.local and queue.round_robin.halted != owned.halted:
                queue.round_robin.halt(owned.halted)
                if not owned.halted:
                    queue.pump_later()
