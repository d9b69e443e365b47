"""Markdown helpers of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

SHOWN_MAX: Final = 150
"""The maximum number of characters of one answer: longer ones make the table too wide."""


class Section(NamedTuple):
    """A section of the page. row: its line in the table at the head: subject, compared, different, missing."""

    title: str
    row: Sequence[str]
    text: str


def code(text: str) -> str:
    """Format as code; long text is cut."""
    text = " ".join(text.split())
    if len(text) > SHOWN_MAX:
        text = text[: SHOWN_MAX - 1] + "…"
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`" if text else ""


def apart(theirs: str, ours: str) -> tuple[str, str]:
    """Format both as code; long texts are cut around their first difference."""
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
    """Format a reason for a table cell."""
    return text.replace("|", "\\|")
