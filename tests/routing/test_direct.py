"""The direct exchange."""

from __future__ import annotations

from amqpd.routing.direct_fanout import Direct


def test_a_key_matches_bindings_with_exactly_this_key() -> None:
    direct = Direct()
    direct.bind("red", {}, "q1")
    direct.bind("red", {}, "q2")
    direct.bind("blue", {}, "q2")
    assert direct.match("red", None) == {"q1", "q2"}
    assert direct.match("blue", {"any": "header"}) == {"q2"}
    assert direct.match("Red", None) == set()


def test_wildcards_are_ordinary_words() -> None:
    direct = Direct()
    direct.bind("a.*", {}, "q1")
    direct.bind("#", {}, "q2")
    assert direct.match("a.b", None) == set()
    assert direct.match("a.*", None) == {"q1"}


def test_the_empty_key() -> None:
    direct = Direct()
    direct.bind("", {}, "q")
    assert direct.match("", None) == {"q"}
    assert direct.match("x", None) == set()


def test_bindings_that_differ_in_arguments_are_counted() -> None:
    direct = Direct()
    direct.bind("k", {}, "q")
    direct.bind("k", {"note": 1}, "q")
    direct.unbind("k", {}, "q")
    assert direct.match("k", None) == {"q"}
    direct.unbind("k", {"note": 1}, "q")
    assert direct.match("k", None) == set()


def test_an_unknown_key_returns_a_new_empty_set() -> None:
    direct = Direct()
    direct.match("k", None).add("stray")
    assert direct.match("k", None) == set()
