"""Watching: the firehose (amq.rabbitmq.trace) and the event exchange (amq.rabbitmq.event)."""

from __future__ import annotations

from interop.compare.steps import (
    Conversation,
    Step,
    bind,
    consume,
    exchange,
    get,
    http,
    publish,
    queue,
    say,
    talk,
    wait,
)

TRACING = http("PUT", "/api/vhosts/{v}", {"tracing": True})


def traced(name: str, *steps: Step | list[Step]) -> Conversation:
    """What the steps are copied as: the copies are got from `copies`."""
    return talk(
        f"firehose/{name}",
        queue("copies"),
        bind("copies", "amq.rabbitmq.trace", "#"),
        queue("q"),
        TRACING,
        wait(100),
        *steps,
        wait(100),
        http("PUT", "/api/vhosts/{v}", {"tracing": False}),
        wait(100),
        publish("q", "not seen"),
        get("copies", 4),
    )


CONVERSATIONS = [
    traced("publish", publish("q", "body", headers={"a": 1}, content_type="text/plain", delivery_mode=2)),
    traced("get", publish("q"), get("q")),
    traced("consume", publish("q"), consume("q", quiet_ms=100), say("basic.ack", delivery_tag=1)),
    traced(
        "redelivered",
        publish("q"),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, requeue=True, quiet_ms=100),
        get("q"),
    ),
    traced("unroutable", publish("nosuch", mandatory=True), publish("k", exchange="amq.topic")),
    traced("an exchange", exchange("x", "topic"), bind("q", "x", "a.#"), publish("a.b", exchange="x"), get("q")),
    talk(
        "firehose/as it is declared",
        exchange("amq.rabbitmq.trace", "topic"),
        exchange("amq.rabbitmq.trace", passive=True),
        exchange("amq.rabbitmq.trace", "topic", internal=True),
        publish("k", exchange="amq.rabbitmq.trace"),
        say("exchange.delete", exchange="amq.rabbitmq.trace"),
        http("GET", "/api/exchanges/{v}/amq.rabbitmq.trace", show=("type", "durable", "internal", "auto_delete")),
        http("GET", "/api/vhosts/{v}", show=("tracing",)),
        TRACING,
        http("GET", "/api/vhosts/{v}", show=("tracing",)),
    ),
]
