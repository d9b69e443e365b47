"""A slot's owner on in-memory partitions, with a data directory in memory; the test runs turns and ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kafka_in_memory import FakeKafka, FakeProducer
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.cluster.replicated_log import ReplicatedLog
from amqpd.cluster.slot_logs import LogPosition, SlotLogs
from amqpd.cluster.storage import ClusterStorage, PlacedLog
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.queue_log import QueueLog

ROUTE = RecordRoute(b"orders", b"eu.new")
PROPERTIES = b"\x10\x00\x02"
TOPIC = "amqpd.test.v"
ACKS_TOPIC = "amqpd.test.settled"


def queue_id(number: int) -> str:
    return f"{number + 1:032x}"


class Slot:
    """An owner that has just taken over. queues: the number of logs, each in the partition of its number."""

    def __init__(self, kafka: FakeKafka, queues: int = 1, first_offsets: dict[int, int] | None = None) -> None:
        self.kafka = kafka
        self.producer = FakeProducer(kafka)
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.filesystem = SimulatedFileSystem()
        self.storage = ClusterStorage(
            "/data",
            post=lambda function, *arguments: self.posted.append((function, arguments)),
            clock=SimulatedClock(),
            filesystem=self.filesystem,
            inline=True,
            boot_id="1" * 32,
            segment_size_bytes=4096,
        )
        acks_partition = self.producer.take_over(ACKS_TOPIC, 0)
        self.partitions = [self.producer.take_over(TOPIC, number) for number in range(queues)]
        self.failed: list[QueueLog] = []
        self.fenced: list[str] = []
        self.room_count = 0
        self.logs = SlotLogs(
            self.producer,  # type: ignore[arg-type]
            self.producer.held,
            acks_partition,
            self.storage.commits,
            kafka.read,
            on_failed=self.failed.append,
            on_room=self._room,
            on_fenced=self.fenced.append,
        )
        self.first_offsets = first_offsets if first_offsets is not None else {}
        self.queues: list[ReplicatedLog] = []

    def _room(self) -> None:
        self.room_count += 1

    async def open(self) -> Slot:
        """Read back each queue as the earlier owners have left it."""
        acks_partition = self.logs.settled
        await self.logs.read_acks(self.kafka.read(ACKS_TOPIC, 0, 0, int(acks_partition.next_offset)))
        for number, partition in enumerate(self.partitions):
            self.add(number, self.first_offsets.setdefault(number, int(partition.next_offset)))
        for log in self.queues:
            await self.wait_open(log)
        return self

    def add(self, number: int, first_offset: int) -> ReplicatedLog:
        name = queue_id(number)
        self.storage.places[name] = PlacedLog(self.logs, LogPosition(TOPIC, number, first_offset))
        log = self.storage.open_queue("v", name, f"q{number}", "/")
        assert isinstance(log, ReplicatedLog)
        self.queues.append(log)
        return log

    async def wait_open(self, log: ReplicatedLog) -> None:
        opened = asyncio.Event()
        if not log.open_soon(opened.set):
            await asyncio.wait_for(opened.wait(), 30)
        log.recover()

    @property
    def log(self) -> ReplicatedLog:
        return self.queues[0]

    def append(self, *bodies: bytes, number: int = 0) -> list[int]:
        log = self.queues[number]
        return [log.append(ROUTE, PROPERTIES + body, 0, 3, 3, 3 + len(body), True) for body in bodies]

    def end_turn(self) -> None:
        """End a turn: the appended batches are sent."""
        self.storage.commits.end_of_turn()
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)
        self.logs.send_batches()

    def send_acks(self) -> None:
        """Send the acks."""
        for log in self.queues:
            log.collect_acks()
        self.logs._run_pass()
        while self.logs._pass_logs and not self.logs.ended:  # a slow machine needs several slices
            self.logs._run_pass()

    def sync(self) -> None:
        """Send and store all messages and acks."""
        self.end_turn()
        self.producer.store_all()
        self.send_acks()
        self.producer.store_all()

    def live(self, number: int = 0) -> list[Record]:
        return list(self.queues[number].cursor.read(0, 1 << 40).records)

    def bodies(self, number: int = 0) -> list[bytes]:
        return [record.body for record in self.live(number)]


async def next_owner(kafka: FakeKafka, first: dict[int, int], queues: int = 1) -> Slot:
    """The next owner, after it has read back all logs."""
    return await Slot(kafka, queues, first).open()
