"""Policies against a naive twin.

Random policies are set and cleared while queues and exchanges of random names and arguments are declared and deleted.
The loop stops anywhere in between. Whenever it is idle, everything has the policies of the twin. The twin evaluates
all policies for each object and has no table, walk or cache.
"""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.broker.vhost import policies
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.declare import declare_exchange, delete_exchange

LOWEST = {"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"}
SUPPORTED = {
    "classic": LOWEST - {"delivery-limit"}
    | {"overflow", "dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange", "queue-mode"},
    "quorum": LOWEST | {"overflow", "dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange"},
}
APPLY_TO = {"classic": "classic_queues", "quorum": "quorum_queues"}
NAMES = ("a", "b", "bc", "ab")
PATTERNS = ("", "^a", "b", "c$", "^(?!a)")

numbers = st.integers(1, 5)
settable = {
    "message-ttl": st.integers(10_000, 10_005),
    "expires": st.integers(90_000, 90_005),
    "max-length": numbers,
    "max-length-bytes": numbers,
    "delivery-limit": numbers,
    "overflow": st.sampled_from(["drop-head", "reject-publish"]),
    "dead-letter-exchange": st.sampled_from(NAMES),
    "dead-letter-routing-key": st.sampled_from(NAMES),
    "alternate-exchange": st.sampled_from(NAMES),
    "queue-mode": st.just("lazy"),
}


def definitions(keys: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={key: settable[key] for key in sorted(keys)}).filter(bool)


arguments = st.fixed_dictionaries(
    {},
    optional={
        "x-max-length": numbers,
        "x-message-ttl": settable["message-ttl"],
        "x-overflow": settable["overflow"],
        "x-dead-letter-exchange": settable["dead-letter-exchange"],
    },
)
apply_to = st.sampled_from(["all"] * 2 + ["queues"] * 2 + ["classic_queues", "quorum_queues", "streams", "exchanges"])
steps = st.one_of(
    st.tuples(
        st.just("set"), st.just(False), st.sampled_from("pqr"), st.sampled_from(PATTERNS), definitions(set(settable)),
        st.integers(-1, 1), apply_to,
    ),
    st.tuples(
        st.just("set"), st.just(True), st.sampled_from("opq"), st.sampled_from(PATTERNS), definitions(LOWEST),
        st.integers(-1, 1), apply_to,
    ),
    st.tuples(st.just("clear"), st.booleans(), st.sampled_from("opqr")),
    st.tuples(st.just("queue"), st.sampled_from(NAMES), st.sampled_from(["classic", "quorum"]), arguments),
    st.tuples(st.just("exchange"), st.sampled_from(NAMES), st.none() | st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(["queue", "exchange"]), st.sampled_from(NAMES)),
    st.tuples(st.just("slice"), st.integers(1, 3)),
    st.tuples(st.just("rest")),
)  # fmt: skip


class Twin:
    """policies: (operator, name) -> (pattern, definition, priority, apply-to)."""

    def __init__(self) -> None:
        self.policies: dict[tuple[bool, str], tuple[str, dict[str, Any], int, str]] = {}

    def matching(self, operator: bool, kind: str, name: str) -> tuple[str, dict[str, Any]]:
        best: tuple[tuple[int, str], str, dict[str, Any]] | None = None
        for (is_operator, policy), (pattern, definition, priority, apply_to) in self.policies.items():
            if is_operator is not operator or re.search(pattern, name) is None:
                continue
            if kind == "exchange":
                if apply_to not in ("exchanges", "all"):
                    continue
            elif apply_to not in ("queues", "all", APPLY_TO[kind]) or not SUPPORTED[kind] >= definition.keys():
                continue
            if best is None or (-priority, policy) < best[0]:
                best = ((-priority, policy), policy, definition)
        return ("", {}) if best is None else best[1:]

    def effective(self, kind: str, name: str) -> tuple[str, str, dict[str, Any]]:
        policy, definition = self.matching(False, kind, name)
        operator, operator_definition = self.matching(True, kind, name)
        merged = {**definition, **operator_definition}
        for key in definition.keys() & operator_definition.keys():
            merged[key] = min(definition[key], operator_definition[key])
        return policy, operator, merged

    def rule(self, effective: dict[str, Any], given: dict[str, Any], key: str) -> Any:
        values = [each for each in (given.get(f"x-{key}"), effective.get(key)) if each is not None]
        if key in LOWEST:
            return min(values, default=-1)
        return values[0] if values else None


def check(room: Any, twin: Twin) -> None:
    vhost = room.vhost
    for name, queue in vhost.queues.items():
        policy, operator, definition = twin.effective(queue.kind, name)
        actual = vhost.policies.policy_of(queue)
        assert (actual.policy, actual.operator_policy, dict(actual.definition)) == (policy, operator, definition)
        rules, given = queue.rules, queue.arguments
        assert rules.ttl_ms == twin.rule(definition, given, "message-ttl")
        assert rules.expires_ms == twin.rule(definition, given, "expires")
        assert rules.length_max == twin.rule(definition, given, "max-length")
        assert rules.length_bytes_max == twin.rule(definition, given, "max-length-bytes")
        assert rules.delivery_limit == twin.rule(definition, given, "delivery-limit")
        assert rules.overflow == (twin.rule(definition, given, "overflow") or "drop-head")
        assert rules.dead_letter_exchange == twin.rule(definition, given, "dead-letter-exchange")
        assert rules.dead_letter_key == twin.rule(definition, given, "dead-letter-routing-key")
        assert rules.counts_shown is (queue.kind == "quorum")
    upstream: dict[str, dict[str, int]] = {}
    for name, exchange in vhost.exchanges.items():
        policy, operator, definition = twin.effective("exchange", name)
        actual = vhost.policies.policy_of(exchange)
        assert (actual.policy, actual.operator_policy, dict(actual.definition)) == (policy, operator, definition)
        alternate = exchange.arguments.get("alternate-exchange") or definition.get("alternate-exchange") or ""
        assert exchange.alternate == (alternate if name else "")
        if name and alternate and alternate in vhost.exchanges:
            upstream.setdefault(alternate, {})[name] = 1
    for name, exchange in vhost.exchanges.items():
        assert {each.name: count for each, count in exchange.upstream.items()} == upstream.get(name, {})
    known = {*vhost.queues.values(), *vhost.exchanges.values()}
    assert set(vhost.policies.in_force) <= known


def play(room: Any, program: list[Any]) -> None:
    twin = Twin()
    vhost = room.vhost
    # Objects for the first policies.
    for name in NAMES[:3]:
        table = {"x-queue-type": "quorum"} if name == "b" else {}
        room.declare(QueueDeclaration(name, True, False, False, table))
    done_count = 0
    submitted_count = 0

    def on_done(error: BaseException | None) -> None:
        nonlocal done_count
        assert error is None
        done_count += 1

    for step in program:
        match step:
            case ("set", operator, name, pattern, definition, priority, to):
                value = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": to}
                policies.declare(vhost, name, value, operator, on_done)
                submitted_count += 1
                twin.policies[operator, name] = (pattern, definition, priority, to)
            case ("clear", operator, name):
                policy = vhost.policies.get(name, operator)
                assert (policy is not None) is ((operator, name) in twin.policies)
                if policy is not None:
                    policies.clear(vhost, policy, on_done)
                    submitted_count += 1
                    del twin.policies[operator, name]
            case ("queue", name, kind, given):
                if name not in vhost.queues:
                    table = {**given, **({"x-queue-type": "quorum"} if kind == "quorum" else {})}
                    room.declare(QueueDeclaration(name, True, False, False, table))
            case ("exchange", name, alternate):
                if name not in vhost.exchanges:
                    table = {} if alternate is None else {"alternate-exchange": alternate}
                    declare_exchange(vhost, ExchangeDeclaration(name, "direct", True, False, False, table))
            case ("delete", "queue", name):
                if name in vhost.queues:
                    room.delete(vhost.queues[name])
            case ("delete", "exchange", name):
                if name in vhost.exchanges:
                    delete_exchange(vhost, vhost.exchanges[name], False)
            case ("slice", count):
                for _ in range(min(count, len(room._soon))):
                    room._soon.pop(0)()
            case ("rest",):
                room.turns()
                assert done_count == submitted_count
                check(room, twin)
    room.turns()
    assert done_count == submitted_count
    check(room, twin)


@given(program=st.lists(steps, max_size=30))
@settings(max_examples=examples(250), deadline=None)
def test_policies_match_naive_twin(program: list[Any], memory_room: Any) -> None:
    room = memory_room()
    try:
        play(room, program)
    finally:
        room.storage.close(clean=False)
