"""Entries of `Attributes:` and `Args:` in docstrings whose name the class or function does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

from sources import nodes

_SECTION: Final = re.compile(r"(?:Attributes|Args):$")
_ENTRY: Final = re.compile(r"    `?(\w+(?:, \w+)*)`?: ")


def unknown_entries(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield `module:line name` for each such entry.

    A class may also document what its bases have, and the parameters of its `__init__`.

    Args:
        trees: by name of the module.
    """
    members: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for tree in trees.values():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                members.setdefault(node.name, set()).update(_members(node))
                bases.setdefault(node.name, []).extend(ast.unparse(base).rpartition(".")[2] for base in node.bases)
    for module, tree in trees.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                known = _inherited(node.name, members, bases)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            else:
                continue
            for name in _entries(ast.get_docstring(node) or ""):
                if name not in known:
                    yield f"{module}:{node.lineno} {name}"


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Yield names assigned or defined in a class, attributes of `self`, and parameters of `__init__`."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each.name
            if each.name == "__init__":
                yield from (one.arg for one in ast.walk(each.args) if isinstance(one, ast.arg))
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            yield each.attr


def _inherited(name: str, members: Mapping[str, set[str]], bases: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting, seen = [name], set()
    while waiting:
        one = waiting.pop()
        if one in members and one not in seen:
            seen.add(one)
            found |= members[one]
            waiting += bases[one]
    return found


def _entries(docstring: str) -> Iterator[str]:
    in_section = False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            in_section = _SECTION.match(line) is not None
        elif in_section and (found := _ENTRY.match(line)):
            yield from found[1].split(", ")
