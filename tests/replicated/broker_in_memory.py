"""A slot's owner with a vhost: queues on in-memory partitions, dead letters; the test runs time and turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from kafka_in_memory import FakeKafka
from slot_in_memory import Slot, queue_id

from amqpd.broker.delayed.delayed_messages import DelayScheduler
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.message import MessageRoute, make_message
from amqpd.broker.publish.dead_letter import DeadLetterPublisher
from amqpd.broker.publish.republisher import Republisher
from amqpd.broker.queue.log_opener import FailedQueueRetry, LogOpener
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import MemoryWindows, QueueServices
from amqpd.broker.vhost.declaration import make_queue
from amqpd.broker.vhost.vhost import VHost, VhostServices
from amqpd.protocol.properties import Properties, decode_properties, encode_properties, scan_properties
from amqpd.storage.metadata.rows import VhostRow

SOURCE, TARGET = "source", "target"


class Owner(Slot):
    """An owner of the queues `source` and `target`. `source` dead-letters to `target`; `arguments` are its other
    arguments.
    """

    def __init__(self, kafka: FakeKafka, first_offsets: dict[int, int], arguments: dict[str, object]) -> None:
        super().__init__(kafka, 2, first_offsets)
        self.arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": TARGET, **arguments}
        self.clock = self.storage.context.clock
        self._soon: list[Callable[[], None]] = []
        self._later: list[tuple[float, Callable[[], None]]] = []

    async def open(self) -> Owner:
        """Read the queues back and serve them."""
        await super().open()
        timers = Timers(self._call_later, self.storage.clock_watch)
        self.broker_turn = LoopTurn(self.storage, self._soon.append, timers)
        self.storage.commits.on_commit = self.broker_turn.committed
        metadata: Any = SimpleNamespace(submit=lambda changes, done: done(None), checkpoint=lambda done: done(None))
        catalogue = VhostServices(self.storage, metadata, self._post, self._call_later)
        vhosts: dict[str, VHost] = {}
        self.republisher = Republisher(self.broker_turn, timers, self._soon.append)
        dead_letters = DeadLetterPublisher(self.republisher, vhosts)
        delays = DelayScheduler(self.storage, self.broker_turn, timers, self.republisher, vhosts, self._soon.append)
        host = QueueServices(
            *("/", "v", self.broker_turn, timers, MemoryWindows(), self.storage, LogOpener(self._soon.append)),
            *(FailedQueueRetry(self._call_later), dead_letters, catalogue.stored_offsets, lambda _: None, delays),
        )
        self.vhost = vhosts["/"] = VHost(catalogue, VhostRow("/", "v"), host, {})
        for number, (name, arguments) in enumerate(((SOURCE, self.arguments), (TARGET, {}))):
            queue = make_queue(host, name, True, False, None, arguments, self.queues[number])
            queue.id = queue_id(number)
            self.vhost.add_queue(queue)
            queue.prepare()
        return self

    def _post(self, call: Callable[..., None], *args: object) -> None:
        self._soon.append(partial(call, *args))

    def _call_later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        self._later.append((self.clock.monotonic() + delay_s, partial(call, *args)))

    @property
    def source(self) -> Queue:
        return self.vhost.queues[SOURCE]

    @property
    def target(self) -> Queue:
        return self.vhost.queues[TARGET]

    def run(self) -> None:
        """Run turns until the loop is idle. Appended batches are then sent to Kafka and not answered."""
        self.broker_turn.schedule()
        while self._soon or self.posted:
            soon = self._soon[:]
            self._soon.clear()
            for call in soon:
                call()
            self.end_turn()

    def advance(self, ms: int) -> None:
        """Advance both clocks and run the timers that are due."""
        self.clock.now_ms += ms
        due = [call for at, call in self._later if at <= self.clock.monotonic()]
        self._later = [each for each in self._later if each[0] > self.clock.monotonic()]
        for call in due:
            call()
        self.run()

    def publish(self, *bodies: bytes, priority: int = 0) -> None:
        encoded = encode_properties(Properties(delivery_mode=2, priority=priority))
        for body in bodies:
            message = make_message(
                MessageRoute("", SOURCE), encoded, body, True, scan_properties(encoded, 0, len(encoded))
            )
            assert self.source.enqueue(message)
        self.run()

    def answer_all(self) -> None:
        """Let Kafka answer all batches, of messages and of acks."""
        for _ in range(3):
            self.run()
            self.sync()
        self.run()

    def letters(self) -> list[tuple[bytes, bool]]:
        """The messages in the target, and whether their headers say that there may be a copy."""
        letters = []
        for record in self.live(1):
            headers = decode_properties(record.properties).headers or {}
            assert "x-death" in headers
            letters.append((record.body, bool(headers.get("x-death-redelivered"))))
        return letters
