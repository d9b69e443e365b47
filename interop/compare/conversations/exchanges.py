"""Exchanges: declarations, their equivalence, bindings between them, alternates, routing by each type."""

from __future__ import annotations

from typing import Any

from interop.compare.party import wire
from interop.compare.steps import Conversation, bind, exchange, get, http, publish, queue, say, talk, wait

TYPES = ("direct", "fanout", "topic", "headers")


def again(type: str) -> Conversation:
    other = "fanout" if type == "direct" else "direct"
    return talk(
        f"exchanges/{type} again",
        exchange("x", type),
        exchange("x", type),
        exchange("x", other),
        exchange("x", type, durable=False),
        exchange("x", type, auto_delete=True),
        exchange("x", type, internal=True),
        exchange("x", type, args={"alternate-exchange": "amq.fanout"}),
        exchange("x", type, args={"x-unheard-of": 1}),
        exchange("x", "", passive=True),
        exchange("x", "nosuch", passive=True),
        say("exchange.delete", exchange="x", if_unused=True),
        exchange("x", "", passive=True),
    )


def topic(pattern: str) -> Conversation:
    keys = ["", "a", "a.b", "a.b.c", "a.", ".a", "a..b", "b", ".", "*", "#", "a.#", "a b"]
    return talk(
        f"routing/topic {pattern!r}",
        queue("q"),
        bind("q", "amq.topic", pattern),
        *[publish(key, key, exchange="amq.topic", mandatory=True) for key in keys],
        get("q", len(keys) + 1),
    )


ALIKE = [wire.Field(letter, 1) for letter in "IlbBsuiL"]
TYPED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    # The bound value; values that are different or equal for both brokers; values that differ only in type.
    "int": (
        1,
        [*ALIKE, True, "1", wire.Field("D", (0, 1)), 2, 1.5],
        [1.0, wire.Field("f", 1.0), wire.Field("T", 1)],
    ),
    "double": (1.0, [1.0, wire.Field("f", 1.0), True, "1", 1.5, 2], [1, wire.Field("T", 1)]),
    "bool": (True, [True, False, 1, 1.0, "true", wire.Field("T", 1)], []),
    "decimal": (wire.Field("D", (0, 1)), [wire.Field("D", (0, 1)), wire.Field("D", (1, 10)), 1, 1.0, "1"], []),
    "timestamp": (wire.Field("T", 1), [wire.Field("T", 1), wire.Field("T", 2), True, "1"], [1, 1.0]),
    "longstr": ("1", ["1", "2", "", 1, None, ["1"]], [wire.Field("x", "1")]),
    "bytes": (wire.Field("x", "1"), [wire.Field("x", "1"), wire.Field("x", "2"), 1], ["1"]),
    "table": ({"n": 1}, [{"n": 1}, {"n": 2}, {}, {"n": 1, "m": 1}, [1]], []),
    "array": ([1, "a"], [[1, "a"], [1], ["a", 1], [], {}], []),
    "empty array": ([], [[], [1]], [{}]),
}


def typed_headers(name: str) -> list[Conversation]:
    """One bound value against values of other types: an unmatched message is returned."""
    value, told_apart, loosely = TYPED[name]
    first = [
        queue("q"),
        say("queue.bind", queue="q", exchange="amq.headers", arguments={"a": value}),
        say("confirm.select"),
    ]
    return [
        talk(
            f"routing/headers {words} {name}",
            *first,
            *[publish("", exchange="amq.headers", headers={"a": each}, mandatory=True) for each in sent],
        )
        for words, sent in (("types", told_apart), ("loosely", loosely))
        if sent
    ]


def headers(name: str, arguments: dict[str, Any]) -> Conversation:
    messages: list[dict[str, Any]] = [
        {}, {"a": 1}, {"a": "1"}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1}, {"x-a": 1}, {"a": None}, {"a": True},
        {"a": 1.5}, {"a": [1]}, {"a": {"n": 1}},
    ]  # fmt: skip
    return talk(
        f"routing/headers {name}",
        queue("q"),
        say("queue.bind", queue="q", exchange="amq.headers", arguments=arguments),
        *[publish("", f"{place}", exchange="amq.headers", headers=each) for place, each in enumerate(messages)],
        publish("", "none", exchange="amq.headers"),
        get("q", len(messages) + 2),
    )


CONVERSATIONS = [
    *[again(kind) for kind in TYPES],
    talk(
        "exchanges/types unheard of",
        exchange("x", "no such type"),
        exchange("x", ""),
        exchange("x", "DIRECT"),
    ),
    talk(
        "exchanges/reserved",
        exchange("amq.mine"),
        exchange("amq.direct", "direct"),
        exchange("amq.direct", "fanout"),
        exchange("amq.nosuch", passive=True),
        exchange("", "direct"),
        exchange("", "direct", passive=True),
        say("exchange.delete", exchange=""),
        say("exchange.delete", exchange="amq.fanout"),
        say("exchange.bind", destination="amq.direct", source=""),
        say("exchange.bind", destination="", source="amq.direct"),
        say("exchange.unbind", destination="", source="amq.direct"),
        queue("q"),
        say("queue.bind", queue="q", exchange=""),
        say("queue.unbind", queue="q", exchange="", routing_key="q"),
    ),
    talk(
        "exchanges/in use",
        queue("q"),
        exchange("x"),
        bind("q", "x"),
        say("exchange.delete", exchange="x", if_unused=True),
        say("exchange.delete", exchange="x"),
        exchange("y"),
        exchange("z", "fanout"),
        say("exchange.bind", destination="z", source="y", routing_key="k"),
        say("exchange.delete", exchange="y", if_unused=True),
        say("exchange.delete", exchange="z", if_unused=True),
        exchange("y", "", passive=True),
    ),
    talk(
        "exchanges/auto-delete by its last binding",
        queue("q"),
        exchange("x", auto_delete=True),
        bind("q", "x", "k"),
        bind("q", "x", "l"),
        say("queue.unbind", queue="q", exchange="x", routing_key="k"),
        exchange("x", "", passive=True),
        say("queue.unbind", queue="q", exchange="x", routing_key="l"),
        exchange("x", "", passive=True),
    ),
    talk(
        "exchanges/auto-delete by its last queue",
        queue("q"),
        exchange("x", auto_delete=True),
        exchange("y", "fanout", auto_delete=True),
        say("exchange.bind", destination="x", source="y"),
        bind("q", "x", "k"),
        say("queue.delete", queue="q"),
        wait(50),
        exchange("x", "", passive=True),
        exchange("y", "", passive=True),
    ),
    talk(
        "exchanges/internal",
        queue("q"),
        exchange("i", "fanout", internal=True),
        exchange("o", "fanout"),
        say("exchange.bind", destination="i", source="o"),
        bind("q", "i"),
        publish("k", exchange="i"),
        publish("k", "through", exchange="o"),
        get("q", 2),
    ),
    talk(
        "exchanges/alternate",
        queue("q"),
        exchange("alt", "fanout"),
        bind("q", "alt"),
        exchange("x", args={"alternate-exchange": "alt"}),
        exchange("x", args={"alternate-exchange": "other"}),
        exchange("x"),
        exchange("x", args={"alternate-exchange": "alt"}),
        publish("nobody", "to the alternate", exchange="x", mandatory=True),
        get("q", 2),
        say("exchange.delete", exchange="alt"),
        publish("nobody", "to nobody", exchange="x", mandatory=True),
    ),
    talk(
        "exchanges/alternate values",
        exchange("a", args={"alternate-exchange": 1}),
        exchange("b", args={"alternate-exchange": ""}),
        exchange("c", args={"alternate-exchange": None}),
        exchange("d", args={"alternate-exchange": True}),
        exchange("e", args={"alternate-exchange": "nosuch"}),
        publish("k", exchange="e", mandatory=True),
    ),
    talk(
        "exchanges/alternates in a circle",
        exchange("a", args={"alternate-exchange": "b"}),
        exchange("b", args={"alternate-exchange": "a"}),
        say("confirm.select"),
        publish("nobody", exchange="a", mandatory=True),
    ),
    talk(
        "exchanges/bindings in a circle",
        queue("q"),
        exchange("a", "fanout"),
        exchange("b", "fanout"),
        say("exchange.bind", destination="a", source="b"),
        say("exchange.bind", destination="b", source="a"),
        bind("q", "a"),
        bind("q", "b"),
        publish("k", "once", exchange="a"),
        get("q", 2),
    ),
    talk(
        "exchanges/bindings twice",
        queue("q"),
        bind("q", "amq.direct", "k"),
        bind("q", "amq.direct", "k"),
        say("queue.bind", queue="q", exchange="amq.direct", routing_key="k", arguments={"a": 1}),
        publish("k", "once", exchange="amq.direct"),
        get("q", 2),
        say("queue.unbind", queue="q", exchange="amq.direct", routing_key="k"),
        publish("k", "still", exchange="amq.direct", mandatory=True),
        get("q", 2),
        say("queue.unbind", queue="q", exchange="amq.direct", routing_key="k", arguments={"a": 1}),
        publish("k", "gone", exchange="amq.direct", mandatory=True),
    ),
    talk(
        "exchanges/bindings by their arguments",
        queue("q"),
        [
            say("queue.bind", queue="q", exchange="amq.direct", routing_key="k", arguments=each)
            for each in ({"n": 5}, {"n": 5.0}, {"n": True}, {"n": "5"}, {"a": 1, "b": 2}, {"b": 2, "a": 1})
        ],
        http("GET", "/api/bindings/{v}/e/amq.direct/q/q", show=("arguments",)),
        [
            say("queue.unbind", queue="q", exchange="amq.direct", routing_key="k", arguments=each)
            for each in ({"n": 5.0}, {"n": "5"}, {"b": 2, "a": 1})
        ],
        http("GET", "/api/bindings/{v}/e/amq.direct/q/q", show=("arguments",)),
    ),
    talk(
        "exchanges/bindings of HTTP",
        queue("q"),
        bind("q", "amq.direct", "k"),
        say("queue.bind", queue="q", exchange="amq.topic", routing_key="a.#", arguments={"n": 1}),
        http(
            "GET",
            "/api/queues/{v}/q/bindings",
            show=("source", "destination", "destination_type", "routing_key", "arguments"),
        ),
        http("GET", "/api/bindings/{v}/e/amq.direct/q/q", show=("routing_key", "properties_key", "vhost")),
        http("POST", "/api/bindings/{v}/e/amq.fanout/q/q", {"routing_key": "h", "arguments": {}}),
        http("POST", "/api/bindings/{v}/e/nosuch/q/q", {"routing_key": "h", "arguments": {}}),
        publish("any", exchange="amq.fanout"),
        get("q", 2),
    ),
    *[
        topic(pattern)
        for pattern in ("", "a", "a.*", "a.#", "#", "*", "*.b", "#.b", "a.*.b", "#.#", "*.#", "a.#.c", "a..b")
    ],
    headers("default", {"a": 1}),
    headers("all", {"x-match": "all", "a": 1, "b": 1}),
    headers("any", {"x-match": "any", "a": 1, "b": 1}),
    headers("all, nothing asked", {"x-match": "all"}),
    headers("any, nothing asked", {"x-match": "any"}),
    headers("present", {"a": None}),
    headers("all-with-x", {"x-match": "all-with-x", "x-a": 1}),
    headers("any-with-x", {"x-match": "any-with-x", "x-a": 1, "a": "1"}),
    headers("all x", {"x-match": "all", "x-a": 1}),
    headers("any x", {"x-match": "any", "x-a": 1}),
    *[conversation for name in TYPED for conversation in typed_headers(name)],
    headers("array", {"a": [1]}),
    headers("table", {"a": {"n": 1}}),
    talk(
        "routing/headers refused",
        queue("q"),
        *[
            say("queue.bind", queue="q", exchange="amq.headers", arguments={"x-match": value})
            for value in ("foo", 1, True, None, "", "ALL", ["all"])
        ],
    ),
    talk(
        "routing/CC and BCC",
        *[queue(name) for name in ("q", "cc", "bcc")],
        publish("q", headers={"CC": ["cc"], "BCC": ["bcc"]}),
        get("q", 2) + get("cc", 2) + get("bcc", 2),
        publish("q", headers={"CC": ["q", "nosuch"], "BCC": ["q"]}, mandatory=True),
        get("q", 2),
        publish("nosuch", headers={"CC": ["alsonot"]}, mandatory=True),
        publish("nosuch", headers={"CC": ["cc"]}, mandatory=True),
        get("cc", 2),
        publish("q", headers={"CC": []}),
        publish("q", headers={"CC": "cc"}),
        publish("q", headers={"CC": 1}),
        publish("q", headers={"BCC": "bcc"}),
        publish("q", headers={"BCC": {"a": 1}}),
        publish("q", headers={"CC": None}),
        publish("q", headers={"CC": [1]}),
        get("q", 4),
    ),
]
