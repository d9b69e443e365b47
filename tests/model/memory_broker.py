"""A real broker without threads, sockets or files: its event loop runs on request, over a simulated disk.

Clients exchange AMQP bytes (encoded and decoded by pamqp), so channels, queues and flow control are those of a real
connection. Everything that a loop turn started is done when `settle` returns.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.broker.broker import Broker
from amqpd.config import Settings
from amqpd.connection.close_handler import CLOSED
from amqpd.connection.connection import Connection
from amqpd.connection.registry import ConnectionRegistry
from amqpd.storage.metadata.rows import VhostRow
from amqpd.storage.storage import Storage

BOOT_ID = "0" * 31 + "1"
FRAME_MAX = 131072


class Handle:
    def cancel(self) -> None:
        """Do nothing: timers of this loop never fire."""


class StillLoop:
    """An event loop that runs its callbacks when `run` is called. Timers never fire."""

    def __init__(self) -> None:
        self.ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def time(self) -> float:
        return 0.0

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> Handle:
        self.ready.append((function, arguments))
        return Handle()

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> Handle:
        return Handle()

    def run(self) -> None:
        turns = 0
        while self.ready:
            turns += 1
            assert turns < 10_000, "the broker does not become idle"
            function, arguments = self.ready.popleft()
            function(*arguments)


class AllowAll:
    def is_allowed(self, *_: object) -> bool:
        return True

    is_topic_allowed = may_access_vhost = is_allowed

    def has_topic_permissions(self, *_: object) -> bool:
        return False

    def remove_vhost(self, name: str) -> None:
        """Do nothing: there are no permissions."""


class PromptMetadata:
    """Metadata that commit at once; other tests cover pending commits."""

    def __init__(self, loop: StillLoop) -> None:
        self.loop = loop

    def submit(self, changes: Sequence[object], done: Callable[[BaseException | None], None]) -> None:
        self.loop.call_soon(done, None)


class Wire:
    """The transport of a connection."""

    def __init__(self) -> None:
        self.peer = self.local = ("", 0)
        self.node = ""
        self.data = b""
        self.reading = True

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def write(self, data: bytes) -> None:
        self.data += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        raise AssertionError("the broker closed the socket")

    abort = close


class NoControl:
    """Channel 0 without traffic; a hard error fails the test."""

    def __init__(self, loop: StillLoop) -> None:
        self._loop = loop

    def call_soon(self, function: Callable[[], None]) -> None:
        self._loop.call_soon(function)

    def fail(self, error: Exception) -> None:
        raise AssertionError(f"the connection failed: {error!r}") from error


class Event(NamedTuple):
    """A method that a client received, with its content if it has one."""

    channel: int
    method: Any
    body: bytes | None = None
    headers: dict[str, Any] | None = None


class Client:
    """One open connection."""

    def __init__(self, server: MemoryBroker, name: str) -> None:
        self.server = server
        self.wire = Wire()
        self.connection = Connection(server.broker, self.wire, self.control(), name, FRAME_MAX)
        self.connection.capabilities = {"consumer_cancel_notify": True}
        self.connection.open(User("guest"), server.vhost)  # type: ignore[arg-type]
        self.connection.channels.count_max = 2047
        self.connection.set_frame_max(FRAME_MAX)
        server.connections.add(self.connection)

    def control(self) -> NoControl:
        return NoControl(self.server.loop)

    def say(self, channel: int, *methods: Any) -> None:
        self.connection.receive(b"".join([pamqp.frame.marshal(method, channel) for method in methods]))

    def publish(
        self, channel: int, routing_key: str, bodies: Sequence[bytes], properties: bytes, exchange: str = ""
    ) -> None:
        """Publish all messages in one read of the socket."""
        method = pamqp.frame.marshal(spec.Basic.Publish(exchange=exchange, routing_key=routing_key), channel)
        out = []
        for body in bodies:
            header = struct.pack(">HHQ", 60, 0, len(body)) + properties
            out += [method, struct.pack(">BHI", 2, channel, len(header)), header, b"\xce"]
            if body:
                out += [struct.pack(">BHI", 3, channel, len(body)), body, b"\xce"]
        self.connection.receive(b"".join(out))

    def heard(self) -> list[Event]:
        """Return the methods received since the last call, in order."""
        data, self.wire.data = self.wire.data, b""
        events: list[Event] = []
        while data:
            size, channel, value = pamqp.frame.unmarshal(data)
            data = data[size:]
            if isinstance(value, pamqp.header.ContentHeader):
                body = b""
                while len(body) < value.body_size:
                    size, _, part = pamqp.frame.unmarshal(data)
                    assert isinstance(part, pamqp.body.ContentBody)
                    body += part.value
                    data = data[size:]
                events[-1] = events[-1]._replace(body=body, headers=value.properties.headers)
            else:
                events.append(Event(channel, value))
        return events

    def vanish(self) -> None:
        """Close the socket without a close handshake."""
        self.connection.close_handler.set_state(CLOSED)
        self.server.connections.release(self.connection)


class User(NamedTuple):
    name: str


class MemoryBroker:
    """A broker with one vhost, over a simulated disk that outlives it."""

    def __init__(self) -> None:
        self.filesystem = SimulatedFileSystem()
        self.durable: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        self.loop = StillLoop()
        self.storage = Storage(
            "/data",
            post=self.loop.call_soon_threadsafe,
            clock=SimulatedClock(),
            filesystem=self.filesystem,
            segment_size_bytes=200_000,
            boot_id=BOOT_ID,
            inline=True,
        )
        metadata: Any = PromptMetadata(self.loop)
        loop: Any = self.loop
        auth: Any = AllowAll()
        self.broker = Broker(Settings(), self.storage, metadata, loop)
        self.broker.auth = auth
        self.connections = ConnectionRegistry(self.broker)
        self.vhost = self.broker.vhosts.new_vhost(VhostRow("/", "v"))
        self.broker.vhosts["/"] = self.vhost

    def settle(self) -> None:
        """Run the loop until it has nothing to do."""
        self.loop.run()

    def again(self, *, clean: bool) -> None:
        """Start the next life of the broker: clients are disconnected, durable queues are opened again."""
        from amqpd.broker.vhost.declaration import make_queue

        queues = [(queue.name, queue.id, queue.arguments) for queue in self.vhost.queues.values() if queue.id]
        if clean:
            self.storage.close(clean=True)
        self.filesystem = self.filesystem.killed()
        self.begin()
        for name, queue_id, arguments in queues:
            store = self.storage.open_queue("v", queue_id, name, "/")
            queue = make_queue(self.vhost.queue_host, name, True, False, None, arguments, store)
            queue.id = queue_id
            self.vhost.add_queue(queue)

    def end(self) -> None:
        self.storage.close(clean=False)
