"""Placement of durable queues: the owner of a slot gives each queue a partition and a first offset.

Most queues share their vhost's topic: each has one of its partitions. The position is stored in the slot's `meta`
together with the queue's row, and deleted with it: `["place", queue id]` = topic, partition, first_offset.

**A new queue never shows an old message.** The owner uses a partition only after Kafka stored a record of this
owner in it: a barrier for a partition that is new or was taken over, a marker behind the last batch of a deleted
queue. The queue begins behind that record, so everything before it belongs to other queues, however late it
arrived.

**Spare partitions.** Some partitions are always ready, so that a declaration costs one record batch. They are
created in the background, STEP or more at a time. A burst of declarations waits until there are enough. A deleted
queue's partition is emptied (DeleteRecords), marked and used again, because Kafka cannot remove partitions. The
topic is created with the vhost's first durable queue and deleted with the vhost.

A refusal by Kafka loses no partition. If Kafka refuses to empty a partition, it is used again anyway. If Kafka
refuses the marker, the marker is tried again when the next partitions are created.

**Dedicated topics** (`DedicatedTopics`). A queue with x-kafka-topic has a topic of one partition, which lives as
long as the queue. `broker/vhost/cluster_checks.py` decides whether the client may have it.

1. Create: store a note `["own-topic", name]` with a random mark, create the topic with the same mark, write a
   barrier. Then the queue that asked for the topic uses it.
2. Delete: delete the topic, then the note. Until then no queue can get a topic of this name.

If a crash leaves a note without a queue, the next owner deletes the topic. A topic with another mark is never
deleted. If another client deletes the topic or creates it again, the queue's partition is closed from the start.
That queue accepts and delivers nothing; an operator must delete it.

`NodeTopicPolicy` checks the names of dedicated topics: does the operator allow them, and does Kafka have them
already.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.vhost.kafka_topics import ARGUMENT
from amqpd.cluster.row_codec import OWN_TOPIC, PLACE, Note, NoteKey, PutAnnotation, SlotChange
from amqpd.cluster.row_table import Submission
from amqpd.cluster.slot_logs import LogPosition, SlotLogs
from amqpd.kafka.admin import UnsafeTopic
from amqpd.kafka.connection import KafkaDisconnected, KafkaIncompatible
from amqpd.kafka.keyed_records import KeyedRecord
from amqpd.kafka.partition import UNKNOWN, Partition
from amqpd.kafka.producer import KafkaRefused
from amqpd.protocol.field_table import decode_table
from amqpd.storage.metadata.rows import Put, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataError, WriteFailed

if TYPE_CHECKING:
    from amqpd.cluster.storage import PlacedLog
    from amqpd.kafka.admin import TopicAdmin


class FenceRecords:
    """Writer of this owner's barriers and markers in partitions of one slot.

    Args:
        key: the slot's transactional id, the key of these records.
    """

    def __init__(self, writer: SlotLogs, key: str) -> None:
        self.producer = writer.producer
        self._writer = writer
        self._key = key

    async def fence(self, new: list[Partition]) -> None:
        """Store a barrier in new partitions. Raises KafkaRefused: a partition was closed, or the producer ended."""
        held = self._writer.held
        await self.producer.fence(new, self._key, held)
        if held is not self._writer.held:
            # A new epoch began meanwhile. Its barriers did not include these partitions.
            await self.mark(new)

    async def wait_stored(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Wait until everything that was sent to the partitions is stored; return those that are still open.

        Raises: KafkaRefused: the producer ended.
        """
        while True:
            left = [each for each in partitions if not each.closed]
            try:
                await self.producer.wait_stored(left)
            except KafkaRefused:
                if self.producer.ended or self.producer.closed:
                    raise
            else:
                return left

    async def mark(self, partitions: list[Partition]) -> list[Partition]:
        """Store a marker behind the last batch of each partition; return the partitions that accepted it.

        Raises: KafkaRefused: the producer ended.
        """
        marked: list[Partition] = []
        for each in partitions:
            while not each.closed and not self._writer.may_write(each):
                await self.wait_stored([each])
            if not each.closed:
                self._writer.write(each, [KeyedRecord(self._key.encode(), None)])
                marked.append(each)
        self.producer.flush()
        return await self.wait_stored(marked)


logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 60.0
"""Pause before Kafka is asked again to empty a partition or delete a topic. It doubles from RETRY_S to RETRY_S_MAX."""
END_S: Final = 10.0
"""Maximum time for which the deletion of a vhost waits for dedicated topics before it is retried."""
TROUBLE: Final = (KafkaDisconnected, KafkaIncompatible, KafkaRefused, UnsafeTopic, OSError)


Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class DedicatedTopics:
    """The dedicated topics of one slot (x-kafka-topic).

    Args:
        partitions: all partitions of the slot, by topic and number.
        start: starts a background task.

    Attributes:
        write: writes notes to the slot's `meta` and returns when they are stored. Raises MetadataError. `RowWriter`
        sets it.
    """

    def __init__(
        self, marks: FenceRecords, topics: TopicAdmin, partitions: dict[tuple[str, int], Partition], start: Start
    ) -> None:
        self._marks = marks
        self._topics = topics
        self._partitions = partitions
        self._start = start
        self.write: Callable[[Sequence[SlotChange]], Awaitable[object]] = _unwritten
        self._marks_of: dict[str, int] = {}
        # Topics whose queues are not declared yet, and topics that are being deleted.
        self._made: dict[str, Partition] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}

    def load(self, notes: Mapping[NoteKey, Note], places: Collection[LogPosition], lost: Mapping[str, str]) -> None:
        """Load the topics after a takeover, and delete those that a crash left without a queue.

        Args:
            places: the positions of all queues of the slot.
            lost: topic -> reason, for topics that were deleted or created again.
        """
        self._marks_of = dedicated_topic_marks(notes)
        for place in places:
            if place.topic in lost:
                closed = self._marks.producer.open_deleted(*place, lost[place.topic])
                self._partitions[place.topic, place.number] = closed
        for name in self._marks_of.keys() - {place.topic for place in places}:
            self.delete(name)

    def has(self, name: str) -> bool:
        """Return whether the topic was made and no queue uses it yet."""
        return name in self._made

    def take_partition(self, name: str) -> Partition:
        """Return the partition to the queue for which it was made."""
        return self._made.pop(name)

    def delete_unused(self, name: str) -> None:
        """Delete the topic, because its queue will not be declared."""
        if name in self._made:
            del self._made[name]
            self.delete(name)

    async def create(self, name: str) -> None:
        """Create the topic of one queue. Other clients may write to it; that damages this queue only.

        Raises:
            TROUBLE: Kafka refused or did not answer.
            MetadataError: the note could not be stored.
        """
        if name in self._made:
            return
        ending = self._ends.get(name)
        if ending is not None:
            _, left = await asyncio.wait((ending,), timeout=END_S)  # otherwise the deletion removes the new topic
            if left:
                raise KafkaDisconnected(f"topic {name} is still being deleted")
        mark = secrets.randbits(48)
        await self.write([PutAnnotation((OWN_TOPIC, name), {"mark": mark})])
        self._marks_of[name] = mark
        try:
            await self._topics.create_dedicated(name, mark)
            partition = self._marks.producer.open(name, 0, UNKNOWN)
            partition.shared = True
            self._partitions[name, 0] = partition
            await self._marks.fence([partition])
        except TROUBLE:
            self.delete(name)  # Kafka may have created it
            raise
        self._made[name] = partition

    def delete(self, name: str) -> None:
        """Delete the topic of a deleted queue, then its note."""
        partition = self._partitions.pop((name, 0), None)
        if partition is not None:
            self._marks.producer.remove(partition)
        if name not in self._ends:
            self._ends[name] = task = self._start(self._end(name, self._marks_of.get(name, -1)))
            task.add_done_callback(lambda _: self._ends.pop(name, None))

    async def _end(self, name: str, mark: int) -> None:
        pause = RETRY_S
        while True:
            try:
                await self._topics.delete_dedicated(name, mark)
                await self.write([PutAnnotation((OWN_TOPIC, name), None)])
            except TROUBLE as error:
                logger.warning("topic %s cannot be deleted now; it is tried again: %s", name, error)
            except MetadataError as error:
                logger.warning("topic %s: the slot's next owner deletes it: %s", name, error)
                return
            else:
                self._marks_of.pop(name, None)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_S_MAX)

    async def wait_deleted(self) -> None:
        """Return when no topic is being deleted. Raises WriteFailed: topics are left after END_S."""
        if self._ends:
            _, left = await asyncio.wait(self._ends.values(), timeout=END_S)
            if left:
                raise WriteFailed(f"topics of its queues are not deleted yet: {', '.join(sorted(self._ends))}")


async def _unwritten(_: Sequence[SlotChange]) -> None:
    raise WriteFailed("cannot write the metadata: the slot is not served yet")


def dedicated_topic(row: QueueRow) -> str:
    """Return the queue's dedicated topic; "" if it shares its vhost's topic. Cost: a substring search for most
    queues.
    """
    if ARGUMENT.encode() not in row.arguments:
        return ""
    topic = decode_table(row.arguments, 0)[0].get(ARGUMENT)
    return topic if isinstance(topic, str) else ""


def dedicated_topic_marks(notes: Mapping[NoteKey, Note]) -> dict[str, int]:
    """Return topic -> mark for all dedicated topics, also for those that were not created.

    Raises: MetadataError: a note is invalid.
    """
    found: dict[str, int] = {}
    for key, note in notes.items():
        if key[0] == OWN_TOPIC:
            mark = note.get("mark")
            if type(mark) is not int:
                raise MetadataError(f"the note of topic {key[1]} has an unknown format: {dict(note)}")
            found[str(key[1])] = mark
    return found


STEP: Final = 8
"""Minimum number of partitions that are added at a time. A large topic gets one more for each STEP it has."""
READY_MIN: Final = 4
"""Partitions are added when fewer are ready."""
GROW_MAX: Final = 500
"""Maximum number of partitions in one request, and of barriers at a time."""


class _Topic:
    """The topic of one vhost.

    Attributes:
        ready: partitions that new queues can use.
        made: number of partitions.
        refused: numbers of partitions whose marker Kafka refused; no queue uses them.
    """

    def __init__(self, name: str, vhost_id: str) -> None:
        self.name = name
        self.vhost_id = vhost_id
        self.ready: deque[Partition] = deque()
        self.made = 0
        self.refused: list[int] = []
        self.growing = asyncio.Lock()


class QueuePlacement:
    """Positions of the queues of one slot while this node owns it. Loop thread only; call `close` at the end.

    Args:
        key: the slot's transactional id, the key of barriers and markers.
        topic_name: returns the topic of a vhost id.
        vhost_id: returns the id of a vhost; None if the vhost is not in this slot.
        on_placed: called for each placed queue before its declaration is answered.
        on_freed: called for each queue whose position was deleted.
    """

    def __init__(
        self,
        writer: SlotLogs,
        topics: TopicAdmin,
        key: str,
        topic_name: Callable[[str], str],
        vhost_id: Callable[[str], str | None],
        on_placed: Callable[[str, LogPosition], None],
        on_freed: Callable[[str], None],
    ) -> None:
        self._marks = FenceRecords(writer, key)
        self._topics = topics
        self._topic_name = topic_name
        self._vhost_id = vhost_id
        self._on_placed = on_placed
        self._on_freed = on_freed
        self.places: dict[str, LogPosition] = {}
        """Queue id -> position, for durable queues."""
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._topics_by_name: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed: dict[str, dict[int, Partition]] = {}
        self._freeing = False
        self._loop = asyncio.get_running_loop()
        self.dedicated_topics = DedicatedTopics(self._marks, topics, self._partitions, self._start)

    # -- takeover

    def load(
        self,
        notes: Mapping[NoteKey, Note],
        partitions: Iterable[Partition],
        vhosts: Iterable[VhostRow],
        lost: Mapping[str, str],
    ) -> None:
        """Load the positions after a takeover.

        Args:
            notes: the notes of the slot's `meta`.
            partitions: those of the vhosts' topics, each with its barrier.
            lost: dedicated topics that were deleted or created again, and the reason.

        Raises: MetadataError: a position is invalid, or its partition of a vhost's topic is missing.
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
                raise MetadataError(f"{what}, which contains a queue, is missing")
            self.places[str(key[1])] = place
        used = {(place.topic, place.number) for place in self.places.values()}
        for where, partition in sorted(self._partitions.items()):
            topic = self._topics_by_name.get(where[0])
            if topic is not None:
                topic.made += 1
                if where not in used:
                    topic.ready.append(partition)
        for topic in self._topics_by_name.values():
            self._start(self._empty(topic, list(topic.ready)))
        self.dedicated_topics.load(notes, self.places.values(), lost)

    def _topic(self, vhost_id: str) -> _Topic:
        name = self._topic_name(vhost_id)
        found = self._topics_by_name.get(name)
        if found is None:
            found = self._topics_by_name[name] = _Topic(name, vhost_id)
        return found

    def _topic_of(self, vhost: str) -> _Topic:
        """Raises WriteFailed if the vhost is not in this slot."""
        vhost_id = self._vhost_id(vhost)
        if vhost_id is None:
            raise WriteFailed(f"cannot write the metadata: vhost '{vhost}' is not served by this node")
        return self._topic(vhost_id)

    # -- new queues

    def _new_queues(self, changes: Iterable[SlotChange]) -> list[QueueRow]:
        return [
            change.row
            for change in changes
            if isinstance(change, Put)
            and isinstance(change.row, QueueRow)
            and change.row.state != "deleting"
            and change.row.id not in self.places
        ]

    def has_room(self, changes: Iterable[SlotChange]) -> bool:
        """Return whether partitions are ready for all new queues; otherwise call `make_room` first.

        Raises: WriteFailed: a vhost is not served here.
        """
        rows = self._new_queues(changes)
        own = [topic for row in rows if (topic := dedicated_topic(row))]
        wanted = Counter(row.vhost for row in rows if not dedicated_topic(row))
        return all(self.dedicated_topics.has(topic) for topic in own) and all(
            self._ready(self._topic_of(vhost), count) for vhost, count in wanted.items()
        )

    def assign_positions(self, changes: Sequence[SlotChange]) -> Generator[None, None, Sequence[SlotChange]]:
        """Give positions to the new queues, as a generator. `has_room` must be true.

        The caller must exhaust the generator. It yields after each queue, so that the loop can run.

        Returns: The changes, followed by the new positions.
        """
        rows = self._new_queues(changes)
        if not rows:
            return changes
        placed: list[SlotChange] = list(changes)
        for row in rows:
            name = dedicated_topic(row)
            partition = (
                self.dedicated_topics.take_partition(name) if name else self._topic_of(row.vhost).ready.popleft()
            )
            place = LogPosition(partition.topic.decode(), int(partition.number), int(partition.next_offset))
            self.places[row.id] = place
            placed.append(PutAnnotation((PLACE, row.id), placement_note(place)))
            self._on_placed(row.id, place)
            yield
        for vhost in {row.vhost for row in rows if not dedicated_topic(row)}:
            topic = self._topic_of(vhost)
            if len(topic.ready) < READY_MIN and not topic.growing.locked():
                self._start(self._grow(topic, READY_MIN))
        return placed

    @staticmethod
    def _ready(topic: _Topic, count: int) -> bool:
        """Return whether the first `count` partitions can be used. Removes partitions that Kafka closed."""
        ready = topic.ready
        if any(each.closed for each in islice(ready, count)):
            ready = topic.ready = deque(each for each in ready if not each.closed)
        return len(ready) >= count

    def free_unwritten(self, changes: Iterable[SlotChange]) -> None:
        """Free the positions of changes that were not written. The partitions are still empty."""
        for change in changes:
            if isinstance(change, Put) and isinstance(change.row, QueueRow):
                place = self.places.pop(change.row.id, None)
                if place is not None:
                    self._on_freed(change.row.id)
                    topic = self._topics_by_name.get(place.topic)
                    if topic is not None:
                        topic.ready.append(self._partitions[place.topic, place.number])
                    else:
                        self.dedicated_topics.delete(place.topic)

    def delete_unused_topics(self, changes: Iterable[SlotChange]) -> None:
        """Delete topics that were made for changes which were then refused."""
        for row in self._new_queues(changes):
            self.dedicated_topics.delete_unused(dedicated_topic(row))

    async def make_room(self, changes: Sequence[SlotChange]) -> None:
        """Make enough partitions and dedicated topics for the new queues.

        Raises: WriteFailed: Kafka refused or did not answer, or a vhost is not served here.
        """
        rows = self._new_queues(changes)
        wanted = Counter(row.vhost for row in rows if not dedicated_topic(row))
        try:
            for name in {each: None for row in rows if (each := dedicated_topic(row))}:
                await self.dedicated_topics.create(name)
            for vhost, count in wanted.items():
                await self._grow(self._topic_of(vhost), count)
        except TROUBLE as error:
            raise WriteFailed(f"cannot write the metadata: no partition for a queue: {error}") from error

    async def _grow(self, topic: _Topic, ready: int) -> None:
        """Add partitions until `ready` of them can be used. Raises TROUBLE: Kafka refused or did not answer."""
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
                taken = await self._marks.wait_stored(new)
                for each in new:
                    if each.closed:
                        self._marks.producer.remove(each)
                        topic.refused.append(int(each.number))
                for each in taken:
                    self._partitions[topic.name, int(each.number)] = each
                topic.ready += taken
                if not taken and error is not None:
                    raise error

    # -- deleted queues

    def on_stored(self, submission: Submission) -> None:
        """Free the positions whose deletion Kafka has stored."""
        for note in submission.deleted_positions:
            queue_id = str(note.key[1])
            place = self.places.pop(queue_id, None)
            if place is not None:
                self._on_freed(queue_id)
                topic = self._topics_by_name.get(place.topic)
                if topic is not None:
                    self._freed.setdefault(place.topic, {})[place.number] = self._partitions[place.topic, place.number]
                else:
                    self.dedicated_topics.delete(place.topic)
        if self._freed and not self._freeing:
            self._freeing = True
            self._start(self._free())

    async def drop_vhost(self, vhost_id: str) -> None:
        """Delete the topic of a deleted vhost. No row of the vhost is left.

        Raises: WriteFailed: the topic is not deleted yet; call again.
        """
        topic = self._topic(vhost_id)
        async with topic.growing:
            for place, partition in list(self._partitions.items()):
                if place[0] == topic.name:
                    self._marks.producer.remove(partition)  # otherwise it waits for the topic
                    del self._partitions[place]
            self._freed.pop(topic.name, None)
            self._topics_by_name.pop(topic.name, None)
            try:
                await self._topics.delete(topic.name)
            except TROUBLE as error:
                raise WriteFailed(f"topic {topic.name} is not deleted: {error}") from error
        await self.dedicated_topics.wait_deleted()  # until then the vhost's row stays, so the slot has an owner

    async def _empty(self, topic: _Topic, partitions: list[Partition]) -> None:
        """Delete what earlier owners left in partitions that no queue uses. A failure only costs disk space."""
        # The last record, which is ours, stays: Kafka forgets the writer of an empty partition.
        before = {int(each.number): int(each.next_offset) - 1 for each in partitions if each.next_offset > 1}
        if before:
            await self._topics.delete_records(topic.name, before)

    async def _free(self) -> None:
        """Empty and mark the partitions of deleted queues so that new queues can use them."""
        try:
            while self._freed:
                name, partitions = self._freed.popitem()
                topic = self._topics_by_name.get(name)
                if topic is not None:
                    await self._free_some(topic, list(partitions.values()))
        finally:
            self._freeing = False

    async def _free_some(self, topic: _Topic, partitions: list[Partition]) -> None:
        left = await self._marks.wait_stored(partitions)  # batches of the deleted queue that are unanswered
        before = {int(each.number): int(each.high_watermark) for each in left}
        pause = RETRY_S
        while self._topics_by_name.get(topic.name) is topic:
            try:
                await self._topics.delete_records(topic.name, before)
                break
            except (KafkaDisconnected, OSError) as error:
                logger.warning("topic %s cannot be emptied now; it is tried again: %s", topic.name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)
            except TROUBLE as error:
                logger.error("topic %s cannot be emptied and keeps space in Kafka: %s", topic.name, error)
                break
        left = await self._marks.mark(left)
        if self._topics_by_name.get(topic.name) is topic:
            topic.ready += left

    # -- background tasks

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
            logger.warning("partitions for queues cannot be created or emptied now: %s", error)
        elif error is not None:
            logger.error("partitions for queues: a bug in amqpd, please report it", exc_info=error)

    async def close(self) -> None:
        """Cancel the background tasks. The next owner frees what is left."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def placement_note(place: LogPosition) -> Note:
    return {"topic": place.topic, "partition": place.number, "first_offset": place.first_offset}


def placement_of(note: Note) -> LogPosition:
    """Return the position that `placement_note` encoded. Raises MetadataError: the note is invalid."""
    topic, number, first = (note.get(name) for name in ("topic", "partition", "first_offset"))
    if not isinstance(topic, str) or type(number) is not int or type(first) is not int:
        raise MetadataError(f"unknown format of a queue's position: {dict(note)}")
    return LogPosition(topic, number, first)


ANSWER_KEPT_S: Final = 10.0
"""Lifetime of Kafka's answer about a topic, in case the declaring client has disappeared."""


class NodeTopicPolicy:
    """Policy of this node for the names of dedicated topics (`OwnTopics`).

    Args:
        pattern: `cluster.kafka_topics`.
        places: positions of this node's queues, by queue id.
    """

    def __init__(self, topics: TopicAdmin, pattern: str, places: Mapping[str, PlacedLog]) -> None:
        self._topics = topics
        self._pattern = re.compile(pattern) if pattern else None
        self._places = places
        self._answers: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def allows(self, topic: str) -> bool:
        """Return whether the pattern matches the whole name."""
        return self._pattern is not None and self._pattern.fullmatch(topic) is not None

    def objection(self, topic: str) -> str | None:
        """Return why a queue cannot have the topic, or None. Cost: a loop over all positions."""
        said = self._answers.pop(topic, None)
        if any(placed.place.topic == topic for placed in self._places.values()):
            return "belongs to another queue"
        return said

    def ask(self, topic: str, done: Callable[[], None]) -> None:
        """Ask Kafka whether the topic exists, then call `done`. `objection` returns the answer."""

        async def look() -> None:
            try:
                said = "exists already" if await self._topics.describe([topic]) else ""
            except TROUBLE as error:
                said = f"cannot be checked: {error}"
            except Exception:
                logger.exception("topic %s: a bug in amqpd, please report it", topic)
                said = "cannot be checked: see the broker's log"
            self._answers[topic] = said
            asyncio.get_running_loop().call_later(ANSWER_KEPT_S, self._forget, topic, said)
            done()

        task = asyncio.get_running_loop().create_task(look())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, topic: str, said: str) -> None:
        if self._answers.get(topic) is said:
            del self._answers[topic]
