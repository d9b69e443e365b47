"""The crash search over transactional producers: no violation in the workloads, and each injected defect is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from states_all import skip_syncs, walk_small
from states_kafka_ledger import Batch, KafkaOutcome, Topic
from states_ledger import Violation
from states_transactions import TRANSACTION_WORKLOADS
from states_transactions_ledger import (
    ENDED,
    ENDING,
    OPEN,
    CommittedView,
    TransactionLedger,
    TransactionOutcome,
    WalkProducer,
    WalkTransaction,
    judge_transactions,
)

from amqpd._build import is_compiled
from amqpd.kafka_server import transaction_coordinator, transactions
from amqpd.kafka_server.committed_offsets import CommittedOffsets
from amqpd.kafka_server.transaction_coordinator import TransactionCoordinator
from amqpd.kafka_server.transaction_log import TransactionLog
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.batch import marker_batch
from amqpd.storage.log.log import Log
from amqpd.storage.log.producer_state import Producers

FIRST, ROLL, FENCED = (each.name for each in TRANSACTION_WORKLOADS)


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.slow
@pytest.mark.parametrize("workload", [each.name for each in TRANSACTION_WORKLOADS])
def test_crash_states_of_workload_have_no_violation(workload: str) -> None:
    walk_small(workload, 2, moments=0.2)


# -- the walk finds defects


def answer_states_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    when_safe = LocalLog.when_safe

    def at_once(store: LocalLog, offset: int, call: Callable[[bool], None]) -> None:
        if "kafka-transactions" in store.log.directory:
            call(True)
        else:
            when_safe(store, offset, call)

    monkeypatch.setattr(LocalLog, "when_safe", at_once)


def answer_before_the_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    written = TransactionCoordinator._written

    def answered(coordinator: Any, entry: Any, transaction: Any, done: Any, safe: bool) -> None:
        if safe and transaction.state.is_prepared:
            done(0)
            done = _ignore
        written(coordinator, entry, transaction, done, safe)

    monkeypatch.setattr(TransactionCoordinator, "_written", answered)


def leave_decided_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not complete what is decided."""
    proceed = TransactionCoordinator._continue

    def only_new(coordinator: Any, entry: Any) -> None:
        if coordinator._log.found:  # `on_loaded` goes on with what was read
            return
        proceed(coordinator, entry)

    monkeypatch.setattr(TransactionCoordinator, "_continue", only_new)


def forget_one_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    run = transaction_coordinator._Completion.run

    def run_without(completion: Any) -> None:
        if len(completion._partitions) > 1:
            completion._partitions.pop()
            completion._left -= 1
        run(completion)

    monkeypatch.setattr(transaction_coordinator._Completion, "run", run_without)


def commit_what_was_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    def always_commit(writer: Any, producer_id: int, epoch: int, commits: bool, now_ms: int) -> bytes:
        return marker_batch(writer, producer_id, epoch, True, now_ms)

    monkeypatch.setattr(transaction_coordinator, "marker_batch", always_commit)


def show_open_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "stable_end", lambda log: log.watermark.offset)


def forget_open_ones_in_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Producers.encode
    monkeypatch.setattr(Producers, "encode", lambda producers, end, _transactions=None: encode(producers, end, None))


def fence_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_epoch(current: Any, producer_id: int, _epoch: int) -> int:
        return 0 if current is not None and current.producer_id == producer_id else 49

    monkeypatch.setattr(transactions, "producer_error", any_epoch)


def give_the_epoch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    init = transactions.init_producer

    def same_epoch(current: Any, *others: Any) -> Any:
        found = init(current, *others)
        if current is None or isinstance(found, int) or found.state is not transactions.TransactionState.EMPTY:
            return found
        return found._replace(epoch=current.epoch)

    monkeypatch.setattr(transactions, "init_producer", same_epoch)


def lose_pending_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not read the offsets of open transactions."""
    take = CommittedOffsets.take

    def take_others(offsets: CommittedOffsets, key: bytes, value: bytes | None) -> bool:
        return True if key[:1] == b"\x02" else take(offsets, key, value)

    monkeypatch.setattr(CommittedOffsets, "take", take_others)


def commit_offsets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """TxnOffsetCommit commits the offsets."""
    monkeypatch.setattr(
        CommittedOffsets, "add_pending", lambda offsets, _producer, changes, done: offsets.change(changes, done)
    )


def read_only_the_first_states(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TransactionLog._begin_reading

    def begin_reading(log: TransactionLog, end: int, safe: bool) -> None:
        begin(log, max(end - 1, 0), safe)

    monkeypatch.setattr(TransactionLog, "_begin_reading", begin_reading)
    monkeypatch.setattr("amqpd.kafka_server.compacted_log.SLICE_BYTES", 100)


def never_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "time_out", lambda _current, _now_ms: None)


def _ignore(_error: int) -> None:
    """Do nothing: it is answered."""


COMPILED = ("an open transaction is seen", "snapshots do not name open transactions")
DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "states are not synced": (lambda patch: skip_syncs(patch, "kafka-transactions"), FIRST, "error|lost|had|seen"),
    "pending offsets are not synced": (
        lambda patch: skip_syncs(patch, "kafka-offsets"),
        FIRST,
        "may be at|is not at|differs",
    ),
    "markers are not synced": (lambda patch: skip_syncs(patch, "/queues/"), FIRST, "lost|error|part|another offset"),
    "a state is answered before its sync": (answer_states_before_the_sync, FIRST, "error|lost|had|part|seen"),
    "a commit is answered before its markers": (answer_before_the_markers, FIRST, "error 51|is lost|differs|may be at"),
    "a decided transaction is not completed": (leave_decided_ones, FIRST, "part|error 51|never answered"),
    "one marker is missing": (forget_one_marker, FIRST, "part|held back|is lost"),
    "an aborted transaction is committed": (commit_what_was_aborted, FIRST, "is seen|seen: True"),
    "an open transaction is seen": (show_open_ones, FIRST, "is seen|part"),
    "snapshots do not name open transactions": (
        forget_open_ones_in_snapshots,
        ROLL,
        "is seen|part|seen: True|is lost",
    ),
    "a fenced epoch is accepted": (fence_nobody, FENCED, "the fenced epoch|error"),
    "an epoch is given twice": (give_the_epoch_again, FENCED, "a new producer gets"),
    "pending offsets are not read": (lose_pending_offsets, FIRST, "is not at|differs|may be at"),
    "pending offsets are committed": (commit_offsets_at_once, FIRST, "may be at|differs"),
    "the last state is not read": (read_only_the_first_states, FIRST, "error|had|part|lost|held"),
    "no transaction takes too long": (never_time_out, FENCED, "the fenced epoch|fenced was ended"),
}


SLOW = ("pending offsets are not read", "pending offsets are not synced", "the last state is not read")


@pytest.mark.parametrize(
    "defect", [pytest.param(each, marks=pytest.mark.slow if each in SLOW else ()) for each in DEFECTS]
)
def test_walk_finds_broken_promises(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    if defect in COMPILED and is_compiled():
        pytest.skip("compiled code calls itself")
    inject, workload, words = DEFECTS[defect]
    inject(monkeypatch)
    with pytest.raises(AssertionError, match=words):
        walk_small(workload, 20, moments=0.8)


@pytest.mark.slow
def test_judge_reports_each_kind_of_violation() -> None:
    ledger = TransactionLedger()
    for queue_id in ("s", "t"):
        ledger.topics[queue_id] = Topic(queue_id)
    producer = ledger.producers["one"] = WalkProducer("one")
    producer.producer = (7, 1)
    producer.refused = [(7, 0)]
    done, ending, aborted = (WalkTransaction(number, (7, 1)) for number in range(3))
    producer.transactions = [done, aborted, ending]
    done.batches = {"s": [Batch((7, 1, 0), [b"0.", b"1."], b"", 0)]}
    done.state, done.commits = ENDED, True
    aborted.batches = {"s": [Batch((7, 1, 2), [b"2."], b"", 3)]}
    aborted.state = ENDED
    ending.batches = {"s": [Batch((7, 1, 3), [b"3."], b"", 5)], "t": [Batch((7, 1, 0), [b"4."], b"", 0)]}
    ending.offsets = {("g", "s"): 9}
    ending.state, ending.commits = ENDING, True
    first = [(0, b"0."), (1, b"1.")]
    all_of_s, stable = [*first, (5, b"3.")], {"s": 7, "t": 2}
    offsets = {("g", "s"): 9}
    kafka = KafkaOutcome({}, {})
    before = CommittedView({"s": first, "t": []}, stable, {})
    after = CommittedView({"s": all_of_s, "t": [(0, b"4.")]}, stable, offsets)

    def judge(**changes: Any) -> None:
        judge_transactions(TransactionOutcome(kafka, before, {(7, 0): 90}, after, [])._replace(**changes), ledger)

    for topic in ledger.topics.values():
        topic.is_deleting = True  # `judge_kafka` need not find them
    is_there = TransactionLedger.is_there
    TransactionLedger.is_there = lambda _ledger, _queue_id: True  # type: ignore[method-assign]
    try:
        judge()
        judge(before=after)
        wrong: dict[str, dict[str, Any]] = {
            "readers see a part": {"before": before._replace(records={"s": all_of_s, "t": []})},
            "is lost": {"before": before._replace(records={"s": [], "t": []})},
            "transaction 2 .* is seen": {"before": before._replace(records={"s": [*first, (3, b"2.")], "t": []})},
            "the offset of group g differs": {"before": before._replace(offsets=offsets)},
            "its records are seen: False": {"after": before._replace(offsets=offsets)},
            "group g is not at 9": {"after": after._replace(offsets={})},
            "the fenced epoch": {"refused": {(7, 0): 0}},
            "a record twice": {"before": before._replace(records={"s": [*first, (2, b"1.")], "t": []})},
            "another order": {"before": before._replace(records={"s": first[::-1], "t": []})},
            "never sent": {"before": before._replace(records={"s": [*first, (6, b"x")], "t": []})},
            "are held back": {"held": ["s"]},
        }
        for words, changes in wrong.items():
            with pytest.raises(Violation, match=words):
                judge(**changes)
        ending.state, ending.commits = OPEN, False
        with pytest.raises(Violation, match="is seen"):
            judge(before=after)
    finally:
        TransactionLedger.is_there = is_there  # type: ignore[method-assign]
