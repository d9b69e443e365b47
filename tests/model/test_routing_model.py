"""Model tests: the topic trie and the headers index against twins that compare every binding with every message."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from profiles import examples

from amqpd.routing.headers import Headers
from amqpd.routing.jms_topic import JmsTopic
from amqpd.routing.message_exchange import RoutedMessage
from amqpd.routing.selector import parse_selector
from amqpd.routing.topic import TopicTrie

DESTINATIONS = st.sampled_from(["q1", "q2", "q3"])


# -- topic -------------------------------------------------------------------------------------------------------------

WORDS = ["a", "b", "", "*", "#"]
PATTERNS = st.lists(st.sampled_from([*WORDS, "*", "#", "#"]), max_size=7).map(".".join)
KEYS = st.lists(st.sampled_from(WORDS), max_size=7).map(".".join)


def naive_accepts(pattern: Sequence[str], key: Sequence[str]) -> bool:
    """Match word by word as in the specification, and try every length for `#`."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(naive_accepts(pattern[1:], key[count:]) for count in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and naive_accepts(pattern[1:], key[1:])


def words(text: str) -> list[str]:
    return text.split(".") if text else []


def naive_match(bindings: list[tuple[str, str]], key: str) -> set[object]:
    return {destination for pattern, destination in bindings if naive_accepts(words(pattern), words(key))}


class TopicTwins(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trie = TopicTrie()
        self.bindings: list[tuple[str, str]] = []

    @rule(pattern=PATTERNS, destination=DESTINATIONS)
    def bind(self, pattern: str, destination: str) -> None:
        self.trie.add(pattern, destination)
        self.bindings.append((pattern, destination))

    @precondition(lambda self: self.bindings)
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        pattern, destination = self.bindings.pop(data.draw(st.integers(0, len(self.bindings) - 1)))
        self.trie.remove(pattern, destination)

    @rule(key=KEYS)
    def publish(self, key: str) -> None:
        assert self.trie.match(key) == naive_match(self.bindings, key)

    @invariant()
    def trie_has_no_needless_nodes(self) -> None:
        assert self.trie.node_count() <= sum(len(words(pattern)) for pattern, _ in self.bindings)

    def teardown(self) -> None:
        for pattern, destination in self.bindings:
            self.trie.remove(pattern, destination)
        assert self.trie.node_count() == 0


TopicTwins.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestTopicTwins = TopicTwins.TestCase


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PATTERNS, max_size=12), st.lists(KEYS, min_size=1, max_size=8))
def test_trie_matches_like_naive_twin(patterns: list[str], keys: list[str]) -> None:
    trie = TopicTrie()
    bindings = [(pattern, f"{number} {pattern}") for number, pattern in enumerate(patterns)]
    for pattern, destination in bindings:
        trie.add(pattern, destination)
    for key in keys:
        assert trie.match(key) == naive_match(bindings, key)


# -- headers -----------------------------------------------------------------------------------------------------------


class Timestamp(int):
    """A stand-in for the codec's timestamp type."""


NAMES = st.sampled_from(["a", "b", "c", "x-a", "x-b"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, "1", "", Timestamp(1), bytearray(b"1"), b"\xff"])
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.sampled_from("pq"), SCALARS, max_size=2))
TABLES = st.dictionaries(NAMES, VALUES, max_size=4)
MODES = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def same(left: object, right: object) -> bool:
    """Return whether two values are equal and have equal types, item by item."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(mine, yours) for mine, yours in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return left == right


def naive_holds(arguments: dict[str, object], headers: dict[str, object] | None) -> bool:
    mode = str(arguments.get("x-match", "all"))
    answers = [
        name in (headers or {}) and (expected is None or same(expected, (headers or {})[name]))
        for name, expected in arguments.items()
        if name != "x-match" and (mode.endswith("-with-x") or not name.startswith("x-"))
    ]
    return all(answers) if mode.startswith("all") else any(answers)


class HeadersTwins(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.exchange = Headers()
        self.bindings: list[tuple[dict[str, object], str]] = []

    @rule(table=TABLES, mode=MODES, destination=DESTINATIONS)
    def bind(self, table: dict[str, object], mode: str | None, destination: str) -> None:
        arguments = table if mode is None else {**table, "x-match": mode}
        self.exchange.validate("", arguments)
        self.exchange.bind("", arguments, destination)
        self.bindings.append((arguments, destination))

    @precondition(lambda self: self.bindings)
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        arguments, destination = self.bindings.pop(data.draw(st.integers(0, len(self.bindings) - 1)))
        self.exchange.unbind("", dict(reversed(list(arguments.items()))), destination)

    @rule(headers=st.none() | TABLES)
    def publish(self, headers: dict[str, object] | None) -> None:
        expected = {destination for arguments, destination in self.bindings if naive_holds(arguments, headers)}
        assert self.exchange.match("", headers) == expected

    @precondition(lambda self: self.bindings)
    @rule(data=st.data(), more=TABLES)
    def publish_message_that_matches_a_binding(self, data: st.DataObject, more: dict[str, object]) -> None:
        arguments, _ = data.draw(st.sampled_from(self.bindings))
        self.publish({**more, **arguments})

    def teardown(self) -> None:
        for arguments, destination in self.bindings:
            self.exchange.unbind("", arguments, destination)
        assert self.exchange.is_empty()


HeadersTwins.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestHeadersTwins = HeadersTwins.TestCase


# -- x-jms-topic -------------------------------------------------------------------------------------------------------

SELECTORS = st.sampled_from(
    [
        "a = 'x'",
        "a='x'",
        "'y' = a AND b > 1",
        "a = 'x' AND b IS NULL",
        "b > 1",
        "b = 1 OR a = 'x'",
        "NOT a = 'x'",
        "",
        "c = 'x'",
    ]
)
SELECTED = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y", 1, 2, True, [1]]))


class JmsTopicTwins(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.exchange = JmsTopic()
        self.bindings: list[tuple[str, str]] = []

    @rule(selector=SELECTORS, destination=DESTINATIONS)
    def bind(self, selector: str, destination: str) -> None:
        if (selector, destination) not in self.bindings:
            self.exchange.bind("", {"x-selector": selector}, destination)
            self.bindings.append((selector, destination))

    @precondition(lambda self: self.bindings)
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        selector, destination = self.bindings.pop(data.draw(st.integers(0, len(self.bindings) - 1)))
        self.exchange.unbind("", {"x-selector": selector}, destination)

    @rule(headers=SELECTED)
    def publish(self, headers: dict[str, object]) -> None:
        message = RoutedMessage("", headers)
        expected = {destination for selector, destination in self.bindings if parse_selector(selector).matches(message)}
        assert self.exchange.match("", headers or None) == expected

    @invariant()
    def exchange_is_empty_without_bindings(self) -> None:
        assert self.exchange.is_empty() is not bool(self.bindings)


JmsTopicTwins.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestJmsTopicTwins = JmsTopicTwins.TestCase
