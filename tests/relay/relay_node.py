"""A broker of a cluster without Kafka: a file written by the test assigns vhosts to nodes.

    relay_node.py NAME TABLE SECRET [options of amqpd]

TABLE is a directory. The test writes:

- `owners.json`: vhost -> name of its node, or null
- `NAME.closed`: the reason for which the node closes its clients, as when it is cut off from Kafka
- `NAME.troubled`: the node answers 503 to all requests of other nodes
- `NAME.position`: the offset up to which the node has read the cluster's metadata

Each node writes `NAME.json` (host, port, fingerprint of its peer port) when it listens, and `NAME.seen` with the
owners that it has read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import amqpd.management.cluster_gateway
import amqpd.server
from amqpd.__main__ import main
from amqpd.broker.broker import Broker
from amqpd.broker.vhost.pending import wait_done
from amqpd.broker.vhost.vhosts import declare
from amqpd.cluster.metadata import NotOwner
from amqpd.cluster.peer_server import PeerServer
from amqpd.cluster.row_codec import SlotChange
from amqpd.cluster.view import ClusterView, NodeState
from amqpd.config import Settings
from amqpd.connection.server import AmqpFrontEnd
from amqpd.management.front_end import AdminFrontEnd
from amqpd.management.request import Unavailable
from amqpd.protocol_server import FrontEnd, Guest
from amqpd.storage.metadata.rows import PermissionRow, Put, UserRow
from amqpd.storage.metadata.store import WriteFailed

LOOK_S = 0.02


class Table(ClusterView):
    """A cluster view read from the files of a directory."""

    def __init__(self, me: str, folder: Path) -> None:
        self.listeners = []
        self.node_name = me
        self._folder = folder
        self._owners: dict[str, str | None] = {}
        self._nodes: dict[str, NodeState] = {}
        self._stamp: object = None
        self.check()

    def check(self) -> None:
        stamp = sorted((each.name, each.stat().st_mtime_ns) for each in self._folder.glob("*.json"))
        if stamp == self._stamp:
            return
        self._stamp = stamp
        owners = ""
        for each in self._folder.glob("*.json"):
            text = each.read_text("utf-8")
            content = json.loads(text)
            if each.name == "owners.json":
                self._owners, owners = content, text
            else:
                self._nodes[each.stem] = NodeState(each.stem, content["host"], content["port"], content["fingerprint"])
        self.notify_listeners()
        (self._folder / f"{self.node_name}.seen").write_text(owners, "utf-8")

    def knows(self, vhost: str) -> bool:
        return vhost in self._owners

    def vhosts(self) -> list[str]:
        return sorted(self._owners)

    def mine(self) -> list[str]:
        """Return the vhosts of this node."""
        return [vhost for vhost, owner in self._owners.items() if owner == self.node_name]

    def owner_of(self, vhost: str) -> NodeState | None:
        name = self._owners.get(vhost)
        return None if name is None else self._nodes.get(name)

    def nodes(self) -> list[NodeState]:
        return sorted(self._nodes.values())

    def controller(self) -> NodeState | None:
        return self._nodes.get(self.node_name)  # a vhost is created where the test says

    def position(self) -> int:
        position_file = self._folder / f"{self.node_name}.position"
        return int(position_file.read_text("utf-8")) if position_file.exists() else 0


class Port(FrontEnd):
    """The peer port, and a timer that reads the table."""

    stays = True

    def __init__(
        self, broker: Broker, amqp: AmqpFrontEnd, admin: AdminFrontEnd, table: Table, secret: str, folder: Path
    ) -> None:
        super().__init__()
        self._broker = broker
        self._table = table
        self._folder = folder
        self.inner = PeerServer(broker, amqp, admin, table, secret.encode(), ("127.0.0.1", 0), write_changes)
        self.listeners = self.inner.listeners
        self._timer: asyncio.TimerHandle | None = None
        self._creating: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self.inner.start()
        assert self.inner.identity is not None
        address = {"host": "127.0.0.1", "port": self.inner.port, "fingerprint": self.inner.identity.fingerprint}
        new_file = self._folder / f"{self._table.node_name}.new"
        new_file.write_text(json.dumps(address), "utf-8")
        new_file.rename(self._folder / f"{self._table.node_name}.json")
        self._look()

    def _look(self) -> None:
        self._table.check()
        closed = self._folder / f"{self._table.node_name}.closed"
        reason = closed.read_text("utf-8") if closed.exists() else ""
        if reason != self.inner.relays.closed:
            self.inner.cut_off(reason)
        for vhost in self._table.mine():
            if vhost not in self._broker.vhosts and vhost not in self._creating:
                self._creating[vhost] = self._broker.loop.create_task(self._create(vhost))
        self._timer = self._broker.loop.call_later(LOOK_S, self._look)

    async def _create(self, vhost: str) -> None:
        """Create the vhost as a takeover does; a vhost named late* appears some time after its owner is known."""
        if vhost.startswith("late"):
            await asyncio.sleep(1.5)
        # First, so that no waiting client opens the vhost without permissions; the previous owner has the row, too.
        self._broker.auth.apply_committed([], [PermissionRow("guest", vhost, ".*", ".*", ".*")])
        await wait_done(partial(declare, self._broker.vhosts, vhost, "", (), "classic"))
        await self._broker.auth.set_permissions("guest", vhost, ".*", ".*", ".*")

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.inner.stop()

    async def suspend(self) -> None:
        await self.inner.suspend()

    async def resume(self) -> None:
        await self.inner.resume()


async def write_changes(changes: Sequence[SlotChange]) -> int:
    """Accept the changes in place of slot 0."""
    for change in changes:
        if isinstance(change, Put) and isinstance(change.row, UserRow):
            if change.row.name == "refused":
                raise WriteFailed("this one is refused")
            if change.row.name == "elsewhere":
                raise NotOwner("slot 0 is another's")
    return 1000 + len(changes)


def raise_unavailable(*_: object) -> None:
    """Replaces the principal of requests from other nodes."""
    raise Unavailable("this node is in trouble")


class RelayServer(amqpd.server.Server):
    """A server with the peer port as another front end."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        guests: Sequence[Guest] = (),
        substitutes: amqpd.server.Substitutes = amqpd.server.NO_SUBSTITUTES,
    ) -> None:
        super().__init__(settings, loop, guests, substitutes)
        name, folder, secret = PLACE
        if (Path(folder) / f"{name}.troubled").exists():
            amqpd.management.cluster_gateway.Principal = raise_unavailable  # type: ignore[misc,assignment]
        admin = next(each for each in self.front_ends if isinstance(each, AdminFrontEnd))
        type(self.broker).node_name = property(lambda _: name)  # type: ignore[method-assign,assignment]
        self.front_ends.append(Port(self.broker, self.amqp, admin, Table(name, Path(folder)), secret, Path(folder)))


if __name__ == "__main__":
    PLACE = sys.argv[1:4]
    amqpd.server.Server = RelayServer  # type: ignore[misc]
    sys.exit(main(sys.argv[4:]))
