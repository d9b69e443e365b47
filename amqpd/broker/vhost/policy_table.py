r"""Policies of one vhost: keys, patterns, validation, and the table of policies in force.

**In force.** At most one policy and one operator policy apply to a queue or an exchange: the matching one with the
highest priority, of equal ones the first by name (RabbitMQ: any). A policy matches if its pattern is found in the
name, `apply-to` includes the object, and the queue type supports all its keys (RabbitMQ: the same).
`EffectivePolicy` merges the two definitions, a key in both by its row's rule. `broker/queue/arguments.py` merges the
queue's arguments.

**Keys.** Nearly every key is the `policy` of an argument's row (`broker/queue/arguments.py`, `exchange.py`). `IGNORED`
has RabbitMQ's other keys, which have no effect, such as those of mirrored queues.

**Patterns** of names: `name_pattern.py`.

**Validation** raises `InvalidPolicy` with RabbitMQ's text, which lists all errors.

The table has committed policies only. `SlicedWalk` applies a change to all objects.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from amqpd.auth.patterns import InvalidPattern, NamePattern
from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.queue.argument_checks import PolicyKey, is_one_of, is_positive, is_text, merged_number
from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.vhost import exchange
from amqpd.broker.vhost.name_pattern import NamePatternIndex, compile_names
from amqpd.storage.metadata.rows import PolicyRow


def term(value: object) -> str:
    """Format a JSON value as an Erlang term (`~p`), as in RabbitMQ's texts.

    `{"a": [1, null]}` is `#{<<"a">> => [1,null]}`.
    """
    if value == "":
        return "<<>>"
    if isinstance(value, str):
        return f"<<{json.dumps(value, ensure_ascii=False)}>>"
    if isinstance(value, Mapping):
        return "#{" + ",".join(f"{term(key)} => {term(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(term(each) for each in value) + "]"
    return json.dumps(value)


APPLY_TO: Final = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")
PRIORITY_MAX: Final = 2**31 - 1
DEFINITION_BYTES_MAX: Final = 64 * 1024

MIRRORED: Final = "there are no mirrored queues"


def _anything(_value: object) -> bool:
    return True


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _ignored(
    name: str, accepts: Callable[[object], bool], called: str, why: str = MIRRORED, *, operator: bool = False
) -> PolicyKey:
    return PolicyKey(name, accepts, called, operator, meaning=f"ignored: {why}")


IGNORED: Final = (
    _ignored("ha-mode", is_one_of("all", "exactly", "nodes"), "ha-mode value", operator=True),  # rabbit: since 3.12
    _ignored("ha-params", _anything, "ha-params value", operator=True),
    _ignored("ha-sync-mode", is_one_of("manual", "automatic"), "ha-sync-mode value", operator=True),
    _ignored("ha-sync-batch-size", is_positive, "ha-sync-batch-size value"),
    _ignored("ha-promote-on-shutdown", is_one_of("always", "when-synced"), "ha-promote-on-shutdown value"),
    _ignored("ha-promote-on-failure", is_one_of("always", "when-synced"), "ha-promote-on-failure value"),
    _ignored("filter-field-names", _is_texts, "list of filter field names", "filters read all fields"),
)

# rabbit: `unsupported_policies` of each queue type, unless the rows have them. From 3.10; keys of 4.x from 4.x.
_MIRRORING: Final = frozenset(
    ("ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure", "queue-master-locator")
)
_UNSUPPORTED: Final[dict[str, frozenset[str]]] = {
    "classic": frozenset(("target-group-size", "filter-field-names")),
    "quorum": _MIRRORING | {"queue-mode"},
    "stream": _MIRRORING | {"queue-mode", "target-group-size", "filter-field-names"},
}


class InvalidPolicy(ValueError):
    """Raised with RabbitMQ's text, one line per error."""

    def __init__(self, faults: Iterable[str]) -> None:
        super().__init__("Validation failed\n\n" + "".join(f"{fault}\n" for fault in faults))


def keys(operator: bool = False) -> dict[str, PolicyKey]:
    """Return all keys by name, or only those of operator policies."""
    rows = (*queue_arguments.ROWS.values(), *exchange.ROWS.values())
    found = (*(row.policy for row in rows if row.policy is not None), *IGNORED)
    return {key.name: key for key in found if key.operator or not operator}


@lru_cache(maxsize=8)
def unsupported(kind: str) -> frozenset[str]:
    """Return the keys that queues of this type do not support."""
    rows = [row for row in queue_arguments.ROWS.values() if row.kinds is not None and kind not in row.kinds]
    return _UNSUPPORTED.get(kind, frozenset()) | {row.policy.name for row in rows if row.policy is not None}


def unknown_keys(definition: Iterable[str], operator: bool) -> set[str]:
    return set(definition) - keys(operator).keys()


def check(name: str, value: Mapping[str, object], operator: bool) -> None:
    """Check a policy. Raises: InvalidPolicy with all errors.

    Args:
        value: `pattern`, `definition`, `priority` and `apply-to`, as decoded JSON.
    """
    faults: list[str] = []
    for field, check_field in _FIELD_CHECKS.items():  # rabbit: its text has the last error first
        if field in value:
            faults += check_field(value[field], operator)
        elif field != "apply-to":
            faults.append(f'Key "{field}" not found in {name}')
    others = {key: each for key, each in value.items() if key not in _FIELD_CHECKS}
    if others:
        faults.insert(0, f"Unrecognised terms {_pairs(others)} in {name}")
    if faults:
        raise InvalidPolicy(faults)


def _definition(value: object, operator: bool) -> list[str]:
    if value in ({}, []):
        return ["no policy provided"]
    if not isinstance(value, Mapping):
        return [f"definition must be a dictionary: {term(value)}"]
    known = keys(operator)
    for name in sorted(value):
        key = known.get(name)
        if key is not None and not key.accepts(value[name]):
            return [_not_valid(key, value[name])]
    unknown = {name: value[name] for name in sorted(value) if name not in known}
    if unknown:
        return [f"{_pairs(unknown)} are not recognised policy settings"]
    if "ha-mode" not in value and not _MIRRORING.isdisjoint(value.keys() - {"queue-master-locator"}):
        return ["ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"]
    if len(json.dumps(value)) > DEFINITION_BYTES_MAX:
        return [f"a definition has at most {DEFINITION_BYTES_MAX} bytes"]
    return []


def _not_valid(key: PolicyKey, value: object) -> str:
    # rabbit: this key has a different text
    valid = "invalid" if key.name == "queue-master-locator" else "is not a valid"
    return f"{term(value)} {valid} {key.called}"


def _apply_to(value: object, _operator: bool) -> list[str]:
    if value in APPLY_TO:
        return []
    shown = value if isinstance(value, str) else term(value)
    words = ", ".join(f"'{word}'" for word in APPLY_TO[:-1])
    return [f"apply-to '{shown}' unrecognised; should be {words}, or '{APPLY_TO[-1]}'"]


def _pattern(value: object, _operator: bool) -> list[str]:
    if not isinstance(value, str):
        return [f"pattern should be a binary but was {term(value)}"]
    try:
        compile_names(value)
    except InvalidPattern as error:
        return [f"pattern should be regular expression but is invalid: {error}"]
    return []


def _priority(value: object, _operator: bool) -> list[str]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return [f"priority should be a number, actually was {term(value)}"]
    if value != value // 1 or abs(value) > PRIORITY_MAX:  # rabbit: takes any number
        return [f"priority should be a whole number of at most {PRIORITY_MAX}, actually was {term(value)}"]
    return []


_FIELD_CHECKS: Final[dict[str, Callable[[object, bool], list[str]]]] = {
    "definition": _definition,
    "apply-to": _apply_to,
    "pattern": _pattern,
    "priority": _priority,
}


def _pairs(values: Mapping[str, object]) -> str:
    return "[" + ",".join(f"{{{term(name)},{term(value)}}}" for name, value in values.items()) + "]"


EXCHANGE: Final = "exchange"
"""The kind of an exchange in `Policy.matches`. A queue's kind is its type: classic, quorum, stream."""


class Policy(NamedTuple):
    row: PolicyRow
    pattern: NamePattern
    definition: Mapping[str, object]

    @property
    def value(self) -> dict[str, object]:
        """Return the policy as a parameter of component `policy` or `operator_policy`."""
        row = self.row
        return {
            "pattern": row.pattern,
            "definition": dict(self.definition),
            "priority": row.priority,
            "apply-to": row.apply_to,
        }

    def matches(self, kind: str, name: str) -> bool:
        """Return whether the policy matches this queue or exchange. Cost: 1 us if `apply-to` includes its kind.

        Args:
            kind: EXCHANGE, or the queue type.
        """
        return self.applies_to(kind) and self.pattern.matches(name)

    def applies_to(self, kind: str) -> bool:
        """Return whether `apply-to` includes this kind and, for a queue type, the type supports all keys."""
        applies_to = self.row.apply_to
        if kind == EXCHANGE:
            return applies_to in ("exchanges", "all")
        if applies_to not in ("queues", "all") and applies_to != _APPLY_TO_OF_TYPE.get(kind):
            return False
        return unsupported(kind).isdisjoint(self.definition)


_APPLY_TO_OF_TYPE: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}


def policy_of(row: PolicyRow) -> Policy:
    """Return the policy of a row. Raises: InvalidPattern, or ValueError for a row that no version of amqpd wrote."""
    definition: Any = json.loads(row.definition)
    if not isinstance(definition, dict):
        raise ValueError(f"{row.definition!r} is not an object")
    return Policy(row, compile_names(row.pattern), definition)


class EffectivePolicy:
    """The policy and the operator policy of one queue or exchange, merged.

    Attributes:
        policy, operator_policy: their names; "" for none.
    """

    __slots__ = ("_plain_rules", "definition", "operator_policy", "policy")

    def __init__(self, policy: Policy | None, operator: Policy | None) -> None:
        self.policy = "" if policy is None else policy.row.name
        self.operator_policy = "" if operator is None else operator.row.name
        if policy is None or operator is None:
            one = policy or operator
            self.definition = {} if one is None else one.definition
        else:
            self.definition = merged(policy.definition, operator.definition)
        self._plain_rules: dict[str, QueueConfig] = {}

    def rules(self, kind: str, arguments: Mapping[str, object]) -> QueueConfig:
        """Return the configuration of a queue. Queues without arguments share one object."""
        if arguments:
            return rules_of(arguments, self.definition)
        rules = self._plain_rules.get(kind)
        if rules is None:
            rules = self._plain_rules[kind] = rules_of(arguments, self.definition)
        return rules

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, EffectivePolicy)
            and (self.policy, self.operator_policy) == (other.policy, other.operator_policy)
            and self.definition == other.definition
        )

    __hash__ = None  # type: ignore[assignment]  # never a dict key


NONE: Final = EffectivePolicy(None, None)


def merged(policy: Mapping[str, object], operator: Mapping[str, object]) -> dict[str, object]:
    """Merge two definitions by the rules of their keys: for most numbers the lower one, else the operator's value."""
    both = dict(sorted({**policy, **operator}.items()))
    known = keys()
    for name in policy.keys() & operator.keys():
        one, other = policy[name], operator[name]
        merge = known[name].merge
        if merge != "argument" and isinstance(one, int) and isinstance(other, int):
            both[name] = merged_number(merge, one, other)
    return both


class _PoliciesOfKind:
    """The policies that apply to one kind of object, highest priority first."""

    def __init__(self, policies: list[Policy]) -> None:
        self.policies = policies
        self._index = NamePatternIndex([policy.pattern for policy in policies])

    def first(self, name: str) -> Policy | None:
        """Return the first policy that matches the name."""
        found = self._index.first(name)
        return self.policies[found] if found >= 0 else None


class PolicyTable:
    """The policies of one vhost.

    Attributes:
        in_force: effective policy of each queue and exchange that has one.
    """

    def __init__(self) -> None:
        self._policies: dict[bool, dict[str, Policy]] = {False: {}, True: {}}
        # By kind, since the last change. Kinds with the same policies share an object.
        self._of_kind: dict[bool, dict[str, _PoliciesOfKind]] = {False: {}, True: {}}
        # Cache by the names of policy and operator policy.
        self._effective: dict[tuple[str, str], EffectivePolicy] = {}
        self.in_force: dict[object, EffectivePolicy] = {}

    def __bool__(self) -> bool:
        return bool(self._policies[False] or self._policies[True])

    def get(self, name: str, operator: bool = False) -> Policy | None:
        return self._policies[operator].get(name)

    def all(self, operator: bool = False) -> list[Policy]:
        """Return the policies by priority, then name. rabbit: the lowest priority first."""
        return sorted(self._policies[operator].values(), key=lambda each: (each.row.priority, each.row.name))

    def put(self, policy: Policy) -> None:
        operator = policy.row.operator
        self._policies[operator][policy.row.name] = policy
        self._on_change(operator)

    def remove(self, name: str, operator: bool) -> None:
        self._policies[operator].pop(name, None)
        self._on_change(operator)

    def _on_change(self, operator: bool) -> None:
        self._of_kind[operator].clear()
        self._effective.clear()

    def effective(self, kind: str, name: str) -> EffectivePolicy:
        """Return the policy for this kind and name. Cost: see `NamePatternIndex`."""
        policy = self._first(False, kind, name)
        operator = self._first(True, kind, name)
        if policy is None and operator is None:
            return NONE
        pair = ("" if policy is None else policy.row.name, "" if operator is None else operator.row.name)
        found = self._effective.get(pair)
        if found is None:
            found = self._effective[pair] = EffectivePolicy(policy, operator)
        return found

    def _first(self, operator: bool, kind: str, name: str) -> Policy | None:
        """Return the matching policy with the highest priority, of equal ones the first by name."""
        if not self._policies[operator]:
            return None
        of_kind = self._of_kind[operator]
        if kind not in of_kind:
            policies = [each for each in self._policies[operator].values() if each.applies_to(kind)]
            policies.sort(key=lambda each: (-each.row.priority, each.row.name))
            same = (each for each in of_kind.values() if each.policies == policies)
            of_kind[kind] = next(same, None) or _PoliciesOfKind(policies)
        return of_kind[kind].first(name)

    def policy_of(self, thing: object) -> EffectivePolicy:
        return self.in_force.get(thing, NONE)


log = logging.getLogger(__name__)

SLICE_S: Final = 0.003
"""Length of a slice in seconds. The last visit of a slice may exceed it."""

Thing = TypeVar("Thing")


class SlicedWalk(Generic[Thing]):
    """A walk that visits many objects in slices of SLICE_S, so that the event loop runs in between.

    Call `begin` after each change that all objects must follow. Changes during a walk share the next walk, so the
    last walk visits all objects in the final state. After a walk it has no reference to the objects: no garbage
    collector is needed.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._things: Callable[[], list[Thing]] | None = None
        self._visit: Callable[[Thing], None] | None = None
        self._left: list[Thing] = []
        self._again = False  # another walk is requested
        self._current_callbacks: list[Callable[[], None]] = []
        self._next_callbacks: list[Callable[[], None]] = []

    def begin(self, things: Callable[[], list[Thing]], visit: Callable[[Thing], None]) -> None:
        """Start a walk in the next loop turn. Each call must give the same two functions.

        Args:
            things: returns the objects to visit.
            visit: called with each object, which may have been removed meanwhile. An exception is logged, and the walk
                continues.
        """
        running = self._visit is not None
        self._things, self._visit = things, visit
        self._again = True
        if not running:
            self._call_soon(self._start)

    def when_done(self, done: Callable[[], None]) -> None:
        """Call `done` when all walks requested so far are complete; at once if there are none."""
        if self._again:
            self._next_callbacks.append(done)
        elif self._visit is not None:
            self._current_callbacks.append(done)
        else:
            done()

    def _start(self) -> None:
        assert self._things is not None  # since `begin`
        self._again = False
        self._current_callbacks, self._next_callbacks = self._next_callbacks, []
        self._left = self._things()
        self._slice()

    def _slice(self) -> None:
        visit = self._visit
        assert visit is not None  # since `begin`
        until = time.perf_counter() + SLICE_S
        left = self._left
        while left:
            thing = left.pop()
            try:
                visit(thing)
            except Exception:  # the walk visits the other objects
                log.exception("visiting %s failed", thing)
            if time.perf_counter() >= until:
                self._call_soon(self._slice)
                return
        finished, self._current_callbacks = self._current_callbacks, []
        if self._again:
            self._call_soon(self._start)
        else:
            self._things = self._visit = None
        for done in finished:
            done()
