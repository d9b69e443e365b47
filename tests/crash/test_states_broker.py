"""The walk of a broker's lives: nothing is broken, and what breaks its promises is seen.

What is broken here is interpreted, so that it can be; README.md lists what was broken by hand besides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
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
from amqpd.storage.metadata.store import Change


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def walk(name: str, seeds: int = 1) -> None:
    (workload,) = [each for each in BROKER_WORKLOADS if name in each.name]
    for seed in range(seeds):
        BrokerSearch(seed, set(), share=0.12, draws=1, lived_in=0.002).run(workload)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("workload", [each.name for each in BROKER_WORKLOADS])
def test_nothing_is_broken(workload: str) -> None:
    walk(workload)


# -- the walk sees what it is there for


def leave_out(monkeypatch: pytest.MonkeyPatch, kind: int, place: str) -> None:
    """Entries of this kind never come to a `.settled` file below that directory."""
    write = Disk.write

    def forged(disk: Disk, fd: int, data: bytes) -> int:
        path = disk.path_of(fd)
        if f"/{place}/" in path and ".settled" in path:
            entries = [data[start : start + ENTRY_SIZE] for start in range(0, len(data), ENTRY_SIZE)]
            write(disk, fd, b"".join(entry for entry in entries if entry[4] != kind))
        else:
            write(disk, fd, data)
        return len(data)

    monkeypatch.setattr(Disk, "write", forged)


LEFT_OUT = {
    "a release leaves no mark": ("delayed messages", DELIVERED, "delays", "unmarked|redelivered"),
    "what was released or cancelled stays": ("delayed messages", SETTLED, "delays", "for good"),
    "when a retry is due is not written": ("retries with delay", RETURNED, "queues", "next try|are known|is known"),
    "what is moved stays": ("moved, copied, deleted", SETTLED, "queues", "settled for good"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_is_not_written_is_seen(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    workload, kind, place, words = LEFT_OUT[what]
    leave_out(monkeypatch, kind, place)
    with pytest.raises(AssertionError, match=words):
        walk(workload, 3)


@pytest.mark.parametrize("workload", ["delayed messages", "delayed, and the exchange goes"])
def test_a_directory_that_stays_is_seen(monkeypatch: pytest.MonkeyPatch, workload: str) -> None:
    """Of a bucket whose messages went down, or of an exchange that is deleted."""
    rename = DirectoryRemover._rename

    def some(departures: DirectoryRemover, chains: list[list[str]]) -> None:
        rename(departures, [chain for chain in chains if "/delays/" not in chain[-1]])

    monkeypatch.setattr(DirectoryRemover, "_rename", some)
    with pytest.raises(AssertionError, match="unmarked|for good|is still there|times in q"):
        walk(workload, 3)


def test_a_rewind_in_parts_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that would make it whole is never written."""
    monkeypatch.setattr(AckedReplay, "_write", lambda rewind, epoch: None)
    with pytest.raises(AssertionError, match="of what was rewound .* are missing"):
        walk("rewound", 9)


def test_numbers_without_a_snapshot_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpd.storage.fsync_thread.write_snapshot", lambda filesystem, path, data: None)
    with pytest.raises(AssertionError, match="is stored 2 times|does not come as redelivered"):
        walk("numbers, segments roll", 3)


def test_an_id_that_is_confirmed_and_not_written_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(rows: MetadataCacheStore, changes: Sequence[Change], done: Callable[[bool], None]) -> None:
        done(True)

    monkeypatch.setattr(MetadataCacheStore, "_submit", never)
    with pytest.raises(AssertionError, match="confirmed after 1 tries, is stored 2 times"):
        walk("ids that are remembered", 3)


def judged(sent: Sent, *copies: Copy, now_ms: int = 0) -> None:
    ledger = BrokerLedger()
    ledger.sent[sent.body] = sent
    judge_broker(BrokerOutcome([*copies], 0, [], now_ms), ledger, "kill")


def test_what_the_judge_refuses() -> None:
    def one() -> Sent:
        sent = Sent(0, b"0.", "", "q", "q")
        sent.places["q"] = Place("")
        sent.promise = sent.places["q"].promise = SAFE
        return sent

    plain = Copy(b"0.", "q", False, False, False, 0, False)
    judged(one(), plain)
    with pytest.raises(Violation, match="is lost"):
        judged(one())
    with pytest.raises(Violation, match="comes 2 times, unmarked"):
        judged(one(), plain, plain)
    with pytest.raises(Violation, match="where nobody has put it"):
        judged(one(), plain, plain._replace(place="other"))
    with pytest.raises(Violation, match="never published"):
        judged(one(), plain._replace(body=b"foreign"))
    with pytest.raises(Violation, match="was never delayed"):
        judged(one(), plain._replace(from_wheel=True))
    late = one()
    late.due_ms = 5000
    with pytest.raises(Violation, match="1000 ms before its time"):
        judged(late, plain, now_ms=4000)
    judged(late, plain._replace(late=True), now_ms=4000)
    moved = one()
    moved.places["to"] = Place("")
    moved.places["q"].left = SAFE
    with pytest.raises(Violation, match="settled for good in q"):
        judged(moved, plain, plain._replace(place="to", moved=True))
    judged(moved, plain._replace(place="to", moved=True))
    back = one()
    back.numbers = (7, 0, 0)
    with pytest.raises(Violation, match="is stored 2 times"):
        judged(back, plain, plain._replace(redelivered=True))


class SettlesAtOnce:
    """A commit that does not wait with its acks for what it has published."""

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


def test_acks_before_the_publishes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "TransactionCommit", SettlesAtOnce)
    with pytest.raises(AssertionError, match="was acked by transaction"):
        walk("transactions over three", 2)
