"""The assignment of slots to nodes: sticky, even, follows wishes, needs two rounds. No Kafka needed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.cluster.peer_link import secret_mark
from amqpd.kafka.group import (
    Assignor,
    Member,
    Peer,
    assign,
    decode_member,
    decode_peers,
    encode_member,
    encode_peers,
    refusals,
)

SLOTS = 16


@dataclass
class Group:
    """A group of nodes that follow assignments: they give up slots first and take new ones in the next round."""

    slots: int = SLOTS
    members: dict[str, Member] = field(default_factory=dict)
    wishes: dict[int, str] = field(default_factory=dict)
    moves: int = 0
    rounds: int = 0
    epoch: int = 0

    def join(self, node: str) -> None:
        self.members[f"id-{node}"] = Member(node, {})

    def leave(self, node: str) -> None:
        del self.members[f"id-{node}"]

    def change(self, node: str, **fields: object) -> None:
        self.members[f"id-{node}"] = self.members[f"id-{node}"]._replace(**fields)  # type: ignore[arg-type]

    def held(self, node: str) -> set[int]:
        return set(self.members[f"id-{node}"].held)

    def round(self) -> bool:
        """Run one round. Return True if anything changed."""
        self.rounds += 1
        given = assign(self.slots, self.members, self.wishes)
        changed = False
        held_before = {slot for member in self.members.values() for slot in member.held}
        for key, member in self.members.items():
            assert len(set(given[key])) == len(given[key])
            gained = set(given[key]) - set(member.held)
            assert not gained & held_before, "a slot that a node holds is assigned to another"
            kept = {slot: epoch for slot, epoch in member.held.items() if slot in given[key]}
            changed = changed or bool(gained) or len(kept) < len(member.held)
            self.moves += len(member.held) - len(kept)
            for slot in gained:
                self.epoch += 1
                kept[slot] = self.epoch
            self.members[key] = member._replace(held=kept, busy=member.busy & set(kept))
        all_held = [slot for member in self.members.values() for slot in member.held]
        assert len(all_held) == len(set(all_held)), "two nodes hold the same slot"
        return changed

    def settle(self) -> None:
        for _ in range(4):
            if not self.round():
                return
        raise AssertionError("the assignment does not settle")


def test_second_node_gets_half_of_the_slots_in_two_rounds() -> None:
    group = Group()
    group.join("a")
    group.settle()
    assert group.held("a") == set(range(SLOTS))
    group.join("b")
    group.rounds = group.moves = 0
    group.settle()
    assert (len(group.held("a")), len(group.held("b"))) == (8, 8)
    assert group.rounds == 3  # give up, take, and one round without a change
    assert group.moves == 8


def test_busy_slot_stays_until_its_node_drains() -> None:
    group = Group()
    group.join("a")
    group.settle()
    group.change("a", busy=frozenset(range(12)))
    group.join("b")
    group.settle()
    assert group.held("a") == set(range(12))
    group.change("a", draining=True)
    group.settle()
    assert group.held("b") == set(range(SLOTS))


def test_wish_moves_a_busy_slot_unless_its_node_is_absent() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    group.settle()
    slots_of_a = sorted(group.held("a"))
    group.change("a", busy=frozenset(slots_of_a))
    group.wishes = {slots_of_a[0]: "b", slots_of_a[1]: "nobody"}
    group.settle()
    assert slots_of_a[0] in group.held("b")
    assert slots_of_a[1] in group.held("a")


def test_slots_of_a_node_that_left_are_assigned_in_one_round() -> None:
    group = Group()
    for node in "abc":
        group.join(node)
    group.settle()
    group.change("a", busy=frozenset(group.held("a")))
    before = group.held("a")
    group.leave("b")
    assert group.round()
    assert before <= group.held("a")
    assert group.held("a") | group.held("c") == set(range(SLOTS))


def test_slot_claimed_twice_goes_to_the_later_epoch() -> None:
    members = {"x": Member("a", {3: 7}, frozenset({3})), "y": Member("b", {3: 8}, frozenset({3}))}
    given = assign(SLOTS, members, {})
    assert 3 in given["y"]
    assert 3 not in given["x"]


def test_draining_node_gets_no_slot_even_if_it_is_the_only_node() -> None:
    given = assign(SLOTS, {"x": Member("a", {1: 1}, draining=True)}, {1: "a"})
    assert given == {"x": []}


def test_member_and_peers_survive_encoding() -> None:
    member = Member("node-é", {3: 4, 70: 0}, frozenset({3}), True, "[::1]:25672", "ab" * 32)
    assert decode_member(encode_member(member)) == member
    assert decode_peers(encode_peers([member])) == [Peer("node-é", "[::1]:25672", "ab" * 32, True)]


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"null",
        b"{}",
        b"[1]",
        b"[" * 100_000,
        b'{"node": 1, "held": [], "busy": 0, "draining": 0}',
        encode_member(Member("a", {0: 1}, address="a:1")).replace(b'"0":1', b'"0":Infinity'),
        encode_member(Member("a", {}, address="nowhere")),
    ],
)
def test_data_of_another_program_is_no_member(odd: bytes) -> None:
    with pytest.raises(ValueError):
        decode_member(odd)


@pytest.mark.parametrize("odd", [b"[" * 100_000, encode_peers([Member("a", {}, address="nowhere")])])
def test_data_of_another_program_are_no_peers(odd: bytes) -> None:
    ours = Assignor("settled", SLOTS, lambda: Member("a", {}), dict)
    ours.on_assignment(ConsumerProtocolMemberAssignment(1, [], odd))
    assert ours.peers == []


steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "busy", "drain", "wish", "round"]),
        st.sampled_from("abcde"),
        st.integers(0, SLOTS - 1),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=examples(150), deadline=None)
def test_any_sequence_of_events_settles_evenly(program: list[tuple[str, str, int]]) -> None:
    group = Group()
    for action, node, slot in program:
        is_member = f"id-{node}" in group.members
        if action == "join" and not is_member:
            group.join(node)
        elif action == "leave" and is_member:
            group.leave(node)
        elif action == "busy" and is_member:
            group.change(node, busy=frozenset({slot} & group.held(node)) ^ group.members[f"id-{node}"].busy)
        elif action == "drain" and is_member:
            group.change(node, draining=not group.members[f"id-{node}"].draining)
        elif action == "wish":
            group.wishes[slot] = node
        elif action == "round":
            group.round()
    group.settle()
    able = [each for each in group.members.values() if not each.draining]
    for member in group.members.values():
        assert not (member.draining and member.held)
    if not able:
        return
    assert {slot for each in able for slot in each.held} == set(range(SLOTS)), "a slot has no owner"
    for slot, node in group.wishes.items():
        wished = [each for each in able if each.node == node]
        assert not wished or slot in wished[0].held
    # A member with two slots more than the least loaded has only slots that a wish or a connection keeps.
    names = {each.node for each in able}
    least = min(len(each.held) for each in able)
    for each in able:
        free = [s for s in each.held if s not in each.busy and group.wishes.get(s) not in names]
        assert len(each.held) <= least + 1 or not free
    moves = group.moves
    group.settle()
    assert group.moves == moves, "a settled assignment moves slots"


class TestRefusedNodes:
    """A node with another secret, or with the name of another node, gets no slot and a refusal text."""

    def member(self, node: str, held: int = 0, secret: str = "ours", run: str = "") -> Member:
        slots = dict.fromkeys(range(held), 3)
        return Member(node, slots, address=f"{node}:25672", fingerprint=f"cert-{node}", secret=secret, run=run or node)

    def test_secret_of_the_node_that_serves_slots_wins(self) -> None:
        members = {
            "1": self.member("a", held=2),
            "2": self.member("b", secret="theirs"),
            "3": self.member("c", secret="theirs"),
        }
        text = "cluster.secret differs from that of the cluster's nodes: a at a:25672"
        assert refusals(SLOTS, members, "b") == {"2": text, "3": text}

    def test_without_serving_nodes_the_majority_then_the_leader_wins(self) -> None:
        members = {"1": self.member("a", secret="theirs"), "2": self.member("b"), "3": self.member("c")}
        assert list(refusals(SLOTS, members, "a")) == ["1"]
        del members["3"]
        assert list(refusals(SLOTS, members, "a")) == ["2"]
        assert list(refusals(SLOTS, members, "b")) == ["1"]

    def test_serving_node_keeps_its_name_against_a_second_node(self) -> None:
        members = {"1": self.member("a", run="late"), "2": self.member("a", held=1, run="early"), "3": self.member("b")}
        text = "cluster.node a is already used by the node at a:25672: each node needs its own name"
        assert refusals(SLOTS, members, "late") == {"1": text}

    def test_process_that_joined_twice_is_one_node(self) -> None:
        assert refusals(SLOTS, {"1": self.member("a"), "2": self.member("a")}, "a") == {}

    def test_member_of_an_older_version_has_no_secret_and_is_accepted(self) -> None:
        members = {"1": self.member("a", held=2, secret=""), "2": self.member("b"), "3": self.member("c")}
        assert refusals(SLOTS, members, "a") == {}
        old = encode_member(Member("a", {}, address="a:1", fingerprint="f"))
        assert decode_member(old.replace(b',"secret":"","run":""', b"")) == decode_member(old)

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"]), st.integers(0, 3)), max_size=6))
    def test_every_leader_keeps_at_least_one_member(self, found: list[tuple[str, str, int]]) -> None:
        members = {
            str(number): self.member(node, held, secret, run=str(number))
            for number, (node, secret, held) in enumerate(found)
        }
        for leader in members:
            refused = refusals(SLOTS, members, leader)
            accepted = [member for key, member in members.items() if key not in refused]
            assert accepted
            assert len({each.node for each in accepted}) == len(accepted)
            assert len({each.secret for each in accepted if each.secret}) <= 1

    def test_leader_assigns_no_slots_to_a_refused_member_and_says_why(self) -> None:
        ours = Assignor("settled", SLOTS, lambda: self.member("a", held=1), dict)
        stranger = Assignor("settled", SLOTS, lambda: self.member("b", secret="theirs"), dict)
        metadata = {name: each.metadata({"settled"}) for name, each in (("1", ours), ("2", stranger))}
        given_ = ours.assign(None, metadata)
        assert [numbers for _, numbers in given_["2"].assignment] == [[]]
        assert [numbers for _, numbers in given_["1"].assignment] == [list(range(SLOTS))]
        for key, each in (("1", ours), ("2", stranger)):
            each.on_assignment(given_[key])
        assert [peer.node for peer in ours.peers] == ["a"]
        assert ours.refusal == ""
        assert stranger.peers == []
        assert stranger.refusal.startswith("cluster.secret differs")

    def test_secret_mark_depends_on_secret_and_cluster_name(self) -> None:
        mark = secret_mark(b"the old pond, a frog", "shop")
        assert mark == secret_mark(b"the old pond, a frog", "shop")
        assert len({mark, secret_mark(b"the old pond, a toad", "shop"), secret_mark(b"the old pond, a frog", "x")}) == 3
