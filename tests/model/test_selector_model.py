"""Model test: selectors against a twin that evaluates the tree in three-valued logic without generated code.

Trees are drawn and written in one of their many spellings. Parsing must return the same tree, which is then evaluated
on messages whose headers have any type.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from decimal import Decimal
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.routing import selector_ast as nodes
from amqpd.routing.base import BadSelector
from amqpd.routing.selector import Selector, parse_selector
from amqpd.routing.selector_ast import WILDCARD_CHARACTERS_MAX, parse_like_pattern

# -- the twin ----------------------------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and value == value


def bounded(value: float) -> float | None:
    if isinstance(value, int) and abs(value) > 2**63:
        value = float(value)
    return None if value != value else value


def exact(value: object) -> float:
    return float(value) if isinstance(value, Decimal) else value  # type: ignore[return-value]


def value_of(node: nodes.Value, headers: Mapping[str, object]) -> object:
    if isinstance(node, nodes.Constant):
        return node.value
    if isinstance(node, nodes.Header):
        return headers.get(node.name)
    if isinstance(node, nodes.BooleanValue):
        return truth_of(node.condition, headers)
    if isinstance(node, nodes.Negative):
        value = value_of(node.value, headers)
        return bounded(-exact(value)) if is_number(value) else None
    assert isinstance(node, nodes.Arithmetic)
    left, right = value_of(node.left, headers), value_of(node.right, headers)
    if not is_number(left) or not is_number(right):
        return None
    dividend, divisor = exact(left), exact(right)
    if node.operator == "+":
        return bounded(dividend + divisor)
    if node.operator == "-":
        return bounded(dividend - divisor)
    if node.operator == "*":
        return bounded(dividend * divisor)
    if divisor == 0:
        return None
    if node.operator == "/":
        return bounded(dividend / divisor)
    if math.isinf(dividend):
        return None
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend - divisor * (abs(dividend) // abs(divisor)) * (1 if (dividend < 0) == (divisor < 0) else -1)
    return bounded(math.fmod(dividend, divisor))


def same_kind(left: object, right: object) -> bool:
    if is_number(left) and is_number(right):
        return True
    return any(isinstance(left, kind) and isinstance(right, kind) for kind in (str, bool, bytes, bytearray))


def compare(operator: str, left: object, right: object) -> bool | None:
    if left is None or right is None:
        return None
    if not same_kind(left, right):
        return False
    if is_number(left):
        left, right = exact(left), exact(right)
    if operator == "=":
        return left == right
    if operator == "<>":
        return left != right
    if not is_number(left) and not isinstance(left, str):
        return False
    assert isinstance(left, (int, float, str))
    return {
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,  # type: ignore[operator]
    }[operator]  # fmt: skip


def naive_like(text: str, pattern: str, escape: str) -> bool:
    if not pattern:
        return not text
    if escape and pattern[0] == escape:
        return bool(text) and text[0] == pattern[1] and naive_like(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(naive_like(text[start:], pattern[1:], escape) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and naive_like(text[1:], pattern[1:], escape)


def choices_of(node: nodes.OneOf) -> frozenset[nodes.Constant]:
    return cast("frozenset[nodes.Constant]", node.parts[1])


def pattern_of(node: nodes.Like) -> tuple[str, str]:
    """Return the pattern and its escape character."""
    return cast("tuple[str, str]", node.parts[1:])


def truth_of(node: nodes.Condition, headers: Mapping[str, object]) -> bool | None:
    if isinstance(node, nodes.Not):
        truth = truth_of(node.condition, headers)
        return None if truth is None else not truth
    if isinstance(node, (nodes.And, nodes.Or)):
        truths = [truth_of(part, headers) for part in node.conditions]
        decisive = isinstance(node, nodes.Or)
        return decisive if decisive in truths else None if None in truths else not decisive
    if isinstance(node, nodes.IsNull):
        return value_of(node.value, headers) is None
    if isinstance(node, nodes.IsTrue):
        value = value_of(node.value, headers)
        return value if isinstance(value, bool) else None
    if isinstance(node, nodes.OneOf):
        value = value_of(node.value, headers)
        return None if value is None else any(compare("=", value, choice.value) for choice in choices_of(node))
    if isinstance(node, nodes.Like):
        value = value_of(node.value, headers)
        return naive_like(value, *pattern_of(node)) if isinstance(value, str) else None
    assert isinstance(node, nodes.Compare)
    return compare(node.operator, value_of(node.left, headers), value_of(node.right, headers))


# -- trees -------------------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "x-y", "AND", "d e]", "absent"]
TEXTS = st.text("ab_%'\"\\\n!ü", max_size=5)
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, -2.0, 1e300, 2**63 - 1, -(2**63)]),
    st.floats(allow_nan=False, allow_infinity=False),
)
CONSTANTS = st.one_of(TEXTS, NUMBERS, st.booleans()).map(nodes.Constant)
NUMBER_CONSTANTS = NUMBERS.map(nodes.Constant)
HEADERS = st.sampled_from(NAMES).map(nodes.Header)
VALUES_OF_HEADERS = st.one_of(
    st.none(), TEXTS, NUMBERS, st.booleans(), st.just(math.nan), st.just(math.inf), st.just(Decimal("0.5")),
    st.just([1]), st.just({"a": 1}), st.just(b"\xff"), st.builds(bytearray, st.just(b"ab")),
)  # fmt: skip
MESSAGES = st.dictionaries(st.sampled_from(NAMES[:-1]), VALUES_OF_HEADERS)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, str]:
    escape = draw(st.sampled_from(["", "", "!", "a"]))
    pattern = draw(st.text("ab_%%!\n", max_size=8))
    try:
        parse_like_pattern(pattern, escape)
    except BadSelector:
        return "a%", ""
    return pattern, escape


def like(value: nodes.Value, pattern: tuple[str, str]) -> nodes.Like:
    return nodes.Like(value, *pattern)


def joined(kind: type[nodes.And | nodes.Or]) -> st.SearchStrategy[nodes.Condition]:
    def flat(parts: list[nodes.Condition]) -> nodes.Condition:
        found: list[nodes.Condition] = []
        for part in parts:
            found += part.conditions if isinstance(part, kind) else (part,)
        return kind(tuple(found))

    return st.lists(st.deferred(lambda: CONDITIONS), min_size=2, max_size=3).map(flat)


ARITHMETIC_VALUES = st.deferred(lambda: st.one_of(HEADERS, NUMBER_CONSTANTS, ARITHMETIC))
ARITHMETIC: st.SearchStrategy[nodes.Value] = st.one_of(
    st.builds(nodes.Arithmetic, st.sampled_from("+-*/%"), ARITHMETIC_VALUES, ARITHMETIC_VALUES),
    st.builds(
        nodes.Negative, st.one_of(HEADERS, ARITHMETIC_VALUES.filter(lambda v: not isinstance(v, nodes.Constant)))
    ),
)
VALUES: st.SearchStrategy[nodes.Value] = st.deferred(
    lambda: st.one_of(
        HEADERS,
        HEADERS,
        CONSTANTS,
        ARITHMETIC,
        st.builds(nodes.BooleanValue, LEAVES.filter(lambda leaf: not isinstance(leaf, nodes.IsTrue))),
    )
)
LEAVES: st.SearchStrategy[nodes.Condition] = st.deferred(
    lambda: st.one_of(
        st.builds(nodes.Compare, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), VALUES, VALUES),
        st.builds(nodes.IsNull, VALUES),
        st.builds(nodes.IsTrue, HEADERS),
        st.builds(nodes.OneOf, VALUES, st.frozensets(CONSTANTS, min_size=1, max_size=4)),
        st.builds(like, VALUES, patterns()),
    )
)
CONDITIONS: st.SearchStrategy[nodes.Condition] = st.deferred(
    lambda: st.one_of(LEAVES, LEAVES, st.builds(nodes.Not, CONDITIONS), joined(nodes.And), joined(nodes.Or))
)


# -- spellings ---------------------------------------------------------------------------------------------------------


def spelling(node: nodes.SelectorNode, rng: random.Random) -> str:
    """Return one of the texts that mean `node`, with everything except names and constants in parentheses."""

    def inner(part: nodes.SelectorNode) -> str:
        return f"({spaced(spelling(part, rng), rng)})"

    def word(text: str) -> str:
        return rng.choice([text, text.lower(), text.title()])

    if isinstance(node, nodes.Constant):
        return constant(node, rng)
    if isinstance(node, nodes.Header):
        if node.name.isidentifier() and node.name != "AND" and rng.random() < 0.7:
            return rng.choice(["", "", "a.", "application-properties."]) + node.name
        return "[" + node.name.replace("]", "]]") + "]"
    if isinstance(node, nodes.BooleanValue):
        return inner(node.condition)
    if isinstance(node, nodes.Negative):
        return "-" + inner(node.value)
    if isinstance(node, (nodes.Arithmetic, nodes.Compare)):
        operator = rng.choice(["<>", "!="]) if node.operator == "<>" else node.operator
        return spaced(inner(node.left), rng) + operator + spaced(inner(node.right), rng)
    if isinstance(node, nodes.IsTrue):
        return spelling(node.value, rng)
    if isinstance(node, nodes.IsNull):
        return f"{inner(node.value)} {word('IS')} {word('NULL')}"
    if isinstance(node, nodes.OneOf):
        return f"{inner(node.value)} {word('IN')} ({' , '.join(constant(choice, rng) for choice in choices_of(node))})"
    if isinstance(node, nodes.Like):
        pattern, escape = pattern_of(node)
        ending = f" {word('ESCAPE')} {quoted(escape, rng)}" if escape else ""
        return f"{inner(node.value)} {word('LIKE')} {quoted(pattern, rng)}{ending}"
    if isinstance(node, nodes.Not):
        return f"{word('NOT')} {inner(node.condition)}"
    assert isinstance(node, (nodes.And, nodes.Or))
    return f" {word(type(node).__name__.upper())} ".join([inner(part) for part in node.conditions])


def spaced(text: str, rng: random.Random) -> str:
    return rng.choice(["", "", " ", "\n\t"]) + text + rng.choice(["", "", " "])


def quoted(text: str, rng: random.Random) -> str:
    quote = rng.choice("'\"")
    return quote + text.replace(quote, quote * 2) + quote


def constant(node: nodes.Constant, rng: random.Random) -> str:
    if isinstance(node.value, bool):
        return rng.choice(["TRUE", "true"]) if node.value else rng.choice(["FALSE", "False"])
    if isinstance(node.value, str):
        return quoted(node.value, rng)
    return repr(node.value)


@settings(max_examples=examples(400), deadline=None)
@given(condition=CONDITIONS, messages=st.lists(MESSAGES, min_size=1, max_size=8), rng=st.randoms(use_true_random=False))
def test_parsed_selector_evaluates_like_its_tree(
    condition: nodes.Condition, messages: list[dict[str, object]], rng: random.Random
) -> None:
    text = spelling(condition, rng)
    try:
        selector = parse_selector(text)
    except BadSelector as error:
        error_text = str(error)
    else:
        error_text = ""
    if error_text:
        assert "more than" in error_text or "deeper" in error_text or str(WILDCARD_CHARACTERS_MAX) in error_text
        return
    assert selector.condition == condition
    for headers in messages:
        assert selector.matches(View(headers)) is (truth_of(condition, headers) is True), text
        opposite = Selector(text, nodes.Not(condition))
        assert opposite.matches(View(headers)) is (truth_of(condition, headers) is False), text


class View(nodes.Selectable):
    def __init__(self, headers: dict[str, object]) -> None:
        self.table = headers

    def headers(self) -> dict[str, object]:
        return self.table

    def field(self, number: int) -> object:
        raise AssertionError(number)


@settings(max_examples=examples(1000), deadline=None)
@given(text=st.text("abü\n%_", max_size=10), pattern=patterns())
def test_like_pattern_matches_like_naive_twin(text: str, pattern: tuple[str, str]) -> None:
    assert parse_like_pattern(*pattern).matches(text) is naive_like(text, *pattern)


TOKENS = [
    *"ab()'\"[]=<>!+-*/%,.$~1\n ",
    *("AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "BETWEEN", "ESCAPE", "TRUE", "UTC()", "p.type", "h.priority"),
    *("a.b", "0x1", "1e5", "'x%'", "\x00", "ü", "JMSType", "a=1"),
]


@settings(max_examples=examples(500), deadline=None)
@given(text=st.lists(st.sampled_from(TOKENS)).map(" ".join) | st.text(max_size=30))
def test_any_text_parses_or_raises_short_printable_error(text: str) -> None:
    try:
        selector = parse_selector(text)
    except BadSelector as error:
        error_text = str(error)
    else:
        error_text = ""
    if error_text:
        assert error_text.isprintable() and len(error_text) < 200
        return

    class Anything(View):
        def field(self, number: int) -> object:
            return None

    selector.matches(Anything({"a": 1, "b": "x"}))
