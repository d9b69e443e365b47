"""A broker's life with transactional producers: the real handlers of their requests, and of Fetch.

Each action waits for its answer, as clients do, and does nothing new if it is repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from states_broker_ledger import Rows
from states_disk import Disk, Image
from states_kafka_ledger import NOTHING, Batch, Records
from states_kafka_life import FETCH, KafkaLife, find
from states_ledger import Violation
from states_pace import SETTLE_MS
from states_transactions_ledger import (
    ENDED,
    ENDING,
    NOBODY,
    OPEN,
    CommittedView,
    Epoch,
    TransactionLedger,
    TransactionOutcome,
    WalkProducer,
    WalkTransaction,
)

from amqpd.storage.log.batch import BatchHeader, is_commit_marker

INIT, ADD, ADD_OFFSETS, END, COMMIT_OFFSETS = 22, 24, 25, 26, 28
TIMEOUT_MS: Final = 60_000
_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")


class TransactionLife(KafkaLife):
    """A `KafkaLife` with transactional producers."""

    def __init__(self, disk: Disk, ledger: TransactionLedger, boot: int, **arguments: Any) -> None:
        super().__init__(disk, ledger, boot, **arguments)
        self.book = ledger
        if self.coordinator.transactions.load_error():
            self.pass_time(2 * SETTLE_MS)
        if self.coordinator.transactions.load_error():
            raise Violation("the states of transactions cannot be read on a disk that does not fail")

    def _error_of(
        self, key: int, request: SimpleNamespace, then: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Ask and wait for the answer; return its fields. then: called with the answer."""
        found: list[dict[str, Any]] = []

        def answered(fields: dict[str, Any]) -> None:
            found.append(fields)
            if then is not None:
                then(fields)

        self._ask(key, request, b"", answered)
        self.turns()
        if not found:
            self.pass_time(2 * SETTLE_MS)  # a paced life
        if not found:
            raise Violation(f"the request {key} is never answered: {request}")
        return found[0]

    def _check(self, error: int, what: object) -> None:
        if error:
            raise Violation(f"{what} is answered with error {error}")
        self.book.version += 1

    # -- producers

    def producer(self, name: str) -> WalkProducer:
        return self.book.producers.setdefault(name, WalkProducer(name))

    def init(self, name: str) -> None:
        """Begin a new producer of this id. It fences the old one, and aborts its transaction."""
        producer = self.producer(name)
        last = producer.last
        self.book.version += 1
        producer.is_starting = True
        if last is not None and last.state == OPEN:
            last.is_fenced = True
        request = SimpleNamespace(
            transactional_id=name, transaction_timeout_ms=TIMEOUT_MS, producer_id=NOTHING, producer_epoch=NOTHING
        )
        answer = self._error_of(INIT, request)
        self._check(answer["error_code"], f"InitProducerId of {name}")
        found = (answer["producer_id"], answer["producer_epoch"])
        if producer.producer != NOBODY:
            if found[0] != producer.producer[0] or found[1] <= producer.producer[1]:
                raise Violation(f"{name} had {producer.producer}, and a new producer gets {found}")
            producer.refused = [*producer.refused, producer.producer][-3:]
        producer.producer = found
        producer.is_starting = False
        producer.sequences.clear()
        if last is not None:
            last.state = ENDED

    def transaction(self, name: str) -> WalkTransaction:
        """Return the transaction that has not ended."""
        last = self.producer(name).last
        assert last is not None
        return last

    def begin(self, name: str) -> WalkTransaction:
        producer = self.producer(name)
        assert producer.last is None
        self.book.number += 1
        transaction = WalkTransaction(self.book.number, producer.producer)
        producer.transactions.append(transaction)
        return transaction

    def _identity(self, name: str, prefix: str = "") -> dict[str, Any]:
        producer_id, epoch = self.producer(name).producer
        return {
            f"{prefix}transactional_id": name,
            f"{prefix}producer_id": producer_id,
            f"{prefix}producer_epoch": epoch,
        }

    def add(self, name: str, topic: str) -> None:
        """Add a topic to the transaction."""
        topics = [SimpleNamespace(name=topic, partitions=[0])]
        request = SimpleNamespace(
            v3_and_below_topics=topics, validate_only=False, **self._identity(name, "v3_and_below_")
        )
        answer = self._error_of(ADD, request)["results_by_topic_v3_and_below"][0]["results_by_partition"][0]
        self._check(answer["partition_error_code"], f"AddPartitionsToTxn of {name}")

    def write(self, name: str, topic: str, count: int, size: int) -> None:
        """Send the next batch of the transaction, and wait for its answer."""
        producer = self.producer(name)
        transaction = self.transaction(name)
        producer_id, epoch = producer.producer
        first = producer.sequences.get(self.vhost.queues[topic].id, 0)
        producer.sequences[self.vhost.queues[topic].id] = first + count
        ledger = self.book
        builder = DefaultRecordBatchBuilder(2, 0, 1, producer_id, epoch, first, 1 << 20)
        bodies = []
        for number in range(count):
            ledger.number += 1
            bodies.append((b"%d." % ledger.number).ljust(size, b"-"))
            builder.append(number, self.clock.now_ms, b"key", bodies[-1], [])
        batch = Batch((producer_id, epoch, first), bodies, bytes(builder.build()))
        ledger.version += 1
        ledger.transactional.update(bodies)
        transaction.batches.setdefault(self.vhost.queues[topic].id, []).append(batch)
        self.ask_write(name, topic, batch)

    def ask_write(self, name: str, topic: str, batch: Batch) -> None:
        """Send a batch, also again."""
        found: list[int] = []

        def answered(error: int, offset: int) -> None:
            self._check(error, f"{batch} of {name}")
            if batch.offset not in (NOTHING, offset):
                raise Violation(f"{batch} of {name} is answered with another offset: {offset}")
            batch.offset = offset
            found.append(offset)

        self.ask_produce(topic, batch, answered, name)
        self.turns()
        if not found:
            self.pass_time(2 * SETTLE_MS)
        if not found:
            raise Violation(f"{batch} of {name} is never answered")

    def add_offset(self, name: str, group: str, topic: str, offset: int) -> None:
        """Add an offset of a group to the transaction."""
        transaction = self.transaction(name)
        self.book.version += 1
        transaction.offsets[group, self.vhost.queues[topic].id] = offset
        self.ask_offset(name, group, topic, offset)

    def ask_offset(self, name: str, group: str, topic: str, offset: int) -> None:
        """Add an offset, also again."""
        answer = self._error_of(ADD_OFFSETS, SimpleNamespace(group_id=group, **self._identity(name)))
        self._check(answer["error_code"], f"AddOffsetsToTxn of {name}")
        partition = SimpleNamespace(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = SimpleNamespace(
            group_id=group,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[SimpleNamespace(name=topic, partitions=[partition])],
            **self._identity(name),
        )
        answer = self._error_of(COMMIT_OFFSETS, request)
        self._check(answer["topics"][0]["partitions"][0]["error_code"], f"TxnOffsetCommit of {name}")

    def end(self, name: str, commits: bool) -> None:
        """Commit or abort the transaction, also again."""
        transaction = self.transaction(name)
        ledger = self.book
        ledger.version += 1
        transaction.state, transaction.commits = ENDING, commits
        added = []
        for place, offset in transaction.offsets.items() if commits else ():
            possible = ledger.committed.setdefault(place, [(0, NOTHING)])
            if offset not in [value for _, value in possible]:
                possible.append((ledger.number, offset))
            added.append((possible, offset))

        def answered(fields: dict[str, Any]) -> None:
            self._check(fields["error_code"], f"EndTxn of {transaction}")
            transaction.state = ENDED
            for possible, offset in added:
                possible[:] = [each for each in possible if each[1] == offset]

        self.ask_end(name, self.producer(name).producer, commits, answered)

    def ask_end(
        self, name: str, producer: Epoch, commits: bool, then: Callable[[dict[str, Any]], None] | None = None
    ) -> int:
        """Ask for the end of a transaction, and return the error."""
        request = SimpleNamespace(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commits
        )
        return int(self._error_of(END, request, then)["error_code"])

    def time_out(self, name: str) -> None:
        """Let the transaction take too long: it is aborted, and its producer is fenced."""
        producer = self.producer(name)
        transaction = self.transaction(name)
        self.book.version += 1
        transaction.is_fenced = True
        self.leap(TIMEOUT_MS + 1000)
        self.turns()
        self.book.version += 1
        producer.refused = [*producer.refused, producer.producer][-3:]

    def resume(self, name: str) -> None:
        """Do again, after a start, what may not have been answered."""
        producer = self.producer(name)
        transaction = producer.last
        is_fenced = transaction is not None and transaction.is_fenced
        if producer.producer == NOBODY or producer.is_starting or is_fenced:
            self.init(name)
        elif transaction is not None and transaction.state == ENDING:
            self.end(name, transaction.commits)
        elif transaction is not None:
            for queue_id, batches in transaction.batches.items():
                if self.book.is_there(queue_id):
                    topic = self.book.topics[queue_id].name
                    self.add(name, topic)
                    for batch in batches:
                        self.ask_write(name, topic, batch)
            for (group, queue_id), offset in transaction.offsets.items():
                if self.book.is_there(queue_id):
                    self.ask_offset(name, group, self.book.topics[queue_id].name, offset)

    def has_work(self, transaction: WalkTransaction | None) -> bool:
        """Return whether there is something to commit: the broker refuses to end a transaction without it."""
        if transaction is None:
            return False
        return any(map(self.book.is_there, transaction.batches)) or any(
            self.book.is_there(queue_id) for _, queue_id in transaction.offsets
        )

    # -- readers

    def read_committed(self, name: str) -> tuple[Records, int, int]:
        """Return what a consumer of committed records gets, the last stable offset and the high watermark."""
        topic = name.encode()
        self.store(name)
        frame = struct.pack(">iiiibiii", -1, 0, 0, 1 << 24, 1, 0, -1, 1)
        frame += struct.pack(f">h{len(topic)}si", len(topic), topic, 1) + struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 24)
        found: list[bytes] = []
        self._ask(FETCH, None, frame, found.append)
        self.turns()
        (body,) = found
        at = 10 + 4 + 2 + len(topic) + 4
        _, error, high, stable, _ = _PARTITION.unpack_from(body, at)
        if error:
            raise Violation(f"Fetch of {name} is answered with error {error}")
        at += _PARTITION.size
        (count,) = struct.unpack_from(">i", body, at)
        aborted = [_ABORTED.unpack_from(body, at + 4 + number * _ABORTED.size) for number in range(max(count, 0))]
        at += 4 + max(count, 0) * _ABORTED.size + 4
        (size,) = struct.unpack_from(">i", body, at)
        return _committed_records(body[at + 4 : at + 4 + size], aborted), stable, high

    def view(self) -> tuple[CommittedView, list[str]]:
        """Return what readers find, and the topics in which something is held back. What a kill left is synced first:
        until then a reader sees a commit up to the high watermark.
        """
        for name in self.vhost.queues:
            self.store(name)
        self.storage.commits.flush()
        self.turns()
        records: dict[str, Records] = {}
        stable: dict[str, int] = {}
        held = []
        for name, queue in self.vhost.queues.items():
            records[queue.id], stable[queue.id], end = self.read_committed(name)
            if stable[queue.id] != end:
                held.append(name)
        return CommittedView(records, stable, self.committed()), held


def _committed_records(data: bytes, aborted: list[tuple[int, int]]) -> Records:
    """Return offsets and values as a client does that leaves out aborted transactions."""
    found: Records = []
    producers: set[int] = set()
    at = 0
    while at < len(data):
        header = BatchHeader(data, at)
        batch = data[at : at + header.size]
        at += header.size
        producers.update(producer for producer, first in aborted if first <= header.base_offset)
        if header.is_control():
            if not is_commit_marker(batch, 0):
                producers.discard(header.producer_id)
                aborted = [each for each in aborted if each[0] != header.producer_id or each[1] > header.base_offset]
        elif not (header.is_of_producer_transaction() and header.producer_id in producers):
            records = MemoryRecords(batch).next_batch()
            found += [(record.offset, record.value) for record in records]
    return found


def look(image: Image, rows: Rows, boot: int, segment_size_bytes: int, ledger: TransactionLedger) -> TransactionOutcome:
    """Start on an image; then all producers end their transactions. Raises: Violation, if they cannot."""
    copy = ledger.copy()
    copy.rows = [rows]
    life = TransactionLife(Disk(image), copy, boot, segment_size_bytes=segment_size_bytes)
    before, _ = life.view()
    refused = {
        epoch: life.ask_end(name, epoch, True) for name, each in copy.producers.items() for epoch in each.refused
    }
    kafka = find(life, ledger)
    for name, producer in copy.producers.items():
        life.resume(name)
        if life.has_work(producer.last):
            life.end(name, True)
        life.init(name)
    after, held = life.view()
    life.forget()
    return TransactionOutcome(kafka, before, refused, after, held)
