"""The player of fault programs: it publishes to a topology while calls of the disk fail, crashes the broker, and looks.

The broker lives several times. In each life a call of the disk fails once, or the disk is full for a while. A life ends
by a kill, a power cut or a stop, and the next start may fail and be repeated.
"""

from __future__ import annotations

import errno
import random
import struct
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pamqp.commands as spec
import pamqp.frame
import pamqp.header
from fault_topologies import TOPOLOGIES
from memory_broker import Client, MemoryBroker, NoControl
from program_house import ProgramBroker

from amqpd.broker.jobs.jobs import JobRequest
from amqpd.broker.vhost import policies

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.default_records import DefaultRecordBatchBuilder

    from amqpd.kafka_server.produce import PartitionBatch, PendingProduce, ProducedTopic, ProduceRequest

CONFIRMS, GETS, TRANSACTIONS = 1, 2, 3
"""Channels."""
SYNCS: Final = ("fdatasync", "fsync_dir", "syncfs")
WRITES: Final = ("write", "pwrite")
OTHERS: Final = ("open", "rename", "mkdir", "truncate", "unlink", "write", "map")
DISK_CODES: Final = (errno.EIO, errno.EIO, errno.ENOSPC)
FAULTS: Final = {
    "sync": (SYNCS, DISK_CODES),
    "write": (WRITES, DISK_CODES),
    "other": (OTHERS, (errno.ENOSPC, errno.EMFILE, errno.EIO)),
}
OPERATIONS: Final = {
    "publish": 8,
    "run_callbacks": 5,
    "kafka": 4,
    "transaction": 3,
    "settle": 2,
    "get": 2,
    "release": 1,
    "let_time_pass": 1,
    "change_policy": 1,
    "move": 1,
}


class BrokenPromise(AssertionError):
    """A confirmed message is not where it must be."""


class Produce(PendingProduce):
    """A Produce request whose answer is noted."""

    def __init__(self, player: FaultPlayer, batch: bytes) -> None:
        self.player = player
        server = player.server
        session = SimpleNamespace(operator=True, broker=server.broker, vhost=server.vhost, user=player.user)
        about = SimpleNamespace(broker=server.broker, pace=SimpleNamespace(later=server.loop.call_soon))
        connection = SimpleNamespace(closed=False, server=about, on_close=[], hold=lambda on: None)
        call: Any = SimpleNamespace(frame=batch, connection=connection, session=session)
        topic = ProducedTopic(b"q", [PartitionBatch(0, 0, len(batch))])
        super().__init__(call, ProduceRequest(None, -1, [topic]))

    def _reply(self) -> None:
        self.player.on_produced(self._results[0].error)


class Control(NoControl):
    """Channel 0: notes that the broker ends the connection, because the disk cannot be read."""

    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.error = error


class FaultClient(Client):
    def __init__(self, server: MemoryBroker) -> None:
        self.channel_zero = Control(server.loop)
        super().__init__(server, "c")

    def control(self) -> Control:
        return self.channel_zero


class FaultPlayer:
    """Plays the program of a seed.

    Attributes:
        published: (number, or None once it is answered) of each publish of this life, in order.
        confirmed: numbers of confirmed or committed messages.
        consumed: numbers of acked messages, which may be there or not.
        log: what happened, to print.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.name = rng.choice(list(TOPOLOGIES))
        self.topology = TOPOLOGIES[self.name]
        journal = rng.choice(({}, {}, {"journal_size_bytes": 1 << 16}))
        self.server = ProgramBroker(segment_size_bytes=rng.choice((200_000, 8_000)), **journal)
        self.user = SimpleNamespace(name="guest", tags=frozenset())
        self.log: list[Any] = [self.name]
        self.count = self.lives = 0
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.consumed: set[int] = set()
        # Kafka's producer: the numbers and bytes of the batch that is not answered, and its next sequence.
        self.batch: tuple[range, bytes] | None = None
        self.sequence = 0
        self.producing = False
        self.produced: set[int] = set()
        self.connect()
        for method in self.topology.methods:
            self.client.say(GETS, method)
            self.settle()

    def connect(self) -> None:
        self.server.broker.alarms.check = lambda: None  # type: ignore[method-assign]  # the disk is not a real one
        self.published: list[int | None] = []
        self.open: list[int] = []
        self.committing: list[int] = []
        self.held: list[tuple[int, int]] = []
        self.client = FaultClient(self.server)
        self.client.say(CONFIRMS, spec.Channel.Open(), spec.Confirm.Select())
        self.client.say(GETS, spec.Channel.Open())
        self.client.say(TRANSACTIONS, spec.Channel.Open(), spec.Tx.Select())
        self.server.settle()
        self.client.heard()

    def play(self) -> None:
        """Play all lives. Raises: BrokenPromise."""
        for life in range(self.rng.choice((1, 1, 2, 3))):
            if life:
                self.producing = False
                self.connect()
            self.live()
            for _ in range(self.rng.choice((1, 2))):
                self.end_life()
                self.check()
        self.server.end()

    def live(self) -> None:
        rng = self.rng
        filesystem = self.server.filesystem
        count = rng.randint(8, 40)
        begin = rng.randint(0, count)
        end = begin + rng.randint(1, 12)
        for number in range(count):
            if number == begin:
                self.break_disk()
            if number == end:
                filesystem.capacity = None
            name = rng.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
            self.log.append(name)
            getattr(self, name)()
            self.hear()
        if rng.random() < 0.8:
            filesystem.fault = None
        if rng.random() < 0.6:
            filesystem.capacity = None
            self.settle()
            if rng.random() < 0.6:
                self.let_time_pass()

    # -- clients

    def hear(self) -> None:
        for event in self.client.heard():
            method = event.method
            if isinstance(method, spec.Basic.Ack | spec.Basic.Nack):
                self.on_answer(method, self.confirmed if isinstance(method, spec.Basic.Ack) else self.refused)
            elif isinstance(method, spec.Basic.GetOk):
                assert event.body is not None
                self.held.append((method.delivery_tag, number_of(event.body)))
            elif isinstance(method, spec.Tx.CommitOk):
                self.confirmed.update(self.committing)
                self.committing = []
            elif isinstance(method, spec.Channel.Close):
                assert event.channel == TRANSACTIONS, method.reply_text
                self.committing, self.open = [], []
                self.client.say(TRANSACTIONS, spec.Channel.CloseOk(), spec.Channel.Open(), spec.Tx.Select())
        if self.client.channel_zero.error is not None:
            self.log.append(f"{self.client.channel_zero.error}")
            self.client.vanish()
            self.connect()

    def on_answer(self, method: Any, numbers: set[int]) -> None:
        for tag in range(1 if method.multiple else method.delivery_tag, method.delivery_tag + 1):
            number = self.published[tag - 1]
            if number is not None:
                numbers.add(number)
                self.published[tag - 1] = None

    def next_number(self) -> int:
        self.count += 1
        return self.count - 1

    def frames(self, channel: int, number: int) -> bytes:
        """Return the frames of a publish."""
        topology = self.topology
        properties = spec.Basic.Properties(
            delivery_mode=2, headers=topology.headers(number), priority=self.rng.choice((None, 1, 2))
        )
        body = b"%d." % number + bytes(self.rng.choice((0, 10, 500, 3000)))
        key = topology.keys[number % len(topology.keys)]
        method = spec.Basic.Publish(exchange=topology.exchange, routing_key=key)
        frames = pamqp.frame.marshal(method, channel)
        frames += pamqp.frame.marshal(pamqp.header.ContentHeader(0, len(body), properties), channel)
        return bytes(frames + struct.pack(">BHI", 3, channel, len(body)) + body + b"\xce")

    def publish(self) -> None:
        data = b""
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            repeats = self.topology.repeats and self.count and self.rng.random() < 0.2
            number = self.rng.randrange(self.count) if repeats else self.next_number()
            self.published.append(number)
            data += self.frames(CONFIRMS, number)
        self.client.connection.receive(data)

    def transaction(self) -> None:
        if self.committing or self.name == "numbered":
            return
        if self.open and self.rng.random() < 0.5:
            self.committing, self.open = self.open, []
            self.client.say(TRANSACTIONS, spec.Tx.Commit())
            return
        numbers = [self.next_number() for _ in range(self.rng.randint(1, 4))]
        self.open += numbers
        self.client.connection.receive(b"".join([self.frames(TRANSACTIONS, number) for number in numbers]))

    def kafka(self) -> None:
        """Send a batch, or the one that was not stored again."""
        if not self.topology.kafka or self.producing:
            return
        if self.batch is None:
            numbers = range(self.count, self.count + self.rng.choice((1, 3, 12, 30)))
            self.count = numbers.stop
            builder = DefaultRecordBatchBuilder(2, 0, 0, 7, 0, self.sequence, 1 << 25)
            size = self.rng.choice((0, 100, 1500))
            for number in numbers:
                builder.append(number - numbers.start, 1, b"k", b"%d." % number + bytes(size), [])
            self.batch = numbers, bytes(builder.build())
            self.produced.update(numbers)
        self.producing = True
        Produce(self, self.batch[1]).run()

    def on_produced(self, error: int) -> None:
        self.producing = False
        if error == 0 and self.batch is not None:
            numbers = self.batch[0]
            self.confirmed.update(numbers)
            self.sequence += len(numbers)
            self.batch = None

    def get(self) -> None:
        for name, queue in self.server.vhost.queues.items():
            if queue.kind != "stream" and self.rng.random() < 0.5:
                self.client.say(GETS, spec.Basic.Get(queue=name))

    def release(self) -> None:
        if not self.held:
            return
        tag, number = self.held.pop(self.rng.randrange(len(self.held)))
        if self.topology.consumes and len(self.topology.groups) == 1 and self.rng.random() < 0.5:
            self.consumed.add(number)
            self.client.say(GETS, spec.Basic.Ack(delivery_tag=tag))
        else:
            self.client.say(GETS, spec.Basic.Nack(delivery_tag=tag, requeue=True, multiple=False))

    # -- the broker

    def run_callbacks(self) -> None:
        """Run some callbacks of the event loop, so that requests come in the middle of its turns."""
        for _ in range(self.rng.randint(0, 4)):
            if self.server.loop.ready:
                function, arguments = self.server.loop.ready.popleft()
                function(*arguments)

    def settle(self) -> None:
        self.server.settle()
        self.hear()

    def let_time_pass(self) -> None:
        self.server.timed.advance(self.rng.choice((50, 100, 400, 2500, 9000)))
        self.hear()

    def change_policy(self) -> None:
        """Change the length of a queue whose messages become dead letters."""
        queue = self.server.vhost.queues["q"]
        if queue.rules.dead_letter_exchange is not None and not self.server.loop.ready:
            definition = {"max-length": self.rng.choice((1, 2, 5))}
            value = {"pattern": "^q$", "definition": definition, "priority": 1, "apply-to": "queues"}
            policies.declare(self.server.vhost, "p", value, False)

    def move(self) -> None:
        vhost = self.server.vhost
        if self.name.startswith("moved"):
            target = {"to_queue": "r"} if self.name == "moved" else {"to_exchange": "x"}
            self.server.broker.jobs.begin(JobRequest("move", vhost, vhost.queues["q"], **target))

    # -- faults

    def break_disk(self) -> None:
        filesystem = self.server.filesystem
        kind = self.rng.choice(("sync", "sync", "write", "other", "full", "full", "none"))
        self.log.append(f"fault: {kind}")
        if kind == "full":
            filesystem.capacity = filesystem.used() + self.rng.choice((0, 100, 1000, 5000, 20_000))
        elif kind != "none":
            names, codes = FAULTS[kind]
            filesystem.fault = self.one_error(names, self.rng.choice(codes), self.rng.randint(0, 12))

    def one_error(self, names: tuple[str, ...], code: int, left: int) -> Callable[[str, str], OSError | None]:
        """Return a fault: one call fails, after `left` others of these names."""
        filesystem = self.server.filesystem

        def fault(name: str, path: str) -> OSError | None:
            nonlocal left
            if name not in names:
                return None
            left -= 1
            if left >= 0:
                return None
            filesystem.fault = None
            self.log.append(f"{name} {path}: {errno.errorcode[code]}")
            return OSError(code, "injected")

        return fault

    def end_life(self) -> None:
        """Crash or stop the broker, and start it again."""
        rng, server = self.rng, self.server
        ending = rng.choice(("kill", "power cut", "power cut", "stop"))
        self.log.append(ending)
        server.filesystem.fault = server.filesystem.capacity = None
        if ending == "stop":
            server.settle()
            server.broker.jobs.stop()
            server.broker.delays.stop()
            server.broker.republisher.stop()
            server.settle()
            server.storage.close(clean=True)
        self.crash(ending == "power cut")
        if rng.random() < 0.3:
            self.fail_start()
            self.crash(rng.random() < 0.5)
        self.begin()
        if rng.random() < 0.7:
            for ms in (5 * 60_000,) * 8 + (3000,) * 3:
                server.timed.advance(ms)

    def crash(self, power_cut: bool) -> None:
        old = self.server.filesystem
        self.server.filesystem = old.crashed(self.rng.randrange(1 << 30)) if power_cut else old.killed()

    def fail_start(self) -> None:
        """Start with a disk that refuses everything from some call on."""
        left = self.rng.randint(0, 30)

        def fault(name: str, path: str) -> OSError | None:
            nonlocal left
            left -= 1
            return OSError(errno.EIO, "injected") if left < 0 else None

        self.log.append("start with faults")
        self.server.filesystem.fault = fault
        try:
            self.begin()
        except OSError as error:
            self.log.append(f"{error}")
        self.server.filesystem.fault = None

    def begin(self) -> None:
        """Start the next life, and open all logs."""
        self.lives += 1
        self.server.storage_arguments["boot_id"] = f"{self.lives:032x}"
        self.server.begin()
        self.server.settle()
        for queue in self.server.vhost.queues.values():
            assert queue.store is not None
            queue.store.recover()
            queue.can_open()
        self.server.settle()

    # -- the judge

    def check(self) -> None:
        """Raises: BrokenPromise."""
        found: dict[str, list[int]] = {}
        for name, queue in self.server.vhost.queues.items():
            assert queue.store is not None
            found[name] = [number_of(each.body) for each in queue.store.new_cursor().read(0, 1 << 30).records]
        delayed_count = self.server.broker.delays.count_of("/")
        for group in self.topology.groups:
            there = set().union(*[found[name] for name in group])
            lost = self.confirmed - self.consumed - there
            if len(lost) > delayed_count:
                raise BrokenPromise(f"{sorted(lost)} are not in {group}; found: {found}; log: {self.log}")
        produced = [number for number in found["q"] if number in self.produced]
        if len(produced) > len(set(produced)):
            raise BrokenPromise(f"messages of the Kafka producer came twice: {produced}; log: {self.log}")


def number_of(body: bytes) -> int:
    """Return the number in the body of a message."""
    return int(body[: body.index(b".")])
