"""The end of messages: expiry, limits, dead letters. Also priorities, and queues that expire."""

from __future__ import annotations

from typing import Any

from interop.compare.steps import Conversation, Step, bind, consume, exchange, get, publish, queue, say, talk, wait

KEPT = ("classic", "quorum")


def dead(**more: Any) -> list[Step]:
    """The dead-letter queue, bound to its own exchange."""
    return [queue("dead"), exchange("dlx", "topic"), bind("dead", "dlx", "#")]


def dying(kind: str, **args: Any) -> Step:
    table = {"x-queue-type": kind, "x-dead-letter-exchange": "dlx"}
    return queue("q", args={**table, **{name.replace("_", "-"): value for name, value in args.items()}})


def both(name: str, *steps: Any, of: tuple[str, ...] = KEPT, **args: Any) -> list[Conversation]:
    return [talk(f"dead letters/{kind} {name}", dead(), dying(kind, **args), *steps) for kind in of]


def limited(kind: str, overflow: str | None, limit: str, count: int) -> Conversation:
    args: dict[str, Any] = {"x-queue-type": kind, limit: count, "x-dead-letter-exchange": "dlx"}
    if overflow is not None:
        args["x-overflow"] = overflow
    return talk(
        f"limits/{kind} {limit} {count} {overflow}",
        dead(),
        queue("q", args=args),
        say("confirm.select"),
        *[publish("q", f"body{place}", quiet_ms=60) for place in range(4)],
        get("q", 4),
        get("dead", 4),
    )


CONVERSATIONS = [
    *both(
        "rejected",
        publish("q", delivery_mode=2),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("dead", 2),
    ),
    *both(
        "of several nacks",
        publish("q", count=3),
        get("q", 3, no_ack=False),
        say("basic.nack", delivery_tag=3, multiple=True, quiet_ms=100),
        get("dead", 4),
    ),
    *both("expired by the queue", publish("q", quiet_ms=400), get("q"), get("dead", 2), x_message_ttl=100),
    *both("expired by itself", publish("q", expiration="100", quiet_ms=400), get("q"), get("dead", 2)),
    *both("expired at once", publish("q", expiration="0", quiet_ms=150), get("q"), get("dead", 2)),
    *both("the shorter time", publish("q", expiration="100", quiet_ms=400), get("dead", 2), x_message_ttl=60000),
    *both(
        "expiry from the head only",
        publish("q", "stays"),
        publish("q", "behind it", expiration="50", quiet_ms=200),
        queue("q", passive=True),
        get("dead"),
        get("q", 1),
        wait(150),
        get("q"),
        get("dead", 2),
        of=("classic",),
    ),
    *both(
        "other key",
        publish("q"),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("dead", 2),
        x_dead_letter_routing_key="other.key",
    ),
    *both(
        "with CC",
        publish("q", headers={"CC": ["c1", "c2"], "BCC": ["b"], "own": 1}),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("dead", 2),
        of=("classic",),
    ),
    *both(
        "with CC and another key",
        publish("q", headers={"CC": ["c1", "c2"], "BCC": ["b"]}),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("dead", 2),
        of=("classic",),
        x_dead_letter_routing_key="other",
    ),
    *both(
        "of dead letters",
        queue("r", args={"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "from.r"}),
        say("queue.unbind", queue="dead", exchange="dlx", routing_key="#"),
        bind("r", "dlx", "q"),
        bind("dead", "dlx", "from.r"),
        publish("q"),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("r", no_ack=False),
        say("basic.reject", delivery_tag=2, quiet_ms=100),
        get("dead", 2),
    ),
    *both(
        "in a circle by rejection",
        bind("q", "dlx", "q"),
        publish("q"),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=2, quiet_ms=100),
        get("q", 2),
        get("dead", 3),
    ),
    *both(
        "in a circle by expiry",
        bind("q", "dlx", "q"),
        publish("q", quiet_ms=400),
        get("q"),
        get("dead", 3),
        x_message_ttl=100,
        of=("classic",),
    ),
    *both(
        "own x-death",
        publish("q", headers={"x-death": "no array", "own": 1}),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("dead", 2),
        of=("classic",),
    ),
    *both(
        "exchange gone",
        say("exchange.delete", exchange="dlx"),
        publish("q"),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=100),
        get("dead"),
        exchange("dlx", "fanout"),
        bind("dead", "dlx"),
        publish("q", "later"),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=2, quiet_ms=100),
        get("dead", 2),
    ),
    *both(
        "what a deletion leaves",
        publish("q"),
        say("queue.purge", queue="q"),
        publish("q"),
        say("queue.delete", queue="q", quiet_ms=100),
        get("dead"),
    ),
    *both(
        "delivery limit",
        publish("q"),
        consume("q"),
        *[say("basic.nack", delivery_tag=tag, requeue=True, quiet_ms=150) for tag in (1, 2, 3)],
        get("dead", 2),
        of=("quorum",),
        x_delivery_limit=1,
    ),
    *both(
        "at least once",
        publish("q"),
        get("q", no_ack=False),
        say("basic.reject", delivery_tag=1, quiet_ms=300),
        get("dead", 2),
        of=("quorum",),
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
    ),
    *[
        limited(kind, overflow, limit, count)
        for kind in KEPT
        for overflow in (None, "drop-head", "reject-publish", *(["reject-publish-dlx"] if kind == "classic" else []))
        for limit, count in (("x-max-length", 2), ("x-max-length", 0), ("x-max-length-bytes", 12))
        if not (kind == "quorum" and overflow == "reject-publish")  # it refuses some messages later than its limit says
    ],
    talk(
        "limits/drop-head counts what is ready",
        queue("q", args={"x-max-length": 2}),
        publish("q", count=2),
        get("q", 2, no_ack=False),
        publish("q", "more", count=2),
        say("basic.nack", delivery_tag=2, multiple=True, requeue=True, quiet_ms=50),
        get("q", 3),
    ),
    talk(
        "limits/one larger than the queue",
        queue("q", args={"x-max-length-bytes": 3}),
        say("confirm.select"),
        publish("q", "abc"),
        publish("q", "abcd"),
        get("q", 2),
    ),
    talk(
        "limits/fanout to a full queue",
        queue("full", args={"x-max-length": 0, "x-overflow": "reject-publish"}),
        queue("free"),
        bind("full", "amq.fanout"),
        bind("free", "amq.fanout"),
        say("confirm.select"),
        publish("k", exchange="amq.fanout"),
        get("free", 2),
    ),
    talk(
        "priorities/order",
        queue("q", args={"x-max-priority": 3}),
        *[publish("q", f"{place}", priority=level) for place, level in enumerate((0, 1, 3, 2, 9, 1, 255))],
        publish("q", "none"),
        get("q", 9),
    ),
    talk(
        "priorities/requeue",
        queue("q", args={"x-max-priority": 2}),
        publish("q", "low", priority=0),
        publish("q", "high", priority=2),
        get("q", 2, no_ack=False),
        say("basic.nack", delivery_tag=2, multiple=True, requeue=True, quiet_ms=50),
        publish("q", "middle", priority=1),
        get("q", 4),
    ),
    talk(
        "priorities/full",
        queue("q", args={"x-max-priority": 2, "x-max-length": 2}),
        publish("q", "high", priority=2),
        publish("q", "low", priority=0),
        publish("q", "middle", priority=1),
        get("q", 3),
    ),
    talk(
        "ends/expires",
        queue("q", args={"x-expires": 200}),
        wait(600),
        queue("q", passive=True),
        queue("r", args={"x-expires": 400}),
        consume("r", "c"),
        wait(700),
        queue("r", passive=True),
    ),
    talk(
        "ends/zero time",
        queue("q", args={"x-message-ttl": 0}),
        publish("q", quiet_ms=50),
        get("q"),
        consume("q", no_ack=True),
        publish("q", "at once"),
    ),
    talk(
        "ends/requeued keep their time",
        queue("q", args={"x-message-ttl": 300}),
        publish("q"),
        get("q", no_ack=False),
        wait(150),
        say("basic.nack", delivery_tag=1, requeue=True, quiet_ms=300),
        get("q"),
    ),
]
