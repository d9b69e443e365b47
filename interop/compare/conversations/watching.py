"""The firehose (amq.rabbitmq.trace) and the event exchange (amq.rabbitmq.event)."""

from __future__ import annotations

from interop.compare.steps import (
    Connect,
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
    """The traced copies of the steps, read from the queue `copies`."""
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


def told(name: str, *steps: Step | list[Step], patterns: tuple[str, ...], count: int) -> Conversation:
    """The events of the conversation's vhost that the steps cause and whose keys match, read in `/`."""
    mine = {"x-match": "all", "vhost": "{v}"}
    return talk(
        f"events/{name}",
        Connect(on="e", vhost="/"),
        say("queue.declare", on="e", queue="ev-{v}", exclusive=True),
        exchange("ex-{v}", "headers", on="e", durable=False, auto_delete=True),
        say("queue.bind", on="e", queue="ev-{v}", exchange="ex-{v}", arguments=mine),
        *[
            say("exchange.bind", on="e", destination="ex-{v}", source="amq.rabbitmq.event", routing_key=pattern)
            for pattern in patterns
        ],
        *steps,
        wait(200),
        get("ev-{v}", count + 1, on="e"),
    )


CONVERSATIONS = [
    told(
        "queues",
        queue("q", args={"x-max-length": 5}),
        queue("q", args={"x-max-length": 5}),
        say("queue.delete", queue="q"),
        say("queue.declare", queue="t", auto_delete=True),
        patterns=("queue.*",),
        count=3,
    ),
    told(
        "exchanges",
        exchange("x", "topic", args={"alternate-exchange": "a"}),
        say("exchange.delete", exchange="x"),
        patterns=("exchange.*",),
        count=2,
    ),
    told(
        "bindings",
        queue("q"),
        exchange("x"),
        say("queue.bind", queue="q", exchange="amq.direct", routing_key="k", arguments={"n": 1}),
        say("queue.unbind", queue="q", exchange="amq.direct", routing_key="k", arguments={"n": 1}),
        say("exchange.bind", destination="x", source="amq.topic", routing_key="a.#"),
        patterns=("binding.*",),
        count=4,
    ),
    told(
        "consumers",
        queue("q"),
        say("basic.qos", prefetch_count=3),
        consume("q", args={"x-priority": 2}),
        say("basic.cancel", consumer_tag="c"),
        patterns=("consumer.*",),
        count=2,
    ),
    told(
        "policies",
        http("PUT", "/api/policies/{v}/p", {"pattern": "^q", "definition": {"max-length": 2}, "priority": 3}),
        http("DELETE", "/api/policies/{v}/p"),
        patterns=("policy.*",),
        count=2,
    ),
    told(
        "limits",
        http("PUT", "/api/vhost-limits/{v}/max-queues", {"value": 5}),
        patterns=("vhost.limits.*", "parameter.*"),
        count=1,
    ),
    told(
        "permissions",
        http("PUT", "/api/permissions/{v}/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        patterns=("permission.*",),
        count=1,
    ),
    talk(
        "events/as it is declared",
        Connect(on="e", vhost="/"),
        say("exchange.declare", exchange="amq.rabbitmq.event", passive=True, on="e"),
        publish("k", exchange="amq.rabbitmq.event", on="e"),
        http("GET", "/api/exchanges/%2F/amq.rabbitmq.event", show=("type", "durable", "internal", "auto_delete")),
    ),
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
