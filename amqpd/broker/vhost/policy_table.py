"""The policies of one vhost, and what they say together of a name.

Of the policies that match a queue or an exchange one holds, and likewise one operator policy: that of the highest
priority, of those the first by name (rabbit: any of them). A policy matches where its pattern is found in the name, it
applies to such a thing, and the queue's kind can follow all it says. `Effective` is what the two say together: where
both name a key, the key's row tells which value holds. What an argument says comes on top of it
(`queues/arguments.merged`).

Pure values: no disk, no loop. What is in the table is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from amqpd.broker.vhost.patterns import NamePattern, compile_names
from amqpd.broker.vhost.policy_keys import keys, unsupported
from amqpd.broker.queue.argument_checks import merged_number
from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.config import Rules
from amqpd.storage.metadata.store import PolicyRow

EXCHANGE: Final = "exchange"
"""The kind of thing that an exchange is; queues are of their kind: classic, quorum, stream."""


class Policy(NamedTuple):
    """One that has been checked."""

    row: PolicyRow
    pattern: NamePattern
    definition: Mapping[str, object]

    @property
    def value(self) -> dict[str, object]:
        """As a parameter of component `policy` or `operator_policy`."""
        row = self.row
        return {
            "pattern": row.pattern,
            "definition": dict(self.definition),
            "priority": row.priority,
            "apply-to": row.apply_to,
        }

    def matches(self, kind: str, name: str) -> bool:
        """kind: EXCHANGE or a queue's. Cost: 1 us where it applies to such a thing at all."""
        applies_to = self.row.apply_to
        if kind == EXCHANGE:
            return applies_to in ("exchanges", "all") and self.pattern.matches(name)
        if applies_to not in ("queues", "all") and applies_to != _WORDS.get(kind):
            return False
        return self.pattern.matches(name) and _unsupported(kind).isdisjoint(self.definition)


_WORDS: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}


@lru_cache(maxsize=8)
def _unsupported(kind: str) -> frozenset[str]:
    return unsupported(kind)


def policy_of(row: PolicyRow) -> Policy:
    """Raises: InvalidPattern, ValueError for what no version of ours wrote."""
    definition: Any = json.loads(row.definition)
    if not isinstance(definition, dict):
        raise ValueError(f"{row.definition!r} is no object")
    return Policy(row, compile_names(row.pattern), definition)


class Effective:
    """What the policies say of a thing. policy, operator_policy: their names; "" for none."""

    __slots__ = ("_plain_rules", "definition", "operator_policy", "policy")

    def __init__(self, policy: Policy | None, operator: Policy | None) -> None:
        self.policy = "" if policy is None else policy.row.name
        self.operator_policy = "" if operator is None else operator.row.name
        if policy is None or operator is None:
            one = policy or operator
            self.definition = {} if one is None else one.definition
        else:
            self.definition = merged(policy.definition, operator.definition)
        self._plain_rules: dict[str, Rules] = {}

    def rules(self, kind: str, arguments: Mapping[str, object]) -> Rules:
        """Of a queue of this kind with these arguments. Queues without arguments share them."""
        if arguments:
            return rules_of(arguments, self.definition)
        rules = self._plain_rules.get(kind)
        if rules is None:
            rules = self._plain_rules[kind] = rules_of(arguments, self.definition)
        return rules

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Effective)
            and (self.policy, self.operator_policy) == (other.policy, other.operator_policy)
            and self.definition == other.definition
        )

    __hash__ = None  # type: ignore[assignment]  # it has no use as a key


NONE: Final = Effective(None, None)


def merged(policy: Mapping[str, object], operator: Mapping[str, object]) -> dict[str, object]:
    """By the keys' rules: of most numbers the lowest, else what the operator says."""
    both = dict(sorted({**policy, **operator}.items()))
    known = keys()
    for name in policy.keys() & operator.keys():
        one, other = policy[name], operator[name]
        merge = known[name].merge
        if merge != "argument" and isinstance(one, int) and isinstance(other, int):
            both[name] = merged_number(merge, one, other)
    return both


class PolicyTable:
    """Of one vhost."""

    def __init__(self) -> None:
        self._policies: dict[bool, dict[str, Policy]] = {False: {}, True: {}}
        # By priority, the highest first.
        self._ranked: dict[bool, list[Policy]] = {False: [], True: []}
        # One for each pair that has been found to hold together.
        self._effective: dict[tuple[str, str], Effective] = {}
        # What each queue and exchange obeys, where that is anything.
        self.in_force: dict[object, Effective] = {}

    def __bool__(self) -> bool:
        return bool(self._policies[False] or self._policies[True])

    def get(self, name: str, operator: bool = False) -> Policy | None:
        return self._policies[operator].get(name)

    def all(self, operator: bool = False) -> list[Policy]:
        """rabbit: the lowest priority first; then by name."""
        return sorted(self._policies[operator].values(), key=lambda each: (each.row.priority, each.row.name))

    def put(self, policy: Policy) -> None:
        self._policies[policy.row.operator][policy.row.name] = policy
        self._rank(policy.row.operator)

    def remove(self, name: str, operator: bool) -> None:
        """It may have gone already."""
        self._policies[operator].pop(name, None)
        self._rank(operator)

    def _rank(self, operator: bool) -> None:
        ranked = sorted(self._policies[operator].values(), key=lambda each: (-each.row.priority, each.row.name))
        self._ranked[operator] = ranked
        self._effective.clear()

    def effective(self, kind: str, name: str) -> Effective:
        """What holds for a thing of this kind and name. Cost: 1 us a policy that applies to such things."""
        policy = next(self._matching(False, kind, name), None)
        operator = next(self._matching(True, kind, name), None)
        if policy is None and operator is None:
            return NONE
        pair = ("" if policy is None else policy.row.name, "" if operator is None else operator.row.name)
        found = self._effective.get(pair)
        if found is None:
            found = self._effective[pair] = Effective(policy, operator)
        return found

    def _matching(self, operator: bool, kind: str, name: str) -> Iterator[Policy]:
        return (each for each in self._ranked[operator] if each.matches(kind, name))

    def obeyed_by(self, thing: object) -> Effective:
        """What a queue or an exchange obeys now."""
        return self.in_force.get(thing, NONE)
