"""The ledger of share groups over streams, kept outside the disk, and its judge after a crash.

After each start a member of each group acquires all that it gets:

- A record whose accept or reject was answered does not come again.
- Every other record comes again from the group's begin on: acquired, released, or new. Only one that was tried
  `ATTEMPTS_MAX` times, or whose accept or reject was asked for, may be missing.
- Its delivery count is higher than in the last answer that wrote it, and at most one more than the highest ever.
- A group begins at the end of the log of its first use, and nothing from before comes. A new topic of an old name has
  nothing of the old state.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from states_kafka_ledger import KafkaLedger, KafkaOutcome, judge_kafka
from states_ledger import Violation

from amqpd.kafka_server.share_state import ATTEMPTS_MAX

Place = tuple[str, str]
"""Group and queue id."""
Acquired = list[tuple[int, int]]
"""Offsets and delivery counts."""


class SharedRecord:
    """A record in a group.

    Attributes:
        most: the highest delivery count so far.
        written: the delivery count that an answer has promised.
        is_final: its accept or reject was answered.
        may_be_final: that was asked for, or it was tried ATTEMPTS_MAX times.
    """

    __slots__ = ("is_final", "may_be_final", "most", "written")

    def __init__(self) -> None:
        self.most = self.written = 0
        self.is_final = self.may_be_final = False

    def copy(self) -> SharedRecord:
        other = SharedRecord()
        for name in SharedRecord.__slots__:
            setattr(other, name, getattr(self, name))
        return other


class SharedStream:
    """A stream in a group.

    Attributes:
        first: nothing from before this offset comes.
        certain: everything from this offset on comes; -1 before the group's begin was answered.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.certain = -1
        self.records: dict[int, SharedRecord] = {}

    def record(self, offset: int) -> SharedRecord:
        return self.records.setdefault(offset, SharedRecord())

    def copy(self) -> SharedStream:
        other = SharedStream(self.first)
        other.certain = self.certain
        other.records = {offset: each.copy() for offset, each in self.records.items()}
        return other


class ShareLedger(KafkaLedger):
    """The expected state. shared: by group and queue id."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[Place, SharedStream] = {}

    def copy(self) -> Self:
        other = super().copy()
        other.shared = {place: each.copy() for place, each in self.shared.items()}
        return other

    def judge_acquired(self, place: Place, acquired: Acquired) -> None:
        """Judge what a member acquires. Raises: Violation."""
        stream = self.shared.get(place)
        if acquired and stream is None:
            raise Violation(f"a group that never used a stream gets {acquired[0]}")
        if stream is None:
            return
        offsets = [offset for offset, _ in acquired]
        if offsets != sorted(set(offsets)):
            raise Violation(f"a member gets the offsets {offsets}")
        for offset, count in acquired:
            record = stream.records.get(offset, SharedRecord())
            if offset < stream.first:
                raise Violation(f"the record at {offset} comes, from before the group's begin at {stream.first}")
            if record.is_final:
                raise Violation(f"the record at {offset} is back, whose acknowledgement was answered")
            if not record.written < count <= record.most + 1:
                most = f"written was {record.written}, the highest {record.most}"
                raise Violation(f"the record at {offset} has the delivery count {count}; {most}")


class ShareOutcome(NamedTuple):
    """Observations of clients after a start. acquired: all that a member gets, by group and queue id."""

    kafka: KafkaOutcome
    acquired: dict[Place, Acquired]


def judge_share(outcome: ShareOutcome, ledger: ShareLedger) -> None:
    """Raises: Violation."""
    judge_kafka(outcome.kafka, ledger)
    for place, acquired in outcome.acquired.items():
        topic = ledger.topics.get(place[1])
        if topic is None or topic.is_deleting:
            continue
        ledger.judge_acquired(place, acquired)
        stream = ledger.shared.get(place)
        if stream is None or stream.certain < 0:
            continue
        came = {offset for offset, _ in acquired}
        for offset, body in outcome.kafka.topics[place[1]].before:
            record = stream.records.get(offset, SharedRecord())
            if offset < stream.certain or record.is_final or record.may_be_final or offset in came:
                continue
            raise Violation(f"group {place[0]} does not get the record {body[:8]!r} at {offset} any more")


def note_tried(record: SharedRecord) -> None:
    """A record is released: after the last attempt it is final."""
    if record.most >= ATTEMPTS_MAX:
        record.may_be_final = True
