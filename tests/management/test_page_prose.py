"""Texts and comments of the web page are in plain words: no forbidden word, no sentence of more than 30 words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from prose import forbidden_words, long_sentences

SOURCES: Final = Path(__file__).parents[2] / "amqpd" / "management" / "page"
FILES: Final = [
    *sorted(path for path in SOURCES.joinpath("src").rglob("*.*") if path.suffix in (".ts", ".tsx", ".css", ".html")),
    SOURCES / "build.mjs",
]

_TOKEN: Final = re.compile(
    r"""(?P<comment>(?:^[ \t]*//[^\n]*\n)+|(?<=[\s;{(])//[^\n]*|/\*.*?\*/)
    |"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)'(?!\w)|`(?P<template>(?:[^`\\]|\\.)*)`""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_MARKS: Final = re.compile(r"^\s*(?://|/\*\*?|\*/|\*)|\*/$", re.MULTILINE)
_EXPRESSION: Final = re.compile(r"\$?\{[^{}]*\}")
_ELEMENT_TEXT: Final = re.compile(r"(?<=[\w\"}/]>)((?:[^<>{}]|\{[^{}<>]*\})+)(?=<)")
_CODE: Final = re.compile(r"=[>=]?|&&|\|\||\breturn\b")


def texts(source: str) -> Iterator[str]:
    """Yield comments, string literals and the texts of elements. Expressions within a text count as one word."""
    code: list[str] = []
    last = 0
    for token in _TOKEN.finditer(source):
        code.append(source[last : token.start()])
        last = token.end()
        if token["comment"] is not None:
            yield from re.split(r"\n[ \t]*\n", _MARKS.sub("", token["comment"]))
            continue
        text = next(part for part in (token["double"], token["single"], token["template"]) if part is not None)
        code.append('""')
        while (plain := _EXPRESSION.sub("CODE", text)) != text:
            text = plain
        yield text
    code.append(source[last:])
    for found in _ELEMENT_TEXT.finditer("".join(code)):
        if not _CODE.search(plain := _EXPRESSION.sub("CODE", found[1])):
            yield plain


def findings(source: str) -> list[str]:
    found = [f"{line}: {word}" for line, word in forbidden_words(source)]
    return found + [long for text in texts(source) for long in long_sentences(" ".join(text.split()))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_page_source_is_in_plain_words(path: Path) -> None:
    if path.name != "schema.d.ts":  # generated from the API's description
        assert findings(path.read_text("utf-8")) == []


LONG: Final = "word " * 31
SHORT: Final = "word " * 30


@pytest.mark.parametrize(
    "wrong",
    [
        '<p title="Nobody is here">',
        "// It is told.",
        f"// {LONG}",
        f"// {SHORT}\n// word",
        f"/** {LONG} */",
        f'notify("{LONG}");',
        f"notify(`{SHORT}${{name}}`);",
        f"<p>{LONG}</p>",
        f"<p>\n  {SHORT} {{name}}\n</p>",
    ],
)
def test_check_finds_forbidden_words_and_long_sentences(wrong: str) -> None:
    assert len(findings(f"const a = 1;\n{wrong}\n")) == 1


def test_check_accepts_sentences_of_30_words() -> None:
    right = f"// {SHORT}\n\n// {SHORT}\nconst f = () => x({LONG.replace(' ', ', ')});\n<p>{SHORT}. {SHORT.title()}</p>"
    assert findings(right) == []
