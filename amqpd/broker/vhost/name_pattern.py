"""The first of many patterns of policies that matches a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amqpd.auth.patterns import InvalidPattern, NamePattern, PatternSet, compile_pattern

SINGLE_COUNT: Final = 8
"""Patterns that are always matched one by one. The first policies often match many names."""
SET_SIZE: Final = 256
"""Patterns of one automaton, so that its construction blocks the event loop for some milliseconds only."""
LOOKUPS_MIN: Final = 4
"""Look-ups after which the automata are made: their construction costs as much as this number of look-ups."""


def compile_names(text: str) -> NamePattern:
    """Compile a policy's pattern. RabbitMQ: an empty one matches every name. Raises: InvalidPattern."""
    if "\0" in text:
        raise InvalidPattern("a pattern must not contain NUL")
    return compile_pattern(text or "^")


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
