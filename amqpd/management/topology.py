"""The topology for the web page: exchanges, queues, links, publishers and consumers, with the rates of the last
sweep.

An answer has at most `count` exchanges and queues, the busiest first: queues by rate, then by number of messages.
Exchanges of RabbitMQ that are unused are left out. With `name`, the answer has the objects whose names contain it,
and their neighbours. A user that may list the queues of a vhost may see its topology. Publishers and consumers of
other users need the tag monitoring.

**Rates of links.** Messages per binding are not counted (RabbitMQ: only with detailed rates). A link to a queue shows
the queue's incoming rate. If several links lead to the queue, each has a share according to the rate of its source,
and is `estimated`. Links between exchanges are always estimated. An exchange received at least as much as its busiest
outgoing link carries; what clients did not publish to it came from other exchanges. A queue without bindings is
linked to the default exchange.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.queue import Queue
from amqpd.channel.consumer import ChannelConsumer
from amqpd.management.connections import may_see
from amqpd.management.listing import encode_object
from amqpd.management.request import ApiRequest, ApiResponse, Role, parse_int
from amqpd.management.router import ApiRoute
from amqpd.management.stats import EXCHANGE, QUEUE, queue_lengths
from amqpd.management.time_slice import TimeSlice

if TYPE_CHECKING:
    from amqpd.broker.stats import ExchangeStats
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost

COUNT: Final = 500
COUNT_MAX: Final = 2000
KEYS_MAX: Final = 5
"""Limit of routing keys per link. Others are only counted."""
PEERS_MAX: Final = 10
"""Limit of connections per queue (consumers) and per exchange (publishers)."""
_RUN: Final = 500
_TOGETHER: Final = 50
# Indices in stats.NAMES[QUEUE]: incoming messages, and deliveries to consumers and by basic.get.
_IN: Final = 0
_OUT: Final = slice(1, 5)


class TopK:
    """The `count` highest of all objects added.

    Others are dropped early, because freeing 100,000 at once would block the loop.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._ranked: list[tuple[float, int, int, Any, VHost]] = []
        self.seen_count = 0

    def add(self, rate: float, size: int, thing: Any, vhost: VHost) -> None:
        """Add an object, ranked by rate, then size, then order of calls."""
        self._ranked.append((rate, size, -self.seen_count, thing, vhost))
        self.seen_count += 1
        if len(self._ranked) >= self._count + _RUN:
            self._ranked = heapq.nlargest(self._count, self._ranked)

    def first(self, count: int) -> list[tuple[Any, VHost]]:
        return [(thing, vhost) for *_, thing, vhost in heapq.nlargest(count, self._ranked)]


class Topology:
    """The chosen part of the topology of some vhosts."""

    def __init__(self, call: ApiRequest, vhosts: list[VHost]) -> None:
        self._call = call
        self._vhosts = vhosts
        self._slices = TimeSlice()
        self.exchanges: dict[Exchange, VHost] = {}
        self.queues: dict[Queue, VHost] = {}
        self.totals = {"exchanges": 0, "queues": 0}
        # Ids of the objects, which links refer to.
        self._ids: dict[Exchange | Queue, str] = {}
        # Per exchange: the rate of its busiest link to a queue, the exchanges bound to it, its highest possible rate.
        self._busiest: dict[Exchange, float] = {}
        self._bound: dict[Exchange, list[Exchange]] = {}
        self._highest: dict[Exchange, float] = {}

    # -- choice --------------------------------------------------------------------------------------------------------

    async def choose(self, name: str, count: int) -> None:
        """Choose exchanges and queues. Cost: 2 us per queue of the vhosts, in slices."""
        part = name.lower()
        exchanges, queues = TopK(count), TopK(count)
        for vhost in self._vhosts:
            self.totals["exchanges"] += len(vhost.exchanges)
            self.totals["queues"] += len(vhost.queues)
            for exchange in list(vhost.exchanges.values()):
                if part in exchange.name.lower() and (part or self._is_used(vhost, exchange)):
                    exchanges.add(self._rate(exchange), len(exchange.bindings), exchange, vhost)
                await self._slices.yield_if_due()
            for queue in list(vhost.queues.values()):
                if part in queue.name.lower():
                    if queue.opening is not None:
                        await opened(queue)
                    queues.add(self._rate(queue), queue_lengths(queue)[0], queue, vhost)
                await self._slices.yield_if_due()
        for exchange, vhost in exchanges.first(max(count // 4, count - queues.seen_count)):
            self.exchanges[exchange] = vhost
        for queue, vhost in queues.first(count - len(self.exchanges)):
            self.queues[queue] = vhost
        if part:
            await self._add_neighbours(count)
        for queue, vhost in self.queues.items():
            if not vhost.bindings_to(queue):
                self.exchanges[vhost.default_exchange] = vhost

    def _is_used(self, vhost: VHost, exchange: Exchange) -> bool:
        """Return whether to show the exchange. Every vhost has the predeclared ones, mostly unused."""
        own = not exchange.name or exchange.name.startswith("amq.")
        return not own or bool(exchange.bindings) or bool(vhost.bindings_to(exchange)) or self._rate(exchange) > 0

    async def _add_neighbours(self, count: int) -> None:
        """Add objects bound to the chosen ones, up to `count`, but not the neighbours of neighbours."""
        named = list(self.exchanges.items())
        chosen: list[tuple[Exchange | Queue, VHost]] = [*self.queues.items(), *self.exchanges.items()]
        for thing, vhost in chosen:
            for binding in vhost.bindings_to(thing):
                self._add(vhost, binding.source, count)
                await self._slices.yield_if_due()
        for exchange, vhost in named:
            for binding in list(exchange.bindings.values()):
                self._add(vhost, binding.destination, count)
                await self._slices.yield_if_due()

    def _add(self, vhost: VHost, thing: Exchange | Queue, count: int) -> None:
        if len(self.exchanges) + len(self.queues) < count:
            if isinstance(thing, Queue):
                self.queues[thing] = vhost
            else:
                self.exchanges[thing] = vhost

    def _rate(self, thing: Exchange | Queue) -> float:
        """Return the incoming and outgoing messages per second."""
        if isinstance(thing, Queue):
            per_s = self._call.rates.per_s(thing, QUEUE)
            return per_s[_IN] + sum(per_s[_OUT])
        return self._call.rates.per_s(thing, EXCHANGE)[0]

    # -- answer --------------------------------------------------------------------------------------------------------

    async def answer(self) -> dict[str, Any]:
        # In a cluster the answers of all nodes are merged, so ids contain the node.
        at = "" if self._call.cluster is None else f"{self._call.node} "
        self._ids.update({each: f"{at}e{index}" for index, each in enumerate(self.exchanges)})
        self._ids.update({each: f"{at}q{index}" for index, each in enumerate(self.queues)})
        exchanges = [self._exchange(exchange, vhost) for exchange, vhost in self.exchanges.items()]
        queues: list[dict[str, Any]] = []
        links: list[dict[str, Any]] = []
        consumers: list[dict[str, Any]] = []
        for queue, vhost in self.queues.items():
            queues.append(self._queue(queue, vhost))
            links += await self._links_to(queue, vhost)
            if queue.consumers:
                consumers += self._consumers(queue)
            await self._slices.yield_if_due()
        for exchange, vhost in self.exchanges.items():
            for source in dict.fromkeys(each.source for each in vhost.bindings_to(exchange)):
                self._bound.setdefault(source, []).append(exchange)
            await self._slices.yield_if_due()
        for exchange, vhost in self.exchanges.items():
            links += await self._links_to(exchange, vhost)
            alternate = vhost.exchanges.get(exchange.alternate) if exchange.alternate else None
            if alternate in self._ids:
                links.append(self._link("alternate", exchange, alternate, 1, [], None, False))
            await self._slices.yield_if_due()
        return {
            "totals": self.totals,
            "exchanges": exchanges,
            "queues": queues,
            "links": links,
            "consumers": consumers,
            "publishers": await self._publishers(),
        }

    def _exchange(self, exchange: Exchange, vhost: VHost) -> dict[str, Any]:
        in_rate, out_rate = self._call.rates.per_s(exchange, EXCHANGE)
        return {
            "id": self._ids[exchange],
            "vhost": vhost.name,
            "name": exchange.name,
            "type": exchange.kind,
            "bindings": len(exchange.bindings),
            "messages_delayed": 0 if exchange.wheel is None else int(exchange.wheel.count()),
            "in_rate": in_rate,
            "out_rate": out_rate,
        }

    def _queue(self, queue: Queue, vhost: VHost) -> dict[str, Any]:
        per_s = self._call.rates.per_s(queue, QUEUE)
        messages, ready, unacked = queue_lengths(queue)
        return {
            "id": self._ids[queue],
            "vhost": vhost.name,
            "name": queue.name,
            "type": queue.kind,
            "messages": messages,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
            "consumers": len(queue.consumers),
            "in_rate": per_s[_IN],
            "out_rate": round(sum(per_s[_OUT]), 1),
        }

    async def _links_to(self, end: Queue | Exchange, vhost: VHost) -> list[dict[str, Any]]:
        """Return the links to an object: one per source for its bindings, and for a queue also its dead letter
        exchange.
        """
        keys: dict[Exchange, list[str]] = {}
        counts: dict[Exchange, int] = {}
        bindings = vhost.bindings_to(end)
        for binding in bindings:
            counts[binding.source] = counts.get(binding.source, 0) + 1
            if binding.source in self._ids:
                shown = keys.setdefault(binding.source, [])
                if len(shown) < KEYS_MAX:
                    shown.append(binding.routing_key)
            await self._slices.yield_if_due()
        is_queue = isinstance(end, Queue)
        in_rate = self._call.rates.per_s(end, QUEUE)[_IN] if isinstance(end, Queue) else self._from_exchanges(end)
        links: list[dict[str, Any]] = []
        rates = {each: await self._incoming_rate_max(vhost, each) for each in counts} if len(counts) > 1 else {}
        whole = sum(rates.values())
        for source, shown in keys.items():
            share = in_rate
            if rates:  # this source's share of the messages
                share = round(in_rate * (rates[source] / whole if whole > 0 else 1 / len(counts)), 1)
            if is_queue:
                self._busiest[source] = max(self._busiest.get(source, 0.0), share)
            estimated = len(counts) > 1 or not is_queue
            links.append(self._link("binding", source, end, counts[source], shown, share, estimated))
        if isinstance(end, Queue):
            if not bindings and vhost.default_exchange in self._ids:
                links.append(self._link("default", vhost.default_exchange, end, 1, [end.name], in_rate, False))
            dead = end.rules.dead_letter_exchange
            target = vhost.exchanges.get(dead) if dead is not None else None
            if target in self._ids:
                key = end.rules.dead_letter_key
                links.append(self._link("dead_letter", end, target, 1, [] if key is None else [key], None, False))
        return links

    async def _incoming_rate_max(self, vhost: VHost, exchange: Exchange) -> float:
        """Return the highest possible rate of an exchange: publishes of clients and all that its sources receive.

        Cost: once per exchange, the bindings that lead to it, in slices.
        """
        known = self._highest.get(exchange)
        if known is not None:
            return known
        rate = 0.0
        seen = {exchange}
        stack = [exchange]
        while stack:
            at = stack.pop()
            rate += self._rate(at)
            for binding in vhost.bindings_to(at):
                if binding.source not in seen:
                    seen.add(binding.source)
                    stack.append(binding.source)
                await self._slices.yield_if_due()
        self._highest[exchange] = rate
        return rate

    def _from_exchanges(self, exchange: Exchange) -> float:
        """Return the lowest possible rate of messages from other exchanges."""
        return round(max(0.0, self._outgoing_rate(exchange) - self._rate(exchange)), 1)

    def _outgoing_rate(self, exchange: Exchange) -> float:
        """Return the rate of an exchange's busiest outgoing link, directly or through other exchanges."""
        found = 0.0
        seen: set[Exchange] = set()
        # Exchanges, and the rates of clients that publish to them or on the way to them.
        stack = [(exchange, 0.0)]
        while stack:
            at, published = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            found = max(found, self._busiest.get(at, 0.0) - published)
            for each in reversed(self._bound.get(at, ())):
                if each not in seen:
                    stack.append((each, published + self._rate(each)))
        return found

    def _link(
        self,
        kind: str,
        source: Exchange | Queue,
        destination: Exchange | Queue | None,
        count: int,
        keys: list[str],
        rate: float | None,
        estimated: bool,
    ) -> dict[str, Any]:
        assert destination is not None  # callers pass only objects that are shown
        ends = {"source": self._ids[source], "destination": self._ids[destination]}
        return {"kind": kind, **ends, "count": count, "keys": keys, "rate": rate, "estimated": estimated}

    def _consumers(self, queue: Queue) -> list[dict[str, Any]]:
        """Return the consumers of a queue by connection."""
        sessions = [each.deliveries.session for each in queue.consumers if isinstance(each, ChannelConsumer)]
        shown = (each for each in sessions if may_see(self._call, each))
        return self._peers("queue", queue, ((session.name, session.user.name) for session in shown))

    async def _publishers(self) -> list[dict[str, Any]]:
        """Return publishers to the shown exchanges by connection. Cost: visits every channel."""
        shown = {exchange.stats: exchange for exchange in self.exchanges}
        found: dict[Exchange, list[tuple[str, str]]] = {}
        for connection in list(self._call.server.connections):
            session = connection.session
            for channel in connection.channels.all() if may_see(self._call, session) else ():
                sent: ExchangeStats
                for sent in channel.publisher.sent:
                    if sent in shown and not channel.closing:
                        found.setdefault(shown[sent], []).append((session.name, session.user.name))
            await self._slices.yield_if_due()
        return [item for exchange, names in found.items() for item in self._peers("exchange", exchange, names)]

    def _peers(self, key: str, thing: Exchange | Queue, names: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        counts: dict[tuple[str, str], int] = {}
        for each in names:
            counts[each] = counts.get(each, 0) + 1
        return [
            {key: self._ids[thing], "connection": name, "user": user, "count": count}
            for (name, user), count in list(counts.items())[:PEERS_MAX]
        ]


async def get_topology(call: ApiRequest) -> ApiResponse:
    """Return exchanges, queues, links between them, publishers and consumers. Query: `name`, `count` (at most 2000)."""
    count = parse_int("count", call.query.get("count", COUNT), 1, COUNT_MAX)
    found = Topology(call, call.vhosts())
    await found.choose(call.query.get("name", ""), count)
    return ApiResponse(200, await encode_object(await found.answer(), _TOGETHER))


ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/topology", Role.MANAGEMENT, get_topology),
    ApiRoute("GET", "api/amqpd/topology/{vhost}", Role.MANAGEMENT, get_topology),
)
