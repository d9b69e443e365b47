"""Stream queues: start offsets, refusals, acks as credit, retention, two readers."""

from __future__ import annotations

from typing import Any

from interop.compare.party import wire
from interop.compare.steps import Conversation, Leave, Step, consume, get, http, publish, queue, say, talk, wait


def stream(**args: Any) -> Step:
    return queue(
        "s", args={"x-queue-type": "stream", **{name.replace("_", "-"): value for name, value in args.items()}}
    )


def read(tag: str, offset: Any = None, *, on: str = "a", quiet_ms: int = 200, **more: Any) -> Step:
    args = {} if offset is None else {"x-stream-offset": offset}
    return say("basic.consume", queue="s", consumer_tag=tag, arguments=args, on=on, quiet_ms=quiet_ms, **more)


def begins(name: str, offset: Any) -> Conversation:
    return talk(
        f"streams/begins at {name}",
        stream(),
        say("confirm.select"),
        *[publish("s", f"{number}") for number in range(5)],
        say("basic.qos", prefetch_count=100),
        read("c", offset),
        publish("s", "later", quiet_ms=200),
        say("basic.ack", delivery_tag=1, multiple=True),
        say("basic.cancel", consumer_tag="c"),
    )


CONVERSATIONS = [
    talk("streams/single active", stream(x_single_active_consumer=True)),
    begins("its default", None),
    begins("first", "first"),
    begins("next", "next"),
    begins("bytes", wire.Field("x", b"first")),
    begins("0", 0),
    begins("3", 3),
    begins("one that comes next", 5),
    begins("one that is far ahead", 500),
    begins("long", wire.Field("l", 2)),
    begins("a time long ago", wire.Field("T", 1)),
    begins("a time to come", wire.Field("T", 4000000000)),
    begins("an interval", "1h"),
    begins("an interval of days", "7D"),
    talk(
        "streams/refused",
        stream(),
        read("c", "first"),
        say("basic.qos", prefetch_count=10),
        say("basic.get", queue="s"),
        say("basic.qos", prefetch_count=10),
        read("c", "first", no_ack=True),
        say("basic.qos", prefetch_count=10, global_=True),
        read("c", "first"),
        say("basic.qos", prefetch_count=10),
        read("c", "first", exclusive=True),
        say("queue.purge", queue="s"),
        say("queue.declare", queue="s", passive=True, durable=True),
    ),
    talk(
        "streams/acks are credit",
        stream(),
        say("confirm.select"),
        *[publish("s", f"{number}") for number in range(5)],
        say("basic.qos", prefetch_count=2),
        read("c", "first"),
        say("basic.ack", delivery_tag=1, quiet_ms=200),
        say("basic.ack", delivery_tag=3, multiple=True, quiet_ms=200),
        say("basic.ack", delivery_tag=3, quiet_ms=200),
    ),
    talk(
        "streams/rejects take nothing",
        stream(),
        say("confirm.select"),
        *[publish("s", f"{number}") for number in range(3)],
        say("basic.qos", prefetch_count=2),
        read("c", "first"),
        say("basic.reject", delivery_tag=1, quiet_ms=200),
        say("basic.nack", delivery_tag=2, requeue=True, quiet_ms=200),
        say("channel.close", reply_code=200),
        say("basic.qos", prefetch_count=10),
        read("c", "first"),
    ),
    talk(
        "streams/two readers",
        stream(),
        say("confirm.select"),
        *[publish("s", f"{number}") for number in range(3)],
        say("basic.qos", prefetch_count=10),
        read("c", "first"),
        say("basic.qos", prefetch_count=10, on="b"),
        read("d", 1, on="b"),
        Leave(on="b", quiet_ms=100),
        say("basic.qos", prefetch_count=10, on="b"),
        read("d", 2, on="b"),
        publish("s", "to both", quiet_ms=200),
    ),
    talk(
        "streams/deleted under its reader",
        stream(),
        say("basic.qos", prefetch_count=10),
        read("c", "first"),
        say("queue.delete", queue="s", on="b", quiet_ms=300),
        publish("s", mandatory=True),
    ),
    talk(
        "streams/properties",
        stream(),
        say("confirm.select"),
        publish(
            "s",
            "body",
            headers={"a": 1},
            delivery_mode=2,
            correlation_id="c",
            message_id="m",
            expiration="1",
            priority=3,
        ),
        publish("s", "plain"),
        publish("s", ""),
        wait(100),
        say("basic.qos", prefetch_count=10),
        read("c", "first"),
    ),
    talk(
        "streams/fanned out",
        stream(),
        queue("q"),
        say("queue.bind", queue="s", exchange="amq.fanout"),
        say("queue.bind", queue="q", exchange="amq.fanout"),
        say("confirm.select"),
        publish("k", exchange="amq.fanout"),
        get("q", 2),
        say("basic.qos", prefetch_count=10),
        read("c", "first"),
    ),
    talk(
        "streams/transactions",
        stream(),
        say("tx.select"),
        publish("s", "committed"),
        say("tx.commit", quiet_ms=200),
        say("basic.qos", prefetch_count=10),
        read("c", "first"),
    ),
    talk(
        "streams/HTTP",
        http("PUT", "/api/queues/{v}/s", {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "1h"}}),
        http("PUT", "/api/queues/{v}/t", {"durable": False, "arguments": {"x-queue-type": "stream"}}),
        http("GET", "/api/queues/{v}/s", show=("name", "type", "durable", "exclusive", "auto_delete", "arguments")),
        http(
            "POST",
            "/api/queues/{v}/s/get",
            {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"},
            show=("payload",),
        ),
        http("DELETE", "/api/queues/{v}/s/contents"),
    ),
    talk(
        "streams/policies",
        stream(),
        http("PUT", "/api/policies/{v}/p", {"pattern": "^s$", "definition": {"max-age": "1h"}, "apply-to": "queues"}),
        http("GET", "/api/queues/{v}/s", show=("policy", "effective_policy_definition"), late_ms=6000),
    ),
    talk(
        "streams/deleted if empty",
        stream(),
        publish("s", quiet_ms=100),
        say("queue.delete", queue="s", if_empty=True),
    ),
    talk(
        "streams/deleted if unused",
        stream(),
        say("basic.qos", prefetch_count=1),
        read("c", "first"),
        say("queue.delete", queue="s", if_unused=True),
    ),
    talk(
        "streams/consumer tags",
        stream(),
        say("basic.qos", prefetch_count=1),
        read("c", "first"),
        read("c", "first"),
        consume("s", "d"),
    ),
]
