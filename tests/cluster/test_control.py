"""Balancing of vhosts over nodes, and splitting of definitions by vhost. No Kafka."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.broker.vhost import vhosts
from amqpd.cluster.api_gateway import ensure_vhost, join_documents, split_definitions
from amqpd.cluster.node import ClusterNode
from amqpd.cluster.operations import balancing_moves
from amqpd.cluster.row_codec import WISH, PutAnnotation
from amqpd.management.request import BadRequest


@pytest.mark.parametrize(("owner", "granted"), [("ann", True), ("bob", False), ("", False)])
async def test_user_of_an_import_gets_permissions_in_a_new_vhost(
    owner: str, granted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a single node: not if the document has permissions of the user, and not for amqpctl."""
    monkeypatch.setattr(vhosts, "declare", lambda *given: given[-1](None))
    own = {"user": "bob", "vhost": "v", "configure": "", "write": "", "read": ""}
    part: dict[str, Any] = {"vhosts": [{"name": "v"}], "permissions": [own]}
    broker: Any = SimpleNamespace(vhosts=SimpleNamespace(exists=lambda _: False))
    await ensure_vhost(broker, part, "v", owner)
    everything = {"user": owner, "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}
    assert part["permissions"] == ([own, everything] if granted else [own])
    part = {"vhosts": [{"name": "v"}]}
    broker.vhosts.exists = lambda _: True
    await ensure_vhost(broker, part, "v", owner)
    assert part == {"vhosts": [{"name": "v"}]}


@given(st.dictionaries(st.integers(0, 60), st.sampled_from("abcde")), st.sets(st.sampled_from("abcde"), min_size=1))
def test_balancing_evens_out_with_the_fewest_moves(owners: dict[int, str], nodes: set[str]) -> None:
    moves = balancing_moves(owners, sorted(nodes))
    after = Counter(dict.fromkeys(nodes, 0))
    after.update(moves.get(slot, node) for slot, node in owners.items() if node in nodes)
    assert max(after.values()) - min(after.values()) <= 1
    assert all(owners[slot] != node and node in nodes and owners[slot] in nodes for slot, node in moves.items())
    before = Counter(node for node in owners.values() if node in nodes)
    share = -(-sum(before.values()) // len(nodes))
    assert len(moves) >= sum(max(0, count - share) for count in before.values())
    assert all(slot in owners for slot in moves)


def test_balancing_over_one_or_no_node_moves_nothing() -> None:
    assert balancing_moves({1: "a", 2: "a"}, ["a"]) == {}
    assert balancing_moves({1: "a", 2: "a"}, []) == {}


def test_definitions_are_split_by_vhost_and_joined_again() -> None:
    own, by_vhost = split_definitions(
        {
            "rabbit_version": "3",
            "users": [{"name": "u"}],
            "global_parameters": [{"name": "g"}],
            "vhosts": [{"name": "a"}, {"name": "b"}],
            "queues": [{"vhost": "a", "name": "q"}, {"vhost": "c", "name": "q"}],
            "permissions": [{"vhost": "b", "user": "u"}],
        }
    )
    assert own == {"rabbit_version": "3", "users": [{"name": "u"}], "global_parameters": [{"name": "g"}]}
    assert by_vhost == {
        "a": {"vhosts": [{"name": "a"}], "queues": [{"vhost": "a", "name": "q"}]},
        "b": {"vhosts": [{"name": "b"}], "permissions": [{"vhost": "b", "user": "u"}]},
        "c": {"queues": [{"vhost": "c", "name": "q"}]},
    }
    assert join_documents([by_vhost["a"], by_vhost["c"]])["queues"] == [
        {"vhost": "a", "name": "q"},
        {"vhost": "c", "name": "q"},
    ]


@pytest.mark.parametrize("item", [{"name": "q"}, {"vhost": 5}, "text", None])
def test_definition_item_without_a_vhost_is_refused(item: object) -> None:
    with pytest.raises(BadRequest, match="an item of queues has no vhost"):
        split_definitions({"queues": [item]})


def test_wish_for_a_slot_being_taken_requests_a_round() -> None:
    """Without it the slot would not move until a node joins or leaves, and `move_vhost` would report a failure."""
    rejoins: list[bool] = []
    members = SimpleNamespace(rejoin=lambda: rejoins.append(True))
    slots = SimpleNamespace(announced_slots=lambda: {3: 0})
    node = cast("Any", SimpleNamespace(owned={}, slots=slots, _members=members))
    ClusterNode._note_changed(node, PutAnnotation((WISH, 4), {"node": "b"}))
    ClusterNode._note_changed(node, PutAnnotation((WISH, 3), None))
    assert rejoins == []
    ClusterNode._note_changed(node, PutAnnotation((WISH, 3), {"node": "b"}))
    assert rejoins == [True]
