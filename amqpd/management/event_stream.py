"""Events as they happen, for `amqpctl consume_event_stream`: asked again and again, each time from where the last
answer ended, so that a reader who is slow, or gone, costs the broker nothing.

The first question begins to listen, and the last COUNT_MAX events are kept for those that follow; when nobody has asked
for IDLE_S, listening ends. What is told is what the exchange amq.rabbitmq.event tells (broker/events.py), which need
not be there.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Any, Final

from amqpd.broker.events import Event, Events
from amqpd.management.request import Call, Reply, Role, number, reply
from amqpd.management.listing import plain
from amqpd.management.router import Route

COUNT_MAX: Final = 10_000
ANSWER_MAX: Final = 500
IDLE_S: Final = 30.0


class Watch:
    """Listens to one broker's events. end: how many there have been."""

    def __init__(self, events: Events) -> None:
        self.end = 0
        self._events = events
        self._kept: deque[Event] = deque(maxlen=COUNT_MAX)
        self._asked_at = time.monotonic()
        events.watch(self)

    def heard(self, event: Event) -> None:
        """Cost: one append."""
        if time.monotonic() - self._asked_at > IDLE_S:
            self._events.watch(None)
            self._kept.clear()
            return
        self.end += 1
        self._kept.append(event)

    def since(self, position: int) -> tuple[int, list[Event]]:
        """The position behind those returned, at most ANSWER_MAX, and they. Those that are gone are passed over."""
        self._asked_at = time.monotonic()
        first = self.end - len(self._kept)
        start = max(position, first)
        found = list(islice(self._kept, start - first, start - first + ANSWER_MAX))
        return start + len(found), found


async def get_events(call: Call) -> Reply:
    """Events since `position`; without one, or with one of before the last start, where to begin."""
    events = call.broker.catalogue.events
    watch = events.watcher
    if not isinstance(watch, Watch):
        watch = Watch(events)
    position = number("position", call.query.get("position", str(watch.end)), 0, 1 << 62)
    lost = max(0, watch.end - COUNT_MAX - position)
    position, found = watch.since(min(position, watch.end))
    told: list[dict[str, Any]] = [{"event": each.key, **plain(each.headers)} for each in found]
    return reply({"position": position, "lost": lost, "events": told})


ROUTES: Final = (Route("GET", "api/amqpd/events", Role.ADMINISTRATOR, get_events),)
