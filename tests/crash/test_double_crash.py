"""Two crashes in a row: state that the first left only in the page cache, or half done, when the second one comes.

Each test repeats a loss that happened once. The search of `test_states.py` meets these cases only by chance.
"""

from __future__ import annotations

import pytest
from states_disk import SECTOR, Disk, Image
from states_find import find
from states_ledger import Ledger, judge
from states_life import QUEUES, Life

from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

EMPTY: Image = {"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, QUEUES: None}


pytestmark = pytest.mark.usefixtures("quiet")


def first_life(*queues: str, policy: RetentionPolicy | None = None, segment_size_bytes: int = 2000) -> Life:
    life = Life(Disk(dict(EMPTY)), Ledger(), 1, segment_size_bytes=segment_size_bytes)
    for queue in queues:
        life.create(queue, policy)
    return life


def next_life(disk: Disk, ledger: Ledger, boot: int, kind: str, segment_size_bytes: int = 2000) -> Life:
    """Start the next life, judge what it finds, and adopt it."""
    life = Life(disk, ledger, boot, segment_size_bytes=segment_size_bytes)
    outcome = find(life)
    judge(outcome, ledger, kind)
    life.adopt(outcome, safe=kind == "cut")
    life.loop()
    return life


def after_worst_power_cut(disk: Disk) -> Disk:
    """Return the disk after a power cut that loses everything that it can lose."""
    entries = disk.names()[0]
    return Disk({path: None if file is None else file.versions[0] for path, file in entries.items()})


def without_sector(disk: Disk, path: str, number: int) -> Disk:
    """Return the disk after a power cut that loses one sector of a file's unsynced part; -1: the last whole one."""
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
def test_half_written_transaction_stays_hidden_over_further_crashes(sector: int, behind: int, size: int) -> None:
    """A power cut left a hole in a transaction.

    No part of it is shown by the next start, nor by the start after that, when later appends have been synced.
    """
    life = first_life("q", segment_size_bytes=size)
    life.append("q", 1)
    life.turn()
    life.transaction("q", 70, 12)  # two batches and a marker; small segments: in a segment of their own
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
    life = next_life(disk, ledger, 2, "cut", size)
    assert len(life.live("q")) in {1, 1 + behind}
    life.append("q", 1)
    life.turn()
    for _ in range(2):
        life = next_life(life.disk.killed(), ledger, 2, "kill", size)
        life.append("q", 1)
        life.turn()
    life.stop()
    next_life(after_worst_power_cut(life.disk), ledger, 3, "cut", size)


def life_with_unsynced_acks_in_sealed_segment() -> Life:
    """Return a life whose acks in a sealed segment are not synced: only the page cache has them."""
    life = first_life("q", "r")
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
def test_acks_written_before_kill_are_synced_by_next_life(stop: bool) -> None:
    life = life_with_unsynced_acks_in_sealed_segment()
    ledger = life.ledger
    life = next_life(life.disk.killed(), ledger, 1, "kill")
    if stop:
        life.stop()
    else:
        life.flush()
    next_life(after_worst_power_cut(life.disk), ledger, 2, "cut")


def test_clean_stop_syncs_acks_of_queues_that_were_not_opened() -> None:
    """Queues open lazily; this one was not used between the kill and the clean stop."""
    life = life_with_unsynced_acks_in_sealed_segment()
    ledger = life.ledger
    life = Life(life.disk.killed(), ledger, 1)
    life.stores["r"].recover()
    life.stop()
    next_life(after_worst_power_cut(life.disk), ledger, 2, "cut")


@pytest.mark.slow
def test_kill_during_compaction_and_power_cut_during_next_start() -> None:
    """A kill at each step of a compaction, and then a power cut at each step of the next start."""
    policy = RetentionPolicy(file_delete_delay_ms=0, compaction=CleanerPolicy(min_dirty_ratio=0.0))
    life = first_life("q", policy=policy)
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
        disks_after_cut: list[Disk] = []

        def cut(disk: Disk = disk, disks_after_cut: list[Disk] = disks_after_cut) -> None:
            for entries in disk.names():
                for version in (0, -1):
                    disks_after_cut.append(
                        Disk({path: None if file is None else file.versions[version] for path, file in entries.items()})
                    )

        disk.watch = cut
        find(Life(disk, ledger.copy(), 1))
        disk.watch = None
        for after in disks_after_cut:
            judge(find(Life(after, ledger.copy(), 2)), ledger, "cut")
            cuts += 1
    assert cuts > 1000


def test_export_hold_of_empty_queue_is_synced_when_set_and_when_cleared() -> None:
    """Both commands are answered only when the change is safe."""
    life = first_life("q")
    ledger = life.ledger
    life.hold("q", "nightly")
    life = next_life(after_worst_power_cut(life.disk), ledger, 2, "cut")
    hold = life.stores["q"].log.removals.export_hold
    assert hold is not None and hold.exported == {"nightly": 0}
    for _ in range(3):
        life.append("q", 3, 900)
        life.turn()
        life.settle("q", life.live("q"))
        life.turn()
        life.flush()
    life = next_life(after_worst_power_cut(life.disk), ledger, 3, "cut")
    assert life.storage.export_hold(life.stores["q"]).clear("nightly")
    ledger.holds.clear()
    life = Life(after_worst_power_cut(life.disk), ledger, 4)
    assert life.storage.export_hold(life.stores["q"]).exported == {}


def test_delivery_mark_kept_only_by_older_segment_survives_its_removal() -> None:
    """The mark reaches into a segment whose own `.settled` was lost in a power cut; then the older segment is
    removed.
    """
    life = first_life("q")
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
    life = next_life(Disk(image), life.ledger, 2, "cut")
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
        life = next_life(life.disk.killed(), life.ledger, 2, "kill")


def test_compaction_before_first_sync_of_a_life() -> None:
    """The first sync covers acks of an earlier life; compaction has removed some of their files."""
    policy = RetentionPolicy(file_delete_delay_ms=0, compaction=CleanerPolicy(min_dirty_ratio=0.0))
    life = first_life("q", policy=policy)
    for number in range(12):
        life.append("q", 1, 500, key=b"k%d" % (number % 5))
        life.turn()
    life.flush()
    ledger = life.ledger
    for message in life.live("q")[:-1]:
        message.may_go = True
    life = Life(life.disk.killed(), ledger, 1, paced=True, segment_size_bytes=20_000)  # large enough to merge segments
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
    next_life(after_worst_power_cut(life.disk), ledger, 2, "cut")
