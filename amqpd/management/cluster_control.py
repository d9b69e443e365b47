"""What the admin API may do with the cluster that its node is of: `call.cluster`, None where it is of none."""

from __future__ import annotations

from typing import Any, Protocol


class ClusterControl(Protocol):
    """Of one node (amqpd/cluster/operations.py)."""

    def status(self) -> dict[str, Any]:
        """Who is in it, who runs which vhost, what a confirm promises: see `GET /api/amqpd/cluster`."""

    async def move(self, vhost: str, node: str) -> list[str]:
        """The vhost's slot goes to that node. Returns the names of all vhosts of the slot, when they are there.

        Raises: NoSuchNode, NoSuchVhost, NotMoved; MetadataError.
        """

    async def rebalance(self) -> dict[str, str]:
        """Slots with vhosts go from nodes with many to nodes with few, whoever is connected. Returns vhost -> node, of
        those that are to move. Raises: MetadataError.
        """

    async def drain(self, timeout_s: float) -> None:
        """All that the node runs goes to others; returns when it has gone. Raises: NotMoved."""

    def undrain(self) -> None:
        """It may run vhosts again."""


class NoSuchNode(Exception):
    """No node of that name is in the cluster."""


class NotMoved(Exception):
    """It has not come to that in time; it may yet."""
