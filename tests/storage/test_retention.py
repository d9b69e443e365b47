"""Retention of stream logs by age, bytes, records and offset; removal of files; crashes during a trim."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.acks.ack_set import AckSet
from amqpd.storage.clock_watch import ClockWatch
from amqpd.storage.log.checkpoint import read_lines
from amqpd.storage.maintenance import LogMaintenance
from amqpd.storage.retention import trim
from amqpd.storage.retention_policy import FILE_DELETE_DELAY_MS, RetentionPolicy

HOUR = 3_600_000


def fill_log(harness: Any, policy: RetentionPolicy, turns: int = 10, step_ms: int = HOUR) -> None:
    """Fill a log of several segments of about two batches, with an hour between two batches."""
    harness.create_log()
    harness.storage.set_policy(harness.store, policy)
    for turn in range(turns):
        harness.append(*(b"%d.%d" % (turn, number) + b"." * 300 for number in range(3)))
        harness.end_turn()
        harness.clock.now_ms += step_ms


def maintain(harness: Any) -> None:
    harness.storage.maintain()
    harness.end_turn()
    harness.storage.commits.flush()
    harness.run_callbacks()


@pytest.fixture
def small(make_harness: Any) -> Any:
    return make_harness(segment_size_bytes=2500)


def test_no_policy_removes_nothing(small: Any) -> None:
    fill_log(small, RetentionPolicy())
    names = small.names(".log")
    assert len(names) > 4
    maintain(small)
    assert small.names(".log") == names
    assert small.offsets() == list(range(30))


def test_clock_jump_ages_nothing_until_it_is_accepted(small: Any) -> None:
    fill_log(small, RetentionPolicy(max_age_ms=11 * HOUR))
    names = small.names(".log")
    small.clock.jump_ms = 24 * HOUR
    maintain(small)
    small.append(b"stamped by the clock that jumped")
    small.end_turn()
    assert small.names(".log") == names
    small.clock.now_ms += HOUR // 2
    maintain(small)
    assert small.offsets() == list(range(31))
    small.storage.clock_watch.accept()
    maintain(small)
    assert small.offsets() == list(range(24, 31)), "the segment with the young message is kept"


def test_after_jump_back_messages_young_by_the_new_clock_are_kept(small: Any) -> None:
    fill_log(small, RetentionPolicy(max_age_ms=11 * HOUR))
    small.clock.jump_ms = -24 * HOUR
    small.append(b"a day younger by its stamp")
    small.end_turn()
    maintain(small)
    assert small.offsets() == list(range(31))


def test_max_bytes_removes_old_segments(small: Any) -> None:
    fill_log(small, RetentionPolicy(max_bytes=5000))
    before = [len(small.log(number)) for number in range(len(small.names(".log")))]
    maintain(small)
    sizes = [len(small.log(number)) for number in range(len(small.names(".log")))]
    assert sum(sizes) >= 5000 > sum(sizes[1:]), "the oldest segment is removed if the others have max_bytes"
    assert before[-len(sizes) :] == sizes
    first = int(small.names(".log")[0][:20])
    assert small.offsets() == list(range(first, 30))
    assert small.store.record_count == 30 - first
    assert small.store.log.start_offset() == first
    assert len(small.restart().cursor.read(0, 1 << 30).records) == 30 - first


def test_active_segment_is_never_removed_by_size(make_harness: Any) -> None:
    harness = make_harness()
    fill_log(harness, RetentionPolicy(max_bytes=1))
    maintain(harness)
    assert harness.offsets() == list(range(30))


def test_max_age_removes_old_segments(small: Any) -> None:
    fill_log(small, RetentionPolicy(max_age_ms=5 * HOUR))
    maintain(small)
    oldest = small.store.cursor.read(0, 1).records[0]
    segment = small.store.log.segment_of(oldest.offset)
    assert segment.latest_ms() >= small.clock.now_ms - 5 * HOUR
    assert small.offsets() == list(range(oldest.offset, 30))
    assert oldest.offset > 0


def test_max_age_after_a_restart(small: Any) -> None:
    """`.settled` holds the times of sealed segments with a checksum, so a damaged `.timeindex` changes nothing."""
    fill_log(small, RetentionPolicy(max_age_ms=5 * HOUR))
    small.storage.close(clean=True)
    for name in small.names(".timeindex"):
        small.data(name)[:] = bytes(24)
    store = small.restart()
    small.storage.set_policy(store, RetentionPolicy(max_age_ms=5 * HOUR))
    maintain(small)
    assert 0 < len(small.offsets()) < 30
    assert small.store.cursor.read(0, 1).records[0].timestamp_ms >= small.clock.now_ms - 7 * HOUR


def test_segment_without_stored_times_reads_its_batches(small: Any) -> None:
    """The times are neither in `.settled` nor in `.timeindex`."""
    fill_log(small, RetentionPolicy())
    for segment in small.store.log.segments:
        if segment.sealed:
            known, segment.max_timestamp_ms = segment.max_timestamp_ms, -1
            assert segment.latest_ms() == known
            segment.max_timestamp_ms = -1
            small.data(f"{segment.base:020d}.log")[16] = 9  # not a valid batch any more
            assert segment.latest_ms() > small.clock.now_ms, "a segment of unknown age is not removed"


def test_expired_active_segment_is_rolled_and_removed(small: Any) -> None:
    fill_log(small, RetentionPolicy(max_age_ms=HOUR))
    small.clock.now_ms += 100 * HOUR
    maintain(small)
    assert small.offsets() == []
    assert small.store.record_count == 0
    assert len(small.names(".log")) == 1, "the active segment is rolled and removed"
    assert small.append(b"new") == [30]
    small.end_turn()
    assert small.restart().next_offset == 31
    assert small.offsets() == [30]


def test_segment_is_rolled_by_age(make_harness: Any) -> None:
    harness = make_harness()
    fill_log(harness, RetentionPolicy(segment_age_ms=3 * HOUR), turns=2)
    maintain(harness)
    assert len(harness.names(".log")) == 1
    harness.clock.now_ms += 2 * HOUR
    maintain(harness)
    assert len(harness.names(".log")) == 2
    harness.clock.now_ms += 20 * HOUR
    maintain(harness)
    assert len(harness.names(".log")) == 2, "an empty segment is not rolled"
    assert harness.offsets() == list(range(6))


def append_and_ack(harness: Any, count: int, size: int = 1000) -> None:
    for offset in harness.append(*(b"." * size for _ in range(count))):
        harness.store.ack(offset, size)
    harness.end_turn()


def test_drained_active_segment_is_removed(make_harness: Any) -> None:
    """Appends roll it at 16 MiB, upkeep at 64 KiB, so that an idle queue uses no disk space."""
    harness = make_harness()
    harness.create_log()
    append_and_ack(harness, 40)
    maintain(harness)
    assert harness.names(".log") == ["00000000000000000000.log"], "too small for a new file"
    append_and_ack(harness, 40)
    maintain(harness)
    assert harness.names(".log") == ["00000000000000000080.log"]
    assert len(harness.log()) == 0
    maintain(harness)
    assert harness.names(".settled") == ["00000000000000000080.settled"]
    store = harness.restart()
    assert (store.record_count, store.next_offset) == (0, 80)
    assert harness.append(b"next") == [80]
    harness.end_turn()
    assert harness.bodies() == [b"next"]


def test_segment_with_a_message_is_kept(make_harness: Any) -> None:
    harness = make_harness()
    harness.create_log()
    append_and_ack(harness, 40)
    harness.append(b"wanted")
    append_and_ack(harness, 40)
    maintain(harness)
    assert harness.names(".log") == ["00000000000000000000.log"]
    assert harness.bodies() == [b"wanted"]


def test_segment_of_a_work_queue_is_rolled_by_age(make_harness: Any) -> None:
    harness = make_harness(segment_age_ms=3 * HOUR)
    harness.create_log()
    first = harness.append(b"a", b"b")
    harness.end_turn()
    harness.clock.now_ms += 2 * HOUR
    maintain(harness)
    assert len(harness.names(".log")) == 1
    harness.clock.now_ms += 2 * HOUR
    harness.append(b"c")  # during a turn
    maintain(harness)
    assert harness.names(".log") == ["00000000000000000000.log", "00000000000000000003.log"]
    harness.append(b"d")
    harness.end_turn()
    assert harness.bodies() == [b"a", b"b", b"c", b"d"]
    for offset in [*first, 2]:
        harness.store.ack(offset, 1)
    harness.end_turn()
    harness.storage.commits.flush()
    harness.run_callbacks()
    assert harness.names(".log") == ["00000000000000000003.log"], "the old, acked segment is removed"
    assert read_lines(harness.filesystem, f"{harness.directory}/recovery-point-checkpoint", 1) == [(3,)]
    harness.restart()
    assert harness.bodies() == [b"d"]


def test_unused_log_is_not_opened(make_harness: Any) -> None:
    harness = make_harness(segment_age_ms=HOUR)
    harness.create_log()
    append_and_ack(harness, 100)
    harness.filesystem = harness.filesystem.killed()
    harness._open_storage()
    store = harness.storage.open_queue("v", harness.queue_id)
    harness.clock.now_ms += 100 * HOUR
    maintain(harness)
    assert not store.ready


POLICIES = [RetentionPolicy(), RetentionPolicy(segment_size_bytes=1 << 20), RetentionPolicy(max_age_ms=1)]


@pytest.mark.parametrize("policy", POLICIES)
def test_upkeep_opens_a_log_only_if_its_policy_can_remove(make_harness: Any, policy: RetentionPolicy) -> None:
    harness = make_harness(segment_size_bytes=2500)
    fill_log(harness, policy)
    harness.filesystem = harness.filesystem.killed()
    harness._open_storage()
    store = harness.storage.open_queue("v", harness.queue_id, policy=policy)
    maintain(harness)
    assert store.ready is policy.removes


def test_failed_sync_of_an_earlier_group_fails_the_confirm(make_harness: Any) -> None:
    """Upkeep writes the records of an open turn into an earlier group. If that group's sync fails, the turn's own group
    must name the log too, because the publishers wait for that one.
    """
    harness = make_harness(segment_age_ms=HOUR)
    harness.create_log()
    harness.append(b"a")
    harness.end_turn()
    harness.clock.now_ms += 2 * HOUR
    harness.append(b"b")
    harness.storage.maintain()
    harness.filesystem.fault = lambda name, path: OSError(5, "EIO") if name == "fdatasync" else None
    harness.run_callbacks()  # the earlier group is submitted and fails
    generation = harness.storage.commits.generation
    harness.end_turn()
    failed = [stores for number, stores in harness.commits if number >= generation]
    assert failed == [[harness.store]]


def test_upkeep_runs_in_slices(make_harness: Any) -> None:
    """The loop runs other work between two slices, and a round in progress is not started again."""

    class SlowClock(SimulatedClock):
        """Each reading of the clock takes 2 ms."""

        def monotonic(self) -> float:
            self.now_ms += 2
            return self.now_ms / 1000

    posted: list[Any] = []
    clock = SlowClock()
    tasks: list[Any] = []
    fsync_thread = SimpleNamespace(submit=tasks.append)
    maintenance = LogMaintenance(
        SimulatedFileSystem(), ClockWatch(clock), fsync_thread, posted.append, print, (0, 0), -1, False
    )
    harness = make_harness()
    harness.create_log()
    stores = [harness.storage.create_queue("v", f"q{number}")[1] for number in range(20)]
    for store in stores:
        store.log.removals.schedule(["x"], clock.now_ms)
    done_counts: list[int] = []
    maintenance.maintain(stores)
    while posted:
        done_counts.append(sum(not store.log.removals.renamed_paths for store in stores))
        maintenance.maintain(stores)  # does not start a second round
        assert len(posted) == 1
        posted.pop()()
    assert len(done_counts) >= 5
    assert done_counts == sorted(set(done_counts)), "each slice continues where the last one ended"
    assert not any(store.log.removals.renamed_paths for store in stores)
    assert len(tasks) == 1, "one task removes the files of all logs"


def test_files_are_renamed_first_and_removed_later(small: Any) -> None:
    fill_log(small, RetentionPolicy(max_bytes=2500))
    maintain(small)
    deleted_names = small.names(".deleted")
    assert [name for name in deleted_names if name.endswith(".log.deleted")]
    assert [name for name in deleted_names if name.endswith(".timeindex.deleted")]
    small.clock.now_ms += FILE_DELETE_DELAY_MS - 1
    maintain(small)
    assert small.names(".deleted") == deleted_names
    small.clock.now_ms += 1
    maintain(small)
    assert small.names(".deleted") == []


def test_start_removes_renamed_files(small: Any) -> None:
    fill_log(small, RetentionPolicy(max_bytes=2500))
    maintain(small)
    offsets = small.offsets()
    assert small.names(".deleted")
    small.restart()
    assert small.names(".deleted") == []
    assert small.offsets() == offsets


class SyncedStarts(SimulatedFileSystem):
    """Remembers the log-start checkpoints that it has synced."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.synced: list[int] = []

    def replace_file(self, path: str, data: bytes, *, sync: bool) -> None:
        super().replace_file(path, data, sync=sync)
        if path.endswith("/log-start-offset-checkpoint") and sync:
            self.synced.append(int(data.split()[-1]))


def test_only_a_deletion_within_a_segment_syncs_the_checkpoint(small: Any) -> None:
    """The names of the segments tell the rest, so removals of segments cost queues and streams no sync."""
    small.filesystem = disk = SyncedStarts()
    small.create_log()
    for number in range(12):
        small.append(*(b"." * 300 for _ in range(3)))
        small.end_turn()
        for offset in range(3 * number, 3 * number + 3):
            small.store.ack(offset, 300)
        small.end_turn()
        small.storage.commits.flush()
        small.run_callbacks()
    assert int(small.names(".log")[0][:20]) > 6
    small.storage.close(clean=True)
    fill_log(small, RetentionPolicy(max_bytes=6000))
    before = small.names(".log")
    maintain(small)
    assert len(small.names(".log")) < len(before)
    assert not disk.synced
    base = int(small.names(".log")[1][:20])
    for offset in (base, base + 1):
        trim(small.store, offset)
        maintain(small)
    assert disk.synced == [base + 1]


def test_a_deletion_outlives_the_removal_of_segments_that_exporters_held(small: Any) -> None:
    fill_log(small, RetentionPolicy(file_delete_delay_ms=0))
    hold = small.storage.export_hold(small.store)
    hold.declare("lake", 1 << 20)
    assert trim(small.store, 14) == 14
    maintain(small)
    assert int(small.names(".log")[0][:20]) == 0
    hold.commit("lake", int(small.names(".log")[1][:20]))
    small.storage.on_export_hold_changed(small.store)
    maintain(small)
    assert 0 < int(small.names(".log")[0][:20]) < 14
    for _ in range(2):
        assert (small.store.segment_start(), small.store.log_start()) == (14, 14)
        store = small.restart()
        small.storage.set_policy(store, RetentionPolicy())


def test_trim_is_exact_to_the_record(small: Any) -> None:
    fill_log(small, RetentionPolicy())
    assert trim(small.store, 14) == 14
    small.end_turn()
    small.storage.commits.flush()
    small.run_callbacks()
    assert small.offsets() == list(range(14, 30))
    path = f"{small.directory}/log-start-offset-checkpoint"
    assert read_lines(small.filesystem, path, 1) == [(14,)]
    assert int(small.names(".log")[0][:20]) <= 14 < int(small.names(".log")[1][:20])
    assert trim(small.store, 3) == 14, "the log start never decreases"
    store = small.restart()
    assert small.offsets() == list(range(14, 30))
    assert store.log.start_offset() == 14
    assert trim(store, 1000) == 30
    assert small.offsets() == []


def test_committed_trim_survives_a_power_cut(small: Any) -> None:
    fill_log(small, RetentionPolicy(), turns=6)
    trim(small.store, 10)
    small.end_turn()
    small.storage.commits.flush()
    small.run_callbacks()
    image = small.filesystem
    for seed in range(60):
        store = small.restart(image.crashed(seed), boot_id="2" * 32)
        assert small.offsets() == list(range(10, 18)), seed
        assert store.next_offset == 18
        assert not store.has_lost_offsets


def test_power_cut_during_a_trim_removes_no_other_record(small: Any) -> None:
    """After a power cut at any call some of the trimmed records may still be there."""
    fill_log(small, RetentionPolicy(), turns=6)
    base = small.filesystem
    number = 0
    seen = set()
    while number < 60:
        small.restart(base.killed())
        small.storage.set_policy(small.store, RetentionPolicy())
        calls_left = [number]

        def fault(name: str, path: str, calls_left: list[int] = calls_left) -> OSError | None:
            if calls_left[0] == 0:
                raise KeyboardInterrupt  # the machine stops here
            calls_left[0] -= 1
            return None

        filesystem = small.filesystem
        filesystem.fault = fault
        try:
            trim(small.store, 10)
            small.end_turn()
            small.storage.commits.flush()
            small.run_callbacks()
        except KeyboardInterrupt:
            pass
        completed = calls_left[0] > 0
        filesystem.fault = None
        for seed in range(4):
            small.restart(filesystem.crashed(seed))
            offsets = small.offsets()
            assert offsets == sorted(set(offsets))
            assert set(range(10, 18)) <= set(offsets) <= set(range(18))
            assert small.store.record_count == len(offsets)
            seen.add(len(offsets))
            small.append(b"more")
            small.end_turn()
            assert small.offsets()[-1] == 18
        number += 1
        if completed:
            break
    assert {18, 8} <= seen


def test_first_free_is_the_first_offset_not_acked() -> None:
    ack_set = AckSet(100)
    assert ack_set.first_free() == 100
    ack_set.add(105, 105)
    assert ack_set.first_free() == 100
    ack_set.add(100, 103)
    assert ack_set.first_free() == 104
    ack_set.add(100, 110)
    for offset in range(120, 2000, 2):  # so many that they are kept as bits
        ack_set.add(offset, offset)
    assert ack_set.range_count() == -1
    assert ack_set.first_free() == 111
    ack_set.add(111, 130)
    assert ack_set.first_free() == 131


def test_upkeep_continues_behind_a_log_that_cannot_be_opened(make_harness: Any) -> None:
    harness = make_harness(segment_size_bytes=2500, strict=True)
    fill_log(harness, RetentionPolicy())
    harness.storage.commits.flush()
    harness.run_callbacks()
    harness.log(1)[200] ^= 1
    harness.filesystem = harness.filesystem.killed()
    harness._open_storage()
    damaged = harness.storage.open_queue("v", harness.queue_id, policy=RetentionPolicy(max_bytes=1))
    _, harness.store = harness.storage.create_queue("v", "other", policy=RetentionPolicy(max_bytes=3000))
    for _ in range(10):
        harness.append(b"." * 1000)
        harness.end_turn()
    maintain(harness)
    assert not damaged.ready
    assert harness.store.record_count < 10
