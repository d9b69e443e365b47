"""The ledger of transactional producers, kept outside the disk, and its judge after a crash.

A producer (a transactional id) asks one request after the other and waits for the answer. After each start it does
again what was not answered; all of its requests may be repeated.

- A reader of committed records sees a transaction whole, in all of its topics, or not at all. With its records come its
  committed offsets. So it is also for a commit that was not answered.
- A commit that was answered is seen. One that was aborted, or is open, or was fenced, is not.
- A transaction that is open goes on after a start: the same producer commits it, and no record is missing or twice.
- An epoch that a newer producer or a time-out has fenced stays fenced, and no epoch is given twice.
- When all transactions have ended, nothing is held back: the last stable offset is the end of the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from states_kafka_ledger import NOTHING, Batch, KafkaLedger, KafkaOutcome, Records, judge_kafka
from states_ledger import Violation

OPEN: Final = "open"
ENDING: Final = "ending"
ENDED: Final = "ended"
Epoch = tuple[int, int]
"""Producer id and epoch."""
NOBODY: Final[Epoch] = (NOTHING, NOTHING)


class WalkTransaction:
    """A transaction.

    Attributes:
        batches: by queue id, in order.
        offsets: (group, queue id) -> offset.
        commits: how it ends, from ENDING on.
        is_fenced: it may have been aborted by another producer, or by its time-out.
    """

    def __init__(self, number: int, producer: Epoch) -> None:
        self.number = number
        self.producer = producer
        self.batches: dict[str, list[Batch]] = {}
        self.offsets: dict[tuple[str, str], int] = {}
        self.state = OPEN
        self.commits = False
        self.is_fenced = False

    def copy(self) -> WalkTransaction:
        other = WalkTransaction(self.number, self.producer)
        other.batches = {key: [each.copy() for each in batches] for key, batches in self.batches.items()}
        other.offsets = dict(self.offsets)
        other.state, other.commits, other.is_fenced = self.state, self.commits, self.is_fenced
        return other

    def __repr__(self) -> str:
        fenced = ", fenced" if self.is_fenced else ""
        return f"transaction {self.number} of {self.producer}: {self.state}, commits {self.commits}{fenced}"


class WalkProducer:
    """A transactional id.

    Attributes:
        producer: as answered last.
        is_starting: a newer producer was asked for, and not answered: its epoch may have fenced this one.
        refused: fenced epochs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.producer: Epoch = NOBODY
        self.is_starting = False
        self.refused: list[Epoch] = []
        self.transactions: list[WalkTransaction] = []
        self.sequences: dict[str, int] = {}

    @property
    def last(self) -> WalkTransaction | None:
        """The transaction that has not ended."""
        last = self.transactions[-1] if self.transactions else None
        return None if last is None or last.state == ENDED else last

    def copy(self) -> WalkProducer:
        other = WalkProducer(self.name)
        other.producer, other.refused = self.producer, list(self.refused)
        other.is_starting = self.is_starting
        other.transactions = [each.copy() for each in self.transactions]
        other.sequences = dict(self.sequences)
        return other


class TransactionLedger(KafkaLedger):
    """The expected state. producers: by transactional id."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: dict[str, WalkProducer] = {}

    def copy(self) -> Self:
        other = super().copy()
        other.producers = {name: each.copy() for name, each in self.producers.items()}
        return other

    def is_there(self, queue_id: str) -> bool:
        return queue_id in self.topics and not self.topics[queue_id].is_deleting

    def asked(self) -> tuple[object, ...]:
        """See BrokerLedger."""
        found: list[object] = [super().asked(), tuple(self.topics), tuple(self.deleted)]
        for each in self.producers.values():
            last = each.last
            found.append((each.name, each.producer, each.is_starting, tuple(each.refused), len(each.transactions)))
            if last is not None:
                offsets = tuple(batch.offset for batches in last.batches.values() for batch in batches)
                found.append((last.state, last.commits, last.is_fenced, offsets, tuple(last.offsets.items())))
        return tuple(found)


class CommittedView(NamedTuple):
    """A view of the topics through readers of committed records.

    records, stable: by queue id; the records are below the last stable offset. offsets: committed ones, by group and
    queue id.
    """

    records: dict[str, Records]
    stable: dict[str, int]
    offsets: dict[tuple[str, str], int]


class TransactionOutcome(NamedTuple):
    """Observations of clients after a start.

    before, after: before and after the producers have ended their open transactions.
    refused: the errors for fenced epochs. held: topics whose last stable offset is not the end of the log.
    """

    kafka: KafkaOutcome
    before: CommittedView
    refused: dict[Epoch, int]
    after: CommittedView
    held: list[str]


def judge_transactions(outcome: TransactionOutcome, ledger: TransactionLedger) -> None:
    """Raises: Violation."""
    judge_kafka(outcome.kafka, ledger)
    for producer in ledger.producers.values():
        for each in producer.transactions:
            _judge_before(each, outcome.before, ledger)
            _judge_after(each, outcome.after, ledger)
        for epoch in producer.refused:
            if outcome.refused.get(epoch) == 0:
                raise Violation(f"{producer.name}: the fenced epoch {epoch} is accepted")
    for view in (outcome.before, outcome.after):
        for queue_id, records in view.records.items():
            bodies = [body for _, body in records]
            if len(set(bodies)) < len(bodies):
                raise Violation(f"readers of committed records see a record twice: {[body[:8] for body in bodies]}")
            if queue_id in ledger.topics:
                _judge_order(bodies, queue_id, ledger)
    if outcome.held:
        raise Violation(f"all transactions have ended, and records of {outcome.held} are held back")
    for queue_id, topic in ledger.topics.items():
        seen = {body for _, body in outcome.after.records.get(queue_id, ())}
        for batch in topic.batches:
            if batch.offset >= topic.trimmed and not topic.is_deleting and not seen.issuperset(batch.bodies):
                raise Violation(f"{batch} is not seen by readers of committed records")


def _is_seen(transaction: WalkTransaction, view: CommittedView, ledger: TransactionLedger) -> bool | None:
    """Return whether readers see the transaction, None if it has no records. Raises: Violation if they see a part."""
    counts: dict[str, tuple[int, int]] = {}
    for queue_id, batches in transaction.batches.items():
        if ledger.is_there(queue_id):
            stable = view.stable.get(queue_id, 0)  # what is behind it waits for another transaction
            seen = {body for _, body in view.records.get(queue_id, ())}
            bodies = {body for batch in batches if NOTHING < batch.offset < stable for body in batch.bodies}
            bodies.update(body for batch in batches for body in batch.bodies if body in seen)
            if bodies:
                counts[ledger.topics[queue_id].name] = (len(bodies & seen), len(bodies))
    whole = [found == count for found, count in counts.values()]
    if any(0 < found < count for found, count in counts.values()) or len(set(whole)) > 1:
        raise Violation(f"{transaction}: readers see a part, of each topic {counts}")
    return whole[0] if whole else None


def _judge_before(transaction: WalkTransaction, view: CommittedView, ledger: TransactionLedger) -> None:
    seen = _is_seen(transaction, view, ledger)
    may_be = transaction.commits and not transaction.is_fenced and transaction.state != OPEN
    if seen and not may_be:
        raise Violation(f"{transaction} is seen")
    if seen is False and may_be and transaction.state == ENDED:
        raise Violation(f"{transaction} is lost")
    if transaction.state == ENDING and seen is not None:
        for (group, queue_id), offset in transaction.offsets.items():
            if ledger.is_there(queue_id) and (view.offsets.get((group, queue_id)) == offset) != seen:
                raise Violation(f"{transaction}: its records are seen: {seen}, the offset of group {group} differs")


def _judge_after(transaction: WalkTransaction, view: CommittedView, ledger: TransactionLedger) -> None:
    seen = _is_seen(transaction, view, ledger)
    must_be = not transaction.is_fenced and (transaction.commits or transaction.state == OPEN)
    if seen is not None and seen != must_be:
        raise Violation(f"{transaction} was ended after a start: its records are seen: {seen}")
    if must_be and transaction.state != ENDED:
        for (group, queue_id), offset in transaction.offsets.items():
            if ledger.is_there(queue_id) and view.offsets.get((group, queue_id)) != offset:
                raise Violation(f"{transaction} was committed after a start, and group {group} is not at {offset}")


def _judge_order(bodies: list[bytes], queue_id: str, ledger: TransactionLedger) -> None:
    """Check that the records of each producer come in their order, and that all were sent."""
    position = {body: number for number, body in enumerate(bodies)}
    known = set(ledger.sent) | {body for batch in ledger.topics[queue_id].batches for body in batch.bodies}
    for producer in ledger.producers.values():
        batches = [batch for each in producer.transactions for batch in each.batches.get(queue_id, ())]
        own = [body for batch in batches for body in batch.bodies]
        known.update(own)
        places = [position[body] for body in own if body in position]
        if places != sorted(places):
            raise Violation(f"the records of {producer.name} are in another order: {places}")
    unknown = [body for body in bodies if body not in known]
    if unknown:
        raise Violation(f"readers of committed records see {unknown[0][:20]!r}, which was never sent")
