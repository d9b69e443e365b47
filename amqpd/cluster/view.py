"""Who runs what, as the relay and the admin API ask: nodes, their inner addresses, and which of them runs a vhost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple


class NodeState(NamedTuple):
    """name: `amqpd@host`. host, port: of its inner port (`cluster.listen`). fingerprint: of its certificate, SHA-256 in
    hexadecimal digits.
    """

    name: str
    host: str
    port: int
    fingerprint: str


class View:
    """What one node knows of its cluster. me: its own name.

    listeners: called, on the loop, whenever a vhost's owner or a node's address may have changed.
    """

    me = ""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []

    def knows(self, vhost: str) -> bool:
        """Whether there is such a vhost, whoever runs it. Cost: a look into a dict."""
        raise NotImplementedError

    def vhosts(self) -> list[str]:
        """The names of all there are."""
        raise NotImplementedError

    def owner_of(self, vhost: str) -> NodeState | None:
        """Who runs the vhost; None where nobody does just now, or there is none. Cost: two looks into a dict."""
        raise NotImplementedError

    def nodes(self) -> list[NodeState]:
        """All that run, this one among them, by name."""
        raise NotImplementedError

    def controller(self) -> NodeState | None:
        """Who keeps what is the whole cluster's (users, vhosts, permissions): the owner of slot 0."""
        raise NotImplementedError

    def position(self) -> int:
        """How far this node has read what is the whole cluster's; rises."""
        raise NotImplementedError

    def tell(self) -> None:
        """Something has changed."""
        for listener in list(self.listeners):
            listener()

    async def changed(self, wait_s: float) -> None:
        """Returns at the next change, or after that time."""
        turned = asyncio.Event()
        self.listeners.append(turned.set)
        try:
            async with asyncio.timeout(wait_s):
                await turned.wait()
        except TimeoutError:
            pass  # the caller looks anew either way
        finally:
            self.listeners.remove(turned.set)
