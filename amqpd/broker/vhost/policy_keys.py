"""The keys of a policy's definition, and whether a policy is one.

Nearly every key is a row of an argument's (`policy` of `queues/arguments.py` and `exchange_arguments.py`): what it
takes, what RabbitMQ's texts call it, whether operator policies may have it. Those of RabbitMQ that have no argument and
no meaning here stand below: mirrored queues are gone from RabbitMQ, too.

A policy that says something its queue's kind cannot do does not apply to that queue at all, however much else it says
(rabbit: the same): `unsupported` tells what.

Errors: InvalidPolicy with RabbitMQ's text, which names everything that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from amqpd.auth.permissions import InvalidPattern
from amqpd.broker.vhost import exchange_arguments
from amqpd.broker.vhost.erlang import term
from amqpd.broker.vhost.patterns import compile_names
from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.queue.argument_checks import Merge, Row, is_one_of, is_positive, is_text

APPLY_TO: Final = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")
PRIORITY_MAX: Final = 2**31 - 1
DEFINITION_BYTES_MAX: Final = 64 * 1024

MIRRORED: Final = "mirrored queues are gone"


class PolicyKey(NamedTuple):
    """accepts, called, operator, merge: as in `Row`. argument: whose key it is, "" for none. meaning: for the docs."""

    name: str
    accepts: Callable[[object], bool]
    called: str
    operator: bool
    merge: Merge
    argument: str
    meaning: str


def _of_row(row: Row) -> PolicyKey:
    return PolicyKey(row.policy, row.accepts, row.called, row.operator, row.merge, row.name, row.meaning)


def _anything(_value: object) -> bool:
    return True


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _ignored(
    name: str, accepts: Callable[[object], bool], called: str, why: str = MIRRORED, *, operator: bool = False
) -> PolicyKey:
    return PolicyKey(name, accepts, called, operator, "argument", "", f"ignored: {why}")


IGNORED: Final = (
    _ignored("ha-mode", is_one_of("all", "exactly", "nodes"), "ha-mode value", operator=True),  # rabbit: since 3.12
    _ignored("ha-params", _anything, "ha-params value", operator=True),
    _ignored("ha-sync-mode", is_one_of("manual", "automatic"), "ha-sync-mode value", operator=True),
    _ignored("ha-sync-batch-size", is_positive, "ha-sync-batch-size value"),
    _ignored("ha-promote-on-shutdown", is_one_of("always", "when-synced"), "ha-promote-on-shutdown value"),
    _ignored("ha-promote-on-failure", is_one_of("always", "when-synced"), "ha-promote-on-failure value"),
    _ignored("filter-field-names", _is_texts, "list of filter field names", "filters look at every field"),
)

# rabbit: `unsupported_policies` of each kind, where the rows do not say so already: 3.10's, and for keys of 4.x theirs.
_MIRRORING: Final = frozenset(
    ("ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure", "queue-master-locator")
)
_UNSUPPORTED: Final[dict[str, frozenset[str]]] = {
    "classic": frozenset(("target-group-size", "filter-field-names")),
    "quorum": _MIRRORING | {"queue-mode"},
    "stream": _MIRRORING | {"queue-mode", "target-group-size", "filter-field-names"},
}


class InvalidPolicy(ValueError):
    """What is given is no policy. The text is RabbitMQ's, with a line for each thing wrong."""

    def __init__(self, faults: Iterable[str]) -> None:
        super().__init__("Validation failed\n\n" + "".join(f"{fault}\n" for fault in faults))


def keys(operator: bool = False) -> dict[str, PolicyKey]:
    """By name; operator: those that operator policies may have."""
    rows = (*queue_arguments.ROWS.values(), *exchange_arguments.ROWS.values())
    found = [_of_row(row) for row in rows if row.policy]
    return {key.name: key for key in (*found, *IGNORED) if key.operator or not operator}


def unsupported(kind: str) -> frozenset[str]:
    """The keys that queues of this kind cannot follow."""
    rows = queue_arguments.ROWS.values()
    of_rows = {row.policy for row in rows if row.policy and row.kinds is not None and kind not in row.kinds}
    return frozenset(of_rows) | _UNSUPPORTED.get(kind, frozenset())


def unknown_keys(definition: Iterable[str], operator: bool) -> set[str]:
    """Those that policies, or operator policies, do not have."""
    return set(definition) - keys(operator).keys()


def check(name: str, value: Mapping[str, object], operator: bool) -> None:
    """value: `pattern`, `definition`, `priority` and `apply-to`, all of them as JSON gave them.

    Raises: InvalidPolicy with everything that is wrong.
    """
    faults: list[str] = []
    for field, look in _FIELDS.items():  # rabbit: the last one is told first
        if field in value:
            faults += look(value[field], operator)
        elif field != "apply-to":
            faults.append(f'Key "{field}" not found in {name}')
    others = {key: each for key, each in value.items() if key not in _FIELDS}
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
    strange = {name: value[name] for name in sorted(value) if name not in known}
    if strange:
        return [f"{_pairs(strange)} are not recognised policy settings"]
    if "ha-mode" not in value and not _MIRRORING.isdisjoint(value.keys() - {"queue-master-locator"}):
        return ["ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"]
    if len(json.dumps(value)) > DEFINITION_BYTES_MAX:
        return [f"a definition has at most {DEFINITION_BYTES_MAX} bytes"]
    return []


def _not_valid(key: PolicyKey, value: object) -> str:
    # rabbit: two words of its own
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


_FIELDS: Final[dict[str, Callable[[object, bool], list[str]]]] = {
    "definition": _definition,
    "apply-to": _apply_to,
    "pattern": _pattern,
    "priority": _priority,
}


def _pairs(values: Mapping[str, object]) -> str:
    return "[" + ",".join(f"{{{term(name)},{term(value)}}}" for name, value in values.items()) + "]"
