"""The inner port as a front end: what other nodes come in by, and this node's clients go out by.

    AMQP     a client of another node, whose vhost is here            relayed.py
    LINK     whether that node is there                               link.py
    SERVED   what this node serves, for one that Kafka leaves alone    peer_server.py
    HTTP     requests of another node's admin API                     peer_http.py, api_gateway.py
    WRITE    changes of what is the cluster's, for slot 0's owner     forward.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from amqpd.cluster import preamble as words
from amqpd.cluster.forward import Write, Writer, forward
from amqpd.cluster.identity import Identity, identity
from amqpd.cluster.peer_link import Connector, InnerDoor, refuse, welcome
from amqpd.cluster.proxy import Relays
from amqpd.cluster.relayed import RelayedClients
from amqpd.protocol_server import FrontEnd

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.cluster.preamble import Preamble
    from amqpd.cluster.row_codec import SlotChange
    from amqpd.cluster.view import Node, View
    from amqpd.connection.server import AmqpFrontEnd
    from amqpd.management.cluster_control import ClusterControl
    from amqpd.management.front_end import AdminFrontEnd
    from amqpd.management.cluster_gateway import Whole

Serve: TypeAlias = "Callable[[Preamble, asyncio.Transport], Awaitable[None]]"


class InnerFrontEnd(FrontEnd):
    """Its listeners are `cluster`, one each per address. admin: it answers for the whole cluster, and other nodes'
    requests; it starts later. view: who runs what. secret: the cluster's. listen: host and port. write: what writes to
    slot 0 where this node owns it.

    The port stays through `stop_app`, as the admin API does.
    """

    stays = True

    def __init__(
        self,
        broker: Broker,
        amqp: AmqpFrontEnd,
        admin: AdminFrontEnd,
        view: View,
        secret: bytes,
        listen: tuple[str, int],
        write: Write | None = None,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._amqp = amqp
        self._secret = secret
        self._view = view
        self._listen = listen
        self._admin = admin
        admin.whole = self._whole
        self.control: ClusterControl | None = None
        """What operators may do with the cluster; given before the admin API serves."""
        self.connector = Connector(view.me, secret)
        self.relays = Relays(broker, view, self.connector)
        self.relayed = RelayedClients(broker, amqp, view)
        self.identity: Identity | None = None
        self._kinds: dict[str, Serve] = {
            words.AMQP: self.relayed.amqp,
            words.LINK: self.relayed.link,
            words.HTTP: self._take_http,
        }
        if write is not None:
            self._kinds[words.WRITE] = Writer(write).take
        self._door: InnerDoor | None = None

    async def start(self) -> None:
        """Raises: OSError."""
        if self.identity is None:
            self.identity = await asyncio.to_thread(identity, self._broker.settings.data_dir)
        self._door = InnerDoor(self.identity, self._secret, self._kinds)
        self.listeners += self._door.listen(*self._listen)
        self._amqp.connections.elsewhere = self.relays

    @property
    def port(self) -> int:
        """The port listened on; 0 before `start`."""
        return 0 if self._door is None else self._door.port

    @property
    def refused_count(self) -> int:
        """Sockets that were no node's, since the start."""
        return 0 if self._door is None else self._door.refused_count

    def cut_off(self, why: str) -> None:
        """All clients go, 320, and no connection is opened any more; "": they are again. The node confirms nothing, and
        cannot ask who could serve its clients: they have to find him.
        """
        self.relays.closed = why
        self._view.tell()  # connections that wait for an owner are refused
        if why:
            self.relays.force_all(why)
            for connection in list(self._amqp.connections):
                connection.control.force(why)
            self._broker.turn.want()

    async def forward(self, node: Node, changes: Sequence[SlotChange]) -> int:
        """Slot 0's owner writes them. Returns the offset behind. Raises: WriteFailed; NotOwner, nothing was written."""
        return await forward(self.connector, node, changes)

    def _whole(self) -> Whole:
        """For the admin API, which imports what it takes behind the ready line."""
        from amqpd.cluster.api_gateway import Gather

        return Gather(self._broker, self._view, self.connector, self.control)

    async def _take_http(self, _preamble: Preamble, transport: asyncio.Transport) -> None:
        """Requests of another node's admin API."""
        protocol = self._admin.inner_connection()
        if protocol is None:
            refuse(transport, words.NOT_MINE, "its admin API does not serve yet")
        else:
            welcome(transport, protocol)

    async def stop(self) -> None:
        """What is still relayed ends: AMQP, which stops before, has told clients so."""
        self.listeners.clear()
        self._amqp.connections.elsewhere = None
        if self._door is not None:
            self._door.close()
            self._door = None
        self.relayed.close()
        self.relays.close()

    async def suspend(self) -> None:
        """Nothing: it is not for clients."""

    async def resume(self) -> None:
        """Nothing: it was not suspended."""
