"""Router: finds the destinations of a message among the exchanges of a vhost.

The walk begins at the exchange of the publish and follows exchange-to-exchange bindings. It visits each exchange once,
so cycles end. If an exchange finds no destination, its alternate exchange continues. Each exchange type matches by its
own rules (`amqpd.routing`).

The router caches nothing. A result is valid while the first exchange keeps its version (`Exchange.routes`).
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
    """Return the destinations of a message: queues, each once, then exchange state (`Destination.is_queue` is False).

    Args:
        keys: the routing key of the message, then CC and BCC.
        message: for exchange types that depend on more than keys.
        passed: an exchange that has delayed this message already.
        strict: refuse an invalid delay.

    Raises:
        PreconditionFailed: 406, an invalid delay.

    Cost: the visited exchanges, times the number of keys.
    """
    found: dict[Destination, None] = {}
    states: list[Destination] = []
    seen = {exchange}
    stack = [exchange]
    while stack:
        at = stack.pop()
        if at.delays and at is not passed and (delayed := _delay_destination(at, keys, message, strict)) is not None:
            found[delayed] = None
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
                        states.append(destination)
            if isinstance(matcher, MessageExchangeType):
                break  # this exchange type handles all keys in one call
        if empty and at.alternate:
            alternate = vhost.exchanges.get(at.alternate)
            if alternate is not None and alternate not in seen:
                seen.add(alternate)
                stack.append(alternate)
    targets = list(found)
    return targets + [each for each in states if each.accepts_with(targets)] if states else targets


def _delay_destination(at: Exchange, keys: list[str], message: Selectable, strict: bool) -> Destination | None:
    """Return the destination that delays a message, or None without a delay. Raises: PreconditionFailed."""
    return None if at.wheel is None else at.wheel.destination(keys, message.headers(), strict)


def by_name(vhost: VHost, key: str) -> Destination | None:
    """Return the destination of a key of the default exchange: a queue or a direct reply-to consumer."""
    queue = vhost.queues.get(key)
    if queue is None and key.startswith("amq.rabbitmq.reply-to."):
        return vhost.reply_consumers.get(key)
    return queue


def check_available(vhost: VHost, exchange: Exchange, keys: list[str], by_key: bool) -> None:
    """Refuse a publish that can reach an exchange whose type is not installed.

    Args:
        by_key: the keys alone decide the route. Otherwise every binding counts.

    Raises:
        PreconditionFailed: 406.
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
    """Return the parts of a message that decide its route from this exchange, as in routing/base.py.

    If the result is ROUTING_KEY, routes may be cached by routing key. Cost: all bindings behind the exchange, once per
    version of it.
    """
    version = exchange.routes.version
    if exchange.looks_version != version:
        exchange.depends_on = _depends_on(vhost, exchange)
        exchange.looks_version = version
    return exchange.depends_on


def _depends_on(vhost: VHost, exchange: Exchange) -> int:
    seen = {exchange}
    stack = [exchange]
    parts = ROUTING_KEY
    while stack:
        at = stack.pop()
        if at.delays:
            parts |= HEADERS
        if at.matcher is not None:
            parts |= at.matcher.depends_on
        reached: list[object] = [binding.destination for binding in at.bindings.values()]
        if at.alternate:
            reached.append(vhost.exchanges.get(at.alternate))
        for destination in reached:
            if isinstance(destination, Exchange) and destination not in seen:
                seen.add(destination)
                stack.append(destination)
    return parts
