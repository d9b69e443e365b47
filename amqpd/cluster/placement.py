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
(broker/vhost/kafka_topic.py says which it may have; own_places.py makes and ends it).

What Kafka refuses costs no partition: those that it would not empty are given out all the same, those that it would not
let be marked are tried again with the next that are made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from amqpd.kafka.connection import KafkaLost
from amqpd.cluster.slot_logs import Place
from amqpd.cluster.marks import Marks, PartitionWriter
from amqpd.cluster.own_places import RETRY_S, RETRY_S_MAX, TROUBLE, OwnPlaces, TopicMaker, own_topic
from amqpd.kafka.producer import KafkaRefused
from amqpd.cluster.row_table import Submission
from amqpd.cluster.row_codec import PLACE, Note, NoteKey, PutNote, SlotChange
from amqpd.storage.metadata.store import MetadataError, WriteFailed
from amqpd.storage.metadata.rows import Put, QueueRow, VhostRow
from amqpd.kafka.partition import UNKNOWN, Partition

logger = logging.getLogger(__name__)

STEP: Final = 8
"""Partitions that a topic gets at a time, at least; and one for so many that it has."""
READY_MIN: Final = 4
"""With fewer that are ready, more are made."""
GROW_MAX: Final = 500
"""Partitions of one request, and barriers at a time."""


class _Topic:
    """A vhost's. ready: partitions that can be given out. made: how many there are. refused: numbers of those that
    Kafka would not let be marked, which nobody has.
    """

    def __init__(self, name: str, vhost_id: str) -> None:
        self.name = name
        self.vhost_id = vhost_id
        self.ready: deque[Partition] = deque()
        self.made = 0
        self.refused: list[int] = []
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
        self._marks = Marks(writer, key)
        self._topics = topics
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
        self._freeing = False
        self._loop = asyncio.get_running_loop()
        self.own = OwnPlaces(self._marks, topics, self._partitions, self._start)
        """Topics that queues have for themselves."""

    # -- what there is

    def begin(
        self,
        notes: Mapping[NoteKey, Note],
        partitions: Iterable[Partition],
        vhosts: Iterable[VhostRow],
        lost: Mapping[str, str],
    ) -> None:
        """The slot was taken over. notes: of its `meta`. partitions: of its vhosts' topics, each behind its barrier.
        lost: topics of queues' own that are gone, or others than they were, and why.
        Raises: MetadataError, a place that is none or whose partition of a vhost's topic there is not.
        """
        self._partitions.update({(each.topic.decode(), int(each.number)): each for each in partitions})
        vhosts = list(vhosts)
        for vhost in vhosts:
            self._topic(vhost.id)
        for key, note in notes.items():
            if key[0] != PLACE:
                continue
            place = place_of(note)
            if (place.topic, place.number) not in self._partitions and place.topic not in lost:
                what = f"partition {place.number} of topic {place.topic}"
                raise MetadataError(f"{what}, which holds a queue, is gone")
            self.places[str(key[1])] = place
        used = {(place.topic, place.number) for place in self.places.values()}
        for where, partition in sorted(self._partitions.items()):
            topic = self._of.get(where[0])
            if topic is not None:
                topic.made += 1
                if where not in used:
                    topic.ready.append(partition)
        for topic in self._of.values():
            self._start(self._empty(topic, list(topic.ready)))
        self.own.begin(notes, self.places.values(), lost)

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
        return all(self.own.has(topic) for topic in own) and all(
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
            partition = self.own.take(name) if name else self._topic_of(row.vhost).ready.popleft()
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
                        self.own.end(place.topic)

    def unwanted(self, changes: Iterable[SlotChange]) -> None:
        """They are refused before they were given anything: topics that were made for them alone go."""
        for row in self._new(changes):
            self.own.drop(own_topic(row))

    async def make_room(self, changes: Sequence[SlotChange]) -> None:
        """Enough partitions for the queues that are new in them. Raises: WriteFailed."""
        rows = self._new(changes)
        wanted = Counter(row.vhost for row in rows if not own_topic(row))
        for name in {each: None for row in rows if (each := own_topic(row))}:
            try:
                await self.own.make(name)
            except TROUBLE as error:
                raise WriteFailed(f"cannot write the metadata: no place for a queue: {error}") from error
        for vhost, count in wanted.items():
            topic = self._topic_of(vhost)
            try:
                await self._grow(topic, count)
            except TROUBLE as error:
                raise WriteFailed(f"cannot write the metadata: no place for a queue: {error}") from error

    async def _grow(self, topic: _Topic, ready: int) -> None:
        """So many of its partitions are ready, at least. Raises: TROUBLE."""
        async with topic.growing:
            while not self._ready(topic, ready):
                lacking = ready - len(topic.ready)
                more = min(GROW_MAX, max(lacking + READY_MIN, STEP, topic.made // STEP))
                made = await self._topics.prepare_queues(topic.vhost_id, topic.made + more)
                again, topic.refused = topic.refused, []
                numbers = [*again, *range(topic.made, made)]
                new = [self._marks.producer.open(topic.name, number, UNKNOWN) for number in numbers]
                topic.made = made
                error: KafkaRefused | None = None
                try:
                    await self._marks.fence(new)
                except KafkaRefused as refused:
                    error = refused
                taken = await self._marks.stored(new)
                for each in new:
                    if each.closed:
                        self._marks.producer.forget(each)
                        topic.refused.append(int(each.number))
                for each in taken:
                    self._partitions[topic.name, int(each.number)] = each
                topic.ready += taken
                if not taken and error is not None:
                    raise error

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
                    self.own.end(place.topic)
        if self._freed and not self._freeing:
            self._freeing = True
            self._start(self._free())

    async def drop_vhost(self, vhost_id: str) -> None:
        """It is deleted, and no row of it is left: its topic goes. Raises: WriteFailed, it is to be called again."""
        topic = self._topic(vhost_id)
        async with topic.growing:
            for place, partition in list(self._partitions.items()):
                if place[0] == topic.name:
                    self._marks.producer.forget(partition)  # else it would wait for the topic
                    del self._partitions[place]
            self._freed.pop(topic.name, None)
            self._of.pop(topic.name, None)
            try:
                await self._topics.delete(topic.name)
            except TROUBLE as error:
                raise WriteFailed(f"topic {topic.name} is not deleted: {error}") from error
        await self.own.ended()  # until then the vhost's row stays, and somebody has the slot

    async def _empty(self, topic: _Topic, partitions: list[Partition]) -> None:
        """What an owner before has left in partitions that no queue has goes. Its failing costs space, and no more."""
        # The last record, which is ours, stays: a partition without one would forget who wrote it.
        before = {int(each.number): int(each.next_offset) - 1 for each in partitions if each.next_offset > 1}
        if before:
            await self._topics.delete_records(topic.name, before)

    async def _free(self) -> None:
        """Empties the partitions of deleted queues, marks them, and gives them out again."""
        try:
            while self._freed:
                name, partitions = self._freed.popitem()
                topic = self._of.get(name)
                if topic is not None:
                    await self._free_some(topic, list(partitions.values()))
        finally:
            self._freeing = False

    async def _free_some(self, topic: _Topic, partitions: list[Partition]) -> None:
        left = await self._marks.stored(partitions)  # what was on its way for the queue
        before = {int(each.number): int(each.high_watermark) for each in left}
        pause = RETRY_S
        while self._of.get(topic.name) is topic:
            try:
                await self._topics.delete_records(topic.name, before)
                break
            except (KafkaLost, OSError) as error:
                logger.warning("%s is emptied later: %s", topic.name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)
            except TROUBLE as error:
                logger.error("%s is not emptied, which costs space at Kafka: %s", topic.name, error)
                break
        left = await self._marks.mark(left)
        if self._of.get(topic.name) is topic:
            topic.ready += left

    # -- in the background

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

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
