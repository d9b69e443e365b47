"""The crash search over clients of Kafka: no violation in the workloads, and each injected defect is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from states_all import skip_syncs, walk_small
from states_kafka import KAFKA_WORKLOADS
from states_kafka_ledger import Batch, FoundTopic, KafkaLedger, KafkaOutcome, Topic, judge_kafka
from states_ledger import Violation

from amqpd._build import is_compiled
from amqpd.kafka_server import produce
from amqpd.kafka_server.committed_offsets import CommittedOffsets
from amqpd.kafka_server.coordinator import GroupCoordinator
from amqpd.storage.local_log import LocalLog

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.slow
@pytest.mark.parametrize("workload", [each.name for each in KAFKA_WORKLOADS])
def test_crash_states_of_workload_have_no_violation(workload: str) -> None:
    walk_small(workload, 1)


# -- the walk finds defects


def skip_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpd.storage.fsync_thread.write_snapshot", lambda filesystem, path, data: None)


def know_no_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "find_duplicate", lambda last, header: -1)


def answer_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLog, "when_safe", lambda store, offset, call: call(True))


def know_only_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpd.storage.log.producer_state.BATCHES_MAX", 1)


def forget_the_topic_of_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    def committed(coordinator: GroupCoordinator, vhost: object, key: tuple[str, str, str, int]) -> object:
        return coordinator.offsets.of_group(key[0], key[1]).get(key[2:])

    monkeypatch.setattr(GroupCoordinator, "committed", committed)


def read_only_the_first_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = CommittedOffsets._begin_reading

    def begin_reading(offsets: CommittedOffsets, end: int, safe: bool) -> None:
        begin(offsets, max(end - 1, 0), safe)

    monkeypatch.setattr(CommittedOffsets, "_begin_reading", begin_reading)
    monkeypatch.setattr("amqpd.kafka_server.compacted_log.SLICE_BYTES", 100)


def show_offsets_that_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    when_safe = LocalLog.when_safe

    def at_once(store: LocalLog, offset: int, call: Callable[[bool], None]) -> None:
        if "kafka-offsets" in store.log.directory:
            call(True)
        else:
            when_safe(store, offset, call)

    monkeypatch.setattr(LocalLog, "when_safe", at_once)


DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "a stream is not synced": (
        lambda patch: skip_syncs(patch, "/queues/"),
        "batches of Kafka's producers",
        "is lost, or stands elsewhere",
    ),
    "offsets are not synced": (lambda patch: skip_syncs(patch, "kafka-offsets"), "committed offsets", "and may be at"),
    "no snapshot of the producers": (skip_snapshots, "batches, segments roll", "is stored 2 times|with error|, not "),
    "no duplicate is known": (know_no_duplicate, "batches of Kafka's producers", "is answered with error|, not "),
    "one batch is known": (know_only_the_last_batch, "batches of Kafka's producers", "with error 45"),
    "an answer before the sync": (answer_before_the_sync, "batches of Kafka's producers", "is lost|hole"),
    "an offset is visible before the sync": (show_offsets_that_are_not_synced, "committed offsets", "and may be at"),
    "a new topic has old offsets": (
        forget_the_topic_of_an_offset,
        "committed offsets",
        "and may be at|does not exist",
    ),
    "the last offset is not read": (read_only_the_first_offsets, "committed offsets", "and may be at"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_walk_finds_broken_promises(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    if defect == "one batch is known" and is_compiled():
        pytest.skip("compiled code has its constants inside")
    inject, workload, words = DEFECTS[defect]
    inject(monkeypatch)
    with pytest.raises(AssertionError, match=words):
        walk_small(workload, 3)


@pytest.mark.slow
def test_judge_reports_each_kind_of_violation() -> None:
    ledger = KafkaLedger()
    topic = ledger.topics["id"] = Topic("s")
    topic.batches = [
        Batch((7, 0, 0), [b"0.", b"1."], b"", 0),
        Batch((7, 0, 2), [b"2."], b"", 2),
        Batch((7, 0, 3), [b"3."], b""),
    ]
    ledger.committed["g", "id"] = [(1, 2), (2, 3)]
    answers = {(7, 0, 0): (0, 0), (7, 0, 2): (0, 2), (7, 0, 3): (0, 3)}
    records = [(0, b"0."), (1, b"1."), (2, b"2."), (3, b"3.")]
    good = FoundTopic(records[:3], answers, records)

    def judge(found: FoundTopic, committed: int = 2) -> None:
        judge_kafka(KafkaOutcome({"id": found}, {("g", "id"): committed}), ledger)

    judge(good)
    judge(good._replace(before=records), 3)
    wrong = {
        "is lost, or stands elsewhere: None": good._replace(before=records[:2], after=records),
        "is not whole": good._replace(before=[records[0], *records[2:]], after=[records[0], *records[2:]]),
        "comes after": good._replace(before=[records[2], records[0]]),
        "never published": good._replace(after=[*records, (4, b"9.")]),
        "are others": good._replace(before=records, after=records[:3]),
        "answered with error 45": good._replace(answers=answers | {(7, 0, 3): (45, -1)}),
        "offset 4, not 2": good._replace(answers=answers | {(7, 0, 2): (0, 4)}),
        "is never answered": good._replace(answers={}),
        "is not there": good._replace(after=records[:3]),
        "is stored 2 times": good._replace(after=[*records, (4, b"3.")]),
    }
    for words, found in wrong.items():
        with pytest.raises(Violation, match=words):
            judge(found)
    with pytest.raises(Violation, match=r"is at 1, and may be at \[2, 3\]"):
        judge(good, 1)
    with pytest.raises(Violation, match="topic s is lost"):
        judge_kafka(KafkaOutcome({}, {}), ledger)
    topic.batches[1].offset = -1
    del records[2]
    with pytest.raises(Violation, match="has a hole"):
        judge(good._replace(before=records, after=records))
    ledger.deleted.add("id")
    with pytest.raises(Violation, match="deletion was answered"):
        judge(good)
