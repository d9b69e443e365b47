"""Which node has which slot: a pure function of who is there, what they have, and what was wished.

The leader of the group asks it at each rebalance (group.py). A wrong answer costs time only: what keeps two nodes
from writing to one slot is Kafka's epochs. So it is made to move little:

- A slot with connections stays where it is, unless its node drains or a wish (`amqpctl move_vhost`, `rebalance`) says
  so. The others move freely, and no more of them than it takes to even the nodes out.
- A slot that somebody has is never given to another: it is left out, its node gives it up and asks for another round,
  in which nobody has it. What nobody has is given out at once.

A node that does not belong to the cluster gets no slot and is told why (`refusals`): its cluster.secret is another, or
its name is that of a node which is in the group already.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Member(NamedTuple):
    """What a node says of itself as it joins. held: the slots that it has or is about to take -> the epoch, 0 where it
    has none yet. busy: those of them that somebody is connected to. draining: it is to have none. address: of its inner
    port, host:port. fingerprint: of the certificate there, SHA-256 in hex. asked: for how many rounds it has asked;
    nobody reads it. secret: by which nodes with the same cluster.secret know each other (`preamble.secret_mark`).
    run: of its process, another one after each start. Nodes of a version before have neither: "".
    """

    node: str
    held: Mapping[int, int]
    busy: frozenset[int] = frozenset()
    draining: bool = False
    address: str = ""
    fingerprint: str = ""
    asked: int = 0
    secret: str = ""
    run: str = ""


class Peer(NamedTuple):
    """What every node knows of each that is in the group. Fields as above."""

    node: str
    address: str
    fingerprint: str
    draining: bool


def encode_member(member: Member) -> bytes:
    """What a member says of itself."""
    held = {str(slot): epoch for slot, epoch in sorted(member.held.items())}
    return _json({**member._asdict(), "held": held, "busy": sorted(member.busy)})


def decode_member(data: bytes) -> Member:
    """Raises: ValueError where it is none."""
    said = json.loads(data)
    try:
        held = {int(slot): int(epoch) for slot, epoch in said["held"].items()}
        busy = frozenset(map(int, said["busy"]))
        texts = str(said["address"]), str(said["fingerprint"])
        member = Member(str(said["node"]), held, busy, bool(said["draining"]), *texts)
        return member._replace(secret=str(said.get("secret", "")), run=str(said.get("run", "")))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no member of a cluster says {data!r}") from error


def encode_peers(members: Iterable[Member]) -> bytes:
    """What the leader tells everybody with an assignment: who is there."""
    peers = [Peer(each.node, each.address, each.fingerprint, each.draining)._asdict() for each in members]
    return _json(sorted(peers, key=lambda each: str(each["node"])))


def decode_peers(data: bytes) -> list[Peer]:
    """Raises: ValueError where it is none."""
    try:
        return [
            Peer(str(each["node"]), str(each["address"]), str(each["fingerprint"]), bool(each["draining"]))
            for each in json.loads(data)
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no leader of a cluster says {data!r}") from error


def encode_refusal(why: str) -> bytes:
    """Return what the leader tells a node that does not belong to the cluster, instead of the peers."""
    return _json({"refused": why})


def decode_refusal(data: bytes) -> str:
    """Return why this node is refused; "" if it is not. Raises: ValueError where it is none of the two."""
    said = json.loads(data)
    return str(said.get("refused", "")) if isinstance(said, dict) else ""


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def refusals(slots: int, members: Mapping[str, Member], leader_run: str) -> dict[str, str]:
    """Return the members that do not belong to the cluster, and the sentence that says why.

    Of nodes with different secrets those belong to it that serve most slots, else those that are most, else those with
    the secret of the group's leader. Of two processes with one name the one that serves slots stays.

    Args:
        leader_run: the process that assigns.
    """
    holders = _holders(slots, members)
    serving = dict.fromkeys(members, 0)
    for slot, member in holders.items():
        serving[member] += members[member].held[slot] > 0
    refused = _other_secrets(members, serving, leader_run)
    names: dict[str, dict[str, str]] = {}  # node -> process -> member
    for member, said in sorted(members.items()):
        if member not in refused:
            names.setdefault(said.node, {})[said.run or said.fingerprint] = member
    for name, processes in names.items():
        if len(processes) > 1:
            stays = max(processes.values(), key=lambda each: (serving[each], members[each].run == leader_run))
            for member in processes.values():
                if member != stays:
                    address = members[stays].address
                    why = f"cluster.node is {name}, as that of the node at {address}: each node needs a name of its own"
                    refused[member] = why
    return refused


def _other_secrets(members: Mapping[str, Member], serving: Mapping[str, int], leader_run: str) -> dict[str, str]:
    groups: dict[str, list[str]] = {}
    for member, said in sorted(members.items()):
        if said.secret:
            groups.setdefault(said.secret, []).append(member)
    if len(groups) < 2:
        return {}

    def weight(group: list[str]) -> tuple[int, int, bool]:
        led = any(members[each].run == leader_run for each in group)
        return sum(serving[each] for each in group), len(group), led

    right = max(groups.values(), key=weight)
    nodes = ", ".join(sorted(f"{members[each].node} at {members[each].address}" for each in right))
    why = f"cluster.secret is another than that of the cluster's nodes: {nodes}"
    return {member: why for group in groups.values() if group is not right for member in group}


def assign(
    slots: int, members: Mapping[str, Member], wishes: Mapping[int, str], balance_busy: bool = False
) -> dict[str, list[int]]:
    """Slots by member. wishes: slot -> name of a node; one that is not there, or drains, is passed over.
    balance_busy: connections do not keep a slot where it is.

    Cost: slots x members; a millisecond for 64 x 10.
    """
    given: dict[str, list[int]] = {member: [] for member in members}
    able = sorted(member for member, said in members.items() if not said.draining)
    if not able:
        return given
    holders = _holders(slots, members)
    by_node = {members[each].node: each for each in reversed(able)}
    targets = _fixed(slots, members, holders, by_node, wishes, balance_busy)
    _even_out(slots, able, holders, targets)
    for slot, member in sorted(targets.items()):
        if holders.get(slot, member) == member:
            given[member].append(slot)
    return given


def _holders(slots: int, members: Mapping[str, Member]) -> dict[int, str]:
    """Who has each slot; of two who say so, the one with the later epoch."""
    found: dict[int, tuple[int, str]] = {}
    for member, said in sorted(members.items()):
        for slot, epoch in said.held.items():
            if 0 <= slot < slots and (slot not in found or found[slot][0] < epoch):
                found[slot] = epoch, member
    return {slot: member for slot, (_, member) in found.items()}


def _fixed(
    slots: int,
    members: Mapping[str, Member],
    holders: Mapping[int, str],
    by_node: Mapping[str, str],
    wishes: Mapping[int, str],
    balance_busy: bool,
) -> dict[int, str]:
    """What is wished, and what stays because somebody is connected to it."""
    targets: dict[int, str] = {}
    for slot in range(slots):
        wished = by_node.get(wishes.get(slot, ""))
        holder = holders.get(slot)
        if wished is not None:
            targets[slot] = wished
        elif holder is not None and not members[holder].draining and slot in members[holder].busy and not balance_busy:
            targets[slot] = holder
    return targets


def _even_out(slots: int, able: list[str], holders: Mapping[int, str], targets: dict[int, str]) -> None:
    """The other slots, so that the nodes have as many as each other as far as `targets` leaves it open."""
    free = [slot for slot in range(slots) if slot not in targets]
    shares = dict.fromkeys(able, 0)
    for member in targets.values():
        shares[member] += 1
    had = dict.fromkeys(able, 0)
    for slot in free:
        if holders.get(slot) in had:
            had[holders[slot]] += 1
    room = dict.fromkeys(able, 0)
    for _ in free:
        # Of those with as few as each other, the one that would have to give up more.
        least = min(able, key=lambda each: (shares[each], room[each] - had[each], each))
        shares[least] += 1
        room[least] += 1
    left = []
    for slot in free:
        holder = holders.get(slot)
        if holder is not None and room.get(holder, 0) > 0:
            room[holder] -= 1
            targets[slot] = holder
        else:
            left.append(slot)
    for slot in left:
        member = max(able, key=lambda each: (room[each], each))
        room[member] -= 1
        targets[slot] = member
