"""Crashes that follow each other: what the first left in the page cache alone, or half done, before the second one.

Each of these has been a loss once. The walk of `test_states.py` meets them by lot; here they stand by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from states_disk import SECTOR, Disk, Image
from states_find import find
from states_ledger import Ledger, judge
from states_life import QUEUES, Life

from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

EMPTY: Image = {"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, QUEUES: None}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def begin(*queues: str, policy: RetentionPolicy | None = None, segment_size_bytes: int = 2000) -> Life:
    life = Life(Disk(dict(EMPTY)), Ledger(), 1, segment_size_bytes=segment_size_bytes)
    for queue in queues:
        life.create(queue, policy)
    return life


def again(disk: Disk, ledger: Ledger, boot: int, kind: str, segment_size_bytes: int = 2000) -> Life:
    """The next start, judged, its finds adopted."""
    life = Life(disk, ledger, boot, segment_size_bytes=segment_size_bytes)
    outcome = find(life)
    judge(outcome, ledger, kind)
    life.adopt(outcome, safe=kind == "cut")
    life.loop()
    return life


def barest(disk: Disk) -> Disk:
    """After a power cut that takes all that it can."""
    entries = disk.names()[0]
    return Disk({path: None if file is None else file.versions[0] for path, file in entries.items()})


def without_sector(disk: Disk, path: str, number: int) -> Disk:
    """After a power cut that has all of a file but one sector of what was not safe; -1: its last whole one."""
    file = disk.entries[path]
    assert file is not None
    image = disk.image()
    low, data = len(file.versions[0]), file.versions[-1]
    sector = low // SECTOR + number if number >= 0 else len(data) // SECTOR - 1
    start, stop = max(low, sector * SECTOR), (sector + 1) * SECTOR
    image[path] = data[:start] + bytes(stop - start) + data[stop:]
    return Disk(image)


@pytest.mark.parametrize("size", [2000, 60_000], ids=["sealed", "active"])
@pytest.mark.parametrize("behind", [0, 1], ids=["at the end", "with a message behind"])
@pytest.mark.parametrize("sector", [0, 1, 4, -1])
def test_half_a_transaction_stays_away(sector: int, behind: int, size: int) -> None:
    """A power cut has left a hole in a transaction. The start after it shows nothing of it, nor does the one after
    that, when what was appended since has been synced.
    """
    life = begin("q", segment_size_bytes=size)
    life.append("q", 1)
    life.turn()
    life.transaction("q", 70, 12)  # two batches and a marker; where segments are small, in one of their own
    life.append("q", behind)
    written: list[tuple[Disk, Ledger]] = []
    path = f"{QUEUES}/q/{1 if size == 2000 else 0:020d}.log"

    def after_the_write() -> None:
        if not written and len(life.disk.image().get(path) or b"") > 4000:
            written.append((life.disk.killed(), life.ledger.copy()))

    life.disk.watch = after_the_write
    life.write()
    ((disk, ledger),) = written
    disk = without_sector(disk, path, sector)
    ledger.power_cut()
    life = again(disk, ledger, 2, "cut", size)
    assert len(life.live("q")) in {1, 1 + behind}
    life.append("q", 1)
    life.turn()
    for _ in range(2):
        life = again(life.disk.killed(), ledger, 2, "kill", size)
        life.append("q", 1)
        life.turn()
    life.stop()
    again(barest(life.disk), ledger, 3, "cut", size)


def settled_in_a_sealed_segment() -> Life:
    """Killed before what was settled in a sealed segment has been synced: only the page cache has it."""
    life = begin("q", "r")
    for _ in range(3):
        for queue in ("q", "r"):
            life.append(queue, 3, 500)
        life.turn()
    life.flush()
    for queue in ("q", "r"):
        assert life.stores[queue].log.segments[0].sealed
        life.deliver(queue, life.live(queue)[:1])
        life.settle(queue, life.live(queue)[:1])
    life.write()
    return life


@pytest.mark.parametrize("stop", [True, False], ids=["stop", "flush"])
def test_what_was_settled_before_a_kill_is_synced_by_the_next_life(stop: bool) -> None:
    life = settled_in_a_sealed_segment()
    ledger = life.ledger
    life = again(life.disk.killed(), ledger, 1, "kill")
    if stop:
        life.stop()
    else:
        life.flush()
    again(barest(life.disk), ledger, 2, "cut")


def test_a_clean_stop_syncs_what_no_queue_was_opened_for() -> None:
    """Queues open lazily: one that nobody used between a kill and a clean stop."""
    life = settled_in_a_sealed_segment()
    ledger = life.ledger
    life = Life(life.disk.killed(), ledger, 1)
    life.stores["r"].recover()
    life.stop()
    again(barest(life.disk), ledger, 2, "cut")


@pytest.mark.slow
def test_a_kill_within_a_cleaning_and_a_cut_within_the_start() -> None:
    """At each step of a cleaning the process is killed, at each step of the start after that the machine ends."""
    policy = RetentionPolicy(file_delete_delay_ms=0, compaction=CleanerPolicy(min_dirty_ratio=0.0))
    life = begin("q", policy=policy)
    ledger = life.ledger
    for number in range(12):
        life.append("q", 1, 500, key=b"k%d" % (number % 5))
        life.turn()
        life.flush()
    killed: list[Disk] = []
    for message in life.live("q")[:-1]:
        message.may_go = True
    life.disk.watch = lambda: killed.append(life.disk.killed())
    life.storage.maintain()
    life.loop()
    life.flush()
    life.disk.watch = None
    assert len(killed) > 20
    cuts = 0
    for disk in killed:
        left: list[Disk] = []

        def cut(disk: Disk = disk, left: list[Disk] = left) -> None:
            for entries in disk.names():
                for version in (0, -1):
                    left.append(
                        Disk({path: None if file is None else file.versions[version] for path, file in entries.items()})
                    )

        disk.watch = cut
        find(Life(disk, ledger.copy(), 1))
        disk.watch = None
        for after in left:
            judge(find(Life(after, ledger.copy(), 2)), ledger, "cut")
            cuts += 1
    assert cuts > 1000


def test_a_hold_of_a_queue_that_never_held_a_message() -> None:
    """set_export is answered when it is safe, and so is the end of it."""
    life = begin("q")
    ledger = life.ledger
    life.hold("q", "nightly")
    life = again(barest(life.disk), ledger, 2, "cut")
    hold = life.stores["q"].log.removals.export_hold
    assert hold is not None and hold.exported == {"nightly": 0}
    for _ in range(3):
        life.append("q", 3, 900)
        life.turn()
        life.settle("q", life.live("q"))
        life.turn()
        life.flush()
    life = again(barest(life.disk), ledger, 3, "cut")
    assert life.storage.export_hold(life.stores["q"]).clear("nightly")
    ledger.holds.clear()
    life = Life(barest(life.disk), ledger, 4)
    assert life.storage.export_hold(life.stores["q"]).exported == {}


def test_a_mark_that_only_an_older_segment_tells() -> None:
    """It ran ahead into a segment whose own `.settled` a power cut took; then the older segment goes, with its file."""
    life = begin("q")
    life.append("q", 5, 300)
    life.turn()
    life.stores["q"].log.mark_delivered(0, 30)
    life.write()
    while len(life.stores["q"].log.segments) == 1:
        life.append("q", 1, 300)
        life.turn()
    life.append("q", 2, 300)
    life.turn()
    first, last = life.stores["q"].log.segments
    image = life.disk.image()
    del image[f"{last.prefix}.settled"]
    life.ledger.power_cut()
    life = again(Disk(image), life.ledger, 2, "cut")
    live = life.live("q")
    life.settle("q", [each for each in live if each.offset < last.base])
    life.deliver("q", [each for each in live if each.offset >= last.base])
    for _ in range(3):
        life.turn()
        life.flush()
    assert not any(name.startswith(f"{first.base:020d}") for name in life.disk.listdir(f"{QUEUES}/q"))
    for _ in range(2):
        life.settle("q", life.live("q")[:1])
        life.turn()
        life = again(life.disk.killed(), life.ledger, 2, "kill")


def test_a_cleaning_before_the_first_sync_of_a_life() -> None:
    """That sync covers what an earlier life settled; some of the files it was to cover are no more by then."""
    policy = RetentionPolicy(file_delete_delay_ms=0, compaction=CleanerPolicy(min_dirty_ratio=0.0))
    life = begin("q", policy=policy)
    for number in range(12):
        life.append("q", 1, 500, key=b"k%d" % (number % 5))
        life.turn()
    life.flush()
    ledger = life.ledger
    for message in life.live("q")[:-1]:
        message.may_go = True
    life = Life(life.disk.killed(), ledger, 1, paced=True, segment_size_bytes=20_000)  # so that segments become one
    outcome = find(life)
    judge(outcome, ledger, "kill")
    life.adopt(outcome, safe=False)
    life.storage.maintain()
    life.loop()
    assert [segment.base for segment in life.stores["q"].log.segments] == [0, 9]
    assert not life.disk.exists(f"{QUEUES}/q/{3:020d}.settled")
    life.turn()
    life.flush()
    life.append("q", 1)
    life.turn()
    again(barest(life.disk), ledger, 2, "cut")
