"""BindingTable: counted sets of destinations."""

from __future__ import annotations

import pytest

from amqpd.routing.bindings import BindingTable


def test_destinations_of_a_key() -> None:
    table = BindingTable()
    table.add("a", "q1")
    table.add("a", "q2")
    table.add("b", "q1")
    assert table.get("a") == {"q1", "q2"}
    assert table.get("b") == {"q1"}
    assert table.get("c") is None


def test_a_key_keeps_its_set() -> None:
    table = BindingTable()
    kept = table.add("a", "q1")
    assert table.add("a", "q2") is kept
    table.remove("a", "q1")
    assert table.get("a") is kept
    assert kept == {"q2"}


def test_each_binding_is_counted() -> None:
    table = BindingTable()
    for _ in range(3):
        table.add("a", "q")
    assert [table.remove("a", "q") for _ in range(3)] == [False, False, True]
    assert table.get("a") is None


def test_remove_reports_the_last_binding_of_a_key() -> None:
    table = BindingTable()
    table.add("a", "q1")
    table.add("a", "q2")
    assert table.remove("a", "q1") is False
    assert table.remove("a", "q2") is True


@pytest.mark.parametrize(("key", "destination"), [("a", "other"), ("other", "q")])
def test_removing_an_unknown_binding_raises(key: str, destination: str) -> None:
    table = BindingTable()
    table.add("a", "q")
    with pytest.raises(KeyError):
        table.remove(key, destination)
    assert table.get("a") == {"q"}
