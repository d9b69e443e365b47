"""The crash search: every workload, crashed at every step in every way its disk allows, and crashed again afterwards.

A state is all bytes on the disk and the rows of the metadata; equal states count once per run. `make test` checks a
share of the states, CI more, `make torture` as many as TEST_CRASH_STATES says.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable

import pytest
from states_all import ALL, walk_through
from states_disk import Disk, File
from states_find import find
from states_lanes import walk_wide
from states_ledger import Ledger, Violation, judge
from states_life import Life
from states_pace import AHEAD_MAX, Timers
from states_search import Search
from states_workloads import WORKLOADS

from amqpd.storage.acks.ack_set import DELIVERED, ENTRY_SIZE, SETTLED, encode_entry
from amqpd.storage.directory_removal import DirectoryRemover
from amqpd.storage.fsync_thread import FsyncThread

pytestmark = pytest.mark.usefixtures("quiet")


def search(seed: int, wanted: int, seen: set[int], **arguments: float) -> None:
    """Walk all workloads with seed, seed + 1, ... until `wanted` states are seen. Raises: AssertionError."""
    first_seed, start_s = seed, time.monotonic()
    judged = lives = doubles = 0
    while len(seen) < wanted:
        for workload in ALL:
            if seed > first_seed and len(seen) >= wanted:
                break
            before = len(seen)
            each = walk_through(workload, seed, seen, **arguments)
            judged += each.judged
            lives += each.lives
            doubles += len(each.new_doubles)
            print(f"\n  seed {seed}, {workload.name}: {len(seen) - before} new states", end="")
        seed += 1
    report(len(seen), doubles, lives, judged, time.monotonic() - start_s)


def search_wide(seed: int, wanted: int, lanes: int, **arguments: float) -> None:
    """Like `search`, but on several processors, and at least all workloads with seed. Raises: AssertionError."""
    start_s = time.monotonic()
    seen: set[int] = set()
    judged = lives = doubles = first_seed_count = 0
    with contextlib.closing(walk_wide(seed, lanes, arguments)) as walked:
        for each in walked:
            assert not each.failure, f"seed {each.seed}\n{each.failure}"
            before = len(seen)
            seen.update(each.new_doubles)
            doubles += len(seen) - before
            seen.update(each.new)
            judged += each.judged
            lives += each.lives
            progress = f"seed {each.seed}, {each.name}: {len(seen) - before} new states"
            print(f"\n  {progress}, {len(seen)} in {time.monotonic() - start_s:.0f} s", end="", flush=True)
            first_seed_count += each.seed == seed
            if first_seed_count == len(ALL) and len(seen) >= wanted:
                break
    report(len(seen), doubles, lives, judged, time.monotonic() - start_s)


def report(states: int, doubles: int, lives: int, judged: int, duration_s: float) -> None:
    summary = f"{states} distinct crash states ({doubles} behind a first crash, in {lives} lives)"
    print(f"\n{summary}, {judged} verdicts, 0 violations, {duration_s:.0f} s")
    assert doubles > states // 10, "too few double crashes"


def test_500_crash_states_keep_every_promise() -> None:
    search(1, 500, set(), moments=0.1, share=0.01, draws=2, lived_in=0.01)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
def test_30_000_crash_states_keep_every_promise() -> None:
    search(100, 30_000, set(), share=0.25, draws=4, lived_in=0.002, step_max=6)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
def test_millions_of_crash_states_keep_every_promise() -> None:
    wanted = int(os.environ.get("TEST_CRASH_STATES", "1000000"))
    seed = int(os.environ.get("TEST_CRASH_SEED", str(random.SystemRandom().randrange(1 << 30))))
    lanes = int(os.environ.get("TEST_CRASH_LANES", str(os.cpu_count() or 1)))
    search_wide(seed, wanted, lanes, share=1.0, draws=10, lived_in=0.003, depth_max=3, step_max=256)


# -- the search finds defects


def first_life() -> tuple[Ledger, Life]:
    disk = Disk({"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, "/data/vhosts/v/queues": None})
    ledger = Ledger()
    life = Life(disk, ledger, 1)
    life.create("q")
    life.append("q", 3)
    life.turn()
    return ledger, life


def test_disk_model_lists_possible_contents_and_names() -> None:
    file = File(b"a" * 500)
    file.versions.append(b"a" * 500 + b"b" * 1000)
    forms = file.forms()
    assert forms[0] == b"a" * 500 and forms[-1] == file.versions[-1]
    assert file.versions[-1][:512] in forms and file.versions[-1][:1024] in forms  # torn at a sector
    assert b"a" * 500 + bytes(1000) in forms  # the size was written, the bytes were not
    assert b"a" * 500 + b"b" * 12 + bytes(512) + b"b" * 476 in forms  # one sector was not written
    disk = Disk({"/d": None, "/d/old": b"1"})
    disk.rename("/d/old", "/d/new")
    disk.mkdir("/d/deep")
    disk.close(disk.open("/d/deep/file", os.O_CREAT))
    names = [sorted(each) for each in disk.names()]
    assert ["/d", "/d/old"] in names and ["/d", "/d/new"] in names
    assert ["/d", "/d/deep", "/d/old"] in names and ["/d", "/d/deep", "/d/deep/file", "/d/new"] in names
    assert not any("/d/deep/file" in each and "/d/deep" not in each for each in names)
    disk.fsync_dir("/d")
    assert sorted(disk.names()[0]) == ["/d", "/d/deep", "/d/new"]


@pytest.mark.parametrize("broken", ["fdatasync", "fsync_dir"])
def test_search_finds_missing_sync(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """A broker that confirms without syncing its files, or their names."""
    monkeypatch.setattr(Disk, broken, lambda disk, argument: disk.changed())
    with pytest.raises(AssertionError, match="is lost|count as lost"):
        search(1, 2_000, set(), draws=2, lived_in=0.0)


def walk(name: str, seeds: int = 3) -> None:
    (workload,) = [each for each in WORKLOADS if each.name == name]
    for seed in range(seeds):
        Search(seed, set(), share=0.03, draws=1, lived_in=0.0).run(workload)


def change_settled_entries(monkeypatch: pytest.MonkeyPatch, change: Callable[[int, int, bytes], bytes]) -> None:
    """Change the entries that the broker writes to `.settled`: `change` gets kind, offset and entry."""
    write = Disk.write

    def write_changed(disk: Disk, fd: int, data: bytes) -> int:
        if disk.path_of(fd).endswith(".settled"):
            entries = [data[start : start + ENTRY_SIZE] for start in range(0, len(data), ENTRY_SIZE)]
            changed = [change(each[4], int.from_bytes(each[8:16], "big", signed=True), each) for each in entries]
            write(disk, fd, b"".join(changed))
        else:
            write(disk, fd, data)
        return len(data)

    monkeypatch.setattr(Disk, "write", write_changed)


def mark_further(count: int) -> Callable[[int, int, bytes], bytes]:
    def change(kind: int, offset: int, entry: bytes) -> bytes:
        return encode_entry(DELIVERED, offset + count, 0, 0) if kind == DELIVERED else entry

    return change


def without(forgotten: int) -> Callable[[int, int, bytes], bytes]:
    return lambda kind, _, entry: b"" if kind == forgotten else entry


PACED_DEFECTS = {
    "a settlement is never written": ("settled and not yet written", without(SETTLED), "settled for good"),
    "a mark is forgotten": ("settled and not yet written", without(DELIVERED), "does not come as redelivered"),
    "a burst's mark runs ahead": ("settled and not yet written", mark_further(2), "never delivered"),
    "marks run ahead without bound": ("marks that run ahead", mark_further(AHEAD_MAX), "never delivered"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", PACED_DEFECTS)
def test_search_finds_wrong_delayed_entries(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    workload, change, words = PACED_DEFECTS[defect]
    change_settled_entries(monkeypatch, change)
    with pytest.raises(AssertionError, match=words):
        walk(workload)


def test_search_finds_acks_that_are_never_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No confirm depends on that sync, but a later power cut must not bring the message back."""
    fdatasync = Disk.fdatasync

    def sync_other_files(disk: Disk, fd: int) -> None:
        if not disk.path_of(fd).endswith(".settled"):
            fdatasync(disk, fd)

    monkeypatch.setattr(Disk, "fdatasync", sync_other_files)
    with pytest.raises(AssertionError, match="settled for good|count as lost"):
        walk("marks that run ahead")


def test_search_finds_late_timer_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tick comes after 150 ms instead of 50 ms."""
    later = Timers.later
    monkeypatch.setattr(Timers, "later", lambda timers, delay_s, call: later(timers, delay_s + 0.1, call))
    with pytest.raises(AssertionError, match="settled for good"):
        walk("settled and not yet written")


def test_search_finds_files_removed_although_deletion_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start may still find the queue's row, and then must find its messages."""
    fail = Life.fail

    def files_first(life: Life, rows: dict[str, str]) -> None:
        for queue, state in rows.items():
            if state == "deleting":
                life.storage.retire_queue(life.stores[queue], lambda: None)
                life.loop()
        fail(life, rows)

    monkeypatch.setattr(Life, "fail", files_first)
    with pytest.raises(AssertionError, match="is lost"):
        walk("metadata that fails")


def test_judge_reports_each_kind_of_violation() -> None:
    ledger, life = first_life()
    life.deliver("q", life.live("q")[:1])
    life.settle("q", life.live("q")[1:2])
    life.turn()
    life.flush()
    good = find(life)
    bodies = [body for body, _, _ in good["q"].messages]
    seen = good["q"]._replace(messages=[(bodies[0], True, 0), (bodies[1], False, 0)])
    judge({"q": seen}, ledger, "cut")
    first, last = seen.messages
    settled = (ledger.queues["q"][1].body, False, 0)
    bad = {
        "is lost": [first],
        "was delivered": [(first[0], False, 0), last],
        "never delivered": [first, (last[0], True, 0)],
        "comes after": [last, first],
        "settled for good": [first, settled, last],
        "never published": [first, (b"foreign", False, 0), last],
        r"comes after 0": [first, first, last],
    }
    for words, messages in bad.items():
        with pytest.raises(Violation, match=words):
            judge({"q": seen._replace(messages=messages, record_count=len(messages))}, ledger, "kill")
    for words, odd in {
        "count as lost": seen._replace(lost=[(0, 1)]),
        "are counted": seen._replace(record_count=7),
        "used again": seen._replace(next_offset=2),
    }.items():
        with pytest.raises(Violation, match=words):
            judge({"q": odd}, ledger, "cut")


@pytest.mark.parametrize("broken", ["not renamed", "not synced"])
def test_search_finds_deleted_queue_that_keeps_its_directory(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """After a loss of the metadata the deleted queue would be restored."""
    if broken == "not renamed":
        monkeypatch.setattr(DirectoryRemover, "_rename", lambda departures, chains: None)
    else:
        monkeypatch.setattr("amqpd.storage.directory_removal.sync_with_retry", lambda filesystem, sync, path: None)
    with pytest.raises(AssertionError, match="whose deletion was answered|which is deleting, is still there"):
        walk("delete and declare again")


@pytest.mark.slow
def test_search_finds_unsynced_queue_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of the metadata the confirmed messages would belong to no queue."""
    fsync_file = Disk.fsync_file
    monkeypatch.setattr(
        Disk, "fsync_file", lambda disk, path: None if path.endswith("queue.json") else fsync_file(disk, path)
    )
    with pytest.raises(AssertionError, match="is not there, with message"):
        walk("append and confirm")


JOURNAL_DEFECTS = {
    "frames are not synced": ("commits in the journal", "frames"),
    "a compacted segment does not empty the journal": ("compaction and the journal", "compaction"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", JOURNAL_DEFECTS)
def test_search_finds_defects_of_the_journal(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    workload, kind = JOURNAL_DEFECTS[defect]
    if kind == "frames":
        fdatasync = Disk.fdatasync

        def sync_others(disk: Disk, fd: int) -> None:
            if "journal" not in disk.path_of(fd):
                fdatasync(disk, fd)

        monkeypatch.setattr(Disk, "fdatasync", sync_others)
    else:
        monkeypatch.setattr(FsyncThread, "empty_journal", lambda thread: None)
    with pytest.raises(AssertionError, match="is lost|count as lost|never published|comes after"):
        walk(workload, seeds=20)
