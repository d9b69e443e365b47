"""Helpers for tests of delayed messages: exchanges that delay, a clock that jumps, restarts with declarations."""

from __future__ import annotations

from typing import Any

from amqpd.broker.delayed.timing_wheel import TimingWheel
from amqpd.broker.vhost import declare as bindings
from amqpd.broker.vhost import declare as exchanges
from amqpd.broker.vhost.declaration import ExchangeDeclaration

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


def declare(room: Any, name: str = "later", kind: str = "x-delayed-message", **arguments: Any) -> TimingWheel:
    """Declare a delaying exchange and a queue of the same name, bind them, and return the timing wheel."""
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    if kind == "x-delayed-message":
        table.setdefault("x-delayed-type", "fanout")
    done: list[object] = []
    exchanges.declare_exchange(room.vhost, ExchangeDeclaration(name, kind, True, False, False, table), done.append)
    assert done == [None]
    if name not in room.vhost.queues:
        room.queue(name)
    bindings.bind(room.vhost, room.vhost.exchanges[name], room.vhost.queues[name], "", {})
    wheel = room.vhost.exchanges[name].wheel
    assert isinstance(wheel, TimingWheel)
    return wheel


def jump(room: Any, ms: int) -> None:
    """Advance both clocks in one step, then fire the timers that are due."""
    room.clock.now_ms += ms - 1
    room.advance(1)


def publish_delayed(room: Any, ms: int, body: bytes = b"", exchange: str = "later", **more: Any) -> bool:
    headers = {"x-delay": ms, **more.pop("headers", {})}
    return bool(room.publish(more.pop("key", ""), body, exchange=exchange, headers=headers, **more))


def restart(room: Any, down_ms: int = 0, clean: bool = False, turns: bool = True) -> None:
    """Kill the broker or stop it cleanly, start it, and declare the exchanges and bindings again.

    If `turns` is false, the broker does not yet run the loop turns that release due messages.
    """
    known = [
        (exchange.name, exchange.kind, exchange.arguments)
        for exchange in room.vhost.exchanges.values()
        if not exchange.name.startswith("amq.") and exchange.name
    ]
    bound = [(each.source.name, each.destination.name, each.routing_key) for each in room.vhost.all_bindings()]
    if clean:
        room.turns()
        room.delays.stop()
        room.storage.close(clean=True)
    room.restart(down_ms=down_ms)
    for name, kind, arguments in known:
        exchanges.declare_exchange(room.vhost, ExchangeDeclaration(name, kind, True, False, False, dict(arguments)))
    for source, destination, key in bound:
        to = room.vhost.queues.get(destination) or room.vhost.exchanges[destination]
        bindings.bind(room.vhost, room.vhost.exchanges[source], to, key, {})
    room.delays.begin()
    if turns:
        room.turns()
