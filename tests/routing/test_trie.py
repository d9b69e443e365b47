"""Topic patterns: matches, removal, the cost of hostile patterns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqpd.routing.topic import TopicTrie, normalize_pattern


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", "A.b", ""]),
        ("", [""], ["a", "."]),
        ("*", ["a", "*", "#"], ["", ".", "a.b"]),
        ("#", ["", "a", ".", "a.b.c", "..."], []),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#", ["a", "a.b", ".", ".."], [""]),
        ("#.*", ["a", "a.b", "."], [""]),
        ("#.*.#", ["a", "a.b", "."], [""]),
        ("a.*", ["a.", "a.b"], ["a", "a.b.c", ""]),
        ("a.*.b", ["a..b", "a.x.b"], ["a.b", "a.x.y.b"]),
        ("*.*", [".", "a.", ".a", "a.b"], ["", "a", ".."]),
        ("a.#", ["a", "a.", "a.b", "a.b.c"], ["", "b", "ab"]),
        ("#.a", ["a", ".a", "b.a", "a.a", "a.b.a"], ["", "a.", "a.b"]),
        ("a.#.b", ["a.b", "a..b", "a.b.b", "a.x.y.b", "a.b.x.b"], ["a", "b", "a.b.c", "x.a.b"]),
        ("#.a.#", ["a", "x.a", "a.x", "x.a.y", "a.a.a"], ["", "b", "b.c"]),
        ("#.a.*.#.b", ["a.x.b", "q.a.x.y.b", "a.b.b", "a.a.b"], ["a.b", "a.x", "a.x.b.c"]),
        ("a*", ["a*"], ["ab", "a", "a.b"]),
        ("a.##", ["a.##"], ["a", "a.b"]),
        (".", ["."], ["", "a", ".."]),
        ("a.", ["a."], ["a", "a.b"]),
        ("\udce9.*", ["\udce9.x"], ["é.x"]),
    ],
)
def test_keys_that_a_pattern_matches(pattern: str, accepted: list[str], refused: list[str]) -> None:
    trie = TopicTrie()
    trie.add(pattern, "q")
    trie.add("some.other.*.pattern.#", "elsewhere")
    assert [key for key in accepted + refused if trie.match(key) == {"q"}] == accepted


def test_a_node_with_one_and_with_several_literals() -> None:
    """One literal is stored in the node, several in a dict; the change must lose none."""
    trie = TopicTrie()
    patterns = ["a.x.*", "a.y.*", "a.z.*", "#.x", "#.y"]
    for count, pattern in enumerate(patterns):
        trie.add(pattern, pattern)
        assert {each for key in ("a.x.1", "a.y.1", "a.z.1", "b.x", "b.y") for each in trie.match(key)} == {
            *patterns[: count + 1]
        }
    for count, pattern in enumerate(patterns):
        trie.remove(pattern, pattern)
        assert {each for key in ("a.x.1", "a.y.1", "a.z.1", "b.x", "b.y") for each in trie.match(key)} == {
            *patterns[count + 1 :]
        }
    assert trie.node_count() == 0
    trie.add("a.w.*", "again")
    assert trie.match("a.w.1") == {"again"}
    assert trie.match("a.x.1") == set()


def test_a_pattern_without_wildcards_among_others() -> None:
    trie = TopicTrie()
    trie.add("a.b", "plain")
    trie.add("a.b", "plain too")
    trie.add("a.*", "star")
    assert trie.match("a.b") == {"plain", "plain too", "star"}
    trie.remove("a.b", "plain")
    assert trie.match("a.b") == {"plain too", "star"}
    trie.remove("a.b", "plain too")
    assert trie.match("a.b") == trie.match("a.*") == {"star"}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", []),
        ("a.b", ["a", "b"]),
        ("#.#.#", ["#"]),
        ("#.*.#.*", ["*", "*", "#"]),
        ("a.#.*.b.*.#", ["a", "*", "#", "b", "*", "#"]),
        ("#.a.#", ["#", "a", "#"]),
        (".", ["", ""]),
    ],
)
def test_patterns_are_normalized(pattern: str, words: list[str]) -> None:
    assert normalize_pattern(pattern) == words


def test_each_destination_is_returned_once() -> None:
    trie = TopicTrie()
    for pattern in ("a.b", "a.*", "*.b", "#", "a.#", "#.b", "#.a.#.b"):
        trie.add(pattern, "q")
    trie.add("a.#", "r")
    assert trie.match("a.b") == {"q", "r"}


def test_patterns_with_the_same_meaning_are_two_bindings() -> None:
    trie = TopicTrie()
    trie.add("#.*", "q")
    trie.add("*.#", "q")
    trie.remove("#.*", "q")
    assert trie.match("a.b") == {"q"}
    trie.remove("*.#", "q")
    assert trie.match("a.b") == set()


def test_removal_keeps_patterns_that_share_the_path() -> None:
    trie = TopicTrie()
    trie.add("a.*", "q1")
    trie.add("a.*", "q2")
    trie.add("a.*.c", "q3")
    trie.add("a.#", "q4")
    trie.remove("a.*", "q1")
    assert trie.match("a.b") == {"q2", "q4"}
    trie.remove("a.*", "q2")
    assert trie.match("a.b") == {"q4"}
    assert trie.match("a.b.c") == {"q3", "q4"}
    trie.remove("a.*.c", "q3")
    trie.remove("a.#", "q4")
    assert trie.match("a.b.c") == set()


def test_removal_removes_the_nodes() -> None:
    trie = TopicTrie()
    patterns = ["a.b.*.c.#.d", "a.b.*", "#", "*.#.x", "a.b.*.c", "plain.words"]
    for pattern in patterns:
        trie.add(pattern, "q")
    for pattern in patterns:
        trie.remove(pattern, "q")
    assert trie.node_count() == 0


def test_patterns_without_wildcards_need_no_nodes() -> None:
    trie = TopicTrie()
    trie.add("a.b.c", "q")
    trie.add("", "r")
    assert trie.node_count() == 0
    assert trie.match("a.b.c") == {"q"}
    assert trie.match("") == {"r"}


def test_removing_an_unknown_pattern_raises_and_changes_nothing() -> None:
    trie = TopicTrie()
    trie.add("a.*", "q")
    for pattern, destination in [("a.*", "other"), ("a.#", "q"), ("a.b", "q")]:
        with pytest.raises(KeyError):
            trie.remove(pattern, destination)
    assert trie.match("a.b") == {"q"}


def test_a_match_does_not_affect_the_next() -> None:
    trie = TopicTrie()
    trie.add("#.a.#.b", "q")
    assert [trie.match(key) for key in ("a.b", "b", "a.b", "a", "x.a.y.b")] == [{"q"}, set(), {"q"}, set(), {"q"}]


@pytest.mark.parametrize(
    "pattern",
    [
        ".".join(["#"] * 128),
        ".".join(["#", "*"] * 64),
        ".".join(["#", "a"] * 64),
        ".".join(["#", "a", "*"] * 42),
        ".".join(["#", "a", "*", "a"] * 32),
        ".".join(["*", "#", "a"] * 42) + ".z",
    ],
)
@pytest.mark.parametrize("key", [".".join(["a"] * 128), ".".join(["a", "b"] * 64), "." * 255])
def test_no_pattern_costs_more_than_ten_milliseconds(pattern: str, key: str, processor_s: Callable[..., float]) -> None:
    trie = TopicTrie()
    trie.add(pattern, "q")
    trie.match(key)
    assert min(processor_s(lambda: trie.match(key)) for _ in range(5)) <= 0.010


def test_many_patterns_after_one_hash_cost_the_same_as_one(processor_s: Callable[..., float]) -> None:
    def best_match_s(pattern_count: int) -> float:
        trie = TopicTrie()
        for number in range(pattern_count):
            trie.add(f"#.evt{number}", number)
        assert trie.match("x.y.evt0") == {0}
        return min(processor_s(lambda: trie.match("x.y.evt0")) for _ in range(50))

    assert best_match_s(10_000) < 20 * best_match_s(1)  # a scan would cost thousands of times more
