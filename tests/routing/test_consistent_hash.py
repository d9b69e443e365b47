"""x-consistent-hash: shares by weight, and no unnecessary moves."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.routing import base
from amqpd.routing.base import BadBinding
from amqpd.routing.hashing import ConsistentHash, parse_weight
from amqpd.routing.message_exchange import RoutedMessage
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.selector_fields import MESSAGE_ID, TIMESTAMP

KEYS = [f"order-{number}" for number in range(20_000)]


class PropertyMessage(Selectable):
    """A message with one property."""

    def __init__(self, number: int, value: object) -> None:
        super().__init__()
        self.number, self.value = number, value

    def headers(self) -> dict[str, object]:
        return {}

    def field(self, number: int) -> object:
        return self.value if number == self.number else None


def exchange_with(weights: dict[str, int]) -> ConsistentHash:
    exchange = ConsistentHash()
    for name, weight in weights.items():
        exchange.bind(str(weight), {}, name)
    return exchange


def route_one(exchange: ConsistentHash, key: str) -> object:
    (destination,) = exchange.match(key, None)
    assert exchange.route([key, "cc", "bcc"], RoutedMessage(key, {})) == [destination]
    return destination


def chi_square(found: Counter[object], weights: dict[str, int]) -> float:
    count, together = sum(found.values()), sum(weights.values())
    return sum((found[name] - (due := count * weight / together)) ** 2 / due for name, weight in weights.items())


@pytest.mark.parametrize(
    ("weights", "critical"),
    # The last column: chi-square of p = 0.001 for one degree of freedom less than there are queues.
    [
        ({"q0": 10, "q1": 10, "q2": 20, "q3": 20}, 16.27),  # the example of RabbitMQ's documentation
        ({"q0": 1, "q1": 1, "q2": 2, "q3": 2}, 16.27),
        ({f"q{number}": 1 for number in range(10)}, 27.88),
        ({f"q{number}": number + 1 for number in range(10)}, 27.88),
        ({f"orders.{number}": 1 for number in range(100)}, 148.2),
        ({"few": 1, "many": 1000}, 10.83),
    ],
)
def test_each_binding_gets_the_share_of_its_weight(weights: dict[str, int], critical: float) -> None:
    exchange = exchange_with(weights)
    assert chi_square(Counter(route_one(exchange, key) for key in KEYS), weights) < critical


def test_neighbouring_keys_are_spread() -> None:
    weights = {"a": 1, "b": 1, "c": 1}
    for keys in (map(str, range(9000)), map(chr, range(1, 9000)), (f"{n:08}" for n in range(0, 900_000, 100))):
        exchange = exchange_with(weights)
        assert chi_square(Counter(route_one(exchange, key) for key in keys), weights) < 13.8


def test_removing_a_binding_moves_only_its_keys() -> None:
    weights = {f"q{number}": number % 3 + 1 for number in range(30)}
    exchange = exchange_with(weights)
    before = {key: route_one(exchange, key) for key in KEYS[:5000]}
    exchange.unbind("2", {}, "q7")
    after = {key: route_one(exchange, key) for key in before}
    assert {before[key] for key in before if before[key] != after[key]} == {"q7"}
    assert len(set(after.values())) == 29
    exchange.bind("2", {}, "q7")
    assert {key: route_one(exchange, key) for key in before} == before


def test_a_larger_weight_moves_keys_only_to_its_binding() -> None:
    exchange = exchange_with({"a": 1, "b": 1, "c": 1})
    before = {key: route_one(exchange, key) for key in KEYS[:5000]}
    exchange.bind("2", {"another": 1}, "a")
    moved = {route_one(exchange, key) for key in before if route_one(exchange, key) != before[key]}
    assert moved == {"a"}
    exchange.unbind("1", {}, "a")
    exchange.unbind("2", {"another": 1}, "a")
    assert "a" not in {route_one(exchange, key) for key in before}


@given(st.permutations([(f"q{number}", number % 4 + 1) for number in range(12)]), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_the_order_of_declarations_does_not_matter(order: list[tuple[str, int]], data: st.DataObject) -> None:
    unbound = data.draw(st.sets(st.sampled_from([name for name, _ in order]), max_size=8))
    exchange = exchange_with(dict(order))
    for name, weight in order:
        if name in unbound:
            exchange.unbind(str(weight), {}, name)
    expected = exchange_with({name: weight for name, weight in sorted(order) if name not in unbound})
    for key in KEYS[:60]:
        assert route_one(exchange, key) == route_one(expected, key)


def test_every_process_makes_the_same_choice() -> None:
    program = (
        "from amqpd.routing.hashing import ConsistentHash\n"
        "x = ConsistentHash()\n"
        "for n in range(9): x.bind('2', {}, f'q{n}')\n"
        "print([min(x.match(f'k{n}', None)) for n in range(12)])"
    )
    exchange = exchange_with({f"q{number}": 2 for number in range(9)})
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == str([route_one(exchange, f"k{number}") for number in range(12)])
    # Every version must make the same choice: queues keep their messages over an upgrade.
    assert [route_one(exchange, f"k{number}") for number in range(12)] == FROZEN


FROZEN = ["q7", "q3", "q4", "q0", "q5", "q0", "q6", "q4", "q8", "q2", "q6", "q0"]


def test_without_bindings() -> None:
    exchange = exchange_with({"a": 1})
    exchange.unbind("1", {}, "a")
    assert exchange.route(["k"], RoutedMessage("k", {})) == [] and exchange.match("k", None) == set()
    with pytest.raises(KeyError):
        exchange.unbind("1", {}, "a")


def test_hash_of_a_header() -> None:
    exchange = exchange_with({f"q{number}": 1 for number in range(8)})
    exchange.configure({"hash-header": "customer"})
    assert exchange.depends_on == base.HEADERS

    def routes_of(*values: object) -> list[object]:
        return [exchange.route(["k"], RoutedMessage(f"k{value}", {"customer": value}))[0] for value in values]

    assert len(set(routes_of(*range(100)))) == 8
    first = routes_of("x", b"\xff", 7, 1.5, True, [1, {"b": 1, "a": 2}])
    assert first == routes_of("x", b"\xff", 7, 1.5, True, [1, {"a": 2, "b": 1}])
    without = {exchange.route([f"k{n}"], RoutedMessage(f"k{n}", {"other": n}))[0] for n in range(50)}
    assert len(without) == 1


@pytest.mark.parametrize(("name", "number"), [("message_id", MESSAGE_ID), ("timestamp", TIMESTAMP)])
def test_hash_of_a_property(name: str, number: int) -> None:
    exchange = exchange_with({f"q{n}": 1 for n in range(8)})
    exchange.configure({"hash-property": name})
    assert exchange.depends_on == base.PROPERTIES
    assert len({exchange.route(["k"], PropertyMessage(number, f"{n}"))[0] for n in range(200)}) == 8
    assert len({exchange.route([f"k{n}"], PropertyMessage(number, None))[0] for n in range(50)}) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "The binding key must be an integer: <<>>"),
        ("x", 'The binding key must be an integer: <<"x">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("１", 'The binding key must be an integer: <<"１">>'),
        ("0", "The binding key must be greater than 0"),
        ("-3", "The binding key must be greater than 0"),
    ],
)
def test_invalid_weights_are_rejected(key: str, text: str) -> None:
    with pytest.raises(BadBinding) as refused:
        ConsistentHash().validate(key, {})
    assert str(refused.value) == text


def test_weights_may_be_large() -> None:
    assert parse_weight("+5") == 5 and parse_weight("007") == 7
    exchange = exchange_with({"a": 1, "b": 10**254})
    assert {route_one(exchange, key) for key in KEYS[:100]} == {"b"}


def test_ten_thousand_bindings() -> None:
    exchange = ConsistentHash()
    for number in range(10_000):
        exchange.bind("1", {}, f"q{number}")
        if number % 100 == 0:
            exchange.match("k", None)
    assert len({route_one(exchange, key) for key in KEYS[:200]}) > 190
    for number in range(10_000):
        exchange.unbind("1", {}, f"q{number}")
    assert exchange.match("k", None) == set()
