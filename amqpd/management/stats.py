"""Rates: how fast each counter rose, sampled every five seconds; nothing on the message path knows of it.

A sweep reads the plain integers of every queue, channel, connection and exchange, in slices, and compares them with
those of the sweep before. Totals are exact at any time: what ended had its counts added up when it ended
(`broker.ended_*`). Sweeps also come while no request asks for figures, so that there is a history to look at later.
Then they are further apart where there are very many objects: OBJECTS_PER_S are read on average, and a sweep comes each
minute at least.

Samples (samples.py) are kept of the whole, of the node and of the first VHOSTS_KEPT vhosts from the start on; of any
other object from the first request for them until no request has come for its longest time.

Cost: some 3 us per object and sweep; 17 KB for an object with samples, of which there are HISTORIES_MAX at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpd.broker.queue.stream import StreamReader
from amqpd.management.counted import (
    CHANNEL,
    CHURN,
    CONNECTION,
    EXCHANGE,
    LENGTHS,
    NAMES,
    NODE,
    OCTETS,
    QUEUE,
    READERS,
    UNROUTABLE,
    VHOST,
    VHOST_COUNTERS,
    Churn,
    VhostSum,
    settle,
    unroutable,
)
from amqpd.management.loop_lag import LoopLag
from amqpd.management.node_counts import NodeCounts
from amqpd.management.pairs import Pairs
from amqpd.management.samples import BASIC, GLOBAL, NO_SPANS, History, Moment, Span, Spans, details
from amqpd.management.time_slice import Slices

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.broker.queue.queue import Queue
    from amqpd.connection.registry import Connections

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
IDLE_INTERVAL_S_MAX: Final = 60.0
IDLE_AFTER_S: Final = 300.0
OBJECTS_PER_S: Final = 5000
"""Read on average while no request asks: 2 % of a processor."""
HISTORIES_MAX: Final = 1000
VHOSTS_KEPT: Final = 32
# For how long those of an object are kept that nobody asks for, by kind: as long as its samples reach back.
_KEPT_S: Final = {VHOST: 86400.0}
_KEPT_ELSE_S: Final = 3600.0


class Sample(NamedTuple):
    """What a sweep saw of one object. changed_at: of the last sweep that saw other counts than the one before, seconds
    since 1970.
    """

    counts: tuple[int, ...]
    per_s: tuple[float, ...]
    changed_at: float


class Rates:
    """One per admin server. `details` and `totals` answer from the last sweep and from now."""

    def __init__(self, broker: Broker, connections: Connections) -> None:
        self._broker = broker
        self._connections = connections
        self.churn = Churn(broker, connections)
        self.node = NodeCounts(broker, connections)
        self.pairs = Pairs()
        self._asked_at = time.monotonic()
        self._samples: dict[Any, Sample] = {}
        self._histories: dict[Any, History] = {}
        self._utilised: dict[Queue, float] = {}
        # Of streams with consumers: the end of the log at the last sweep.
        self._ends: dict[Queue, int] = {}
        self._swept_at = time.monotonic()
        self._object_count = 0  # of the last sweep
        self._sums = [(0.0,) * len(names) for names in NAMES]
        self._task: asyncio.Task[None] | None = None
        self.loop_lag = LoopLag()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.loop_lag.start(loop)
        self._task = loop.create_task(self._run())

    def stop(self) -> None:
        self.loop_lag.stop()
        if self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """Rates begin anew with the next sweep."""
        self._samples = {}
        self._histories = {}
        self._sums = [(0.0,) * len(names) for names in NAMES]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self.due(time.monotonic()):
                continue
            try:
                await self.sweep()
            except Exception:
                log.exception("rates: a sweep failed; the next one is tried")

    def due(self, now: float) -> bool:
        """Return whether it is time for a sweep, half a second early at most. now: monotonic, s."""
        idle_interval_s = min(max(INTERVAL_S, self._object_count / OBJECTS_PER_S), IDLE_INTERVAL_S_MAX)
        return now < self._asked_at + IDLE_AFTER_S or now >= self._swept_at + idle_interval_s - 0.5

    async def sweep(self) -> None:
        """Reads all counters once."""
        slices = Slices()
        now, wall = time.monotonic(), time.time()
        elapsed = max(now - self._swept_at, 0.001)
        before, after = self._samples, dict[Any, Sample]()
        sums = [[0.0] * len(names) for names in NAMES]
        totals = [self._ended(kind) for kind in range(len(NAMES))]
        by_vhost = {vhost: VhostSum(vhost) for vhost in self._broker.vhosts.values()}
        await settle(list(self._connections), slices)
        for kind in (QUEUE, CHANNEL, CONNECTION, CHURN, EXCHANGE, NODE):
            for thing in self._all(kind):
                counts = READERS[kind](thing)
                after[thing] = sample = _sampled(counts, before.get(thing), kind, elapsed, wall)
                for index, rate in enumerate(sample.per_s):
                    sums[kind][index] += rate
                for index, count in enumerate(counts):
                    totals[kind][index] += count
                self._into_vhost(by_vhost, thing, kind, counts)
                if slices.due:
                    await slices.rest()
        for vhost, found in by_vhost.items():
            counts = found.counts()
            after[vhost] = sample = _sampled(counts, before.get(vhost), VHOST, elapsed, wall)
            for index, rate in enumerate(sample.per_s):
                sums[VHOST][index] += rate
                totals[VHOST][index] += counts[index]
        await self._note_utilisation(slices)
        await self.pairs.sweep(elapsed, slices)
        self._samples = after
        await _let_go(before, slices)
        self._sums = [tuple(each) for each in sums]
        self._swept_at = now
        self._object_count = len(after)
        await self._keep([tuple(each) for each in totals], slices)

    def _into_vhost(self, by_vhost: dict[VHost, VhostSum], thing: Any, kind: int, counts: tuple[int, ...]) -> None:
        """What counts for a vhost as well. One that came meanwhile is in no sum yet."""
        if kind == QUEUE:
            vhost = self._broker.vhosts.get(thing.vhost_name)
            if vhost in by_vhost:
                by_vhost[vhost].add_queue(counts)
        elif kind in (CHANNEL, CONNECTION) and thing.session.vhost in by_vhost:
            found = by_vhost[thing.session.vhost]
            (found.add_channel if kind == CHANNEL else found.add_connection)(counts)

    async def _keep(self, totals: list[tuple[int, ...]], slices: Slices) -> None:
        """Samples of the whole, and of those that somebody has asked for; what is gone or forgotten is let go."""
        now = time.time()
        for kind in (QUEUE, CHANNEL, VHOST):
            self._begin(kind, kind, totals[kind], now)
        for thing in (self.churn, self.node, *list(self._broker.vhosts.values())[:VHOSTS_KEPT]):
            if thing in self._samples:
                kind = CHURN if thing is self.churn else NODE if thing is self.node else VHOST
                self._begin(thing, kind, self._samples[thing].counts, now).asked_at = now
        for thing, history in list(self._histories.items()):
            if isinstance(thing, int):
                history.add(now, totals[thing])
            elif thing in self._samples and history.asked_at > now - _KEPT_S.get(history.kind, _KEPT_ELSE_S):
                history.add(now, self._samples[thing].counts)
            else:
                self._histories.pop(thing, None)
            if slices.due:
                await slices.rest()

    def _all(self, kind: int) -> list[Any]:
        """What lives now, at one moment: neither counted as ended nor forgotten. Cost: 3 ms for 100,000 queues."""
        if kind == QUEUE:
            return [queue for vhost in self._broker.vhosts.values() for queue in vhost.queues.values()]
        if kind == CHANNEL:
            return [each for owner in self._connections for each in owner.channels.all() if not each.closing]
        if kind == EXCHANGE:
            return [exchange for vhost in self._broker.vhosts.values() for exchange in vhost.exchanges.values()]
        if kind in (CHURN, NODE):
            return [self.churn if kind == CHURN else self.node]
        return list(self._connections)

    def _ended(self, kind: int) -> list[int]:
        """What those have counted that have ended."""
        ended: list[int] = []
        if kind in (QUEUE, CHANNEL):
            ended = (self._broker.catalogue.ended_queues if kind == QUEUE else self._broker.channels.ended).counts
        return [*ended, *([0] * (len(NAMES[kind]) - len(ended)))]

    # -- answers -----------------------------------------------------------------------------------------------------

    def details(self, thing: object, kind: int, within: Spans = NO_SPANS) -> dict[str, Any]:
        """`publish`, `publish_details: {rate}` and so on, for one object."""
        return self.shown(thing, kind, READERS[kind](thing), within)

    def shown(self, thing: object, kind: int, counts: Sequence[int], within: Spans = NO_SPANS) -> dict[str, Any]:
        """The same for counts that were read already."""
        self._asked_at = time.monotonic()
        sample = self._samples.get(thing)
        per_s = sample.per_s if sample is not None else _NO_RATES[kind]
        return self._details(thing, kind, counts, per_s, within)

    def per_s(self, thing: object, kind: int) -> tuple[float, ...]:
        """How fast its counters rose at the last sweep, in the order of NAMES[kind]. Cost: 0.2 us."""
        self._asked_at = time.monotonic()
        sample = self._samples.get(thing)
        return sample.per_s if sample is not None else _NO_RATES[kind]

    def idle_since(self, thing: object) -> float | None:
        """When a sweep has seen its counters move last, seconds since 1970; None: they moved before the last one."""
        sample = self._samples.get(thing)
        return sample.changed_at if sample is not None and not any(sample.per_s) else None

    def utilisation(self, queue: Queue) -> float:
        """The share of recent sweeps at which its consumers had taken all there was; 0 to 1. 0 without consumers.

        A stream keeps its messages: its consumers have taken all when they have read what was there a sweep before.
        rabbit: the share of time in which it could deliver at once.
        """
        self._asked_at = time.monotonic()
        return self._utilised.get(queue, 1.0) if queue.consumers else 0.0

    async def _note_utilisation(self, slices: Slices) -> None:
        utilised: dict[Queue, float] = {}
        ends: dict[Queue, int] = {}
        for queue in self._all(QUEUE):
            if queue.consumers:
                was = self._utilised.get(queue, 1.0)
                utilised[queue] = was + 0.3 * (self._have_taken_all(queue, ends) - was)
            if slices.due:
                await slices.rest()
        self._utilised, self._ends = utilised, ends

    def _have_taken_all(self, queue: Queue, ends: dict[Queue, int]) -> bool:
        """Whether its consumers wait for messages. ends: of streams, filled here."""
        if not queue.rules.stream:
            return bool(queue.ready_count == 0)
        ends[queue] = end = 0 if queue.store is None else int(queue.store.next_offset)
        seen = self._ends.get(queue, end)
        readers = (each.reader for each in queue.consumers)
        # A reader below 0 has not begun: it waits in the line of single active consumers, or for the log.
        return all(not 0 <= each.offset < seen for each in readers if isinstance(each, StreamReader))

    def unroutable(self, within: Spans = NO_SPANS) -> dict[str, Any]:
        """What was returned and dropped in all vhosts there are."""
        counts = [0] * len(VHOST_COUNTERS)
        for vhost in self._broker.vhosts.values():
            for name, count in zip(UNROUTABLE, unroutable(vhost), strict=True):
                counts[VHOST_COUNTERS.index(name)] += count
        found = self._details(VHOST, VHOST, counts, self._sums[VHOST], within)
        return {name: found[name] for each in UNROUTABLE for name in (each, f"{each}_details")}

    async def totals(self, kind: int, within: Spans = NO_SPANS) -> dict[str, Any]:
        """Likewise for all queues or channels since the broker's start, those that ended included."""
        self._asked_at = time.monotonic()
        slices = Slices()
        # Chosen before the first rest: what ends meanwhile keeps its counts and is in no sum yet.
        counts, things = self._ended(kind), self._all(kind)
        for thing in things:
            for index, count in enumerate(READERS[kind](thing)):
                counts[index] += count
            if slices.due:
                await slices.rest()
        return self._details(kind, kind, counts, self._sums[kind], within)

    def _details(
        self, thing: object, kind: int, counts: Sequence[int], per_s: Sequence[float], within: Spans
    ) -> dict[str, Any]:
        """A total is its kind's, as a thing."""
        now = time.time()
        history = self._begin(thing, kind, counts, now) if within is not NO_SPANS else None
        moments: dict[Span, list[Moment]] = {}
        found: dict[str, Any] = {}
        for index, name in enumerate(NAMES[kind]):
            found[name] = counts[index]
            found[f"{name}_details"] = detail = {"rate": per_s[index]}
            span = _span_of(name, kind, within)
            if history is not None and span is not None:
                history.asked_at = now
                if span not in moments:
                    moments[span] = history.moments(span, now, counts)
                detail.update(details(moments[span], index, history.since))
        if "deliver" in found:
            _add_together(found)
        return found

    def _begin(self, thing: object, kind: int, counts: Sequence[int], now: float) -> History:
        """Its samples, which begin now if there are none; beyond HISTORIES_MAX they are forgotten again."""
        history = self._histories.get(thing)
        if history is None:
            whole = isinstance(thing, int) or kind in (CHURN, NODE)
            history = History(now, kind, counts, GLOBAL if whole or kind == VHOST else BASIC)
            if whole or len(self._histories) < HISTORIES_MAX:
                self._histories[thing] = history
        return history


_NO_RATES: Final = tuple((0.0,) * len(names) for names in NAMES)
DELIVERED: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack")


def _sampled(counts: tuple[int, ...], seen: Sample | None, kind: int, elapsed_s: float, now: float) -> Sample:
    """elapsed_s: since the sweep before. now: seconds since 1970; one object for all, as there are many."""
    if seen is None:
        # A counter began at 0; messages were there before the first sweep.
        counters = len(NAMES[kind]) - len(LENGTHS) if kind == QUEUE else len(counts)
        base = (0,) * counters + counts[counters:] if kind not in (VHOST, NODE) else counts
        return Sample(counts, _NO_RATES[kind] if counts == base else _per_s(counts, base, elapsed_s), now)
    if counts == seen.counts:
        return seen if seen.per_s is _NO_RATES[kind] else Sample(seen.counts, _NO_RATES[kind], seen.changed_at)
    return Sample(counts, _per_s(counts, seen.counts, elapsed_s), now)


async def _let_go(samples: dict[Any, Sample], slices: Slices) -> None:
    """Little by little: those of 100,000 queues at once would hold the loop."""
    while samples:
        samples.popitem()
        if slices.due:
            await slices.rest()


def _per_s(counts: Sequence[int], base: Sequence[int], elapsed_s: float) -> tuple[float, ...]:
    return tuple(round((count - was) / elapsed_s, 1) for count, was in zip(counts, base, strict=True))


def _span_of(name: str, kind: int, within: Spans) -> Span | None:
    if kind == NODE:
        return within.node
    if name in OCTETS:
        return within.octets
    if kind == VHOST and name in LENGTHS:
        return within.lengths or within.rates  # rabbit: of a vhost the one says both
    return within.lengths if kind == CHURN or name in LENGTHS else within.rates


def _add_together(found: dict[str, Any]) -> None:
    """rabbit: deliver_get is what went to consumers and to those who got it."""
    found["deliver_get"] = sum(found[name] for name in DELIVERED)
    parts = [found[f"{name}_details"] for name in DELIVERED]
    found["deliver_get_details"] = whole = {"rate": round(sum(part["rate"] for part in parts), 1)}
    if "samples" in parts[0]:
        whole["samples"] = [
            {"sample": sum(each["sample"] for each in moment), "timestamp": moment[0]["timestamp"]}
            for moment in zip(*(part["samples"] for part in parts), strict=True)
        ]
        for name in ("avg_rate", "avg"):
            whole[name] = sum(part[name] for part in parts)
        whole["recorded_since"] = parts[0]["recorded_since"]
