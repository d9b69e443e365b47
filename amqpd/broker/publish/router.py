"""Where a message goes: the walk over a vhost's exchanges.

It begins at the exchange that was published to and follows exchange-to-exchange bindings; every exchange is visited
once, whatever the cycles; an exchange that finds nothing hands over to its alternate. Matching is each exchange type's
own (`amqpd.routing`).

Nothing is kept here: a route holds as long as the version of the exchange that it began at (`Exchange.routes`), and
whoever publishes often keeps it that long.
"""

from __future__ import annotations

from collections.abc import Iterable

from amqpd.broker.consumer import Destination
from amqpd.broker.vhost.exchange import Exchange
from amqpd.broker.vhost.vhost import VHost
from amqpd.errors import PreconditionFailed
from amqpd.routing.base import HEADERS, ROUTING_KEY
from amqpd.routing.message_exchange import MessageExchangeType
from amqpd.routing.selector_ast import Selectable


def route(
    vhost: VHost,
    exchange: Exchange,
    keys: list[str],
    message: Selectable,
    passed: Exchange | None = None,
    strict: bool = False,
) -> list[Destination]:
    """Queues for a message with these routing keys (its own, then CC and BCC), each once; behind them what exchanges on
    the way keep of it (`Destination.routed`).

    message: as exchanges see it that look at more than keys. passed: the exchange that has delayed it already. strict:
    headers that tell no good delay are refused (PreconditionFailed). Cost: the exchanges visited, each once per key.
    """
    found: dict[Destination, None] = {}
    kept: list[Destination] = []
    seen = {exchange}
    stack = [exchange]
    while stack:
        at = stack.pop()
        if at.delays and at is not passed and (waits := _waits(at, keys, message, strict)) is not None:
            found[waits] = None
            continue
        empty = True
        matcher = at.matcher
        for key in keys:
            if matcher is None:
                target = by_name(vhost, key)
                if target is not None:
                    found[target] = None
                    empty = False
                continue
            reached: Iterable[object]
            if isinstance(matcher, MessageExchangeType):
                reached = matcher.route(keys, message)
            else:
                reached = matcher.match(key, message.headers() if matcher.depends_on & HEADERS else None)
            for destination in reached:
                if isinstance(destination, Exchange):
                    empty = False
                    if destination not in seen:
                        seen.add(destination)
                        stack.append(destination)
                elif isinstance(destination, Destination):
                    if destination.is_queue:
                        empty = False
                        found[destination] = None
                    else:
                        kept.append(destination)
            if isinstance(matcher, MessageExchangeType):
                break  # it has answered for all keys
        if empty and at.alternate:
            alternate = vhost.exchanges.get(at.alternate)
            if alternate is not None and alternate not in seen:
                seen.add(alternate)
                stack.append(alternate)
    targets = list(found)
    return targets + [each for each in kept if each.accepts_with(targets)] if kept else targets


def _waits(at: Exchange, keys: list[str], message: Selectable, strict: bool) -> Destination | None:
    """Where a message waits that has come to an exchange that delays; None: it goes on. Raises: PreconditionFailed."""
    return None if at.wheel is None else at.wheel.destination(keys, message.headers(), strict)


def by_name(vhost: VHost, key: str) -> Destination | None:
    """The default exchange: a queue by its name, or a direct reply-to consumer by its key."""
    queue = vhost.queues.get(key)
    if queue is None and key.startswith("amq.rabbitmq.reply-to."):
        return vhost.reply_consumers.get(key)
    return queue


def check_available(vhost: VHost, exchange: Exchange, keys: list[str], by_key: bool) -> None:
    """Refuses a publish that comes to an exchange whose type is not installed. For vhosts that have one.

    by_key: the keys alone decide where it comes to. Raises: PreconditionFailed.
    """
    seen = {exchange}
    stack = [exchange]
    while stack:
        at = stack.pop()
        if at.unavailable:
            where = f"exchange '{at.name}' in vhost '{vhost.name}'"
            raise PreconditionFailed(f"{where} is unavailable: {at.unavailable}")
        reached: list[object] = []
        if not by_key:
            reached += [binding.destination for binding in at.bindings.values()]
        elif at.matcher is not None:
            reached += [destination for key in keys for destination in at.matcher.match(key, None)]
        if at.alternate and (not by_key or not reached):
            reached.append(vhost.exchanges.get(at.alternate))
        for destination in reached:
            if isinstance(destination, Exchange) and destination not in seen:
                seen.add(destination)
                stack.append(destination)


def depends_on(vhost: VHost, exchange: Exchange) -> int:
    """What the exchanges look at that a message published here may meet (`routing/base.py`): where it is the routing
    key alone, a route may be kept by it. Cost: all bindings behind it, once per version of the exchange.
    """
    version = exchange.routes.version
    if exchange.looks_version != version:
        exchange.depends_on = _depends_on(vhost, exchange)
        exchange.looks_version = version
    return exchange.depends_on


def _depends_on(vhost: VHost, exchange: Exchange) -> int:
    seen = {exchange}
    stack = [exchange]
    looks = ROUTING_KEY
    while stack:
        at = stack.pop()
        if at.delays:
            looks |= HEADERS
        if at.matcher is not None:
            looks |= at.matcher.depends_on
        reached: list[object] = [binding.destination for binding in at.bindings.values()]
        if at.alternate:
            reached.append(vhost.exchanges.get(at.alternate))
        for destination in reached:
            if isinstance(destination, Exchange) and destination not in seen:
                seen.add(destination)
                stack.append(destination)
    return looks
