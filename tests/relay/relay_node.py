"""A broker that relays, without Kafka: who runs which vhost stands in a file that a test writes.

    relay_node.py NAME TABLE SECRET [options of amqpd]

TABLE is a directory. The test's are `owners.json` (vhost -> name of the node that runs it, null for nobody),
`NAME.closed` (why that node sends its clients away, as where it is cut off),
`NAME.troubled`, which makes a node answer 503 to all that others ask, and `NAME.position` (how far it has read what is
the cluster's). `NAME.json` (host, port, fingerprint of the inner port) is written by each node when it listens, and
`NAME.seen` has the owners it knows of.
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
from amqpd.cluster.view import NodeState, View
from amqpd.config import Settings
from amqpd.connection.server import AmqpFrontEnd
from amqpd.management.front_end import AdminFrontEnd
from amqpd.management.request import Unavailable
from amqpd.protocol_server import FrontEnd, Guest
from amqpd.storage.metadata.store import PermissionRow, Put, UserRow, WriteFailed

LOOK_S = 0.02


class Table(View):
    """The files of a directory."""

    def __init__(self, me: str, folder: Path) -> None:
        super().__init__()
        self.node_name = me
        self._folder = folder
        self._owners: dict[str, str | None] = {}
        self._nodes: dict[str, NodeState] = {}
        self._stamp: object = None
        self.look()

    def look(self) -> None:
        stamp = sorted((each.name, each.stat().st_mtime_ns) for each in self._folder.glob("*.json"))
        if stamp == self._stamp:
            return
        self._stamp = stamp
        owners = ""
        for each in self._folder.glob("*.json"):
            text = each.read_text("utf-8")
            said = json.loads(text)
            if each.name == "owners.json":
                self._owners, owners = said, text
            else:
                self._nodes[each.stem] = NodeState(each.stem, said["host"], said["port"], said["fingerprint"])
        self.notify_listeners()
        (self._folder / f"{self.node_name}.seen").write_text(owners, "utf-8")

    def knows(self, vhost: str) -> bool:
        return vhost in self._owners

    def vhosts(self) -> list[str]:
        return sorted(self._owners)

    def mine(self) -> list[str]:
        """What this node runs."""
        return [vhost for vhost, owner in self._owners.items() if owner == self.node_name]

    def owner_of(self, vhost: str) -> NodeState | None:
        name = self._owners.get(vhost)
        return None if name is None else self._nodes.get(name)

    def nodes(self) -> list[NodeState]:
        return sorted(self._nodes.values())

    def controller(self) -> NodeState | None:
        return self._nodes.get(self.node_name)  # a vhost is made where the test says

    def position(self) -> int:
        place = self._folder / f"{self.node_name}.position"
        return int(place.read_text("utf-8")) if place.exists() else 0


class Port(FrontEnd):
    """The inner port, and looks at the table."""

    stays = True

    def __init__(
        self, broker: Broker, amqp: AmqpFrontEnd, admin: AdminFrontEnd, table: Table, secret: str, folder: Path
    ) -> None:
        super().__init__()
        self._broker = broker
        self._table = table
        self._folder = folder
        self.inner = PeerServer(broker, amqp, admin, table, secret.encode(), ("127.0.0.1", 0), written)
        self.listeners = self.inner.listeners
        self._timer: asyncio.TimerHandle | None = None
        self._making: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self.inner.start()
        assert self.inner.identity is not None
        said = {"host": "127.0.0.1", "port": self.inner.port, "fingerprint": self.inner.identity.fingerprint}
        aside = self._folder / f"{self._table.node_name}.new"
        aside.write_text(json.dumps(said), "utf-8")
        aside.rename(self._folder / f"{self._table.node_name}.json")
        self._look()

    def _look(self) -> None:
        self._table.look()
        closed = self._folder / f"{self._table.node_name}.closed"
        why = closed.read_text("utf-8") if closed.exists() else ""
        if why != self.inner.relays.closed:
            self.inner.cut_off(why)
        for vhost in self._table.mine():
            if vhost not in self._broker.vhosts and vhost not in self._making:
                self._making[vhost] = self._broker.loop.create_task(self._make(vhost))
        self._timer = self._broker.loop.call_later(LOOK_S, self._look)

    async def _make(self, vhost: str) -> None:
        """As a takeover brings it, some time after the owner is known where its name says so."""
        if vhost.startswith("late"):
            await asyncio.sleep(1.5)
        # Before the vhost is there: a client that waits for it must not come between. The owner before says it as well.
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


async def written(changes: Sequence[SlotChange]) -> int:
    """Slot 0, so to speak."""
    for change in changes:
        if isinstance(change, Put) and isinstance(change.row, UserRow):
            if change.row.name == "refused":
                raise WriteFailed("this one is refused")
            if change.row.name == "elsewhere":
                raise NotOwner("slot 0 is another's")
    return 1000 + len(changes)


def troubled(*_: object) -> None:
    """Who asks, of a request by the inner port."""
    raise Unavailable("this node is in trouble")


class RelayServer(amqpd.server.Server):
    """With the inner port beside its front ends."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, guests: Sequence[Guest] = ()) -> None:
        super().__init__(settings, loop, guests)
        name, folder, secret = PLACE
        if (Path(folder) / f"{name}.troubled").exists():
            amqpd.management.cluster_gateway.Principal = troubled  # type: ignore[misc,assignment]
        admin = next(each for each in self.front_ends if isinstance(each, AdminFrontEnd))
        type(self.broker).node_name = property(lambda _: name)  # type: ignore[method-assign,assignment]
        self.front_ends.append(Port(self.broker, self.amqp, admin, Table(name, Path(folder)), secret, Path(folder)))


if __name__ == "__main__":
    PLACE = sys.argv[1:4]
    amqpd.server.Server = RelayServer  # type: ignore[misc]
    sys.exit(main(sys.argv[4:]))
