"""The registry: built-ins, guests, and what happens when a guest is no good."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from amqpd.routing import base, registry
from amqpd.routing.base import RoutingError, UnknownExchangeType
from amqpd.routing.direct_fanout import Direct, Fanout
from amqpd.routing.hashing import ConsistentHash, LocalRandom, ModulusHash, Random
from amqpd.routing.headers import Headers
from amqpd.routing.registry import exchange_type, exchange_type_names
from amqpd.routing.topic import Topic

GROUP = "amqpd.exchange_types"


@pytest.fixture
def guests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Installed guests, to be appended to before the first look-up."""
    installed: list[EntryPoint] = []

    def entry_points(group: str) -> list[EntryPoint]:
        return [entry_point for entry_point in installed if entry_point.group == group]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry.forget_guests()
    yield installed
    registry.forget_guests()


@pytest.mark.parametrize(
    ("name", "expected", "looks_at"),
    [
        ("direct", Direct, base.ROUTING_KEY),
        ("fanout", Fanout, base.ROUTING_KEY),
        ("topic", Topic, base.ROUTING_KEY),
        ("headers", Headers, base.HEADERS),
        ("x-consistent-hash", ConsistentHash, base.ROUTING_KEY),
        ("x-local-random", LocalRandom, base.CHANCE),
        ("x-modulus-hash", ModulusHash, base.ROUTING_KEY),
        ("x-random", Random, base.CHANCE),
    ],
)
def test_built_ins(name: str, expected: type, looks_at: int) -> None:
    made = exchange_type(name)()
    assert isinstance(made, expected)
    assert made.looks_at == looks_at
    assert exchange_type(name)() is not made


def test_names(guests: list[EntryPoint]) -> None:
    guests.append(EntryPoint("x-everyone", "no.such.module:Thing", GROUP))
    assert exchange_type_names() == sorted([*registry.BUILT_IN, "x-everyone"])


def test_an_unknown_type(guests: list[EntryPoint]) -> None:
    with pytest.raises(UnknownExchangeType, match=r"^unknown exchange type 'nosuch'$") as refused:
        exchange_type("nosuch")
    assert refused.value.name == "nosuch"
    assert isinstance(refused.value, RoutingError)


def test_a_guest_is_loaded_on_a_miss(guests: list[EntryPoint]) -> None:
    guests.append(EntryPoint("x-everyone", "amqpd.routing.direct_fanout:Fanout", GROUP))
    made = exchange_type("x-everyone")()
    made.bind("k", {}, "q")
    assert made.match("other", None) == {"q"}


def test_a_guest_of_another_group_is_none(guests: list[EntryPoint]) -> None:
    guests.append(EntryPoint("x-everyone", "amqpd.routing.direct_fanout:Fanout", "amqpd.queue_types"))
    with pytest.raises(UnknownExchangeType):
        exchange_type("x-everyone")


def test_a_guest_replaces_no_built_in(guests: list[EntryPoint], caplog: pytest.LogCaptureFixture) -> None:
    guests.append(EntryPoint("direct", "amqpd.routing.direct_fanout:Fanout", GROUP))
    assert exchange_type("direct") is Direct
    assert exchange_type_names().count("direct") == 1
    assert "the name is taken" in caplog.text


def test_the_first_of_two_guests_serves(guests: list[EntryPoint], caplog: pytest.LogCaptureFixture) -> None:
    guests.append(EntryPoint("x-twice", "amqpd.routing.direct_fanout:Fanout", GROUP))
    guests.append(EntryPoint("x-twice", "amqpd.routing.direct_fanout:Direct", GROUP))
    assert isinstance(exchange_type("x-twice")(), Fanout)
    assert "amqpd.routing.direct_fanout:Direct is ignored" in caplog.text


@pytest.mark.parametrize(
    "value", ["no.such.module:Thing", "amqpd.routing.direct_fanout:Nothing", "amqpd.routing.topic:ONE_WORD"]
)
def test_a_broken_guest_is_logged_and_unknown(
    guests: list[EntryPoint], caplog: pytest.LogCaptureFixture, value: str
) -> None:
    guests.append(EntryPoint("x-broken", value, GROUP))
    with pytest.raises(UnknownExchangeType, match="x-broken"):
        exchange_type("x-broken")
    assert value in caplog.text
