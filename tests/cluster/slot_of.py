"""One owner of a slot over a real Kafka or `fake_kafka`: its rows and the partitions of its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from fake_kafka import FakeKafka

from amqpd.cluster.metadata import slot_assigner
from amqpd.cluster.ownership import read_rows
from amqpd.cluster.placement import QueuePlacement, dedicated_topic_marks
from amqpd.cluster.row_codec import SlotChange
from amqpd.cluster.slot_logs import LogPosition, SlotLogs
from amqpd.cluster.slot_rows import RowWriter
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.consumer import KafkaReader
from amqpd.kafka.metadata import PartitionLeaders
from amqpd.kafka.partition import UNKNOWN, Partition
from amqpd.kafka.producer import KafkaProducer, KafkaRefused, take_over
from amqpd.kafka.requests import ProducerId
from amqpd.storage.metadata.rows import QueueRow, VhostRow
from amqpd.storage.metadata.schema import TABLES
from amqpd.storage.storage import Storage

META, SETTLED = "amqpd.shop.meta", "amqpd.shop.settled"


def topic_name(vhost_id: str) -> str:
    return f"amqpd.shop.{vhost_id}"


class FakeTopics:
    """Kafka administration over a `FakeKafka`. failing: errors that the next calls raise. marks: of dedicated
    topics.
    """

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.failing: list[Exception] = []
        self.calls: list[tuple[str, Any]] = []
        self.marks: dict[str, int] = {}

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.failing:
            raise self.failing.pop(0)

    async def prepare_queues(self, vhost_id: str, partitions: int) -> int:
        self._call("prepare", partitions)
        self.kafka.create(topic_name(vhost_id), partitions)
        return len(self.kafka.topics[topic_name(vhost_id)])

    async def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        self._call("delete records", dict(before))
        for number, offset in before.items():
            self.kafka.delete_records(name, number, offset)
        return dict(before)

    async def create_dedicated(self, name: str, mark: int) -> None:
        self._call("make own", name)
        if name in self.kafka.topics:
            raise KafkaRefused(f"topic {name} cannot be created: TOPIC_ALREADY_EXISTS")
        self.kafka.create(name, 1)
        self.marks[name] = mark

    async def delete_dedicated(self, name: str, mark: int) -> None:
        self._call("delete own", name)
        if self.marks.get(name) == mark:
            self.kafka.topics.pop(name, None)

    def lost_dedicated(self, marks: Mapping[str, int]) -> dict[str, str]:
        """Return what `TopicAdmin.lost_dedicated` returns."""
        return {
            name: "its topic is gone"
            for name, mark in marks.items()
            if name not in self.kafka.topics or self.marks.get(name) != mark
        }

    async def delete(self, name: str) -> None:
        self._call("delete", name)
        self.kafka.topics.pop(name, None)


class Slot:
    """An owner of a slot. number: the slot. vhosts: the slot's vhosts."""

    def __init__(
        self,
        access: KafkaAccess,
        topics: Any,
        directory: Path,
        number: int = 1,
        vhosts: Sequence[VhostRow] = (),
        bytes_max: int = 8 << 20,
        slots: int = 4,
    ) -> None:
        self.access = access
        self.topics = topics
        self.number = number
        self.vhosts = {row.name: row for row in vhosts}
        self.bytes_max = bytes_max
        self.slots = slots
        self.placed: dict[str, LogPosition] = {}
        self.fenced: list[str] = []
        self.storage = Storage(directory, post=lambda function, *arguments: function(*arguments), inline=True)
        self.reader = KafkaReader(access)
        self.producer = KafkaProducer(
            access, on_moved=lambda _: None, on_refused=lambda _: None, on_fenced=self.fenced.append
        )
        self.rows: RowWriter | Any = None
        self.logs: SlotLogs
        self.placement: QueuePlacement

    @property
    def key(self) -> str:
        return f"amqpd.shop.slot{self.number}"

    @property
    def waiting_count(self) -> int:
        """The number of submissions without answer."""
        rows = self.rows
        written = sum(len(group) for _, group in rows._written)
        return len(rows._queue) + len(rows._unplaced) + len(rows._group) + written

    async def take(self) -> Slot:
        """Take the slot over: write barriers, read rows, find the queues' partitions."""
        brokers = PartitionLeaders(self.access)
        meta = self.producer.open(META, self.number, UNKNOWN)
        settled = self.producer.open(SETTLED, self.number, UNKNOWN)
        counts = await brokers.partitions([topic_name(row.id) for row in self.vhosts.values()])
        await brokers.close()
        queues = [self.producer.open(name, each, UNKNOWN) for name, count in counts.items() for each in range(count)]
        held = await take_over(self.producer, self.key, [meta, settled, *queues])
        table = await read_rows(self.reader, META, self.number, int(meta.next_offset) - 1)
        marks = dedicated_topic_marks(table.notes)
        lost = self.topics.lost_dedicated(marks) if isinstance(self.topics, FakeTopics) else {}
        queues += await self._take_own(marks.keys() - lost.keys(), held)
        self.logs = SlotLogs(
            self.producer,
            held,
            settled,
            self.storage.commits,
            self.reader.read,
            on_room=lambda: None,
            on_fenced=self._on_fenced,
        )
        self.placement = QueuePlacement(
            self.logs,
            self.topics,
            self.key,
            topic_name,
            lambda name: self.vhosts[name].id if name in self.vhosts else None,
            self.placed.__setitem__,
            lambda queue_id: self.placed.pop(queue_id, None),
        )
        self.placement.load(table.notes, queues, self.vhosts.values(), lost)
        prepare = None if self.number else slot_assigner(table, self.slots)
        self.rows = RowWriter(table, meta, self.logs, self.bytes_max, self.placement, prepare)
        self.logs.watch_meta(meta, self.rows.on_stored)
        return self

    async def _take_own(self, own: AbstractSet[str], held: ProducerId) -> list[Partition]:
        found = [self.producer.open(name, 0, UNKNOWN) for name in own]
        for each in found:
            each.shared = True
        await self.producer.fence(found, self.key, held)
        return found

    def _on_fenced(self, text: str) -> None:
        self.fenced.append(text)
        self.rows.fail(text)

    def submit(self, *changes: SlotChange) -> list[BaseException | None]:
        """Submit changes. Return a list that gets the argument of `done`."""
        answers: list[BaseException | None] = []
        self.rows.submit(changes, answers.append)
        return answers

    async def close(self) -> None:
        """End without giving the slot up, like a crash."""
        self.rows.fail("closed")
        await self.placement.close()
        await self.logs.close()
        await self.producer.close()
        await self.reader.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


VHOST = VhostRow("/", "v" * 32)
OTHER = VhostRow("shop", "w" * 32)
TOPIC = topic_name(VHOST.id)
Take = Callable[..., Awaitable[Slot]]
"""Creates another owner of the slot, with the options of `Slot`."""


def queue(number: int, vhost: str = "/", **columns: Any) -> QueueRow:
    return QueueRow(vhost, f"q{number}", columns.pop("id", f"{number:032x}"), **columns)


def rows_and_places(slot: Slot) -> set[tuple[str, object]]:
    rows = {(type(row).__name__, row) for table in TABLES for row in slot.rows.table.rows(table.row)}
    return rows | {("note", (key, tuple(sorted(note.items())))) for key, note in slot.rows.table.notes.items()}


async def wait_for_answers(answers: list[BaseException | None], count: int = 1) -> list[BaseException | None]:
    await until(lambda: len(answers) >= count)
    return answers
