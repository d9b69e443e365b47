"""The part of YAML that deployment files are written in: mappings, lists, scalars, `|` blocks, [flow lists], documents.

Strict, so that a file it reads means the same to every parser: two spaces a level, no tabs, no anchors, tags or flow
mappings but `{}`, a key once. Raises: ValueError with the line's number.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_KEY: Final = re.compile(r"(?P<key>[A-Za-z0-9_][A-Za-z0-9_.-]*|\"[^\"]+\"):(?: (?P<value>.+))?")
_PLAIN: Final = re.compile(r"[A-Za-z0-9./$][^#&*!|>'\"%@`{}\[\],]*")


class Lines:
    """The lines of a document that are not blank: (number, indentation, text); blocks need them as they stand."""

    def __init__(self, text: str, first: int) -> None:
        self.all = [(first + index, line) for index, line in enumerate(text.split("\n"))]
        self.at = 0

    def peek(self) -> tuple[int, int, str] | None:
        while self.at < len(self.all):
            number, line = self.all[self.at]
            if "\t" in line:
                raise ValueError(f"line {number}: a tab")
            if line.strip() and not line.lstrip().startswith("#"):
                return number, len(line) - len(line.lstrip()), line.strip()
            self.at += 1
        return None


def documents(text: str) -> list[Any]:
    """Every document of the file."""
    found, first = [], 1
    for part in re.split(r"^---$\n?", text, flags=re.MULTILINE):
        lines = Lines(part, first)
        if lines.peek() is not None:
            found.append(_node(lines, 0))
            if (left := lines.peek()) is not None:
                raise ValueError(f"line {left[0]}: not expected here: {left[2]}")
        first += part.count("\n") + 1
    return found


def _node(lines: Lines, indent: int) -> Any:
    here = lines.peek()
    assert here is not None
    return _list(lines, indent) if here[2].startswith("- ") else _mapping(lines, indent)


def _list(lines: Lines, indent: int) -> list[Any]:
    found = []
    while (here := lines.peek()) is not None and here[1] == indent and here[2].startswith("- "):
        number, _, text = here
        if _KEY.fullmatch(text[2:]):
            lines.all[lines.at] = number, " " * (indent + 2) + text[2:]
            found.append(_mapping(lines, indent + 2))
        else:
            lines.at += 1
            found.append(_scalar(text[2:], number))
    return found


def _mapping(lines: Lines, indent: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while (here := lines.peek()) is not None and here[1] == indent and not here[2].startswith("- "):
        number, _, text = here
        match = _KEY.fullmatch(text)
        if match is None:
            raise ValueError(f"line {number}: no key: {text}")
        key = match["key"].strip('"')
        if key in found:
            raise ValueError(f"line {number}: {key} a second time")
        lines.at += 1
        if match["value"] == "|":
            found[key] = _block(lines, indent + 2)
        elif match["value"]:
            found[key] = _scalar(match["value"], number)
        else:
            below = lines.peek()
            if below is None or below[1] != indent + 2:
                raise ValueError(f"line {number}: {key} has nothing below it, two spaces in")
            found[key] = _node(lines, indent + 2)
    if here is not None and here[1] > indent:
        raise ValueError(f"line {here[0]}: too far in: {here[2]}")
    return found


def _block(lines: Lines, indent: int) -> str:
    text = ""
    while lines.at < len(lines.all):
        line = lines.all[lines.at][1]
        if line.strip() and not line.startswith(" " * indent):
            break
        text += line[indent:] + "\n"
        lines.at += 1
    return text.rstrip("\n") + "\n"


def _scalar(text: str, number: int) -> Any:
    if text.startswith(('"', "[")) or text == "{}":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not _PLAIN.fullmatch(text) or ": " in text:
        raise ValueError(f"line {number}: quote this: {text}")
    if re.fullmatch(r"\d+", text):
        return int(text)
    if text.lower() in {"yes", "no", "on", "off", "null", "~"}:
        raise ValueError(f"line {number}: quote this: {text}")
    return {"true": True, "false": False}.get(text, text)
