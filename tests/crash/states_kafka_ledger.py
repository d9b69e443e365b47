"""The ledger of the answers that Kafka's clients got, kept outside the disk, and its judge after a crash.

Producers have numbers (id, epoch, sequence) and send a batch again until it is answered. After each start every
producer sends its last batches again, as if their answers were lost:

- An answered batch is there once, at the answered offset. Batches are whole, and those of a producer in order without a
  hole.
- A batch that is sent again is answered without an error, with the offset of its first copy if that survived. Then it
  is there once.
- An answered committed offset is there, or a later one that was asked for. Once a client has seen it, no older one
  comes. A topic that is deleted and created again has none of its old offsets and records.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from states_broker_ledger import BrokerLedger
from states_ledger import Violation

NOTHING: Final = -1
WINDOW: Final = 5
"""Batches that a producer sends without waiting, and that the log knows."""
Numbers = tuple[int, int, int]
"""Producer id, epoch, first sequence."""
Records = list[tuple[int, bytes]]
"""Offsets and bodies."""


class Batch:
    """A batch of an idempotent producer. offset: of its first record, as answered; -1 before."""

    __slots__ = ("bodies", "data", "numbers", "offset")

    def __init__(self, numbers: Numbers, bodies: list[bytes], data: bytes, offset: int = NOTHING) -> None:
        self.numbers = numbers
        self.bodies = bodies
        self.data = data
        self.offset = offset

    def copy(self) -> Batch:
        return Batch(self.numbers, self.bodies, self.data, self.offset)

    def __repr__(self) -> str:
        return f"batch {self.numbers} of {len(self.bodies)}, answered at {self.offset}"


class Topic:
    """A stream. trimmed: retention may have removed lower offsets, with these bodies. is_deleting: it may be gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: list[Batch] = []
        self.trimmed = 0
        self.trimmed_bodies: frozenset[bytes] = frozenset()
        self.is_deleting = False

    def copy(self) -> Topic:
        other = Topic(self.name)
        other.batches = [each.copy() for each in self.batches]
        other.trimmed, other.trimmed_bodies, other.is_deleting = self.trimmed, self.trimmed_bodies, self.is_deleting
        return other

    def of_producers(self) -> list[list[Batch]]:
        """Return the batches of each producer, in order."""
        found: dict[int, list[Batch]] = {}
        for batch in self.batches:
            found.setdefault(batch.numbers[0], []).append(batch)
        return list(found.values())

    def repeated(self) -> list[Batch]:
        """Return the batches that producers send again after a crash: the last ones of the last epoch, in order."""
        found: list[Batch] = []
        for batches in self.of_producers():
            last = [each for each in batches if each.numbers[1] == batches[-1].numbers[1]][-WINDOW:]
            found += [each for each in last if not 0 <= each.offset < self.trimmed]
        return found


class KafkaLedger(BrokerLedger):
    """The expected state.

    topics: by queue id. deleted: ids whose deletion was answered. committed: (group, queue id) -> the values that may
    be found, each with a number that rises; the first is certain, and -1 is no value. transactional: records that
    states_transactions_ledger.py judges.
    """

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, Topic] = {}
        self.deleted: set[str] = set()
        self.committed: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.transactional: set[bytes] = set()

    def copy(self) -> Self:
        other = super().copy()
        other.topics = {key: each.copy() for key, each in self.topics.items()}
        other.deleted = set(self.deleted)
        other.committed = {key: list(each) for key, each in self.committed.items()}
        other.transactional = set(self.transactional)
        return other

    def asked(self) -> tuple[object, ...]:
        """See BrokerLedger."""
        return tuple((key, batch.data) for key, topic in self.topics.items() for batch in topic.repeated())

    def possible(self, group: str, queue_id: str) -> list[int]:
        """Return the committed offsets that may be found."""
        return [value for _, value in self.committed.get((group, queue_id), [(0, NOTHING)])]


class FoundTopic(NamedTuple):
    """before, after: its records before and after the producers sent again. answers: to them, error and offset."""

    before: Records
    answers: dict[Numbers, tuple[int, int]]
    after: Records


class KafkaOutcome(NamedTuple):
    """The topics, by queue id, and the committed offsets, by group and queue id, that clients find after a start."""

    topics: dict[str, FoundTopic]
    committed: dict[tuple[str, str], int]


def judge_kafka(outcome: KafkaOutcome, ledger: KafkaLedger) -> None:
    """Raises: Violation."""
    for queue_id, topic in ledger.topics.items():
        if queue_id not in outcome.topics and not topic.is_deleting:
            raise Violation(f"topic {topic.name} is lost")
    for queue_id, found in outcome.topics.items():
        if queue_id in ledger.deleted:
            raise Violation("a topic is back whose deletion was answered")
        topic = ledger.topics.get(queue_id, Topic("being created"))
        try:
            _judge_topic(found, topic, ledger)
        except Violation as violation:
            lines = "\n".join(f"  {each}" for each in topic.batches)
            records = [(offset, body[:12]) for offset, body in found.after]
            there = f"{found.answers}, first {len(found.before)} of {records}"
            raise Violation(f"{topic.name}: {violation}\n{lines}\n  found: {there}") from None
    for queue_id in outcome.topics:
        for group in {group for group, _ in (*ledger.committed, *outcome.committed)}:
            value = outcome.committed.get((group, queue_id), NOTHING)
            possible = ledger.possible(group, queue_id)
            if value not in possible:
                raise Violation(f"group {group} is at {value}, and may be at {possible}")


def _judge_topic(found: FoundTopic, topic: Topic, ledger: KafkaLedger) -> None:
    before = _places(found.before, topic, ledger)
    after = _places(found.after, topic, ledger)
    if found.after[: len(found.before)] != found.before:
        raise Violation("the records are others after producers have sent again")
    for batch in topic.batches:
        if batch.offset >= topic.trimmed and before.get(batch.numbers, [])[:1] != [batch.offset]:
            raise Violation(f"{batch} is lost, or stands elsewhere: {before.get(batch.numbers)}")
    for batches in topic.of_producers():
        there = [bool(before.get(each.numbers)) for each in batches if not 0 <= each.offset < topic.trimmed]
        if sorted(there, reverse=True) != there:
            raise Violation(f"producer {batches[0].numbers[0]} has a hole: {there}")
    for batch in topic.repeated():
        if batch.numbers not in found.answers:
            raise Violation(f"{batch} was sent again and is never answered")
        error, offset = found.answers[batch.numbers]
        first = before.get(batch.numbers, [offset])[0]
        if error or offset != first:
            raise Violation(f"{batch} was sent again and answered with error {error}, offset {offset}, not {first}")
        if batch.numbers not in after:
            raise Violation(f"{batch} was sent again and is not there")
    for places in (before, after):
        for numbers, offsets in places.items():
            if len(offsets) > 1:
                raise Violation(f"the batch {numbers} is stored {len(offsets)} times, at {offsets}")


def _places(records: Records, topic: Topic, ledger: KafkaLedger) -> dict[Numbers, list[int]]:
    """Return the offset of each copy of each batch. Raises: Violation if one is not whole."""
    starts = {batch.bodies[0]: batch for batch in topic.batches}
    places: dict[Numbers, list[int]] = {}
    plain: list[bytes] = []
    position, last = 0, -1
    while position < len(records):
        offset, body = records[position]
        if offset <= last:
            raise Violation(f"offset {offset} comes after {last}")
        batch = starts.get(body)
        bodies = [body] if batch is None else batch.bodies
        part = [each for _, each in records[position : position + len(bodies)]]
        last = records[position + len(part) - 1][0]
        position += len(part)
        if batch is not None:
            if part != bodies or last != offset + len(bodies) - 1:
                raise Violation(f"{batch} is not whole at {offset}")
            places.setdefault(batch.numbers, []).append(offset)
        elif body in ledger.sent:
            plain.append(body)
        elif offset >= topic.trimmed and body not in ledger.transactional:
            raise Violation(f"a record at {offset} that was never published here: {body[:40]!r}")
    for sent in ledger.sent.values():
        count = plain.count(sent.body)
        must = sent.queue == topic.name and sent.was_confirmed and sent.body not in topic.trimmed_bodies
        if count > 1 or (must and not count):
            raise Violation(f"{sent} is there {count} times")
    return places
