"""The workloads of states_search.py: scripts that act as brokers do and yield after each step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from states_journal import JOURNAL_BYTES, compacted, journaled
from states_life import Life
from states_readers import CODECS, streams
from states_workloads_paced import (
    bursts_with_commits,
    letters_and_purges,
    many_paced,
    marks_ahead,
    settled_and_not_written,
)

from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

Steps = Callable[[Life, random.Random], Iterator[None]]


class Workload:
    """A script that runs once for each life.

    name: for reports. ends: how each life with a successor ends, "stop" or "kill". paced: all lives are paced;
    otherwise half of them, at random. journal_size_bytes: of the journal, which commits of two logs use; 0: none.
    """

    def __init__(
        self,
        name: str,
        script: Steps,
        segment_size_bytes: int = 2000,
        ends: tuple[str, ...] = (),
        *,
        paced: bool = False,
        journal_size_bytes: int = 0,
    ) -> None:
        self.name = name
        self.script = script
        self.segment_size_bytes = segment_size_bytes
        self.ends = ends
        self.paced = paced
        self.journal_size_bytes = journal_size_bytes


def append_and_confirm(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
    for _ in range(5):
        life.append("q", rng.randint(1, 3), rng.choice((10, 100, 700)))
        life.write()
        yield
        life.loop()
        yield
    life.append("q", 2, 1400)
    life.append("q", 2, 10, persistent=False)
    life.append("q", 1, 10)
    life.turn()
    yield


def segment_roll(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
    for _ in range(4):
        life.append("q", 3, rng.choice((300, 650)))
        life.turn()
        yield
        if rng.random() < 0.5:
            life.settle("q", life.live("q")[:2])
            life.write()
    live = life.live("q")
    life.settle("q", live[2 : len(live) - 1])  # a drained segment in the middle, then the head
    life.turn()
    yield
    life.settle("q", life.live("q"))
    life.turn()
    life.flush()
    yield
    life.append("q", 2, 650)
    life.turn()
    yield
    for _ in range(3):
        life.append("q", 1, 1200)
        life.turn()
    life.flush()
    life.settle("q", life.live("q")[:1])  # in a sealed segment; the kill comes before the sync
    life.write()
    yield


def settle_and_requeue(life: Life, rng: random.Random) -> Iterator[None]:
    life.create("q")
    life.append("q", 8, 40)
    life.append("q", 2, 40, persistent=False)
    life.turn()
    yield
    live = life.live("q")
    life.deliver("q", live[:5])
    life.settle("q", live[0:4:2])
    life.write()
    life.give_back("q", live[1:4:2])
    life.turn()
    yield
    life.flush()
    life.deliver("q", live[1:4:2])
    life.give_back("q", live[1:2])
    life.append("q", 2, 500)
    life.turn()
    yield
    life.deliver("q", life.live("q"))
    life.settle("q", life.live("q"))
    life.append("q", 1, 40)
    life.turn()
    yield


def purge(life: Life, rng: random.Random) -> Iterator[None]:
    life.create("q")
    for _ in range(2):
        life.append("q", rng.randint(5, 9), 300)
        life.turn()
        life.append("q", 2, 40)
        life.purge("q")
        life.write()
        yield
        life.loop()
        life.flush()
        yield
        life.append("q", 1, 30)
        life.turn()
    yield


def delete_and_redeclare(life: Life, rng: random.Random) -> Iterator[None]:
    for number in range(4):
        queue = f"q{number}"
        life.create(queue)
        life.append(queue, rng.randint(1, 4), rng.choice((20, 800)))
        life.write()
        if number % 2 == 0:
            life.loop()
            life.settle(queue, life.live(queue)[:1])
            life.write()
        yield
        life.delete(queue, row_first=number > 1)  # same name, new id
        life.loop()
        yield
    life.create("q9")
    life.append("q9", 2)
    life.turn()
    yield


def metadata_with_creation(life: Life, rng: random.Random) -> Iterator[None]:
    for number in range(5):
        life.create(f"q{number}")
        if number:
            life.append(f"q{number - 1}", 1, rng.choice((10, 600)))
        if number % 2:
            life.turn()
        yield
    life.append("q4", 1)
    life.turn()
    yield


def metadata_that_fails(life: Life, rng: random.Random) -> Iterator[None]:
    """A declaration and a deletion whose commits fail are undone and repeated, while other commits succeed."""
    again = f"again{len(life.ledger.deleted)}"  # the refused queue, under its own id
    if "kept" not in life.stores:
        life.create("kept")
    life.append("kept", 2, rng.choice((10, 600)))
    life.turn()
    yield
    life.fail({**life.ledger.rows[-1], "refused": "live"})
    yield
    life.append("kept", 1, 40)
    life.turn()
    yield
    life.undo_failed()
    life.create(again)
    life.append(again, 2, rng.choice((10, 900)))
    life.turn()
    yield
    for _ in range(rng.randint(1, 2)):
        life.fail({**life.ledger.rows[-1], again: "deleting"})
        yield
        life.append("kept", 1, 40)
        life.turn()
        yield
    life.delete(again)
    life.append("kept", 1, 40)
    life.turn()
    yield


def transactions(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
        life.create("r")
    life.append("q", 1)
    life.transaction("q", 3, 30)
    life.transaction("r", 2, 600)
    life.turn()
    yield
    life.transaction("q", 70, 12)  # two batches and a marker
    life.append("q", 1)
    life.write()
    yield
    life.loop()
    life.transaction("q", 66, rng.choice((10, 60)))
    life.settle("q", life.live("q")[:20])
    life.turn()
    yield
    life.transaction("r", 65, 30)
    life.turn()
    yield


def index_rebuild(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
    for _ in range(3):
        for _ in range(2):
            life.append("q", 1, rng.choice((1500, 2600)))
            life.write()
        life.loop()
        yield
    life.settle("q", life.live("q")[1:4])
    life.turn()
    yield


def clean_shutdown(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
        life.create("idle")
    life.append("q", rng.randint(1, 3), rng.choice((30, 900)))
    life.append("q", 1, 30, persistent=False)
    life.turn()
    yield
    life.deliver("q", life.live("q")[:2])
    life.settle("q", life.live("q")[:1])
    life.write()
    yield


def settled_written_anew(life: Life, rng: random.Random) -> Iterator[None]:
    life.create("q")
    life.append("q", 30, 10)
    life.turn()
    for _ in range(5):
        for segment in life.stores["q"].log.segments:
            segment.rewrite_from = min(segment.rewrite_from, 250)
        life.settle("q", life.live("q")[: rng.randint(2, 9) : 2])
        life.append("q", 1, 10)
        life.turn()
        yield


def turns_during_sync(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
        life.create("r")

    def meanwhile() -> None:
        life.append("q", 1, rng.choice((20, 700)))
        for segment in life.stores["q"].log.segments:
            segment.rewrite_from = min(segment.rewrite_from, 250)  # `.settled` is rewritten, too
        live = [each for each in life.live("q") if each.written]
        if live:
            life.settle("q", live[:1])
        life.write()

    for _ in range(3):
        life.append("q", 2, rng.choice((20, 600)))
        life.append("r", 1, 20)
        life.disk.during_sync = meanwhile
        life.write()
        life.disk.during_sync = None
        yield
        life.loop()
        yield


def many_queues(life: Life, rng: random.Random) -> Iterator[None]:
    names = [f"q{number}" for number in range(6)]
    for name in names:
        life.create(name)
    for _ in range(2):
        for name in names:
            life.append(name, 1, 40)  # two files each: one syncfs for all
        life.turn()
        yield
    for name in names:
        life.settle(name, life.live(name)[:1])
    life.turn()
    yield


def dead_letter(life: Life, rng: random.Random) -> Iterator[None]:
    life.create("q")
    life.create("dead")
    for _ in range(3):
        life.append("q", 3, 60)
        life.turn()
        taken = life.live("q")[:2]
        life.append("dead", len(taken), 60)
        life.write()
        yield
        life.loop()  # the targets are synced, so the sources may be settled
        life.settle("q", taken)
        life.turn()
        yield


def retention(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        codec = rng.choice(CODECS)
        life.create("q", RetentionPolicy(max_bytes=2500, file_delete_delay_ms=rng.choice((0, 2000)), codec=codec))
        by_bytes = RetentionPolicy(max_bytes=2500, file_delete_delay_ms=0, codec=codec)
        by_age = RetentionPolicy(max_age_ms=3000, segment_age_ms=1500, file_delete_delay_ms=0)
        life.create("r", rng.choice((by_bytes, by_age)))
    for _ in range(2):
        for _ in range(2):
            for queue in ("q", "r"):
                life.append(queue, rng.randint(1, 3), rng.choice((60, 500, 900)))
            life.turn()
            life.pass_time(1000)
        life.maintain()
        yield
    live = life.live("q")
    if live:
        life.trim("q", live[len(live) // 2].offset)
    yield
    life.loop()
    life.pass_time(3000)
    life.maintain()
    yield


def compaction(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        cleaner = CleanerPolicy(min_dirty_ratio=0.0, tombstone_retention_ms=4000)
        delay_ms, codec = rng.choice((0, 2000)), rng.choice(CODECS)
        life.create("q", RetentionPolicy(file_delete_delay_ms=delay_ms, compaction=cleaner, codec=codec))
    for turn in range(3):
        for _ in range(4):
            life.append("q", 1, rng.choice((60, 700)), key=b"k%d" % rng.randrange(3))
            if rng.random() < 0.3:
                life.turn()
        life.append("q", 1, key=b"k%d" % rng.randrange(3), tombstone=True)
        life.turn()
        life.pass_time(3000)
        yield
        life.maintain()
        yield
        if turn == 1:
            live = life.live("q")
            life.settle("q", live[:1])
            life.turn()
    life.pass_time(9000)
    life.append("q", 1, 1200, key=b"k9")
    life.append("q", 1, 1200, key=b"k9")
    life.maintain()
    yield


def sparse_segments(life: Life, rng: random.Random) -> Iterator[None]:
    """Few messages of each segment wait, so compaction rewrites the segments; some are settled while it runs."""
    if "q" not in life.stores:
        life.create("q")
    for _ in range(2):
        for _ in range(rng.randint(12, 16)):
            life.append("q", rng.randint(3, 6), rng.choice((40, 90, 300)), persistent=rng.random() < 0.8)
            life.turn()
        live = life.live("q")
        life.deliver("q", live)
        waiting = set(rng.sample(range(len(live)), len(live) // 8))
        life.settle("q", [message for number, message in enumerate(live) if number not in waiting])
        life.turn()
        life.give_back("q", life.live("q")[:1])
        life.turn()
        life.flush()
        yield
        life.maintain()
        yield
        life.storage.maintain()  # the cleaner has finished, and the loop does not know it yet
        life.settle("q", life.live("q")[1:3])
        life.turn()
        yield
        for _ in range(3):
            life.maintain()
            life.settle("q", life.live("q")[:1])
            life.turn()
            yield


def compressed(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q", RetentionPolicy(file_delete_delay_ms=0, codec=rng.choice(CODECS[1:])))
    for turn in range(3):
        life.append("q", rng.randint(1, 3), rng.choice((10, 400, 900)))
        life.append("q", 1, rng.choice((10, 2600)))
        if turn == 1:
            life.append("q", 2, 300, persistent=False)
            life.transaction("q", 70, 12)
        life.write()
        yield
        life.loop()
        yield
        live = life.live("q")
        life.settle("q", live[: len(live) // 2])
        life.turn()
        policy = RetentionPolicy(file_delete_delay_ms=0, codec=rng.choice(CODECS))  # it may change or be removed
        life.storage.set_policy(life.stores["q"], policy)
    life.append("q", 3, 500)
    life.turn()
    life.flush()
    yield


def export_hold(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q", export="nightly")
        life.create("r")
        life.append("r", 2, 900)
        life.turn()
        life.hold("r", "hourly")
        life.create("s")
        life.hold("s", "hourly")  # the queue has no directory yet
        yield
    for _ in range(3):
        for queue in ("q", "r", "s"):
            life.append(queue, rng.randint(2, 3), rng.choice((300, 900)))
        life.turn()
        for queue in ("q", "r", "s"):
            life.settle(queue, life.live(queue)[: rng.randint(2, 4)])
        life.turn()
        life.flush()
        yield
        for queue, name in (("q", "nightly"), ("r", "hourly"), ("s", "hourly")):
            if rng.random() < 0.6:
                settled = [each.offset for each in life.ledger.queues[queue] if each.settled]
                life.exported(queue, name, rng.choice(settled) + 1)
        life.turn()
        life.flush()
        yield
    life.purge("q")
    life.turn()
    yield


WORKLOADS: Final = (
    Workload("append and confirm", append_and_confirm, ends=("kill",)),
    Workload("segment roll", segment_roll, ends=("kill", "stop")),
    Workload("settle and requeue", settle_and_requeue),
    Workload("purge", purge),
    Workload("delete and declare again", delete_and_redeclare),
    Workload("metadata with queue creation", metadata_with_creation),
    Workload("metadata that fails", metadata_that_fails, ends=("kill", "stop")),
    Workload("transaction commit", transactions),
    Workload("transactions in one segment", transactions, 60_000, ends=("kill",)),
    Workload("index rebuild", index_rebuild, 9000, ends=("kill", "stop")),
    Workload("clean shutdown", clean_shutdown, ends=("stop", "kill", "stop")),
    Workload("settlements written anew", settled_written_anew, 60_000),
    Workload("turns during a sync", turns_during_sync, 60_000),
    Workload("many queues, one syncfs", many_queues),
    Workload("dead letters", dead_letter),
    Workload("retention", retention, ends=("kill",)),
    Workload("compaction", compaction, ends=("kill",)),
    Workload("sparse segments", sparse_segments, ends=("kill",)),
    Workload("compressed batches", compressed, 4000, ends=("kill", "stop")),
    Workload("streams and their readers", streams, ends=("kill", "stop")),
    Workload("export hold", export_hold, ends=("kill",)),
    Workload("settled and not yet written", settled_and_not_written, ends=("kill", "stop"), paced=True),
    Workload("marks that run ahead", marks_ahead, 6000, ends=("kill", "stop"), paced=True),
    Workload("marks that run ahead, segments roll", marks_ahead, 1500, paced=True),
    Workload("bursts between commits", bursts_with_commits, 60_000, ends=("kill",), paced=True),
    Workload("many paced queues", many_paced, ends=("kill",), paced=True),
    Workload("letters and purges, paced", letters_and_purges, paced=True),
    Workload("commits in the journal", journaled, 60_000, ends=("kill", "stop"), journal_size_bytes=JOURNAL_BYTES),
    Workload("segments and the journal", journaled, 1500, ends=("kill",), journal_size_bytes=JOURNAL_BYTES),
    Workload("compaction and the journal", compacted, ends=("kill",), journal_size_bytes=JOURNAL_BYTES),
)
