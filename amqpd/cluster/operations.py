"""Operations of administrators on the cluster, on any node.

The commands are `amqpctl cluster_status`, `move_vhost`, `rebalance` and `drain`. A move is a note `["wish", slot]`
in slot 0. The leader of the consumer group applies it in the next round: the owner gives up the slot and closes its
clients' connections with 320, then the other node takes it over. `move` waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.internal_backend import NoSuchVhost
from amqpd.management.request import ClusterControl, NoSuchNode, NotMoved

if TYPE_CHECKING:
    from amqpd.cluster.node import ClusterNode

log = logging.getLogger(__name__)

MOVE_S: Final = 60.0
POLL_S: Final = 0.5


class ClusterOperations(ClusterControl):
    """Operations for administrators on one node."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def status(self) -> dict[str, Any]:
        node, options = self._node, self._node.options
        view, state = node.view, node.state
        keeper = view.controller()
        vhosts = []
        for name in view.vhosts():
            owner = view.owner_of(name)
            vhosts.append(
                {
                    "name": name,
                    "slot": state.slot_of(name),
                    "node": None if owner is None else owner.name,
                    "state": "moving" if owner is None else "running",
                }
            )
        return {
            "name": options.cluster,
            "node": options.node,
            "nodes": [
                {
                    "name": peer.node,
                    "address": peer.address,
                    "draining": peer.draining,
                    "vhosts": sum(1 for each in vhosts if each["node"] == peer.node),
                }
                for peer in sorted(node.peers)
            ],
            "vhosts": vhosts,
            "slots": options.slots,
            "metadata_node": None if keeper is None else keeper.name,
            "kafka": list(options.access.kafka),
            "kafka_answers": node.kafka_answers,
            "cut_off": node.cut_off,
            "confirms": {
                "promise": "replicated",
                "replication_factor": options.replication_factor,
                "required_insync": options.required_insync,
            },
            "relayed_out": node.inner.relays.count(),
            "relayed_in": node.inner.relayed.count(),
            "inner_port_refused": node.inner.refused_count,
        }

    def kafka_outage_s(self) -> float:
        return self._node.options.access.outages.duration_s()

    async def move(self, vhost: str, node: str) -> list[str]:
        state = self._node.state
        slot = state.slot_of(vhost)
        if slot is None:
            raise NoSuchVhost(f"vhost '{vhost}' does not exist")
        self._check(node)
        together = [row.name for row in state.vhosts_of(slot)]
        if not self._is_at(vhost, node):
            await self._node.request_move(slot, node)
            log.info("slot %d with vhosts %s moves to node %s", slot, ", ".join(together), node)
            await self._until(lambda: self._is_at(vhost, node), f"vhost '{vhost}' has not moved to node {node}")
        return together

    def _check(self, node: str) -> None:
        names = {peer.node: peer.draining for peer in self._node.peers}
        if node not in names:
            raise NoSuchNode(f"no node '{node}' in the cluster; its nodes: {', '.join(sorted(names)) or 'none'}")
        if names[node]:
            raise NoSuchNode(f"node '{node}' is being drained and accepts no vhosts")

    def _is_at(self, vhost: str, node: str) -> bool:
        owner = self._node.view.owner_of(vhost)
        return owner is not None and owner.name == node

    async def _until(self, condition: Any, text: str) -> None:
        """Wait until `condition` returns true. Raises NotMoved after MOVE_S."""
        deadline = asyncio.get_running_loop().time() + MOVE_S
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                raise NotMoved(f"{text} after {MOVE_S:g} s")
            await self._node.view.wait_change(POLL_S)

    async def rebalance(self) -> dict[str, str]:
        state, view = self._node.state, self._node.view
        slots: dict[int, list[str]] = defaultdict(list)
        owners: dict[int, str] = {}
        for name in view.vhosts():
            slot, owner = state.slot_of(name), view.owner_of(name)
            if slot is not None and owner is not None:
                slots[slot].append(name)
                owners[slot] = owner.name
        moves = balancing_moves(owners, [peer.node for peer in self._node.peers if not peer.draining])
        for slot, node in moves.items():
            await self._node.request_move(slot, node)
        found = {name: node for slot, node in moves.items() for name in slots[slot]}
        log.info("rebalance: %s", ", ".join(f"'{name}' to {node}" for name, node in found.items()) or "nothing to move")
        return found

    async def drain(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._node.drain()
                while not self._taken():
                    await self._node.view.wait_change(POLL_S)
        except TimeoutError:
            raise NotMoved(f"some vhosts have no other owner after {timeout_s:g} s") from None

    def _taken(self) -> bool:
        """Return whether other nodes own all vhosts, or there is no other node."""
        view = self._node.view
        if not any(peer.node != view.node_name and not peer.draining for peer in self._node.peers):
            return True
        return all(
            (owner := view.owner_of(name)) is not None and owner.name != view.node_name for name in view.vhosts()
        )

    def undrain(self) -> None:
        self._node.undrain()


def balancing_moves(owners: Mapping[int, str], nodes: list[str]) -> dict[int, str]:
    """Return the fewest moves, slot -> node, after which the numbers of slots of two nodes differ by at most one.

    Args:
        owners: slots with vhosts and their owners.
        nodes: nodes that may own slots.
    """
    by_node: dict[str, list[int]] = {node: [] for node in nodes}
    for slot, node in sorted(owners.items()):
        if node in by_node:
            by_node[node].append(slot)
    moves: dict[int, str] = {}
    while len(by_node) > 1:
        most = max(by_node, key=lambda node: (len(by_node[node]), node))
        least = min(by_node, key=lambda node: (len(by_node[node]), node))
        if len(by_node[most]) - len(by_node[least]) < 2:
            break
        slot = by_node[most].pop()
        by_node[least].append(slot)
        moves[slot] = least
    return moves
