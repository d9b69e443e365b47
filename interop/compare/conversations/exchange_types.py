"""The exchange types of RabbitMQ's plugins: their arguments, and routing with only one possible destination."""

from __future__ import annotations

from typing import Any

from interop.compare.party import wire
from interop.compare.steps import Conversation, bind, exchange, get, publish, queue, say, talk, wait

HASH = "x-consistent-hash"
HISTORY = "x-recent-history"
CHOOSING = {HASH: "1", "x-modulus-hash": "", "x-random": ""}


def choosing(kind: str) -> Conversation:
    """With one queue there is only one destination, for any hash and any random choice."""
    key = CHOOSING[kind]
    return talk(
        f"exchange types/{kind}",
        queue("q"),
        exchange("x", kind),
        exchange("x", kind),
        exchange("x", "direct"),
        exchange("x", kind, auto_delete=True),
        exchange("x", kind, args={"x-unheard-of": 1}),
        publish("k", "to nobody", exchange="x", mandatory=True),
        bind("q", "x", key),
        *[publish(f"k{n}", f"{n}", exchange="x", mandatory=True) for n in range(4)],
        publish("k", "copies", exchange="x", headers={"CC": ["l", "m"], "BCC": ["n"]}, mandatory=True),
        get("q", 6),
        say("queue.unbind", queue="q", exchange="x", routing_key=key),
        publish("k", "to nobody", exchange="x", mandatory=True),
        exchange("behind", "fanout"),
        bind("q", "behind"),
        say("exchange.bind", destination="behind", source="x", routing_key=key),
        publish("k", "through", exchange="x", mandatory=True),
        get("q", 2),
        exchange("y", kind, args={"alternate-exchange": "behind"}),
        say("confirm.select"),
        publish("k", "to the alternate", exchange="y", mandatory=True),
        get("q", 2),
        say("exchange.delete", exchange="x", if_unused=True),
        say("exchange.delete", exchange="y", if_unused=True),
    )


def weight(key: str) -> Conversation:
    return talk(f"exchange types/weight {key!r}", queue("q"), exchange("x", HASH), bind("q", "x", key))


def arguments(name: str, kind: str, values: dict[str, Any]) -> Conversation:
    return talk(f"exchange types/{kind} {name}", exchange("x", kind, args=values))


LENGTHS: dict[str, Any] = {
    "0": 0,
    "-1": -1,
    "1": 1,
    "byte": wire.Field("b", 3),
    "short": wire.Field("s", 3),
    "long": wire.Field("l", 3),
    "text": "3",
    "bool": True,
    "double": 2.5,
    "void": None,
}

CONVERSATIONS = [
    *[choosing(kind) for kind in CHOOSING],
    *[weight(key) for key in ("", "x", "0", "-1", "+2", "007", "1.5", "1 ", 'a"b\\c', "10")],
    arguments("both", HASH, {"hash-header": "h", "hash-property": "message_id"}),
    *[
        arguments(f"hash-property {name}", HASH, {"hash-property": name})
        for name in ("message_id", "correlation_id", "timestamp", "app_id", "", "message-id")
    ],
    arguments("hash-header", HASH, {"hash-header": "h"}),
    arguments("hash-header of no text", HASH, {"hash-header": 1}),
    arguments("hash-property of no text", HASH, {"hash-property": 1}),
    talk(
        "exchange types/another hash",
        exchange("x", HASH, args={"hash-header": "h"}),
        exchange("x", HASH, args={"hash-header": "h"}),
        exchange("x", HASH, args={"hash-header": "i"}),
        exchange("x", HASH),
    ),
    *[
        talk(
            f"exchange types/hashed by {name}",
            queue("q"),
            exchange("x", HASH, args=args),
            bind("q", "x", "3"),
            publish("k", "with", exchange="x", headers={"h": 1}, message_id="m", mandatory=True),
            publish("k", "without", exchange="x", mandatory=True),
            get("q", 3),
        )
        for name, args in (("header", {"hash-header": "h"}), ("property", {"hash-property": "message_id"}))
    ],
    *[arguments(f"length {name}", HISTORY, {"x-recent-history-length": value}) for name, value in LENGTHS.items()],
    talk(
        "exchange types/history",
        exchange("x", HISTORY, args={"x-recent-history-length": 3}),
        publish("k", "0", exchange="x", mandatory=True),
        *[publish(f"k{n}", f"{n}", exchange="x") for n in range(1, 5)],
        publish("k", "secret", exchange="x", headers={"x-recent-history-no-store": True}),
        publish("k", "no secret", exchange="x", headers={"x-recent-history-no-store": False}),
        queue("q"),
        bind("q", "x", "any"),
        wait(50),
        get("q", 4),
        bind("q", "x", "any"),
        wait(50),
        get("q", 1),
        bind("q", "x", "another"),
        wait(50),
        get("q", 4),
        publish("k", "new", exchange="x", mandatory=True),
        get("q", 2),
    ),
    talk(
        "exchange types/history of an exchange",
        exchange("x", HISTORY),
        publish("a", "1", exchange="x"),
        publish("b", "2", exchange="x", headers={"n": 2}),
        queue("q"),
        exchange("behind", "topic"),
        bind("q", "behind", "#"),
        say("exchange.bind", destination="behind", source="x", routing_key=""),
        wait(50),
        get("q", 3),
    ),
    talk(
        "exchange types/history lasts as long as the exchange",
        exchange("x", HISTORY),
        publish("a", "1", exchange="x"),
        say("exchange.delete", exchange="x"),
        exchange("x", HISTORY),
        queue("q"),
        bind("q", "x"),
        wait(50),
        get("q", 1),
    ),
]
