"""Markdown helpers of the reference pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `python -m interop.manual`: change the code that it is made of, and make it again. -->\n"


def code(text: str) -> str:
    """Format inline code, also in a table: a bar is escaped, a backtick needs a longer fence."""
    text = " ".join(text.split()).replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`" if text else ""


def codes(texts: Iterable[str]) -> str:
    return " ".join(code(text) for text in texts)


def cell(text: str) -> str:
    """Format a sentence for a table cell: HTML is escaped."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"
