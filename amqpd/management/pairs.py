"""What went between a channel and an exchange, or a channel and a queue: `incoming` of an exchange, `publishes` and
`deliveries` of a channel, `deliveries` of a queue.

Channels count both, see `Publisher.sent` and `had_by_queue`. Rates of a pair are sampled from the first request for it
until nobody has asked for ten minutes; PAIRS_MAX pairs at most, those of others are 0.

rabbit: all of it with rates_mode detailed, and so what went from an exchange to a queue, which is counted nowhere here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from amqpd.channel.counters import had_by_queue
from amqpd.management.time_slice import Slices

if TYPE_CHECKING:
    from amqpd.broker.consumer import Source
    from amqpd.broker.passed import Sent
    from amqpd.channel.consumer import Deliveries
    from amqpd.channel.stats import Had

PAIRS_MAX: Final = 10000
ASKED_KEPT_S: Final = 600.0
PUBLISHED: Final = ("publish",)
HAD: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack")
_DELIVERED: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack")


def had_counts(had: Had) -> tuple[int, ...]:
    """In the order of HAD."""
    return (had.deliver, had.deliver_no_ack, had.get, had.get_no_ack, had.get_empty, had.redeliver, had.ack)


class _Seen:
    """Of one pair. asked_at: monotonic, s."""

    def __init__(self, counts: Sequence[int], asked_at: float) -> None:
        self.counts = counts
        self.per_s: Sequence[float] = (0.0,) * len(counts)
        self.asked_at = asked_at


class Pairs:
    """One per admin server."""

    def __init__(self) -> None:
        self._sent: dict[Sent, _Seen] = {}
        self._had: dict[Deliveries, dict[Source, _Seen]] = {}
        self._had_count = 0

    def published(self, sent: Sent) -> dict[str, Any]:
        """Stats of one publisher and one exchange."""
        counts = (int(sent.in_count),)
        seen = self._sent.get(sent)
        if seen is None and len(self._sent) < PAIRS_MAX:
            seen = self._sent[sent] = _Seen(counts, 0.0)
        return _told(PUBLISHED, counts, seen)

    def delivered(self, channel: Deliveries, queue: Source, had: Had) -> dict[str, Any]:
        """Stats of one channel and one queue."""
        counts = had_counts(had)
        queues = self._had.setdefault(channel, {})
        seen = queues.get(queue)
        if seen is None and self._had_count < PAIRS_MAX:
            seen = queues[queue] = _Seen(counts, 0.0)
            self._had_count += 1
        found = _told(HAD, counts, seen)
        found["deliver_get"] = sum(found[name] for name in _DELIVERED)
        found["deliver_get_details"] = {"rate": round(sum(found[f"{name}_details"]["rate"] for name in _DELIVERED), 1)}
        return found

    async def sweep(self, elapsed_s: float, slices: Slices) -> None:
        """How fast those rose that were asked for. elapsed_s: since the sweep before."""
        since = time.monotonic() - ASKED_KEPT_S
        for sent, seen in list(self._sent.items()):
            if seen.asked_at < since:
                self._sent.pop(sent, None)
            else:
                _rise(seen, (int(sent.in_count),), elapsed_s)
            if slices.due:
                await slices.rest()
        for channel, queues in list(self._had.items()):
            now = had_by_queue(channel)
            for queue, seen in list(queues.items()):
                if seen.asked_at < since or queue not in now:
                    del queues[queue]
                    self._had_count -= 1
                else:
                    _rise(seen, had_counts(now[queue]), elapsed_s)
            if not queues:
                self._had.pop(channel, None)
            if slices.due:
                await slices.rest()


def _rise(seen: _Seen, counts: Sequence[int], elapsed_s: float) -> None:
    seen.per_s = tuple(round((count - was) / elapsed_s, 1) for count, was in zip(counts, seen.counts, strict=True))
    seen.counts = counts


def _told(names: Sequence[str], counts: Sequence[int], seen: _Seen | None) -> dict[str, Any]:
    per_s: Sequence[float] = (0.0,) * len(names)
    if seen is not None:
        seen.asked_at = time.monotonic()
        per_s = seen.per_s
    found: dict[str, Any] = {}
    for name, count, rate in zip(names, counts, per_s, strict=True):
        found[name], found[f"{name}_details"] = count, {"rate": rate}
    return found
