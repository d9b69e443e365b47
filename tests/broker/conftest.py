"""A vhost with queues, without sockets. Only tests advance the clock; syncs happen at the end of a loop turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_filesystem import SimulatedFileSystem

from amqpd.broker.consumer import Destination
from amqpd.broker.delayed.delayed_messages import DelayScheduler
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.jobs.jobs import JobManager
from amqpd.broker.message import Message, MessageRoute, MessageView, make_message
from amqpd.broker.publish import router
from amqpd.broker.publish.dead_letter import DeadLetterPublisher
from amqpd.broker.publish.republisher import Republisher
from amqpd.broker.queue import log_opener
from amqpd.broker.queue.log_opener import SLICE_S, FailedQueueRetry, LogOpener
from amqpd.broker.queue.log_opening import LogOpening
from amqpd.broker.queue.queue import Queue, for_consumer
from amqpd.broker.queue.services import MemoryWindows, QueueServices
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration, make_queue
from amqpd.broker.vhost.exchange import Exchange
from amqpd.broker.vhost.vhost import VHost, VhostServices
from amqpd.protocol.properties import Properties, decode_properties, encode_properties, scan_properties
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.metadata.rows import VhostRow
from amqpd.storage.storage import Storage

sys.path.insert(0, str(Path(__file__).parent))


class PatientOpener(LogOpener):
    """A log opener whose slices have no time limit unless a test sets SLICE_S.

    The time to read a log depends on the machine, not on the fake clock.
    """

    def open(self, queue: LogOpening) -> bool:
        if log_opener.SLICE_S == SLICE_S:
            self._spent_s = 0.0
        return super().open(queue)


class FakeClock(Clock):
    """A wall clock and a monotonic clock. `Room.advance` moves both."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.wall_base_ms = 1_700_000_000_000
        self.per_look_ms = 0  # each call of `monotonic` advances the clock by this

    def time_ms(self) -> int:
        return self.wall_base_ms + self.now_ms

    def monotonic(self) -> float:
        self.now_ms += self.per_look_ms
        return self.now_ms / 1000

    def uptime(self) -> float:
        return self.now_ms / 1000


class Got:
    """A message taken by `Room.get`."""

    def __init__(self, message: Message, redelivered: bool) -> None:
        self.body = message.body()
        self.properties: Properties = decode_properties(message.properties())
        self.headers = dict(self.properties.headers or {})
        self.exchange = message.envelope.exchange
        self.routing_key = message.envelope.routing_key
        self.redelivered = redelivered


class Room:
    """The broker without connections: storage, loop turn, timers, dead letters, one vhost."""

    def __init__(self, data_dir: Path, filesystem: FileSystem | None = None) -> None:
        self.data_dir = data_dir
        self.filesystem = filesystem  # None: the real one
        self.boot_id: str | None = None
        self.clock = FakeClock()
        self.expired: list[str] = []
        self._soon: list[Callable[[], None]] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self.open()

    def open(self) -> None:
        self.reply_consumers: dict[str, Destination] = {}
        self.storage = Storage(
            self.data_dir,
            post=self._post,
            clock=self.clock,
            filesystem=self.filesystem,
            inline=True,
            segment_size_bytes=1 << 20,
            boot_id=self.boot_id,
        )
        self.timers = Timers(self._call_later, self.storage.clock_watch)
        self.turn = LoopTurn(self.storage, self._soon.append, self.timers)
        # Every metadata commit succeeds at once.
        metadata: Any = SimpleNamespace(submit=lambda changes, done: done(None), checkpoint=lambda done: done(None))
        self.catalogue = VhostServices(self.storage, metadata, self._post, self._call_later)
        self.storage.commits.on_commit = self.turn.committed
        self.opener = PatientOpener(self._soon.append)
        self.vhosts: dict[str, VHost] = {}
        self.windows = MemoryWindows()
        self.republisher = Republisher(self.turn, self.timers, self._soon.append)
        self.dead_letters = DeadLetterPublisher(self.republisher, self.vhosts)
        self.delays = DelayScheduler(
            self.storage, self.turn, self.timers, self.republisher, self.vhosts, self._soon.append
        )
        self.pump_retries = FailedQueueRetry(self._call_later)
        host = QueueServices(
            "/",
            "v1",
            self.turn,
            self.timers,
            self.windows,
            self.storage,
            self.opener,
            self.pump_retries,
            self.dead_letters,
            self.catalogue.stored_offsets,
            self._expire,
            self.delays,
        )
        self.vhost = self.vhosts["/"] = VHost(self.catalogue, VhostRow("/", "v1"), host, self.reply_consumers)

    def _expire(self, queue: Queue) -> None:
        self.expire(queue)  # looked up each time: a test may slow it down

    def expire(self, queue: Queue) -> None:
        """Delete a queue whose x-expires has passed, as the broker does."""
        self.expired.append(queue.name)
        declare.delete_queue(self.vhost, queue)

    def _call_later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        self._later.append((self.clock.monotonic() + delay_s, partial(call, *args)))

    def _post(self, call: Callable[..., None], *args: object) -> None:
        self._soon.append(partial(call, *args))

    # -- time

    def turns(self) -> None:
        """Run the scheduled callbacks until the loop is idle."""
        for _ in range(1000):
            if not self._soon:
                return
            soon = self._soon[:]
            self._soon.clear()
            for call in soon:
                call()
        raise AssertionError("the loop does not become idle")

    def advance(self, ms: int) -> None:
        """Advance both clocks by `ms`, a millisecond at a time, and fire the timers that are due."""
        self.turns()
        for _ in range(ms):
            self.clock.now_ms += 1
            for _ in range(1000):
                due = [entry for entry in self._later if entry[0] <= self.clock.monotonic()]
                if not due:
                    break
                self._later = [entry for entry in self._later if entry not in due]
                for _, call in due:
                    call()
            self.turns()

    # -- queues

    def queue(self, name: str, *, durable: bool = True, **arguments: object) -> Queue:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        return self.declare(QueueDeclaration(name, durable, False, False, table))

    def declare(self, asked: QueueDeclaration) -> Queue:
        """Declare a queue. Return it; it may have existed before."""
        done: list[object] = []
        declare.declare_queue(self.vhost, asked, done.append)
        assert done == [None]
        return self.vhost.queues[asked.name]

    def exchange(self, name: str, kind: str) -> Exchange:
        """Declare a durable exchange."""
        declare.declare_exchange(self.vhost, ExchangeDeclaration(name, kind, True, False, False, {}))
        return self.vhost.exchanges[name]

    def bind(self, exchange: str, queue: Queue, key: str = "") -> None:
        declare.bind(self.vhost, self.vhost.exchanges[exchange], queue, key, {})

    def delete(self, queue: Queue) -> int:
        return declare.delete_queue(self.vhost, queue)

    def restart(self, *, down_ms: int = 0) -> None:
        """Kill the broker and start it after `down_ms`.

        The disk has what earlier loop turns wrote. The monotonic clock starts at an arbitrary value.
        """
        old = list(self.vhost.queues.values())
        self.storage.close(clean=False)
        self._soon.clear()
        self._later.clear()
        self.clock.wall_base_ms += down_ms + self.clock.now_ms - 5000
        self.clock.now_ms = 5000
        self.open()
        for queue in old:
            if queue.durable:
                store = self.storage.open_queue("v1", queue.id, queue.name)
                again = make_queue(self.vhost.queue_host, queue.name, True, False, None, queue.arguments, store)
                again.id = queue.id
                self.vhost.add_queue(again)

    def publish(
        self,
        name: str,
        body: bytes = b"",
        *,
        exchange: str = "",
        persistent: bool = True,
        turn: bool = True,
        **properties: object,
    ) -> bool:
        """Publish to every destination. Return False if one refused the message.

        If `turn` is true, run the loop until it is idle.
        """
        encoded = encode_properties(Properties(delivery_mode=2 if persistent else 1, **properties))  # type: ignore[arg-type]
        message = make_message(
            MessageRoute(exchange, name), encoded, body, persistent, scan_properties(encoded, 0, len(encoded))
        )
        accepted = True
        for destination in router.route(self.vhost, self.vhost.exchanges[exchange], [name], MessageView(message)):
            destination.prepare()
            accepted = destination.enqueue(message) and accepted
        if turn:
            self.turn.schedule()
            self.turns()
        return accepted

    def get(self, queue: Queue) -> Got | None:
        """Return the next message with auto-ack, or None.

        While the queue's log is opening, wait and repeat the get, as channels do.
        """
        entry = queue.get(True)
        while entry is None and queue.must_wait():
            called: list[bool] = []
            queue.when_ready(lambda called=called: called.append(True))  # type: ignore[misc]
            self.turns()
            assert called, "the queue did not call the waiting getter"
            entry = queue.get(True)
        self.turn.schedule()
        self.turns()
        if entry is None:
            return None
        message = for_consumer(entry, queue.rules.counts_shown)
        assert message is not None
        return Got(message, entry.redelivered)

    def bodies(self, queue: Queue) -> list[bytes]:
        """Return the bodies of all ready messages and remove them."""
        found = []
        while (got := self.get(queue)) is not None:
            found.append(got.body)
        return found


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    room.storage.close(clean=False)


@pytest.fixture(scope="session")
def make_room() -> Callable[[Path], Room]:
    """Factory of rooms, for tests that need many: hypothesis calls a test function many times."""
    return Room


@pytest.fixture(scope="session")
def memory_room() -> Callable[[], Room]:
    """Factory of rooms on a simulated disk in memory, where syncs cost no time."""
    return lambda: Room(Path("/room"), SimulatedFileSystem())


@pytest.fixture
def jobs(room: Any) -> JobManager:
    return JobManager(room.republisher, room.turn, room._soon.append)
