"""The fanout exchange."""

from __future__ import annotations

from amqpd.routing.direct_fanout import Fanout


def test_all_destinations_get_all_messages() -> None:
    exchange = Fanout()
    assert exchange.match("", None) == set()
    exchange.bind("", {}, "q1")
    exchange.bind("ignored", {"x": 1}, "q2")
    assert exchange.match("whatever", {"h": 1}) == {"q1", "q2"}


def test_unbinding_keeps_other_bindings_to_the_same_destination() -> None:
    exchange = Fanout()
    exchange.bind("a", {}, "q1")
    exchange.bind("b", {}, "q1")
    exchange.bind("a", {}, "q2")
    exchange.unbind("a", {}, "q1")
    assert exchange.match("", None) == {"q1", "q2"}
    exchange.unbind("b", {}, "q1")
    assert exchange.match("", None) == {"q2"}
    exchange.bind("c", {}, "q1")
    assert exchange.match("", None) == {"q1", "q2"}
