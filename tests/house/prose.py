"""Rules for prose: words that readers of English as a second language stumble over, and how long a sentence may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

SENTENCE_WORDS_MAX: Final = 30

FORBIDDEN: Final = {
    r"nobody": "no user, no client, no program",
    r"somebody|someone": "a user, a client",
    r"whoever|whomever|whatever|whichever": "name the actor or the thing",
    r"told": "notified, logged, reported",
    r"likewise": "also",
    r"of late": "recently",
    r"but for": "except",
    r"goes? on": "continues",
    r"stands?(?= (?:in|at|for|beside|there|here)\b)": "is",
    r"is to be|are to be": "must be",
    r"lest|thereof|therein|whereof|hitherto|wherein": "a word of today",
    r"anew": "again",
    r"his|he": "name the actor",
    r"let(?:s)? go": "release, close",
    r"one's own|of (?:its|their) own hand": "name the owner",
}
"""Pattern -> what to write instead."""

_WORD: Final = re.compile(r"[^\W_][\w'’-]*")
_END: Final = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[^a-z\s]|amqp)|(?<=[:])\s+")


class Finding(NamedTuple):
    line: int
    text: str


def forbidden_words(text: str) -> Iterator[Finding]:
    """Yield each forbidden word of `text` with its line, counted from 1."""
    for pattern, better in FORBIDDEN.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield Finding(text.count("\n", 0, found.start()) + 1, f"{found.group()!r}: write {better}")


def sentences(paragraph: str) -> list[str]:
    """Cut a paragraph at full stops and colons: a reader takes the part behind a colon on its own."""
    return [one.strip() for one in _END.split(paragraph) if one.strip()]


def long_sentences(paragraph: str, words_max: int = SENTENCE_WORDS_MAX) -> list[str]:
    return [one for one in sentences(paragraph) if len(_WORD.findall(one)) > words_max]
