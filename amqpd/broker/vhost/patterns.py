"""Patterns of policies: which names they match.

RE2 runs them, as it runs those of permissions (`auth/permissions.py` says why): its time grows with the name, never
with the pattern's wit. RabbitMQ's engine is PCRE, and one thing of it stands in half of the policies of this world that
RE2 does not have: look-ahead at the beginning, `^(?!amq\\.).*` (all but the broker's own). At the beginning it means no
more than a second pattern that has to match, or must not, so it is taken apart here and stays linear. Look-around
anywhere else, more of it than LOOKS_MAX, and back-references are refused.

A pattern is searched anywhere in the name. Unlike PCRE, `$` does not match before a final newline; and unlike a
permission, an empty pattern matches every name (rabbit: the same).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from amqpd.auth.permissions import InvalidPattern, Pattern, compile_pattern

_START: Final = re.compile(r"(?P<flags>(?:\(\?[is]+\))?)(?:\^|\\A)")
_QUANTIFIERS: Final = ("*", "+", "?", "{")
LOOKS_MAX: Final = 10
"""Look-aheads of one pattern: each is asked of every name."""


class NamePattern(NamedTuple):
    """Matches where all of `wanted` match and none of `unwanted`."""

    wanted: tuple[Pattern, ...]
    unwanted: tuple[Pattern, ...] = ()

    def matches(self, name: str) -> bool:
        """Cost: 1 us a pattern and up, linear in the name."""
        return all(each.matches(name) for each in self.wanted) and not any(
            each.matches(name) for each in self.unwanted
        )


def compile_names(text: str) -> NamePattern:
    """Cost: 25 us, then cached. Raises: InvalidPattern."""
    if "\0" in text:
        raise InvalidPattern("a pattern has no NUL")
    try:
        return NamePattern((compile_pattern(text or "^"),))
    except InvalidPattern as refused:
        return _apart(text, refused)


def _apart(text: str, refused: InvalidPattern) -> NamePattern:
    """A pattern that begins with look-ahead, as the patterns it means. Raises: `refused` where it is none."""
    start = _START.match(text)
    if start is None:
        raise refused
    flags, rest = start["flags"], text[start.end() :]
    wanted: list[str] = []
    unwanted: list[str] = []
    while rest.startswith(("(?!", "(?=")):
        end = _closing(rest)
        if end < 0 or rest[end + 1 :].startswith(_QUANTIFIERS) or len(wanted) + len(unwanted) == LOOKS_MAX:
            raise refused
        (unwanted if rest[2] == "!" else wanted).append(rest[3:end])
        rest = rest[end + 1 :]
    if (not wanted and not unwanted) or _has_alternatives(rest):
        raise refused
    wanted.append(rest)
    return NamePattern(
        tuple(compile_pattern(f"{flags}^(?:{each})") for each in wanted),
        tuple(compile_pattern(f"{flags}^(?:{each})") for each in unwanted),
    )


def _closing(text: str) -> int:
    """Where the group that begins `text` ends; -1: nowhere."""
    return next((index for index, letter, depth in _syntax(text) if letter == ")" and depth == 0), -1)


def _has_alternatives(text: str) -> bool:
    """Whether a `|` stands outside of any group: it would be an alternative to what stands before, too."""
    return any(letter == "|" and depth == 0 for _, letter, depth in _syntax(text))


def _syntax(text: str) -> Iterator[tuple[int, str, int]]:
    """The letters that are neither escaped nor in a class: their places, and in how many groups each stands (those
    that end a group: behind it).
    """
    depth = 0
    index = 0
    while index < len(text):
        letter = text[index]
        if letter == "\\":
            index += 1
        elif letter == "[":
            index = _class_end(text, index)
        else:
            depth += (letter == "(") - (letter == ")")
            yield index, letter, depth
        index += 1


def _class_end(text: str, start: int) -> int:
    """Where the class that begins there ends. A `]` in front is one of its letters."""
    index = start + 1
    if text[index : index + 1] == "^":
        index += 1
    if text[index : index + 1] == "]":
        index += 1
    while index < len(text) and text[index] != "]":
        index += 2 if text[index] == "\\" else 1
    return index
