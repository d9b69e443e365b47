"""Statistics: counters of all objects and their rates, sampled every five seconds outside the message path.

**Sweeps.** A sweep reads the counters of every queue, channel, connection and exchange in slices and compares them
with those of the previous sweep. Sweeps continue without requests, so that there is a history. Then the interval
grows with the number of objects (OBJECTS_PER_S on average), to a minute at most. Totals are always exact: an object
that ends adds its counters to `broker.ended_*`.

**Samples** (samples.py) are stored from the start for totals, the node and the first VHOSTS_KEPT vhosts. For other
objects they begin at the first request and end when no request has come for the longest range. At most HISTORIES_MAX
objects have samples, 17 KB each. A sweep costs about 3 us per object.

**Counters.** NAMES has the counters of each kind of object in order, READERS the functions that read them. LENGTHS
are numbers of messages, which also fall. A vhost's counters are the sums over its queues and channels, ended ones
included. Publishers add to an exchange's counters only when their route changes; `flush_counters` makes them do it
now.

**Node.** The kernel's figures of the process and the garbage collector's runs. RabbitMQ counts Erlang processes, here
threads; descriptors include connections; a sync is one group commit of several logs.

**Pairs** of a channel with an exchange or a queue: `incoming` of an exchange, `publishes` and `deliveries` of a
channel, `deliveries` of a queue. Rates begin at the first request and end ten minutes after the last one. At most
PAIRS_MAX pairs have rates, others show 0. RabbitMQ has all of this with rates_mode detailed, and also exchange to
queue, which is not counted here.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpd.broker.queue.stream import StreamReader
from amqpd.broker.stats import QUEUE_COUNTERS, queue_counts
from amqpd.channel.channel import CHANNEL_COUNTERS, channel_counts, stats_by_queue
from amqpd.management.message_counts import unacked_not_ready
from amqpd.management.samples import BASIC, GLOBAL, NO_SPANS, History, SamplePoint, SampleRange, SampleRanges, details
from amqpd.management.time_slice import TimeSlice
from amqpd.process import disk_free_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpd.broker.broker import Broker
    from amqpd.broker.consumer import QueueBase
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.stats import PublisherStats
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.channel.consumer import ChannelConsumers
    from amqpd.channel.stats import QueueDeliveryStats
    from amqpd.connection.connection import Connection
    from amqpd.connection.registry import ConnectionRegistry


NODE_COUNTERS: Final = (
    *("mem_used", "disk_free", "fd_used", "sockets_used", "proc_used", "gc_num", "context_switches"),
    *("io_read_bytes", "io_read_count", "io_write_bytes", "io_write_count", "io_sync_count", "io_sync_us"),
)
_FILES: Final = "/proc/self/fd"
_RESIDENT: Final = Path("/proc/self/statm")
IO: Final = Path("/proc/self/io")
_PAGE_BYTES: Final = resource.getpagesize()


class NodeCounts:
    """The counters of this node."""

    def __init__(self, broker: Broker, connections: ConnectionRegistry) -> None:
        self._broker = broker
        self._connections = connections

    def counts(self) -> tuple[int, ...]:
        """Return the counters in the order of NODE_COUNTERS. Cost: about 100 us, and 0.3 us per open file."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        io = read_proc_numbers(IO)
        syncs = self._broker.storage.sync_times
        return (
            int(_RESIDENT.read_text("ascii").split()[1]) * _PAGE_BYTES,
            disk_free_bytes(self._broker.settings.data_dir),
            len(os.listdir(_FILES)),  # noqa: PTH208  # no Path for each of 20,000 files
            len(self._connections.by_name),
            threading.active_count(),
            sum(each["collections"] for each in gc.get_stats()),
            usage.ru_nvcsw + usage.ru_nivcsw,
            *(io.get(name, 0) for name in ("read_bytes", "syscr", "write_bytes", "syscw")),
            *(syncs.count, int(syncs.total_s * 1_000_000)),
        )


def read_proc_numbers(path: Path) -> dict[str, int]:
    """Return the lines `name: number` of a file in /proc; empty if it cannot be read."""
    try:
        text = path.read_text("ascii")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS: Final = ("recv_oct", "send_oct")
CHURN_COUNTERS: Final = (
    *("connection_created", "connection_closed", "channel_created", "channel_closed"),
    *("queue_declared", "queue_created", "queue_deleted"),
)
UNROUTABLE: Final = ("return_unroutable", "drop_unroutable")
EXCHANGE_COUNTERS: Final = ("publish_in", "publish_out")
VHOST_COUNTERS: Final = (*QUEUE_COUNTERS, "confirm", *UNROUTABLE, *LENGTHS, *OCTETS)

QUEUE, CHANNEL, CONNECTION, CHURN, VHOST, EXCHANGE, NODE = range(7)
NAMES: Final = (
    (*QUEUE_COUNTERS, *LENGTHS),
    CHANNEL_COUNTERS,
    OCTETS,
    CHURN_COUNTERS,
    VHOST_COUNTERS,
    EXCHANGE_COUNTERS,
    NODE_COUNTERS,
)


class Churn:
    """Counters of connections, channels and queues that were created or removed since the start."""

    def __init__(self, broker: Broker, connections: ConnectionRegistry) -> None:
        self._broker = broker
        self._connections = connections

    def counts(self) -> tuple[int, ...]:
        """Return the counters in the order of CHURN_COUNTERS."""
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


def queue_lengths(queue: Queue) -> tuple[int, int, int]:
    """Return the lengths in the order of LENGTHS."""
    unacked = unacked_not_ready(queue)
    return (queue.ready_count + unacked + queue.delayed_count, queue.ready_count, unacked)


def queue_stats(queue: Queue) -> tuple[int, ...]:
    return queue_counts(queue) + queue_lengths(queue)


def connection_octets(connection: Connection) -> tuple[int, ...]:
    """Return the counters in the order of OCTETS."""
    return (connection.received_bytes, connection.output.sent_bytes)


def unroutable_counts(vhost: VHost) -> tuple[int, int]:
    """Return the counters in the order of UNROUTABLE."""
    returned = vhost.counts.returned_count
    return (returned, max(0, vhost.unroutable_count - returned))


def exchange_counts(exchange: Exchange) -> tuple[int, int]:
    """Return the counters in the order of EXCHANGE_COUNTERS."""
    return (exchange.stats.in_count, exchange.stats.out_count)


async def flush_counters(connections: Iterable[Connection], slices: TimeSlice) -> None:
    """Make publishers add their publishes to their exchanges' counters. Cost: 0.2 us per channel.

    Args:
        connections: a snapshot.
    """
    for connection in connections:
        for channel in connection.channels.all():
            channel.publisher.settle_counts()
        await slices.yield_if_due()


class VhostSum:
    """The sum of a vhost's counters."""

    def __init__(self, vhost: VHost) -> None:
        self.vhost = vhost
        self._queues = list(vhost.counts.ended_queues.counts) or [0] * len(QUEUE_COUNTERS)
        self._lengths = [0, 0, 0]
        self._octets = [0, 0]
        ended = vhost.counts.ended_channels.counts or (0,) * len(CHANNEL_COUNTERS)
        self._published, self._confirmed = ended[0], ended[1]

    def add_queue(self, counts: tuple[int, ...]) -> None:
        """Add the counters of a queue, from `queue_stats`."""
        size = len(QUEUE_COUNTERS)
        for index in range(size):
            self._queues[index] += counts[index]
        for index in range(3):
            self._lengths[index] += counts[size + index]

    def add_channel(self, counts: tuple[int, ...]) -> None:
        self._published += counts[0]
        self._confirmed += counts[1]

    def add_connection(self, counts: tuple[int, ...]) -> None:
        self._octets[0] += counts[0]
        self._octets[1] += counts[1]

    def counts(self) -> tuple[int, ...]:
        """Return the sums in the order of VHOST_COUNTERS. RabbitMQ: `publish` counts each publish once."""
        return (
            *(self._published, *self._queues[1:]),
            self._confirmed,
            *unroutable_counts(self.vhost),
            *self._lengths,
            *self._octets,
        )


READERS: Final[tuple[Any, ...]] = (
    queue_stats,
    channel_counts,
    connection_octets,
    Churn.counts,
    VhostSum.counts,
    exchange_counts,
    NodeCounts.counts,
)


class StatsParts(NamedTuple):
    """The statistics of an object, by their place in an answer."""

    stats: dict[str, Any]
    lengths: dict[str, Any]
    octets: dict[str, Any]


def split_stats(found: dict[str, Any]) -> StatsParts:
    parts = StatsParts({}, {}, {})
    for name, value in found.items():
        counter = name.removesuffix("_details")
        part = parts.lengths if counter in LENGTHS else parts.octets if counter in OCTETS else parts.stats
        part[name] = value
    return parts


PAIRS_MAX: Final = 10000
ASKED_KEPT_S: Final = 600.0
PUBLISH_COUNTERS: Final = ("publish",)
DELIVERY_COUNTERS: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack")


def delivery_counts(stats: QueueDeliveryStats) -> tuple[int, ...]:
    """Return the counters in the order of DELIVERY_COUNTERS."""
    return tuple(getattr(stats, name) for name in DELIVERY_COUNTERS)


class _PairSample:
    """The last sample of a pair.

    Attributes:
        asked_at: time of the last request, monotonic, seconds.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = counts
        self.per_s: Sequence[float] = (0.0,) * len(counts)
        self.asked_at = 0.0


class PairRates:
    """The rates of pairs. One object per HTTP API."""

    def __init__(self) -> None:
        self._sent: dict[PublisherStats, _PairSample] = {}
        self._had: dict[ChannelConsumers, dict[QueueBase, _PairSample]] = {}
        self._had_count = 0

    def published(self, sent: PublisherStats) -> dict[str, Any]:
        """Return the statistics of a publisher and an exchange."""
        counts = (int(sent.in_count),)
        seen = self._sent.get(sent)
        if seen is None and len(self._sent) < PAIRS_MAX:
            seen = self._sent[sent] = _PairSample(counts)
        return _with_rates(PUBLISH_COUNTERS, counts, seen)

    def delivered(self, channel: ChannelConsumers, queue: QueueBase, stats: QueueDeliveryStats) -> dict[str, Any]:
        """Return the statistics of a channel and a queue."""
        counts = delivery_counts(stats)
        queues = self._had.setdefault(channel, {})
        seen = queues.get(queue)
        if seen is None and self._had_count < PAIRS_MAX:
            seen = queues[queue] = _PairSample(counts)
            self._had_count += 1
        found = _with_rates(DELIVERY_COUNTERS, counts, seen)
        _add_deliver_get(found)
        return found

    async def sweep(self, elapsed_s: float, slices: TimeSlice) -> None:
        """Update the rates of requested pairs. `elapsed_s` is the time since the previous sweep."""
        since = time.monotonic() - ASKED_KEPT_S
        for sent, seen in list(self._sent.items()):
            if seen.asked_at < since:
                self._sent.pop(sent, None)
            else:
                _update_rates(seen, (int(sent.in_count),), elapsed_s)
            await slices.yield_if_due()
        for channel, queues in list(self._had.items()):
            now = stats_by_queue(channel)
            for queue, seen in list(queues.items()):
                if seen.asked_at < since or queue not in now:
                    del queues[queue]
                    self._had_count -= 1
                else:
                    _update_rates(seen, delivery_counts(now[queue]), elapsed_s)
            if not queues:
                self._had.pop(channel, None)
            await slices.yield_if_due()


def _update_rates(seen: _PairSample, counts: Sequence[int], elapsed_s: float) -> None:
    seen.per_s = _per_s(counts, seen.counts, elapsed_s)
    seen.counts = counts


def _with_rates(names: Sequence[str], counts: Sequence[int], seen: _PairSample | None) -> dict[str, Any]:
    per_s: Sequence[float] = (0.0,) * len(names)
    if seen is not None:
        seen.asked_at = time.monotonic()
        per_s = seen.per_s
    found: dict[str, Any] = {}
    for name, count, rate in zip(names, counts, per_s, strict=True):
        found[name], found[f"{name}_details"] = count, {"rate": rate}
    return found


log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
IDLE_INTERVAL_S_MAX: Final = 60.0
IDLE_AFTER_S: Final = 300.0
OBJECTS_PER_S: Final = 5000
"""Objects read per second on average without requests: 2 % of a processor."""
HISTORIES_MAX: Final = 1000
VHOSTS_KEPT: Final = 32
# Samples are dropped if they are not requested for this time: their longest range.
_KEPT_S: Final = {VHOST: 86400.0}
_KEPT_ELSE_S: Final = 3600.0


class Sample(NamedTuple):
    """The counters of an object at a sweep.

    Attributes:
        changed_at: last sweep that found changed counters, seconds since 1970.
    """

    counts: tuple[int, ...]
    per_s: tuple[float, ...]
    changed_at: float


LAG_INTERVAL_S: Final = 0.25
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)


class LoopLag:
    """A histogram of the event loop's delays: a timer every LAG_INTERVAL_S measures how late it runs.

    If a step blocks the loop for 50 ms, a timer that is due meanwhile runs up to 50 ms late. Over some minutes, the
    histogram shows how often and how long clients wait. Cost: 4 timers a second, about 10 us each.

    Attributes:
        counts: by bucket, one more than LAG_BOUNDS_S.
        total_s: the sum of all delays.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BOUNDS_S) + 1)
        self.total_s = 0.0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure until `stop`."""
        self._due_at = loop.time() + LAG_INTERVAL_S
        self._timer = loop.call_at(self._due_at, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        late_s = max(0.0, loop.time() - self._due_at)
        self.counts[bisect_left(LAG_BOUNDS_S, late_s)] += 1
        self.total_s += late_s
        self.start(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Rates:
    """Rates of all objects. One object per HTTP API.

    `details` and `totals` combine current counters with rates of the last sweep.
    """

    def __init__(self, broker: Broker, connections: ConnectionRegistry) -> None:
        self._broker = broker
        self._connections = connections
        self.churn = Churn(broker, connections)
        self.node = NodeCounts(broker, connections)
        self.pairs = PairRates()
        self._asked_at = time.monotonic()
        self._samples: dict[Any, Sample] = {}
        self._histories: dict[Any, History] = {}
        self._utilisations: dict[Queue, float] = {}
        # Streams with consumers -> the end of the log at the last sweep.
        self._ends: dict[Queue, int] = {}
        self._swept_at = time.monotonic()
        self._object_count = 0  # at the last sweep
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

    def reset(self) -> None:
        """Reset rates and samples. They begin again with the next sweep."""
        self._samples = {}
        self._histories = {}
        self._sums = [(0.0,) * len(names) for names in NAMES]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self.is_sweep_due(time.monotonic()):
                continue
            try:
                await self.sweep()
            except OSError as error:  # /proc cannot be read without a free descriptor
                log.warning("rates: a sweep failed, the next one is in a few seconds: %s", error)
            except Exception:
                log.exception("rates: a sweep failed; the next one is in a few seconds")

    def is_sweep_due(self, now: float) -> bool:
        """Return whether a sweep is due; half a second early counts. `now` is monotonic, in seconds."""
        idle_interval_s = min(max(INTERVAL_S, self._object_count / OBJECTS_PER_S), IDLE_INTERVAL_S_MAX)
        return now < self._asked_at + IDLE_AFTER_S or now >= self._swept_at + idle_interval_s - 0.5

    async def sweep(self) -> None:
        """Read all counters once."""
        slices = TimeSlice()
        now, wall = time.monotonic(), time.time()
        elapsed = max(now - self._swept_at, 0.001)
        before, after = self._samples, dict[Any, Sample]()
        sums = [[0.0] * len(names) for names in NAMES]
        totals = [self._ended(kind) for kind in range(len(NAMES))]
        by_vhost = {vhost: VhostSum(vhost) for vhost in self._broker.vhosts.values()}
        await flush_counters(list(self._connections), slices)
        for kind in (QUEUE, CHANNEL, CONNECTION, CHURN, EXCHANGE, NODE):
            for thing in self._all(kind):
                counts = READERS[kind](thing)
                after[thing] = sample = _make_sample(counts, before.get(thing), kind, elapsed, wall)
                for index, rate in enumerate(sample.per_s):
                    sums[kind][index] += rate
                for index, count in enumerate(counts):
                    totals[kind][index] += count
                self._add_to_vhost(by_vhost, thing, kind, counts)
                await slices.yield_if_due()
        for vhost, found in by_vhost.items():
            counts = found.counts()
            after[vhost] = sample = _make_sample(counts, before.get(vhost), VHOST, elapsed, wall)
            for index, rate in enumerate(sample.per_s):
                sums[VHOST][index] += rate
                totals[VHOST][index] += counts[index]
        await self._update_utilisation(slices)
        await self.pairs.sweep(elapsed, slices)
        self._samples = after
        await _clear_in_slices(before, slices)
        self._sums = [tuple(each) for each in sums]
        self._swept_at = now
        self._object_count = len(after)
        await self._add_to_histories([tuple(each) for each in totals], slices)

    def _add_to_vhost(self, by_vhost: dict[VHost, VhostSum], thing: Any, kind: int, counts: tuple[int, ...]) -> None:
        """Add counters to their vhost. A vhost created during the sweep is left out."""
        if kind == QUEUE:
            vhost = self._broker.vhosts.get(thing.vhost_name)
            if vhost in by_vhost:
                by_vhost[vhost].add_queue(counts)
        elif kind in (CHANNEL, CONNECTION) and thing.session.vhost in by_vhost:
            found = by_vhost[thing.session.vhost]
            (found.add_channel if kind == CHANNEL else found.add_connection)(counts)

    async def _add_to_histories(self, totals: list[tuple[int, ...]], slices: TimeSlice) -> None:
        """Add samples of totals and of requested objects.

        Drop samples of ended objects and of those without requests.
        """
        now = time.time()
        for kind in (QUEUE, CHANNEL, VHOST):
            self._history_of(kind, kind, totals[kind], now)
        for thing in (self.churn, self.node, *list(self._broker.vhosts.values())[:VHOSTS_KEPT]):
            if thing in self._samples:
                kind = CHURN if thing is self.churn else NODE if thing is self.node else VHOST
                self._history_of(thing, kind, self._samples[thing].counts, now).asked_at = now
        for thing, history in list(self._histories.items()):
            if isinstance(thing, int):
                history.add(now, totals[thing])
            elif thing in self._samples and history.asked_at > now - _KEPT_S.get(history.kind, _KEPT_ELSE_S):
                history.add(now, self._samples[thing].counts)
            else:
                self._histories.pop(thing, None)
            await slices.yield_if_due()

    def _all(self, kind: int) -> list[Any]:
        """Return all live objects of a kind, at one moment. Cost: 3 ms for 100,000 queues."""
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
        """Return the sums of the counters of ended objects."""
        ended: list[int] = []
        if kind in (QUEUE, CHANNEL):
            ended = (self._broker.catalogue.ended_queues if kind == QUEUE else self._broker.channels.ended).counts
        return [*ended, *([0] * (len(NAMES[kind]) - len(ended)))]

    # -- answers -----------------------------------------------------------------------------------------------------

    def details(self, thing: object, kind: int, within: SampleRanges = NO_SPANS) -> dict[str, Any]:
        """Return counters and rates of an object: `publish`, `publish_details: {rate}` and so on."""
        return self.stats_of_counts(thing, kind, READERS[kind](thing), within)

    def stats_of_counts(
        self, thing: object, kind: int, counts: Sequence[int], within: SampleRanges = NO_SPANS
    ) -> dict[str, Any]:
        """As `details`, for counters that were read already."""
        return self._details(thing, kind, counts, self.per_s(thing, kind), within)

    def per_s(self, thing: object, kind: int) -> tuple[float, ...]:
        """Return the rates of the last sweep in the order of NAMES[kind]. Cost: 0.2 us."""
        self._asked_at = time.monotonic()
        sample = self._samples.get(thing)
        return sample.per_s if sample is not None else _NO_RATES[kind]

    def idle_since(self, thing: object) -> float | None:
        """Return the last sweep that found changed counters, in seconds since 1970.

        None if they changed during the last interval.
        """
        sample = self._samples.get(thing)
        return sample.changed_at if sample is not None and not any(sample.per_s) else None

    def utilisation(self, queue: Queue) -> float:
        """Return the share of recent sweeps at which consumers had taken all messages, 0 to 1. 0 without consumers.

        Consumers of a stream have taken all if they have read up to the end at the previous sweep. RabbitMQ: the
        share of time in which the queue could deliver at once.
        """
        self._asked_at = time.monotonic()
        return self._utilisations.get(queue, 1.0) if queue.consumers else 0.0

    async def _update_utilisation(self, slices: TimeSlice) -> None:
        utilisations: dict[Queue, float] = {}
        ends: dict[Queue, int] = {}
        for queue in self._all(QUEUE):
            if queue.consumers:
                was = self._utilisations.get(queue, 1.0)
                utilisations[queue] = was + 0.3 * (self._have_taken_all(queue, ends) - was)
            await slices.yield_if_due()
        self._utilisations, self._ends = utilisations, ends

    def _have_taken_all(self, queue: Queue, ends: dict[Queue, int]) -> bool:
        """Return whether the queue's consumers wait for messages. Adds the end of a stream to `ends`."""
        if not queue.rules.stream:
            return bool(queue.ready_count == 0)
        ends[queue] = end = 0 if queue.store is None else int(queue.store.next_offset)
        seen = self._ends.get(queue, end)
        readers = (each.reader for each in queue.consumers)
        # A negative offset: the reader waits for its turn as single active consumer, or for the log.
        return all(not 0 <= each.offset < seen for each in readers if isinstance(each, StreamReader))

    def unroutable(self, within: SampleRanges = NO_SPANS) -> dict[str, Any]:
        """Return the returned and dropped messages of all vhosts."""
        counts = [0] * len(VHOST_COUNTERS)
        for vhost in self._broker.vhosts.values():
            for name, count in zip(UNROUTABLE, unroutable_counts(vhost), strict=True):
                counts[VHOST_COUNTERS.index(name)] += count
        found = self._details(VHOST, VHOST, counts, self._sums[VHOST], within)
        return {name: found[name] for each in UNROUTABLE for name in (each, f"{each}_details")}

    async def totals(self, kind: int, within: SampleRanges = NO_SPANS) -> dict[str, Any]:
        """Return totals and rates of all queues or channels since the start, ended ones included."""
        self._asked_at = time.monotonic()
        slices = TimeSlice()
        # Before the first pause: an object that ends meanwhile stays in the list and is not yet in the sum of ended
        # ones.
        counts, things = self._ended(kind), self._all(kind)
        for thing in things:
            for index, count in enumerate(READERS[kind](thing)):
                counts[index] += count
            await slices.yield_if_due()
        return self._details(kind, kind, counts, self._sums[kind], within)

    def _details(
        self, thing: object, kind: int, counts: Sequence[int], per_s: Sequence[float], within: SampleRanges
    ) -> dict[str, Any]:
        """Return counters and rates. For a total, `thing` is its kind."""
        now = time.time()
        history = self._history_of(thing, kind, counts, now) if within is not NO_SPANS else None
        moments: dict[SampleRange, list[SamplePoint]] = {}
        found: dict[str, Any] = {}
        for index, name in enumerate(NAMES[kind]):
            found[name] = counts[index]
            found[f"{name}_details"] = detail = {"rate": per_s[index]}
            span = _span_of(name, kind, within)
            if history is not None and span is not None:
                history.asked_at = now
                if span not in moments:
                    moments[span] = history.points(span, now, counts)
                detail.update(details(moments[span], index, history.since))
        if "deliver" in found:
            _add_deliver_get(found)
        return found

    def _history_of(self, thing: object, kind: int, counts: Sequence[int], now: float) -> History:
        """Return the samples of an object, new ones if necessary. Beyond HISTORIES_MAX, new ones are not stored."""
        history = self._histories.get(thing)
        if history is None:
            whole = isinstance(thing, int) or kind in (CHURN, NODE)
            history = History(now, kind, counts, GLOBAL if whole or kind == VHOST else BASIC)
            if whole or len(self._histories) < HISTORIES_MAX:
                self._histories[thing] = history
        return history


_NO_RATES: Final = tuple((0.0,) * len(names) for names in NAMES)
DELIVERED: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack")


def _make_sample(counts: tuple[int, ...], seen: Sample | None, kind: int, elapsed_s: float, now: float) -> Sample:
    """Return the sample of an object.

    Args:
        elapsed_s: time since the previous sweep.
        now: seconds since 1970, one object shared by all samples.
    """
    if seen is None:
        # New counters began at 0, but messages may have existed before the first sweep.
        counters = len(NAMES[kind]) - len(LENGTHS) if kind == QUEUE else len(counts)
        base = (0,) * counters + counts[counters:] if kind not in (VHOST, NODE) else counts
        return Sample(counts, _NO_RATES[kind] if counts == base else _per_s(counts, base, elapsed_s), now)
    if counts == seen.counts:
        return seen if seen.per_s is _NO_RATES[kind] else Sample(seen.counts, _NO_RATES[kind], seen.changed_at)
    return Sample(counts, _per_s(counts, seen.counts, elapsed_s), now)


async def _clear_in_slices(samples: dict[Any, Sample], slices: TimeSlice) -> None:
    """Clear the dict in slices. Freeing the samples of 100,000 queues at once would block the loop."""
    while samples:
        samples.popitem()
        await slices.yield_if_due()


def _per_s(counts: Sequence[int], base: Sequence[int], elapsed_s: float) -> tuple[float, ...]:
    return tuple(round((count - was) / elapsed_s, 1) for count, was in zip(counts, base, strict=True))


def _span_of(name: str, kind: int, within: SampleRanges) -> SampleRange | None:
    if kind == NODE:
        return within.node
    if name in OCTETS:
        return within.octets
    if kind == VHOST and name in LENGTHS:
        return within.lengths or within.rates  # RabbitMQ: for a vhost, either range applies
    return within.lengths if kind == CHURN or name in LENGTHS else within.rates


def _add_deliver_get(found: dict[str, Any]) -> None:
    """Add deliver_get, the sum of deliveries to consumers and by basic.get (RabbitMQ)."""
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
