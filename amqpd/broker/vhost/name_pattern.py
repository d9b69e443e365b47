r"""Patterns of policies for names, and the first of many patterns that matches a name.

RE2 matches patterns in linear time (`auth/permissions.py` has the reason), RabbitMQ uses PCRE. Many policies begin with
look-ahead, such as `^(?!amq\.).*`, which RE2 lacks. There it means a second pattern that must match or must not, so
`NamePattern` has several patterns. Other look-around, more than LOOKS_MAX of it, and back-references are refused. A
pattern may match anywhere in the name. Unlike PCRE, `$` does not match before a final newline. Unlike a permission, an
empty pattern matches every name (RabbitMQ: the same).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from amqpd.auth.permissions import InvalidPattern, PatternSet, PermissionPattern, compile_pattern

_START: Final = re.compile(r"(?P<flags>(?:\(\?[is]+\))?)(?:\^|\\A)")
_QUANTIFIERS: Final = ("*", "+", "?", "{")
LOOKS_MAX: Final = 10
"""Maximum of look-aheads in one pattern: each name is matched against all of them."""


class NamePattern(NamedTuple):
    """A pattern that matches a name if all of `wanted` match and none of `unwanted`."""

    wanted: tuple[PermissionPattern, ...]
    unwanted: tuple[PermissionPattern, ...] = ()

    def matches(self, name: str) -> bool:
        """Return whether the name matches. Cost: at least 1 us per pattern, linear in the name."""
        return all(each.matches(name) for each in self.wanted) and not any(each.matches(name) for each in self.unwanted)

    def matches_if_last(self, name: str) -> bool:
        """Return whether a name matches that matches the last one of `wanted`."""
        return (len(self.wanted) == 1 and not self.unwanted) or self.matches(name)


def compile_names(text: str) -> NamePattern:
    """Compile a policy's pattern. Cost: 25 us, then cached. Raises: InvalidPattern."""
    if "\0" in text:
        raise InvalidPattern("a pattern must not contain NUL")
    try:
        return NamePattern((compile_pattern(text or "^"),))
    except InvalidPattern as refused:
        return _split_look_aheads(text, refused)


def _split_look_aheads(text: str, refused: InvalidPattern) -> NamePattern:
    """Split a pattern that begins with look-ahead into several patterns. Raises `refused` if that is not possible."""
    start = _START.match(text)
    if start is None:
        raise refused
    flags, rest = start["flags"], text[start.end() :]
    wanted: list[str] = []
    unwanted: list[str] = []
    while rest.startswith(("(?!", "(?=")):
        end = _group_end(rest)
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


def _group_end(text: str) -> int:
    """Return the index of the `)` that ends the group at the start of `text`, or -1."""
    return next((index for index, letter, depth in _syntax(text) if letter == ")" and depth == 0), -1)


def _has_alternatives(text: str) -> bool:
    """Return whether a `|` is outside all groups: it would be an alternative to the look-ahead too."""
    return any(letter == "|" and depth == 0 for _, letter, depth in _syntax(text))


def _syntax(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield index, character and group depth of the characters that are not escaped and not in a class.

    The depth at a `)` is the depth after it.
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
    """Return the index of the `]` that ends the class at `start`. A `]` at the front belongs to the class."""
    index = start + 1
    if text[index : index + 1] == "^":
        index += 1
    if text[index : index + 1] == "]":
        index += 1
    while index < len(text) and text[index] != "]":
        index += 2 if text[index] == "\\" else 1
    return index


SINGLE_COUNT: Final = 8
"""Patterns that are always matched one by one. The first policies often match many names."""
SET_SIZE: Final = 256
"""Patterns of one automaton, so that its construction blocks the event loop for some milliseconds only."""
LOOKUPS_MIN: Final = 4
"""Look-ups after which the automata are made: their construction costs as much as this number of look-ups."""


class NamePatternIndex:
    """The first of many patterns that matches a name.

    A look-up tries SINGLE_COUNT patterns, then one automaton (`PatternSet`) for each SET_SIZE others. The automata are
    made after LOOKUPS_MIN look-ups, because each change of a policy makes a new index.

    Cost of a look-up: 1 us for each of the patterns, 2 us for each of the automata that it tries.
    """

    def __init__(self, patterns: Sequence[NamePattern]) -> None:
        self._patterns = patterns
        self._lookup_count = 0
        # First pattern and automaton of each set; None if RE2 has no memory for this automaton.
        self._sets: list[tuple[int, PatternSet | None]] = []

    def first(self, name: str) -> int:
        """Return the index of the first pattern that matches the name, or -1."""
        patterns = self._patterns
        count = len(patterns)
        found = self._first_of(0, min(count, SINGLE_COUNT), name)
        if found >= 0 or count <= SINGLE_COUNT:
            return found
        if self._lookup_count < LOOKUPS_MIN:
            self._lookup_count += 1
            return self._first_of(SINGLE_COUNT, count, name)
        if not self._sets:
            self._sets = [(start, self._set(start)) for start in range(SINGLE_COUNT, count, SET_SIZE)]
        for start, automaton in self._sets:
            hits = None if automaton is None else automaton.matching(name)
            if hits is None:
                found = self._first_of(start, min(count, start + SET_SIZE), name)
            else:
                found = next((start + hit for hit in hits if patterns[start + hit].matches_if_last(name)), -1)
            if found >= 0:
                return found
        return -1

    def _first_of(self, start: int, end: int, name: str) -> int:
        return next((index for index in range(start, end) if self._patterns[index].matches(name)), -1)

    def _set(self, start: int) -> PatternSet | None:
        """Make the automaton of a set. Each pattern has one part in it: its last one."""
        try:
            return PatternSet([each.wanted[-1] for each in self._patterns[start : start + SET_SIZE]])
        except InvalidPattern:
            return None
