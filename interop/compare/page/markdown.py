"""Pieces of a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

SHOWN_MAX: Final = 150
"""Characters of one answer: more is not read, and widens the table."""


class Section(NamedTuple):
    """row: its line in the table at the page's head: what, how much was compared, how much differs, what is missing."""

    title: str
    row: Sequence[str]
    text: str


def code(text: str) -> str:
    """As it is typed or answered, cut where it is long."""
    text = " ".join(text.split())
    if len(text) > SHOWN_MAX:
        text = text[: SHOWN_MAX - 1] + "…"
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`" if text else ""


def apart(theirs: str, ours: str) -> tuple[str, str]:
    """Both as code; of long ones what is about the place where they begin to differ."""
    theirs, ours = (" ".join(text.split()) for text in (theirs, ours))
    same = next((at for at, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), 0)
    if max(len(theirs), len(ours)) <= SHOWN_MAX or same < SHOWN_MAX // 2:
        return code(theirs), code(ours)
    start = same - SHOWN_MAX // 4
    return code("…" + theirs[start:]), code("…" + ours[start:])


def codes(names: Iterable[str]) -> str:
    return " ".join(code(name) for name in names)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def sentence(text: str) -> str:
    """A reason as it stands in a table."""
    return text.replace("|", "\\|")
