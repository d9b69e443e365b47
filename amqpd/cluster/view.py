"""Cluster as the proxy and the HTTP API see it: the running nodes, their peer ports, and the owner of each vhost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple


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


class View:
    """Interface of the cluster for the proxy and the HTTP API.

    Attributes:
        node_name: the name of this node.
        listeners: called on the loop when the owner of a vhost or the address of a node may have changed.
    """

    node_name = ""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []

    def knows(self, vhost: str) -> bool:
        """Return whether the vhost exists, with or without owner. Cost: a dict look-up."""
        raise NotImplementedError

    def vhosts(self) -> list[str]:
        raise NotImplementedError

    def owner_of(self, vhost: str) -> NodeState | None:
        """Return the node that owns the vhost; None if there is none now. Cost: two dict look-ups."""
        raise NotImplementedError

    def nodes(self) -> list[NodeState]:
        """Return all running nodes by name, including this one."""
        raise NotImplementedError

    def controller(self) -> NodeState | None:
        """Return the owner of slot 0, which has the cluster-wide data (users, vhosts, permissions)."""
        raise NotImplementedError

    def position(self) -> int:
        """Return how far this node has read slot 0. The value only increases."""
        raise NotImplementedError

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
