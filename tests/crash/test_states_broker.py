"""The crash search over a whole broker: no violation in the workloads, and each injected defect is found.

The code that the tests break is interpreted, not compiled. README.md also lists defects that were tried by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from states_broker_ledger import SAFE, BrokerLedger, BrokerOutcome, Copy, Place, Sent, judge_broker
from states_broker_search import BrokerSearch
from states_broker_workloads import BROKER_WORKLOADS
from states_disk import Disk
from states_ledger import Violation

from amqpd.broker.publish.exchange_state import MetadataCacheStore
from amqpd.channel import handlers
from amqpd.channel.basic import apply_tx_ack
from amqpd.channel.channel import Channel
from amqpd.channel.tx_commit import reply_when_safe
from amqpd.storage.acks.ack_set import DELIVERED, ENTRY_SIZE, RETURNED, SETTLED
from amqpd.storage.acks.replay import AckedReplay
from amqpd.storage.directory_removal import DirectoryRemover
from amqpd.storage.metadata.rows import Change

pytestmark = pytest.mark.usefixtures("quiet")


def walk(name: str, seeds: int = 1) -> None:
    (workload,) = [each for each in BROKER_WORKLOADS if name in each.name]
    for seed in range(seeds):
        BrokerSearch(seed, set(), share=0.12, draws=1, lived_in=0.002).run(workload)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("workload", [each.name for each in BROKER_WORKLOADS])
def test_crash_states_of_workload_have_no_violation(workload: str) -> None:
    walk(workload)


# -- the walk finds defects


def drop_entries(monkeypatch: pytest.MonkeyPatch, kind: int, directory: str) -> None:
    """Drop entries of this kind from all writes to `.settled` files below that directory."""
    write = Disk.write

    def write_without(disk: Disk, fd: int, data: bytes) -> int:
        path = disk.path_of(fd)
        if f"/{directory}/" in path and ".settled" in path:
            entries = [data[start : start + ENTRY_SIZE] for start in range(0, len(data), ENTRY_SIZE)]
            write(disk, fd, b"".join(entry for entry in entries if entry[4] != kind))
        else:
            write(disk, fd, data)
        return len(data)

    monkeypatch.setattr(Disk, "write", write_without)


LEFT_OUT = {
    "a release leaves no mark": ("delayed messages", DELIVERED, "delays", "unmarked|redelivered"),
    "what was released or cancelled stays": ("delayed messages", SETTLED, "delays", "for good"),
    "when a retry is due is not written": ("retries with delay", RETURNED, "queues", "next try|are known|is known"),
    "what is moved stays": ("moved, copied, deleted", SETTLED, "queues", "settled for good"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", LEFT_OUT)
def test_walk_finds_missing_entries(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    workload, kind, directory, words = LEFT_OUT[defect]
    drop_entries(monkeypatch, kind, directory)
    with pytest.raises(AssertionError, match=words):
        walk(workload, 3)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["delayed messages", "delayed, and the exchange goes"])
def test_walk_finds_delay_directory_that_is_not_removed(monkeypatch: pytest.MonkeyPatch, workload: str) -> None:
    """The directory of an emptied bucket or of a deleted exchange."""
    rename = DirectoryRemover._rename

    def rename_others(departures: DirectoryRemover, chains: list[list[str]]) -> None:
        rename(departures, [chain for chain in chains if "/delays/" not in chain[-1]])

    monkeypatch.setattr(DirectoryRemover, "_rename", rename_others)
    with pytest.raises(AssertionError, match="unmarked|for good|is still there|times in q"):
        walk(workload, 3)


def test_walk_finds_partial_rewind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that makes a rewind atomic is never written."""
    monkeypatch.setattr(AckedReplay, "_write", lambda rewind, taken, epoch: None)
    with pytest.raises(AssertionError, match="of what was rewound .* are missing"):
        walk("rewound", 9)


def test_walk_finds_missing_producer_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpd.storage.fsync_thread.write_snapshot", lambda filesystem, path, data: None)
    with pytest.raises(AssertionError, match="is stored 2 times|does not come as redelivered"):
        walk("numbers, segments roll", 3)


def test_walk_finds_message_id_confirmed_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def confirm_unwritten(rows: MetadataCacheStore, changes: Sequence[Change], done: Callable[[bool], None]) -> None:
        done(True)

    monkeypatch.setattr(MetadataCacheStore, "_submit", confirm_unwritten)
    with pytest.raises(AssertionError, match="confirmed after 1 tries, is stored 2 times"):
        walk("ids that are remembered", 3)


def judge_copies(sent: Sent, *copies: Copy, now_ms: int = 0) -> None:
    ledger = BrokerLedger()
    ledger.sent[sent.body] = sent
    judge_broker(BrokerOutcome([*copies], 0, [], now_ms), ledger, "kill")


@pytest.mark.slow
def test_judge_reports_each_kind_of_violation() -> None:
    def new_message() -> Sent:
        sent = Sent(0, b"0.", "", "q", "q")
        sent.places["q"] = Place("")
        sent.promise = sent.places["q"].promise = SAFE
        return sent

    plain = Copy(b"0.", "q", False, False, False, 0, False)
    judge_copies(new_message(), plain)
    with pytest.raises(Violation, match="is lost"):
        judge_copies(new_message())
    with pytest.raises(Violation, match="comes 2 times, unmarked"):
        judge_copies(new_message(), plain, plain)
    with pytest.raises(Violation, match="where it was never put"):
        judge_copies(new_message(), plain, plain._replace(place="other"))
    with pytest.raises(Violation, match="never published"):
        judge_copies(new_message(), plain._replace(body=b"foreign"))
    with pytest.raises(Violation, match="was never delayed"):
        judge_copies(new_message(), plain._replace(from_wheel=True))
    late = new_message()
    late.due_ms = 5000
    with pytest.raises(Violation, match="1000 ms before its time"):
        judge_copies(late, plain, now_ms=4000)
    judge_copies(late, plain._replace(late=True), now_ms=4000)
    moved = new_message()
    moved.places["to"] = Place("")
    moved.places["q"].left = SAFE
    with pytest.raises(Violation, match="settled for good in q"):
        judge_copies(moved, plain, plain._replace(place="to", moved=True))
    judge_copies(moved, plain._replace(place="to", moved=True))
    repeated = new_message()
    repeated.numbers = (7, 0, 0)
    with pytest.raises(Violation, match="is stored 2 times"):
        judge_copies(repeated, plain, plain._replace(redelivered=True))


class CommitWithEarlyAcks:
    """A commit that applies its acks without waiting for its publishes."""

    def __init__(self, channel: Channel, _transaction: object, _publishes: object, settlements: list[Any]) -> None:
        self.channel = channel
        self.settlements = settlements

    def start_at_sync(self, logs: Collection[Any]) -> None:
        for tag, entry, action in self.settlements:
            entry.in_transaction = False
            self.channel.deliveries.unacked.take_one(tag)
            apply_tx_ack(self.channel, entry, action)
        self.channel.busy = True
        reply_when_safe(self.channel, logs, [])


@pytest.mark.slow
def test_walk_finds_commit_that_acks_before_its_publishes_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "TransactionCommit", CommitWithEarlyAcks)
    with pytest.raises(AssertionError, match="was acked by transaction"):
        walk("transactions over three", 2)
