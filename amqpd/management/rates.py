"""Rates: how fast each counter rose, sampled every five seconds; nothing on the message path knows of it.

A sweep reads the plain integers of every queue, channel and connection, in slices, and compares them with those of the
sweep before. Totals are exact at any time: what ended had its counts added up when it ended (`broker.ended_*`).

Cost: some 3 us per object and sweep.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpd.broker.counters import QUEUE_COUNTERS, queue_counts
from amqpd.channel.counters import CHANNEL_COUNTERS, channel_counts
from amqpd.management.slices import Slices

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.connection.connection import Connection
    from amqpd.connection.connections import Connections

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0


CONNECTION_COUNTERS: Final = ("recv_oct", "send_oct")


def connection_counts(connection: Connection) -> tuple[int, ...]:
    """In the order of CONNECTION_COUNTERS, bytes."""
    return (connection.received_bytes, connection.output.sent_bytes)


class Sample(NamedTuple):
    """What a sweep saw of one object."""

    counts: tuple[int, ...]
    per_s: tuple[float, ...]


CHURN_COUNTERS: Final = (
    *("connection_created", "connection_closed", "channel_created", "channel_closed"),
    *("queue_declared", "queue_created", "queue_deleted"),
)


class Churn:
    """What came and went since the start, all of it."""

    def __init__(self, broker: Broker, connections: Connections) -> None:
        self._broker = broker
        self._connections = connections

    def counts(self) -> tuple[int, ...]:
        """In the order of CHURN_COUNTERS."""
        channels, catalogue = self._broker.channels, self._broker.catalogue
        return (
            self._connections.opened_count,
            self._connections.closed_count,
            channels.opened_count,
            channels.closed_count,
            catalogue.queue_declared_count,
            catalogue.queue_created_count,
            catalogue.queue_deleted_count,
        )


NAMES: Final = (QUEUE_COUNTERS, CHANNEL_COUNTERS, CONNECTION_COUNTERS, CHURN_COUNTERS)
READERS: Final[tuple[Any, ...]] = (queue_counts, channel_counts, connection_counts, Churn.counts)
QUEUE, CHANNEL, CONNECTION, CHURN = 0, 1, 2, 3


class Rates:
    """One per admin server. `details` and `totals` answer from the last sweep and from now."""

    def __init__(self, broker: Broker, connections: Connections) -> None:
        self._broker = broker
        self._connections = connections
        self.churn = Churn(broker, connections)
        self._samples: dict[Any, Sample] = {}
        self._swept_at = time.monotonic()
        self._sums = [(0.0,) * len(names) for names in NAMES]
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """Rates begin anew with the next sweep."""
        self._samples = {}
        self._sums = [(0.0,) * len(names) for names in NAMES]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.sweep()
            except Exception:
                log.exception("rates: a sweep failed; the next one is tried")

    async def sweep(self) -> None:
        """Reads all counters once."""
        slices = Slices()
        now = time.monotonic()
        elapsed = max(now - self._swept_at, 0.001)
        before, after = self._samples, {}
        sums = [[0.0] * len(names) for names in NAMES]
        for kind in (QUEUE, CHANNEL, CONNECTION, CHURN):
            for thing in self._all(kind):
                counts = READERS[kind](thing)
                seen = before.get(thing)
                base = seen.counts if seen is not None else (0,) * len(counts)
                per_s = _NO_RATES[kind] if counts == base else _per_s(counts, base, elapsed)
                after[thing] = Sample(counts, per_s)
                for index, rate in enumerate(per_s):
                    sums[kind][index] += rate
                if slices.due:
                    await slices.rest()
        self._samples = after
        self._sums = [tuple(each) for each in sums]
        self._swept_at = now

    def _all(self, kind: int) -> list[Any]:
        """What lives now, at one moment: neither counted as ended nor forgotten. Cost: 3 ms for 100,000 queues."""
        if kind == QUEUE:
            return [queue for vhost in self._broker.vhosts.values() for queue in vhost.queues.values()]
        if kind == CHANNEL:
            return [each for owner in self._connections for each in owner.channels.all() if not each.closing]
        if kind == CHURN:
            return [self.churn]
        return list(self._connections)

    def details(self, thing: object, kind: int) -> dict[str, Any]:
        """`publish`, `publish_details: {rate}` and so on, for one object."""
        sample = self._samples.get(thing)
        return _details(NAMES[kind], READERS[kind](thing), sample.per_s if sample is not None else _NO_RATES[kind])

    async def totals(self, kind: int) -> dict[str, Any]:
        """Likewise for all queues or channels since the broker's start, those that ended included."""
        slices = Slices()
        ended = self._broker.catalogue.ended_queues if kind == QUEUE else self._broker.channels.ended
        counts = list(ended.counts) or [0] * len(NAMES[kind])
        # Chosen before the first rest: what ends meanwhile keeps its counts and is in no sum yet.
        for thing in self._all(kind):
            for index, count in enumerate(READERS[kind](thing)):
                counts[index] += count
            if slices.due:
                await slices.rest()
        return _details(NAMES[kind], counts, self._sums[kind])


_NO_RATES: Final = tuple((0.0,) * len(names) for names in NAMES)


def _per_s(counts: Sequence[int], base: Sequence[int], elapsed_s: float) -> tuple[float, ...]:
    return tuple(round((count - was) / elapsed_s, 1) for count, was in zip(counts, base, strict=True))


def _details(names: Sequence[str], counts: Sequence[int], per_s: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, count, rate in zip(names, counts, per_s, strict=True):
        found[name] = count
        found[f"{name}_details"] = {"rate": rate}
    if "deliver" in found:
        together = ("deliver", "deliver_no_ack", "get", "get_no_ack")
        found["deliver_get"] = sum(found[name] for name in together)
        found["deliver_get_details"] = {"rate": round(sum(found[f"{name}_details"]["rate"] for name in together), 1)}
    return found
