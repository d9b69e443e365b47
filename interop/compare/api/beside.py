"""A broker's answers to the API calls compared with RabbitMQ's: statuses and missing fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from interop.compare.party import Address

from . import held
from .calls import ALL, Call
from .differences import MISSING, NOT_YET, STATUS, Missing, allowed
from .held import Answer
from .state import State


class Beside(NamedTuple):
    call: Call
    theirs: Answer
    ours: Answer


def answers(address: Address) -> list[Beside]:
    """Make every call in order on a fresh broker. Cost: about 10 s."""
    kept = held.load()
    with State(address) as state:
        ours = held.hold_all(state, ALL)
    return [Beside(call, kept[call.name()].pop(0), answer) for call, answer in zip(ALL, ours, strict=True)]


def differing(found: Sequence[Beside]) -> list[str]:
    """Return the unlisted differences and the unneeded list entries, one per line."""
    return [*statuses(found), *fields(found)]


def statuses(found: Sequence[Beside]) -> list[str]:
    seen = {(each.call.name(), each.theirs.status, each.ours.status) for each in found}
    seen = {each for each in seen if each[1] != each[2]}
    named = {each[:3] for each in (*STATUS, *NOT_YET)}
    idle = {each[:3] for each in STATUS} - seen
    return [
        *(f"{call}: RabbitMQ answers {theirs}, amqpd {ours}" for call, theirs, ours in sorted(seen - named)),
        *(f"{call}: no longer {theirs} and {ours}, as api/differences.py says" for call, theirs, ours in sorted(idle)),
    ]


def fields(found: Sequence[Beside]) -> list[str]:
    used: set[Missing] = set()
    lines: list[str] = []
    for call, theirs, ours in found:
        if theirs.status == ours.status:
            for field in sorted(set(theirs.fields) - set(ours.fields)):
                reason = allowed(call.path, field)
                if reason is None:
                    lines.append(f"{call.name()}: {field} is not there")
                else:
                    used.add(reason)
    quick = {each for each in MISSING if "idle_since" in each.fields}
    idle = [each for each in MISSING if each not in used | quick]
    return lines + [f"{each.path}: {sorted(each.fields)} are all there, against api/differences.py" for each in idle]
