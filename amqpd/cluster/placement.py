"""Where durable queues are: each has a partition of its vhost's topic, and begins at an offset of it.

A slot's owner places the queues of its vhosts. The place is a note in the slot's `meta`, written with the queue's row
and gone with it: ["place", queue id] = {topic, partition, first_offset}.

**A new queue never shows an old message.** A partition is given out only when a record of this owner is stored in it:
the barrier by which it was taken over or made, or, where a queue of this owner's was deleted, a marker behind that
queue's last batch. The queue begins behind it. So what is below is of others, however late it came.

**Partitions are kept ready**: a few more than are used, so that a declaration costs one record batch and waits for no
topic. They come in steps of STEP, in the background; who declares more at once than are ready waits for as many. A
deleted queue's partition is emptied (DeleteRecords), marked, and ready again. Kafka cannot take partitions from a
topic. The topic itself comes with the vhost's first durable queue, and goes with the vhost.

A queue with x-kafka-topic has a topic for itself, of one partition, which comes and goes with the queue
(broker/catalogue/kafka_topic.py says which it may have).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from amqpd.broker.catalogue.kafka_topic import ARGUMENT as OWN_TOPIC
from amqpd.cluster.connection import KafkaLost, KafkaUnfit
from amqpd.cluster.logs import Place
from amqpd.cluster.producer import KafkaProducer, KafkaRefused
from amqpd.cluster.row_table import Submission
from amqpd.cluster.rows import PLACE, Note, NoteKey, PutNote, SlotChange
from amqpd.cluster.topics import TopicUnfit
from amqpd.protocol.codec import decode_table
from amqpd.storage.metadata.metadata import MetadataError, WriteFailed
from amqpd.storage.metadata.rows import Put, QueueRow, VhostRow
from amqpd.storage.replicated.keyed import Keyed
from amqpd.storage.replicated.partition import UNKNOWN, Partition
from amqpd.storage.replicated.requests import ProducerId

logger = logging.getLogger(__name__)

STEP: Final = 8
"""Partitions that a topic gets at a time, at least; and one for so many that it has."""
READY_MIN: Final = 4
"""With fewer that are ready, more are made."""
GROW_MAX: Final = 500
"""Partitions of one request, and barriers at a time."""
RETRY_S: Final = 5.0
TROUBLE: Final = (KafkaLost, KafkaUnfit, KafkaRefused, TopicUnfit, OSError)


class TopicMaker(Protocol):
    """Kafka's administration (`Topics`). Raises: KafkaLost, KafkaRefused, KafkaUnfit, TopicUnfit."""

    async def prepare_queues(self, vhost_id: str, partitions: int) -> int:
        """The vhost's topic has that many partitions or more: how many it has."""

    async def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """Frees what stands before those offsets."""

    async def make_own(self, name: str) -> None:
        """A topic of one partition; refused where there is one already."""

    async def delete(self, name: str) -> None:
        """The topic goes, where there is one."""


class PartitionWriter(Protocol):
    """Who numbers what goes to the slot's partitions (`SlotLogs`). held: producer id and epoch."""

    held: ProducerId

    @property
    def producer(self) -> KafkaProducer: ...

    def write(self, partition: Partition, records: list[Keyed]) -> None:
        """One batch behind what was offered; `producer.flush` sends it."""

    def may_write(self, partition: Partition) -> bool:
        """False: batches of an epoch before are on the way, behind which the next one waits."""


class _Topic:
    """A vhost's. ready: partitions that can be given out. made: how many there are."""

    def __init__(self, name: str, vhost_id: str) -> None:
        self.name = name
        self.vhost_id = vhost_id
        self.ready: deque[Partition] = deque()
        self.made = 0
        self.growing = asyncio.Lock()


class Placement:
    """Of one slot, for as long as it is owned. Loop thread only; `close` it.

    key: the slot's transactional id, which barriers and markers have. topic_name: of a vhost, by its id. vhost_id: of a
    vhost by its name, None: it is not in this slot. on_placed, on_freed: told of each queue that has got its place,
    before its row is answered, and of each whose place is gone.
    """

    def __init__(
        self,
        writer: PartitionWriter,
        topics: TopicMaker,
        key: str,
        topic_name: Callable[[str], str],
        vhost_id: Callable[[str], str | None],
        on_placed: Callable[[str, Place], None],
        on_freed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._writer = writer
        self._topics = topics
        self._key = key
        self._topic_name = topic_name
        self._vhost_id = vhost_id
        self._on_placed = on_placed
        self._on_freed = on_freed
        self.places: dict[str, Place] = {}
        """Of each durable queue, by its id."""
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._of: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed: dict[str, dict[int, Partition]] = {}
        # Topics of one queue each, made for queues that are about to come.
        self._own: dict[str, Partition] = {}
        self._loop = asyncio.get_running_loop()

    # -- what there is

    def begin(self, notes: Mapping[NoteKey, Note], partitions: Iterable[Partition], vhosts: Iterable[VhostRow]) -> None:
        """The slot was taken over. notes: of its `meta`. partitions: of its vhosts' topics, each behind its barrier.
        Raises: MetadataError, a place that is none or whose partition there is not.
        """
        self._partitions = {(each.topic.decode(), int(each.number)): each for each in partitions}
        for key, note in notes.items():
            if key[0] != PLACE:
                continue
            place = place_of(note)
            if (place.topic, place.number) not in self._partitions:
                raise MetadataError(f"partition {place.number} of topic {place.topic}, which holds a queue, is gone")
            self.places[str(key[1])] = place
        used = {(place.topic, place.number) for place in self.places.values()}
        for vhost in vhosts:
            self._topic(vhost.id)
        for where, partition in sorted(self._partitions.items()):
            topic = self._of.get(where[0])
            if topic is not None:
                topic.made += 1
                if where not in used:
                    topic.ready.append(partition)
        for topic in self._of.values():
            self._start(self._empty(topic, list(topic.ready)))

    def _topic(self, vhost_id: str) -> _Topic:
        name = self._topic_name(vhost_id)
        found = self._of.get(name)
        if found is None:
            found = self._of[name] = _Topic(name, vhost_id)
        return found

    def _topic_of(self, vhost: str) -> _Topic:
        """Raises: WriteFailed."""
        vhost_id = self._vhost_id(vhost)
        if vhost_id is None:
            raise WriteFailed(f"cannot write the metadata: vhost '{vhost}' is not served by this node")
        return self._topic(vhost_id)

    def partition(self, place: Place) -> Partition:
        """The producer's partition of that place. Raises: KeyError."""
        return self._partitions[place.topic, place.number]

    # -- new queues

    def _new(self, changes: Iterable[SlotChange]) -> list[QueueRow]:
        return [
            change.row
            for change in changes
            if isinstance(change, Put)
            and isinstance(change.row, QueueRow)
            and change.row.state != "deleting"
            and change.row.id not in self.places
        ]

    def has_room(self, changes: Iterable[SlotChange]) -> bool:
        """Whether partitions are ready for the queues that are new in them; else `make_room` comes first. Raises:
        WriteFailed, a vhost that is not here.
        """
        rows = self._new(changes)
        own = [topic for row in rows if (topic := own_topic(row))]
        wanted = Counter(row.vhost for row in rows if not own_topic(row))
        return all(topic in self._own for topic in own) and all(
            self._ready(self._topic_of(vhost), count) for vhost, count in wanted.items()
        )

    def placing(self, changes: Sequence[SlotChange]) -> Generator[None, None, Sequence[SlotChange]]:
        """For who `has_room`: the changes, and the places of the queues that are new in them. To be carried through; it
        gives way behind each.
        """
        rows = self._new(changes)
        if not rows:
            return changes
        placed: list[SlotChange] = list(changes)
        for row in rows:
            name = own_topic(row)
            partition = self._own.pop(name) if name else self._topic_of(row.vhost).ready.popleft()
            place = Place(partition.topic.decode(), int(partition.number), int(partition.next_offset))
            self.places[row.id] = place
            placed.append(PutNote((PLACE, row.id), place_note(place)))
            self._on_placed(row.id, place)
            yield
        for vhost in {row.vhost for row in rows if not own_topic(row)}:
            topic = self._topic_of(vhost)
            if len(topic.ready) < READY_MIN and not topic.growing.locked():
                self._start(self._grow(topic, READY_MIN))
        return placed

    @staticmethod
    def _ready(topic: _Topic, count: int) -> bool:
        """Whether the first so many of its partitions can be given out. Those that Kafka refuses are passed over."""
        ready = topic.ready
        if any(each.closed for each in islice(ready, count)):
            ready = topic.ready = deque(each for each in ready if not each.closed)
        return len(ready) >= count

    def take_back(self, changes: Iterable[SlotChange]) -> None:
        """They were not written: what they were given is free, and nothing has come into it."""
        for change in changes:
            if isinstance(change, Put) and isinstance(change.row, QueueRow):
                place = self.places.pop(change.row.id, None)
                if place is not None:
                    self._on_freed(change.row.id)
                    topic = self._of.get(place.topic)
                    if topic is not None:
                        topic.ready.append(self.partition(place))
                    else:
                        self._start(self._end_own(place))

    async def make_room(self, changes: Sequence[SlotChange]) -> None:
        """Enough partitions for the queues that are new in them. Raises: WriteFailed."""
        rows = self._new(changes)
        wanted = Counter(row.vhost for row in rows if not own_topic(row))
        for name in {each: None for row in rows if (each := own_topic(row))}:
            try:
                await self._make_own(name)
            except TROUBLE as error:
                raise WriteFailed(f"cannot write the metadata: no place for a queue: {error}") from error
        for vhost, count in wanted.items():
            topic = self._topic_of(vhost)
            try:
                await self._grow(topic, count)
            except TROUBLE as error:
                raise WriteFailed(f"cannot write the metadata: no place for a queue: {error}") from error

    async def _make_own(self, name: str) -> None:
        """The topic of one queue. Others may write to it, too: what they do ends that queue alone."""
        if name in self._own:
            return
        await self._topics.make_own(name)
        partition = self._writer.producer.open(name, 0, UNKNOWN)
        partition.shared = True
        await self._fence([partition])
        self._partitions[name, 0] = self._own[name] = partition

    async def _fence(self, new: list[Partition]) -> None:
        """A barrier of ours is stored in these."""
        held = self._writer.held
        await self._writer.producer.fence(new, self._key, held)
        if held is not self._writer.held:
            # A later epoch has begun meanwhile, and knew nothing of them.
            await self._mark(new)

    async def _grow(self, topic: _Topic, ready: int) -> None:
        """So many of its partitions are ready, at least."""
        async with topic.growing:
            while True:
                if self._ready(topic, ready):
                    return
                lacking = ready - len(topic.ready)
                more = min(GROW_MAX, max(lacking + READY_MIN, STEP, topic.made // STEP))
                wanted = topic.made + more
                made = await self._topics.prepare_queues(topic.vhost_id, wanted)
                new = [self._writer.producer.open(topic.name, number, UNKNOWN) for number in range(topic.made, made)]
                topic.made = made
                await self._fence(new)
                for each in new:
                    self._partitions[topic.name, int(each.number)] = each
                topic.ready += new

    async def _mark(self, partitions: list[Partition]) -> None:
        """A record of ours is stored behind all that is in them. Raises: KafkaRefused."""
        producer = self._writer.producer
        for each in partitions:
            while not self._writer.may_write(each):
                await producer.stored([each])
            self._writer.write(each, [Keyed(self._key.encode(), None)])
        producer.flush()
        await producer.stored(partitions)

    # -- queues that are gone

    def stored(self, submission: Submission) -> None:
        """It is in Kafka: the places that are gone with it are free."""
        for note in submission.gone:
            queue_id = str(note.key[1])
            place = self.places.pop(queue_id, None)
            if place is not None:
                self._on_freed(queue_id)
                topic = self._of.get(place.topic)
                if topic is not None:
                    self._freed.setdefault(place.topic, {})[place.number] = self.partition(place)
                else:
                    self._start(self._end_own(place))
        if self._freed and not self._tasks:
            self._tidy()

    async def drop_vhost(self, vhost_id: str) -> None:
        """It is deleted, and no row of it is left: its topic goes. Raises: WriteFailed, it is to be called again."""
        topic = self._topic(vhost_id)
        async with topic.growing:
            for place, partition in list(self._partitions.items()):
                if place[0] == topic.name:
                    self._writer.producer.forget(partition)  # else it would wait for the topic
                    del self._partitions[place]
            self._freed.pop(topic.name, None)
            self._of.pop(topic.name, None)
            try:
                await self._topics.delete(topic.name)
            except TROUBLE as error:
                raise WriteFailed(f"topic {topic.name} is not deleted: {error}") from error

    async def _empty(self, topic: _Topic, partitions: list[Partition]) -> None:
        """What an owner before has left in partitions that no queue has goes. Its failing costs space, and no more."""
        # The last record, which is ours, stays: a partition without one would forget who wrote it.
        before = {int(each.number): int(each.next_offset) - 1 for each in partitions if each.next_offset > 1}
        if before:
            await self._topics.delete_records(topic.name, before)

    async def _end_own(self, place: Place) -> None:
        """The topic of a queue that is gone goes, too."""
        partition = self._partitions.pop((place.topic, place.number), None)
        if partition is not None:
            self._writer.producer.forget(partition)
        while True:
            try:
                await self._topics.delete(place.topic)
            except (KafkaLost, OSError) as error:
                logger.warning("topic %s is deleted later: %s", place.topic, error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _tidy(self) -> None:
        if self._freed:
            self._start(self._free())

    async def _free(self) -> None:
        """Empties the partitions of deleted queues, marks them, and gives them out again."""
        while self._freed:
            name, partitions = self._freed.popitem()
            topic = self._of.get(name)
            if topic is None:
                continue
            open_ones = [each for each in partitions.values() if not each.closed]
            await self._writer.producer.stored(open_ones)  # what was on its way for the queue
            before = {int(each.number): int(each.high_watermark) for each in open_ones}
            while self._of.get(name) is topic:
                try:
                    await self._topics.delete_records(name, before)
                    break
                except (KafkaLost, OSError) as error:
                    logger.warning("%s is emptied later: %s", name, error)
                    await asyncio.sleep(RETRY_S)
            left = [each for each in open_ones if not each.closed]
            await self._mark(left)
            if self._of.get(name) is topic:
                topic.ready += left

    # -- in the background

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, TROUBLE):
            logger.warning("partitions for queues are made, or emptied, later: %s", error)
        elif error is not None:
            logger.error("partitions for queues: a bug of the broker", exc_info=error)

    async def close(self) -> None:
        """Nothing is made any more; what is left to be freed is the next owner's to see."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def own_topic(row: QueueRow) -> str:
    """The topic that the queue has for itself (x-kafka-topic); "": it shares its vhost's. Cost: nothing for most."""
    if OWN_TOPIC.encode() not in row.arguments:
        return ""
    topic = decode_table(row.arguments, 0)[0].get(OWN_TOPIC)
    return topic if isinstance(topic, str) else ""


def own_topics(notes: Mapping[NoteKey, Note], of_vhosts: Collection[str]) -> frozenset[str]:
    """The topics that queues have for themselves. of_vhosts: those that are shared."""
    named = {str(note.get("topic")) for key, note in notes.items() if key[0] == PLACE}
    return frozenset(named.difference(of_vhosts))


def place_note(place: Place) -> Note:
    """As it stands in `meta`."""
    return {"topic": place.topic, "partition": place.number, "first_offset": place.first_offset}


def place_of(note: Note) -> Place:
    """Raises: MetadataError."""
    topic, number, first = (note.get(name) for name in ("topic", "partition", "first_offset"))
    if not isinstance(topic, str) or type(number) is not int or type(first) is not int:
        raise MetadataError(f"a queue's place is none that this version of amqpd writes: {dict(note)}")
    return Place(topic, number, first)


__all__ = ["Place", "Placement", "TopicMaker", "place_note", "place_of"]
