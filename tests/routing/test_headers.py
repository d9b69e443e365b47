"""The headers exchange: combination of conditions, equality of values, errors."""

from __future__ import annotations

from decimal import Decimal

import pytest

from amqpd.routing.base import BadBinding
from amqpd.routing.headers import Headers, erlang_float, field_type_name


class Timestamp(int):
    """Like the codec's Timestamp: a subclass of int."""


def accepts(binding: dict[str, object], headers: dict[str, object] | None) -> bool:
    exchange = Headers()
    exchange.validate("", binding)
    exchange.bind("", binding, "q")
    exchange.bind("", {"x-match": "any", "nobody sends this": 1}, "elsewhere")
    return exchange.match("", headers) == {"q"}


@pytest.mark.parametrize(
    ("binding", "headers", "expected"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}, False),
        ({"a": 1, "b": "x"}, {}, False),
        ({"a": 1}, None, False),
        ({"x-match": "all", "a": 1}, {"a": 1}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {}, False),
        ({"x-match": "any", "a": 1}, None, False),
    ],
)
def test_x_match_all_and_any(binding: dict[str, object], headers: dict[str, object] | None, expected: bool) -> None:
    assert accepts(binding, headers) is expected


@pytest.mark.parametrize("headers", [None, {}, {"a": 1}, {"x-a": 1}])
def test_without_conditions_all_matches_and_any_does_not(headers: dict[str, object] | None) -> None:
    assert accepts({}, headers)
    assert accepts({"x-match": "all"}, headers)
    assert accepts({"x-match": "all-with-x"}, headers)
    assert not accepts({"x-match": "any"}, headers)
    assert not accepts({"x-match": "any-with-x"}, headers)


def test_names_with_x_count_only_with_x_modes() -> None:
    assert accepts({"x-a": 1}, None)
    assert accepts({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2})
    assert not accepts({"x-match": "any", "x-a": 1}, {"x-a": 1})
    assert accepts({"x-match": "any", "x-a": 1, "b": 2}, {"b": 2})
    assert accepts({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1})
    assert not accepts({"x-match": "all-with-x", "x-a": 1}, {"x-a": 2})
    assert not accepts({"x-match": "all-with-x", "x-a": 1}, None)
    assert accepts({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1})
    assert not accepts({"x-match": "any-with-x", "x-a": 1}, {"x-match": "any-with-x"})
    assert accepts({"X-a": 1}, {"X-a": 1})
    assert not accepts({"X-a": 1}, {})


def test_a_void_condition_requires_presence() -> None:
    assert accepts({"a": None}, {"a": 1})
    assert accepts({"a": None}, {"a": None})
    assert accepts({"a": None}, {"a": {"deep": [1]}})
    assert not accepts({"a": None}, {"b": 1})
    assert not accepts({"a": 1}, {"a": None})
    assert accepts({"x-match": "any", "a": None, "b": 1}, {"a": "whatever"})
    assert not accepts({"x-match": "any", "a": None, "b": 1}, {"b": 2})
    assert accepts({"a": None, "b": 1}, {"a": 5, "b": 1})
    assert not accepts({"a": None, "b": 1}, {"b": 1})


VALUES_OF_EVERY_CLASS: list[object] = [
    1,
    "1",
    True,
    1.0,
    Decimal(1),
    Timestamp(1),
    bytearray(b"1"),
    b"\xff",
    [1],
    [True],
    ["1"],
    {"1": 1},
    {"1": True},
    [],
    {},
    "",
    0,
    False,
    0.0,
    Timestamp(0),
    2**40,
]


@pytest.mark.parametrize("wanted", range(len(VALUES_OF_EVERY_CLASS)))
def test_values_are_equal_only_within_their_type_class(wanted: int) -> None:
    binding = {"h": VALUES_OF_EVERY_CLASS[wanted]}
    assert [n for n, value in enumerate(VALUES_OF_EVERY_CLASS) if accepts(binding, {"h": value})] == [wanted]
    binding_for_two: dict[str, object] = {"h": VALUES_OF_EVERY_CLASS[wanted], "also": None}
    matching = [n for n, value in enumerate(VALUES_OF_EVERY_CLASS) if accepts(binding_for_two, {"h": value, "also": 1})]
    assert matching == [wanted]


def test_equal_values_of_unusual_types() -> None:
    assert accepts({"h": {"a": [1, {"b": "c"}], "d": None}}, {"h": {"d": None, "a": [1, {"b": "c"}]}})
    assert not accepts({"h": [1, 2]}, {"h": [2, 1]})
    assert not accepts({"h": [None]}, {"h": [1]})
    assert accepts({"h": Decimal("1.50")}, {"h": Decimal("1.50")})
    assert not accepts({"h": Decimal("1.50")}, {"h": Decimal("1.5")})
    assert accepts({"h": 0.1}, {"h": 0.1})


def test_a_binding_on_nan_can_be_removed_again() -> None:
    exchange = Headers()
    exchange.bind("", {"h": float("nan")}, "q")
    exchange.unbind("", {"h": float("nan")}, "q")
    exchange.bind("", {"h": 1.0}, "r")
    assert exchange.match("", {"h": float("nan")}) == set()


def test_the_routing_key_is_ignored() -> None:
    exchange = Headers()
    exchange.bind("key", {"a": 1}, "q")
    assert exchange.match("other", {"a": 1}) == {"q"}
    exchange.bind("other", {"a": 1}, "q")
    exchange.unbind("key", {"a": 1}, "q")
    assert exchange.match("key", {"a": 1}) == {"q"}
    exchange.unbind("other", {"a": 1}, "q")
    assert exchange.match("key", {"a": 1}) == set()


def test_unbinding_keeps_bindings_that_share_conditions() -> None:
    exchange = Headers()
    one: dict[str, object] = {"a": 1, "b": 2}
    other_order: dict[str, object] = {"b": 2, "a": 1, "x-note": "ignored"}
    exchange.bind("", one, "q")
    exchange.bind("", other_order, "q")
    exchange.bind("", {**one, "x-match": "any"}, "r")
    exchange.unbind("", one, "q")
    assert exchange.match("", {"a": 1, "b": 2}) == {"q", "r"}
    assert exchange.match("", {"a": 1}) == {"r"}
    exchange.unbind("", other_order, "q")
    assert exchange.match("", {"a": 1, "b": 2}) == {"r"}
    exchange.unbind("", {**one, "x-match": "any"}, "r")
    assert exchange.match("", {"a": 1, "b": 2}) == set()
    assert exchange.is_empty()


def test_unbinding_removes_everything() -> None:
    exchange = Headers()
    bindings: list[dict[str, object]] = [
        {},
        {"x-match": "any"},
        {"a": None},
        {"a": 1},
        {"a": 1, "b": None},
        {"x-match": "any", "a": 1, "b": None},
        {"x-match": "any-with-x", "x-a": [1, {"b": 2}]},
    ]
    for binding in bindings:
        exchange.bind("", binding, "q")
    assert not exchange.is_empty()
    for binding in bindings:
        exchange.unbind("", binding, "q")
    assert exchange.is_empty()


def test_an_all_rule_is_indexed_under_its_rarest_condition() -> None:
    exchange = Headers()
    for number in range(100):
        exchange.bind("", {"format": "pdf", "customer": number}, number)
    assert exchange.match("", {"format": "pdf", "customer": 42}) == {42}
    assert {len(slot.all_rules) for slots in exchange._index.values() for slot in slots.values()} == {1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (23, "Invalid x-match field type signedint (value 23); expected longstr"),
        (2**40, f"Invalid x-match field type long (value {2**40}); expected longstr"),
        (True, "Invalid x-match field type bool (value true); expected longstr"),
        (None, "Invalid x-match field type void (value undefined); expected longstr"),
        (1.5, "Invalid x-match field type double (value 1.5); expected longstr"),
        (Decimal("-1.50"), "Invalid x-match field type decimal (value {2,-150}); expected longstr"),
        (Timestamp(7), "Invalid x-match field type timestamp (value 7); expected longstr"),
        (bytearray(b"all"), 'Invalid x-match field type binary (value <<"all">>); expected longstr'),
        (["all"], 'Invalid x-match field type array (value [{longstr,<<"all">>}]); expected longstr'),
        ({"a": 1}, 'Invalid x-match field type table (value [{<<"a">>,signedint,1}]); expected longstr'),
        ("foo", 'Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        ("All", 'Invalid x-match field value <<"All">>; expected all, any, all-with-x, or any-with-x'),
        ("", "Invalid x-match field value <<>>; expected all, any, all-with-x, or any-with-x"),
        (b"\xff\x01", "Invalid x-match field value <<255,1>>; expected all, any, all-with-x, or any-with-x"),
        ("caf\xe9\t", 'Invalid x-match field value <<"caf\xe9\\t">>; expected all, any, all-with-x, or any-with-x'),
        ("\0", "Invalid x-match field value <<0>>; expected all, any, all-with-x, or any-with-x"),
        ('a"b', 'Invalid x-match field value <<"a\\"b">>; expected all, any, all-with-x, or any-with-x'),
    ],
)
def test_an_invalid_x_match_is_rejected_with_the_texts_of_rabbitmq(value: object, text: str) -> None:
    exchange = Headers()
    with pytest.raises(BadBinding) as refused:
        exchange.validate("", {"x-match": value})
    assert str(refused.value) == text
    with pytest.raises(BadBinding):
        exchange.bind("", {"x-match": value}, "q")
    assert exchange.match("", {}) == set()


def test_the_type_name_of_an_integer_depends_on_its_width() -> None:
    assert [field_type_name(value) for value in (2**31 - 1, -(2**31))] == ["signedint", "signedint"]
    assert [field_type_name(value) for value in (2**31, -(2**31) - 1)] == ["long", "long"]


@pytest.mark.parametrize(
    "shown",
    [
        "0.0",
        "-0.0",
        "10.0",
        "100.0",
        "1.0e3",
        "1.23e5",
        "12.25",
        "-5.5",
        "0.001",
        "0.0001",
        "1.2e-4",
        "1.0e-7",
        "123456789.125",
        "1234567890123456.0",
        "9.007199254740992e15",
        "1.0e20",
        "5.0e-324",
    ],
)
def test_a_float_is_printed_as_in_erlang(shown: str) -> None:
    assert erlang_float(float(shown)) == shown
