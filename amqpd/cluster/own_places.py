"""Topics that queues have for themselves (x-kafka-topic), as their slot's owner makes and ends them.

    make    a note, ["own-topic", name]; the topic; a barrier in it. It is taken by the queue that asked for it
    end     the topic goes, then its note: until then nobody can be given one of that name

So a crash leaves none behind: where a note is without a queue, the next owner ends the topic. The note has a random
mark, and so has the topic (`Topics.make_own`): another one of that name, whoever made it and when, is never deleted.

Where somebody has deleted such a topic, or made it anew, its queue has a partition that is closed from the start: it
takes and gives nothing, and is to be deleted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from amqpd.broker.vhost.kafka_topic import ARGUMENT
from amqpd.kafka.connection import KafkaLost, KafkaUnfit
from amqpd.cluster.slot_logs import Place
from amqpd.cluster.marks import Marks
from amqpd.kafka.producer import KafkaRefused
from amqpd.cluster.row_codec import OWN_TOPIC, Note, NoteKey, PutNote, SlotChange
from amqpd.kafka.admin import TopicUnfit
from amqpd.protocol.field_table import decode_table
from amqpd.storage.metadata.store import MetadataError, WriteFailed
from amqpd.storage.metadata.rows import QueueRow
from amqpd.kafka.partition import UNKNOWN, Partition

logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 60.0
"""Before Kafka is asked again to empty a partition, or to delete a topic: from the one to the other, doubled."""
END_S: Final = 10.0
"""How long a vhost's end waits for the topics that its queues had for themselves, before it is begun again."""
TROUBLE: Final = (KafkaLost, KafkaUnfit, KafkaRefused, TopicUnfit, OSError)


class TopicMaker(Protocol):
    """Kafka's administration (`Topics`). Raises: KafkaLost, KafkaRefused, KafkaUnfit, TopicUnfit."""

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


class OwnPlaces:
    """Of one slot. partitions: all of the slot, by topic and number. start: has something done in the background.

    write: writes notes to the slot's `meta`, and returns when they are there; raises MetadataError. Whoever writes the
    slot's rows sets it.
    """

    def __init__(
        self, marks: Marks, topics: TopicMaker, partitions: dict[tuple[str, int], Partition], start: Start
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

    def begin(self, notes: Mapping[NoteKey, Note], places: Collection[Place], lost: Mapping[str, str]) -> None:
        """The slot was taken over. places: of all its queues. lost: topics that are gone, or others, and why. What a
        crash has left ends.
        """
        self._marks_of = marks_of(notes)
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
                raise KafkaLost(f"topic {name} is still being deleted")
        mark = secrets.randbits(48)
        await self.write([PutNote((OWN_TOPIC, name), {"mark": mark})])
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
                await self.write([PutNote((OWN_TOPIC, name), None)])
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


def marks_of(notes: Mapping[NoteKey, Note]) -> dict[str, int]:
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
