"""x-murmur2-hash: the hash and the choice of a partition are those of Kafka's producers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.routing import base
from amqpd.routing.base import BadBinding
from amqpd.routing.message_exchange import RoutedMessage
from amqpd.routing.murmur2 import Murmur2Hash, murmur2

ORDER = "x-stream-partition-order"
NONE = RoutedMessage("", {})

# From the tests of Kafka's `Utils.murmur2`, as signed numbers.
VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


def exchange_with(count: int) -> Murmur2Hash:
    exchange = Murmur2Hash()
    for number in reversed(range(count)):
        exchange.bind(str(number), {ORDER: number}, number)
    return exchange


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_hash_is_that_of_kafka(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


@given(st.binary(max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_hash_is_that_of_kafka_python(data: bytes) -> None:
    partitioner = pytest.importorskip("kafka.partitioner")
    expected: int = partitioner.murmur2(data)
    assert murmur2(data) == expected & 0xFFFFFFFF


@given(st.text(max_size=20), st.integers(1, 50))
@settings(max_examples=examples(100), deadline=None)
def test_a_message_goes_to_the_partition_of_its_key(key: str, count: int) -> None:
    expected = (murmur2(key.encode()) & 0x7FFFFFFF) % count
    assert exchange_with(count).route([key, "cc"], NONE) == [expected]


def test_only_the_routing_key_decides() -> None:
    assert Murmur2Hash().depends_on == base.ROUTING_KEY


def test_partitions_after_a_gap_get_nothing() -> None:
    exchange = exchange_with(6)
    exchange.unbind("2", {ORDER: 2}, 2)
    assert {exchange.route([f"k{n}"], NONE)[0] for n in range(50)} == {0, 1}
    exchange.unbind("0", {ORDER: 0}, 0)
    assert list(exchange.route(["k"], NONE)) == []
    exchange.bind("0", {ORDER: 0}, 0)
    exchange.bind("2", {ORDER: 2}, 2)
    assert {exchange.route([f"k{n}"], NONE)[0] for n in range(100)} == set(range(6))


def test_streams_with_one_number_all_get_the_message_once() -> None:
    exchange = exchange_with(1)
    exchange.bind("other", {ORDER: 0}, "copy")
    exchange.bind("twice", {ORDER: 0}, "copy")
    assert exchange.route(["k"], NONE) == [0, "copy"]
    exchange.unbind("twice", {ORDER: 0}, "copy")
    exchange.unbind("0", {ORDER: 0}, 0)
    assert exchange.route(["k"], NONE) == ["copy"]


@pytest.mark.parametrize("order", [None, -1, 10_000, True, "0", 0.0])
def test_a_binding_without_a_valid_number_is_refused(order: object) -> None:
    with pytest.raises(BadBinding, match="x-stream-partition-order"):
        Murmur2Hash().validate("k", {ORDER: order})


@pytest.mark.parametrize("kind", ["classic", "quorum", "exchange"])
def test_other_destinations_than_streams_are_refused(kind: str) -> None:
    with pytest.raises(BadBinding, match="streams"):
        Murmur2Hash().validate_destination(kind)
    Murmur2Hash().validate_destination("stream")
