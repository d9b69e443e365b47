"""Policies and operator policies: refusals, precedence, effect on existing objects; parameters."""

from __future__ import annotations

from typing import Any

from interop.compare.steps import Conversation, Http, Step, bind, exchange, get, http, publish, queue, say, talk, wait

SHOWN = ("policy", "operator_policy", "effective_policy_definition")


def policy(name: str, definition: Any, *, pattern: str = "^q", operator: bool = False, **more: Any) -> Http:
    kind = "operator-policies" if operator else "policies"
    return http("PUT", f"/api/{kind}/{{v}}/{name}", {"pattern": pattern, "definition": definition, **more})


def clear(name: str, operator: bool = False) -> Http:
    return http("DELETE", f"/api/{'operator-policies' if operator else 'policies'}/{{v}}/{name}")


def shown(name: str, kind: str = "queues") -> list[Step]:
    """RabbitMQ updates this every five seconds."""
    return [http("GET", f"/api/{kind}/{{v}}/{name}", show=SHOWN, late_ms=6000)]


VALUES: dict[str, tuple[Any, ...]] = {
    "message-ttl": (1, 0, -1, "1", 2**40, None),
    "expires": (1000, 0, -1, "1"),
    "max-length": (1, 0, -1, "1", 1.5),
    "max-length-bytes": (1, 0, -1, "1"),
    "overflow": ("drop-head", "reject-publish", "reject-publish-dlx", "nosuch", 1),
    "dead-letter-exchange": ("x", "", 1),
    "dead-letter-routing-key": ("k", "", 1),
    "delivery-limit": (1, 0, -1, "1"),
    "alternate-exchange": ("x", "", 1),
    "queue-mode": ("lazy", "default", "nosuch"),
    "queue-version": (1, 2, 3, "1"),
    "max-age": ("1h", "soon", 1),
    "stream-max-segment-size-bytes": (1000000, 0, "1"),
    "max-in-memory-length": (1, -1),
    "max-in-memory-bytes": (1, -1),
    "dead-letter-strategy": ("at-least-once", "at-most-once", "nosuch"),
    "queue-leader-locator": ("client-local", "balanced", "nosuch"),
    "queue-master-locator": ("min-masters", "nosuch"),
    "consumer-timeout": (1000,),
    "max-priority": (5,),
    "single-active-consumer": (True,),
    "unheard-of": (1,),
}


def values(key: str, operator: bool) -> Conversation:
    steps = [policy(f"p{place}", {key: value}, operator=operator) for place, value in enumerate(VALUES[key])]
    which = "operator policy" if operator else "policy"
    return talk(f"policies/{which} {key} values", *steps)


def merged(
    name: str, key: str, argument: Any, ours: Any, operators: Any, *probe: Step, kind: str = "classic"
) -> Conversation:
    """One number set in three ways; the probe shows which one applies, while each is removed in turn."""
    args: dict[str, Any] = {"x-queue-type": kind, f"x-{key}": argument}
    return talk(
        f"policies/{kind} merged {name}",
        queue("q", args=args),
        policy("p", {key: ours}),
        policy("o", {key: operators}, operator=True),
        *probe,
        clear("o", operator=True),
        *probe,
        clear("p"),
        *probe,
    )


FOUR: list[Step] = [publish("q", count=4, quiet_ms=150), *get("q", 4)]

CONVERSATIONS = [
    talk(
        "policies/shown",
        queue("q", args={"x-max-length": 5}),
        policy("p", {"max-length": 2, "message-ttl": 60000}),
        policy("o", {"max-length": 3, "expires": 60000}, operator=True),
        *shown("q"),
        clear("p"),
        *shown("q"),
    ),
    *[values(key, operator) for key in VALUES for operator in (False, True)],
    merged("lowest is the argument", "max-length", 1, 2, 3, *FOUR),
    merged("lowest is the policy", "max-length", 3, 1, 2, *FOUR),
    merged("lowest is the operator's", "max-length", 3, 2, 1, *FOUR),
    merged("lowest is the argument", "max-length", 1, 2, 3, *FOUR, kind="quorum"),
    merged("lowest is the operator's", "max-length", 3, 2, 1, *FOUR, kind="quorum"),
    talk(
        "policies/dead letters: the argument wins",
        queue("dead"),
        queue("other"),
        exchange("dlx", "fanout"),
        exchange("mine", "fanout"),
        bind("other", "mine"),
        bind("dead", "dlx"),
        policy("p", {"dead-letter-exchange": "dlx", "dead-letter-routing-key": "by.policy"}),
        queue("q1"),
        queue("q2", args={"x-dead-letter-exchange": "mine"}),
        *[publish(name, expiration="0", quiet_ms=100) for name in ("q1", "q2")],
        get("dead", 2) + get("other", 2),
        clear("p"),
        publish("q1", expiration="0", quiet_ms=100),
        get("dead"),
    ),
    talk(
        "policies/message-ttl of what is there and what comes",
        queue("q"),
        publish("q", "before"),
        policy("p", {"message-ttl": 100}),
        wait(400),
        queue("q", passive=True),
        publish("q", "after", quiet_ms=400),
        queue("q", passive=True),
        clear("p"),
        publish("q", "kept", quiet_ms=300),
        queue("q", passive=True),
    ),
    talk(
        "policies/max-length of what is there",
        queue("q"),
        publish("q", count=5),
        policy("p", {"max-length": 2}),
        wait(200),
        publish("q", "one more", quiet_ms=100),
        queue("q", passive=True),
        policy("p", {"max-length": 100}),
        publish("q", "and more", quiet_ms=100),
        queue("q", passive=True),
    ),
    talk(
        "policies/overflow",
        queue("q"),
        say("confirm.select"),
        policy("p", {"max-length": 1, "overflow": "reject-publish"}),
        wait(100),
        publish("q", "first", quiet_ms=50),
        publish("q", "second", quiet_ms=50),
        policy("p", {"max-length": 1, "overflow": "drop-head"}),
        wait(100),
        publish("q", "third", quiet_ms=50),
        get("q", 2),
    ),
    talk("policies/expires", queue("q"), policy("p", {"expires": 200}), wait(600), queue("q", passive=True)),
    talk(
        "policies/alternate-exchange",
        exchange("alt", "fanout"),
        queue("unrouted"),
        bind("unrouted", "alt"),
        exchange("qx"),
        publish("k", exchange="qx", mandatory=True),
        policy("p", {"alternate-exchange": "alt"}, **{"apply-to": "exchanges"}),
        wait(100),
        publish("k", exchange="qx", mandatory=True),
        get("unrouted", 2),
        *shown("qx", "exchanges"),
        clear("p"),
        wait(100),
        publish("k", exchange="qx", mandatory=True),
    ),
    talk(
        "policies/priority and pattern",
        queue("q1"),
        queue("q2"),
        policy("low", {"max-length": 10}, pattern=".*", priority=1),
        policy("high", {"max-length-bytes": 10}, pattern="1$", priority=5),
        *shown("q1"),
        *shown("q2"),
        clear("high"),
        *shown("q1"),
        http("GET", "/api/policies/{v}", show=("name", "pattern", "definition", "priority", "apply-to", "vhost")),
        http("GET", "/api/policies/{v}/low", show=("name", "pattern", "definition", "priority", "apply-to", "vhost")),
        http("GET", "/api/policies/{v}/nosuch"),
        clear("nosuch"),
    ),
    talk(
        "policies/apply-to",
        queue("q"),
        exchange("qx"),
        policy("p", {"max-length": 10}, **{"apply-to": "exchanges"}),
        policy("p", {"max-length": 10}, **{"apply-to": "queues"}),
        policy("x", {"alternate-exchange": "a"}, priority=1, **{"apply-to": "exchanges"}),
        policy("y", {"alternate-exchange": "a"}, priority=2, **{"apply-to": "queues"}),
        policy("z", {"alternate-exchange": "a", "max-length": 3}, priority=3, **{"apply-to": "all"}),
        policy("w", {"max-length": 3}, **{"apply-to": "nosuch"}),
        *shown("q"),
        *shown("qx", "exchanges"),
    ),
    talk(
        "policies/refused",
        policy("p", {"max-length": 1}, pattern="["),
        policy("p", {}),
        policy("p", {"max-length": 1, "nosuch": 1}),
        policy("p", {"max-length": 1}, priority="1"),
        policy("p", [1]),
        policy("p", "text"),
        http("PUT", "/api/policies/{v}/p", {"definition": {"max-length": 1}}),
        http("PUT", "/api/policies/{v}/p", {"pattern": ".*"}),
        http("PUT", "/api/policies/{v}/p", {"pattern": 1, "definition": {"max-length": 1}}),
        http("PUT", "/api/policies/{v}/p", {"pattern": ".*", "definition": {"max-length": 1}, "more": 1}),
        http("PUT", "/api/policies/nosuch-{v}/p", {"pattern": ".*", "definition": {"max-length": 1}}),
        http("PUT", "/api/operator-policies/{v}/p", {"pattern": ".*", "definition": {"dead-letter-exchange": "x"}}),
        clear("nosuch", operator=True),
    ),
    talk(
        "policies/declared again under one",
        policy("p", {"max-length": 2}),
        queue("q"),
        queue("q"),
        queue("q", args={"x-max-length": 2}),
    ),
    talk(
        "parameters/global",
        http("PUT", "/api/global-parameters/cmp", {"value": {"a": [1, "two"]}}),
        http("GET", "/api/global-parameters/cmp", show=("name", "value")),
        http("PUT", "/api/global-parameters/cmp", {"value": 3}),
        http("GET", "/api/global-parameters/cmp", show=("name", "value")),
        http("PUT", "/api/global-parameters/cmp", {}),
        http("DELETE", "/api/global-parameters/cmp"),
        http("GET", "/api/global-parameters/cmp"),
        http("DELETE", "/api/global-parameters/cmp"),
    ),
    talk(
        "parameters/of a vhost",
        http("PUT", "/api/parameters/nosuch/{v}/p", {"value": 1}),
        http("GET", "/api/parameters/nosuch/{v}/p"),
        http("GET", "/api/parameters/nosuch/{v}", show=("name",)),
        http("DELETE", "/api/parameters/nosuch/{v}/p"),
        http("PUT", "/api/parameters/vhost-limits/{v}/limits", {"value": {"max-queues": 1}}),
        http("GET", "/api/parameters/vhost-limits/{v}", show=("name", "value", "component", "vhost")),
        queue("a"),
        queue("b"),
        http("DELETE", "/api/parameters/vhost-limits/{v}/limits"),
        queue("b"),
        http("PUT", "/api/parameters/vhost-limits/{v}/limits", {"value": {"nosuch": 1}}),
        http("PUT", "/api/parameters/vhost-limits/nosuch-{v}/limits", {"value": {"max-queues": 1}}),
    ),
    talk(
        "parameters/vhost metadata",
        http("PUT", "/api/vhosts/{v}", {"description": "of orders", "tags": "a,b"}),
        http("GET", "/api/vhosts/{v}", show=("description", "tags", "tracing", "name")),
        http("PUT", "/api/vhosts/{v}", {"description": "of others", "tags": ["c"], "tracing": False}),
        http("GET", "/api/vhosts/{v}", show=("description", "tags", "tracing", "name")),
    ),
]
