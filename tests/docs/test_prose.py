"""The documentation is in plain words: no forbidden word, no sentence of more than 30 words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from prose import forbidden_words, long_sentences

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
EXCEPTIONS: Final[dict[str, dict[str, str]]] = {}
"""Page -> a sentence or word that is allowed there -> the reason."""

_FENCE = re.compile(r"^(?P<fence>`{3,}).*?^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"`[^`\n]*(?:\n[^`\n]+)?`")
_LINK = re.compile(r"!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_CODES = re.compile(r"CODE(?:[\s,]+(?:and |or )?CODE)+")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+|^#+\s+|^>\s?", re.MULTILINE)


def prose(markdown: str) -> str:
    """Return the text without code, comments and link targets; lines keep their numbers."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found.group().count("\n")

    text = _COMMENT.sub(blank, _FENCE.sub(blank, markdown))
    text = _CODE.sub(lambda found: "CODE" + blank(found), text)
    return _LINK.sub(lambda found: found["text"], text)


def paragraphs(text: str) -> list[str]:
    """Split prose into paragraphs, list items and table cells. A run of code counts as one word."""
    found = []
    for part in re.split(r"\n\s*\n", text):
        if part.lstrip().startswith("|"):
            found += re.split(r"(?<!\\)[|\n]", part)
        else:
            found += re.split(r"\n(?=\s*(?:[-*]|\d+\.)\s|#)", part)
    return [_CODES.sub("CODE", " ".join(_ITEM.sub("", each).split())) for each in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_forbidden_word(page: Path) -> None:
    allowed = EXCEPTIONS.get(page.name, {})
    text = prose(page.read_text("utf-8"))
    lines = text.split("\n")
    assert [
        f"{page.name}:{line}: {word}"
        for line, word in forbidden_words(text)
        if not any(each in lines[line - 1] for each in allowed)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_long_sentence(page: Path) -> None:
    allowed = EXCEPTIONS.get(page.name, {})
    found = [long for each in paragraphs(prose(page.read_text("utf-8"))) for long in long_sentences(each)]
    assert [long for long in found if not any(each in long for each in allowed)] == []


def test_exceptions_are_needed() -> None:
    for page in PAGES:
        text = prose(page.read_text("utf-8"))
        found = [long for each in paragraphs(text) for long in long_sentences(each)]
        found += [text.split("\n")[line - 1] for line, _ in forbidden_words(text)]
        allowed = EXCEPTIONS.get(page.name, {})
        assert {each for each in allowed if not any(each in long for long in found)} == set(), page.name


def test_check_finds_violations() -> None:
    assert [each.line for each in forbidden_words("a\nNobody knows")] == [2]
    assert long_sentences("word " * 31) != []
    assert long_sentences("word " * 30) == []
    table = "| a | `b` `c` |\n|---|---|\n\n- one\n- two `x`, `y`\n"
    assert [each for each in paragraphs(prose(table)) if each.strip("-")] == ["a", "CODE", "one", "two CODE"]
