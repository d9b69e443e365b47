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
(broker/vhost/cluster_checks.py says which it may have; placement.py makes and ends it).

What Kafka refuses costs no partition: those that it would not empty are given out all the same, those that it would not
let be marked are tried again with the next that are made.

A record of ours in partitions: what is given out behind it holds nothing of another.

A slot's owner writes a barrier into a partition that is new, and a record of its epoch behind what a deleted queue has
left in one. Whoever asks gets those that have taken it; what Kafka refuses is closed, and costs the others nothing.

Topics that queues have for themselves (x-kafka-topic), as their slot's owner makes and ends them.

    make    a note, ["own-topic", name]; the topic; a barrier in it. It is taken by the queue that asked for it
    end     the topic goes, then its note: until then nobody can be given one of that name

So a crash leaves none behind: where a note is without a queue, the next owner ends the topic. The note has a random
mark, and so has the topic (`TopicAdmin.make_own`): another one of that name, whoever made it and when, is never
deleted.

Where somebody has deleted such a topic, or made it anew, its queue has a partition that is closed from the start: it
takes and gives nothing, and is to be deleted.

Topics of Kafka that queues may have for themselves: what the operator allows, and whether Kafka has them already.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from amqpd.broker.vhost.cluster_checks import ARGUMENT
from amqpd.cluster.row_codec import OWN_TOPIC, PLACE, Note, NoteKey, PutAnnotation, SlotChange
from amqpd.cluster.row_table import Submission
from amqpd.cluster.slot_logs import LogPosition
from amqpd.kafka.admin import UnsafeTopic
from amqpd.kafka.connection import KafkaDisconnected, KafkaIncompatible
from amqpd.kafka.keyed_records import KeyedRecord
from amqpd.kafka.partition import UNKNOWN, Partition
from amqpd.kafka.producer import KafkaProducer, KafkaRefused
from amqpd.kafka.requests import ProducerId
from amqpd.protocol.field_table import decode_table
from amqpd.storage.metadata.rows import Put, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataError, WriteFailed

if TYPE_CHECKING:
    from amqpd.cluster.storage import PlacedLog
    from amqpd.kafka.admin import TopicAdmin


class PartitionWriter(Protocol):
    """Who numbers what goes to the slot's partitions (`SlotLogs`). held: producer id and epoch."""

    held: ProducerId

    @property
    def producer(self) -> KafkaProducer: ...

    def write(self, partition: Partition, records: list[KeyedRecord]) -> None:
        """One batch behind what was offered; `producer.flush` sends it."""

    def may_write(self, partition: Partition) -> bool:
        """False: batches of an epoch before are on the way, behind which the next one waits."""


class FenceRecords:
    """Of one slot. key: the slot's transactional id, which its barriers and markers have."""

    def __init__(self, writer: PartitionWriter, key: str) -> None:
        self.producer = writer.producer
        self._writer = writer
        self._key = key

    async def fence(self, new: list[Partition]) -> None:
        """A barrier of ours is stored in these. Raises: KafkaRefused, one of them is closed, or all has ended."""
        held = self._writer.held
        await self.producer.fence(new, self._key, held)
        if held is not self._writer.held:
            # A later epoch has begun meanwhile, and knew nothing of them.
            await self.mark(new)

    async def stored(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Those of them that take more, once all that was offered to them is in Kafka. Raises: KafkaRefused, all has
        ended.
        """
        while True:
            left = [each for each in partitions if not each.closed]
            try:
                await self.producer.stored(left)
            except KafkaRefused:
                if self.producer.ended or self.producer.closed:
                    raise
            else:
                return left

    async def mark(self, partitions: list[Partition]) -> list[Partition]:
        """A record of ours is stored behind all that is in them; returns those that have taken it. Raises:
        KafkaRefused, all has ended.
        """
        marked: list[Partition] = []
        for each in partitions:
            while not each.closed and not self._writer.may_write(each):
                await self.stored([each])
            if not each.closed:
                self._writer.write(each, [KeyedRecord(self._key.encode(), None)])
                marked.append(each)
        self.producer.flush()
        return await self.stored(marked)


logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 60.0
"""Before Kafka is asked again to empty a partition, or to delete a topic: from the one to the other, doubled."""
END_S: Final = 10.0
"""How long a vhost's end waits for the topics that its queues had for themselves, before it is begun again."""
TROUBLE: Final = (KafkaDisconnected, KafkaIncompatible, KafkaRefused, UnsafeTopic, OSError)


class TopicMaker(Protocol):
    """Kafka's administration (`TopicAdmin`). Raises: KafkaLost, KafkaRefused, KafkaUnfit, TopicUnfit."""

    async def prepare_queues(self, vhost_id: str, partitions: int) -> int:
        """The vhost's topic has that many partitions or more: how many it has."""

    async def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """Frees what stands before those offsets."""

    async def make_own(self, name: str, mark: int) -> None:
        """A topic of one partition; refused where there is one already."""

    async def delete_own(self, name: str, mark: int) -> None:
        """The one that was made with that mark goes, where it is."""

    async def delete(self, name: str) -> None:
        """The topic goes, where there is one."""


Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class DedicatedTopics:
    """Of one slot. partitions: all of the slot, by topic and number. start: has something done in the background.

    write: writes notes to the slot's `meta`, and returns when they are there; raises MetadataError. Whoever writes the
    slot's rows sets it.
    """

    def __init__(
        self, marks: FenceRecords, topics: TopicMaker, partitions: dict[tuple[str, int], Partition], start: Start
    ) -> None:
        self._marks = marks
        self._topics = topics
        self._partitions = partitions
        self._start = start
        self.write: Callable[[Sequence[SlotChange]], Awaitable[object]] = _unwritten
        self._marks_of: dict[str, int] = {}
        # Made for queues that are about to come; and those that are on their way out.
        self._made: dict[str, Partition] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}

    def begin(self, notes: Mapping[NoteKey, Note], places: Collection[LogPosition], lost: Mapping[str, str]) -> None:
        """The slot was taken over. places: of all its queues. lost: topics that are gone, or others, and why. What a
        crash has left ends.
        """
        self._marks_of = fences_of(notes)
        for place in places:
            if place.topic in lost:
                closed = self._marks.producer.open_lost(*place, lost[place.topic])
                self._partitions[place.topic, place.number] = closed
        for name in self._marks_of.keys() - {place.topic for place in places}:
            self.end(name)

    def has(self, name: str) -> bool:
        """Whether it is made, and nobody's yet."""
        return name in self._made

    def take(self, name: str) -> Partition:
        """For the queue that it was made for."""
        return self._made.pop(name)

    def drop(self, name: str) -> None:
        """The queue that it was made for will not come."""
        if name in self._made:
            del self._made[name]
            self.end(name)

    async def make(self, name: str) -> None:
        """The topic of one queue. Others may write to it, too: what they do ends that queue alone. Raises: TROUBLE;
        MetadataError.
        """
        if name in self._made:
            return
        ending = self._ends.get(name)
        if ending is not None:
            _, left = await asyncio.wait((ending,), timeout=END_S)  # else the one that is made would be deleted
            if left:
                raise KafkaDisconnected(f"topic {name} is still being deleted")
        mark = secrets.randbits(48)
        await self.write([PutAnnotation((OWN_TOPIC, name), {"mark": mark})])
        self._marks_of[name] = mark
        try:
            await self._topics.make_own(name, mark)
            partition = self._marks.producer.open(name, 0, UNKNOWN)
            partition.shared = True
            self._partitions[name, 0] = partition
            await self._marks.fence([partition])
        except TROUBLE:
            self.end(name)  # it may have been made
            raise
        self._made[name] = partition

    def end(self, name: str) -> None:
        """The topic of a queue that is gone goes, too, then its note."""
        partition = self._partitions.pop((name, 0), None)
        if partition is not None:
            self._marks.producer.forget(partition)
        if name not in self._ends:
            self._ends[name] = task = self._start(self._end(name, self._marks_of.get(name, -1)))
            task.add_done_callback(lambda _: self._ends.pop(name, None))

    async def _end(self, name: str, mark: int) -> None:
        pause = RETRY_S
        while True:
            try:
                await self._topics.delete_own(name, mark)
                await self.write([PutAnnotation((OWN_TOPIC, name), None)])
            except TROUBLE as error:
                logger.warning("topic %s is deleted later: %s", name, error)
            except MetadataError as error:
                logger.warning("topic %s: the slot's next owner deletes it: %s", name, error)
                return
            else:
                self._marks_of.pop(name, None)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_S_MAX)

    async def ended(self) -> None:
        """Returns when all that are on their way out are gone. Raises: WriteFailed, after END_S."""
        if self._ends:
            _, left = await asyncio.wait(self._ends.values(), timeout=END_S)
            if left:
                raise WriteFailed(f"topics of its queues are not deleted yet: {', '.join(sorted(self._ends))}")


async def _unwritten(_: Sequence[SlotChange]) -> None:
    """There are no rows yet."""
    raise WriteFailed("cannot write the metadata: the slot is not served yet")


def own_topic(row: QueueRow) -> str:
    """The topic that the queue has for itself (x-kafka-topic); "": it shares its vhost's. Cost: nothing for most."""
    if ARGUMENT.encode() not in row.arguments:
        return ""
    topic = decode_table(row.arguments, 0)[0].get(ARGUMENT)
    return topic if isinstance(topic, str) else ""


def fences_of(notes: Mapping[NoteKey, Note]) -> dict[str, int]:
    """Topics that queues have for themselves, or were to have, and their marks. Raises: MetadataError."""
    found: dict[str, int] = {}
    for key, note in notes.items():
        if key[0] == OWN_TOPIC:
            mark = note.get("mark")
            if type(mark) is not int:
                raise MetadataError(
                    f"the note of topic {key[1]} is none that this version of amqpd writes: {dict(note)}"
                )
            found[str(key[1])] = mark
    return found


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


class QueuePlacement:
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
        on_placed: Callable[[str, LogPosition], None],
        on_freed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._marks = FenceRecords(writer, key)
        self._topics = topics
        self._topic_name = topic_name
        self._vhost_id = vhost_id
        self._on_placed = on_placed
        self._on_freed = on_freed
        self.places: dict[str, LogPosition] = {}
        """Of each durable queue, by its id."""
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._of: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed: dict[str, dict[int, Partition]] = {}
        self._freeing = False
        self._loop = asyncio.get_running_loop()
        self.own = DedicatedTopics(self._marks, topics, self._partitions, self._start)
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
            place = placement_of(note)
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

    def partition(self, place: LogPosition) -> Partition:
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
            place = LogPosition(partition.topic.decode(), int(partition.number), int(partition.next_offset))
            self.places[row.id] = place
            placed.append(PutAnnotation((PLACE, row.id), placement_note(place)))
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
            except (KafkaDisconnected, OSError) as error:
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


def placement_note(place: LogPosition) -> Note:
    """As it stands in `meta`."""
    return {"topic": place.topic, "partition": place.number, "first_offset": place.first_offset}


def placement_of(note: Note) -> LogPosition:
    """Raises: MetadataError."""
    topic, number, first = (note.get(name) for name in ("topic", "partition", "first_offset"))
    if not isinstance(topic, str) or type(number) is not int or type(first) is not int:
        raise MetadataError(f"a queue's place is none that this version of amqpd writes: {dict(note)}")
    return LogPosition(topic, number, first)


__all__ = ["LogPosition", "QueuePlacement", "TopicMaker", "placement_note", "placement_of"]


SAID_S: Final = 10.0
"""How long Kafka's answer is kept for who has asked, and may be gone."""


class NodeTopicPolicy:
    """Of one node; see broker/vhost/vhost.py. pattern: `cluster.kafka_topics`. places: of this node's queues,
    by their ids.
    """

    def __init__(self, topics: TopicAdmin, pattern: str, places: Mapping[str, PlacedLog]) -> None:
        self._topics = topics
        self._pattern = re.compile(pattern) if pattern else None
        self._places = places
        self._said: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def allows(self, topic: str) -> bool:
        """The pattern has to match the whole name."""
        return self._pattern is not None and self._pattern.fullmatch(topic) is not None

    def objection(self, topic: str) -> str | None:
        """As `OwnTopics`. Cost: a look at each place."""
        said = self._said.pop(topic, None)
        if any(placed.place.topic == topic for placed in self._places.values()):
            return "belongs to another queue"
        return said

    def ask(self, topic: str, done: Callable[[], None]) -> None:
        """As `OwnTopics`."""

        async def look() -> None:
            try:
                said = "exists already" if await self._topics.describe([topic]) else ""
            except (KafkaDisconnected, KafkaRefused, KafkaIncompatible, UnsafeTopic, OSError) as error:
                said = f"cannot be asked for: {error}"
            except Exception:
                logger.exception("topic %s: a bug of the broker", topic)
                said = "cannot be asked for: the broker's log says why"
            self._said[topic] = said
            asyncio.get_running_loop().call_later(SAID_S, self._forget, topic, said)
            done()

        task = asyncio.get_running_loop().create_task(look())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, topic: str, said: str) -> None:
        if self._said.get(topic) is said:
            del self._said[topic]
