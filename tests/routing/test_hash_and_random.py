"""x-modulus-hash, x-random and x-local-random: one binding per message, with equal shares."""

from __future__ import annotations

from collections import Counter
from random import Random as Chance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.routing import base
from amqpd.routing.base import BadBinding
from amqpd.routing.hashing import LocalRandom, ModulusHash, Random, mix_bits
from amqpd.routing.message_exchange import MessageExchangeType, RoutedMessage, destination_label

NONE = RoutedMessage("", {})


def route_one(exchange: MessageExchangeType, *keys: str) -> object:
    (destination,) = exchange.route(list(keys), NONE)
    return destination


@pytest.mark.parametrize("make", [ModulusHash, lambda: Random(Chance(5).random), lambda: LocalRandom(Chance(5).random)])
def test_each_binding_gets_an_equal_share(make: type[MessageExchangeType]) -> None:
    exchange = make()
    assert list(exchange.route(["k"], NONE)) == []
    for number in range(10):
        exchange.bind("", {}, f"q{number}")
    exchange.bind("", {"once": "more"}, "q0")
    found = Counter(route_one(exchange, f"key {number}") for number in range(22_000))
    expected = {f"q{number}": 4000 if number == 0 else 2000 for number in range(10)}
    assert sum((found[name] - expected[name]) ** 2 / expected[name] for name in expected) < 27.88  # p = 0.001
    for number in range(1, 10):
        exchange.unbind("", {}, f"q{number}")
    exchange.unbind("", {"once": "more"}, "q0")
    assert route_one(exchange, "k") == "q0"
    exchange.unbind("", {}, "q0")
    assert list(exchange.route(["k"], NONE)) == []
    with pytest.raises(KeyError):
        exchange.unbind("", {}, "q0")


@given(st.permutations([f"q{number}" for number in range(9)]))
@settings(max_examples=examples(30), deadline=None)
def test_modulus_hash_does_not_depend_on_the_order(order: list[str]) -> None:
    sorted_order, drawn_order = ModulusHash(), ModulusHash()
    for name in order:
        drawn_order.bind("", {}, name)
    for name in sorted(order):
        sorted_order.bind("", {}, name)
    assert [route_one(drawn_order, f"k{n}") for n in range(40)] == [route_one(sorted_order, f"k{n}") for n in range(40)]


def test_modulus_hash_does_not_change_between_versions() -> None:
    exchange = ModulusHash()
    for number in range(9):
        exchange.bind("", {}, f"q{number}")
    assert [route_one(exchange, f"k{number}") for number in range(12)] == FROZEN
    assert exchange.match("k0", None) == {FROZEN[0]}
    assert exchange.depends_on == base.ROUTING_KEY
    # RabbitMQ: all keys are hashed, also those of CC and BCC
    assert len({route_one(exchange, "k0", f"cc{number}") for number in range(100)}) == 9


FROZEN = ["q4", "q1", "q4", "q5", "q8", "q8", "q6", "q1", "q7", "q6", "q4", "q3"]


def test_each_message_gets_a_new_random_number() -> None:
    exchange = Random(iter([0.0, 0.5, 0.999999]).__next__)
    for name in "abc":
        exchange.bind("", {}, name)
    assert exchange.depends_on == base.RANDOMNESS
    assert [route_one(exchange, "k", "cc") for _ in range(3)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("exchange", "Destination not found"),
        ("quorum", "Queue type rabbit_quorum_queue not valid for this exchange type"),
        ("stream", "Queue type rabbit_stream_queue not valid for this exchange type"),
    ],
)
def test_local_random_accepts_only_classic_queues(kind: str, text: str) -> None:
    LocalRandom().validate_destination("classic")
    Random().validate_destination(kind)
    with pytest.raises(BadBinding, match=f"^{text}$"):
        LocalRandom().validate_destination(kind)


def test_local_random_accepts_only_the_empty_key() -> None:
    LocalRandom().validate("", {})
    with pytest.raises(BadBinding, match="^Non empty binding 'k' key not permitted$"):
        LocalRandom().validate("k", {})


def test_mixing_changes_half_of_the_bits() -> None:
    chance = Chance(1)
    for bit in range(32):
        changed = 0
        for _ in range(400):
            value, seed, second = (chance.getrandbits(32) for _ in range(3))
            changed += (mix_bits(value, seed, second) ^ mix_bits(value ^ 1 << bit, seed, second)).bit_count()
        assert 15 < changed / 400 < 17, bit
    assert len({mix_bits(value, 3, 4) for value in range(50_000)}) == 50_000


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


class Other(Named):
    destination_type = "exchange"


def test_a_queue_and_an_exchange_with_one_name_are_different() -> None:
    assert (
        destination_label(Named("a"))
        == destination_label("a")
        == "queue:a"
        != destination_label(Other("a"))
        == "exchange:a"
    )
