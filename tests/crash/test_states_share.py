"""The crash search over share groups of streams: no violation in the workloads, and each injected defect is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from states_all import skip_syncs, walk_small
from states_kafka import PRODUCERS
from states_kafka_ledger import FoundTopic, KafkaOutcome, Topic
from states_ledger import Violation
from states_share import SHARE_WORKLOADS, ShareSearch, ShareWorkload
from states_share_ledger import Acquired, SharedStream, ShareLedger, ShareOutcome, judge_share
from states_share_life import ShareLife

from amqpd.kafka_server import share_state
from amqpd.kafka_server.committed_offsets import CommittedOffsets
from amqpd.kafka_server.share_state import ACQUIRED, UPDATING, ShareState
from amqpd.kafka_server.share_states import ShareStates
from amqpd.kafka_server.share_stream import ShareStream
from amqpd.kafka_server.share_wire import ACCEPT, OffsetRange

SHARED, DELETED = (each.name for each in SHARE_WORKLOADS)


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.slow
@pytest.mark.parametrize("workload", [each.name for each in SHARE_WORKLOADS])
def test_crash_states_of_workload_have_no_violation(workload: str) -> None:
    walk_small(workload, 3, moments=0.2)


def acknowledge_what_retention_removed(life: ShareLife, _rng: random.Random) -> Iterator[None]:
    life.stream("s")
    member = ("a", "s", "a")
    life.join(member)
    for _ in range(4):
        life.produce("s", PRODUCERS[0], 2, 300)
        life.turns()
    life.take(member, 2)
    removed = list(life.has[member])
    life.trim("s")
    life.take(member, 2)
    yield
    life.acknowledge(member, removed, ACCEPT)
    yield


def test_answer_without_a_write_promises_no_delivery_counts() -> None:
    workload: Any = ShareWorkload("removed", acknowledge_what_retention_removed, 2000, ends=("kill",), paced=False)
    ShareSearch(1, set(), moments=0.2, share=1.0, draws=1, lived_in=0.0).run(workload)


# -- the walk finds defects


def answer_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    append = CommittedOffsets.append

    def at_once(offsets: CommittedOffsets, count: int, records: Any, done: Callable[[bool], None]) -> None:
        append(offsets, count, records, lambda _safe: None)
        done(True)

    monkeypatch.setattr(CommittedOffsets, "append", at_once)


def write_no_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    write = ShareStream._write

    def only_the_first(stream: ShareStream, state: ShareState, done: Callable[[bool], None]) -> None:
        if stream.state is None:
            write(stream, state, done)
        else:
            done(True)

    monkeypatch.setattr(ShareStream, "_write", only_the_first)


def write_no_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(stream: ShareStream, state: ShareState) -> None:
        stream.state = state

    monkeypatch.setattr(ShareStream, "_begin", begin)


def write_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = ShareState.ranges
    monkeypatch.setattr(ShareState, "ranges", lambda state: [each._replace(deliveries=0) for each in ranges(state)])


def write_acquired_as_final(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(state: ShareState) -> list[OffsetRange]:
        found = [(offset, record) for offset, record in sorted(state._open.items()) if record.state != ACQUIRED]
        return [
            OffsetRange(offset, offset, record.count)
            for offset, record in found
            if record.state != UPDATING or record.stays
        ]

    monkeypatch.setattr(ShareState, "ranges", without)


def write_released_as_final(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(state: ShareState) -> list[OffsetRange]:
        found = [(offset, record) for offset, record in sorted(state._open.items()) if record.state != UPDATING]
        return [OffsetRange(offset, offset, record.count) for offset, record in found]

    monkeypatch.setattr(ShareState, "ranges", without)


def write_a_later_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(state: ShareState) -> bytes:
        parts = [share_state._HEAD.pack(1, state.end + 1)]
        return b"".join([*parts, *(share_state._RANGE.pack(*each) for each in state.ranges())])

    monkeypatch.setattr(ShareState, "snapshot", snapshot)


def keep_the_state_of_a_deleted_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(states: ShareStates, vhost: Any, group: str, name: str, partition: int) -> object:
        return states._tables.get(vhost.id, {}).get(group, {}).get((name, partition))

    monkeypatch.setattr(ShareStates, "find", find)


def read_only_the_first_states(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = CommittedOffsets._begin_reading

    def begin_reading(offsets: CommittedOffsets, end: int, safe: bool) -> None:
        begin(offsets, max(end - 1, 0), safe)

    monkeypatch.setattr(CommittedOffsets, "_begin_reading", begin_reading)
    monkeypatch.setattr("amqpd.kafka_server.compacted_log.SLICE_BYTES", 100)


DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "states are not synced": (
        lambda patch: skip_syncs(patch, "kafka-offsets"),
        SHARED,
        "is back|any more|delivery count",
    ),
    "an answer before the sync": (answer_before_the_sync, SHARED, "is back|any more|delivery count"),
    "acknowledgements are not written": (write_no_acknowledgement, SHARED, "is back"),
    "the begin is not written": (write_no_begin, SHARED, "any more"),
    "counts are not written": (write_no_counts, SHARED, "has the delivery count"),
    "acquired records are lost": (write_acquired_as_final, SHARED, "any more"),
    "released records are lost": (write_released_as_final, SHARED, "any more"),
    "a new record is lost": (write_a_later_end, SHARED, "any more"),
    "a new stream has an old state": (keep_the_state_of_a_deleted_stream, DELETED, "any more|is back|the error|count"),
    "the last state is not read": (read_only_the_first_states, SHARED, "is back|any more|delivery count"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_walk_finds_broken_promises(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    inject, workload, words = DEFECTS[defect]
    inject(monkeypatch)
    with pytest.raises(AssertionError, match=words):
        walk_small(workload, 20, moments=0.2)


@pytest.mark.slow
def test_judge_reports_each_kind_of_violation() -> None:
    ledger = ShareLedger()
    ledger.topics["s"] = Topic("s")
    stream = ledger.shared["g", "s"] = SharedStream(1)
    stream.certain = 2
    for offset, (written, most) in {2: (1, 2), 3: (0, 5), 4: (0, 0)}.items():
        stream.record(offset).written, stream.record(offset).most = written, most
    stream.record(3).may_be_final = True
    stream.record(5).is_final = True

    def judge(acquired: Acquired) -> None:
        records = [(offset, b"%d." % offset) for offset in range(6)]
        ledger.topics["s"].trimmed = 6  # `judge_kafka` need not know them
        found = KafkaOutcome({"s": FoundTopic(records, {}, records)}, {})
        judge_share(ShareOutcome(found, {("g", "s"): acquired}), ledger)

    judge([(2, 2), (4, 1)])
    judge([(1, 1), (2, 3), (3, 6), (4, 1)])
    wrong: dict[str, Acquired] = {
        "at 4 any more": [(2, 2)],
        "from before the group's begin": [(0, 1), (2, 2), (4, 1)],
        "is back": [(2, 2), (4, 1), (5, 1)],
        "at 2 has the delivery count 1": [(2, 1), (4, 1)],
        "at 4 has the delivery count 2": [(2, 2), (4, 2)],
        "gets the offsets": [(4, 1), (2, 2)],
    }
    for words, acquired in wrong.items():
        with pytest.raises(Violation, match=words):
            judge(acquired)
    del ledger.shared["g", "s"]
    with pytest.raises(Violation, match="never used a stream"):
        judge([(2, 1)])
