"""Exchange types by name: built-in types, plugins, and plugins that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from amqpd.routing import base, registry
from amqpd.routing.base import RoutingError, UnknownExchangeType
from amqpd.routing.direct_fanout import Direct, Fanout
from amqpd.routing.hashing import ConsistentHash, LocalRandom, ModulusHash, Random
from amqpd.routing.headers import Headers
from amqpd.routing.murmur2 import Murmur2Hash
from amqpd.routing.registry import exchange_type_factory, exchange_type_names
from amqpd.routing.topic import Topic

GROUP = "amqpd.exchange_types"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """The installed entry points. A test appends to the list before its first look-up."""
    installed: list[EntryPoint] = []

    def entry_points(group: str) -> list[EntryPoint]:
        return [entry_point for entry_point in installed if entry_point.group == group]

    def forget_plugins() -> None:
        registry.plugins.cache_clear()
        registry._load_plugin.cache_clear()

    monkeypatch.setattr(registry, "entry_points", entry_points)
    forget_plugins()
    yield installed
    forget_plugins()


@pytest.mark.parametrize(
    ("name", "expected", "depends_on"),
    [
        ("direct", Direct, base.ROUTING_KEY),
        ("fanout", Fanout, base.ROUTING_KEY),
        ("topic", Topic, base.ROUTING_KEY),
        ("headers", Headers, base.HEADERS),
        ("x-consistent-hash", ConsistentHash, base.ROUTING_KEY),
        ("x-local-random", LocalRandom, base.RANDOMNESS),
        ("x-modulus-hash", ModulusHash, base.ROUTING_KEY),
        ("x-murmur2-hash", Murmur2Hash, base.ROUTING_KEY),
        ("x-random", Random, base.RANDOMNESS),
    ],
)
def test_built_in_types(name: str, expected: type, depends_on: int) -> None:
    made = exchange_type_factory(name)()
    assert isinstance(made, expected)
    assert made.depends_on == depends_on
    assert exchange_type_factory(name)() is not made


def test_all_names_are_listed_without_loading_plugins(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("x-everyone", "no.such.module:Thing", GROUP))
    assert exchange_type_names() == sorted([*registry.BUILT_IN, "x-everyone"])


def test_an_unknown_type_is_rejected(installed: list[EntryPoint]) -> None:
    with pytest.raises(UnknownExchangeType, match=r"^unknown exchange type 'nosuch'$") as refused:
        exchange_type_factory("nosuch")
    assert refused.value.name == "nosuch"
    assert isinstance(refused.value, RoutingError)


def test_a_plugin_is_loaded_on_a_miss(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("x-everyone", "amqpd.routing.direct_fanout:Fanout", GROUP))
    made = exchange_type_factory("x-everyone")()
    made.bind("k", {}, "q")
    assert made.match("other", None) == {"q"}


def test_a_plugin_of_another_entry_point_group_is_not_found(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("x-everyone", "amqpd.routing.direct_fanout:Fanout", "amqpd.queue_types"))
    with pytest.raises(UnknownExchangeType):
        exchange_type_factory("x-everyone")


def test_a_plugin_cannot_replace_a_built_in_type(installed: list[EntryPoint], caplog: pytest.LogCaptureFixture) -> None:
    installed.append(EntryPoint("direct", "amqpd.routing.direct_fanout:Fanout", GROUP))
    assert exchange_type_factory("direct") is Direct
    assert exchange_type_names().count("direct") == 1
    assert "the name is taken" in caplog.text


def test_the_first_of_two_plugins_with_one_name_is_used(
    installed: list[EntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    installed.append(EntryPoint("x-twice", "amqpd.routing.direct_fanout:Fanout", GROUP))
    installed.append(EntryPoint("x-twice", "amqpd.routing.direct_fanout:Direct", GROUP))
    assert isinstance(exchange_type_factory("x-twice")(), Fanout)
    assert "amqpd.routing.direct_fanout:Direct is ignored" in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        "no.such.module:Thing",
        "amqpd.routing.direct_fanout:Nothing",
        "amqpd.routing.topic:ONE_WORD",
        "collections:Counter",
        "fractions:no_such_name",
        "operator:add",
    ],
)
def test_a_plugin_that_is_no_exchange_type_is_logged_and_unknown(
    installed: list[EntryPoint], caplog: pytest.LogCaptureFixture, value: str
) -> None:
    installed.append(EntryPoint("x-broken", value, GROUP))
    with pytest.raises(UnknownExchangeType, match="x-broken"):
        exchange_type_factory("x-broken")
    assert value in caplog.text
