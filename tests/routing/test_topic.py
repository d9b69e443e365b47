"""The topic exchange through its interface; test_trie.py tests the matching."""

from __future__ import annotations

import pytest

from amqpd.routing.topic import Topic


def test_patterns_and_counts() -> None:
    topic = Topic()
    topic.bind("stock.*.nyse", {}, "q1")
    topic.bind("stock.#", {}, "q1")
    topic.bind("stock.#", {"note": 1}, "q2")
    assert topic.match("stock.ibm.nyse", None) == {"q1", "q2"}
    topic.unbind("stock.#", {}, "q1")
    assert topic.match("stock.ibm.nyse", {"h": 1}) == {"q1", "q2"}
    assert topic.match("stock.ibm", None) == {"q2"}
    topic.unbind("stock.*.nyse", {}, "q1")
    assert topic.match("stock.ibm.nyse", None) == {"q2"}


@pytest.mark.parametrize("pattern", ["", ".", "#.#.#", "a*b", ".".join(["#"] * 100), "x" * 255, "a\udcffb"])
def test_every_pattern_is_accepted(pattern: str) -> None:
    topic = Topic()
    topic.validate(pattern, {"x-match": 23})
    topic.bind(pattern, {}, "q")
    assert topic.match(pattern, None) == {"q"}
