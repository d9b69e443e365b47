"""basic.publish: properties, checks, returns, confirms, transactions, and methods in wrong order."""

from __future__ import annotations

from typing import Any

from interop.compare.party import wire
from interop.compare.steps import Conversation, bind, consume, exchange, get, http, publish, queue, say, talk


def property_values(name: str, *values: Any, **queue_args: Any) -> Conversation:
    steps: list[Any] = [queue("q", args=queue_args or {})]
    for place, value in enumerate(values):
        steps += [publish("q", f"{place}", **{name: value}), *get("q")]
    return talk(f"publish/{name} values", *steps)


def both(name: str, *steps: Any) -> list[Conversation]:
    """The same steps with a transient queue and with each kind of durable queue."""
    made = {
        "transient": queue("q", durable=False),
        "classic": queue("q"),
        "quorum": queue("q", args={"x-queue-type": "quorum"}),
    }
    return [talk(f"publish/{kind} {name}", declare, *steps) for kind, declare in made.items()]


EVERY_TYPE = {
    "b": wire.Field("b", -1), "B": wire.Field("B", 255), "s": wire.Field("s", -2), "u": wire.Field("u", 65535), "I": -3,
    "i": wire.Field("i", 4), "l": 2**40, "L": wire.Field("L", -(2**40)), "f": wire.Field("f", 0.5), "d": 2.5, "t": True,
    "S": "text", "x": wire.Field("x", b"\x00\xff"), "A": [1, "two", [3]], "F": {"in": {"deep": None}}, "V": None,
    "T": wire.Field("T", 1700000000), "D": wire.Field("D", (2, 314)),
}  # fmt: skip

CONVERSATIONS = [
    property_values(
        "expiration", "1000000", "0", "", "abc", "-1", "1.5", " 1", "1 ", "99999999999", "0000700000", "+500000", "0x1"
    ),
    property_values("user_id", "guest", "other", "", "GUEST"),
    property_values("priority", 0, 9, 10, 255),
    property_values("delivery_mode", 0, 1, 2, 3),
    property_values("timestamp", 0, 1700000000),
    property_values("headers", {}, EVERY_TYPE, {"": 1}, {"a" * 128: 1}),
    property_values("type", "", "t"),
    property_values("cluster_id", "c"),
    talk(
        "publish/all properties",
        queue("q"),
        publish(
            "q",
            "body",
            content_type="text/plain",
            content_encoding="gzip",
            headers={"a": 1},
            delivery_mode=2,
            priority=3,
            correlation_id="c",
            reply_to="r",
            expiration="60000",
            message_id="m",
            timestamp=1,
            type="t",
            user_id="guest",
            app_id="a",
        ),
        get("q"),
    ),
    talk("publish/empty and large", queue("q"), publish("q", ""), publish("q", "x" * 200000), get("q", 2)),
    *both(
        "confirms",
        say("confirm.select"),
        publish("q", count=3, delivery_mode=2),
        publish("q", "transient", delivery_mode=1),
        publish("nosuch", "nowhere"),
        publish("nosuch", "back", mandatory=True),
        say("confirm.select"),
        publish("q", "again", mandatory=True),
        say("queue.delete", queue="q"),
        publish("q", "gone"),
    ),
    talk(
        "publish/returns",
        publish("nosuch", "back", mandatory=True, headers={"a": 1}, correlation_id="c"),
        publish("nosuch", "back", exchange="amq.fanout", mandatory=True),
        publish("nosuch", "", exchange="amq.direct", mandatory=True),
        publish("nosuch", "lost"),
    ),
    talk(
        "publish/refused",
        publish("k", exchange="nosuch"),
        publish("k", immediate=True),
        publish("k", exchange="nosuch", mandatory=True),
        say("confirm.select"),
        publish("k"),
        publish("k", exchange="nosuch"),
        say("channel.open"),
    ),
    talk(
        "publish/internal",
        exchange("i", internal=True),
        publish("k", exchange="i"),
        publish("k", exchange="i", mandatory=True),
        say("confirm.select"),
        publish("k", exchange="i"),
    ),
    talk("publish/default exchange", queue("q"), publish("q"), publish("", mandatory=True), get("q", 2)),
    *both(
        "transactions",
        say("tx.select"),
        publish("q", "rolled back"),
        say("tx.rollback"),
        publish("q", "committed", count=2),
        get("q"),
        say("tx.commit"),
        get("q", 2, no_ack=False),
        say("basic.ack", delivery_tag=1),
        say("tx.rollback"),
        say("basic.ack", delivery_tag=1, multiple=True),
        say("basic.nack", delivery_tag=2, requeue=True),
        say("tx.commit", quiet_ms=100),
        get("q", 2),
        publish("nosuch", "returned with the commit", mandatory=True),
        say("tx.commit"),
        say("tx.select"),
        say("confirm.select"),
    ),
    talk(
        "publish/transactions refused",
        say("tx.commit"),
        say("tx.rollback"),
        say("confirm.select"),
        say("tx.select"),
        say("tx.select"),
        publish("k", exchange="nosuch"),
        say("tx.commit"),
        say("tx.select"),
        say("basic.ack", delivery_tag=1),
        say("tx.select"),
        say("basic.ack", delivery_tag=1),
        say("tx.commit"),
    ),
    talk(
        "publish/transaction and a queue that comes later",
        queue("q"),
        say("tx.select"),
        publish("q", "before", mandatory=True),
        publish("new", "before", mandatory=True),
        publish("k", "before", exchange="amq.fanout", mandatory=True),
        say("queue.delete", queue="q"),
        queue("q"),
        queue("new"),
        bind("new", "amq.fanout"),
        say("tx.commit"),
        get("q", 2),
        get("new", 2),
    ),
    talk(
        "publish/transaction and queues of CC and BCC that come later",
        queue("q"),
        say("tx.select"),
        publish("q", "first", headers={"CC": ["cc"], "BCC": ["bcc", "nosuch"]}),
        publish("nosuch", "second", headers={"CC": ["cc"]}, mandatory=True),
        queue("cc"),
        queue("bcc"),
        say("tx.commit"),
        get("q", 2) + get("cc", 3) + get("bcc", 2),
    ),
    talk("publish/two faults", publish("q", delivery_mode=9, expiration="soon")),
    talk(
        "methods/flow and others",
        say("channel.flow", active=True),
        say("channel.flow", active=False),
        say("access.request", realm="/data"),
        say("basic.qos", prefetch_count=65535),
        say("channel.open", channel=1),
        say("connection.update-secret", channel=0, new_secret=b"guest", reason="r"),
        say("channel.close", channel=7, reply_code=200),
        say("tx.commit-ok"),
        say("connection.open-ok", channel=0),
        say("connection.open", channel=0, virtual_host="/"),
        say("queue.declare", channel=0, queue="q"),
    ),
    talk(
        "publish/HTTP",
        queue("q"),
        http(
            "POST",
            "/api/exchanges/{v}/amq.default/publish",
            {
                "properties": {"headers": {"a": 1}, "delivery_mode": 2},
                "routing_key": "q",
                "payload": "p",
                "payload_encoding": "string",
            },
            show=("routed",),
        ),
        http(
            "POST",
            "/api/exchanges/{v}/amq.default/publish",
            {"properties": {}, "routing_key": "nosuch", "payload": "p", "payload_encoding": "string"},
            show=("routed",),
        ),
        http(
            "POST",
            "/api/queues/{v}/q/get",
            {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"},
            show=(
                "payload",
                "redelivered",
                "exchange",
                "routing_key",
                "message_count",
                "properties",
                "payload_encoding",
            ),
        ),
        get("q", 2),
        consume("q"),
    ),
]
