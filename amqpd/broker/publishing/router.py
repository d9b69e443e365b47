"""Where a message goes: the walk over a vhost's exchanges.

It begins at the exchange that was published to and follows exchange-to-exchange bindings; every exchange is visited
once, whatever the cycles; an exchange that finds nothing hands over to its alternate. Matching is each exchange type's
own (`amqpd.routing`).

Nothing is kept here: a route holds as long as the version of the exchange that it began at (`Exchange.routes`), and
whoever publishes often keeps it that long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amqpd.broker.catalogue.exchange import Exchange
from amqpd.broker.catalogue.vhost import VHost
from amqpd.broker.destination import Destination
from amqpd.errors import PreconditionFailed


def route(
    vhost: VHost, exchange: Exchange, keys: list[str], headers: Callable[[], Mapping[str, object]]
) -> list[Destination]:
    """Queues for a message with these routing keys (its own, then CC and BCC), each once.

    headers: called when an exchange looks at them. Cost: the exchanges visited, each once per key.
    """
    found: dict[Destination, None] = {}
    seen = {exchange}
    stack = [exchange]
    while stack:
        at = stack.pop()
        empty = True
        for key in keys:
            if at.matcher is None:
                target = by_name(vhost, key)
                if target is not None:
                    found[target] = None
                    empty = False
                continue
            table = headers() if at.matcher.needs_headers else None
            for destination in at.matcher.match(key, table):
                empty = False
                if isinstance(destination, Exchange):
                    if destination not in seen:
                        seen.add(destination)
                        stack.append(destination)
                elif isinstance(destination, Destination):
                    found[destination] = None
        if empty and at.alternate:
            alternate = vhost.exchanges.get(at.alternate)
            if alternate is not None and alternate not in seen:
                seen.add(alternate)
                stack.append(alternate)
    return list(found)


def by_name(vhost: VHost, key: str) -> Destination | None:
    """The default exchange: a queue by its name, or a direct reply-to consumer by its key."""
    queue = vhost.queues.get(key)
    if queue is None and key.startswith("amq.rabbitmq.reply-to."):
        return vhost.reply_consumers.get(key)
    return queue


def check_available(vhost: VHost, exchange: Exchange, keys: list[str], headers_wanted: bool) -> None:
    """Refuses a publish that comes to an exchange whose type is not installed. For vhosts that have one.

    headers_wanted: whatever its keys, as the message's headers have a say. Raises: PreconditionFailed.
    """
    seen = {exchange}
    stack = [exchange]
    while stack:
        at = stack.pop()
        if at.unavailable:
            where = f"exchange '{at.name}' in vhost '{vhost.name}'"
            raise PreconditionFailed(f"{where} is unavailable: {at.unavailable}")
        reached: list[object] = []
        if headers_wanted:
            reached += [binding.destination for binding in at.bindings.values()]
        elif at.matcher is not None:
            reached += [destination for key in keys for destination in at.matcher.match(key, None)]
        if at.alternate and (headers_wanted or not reached):
            reached.append(vhost.exchanges.get(at.alternate))
        for destination in reached:
            if isinstance(destination, Exchange) and destination not in seen:
                seen.add(destination)
                stack.append(destination)


def needs_headers(vhost: VHost, exchange: Exchange) -> bool:
    """Whether a message published here may meet an exchange that looks at headers. Cost: all bindings behind it, once
    per version of the exchange.
    """
    version = exchange.routes.version
    if exchange.headers_version != version:
        exchange.headers_wanted = _meets_headers(vhost, exchange)
        exchange.headers_version = version
    return exchange.headers_wanted


def _meets_headers(vhost: VHost, exchange: Exchange) -> bool:
    seen = {exchange}
    stack = [exchange]
    while stack:
        at = stack.pop()
        if at.needs_headers:
            return True
        reached: list[object] = [binding.destination for binding in at.bindings.values()]
        if at.alternate:
            reached.append(vhost.exchanges.get(at.alternate))
        for destination in reached:
            if isinstance(destination, Exchange) and destination not in seen:
                seen.add(destination)
                stack.append(destination)
    return False
