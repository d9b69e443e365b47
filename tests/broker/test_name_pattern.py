"""The first of many patterns that matches a name, against matching them one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.auth.patterns import NamePattern, PatternSet
from amqpd.broker.vhost.name_pattern import LOOKUPS_MIN, SET_SIZE, SINGLE_COUNT, NamePatternIndex
from amqpd.broker.vhost.name_pattern import compile_names as compiled

COUNT = 2 * SET_SIZE + SINGLE_COUNT + 1
TEXTS = ("^a", "b$", "c", "^(?!a)", "^(?!.*b)c", "^(?=a).*c", "(?i)A", "é", "^$", "x", "[^a]b", "a|c")
NAMES = st.text(alphabet="abcxAé\udcff", max_size=5)


def by_one(patterns: list[NamePattern], name: str) -> int:
    return next((index for index, each in enumerate(patterns) if each.matches(name)), -1)


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(TEXTS), max_size=40), st.integers(0, 30), st.lists(NAMES, min_size=3, max_size=10))
def test_index_finds_what_single_patterns_find(texts: list[str], unused: int, names: list[str]) -> None:
    patterns = [*(compiled(f"^never{number}") for number in range(unused)), *map(compiled, texts)]
    index = NamePatternIndex(patterns)
    for _ in range(LOOKUPS_MIN + 1):
        assert [index.first(name) for name in names] == [by_one(patterns, name) for name in names]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[NamePattern]:
    """Return a list of the patterns that are matched one by one."""
    found: list[NamePattern] = []
    matches = NamePattern.matches

    def matches_one(pattern: NamePattern, name: str) -> bool:
        found.append(pattern)
        return matches(pattern, name)

    monkeypatch.setattr(NamePattern, "matches", matches_one)
    return found


def test_name_is_matched_with_all_patterns_at_once(tried: list[NamePattern]) -> None:
    index = NamePatternIndex([compiled(f"^q{number}$") for number in range(COUNT)])
    for _ in range(LOOKUPS_MIN):
        assert index.first("none") == -1
    assert len(tried) == LOOKUPS_MIN * COUNT
    tried.clear()
    assert index.first("none") == -1
    for number in (0, SINGLE_COUNT, SINGLE_COUNT + SET_SIZE - 1, SINGLE_COUNT + SET_SIZE, COUNT - 1):
        assert index.first(f"q{number}") == number
    assert len(tried) <= 6 * SINGLE_COUNT


def test_patterns_that_match_everything_are_found_at_once(tried: list[NamePattern]) -> None:
    index = NamePatternIndex([compiled("^(?!amq)")] * COUNT)
    for _ in range(2 * LOOKUPS_MIN):
        assert index.first("q") == 0
    assert len(tried) == 2 * LOOKUPS_MIN


@pytest.mark.parametrize("step", ["construction", "search"])
def test_patterns_are_matched_one_by_one_without_memory(
    monkeypatch: pytest.MonkeyPatch, tried: list[NamePattern], step: str
) -> None:
    if step == "construction":
        monkeypatch.setattr("amqpd.auth.patterns.SET_BYTES_MAX", 1000)
    else:
        monkeypatch.setattr(PatternSet, "matching", lambda automaton, name: None)
    index = NamePatternIndex([compiled(f"^q{number}[a-z]*x$") for number in range(SET_SIZE)])
    for _ in range(LOOKUPS_MIN):
        index.first("none")
    tried.clear()
    assert index.first(f"q{SET_SIZE - 1}x") == SET_SIZE - 1
    assert len(tried) == SET_SIZE


def test_search_without_memory_is_not_taken_for_no_match() -> None:
    automaton = PatternSet([compiled("a").wanted[0]])
    assert automaton.matching("b") == [] and automaton.matching("a") == [0]
    automaton._match = lambda name: None
    assert automaton.matching("a") is None
