"""Metadata that keep rows in memory and commit, or fail, on request; and a broker in memory that uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header
from memory_broker import AllowAll, Client, MemoryBroker, NoControl, StillLoop
from simulated_filesystem import SimulatedClock

from amqpd.broker.broker import Broker
from amqpd.broker.vhost.recovery import RecoveryFindings, RecoveryReport
from amqpd.config import Settings
from amqpd.connection.close_handler import CLOSED
from amqpd.connection.registry import ConnectionRegistry
from amqpd.storage.metadata.rows import Change, Put, Row, VhostRow
from amqpd.storage.metadata.store import WriteFailed
from amqpd.storage.storage import Storage
from amqpd.testing.memory import MemoryRows

Done = Callable[[BaseException | None], None]


class Rows(MemoryRows):
    """The database: the committed rows. It outlives the broker."""

    def __init__(self, *rows: Row) -> None:
        super().__init__()
        self.apply([Put(row) for row in rows])


class ManualMetadata:
    """Metadata that commit the oldest submission when a test asks for it."""

    def __init__(self, rows: Rows, loop: StillLoop) -> None:
        self.rows = rows
        self.loop = loop
        self.waiting: deque[tuple[tuple[Change, ...], Done]] = deque()

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        self.waiting.append((tuple(changes), done))

    def commit(self, *, fails: bool = False, stored: bool = False) -> None:
        """Finish the oldest submission. stored: it fails, but its rows are stored, as when a server goes away before
        its answer.
        """
        changes, done = self.waiting.popleft()
        if fails:
            if stored:
                self.rows.apply(changes)
            self.loop.call_soon(done, WriteFailed("cannot write the metadata: database or disk is full"))
        else:
            self.rows.apply(changes)
            self.loop.call_soon(done, None)


class RetryLoop(StillLoop):
    """A loop that keeps only the timers of retried declarations."""

    def __init__(self) -> None:
        super().__init__()
        self.retries: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> Any:
        if "PendingDeclarations." in function.__qualname__:
            self.retries.append(function)
        return super().call_later(delay_s, function, *arguments)


class ErrorRecorder(NoControl):
    """Channel 0 that records a hard error and closes the connection."""

    def __init__(self, client: FailingClient) -> None:
        super().__init__(client.server.loop)
        self.client = client

    def fail(self, error: Any) -> None:
        self.client.failed = error.code
        self.client.vanish()


class FailingClient(Client):
    """A client whose connection may be closed with an error."""

    def __init__(self, server: Any, name: str) -> None:
        super().__init__(server, name)
        self.failed = 0

    def control(self) -> NoControl:
        return ErrorRecorder(self)

    def publish_mandatory(self, queue: str, body: bytes) -> None:
        """Publish a persistent message to the default exchange, in one read."""
        method = pamqp.commands.Basic.Publish(routing_key=queue, mandatory=True)
        header = pamqp.header.ContentHeader(0, len(body), pamqp.commands.Basic.Properties(delivery_mode=2))
        frames = (method, header, pamqp.body.ContentBody(body))
        self.connection.receive(b"".join([pamqp.frame.marshal(frame, 1) for frame in frames]))

    @property
    def open(self) -> bool:
        return bool(self.connection.close_handler.state != CLOSED)


class DeclarationBroker(MemoryBroker):
    """A broker in memory that starts from its rows."""

    def __init__(self) -> None:
        self.rows = Rows(VhostRow("/", "v"))
        super().__init__()

    def begin(self) -> None:
        self.loop = self.retry_loop = RetryLoop()
        self.storage = Storage(
            "/data",
            post=self.loop.call_soon_threadsafe,
            clock=SimulatedClock(),
            filesystem=self.filesystem,
            segment_size_bytes=200_000,
            boot_id="0" * 31 + "1",
            inline=True,
        )
        self.metadata = ManualMetadata(self.rows, self.loop)
        loop: Any = self.loop
        metadata: Any = self.metadata
        auth: Any = AllowAll()
        self.broker = Broker(Settings(), self.storage, metadata, loop)
        self.connections = ConnectionRegistry(self.broker)
        self.broker.load(RecoveryFindings(self.rows.state(), [], [], [], RecoveryReport()))
        self.broker.auth.close()
        self.broker.auth = auth
        self.vhost = self.broker.vhosts["/"]

    def again(self, *, clean: bool) -> None:
        """Start the next life, after a stop or a kill. Pending commits are lost; none of them was answered."""
        self.storage.close(clean=clean)
        self.filesystem = self.filesystem.killed()
        self.begin()
        while self.metadata.waiting:
            self.metadata.commit()
            self.settle()
