"""Cluster as the proxy and the HTTP API see it: the running nodes, their peer ports, and the owner of each vhost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from amqpd.kafka.config import split_address

if TYPE_CHECKING:
    from amqpd.cluster.state import ClusterState
    from amqpd.kafka.group import Assignor


class NodeState(NamedTuple):
    """A running node.

    Attributes:
        name: `amqpd@host`.
        host, port: of its peer port (`cluster.listen`).
        fingerprint: SHA-256 of its certificate in hexadecimal.
    """

    name: str
    host: str
    port: int
    fingerprint: str


class ClusterView:
    """The cluster for the proxy and the HTTP API.

    Args:
        me: the name of this node.
        serves: returns whether this node serves a slot.

    Attributes:
        node_name: the name of this node.
        listeners: called on the loop when the owner of a vhost or the address of a node may have changed.
    """

    def __init__(self, me: str, state: ClusterState, assignor: Assignor, serves: Callable[[int], bool]) -> None:
        self.node_name = me
        self.listeners: list[Callable[[], None]] = []
        self._state = state
        self._assignor = assignor
        self._serves = serves
        state.on_vhost.append(lambda _: self.notify_listeners())
        state.on_owner.append(lambda _: self.notify_listeners())

    def knows(self, vhost: str) -> bool:
        """Return whether the vhost exists, with or without owner. Cost: a dict look-up."""
        row = self._state.vhost(vhost)
        return row is not None and row.state != "deleting"

    def vhosts(self) -> list[str]:
        return [row.name for row in self._state.vhosts() if row.state != "deleting"]

    def owner_of(self, vhost: str) -> NodeState | None:
        """Return the node that owns the vhost; None if there is none now. Cost: two dict look-ups."""
        slot = self._state.slot_of(vhost)
        return None if slot is None else self.owner_of_slot(slot)

    def owner_of_slot(self, slot: int) -> NodeState | None:
        """Return the node that announced the slot last.

        Returns: None if that node left the group, or if it is this node and it no longer serves the slot.
        """
        owner = self._state.owner_of(slot)
        if owner is None or (owner.node == self.node_name and not self._serves(slot)):
            return None
        if not any(peer.node == owner.node and peer.fingerprint == owner.fingerprint for peer in self._assignor.peers):
            return None
        return NodeState(owner.node, *split_address(owner.address), owner.fingerprint)

    def nodes(self) -> list[NodeState]:
        """Return all running nodes by name, including this one."""
        return [NodeState(peer.node, *split_address(peer.address), peer.fingerprint) for peer in self._assignor.peers]

    def controller(self) -> NodeState | None:
        """Return the owner of slot 0, which has the cluster-wide data (users, vhosts, permissions)."""
        return self.owner_of_slot(0)

    def position(self) -> int:
        """Return how far this node has read slot 0. The value only increases."""
        return self._state.next_offset

    def notify_listeners(self) -> None:
        """Call the listeners after a change."""
        for listener in list(self.listeners):
            listener()

    async def wait_change(self, wait_s: float) -> None:
        """Return at the next change, or after `wait_s`."""
        turned = asyncio.Event()
        self.listeners.append(turned.set)
        try:
            async with asyncio.timeout(wait_s):
                await turned.wait()
        except TimeoutError:
            pass  # the caller checks again in both cases
        finally:
            self.listeners.remove(turned.set)
