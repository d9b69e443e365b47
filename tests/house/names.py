"""Rules for names of modules and classes: nouns of the field, one name for one thing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

from sources import nodes

OPAQUE: Final = frozenset(
    {
        "adrift",
        "afterwards",
        "alike",
        "elsewhere",
        "gone",
        "hearsay",
        "here",
        "inner",
        "lost",
        "nobody",
        "nothing",
        "passed",
        "somewhere",
        "there",
        "told",
        "unasked",
        "unfinished",
        "unheard",
        "unopened",
        "unseen",
        "whole",
    }
)
"""Words that no name has."""

OPAQUE_ALONE: Final = frozenset(
    {
        "answered",
        "asked",
        "asking",
        "beside",
        "borders",
        "came",
        "closing",
        "come",
        "coming",
        "copy",
        "countdown",
        "counted",
        "cut",
        "declared",
        "delaying",
        "departures",
        "dressed",
        "dresser",
        "dying",
        "effective",
        "ended",
        "ending",
        "ends",
        "enforcement",
        "filled",
        "filling",
        "followed",
        "found",
        "front",
        "fronts",
        "gather",
        "getters",
        "give",
        "giveback",
        "given",
        "goon",
        "had",
        "held",
        "hold",
        "holder",
        "holding",
        "joining",
        "judge",
        "keeping",
        "kept",
        "kind",
        "kinds",
        "later",
        "leaving",
        "left",
        "line",
        "look",
        "looks",
        "losses",
        "marks",
        "moved",
        "moving",
        "named",
        "newer",
        "note",
        "notproved",
        "now",
        "numbers",
        "offered",
        "offering",
        "once",
        "opener",
        "opening",
        "openings",
        "origin",
        "overdue",
        "owning",
        "paced",
        "pairs",
        "part",
        "passing",
        "piece",
        "place",
        "placed",
        "places",
        "plain",
        "produced",
        "producing",
        "pulse",
        "quiet",
        "read",
        "reading",
        "ready",
        "release",
        "rest",
        "retaining",
        "retried",
        "rules",
        "safe",
        "safety",
        "section",
        "seen",
        "sent",
        "served",
        "serving",
        "settled",
        "settling",
        "sheet",
        "shown",
        "silent",
        "slice",
        "slices",
        "span",
        "spans",
        "spread",
        "stopped",
        "survey",
        "taker",
        "taking",
        "tap",
        "thing",
        "things",
        "turn",
        "turning",
        "turns",
        "upkeep",
        "vouched",
        "waiting",
        "waits",
        "wake",
        "waker",
        "walk",
        "watching",
        "went",
        "where",
        "works",
        "writing",
        "written",
    }
)
"""Participles, adverbs and riddles: a name that is only this word does not say what it names."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def opaque(name: str) -> bool:
    """Return whether the name of a module or a class (`log_opening`, `LogOpening`) says nothing to a newcomer."""
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(OPAQUE.intersection(words)) or (len(words) == 1 and words[0] in OPAQUE_ALONE)


def opaque_names(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield `module` or `module:Class` for each opaque name."""
    for module, tree in trees.items():
        if opaque(module.rpartition(".")[2]):
            yield module
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and opaque(node.name):
                yield f"{module}:{node.name}"


def shared_names(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the public classes that have the same name: the name, and the modules that define it."""
    found: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}
