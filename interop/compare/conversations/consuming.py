"""basic.consume and what follows it: arguments, tags, exclusive and single active consumers, acks, qos, recover."""

from __future__ import annotations

from typing import Any

from interop.compare.party import wire
from interop.compare.steps import Conversation, Leave, consume, get, publish, queue, say, talk, wait

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "x-priority": (1, -1, 0, 2**40, wire.Field("s", 3), "1", 1.5, True, None, [1], {"a": 1}),
    "x-stream-offset": ("first", "last", "next", 0, 5, -1, "1h", "soon", 1.5, True, None, wire.Field("T", 1), [1]),
    "x-cancel-on-ha-failover": (True, False, "yes", 1),
    "x-unheard-of": (1, "a"),
}


def values(kind: str, argument: str) -> Conversation:
    steps = [queue("q", args={"x-queue-type": kind})]
    for place, value in enumerate(ARGUMENTS[argument]):
        steps += [say("basic.qos", prefetch_count=10), consume("q", f"c{place}", args={argument: value})]
    if kind != "stream":  # all consumers of a stream get the messages, in any order
        steps.append(publish("q", quiet_ms=100))
    return talk(f"consume/{kind} {argument} values", *steps)


def kinds(name: str, *steps: Any, of: tuple[str, ...] = ("classic", "quorum")) -> list[Conversation]:
    """The same steps with a classic and a quorum queue `q`."""
    return [talk(f"consume/{kind} {name}", queue("q", args={"x-queue-type": kind}), *steps) for kind in of]


def ack(tag: int, *, multiple: bool = False, method: str = "basic.ack", **more: Any) -> Any:
    given = {} if method == "basic.reject" else {"multiple": multiple}
    return say(method, delivery_tag=tag, **given, **more)


CONVERSATIONS = [
    *[values(kind, argument) for kind in ("classic", "quorum", "stream") for argument in ARGUMENTS],
    *kinds(
        "tags",
        consume("q", ""),
        consume("q", "t"),
        consume("q", "t"),
        consume("q", "t"),
        say("basic.cancel", consumer_tag="t"),
        say("basic.cancel", consumer_tag="nosuch"),
        consume("q", "amq.ctag-mine"),
        of=("classic",),
    ),
    *kinds(
        "exclusive",
        consume("q", "c", exclusive=True),
        consume("q", "d", on="b"),
        consume("q", "d", on="b", exclusive=True),
        say("basic.cancel", consumer_tag="c"),
        consume("q", "d", on="b"),
        consume("q", "c", exclusive=True),
        of=("classic",),
    ),
    *kinds("tag in use and no such queue", consume("q", "t"), consume("nosuch", "t"), of=("classic",)),
    *kinds("exclusive and another", consume("q", "c", exclusive=True), consume("q", "d", on="b"), of=("quorum",)),
    *kinds("another and exclusive", consume("q", "c"), consume("q", "d", on="b", exclusive=True), of=("quorum",)),
    *kinds(
        "flags",
        consume("q", "a", no_local=True),
        consume("q", "b", no_ack=True),
        publish("q", count=2),
        say("basic.cancel", consumer_tag="a"),
        publish("q", "to b"),
        say("channel.close", reply_code=200),
        publish("q"),
        say("connection.close", channel=0, reply_code=200),
    ),
    *kinds(
        "nowait",
        say("basic.qos", prefetch_count=1),
        consume("q", "c", nowait=True),
        publish("q", "first"),
        say("basic.cancel", consumer_tag="c", nowait=True),
        publish("q", "second"),
        say("queue.purge", queue="q", nowait=True),
        queue("q", passive=True),
        say("queue.delete", queue="q", nowait=True),
        queue("q", passive=True),
    ),
    *kinds(
        "deleted under its consumers",
        consume("q", "c"),
        consume("q", "d", on="b", no_ack=True),
        say("queue.delete", queue="q", on="c", quiet_ms=100),
        publish("q", mandatory=True),
        ack(1),
    ),
    *kinds(
        "acks",
        publish("q", count=6),
        consume("q", "c", quiet_ms=100),
        ack(1),
        ack(1),
        consume("q", "c", quiet_ms=100),
        ack(2, multiple=True),
        ack(0),
        consume("q", "c", quiet_ms=100),
        ack(0, multiple=True),
        ack(0, multiple=True),
        ack(99, multiple=True),
        consume("q", "c", quiet_ms=100),
    ),
    *kinds(
        "rejects",
        publish("q", count=4),
        get("q", 4, no_ack=False),
        ack(1, method="basic.reject", requeue=True),
        ack(2, method="basic.reject"),
        ack(3, method="basic.nack", requeue=True),
        ack(4, method="basic.nack", multiple=True),
        get("q", 4),
        ack(9, method="basic.nack"),
        ack(9, method="basic.reject"),
        ack(0, method="basic.nack", multiple=True),
    ),
    *kinds(
        "get and requeue keeps the order",
        publish("q", count=5),
        get("q", 5, no_ack=False),
        ack(4, method="basic.nack", requeue=True),
        ack(2, method="basic.nack", requeue=True),
        get("q", 1),
        ack(5, multiple=True, method="basic.nack", requeue=True),
        queue("q", passive=True),
        get("q", 5),
        of=("classic",),
    ),
    *kinds(
        "channel closes",
        publish("q", count=3),
        get("q", 2, no_ack=False),
        say("channel.close", reply_code=200, quiet_ms=50),
        get("q", 4),
        of=("classic",),
    ),
    *kinds(
        "connection dies",
        publish("q", count=3),
        get("q", 2, no_ack=False, on="b"),
        Leave(on="b", quiet_ms=300),
        get("q", 1),
        of=("classic",),
    ),
    *kinds(
        "recover",
        publish("q", count=3),
        get("q", 2, no_ack=False),
        say("basic.recover", requeue=True, quiet_ms=50),
        get("q", 3, no_ack=False),
        say("basic.recover-async", requeue=True, quiet_ms=100),
        get("q", 1),
        say("basic.recover", requeue=False),
        say("basic.recover-async", requeue=False),
        of=("classic",),
    ),
    *kinds(
        "prefetch",
        publish("q", count=5),
        say("basic.qos", prefetch_count=2),
        consume("q", "c", quiet_ms=100),
        ack(1, quiet_ms=100),
        say("basic.qos", prefetch_count=4),
        consume("q", "d", quiet_ms=100),
        say("basic.cancel", consumer_tag="c"),
        ack(0, multiple=True, quiet_ms=100),
        say("basic.qos", prefetch_size=1),
    ),
    *kinds(
        "prefetch of the channel",
        publish("q", count=5),
        say("basic.qos", prefetch_count=2, global_=True),
        consume("q", "c", quiet_ms=100),
        ack(1, quiet_ms=100),
        say("basic.qos", prefetch_count=3, global_=True, quiet_ms=100),
        say("basic.qos", prefetch_count=0, global_=True, quiet_ms=100),
    ),
    *kinds(
        "prefetch of the channel, set later",
        consume("q", "c"),
        say("basic.qos", prefetch_count=5, global_=True),
        publish("q", count=2, quiet_ms=100),
        consume("q", "d"),
    ),
    *kinds(
        "returned without a delivery limit",
        publish("q", count=3),
        get("q", 1, no_ack=False),
        ack(1, method="basic.nack", requeue=True, quiet_ms=100),
        get("q", 1),
    ),
    *[
        talk(
            f"consume/{kind} returned to a full queue",
            queue("q", args={"x-queue-type": kind, "x-max-length": 1, **limit}),
            say("basic.qos", prefetch_count=3),
            consume("q", "c"),
            publish("q", "first", quiet_ms=50),
            publish("q", "second", quiet_ms=50),
            publish("q", "third", quiet_ms=50),
            ack(0, method="basic.nack", multiple=True, requeue=True, quiet_ms=200),
        )
        for kind, limit in (("classic", {}), ("quorum", {"x-delivery-limit": 20}))
    ],
    talk(
        "consume/quorum single active, and get",
        queue("q", args={"x-queue-type": "quorum", "x-single-active-consumer": True}),
        get("q", 1),
    ),
    *kinds(
        "priorities",
        say("basic.qos", prefetch_count=1),
        consume("q", "low", args={"x-priority": -1}),
        consume("q", "high", args={"x-priority": 5}),
        consume("q", "none"),
        publish("q", "first", quiet_ms=50),
        publish("q", "second", quiet_ms=50),
        publish("q", "third", quiet_ms=50),
        publish("q", "fourth", quiet_ms=50),
        ack(2, quiet_ms=50),
    ),
    *[
        talk(
            f"consume/{kind} single active",
            queue("q", args={"x-queue-type": kind, "x-single-active-consumer": True}),
            consume("q", "c"),
            consume("q", "d", on="b"),
            publish("q", count=2, quiet_ms=100),
            say("basic.cancel", consumer_tag="c", quiet_ms=100),
            publish("q", "to d", quiet_ms=100),
            ack(1),
            say("basic.cancel", on="b", consumer_tag="d", quiet_ms=100),
        )
        for kind in ("classic", "quorum")
    ],
    talk(
        "consume/classic single active and exclusive",
        queue("q", args={"x-single-active-consumer": True}),
        consume("q", "e", exclusive=True),
        consume("q", "f"),
        consume("q", "e", exclusive=True),
    ),
    *kinds(
        "auto-delete",
        say("queue.declare", queue="auto", auto_delete=True),
        consume("auto", "c"),
        consume("auto", "d", on="b"),
        say("basic.cancel", consumer_tag="c"),
        queue("auto", passive=True),
        Leave(on="b", quiet_ms=300),
        queue("auto", passive=True),
        of=("classic",),
    ),
    *kinds(
        "deletes if",
        publish("q"),
        say("queue.delete", queue="q", if_empty=True),
        get("q"),
        consume("q", "c"),
        say("queue.delete", queue="q", if_unused=True),
        say("queue.delete", queue="q", if_unused=True, if_empty=True),
        of=("classic",),
    ),
    *kinds(
        "purge",
        publish("q", count=3),
        get("q", 1, no_ack=False),
        say("queue.purge", queue="q"),
        queue("q", passive=True),
    ),
    talk(
        "consume/reply-to",
        consume("amq.rabbitmq.reply-to", "c"),
        consume("amq.rabbitmq.reply-to", "c", no_ack=True),
        consume("amq.rabbitmq.reply-to", "d", no_ack=True),
        say("basic.get", queue="amq.rabbitmq.reply-to"),
        publish("q", reply_to="amq.rabbitmq.reply-to"),
        consume("amq.rabbitmq.reply-to", "c", no_ack=True),
        queue("q"),
        publish("q", reply_to="amq.rabbitmq.reply-to"),
        get("q"),
        queue("amq.rabbitmq.reply-to", passive=True),
        queue("amq.rabbitmq.reply-to.forged", passive=True),
        publish("amq.rabbitmq.reply-to.forged", "forged", mandatory=True),
        say("basic.cancel", consumer_tag="c"),
        publish("q", reply_to="amq.rabbitmq.reply-to"),
    ),
    talk(
        "consume/delivery counts of quorum",
        queue("q", args={"x-queue-type": "quorum", "x-delivery-limit": 2, "x-dead-letter-exchange": "amq.fanout"}),
        queue("dead"),
        say("queue.bind", queue="dead", exchange="amq.fanout"),
        publish("q"),
        *[
            step
            for tag in (1, 2, 3)
            for step in (*get("q", no_ack=False), say("basic.nack", delivery_tag=tag, requeue=True, quiet_ms=100))
        ],
        wait(100),
        get("q"),
        get("dead"),
    ),
]
