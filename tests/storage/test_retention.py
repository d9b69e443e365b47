"""Logs that keep: what goes by age, bytes, records and offset, how its files go, and what a crash leaves of that."""

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


def kept(house: Any, policy: RetentionPolicy, turns: int = 10, step_ms: int = HOUR) -> None:
    """A log of several segments, some two batches each; an hour between two batches."""
    house.begin()
    house.storage.set_policy(house.store, policy)
    for turn in range(turns):
        house.append(*(b"%d.%d" % (turn, number) + b"." * 300 for number in range(3)))
        house.turn()
        house.clock.now_ms += step_ms


def maintain(house: Any) -> None:
    house.storage.maintain()
    house.turn()
    house.storage.commits.flush()
    house.loop()


@pytest.fixture
def small(make_house: Any) -> Any:
    return make_house(segment_size_bytes=2500)


def test_without_a_policy_nothing_goes(small: Any) -> None:
    kept(small, RetentionPolicy())
    names = small.names(".log")
    assert len(names) > 4
    maintain(small)
    assert small.names(".log") == names
    assert small.offsets() == list(range(30))


def test_a_clock_that_jumps_ages_nothing_until_it_is_accepted(small: Any) -> None:
    kept(small, RetentionPolicy(max_age_ms=11 * HOUR))
    names = small.names(".log")
    small.clock.jump_ms = 24 * HOUR
    maintain(small)
    small.append(b"stamped by the clock that jumped")
    small.turn()
    assert small.names(".log") == names
    small.clock.now_ms += HOUR // 2
    maintain(small)
    assert small.offsets() == list(range(31))
    small.storage.clock_watch.accept()
    maintain(small)
    assert small.offsets() == list(range(24, 31)), "the segment that has the young message stays"


def test_after_a_jump_back_nothing_is_old_that_is_young_by_the_new_clock(small: Any) -> None:
    kept(small, RetentionPolicy(max_age_ms=11 * HOUR))
    small.clock.jump_ms = -24 * HOUR
    small.append(b"a day younger by its stamp")
    small.turn()
    maintain(small)
    assert small.offsets() == list(range(31))


def test_bytes(small: Any) -> None:
    kept(small, RetentionPolicy(max_bytes=5000))
    before = [len(small.log(number)) for number in range(len(small.names(".log")))]
    maintain(small)
    sizes = [len(small.log(number)) for number in range(len(small.names(".log")))]
    assert sum(sizes) >= 5000 > sum(sizes[1:]), "the oldest segment goes while the others alone have enough"
    assert before[-len(sizes) :] == sizes
    first = int(small.names(".log")[0][:20])
    assert small.offsets() == list(range(first, 30))
    assert small.store.record_count == 30 - first
    assert small.store.log.start_offset() == first


def test_records(small: Any) -> None:
    kept(small, RetentionPolicy(max_records=10))
    maintain(small)
    count = small.store.record_count
    assert 10 <= count < 10 + 6 + 1
    assert small.offsets() == list(range(30 - count, 30))
    assert count == len(small.again().cursor.read(0, 1 << 30).records)


def test_the_active_segment_stays_whatever_it_holds(make_house: Any) -> None:
    house = make_house()
    kept(house, RetentionPolicy(max_records=1, max_bytes=1))
    maintain(house)
    assert house.offsets() == list(range(30))


def test_age(small: Any) -> None:
    kept(small, RetentionPolicy(max_age_ms=5 * HOUR))
    maintain(small)
    oldest = small.store.cursor.read(0, 1).records[0]
    segment = small.store.log.segment_of(oldest.offset)
    assert segment.latest_ms() >= small.clock.now_ms - 5 * HOUR
    assert small.offsets() == list(range(oldest.offset, 30))
    assert oldest.offset > 0


def test_age_after_a_restart(small: Any) -> None:
    """The times of sealed segments are in `.settled`, with a checksum; a lost `.timeindex` changes nothing."""
    kept(small, RetentionPolicy(max_age_ms=5 * HOUR))
    small.storage.close(clean=True)
    for name in small.names(".timeindex"):
        small.data(name)[:] = bytes(24)
    store = small.again()
    small.storage.set_policy(store, RetentionPolicy(max_age_ms=5 * HOUR))
    maintain(small)
    assert 0 < len(small.offsets()) < 30
    assert small.store.cursor.read(0, 1).records[0].timestamp_ms >= small.clock.now_ms - 7 * HOUR


def test_age_where_nothing_tells_the_times(small: Any) -> None:
    """Neither `.settled` nor `.timeindex`: the batches are asked."""
    kept(small, RetentionPolicy())
    for segment in small.store.log.segments:
        if segment.sealed:
            known, segment.max_timestamp_ms = segment.max_timestamp_ms, -1
            assert segment.latest_ms() == known
            segment.max_timestamp_ms = -1
            small.data(f"{segment.base:020d}.log")[16] = 9  # no batch of ours any more
            assert segment.latest_ms() > small.clock.now_ms, "age removes nothing it cannot tell the age of"


def test_everything_is_too_old(small: Any) -> None:
    kept(small, RetentionPolicy(max_age_ms=HOUR))
    small.clock.now_ms += 100 * HOUR
    maintain(small)
    assert small.offsets() == []
    assert small.store.record_count == 0
    assert len(small.names(".log")) == 1, "the active segment was rolled, so that it could go"
    assert small.append(b"new") == [30]
    small.turn()
    assert small.again().next_offset == 31
    assert small.offsets() == [30]


def test_roll_by_age(make_house: Any) -> None:
    house = make_house()
    kept(house, RetentionPolicy(segment_age_ms=3 * HOUR), turns=2)
    maintain(house)
    assert len(house.names(".log")) == 1
    house.clock.now_ms += 2 * HOUR
    maintain(house)
    assert len(house.names(".log")) == 2
    house.clock.now_ms += 20 * HOUR
    maintain(house)
    assert len(house.names(".log")) == 2, "an empty segment is not rolled"
    assert house.offsets() == list(range(6))


def drained(house: Any, count: int, size: int = 1000) -> None:
    for offset in house.append(*(b"." * size for _ in range(count))):
        house.store.ack(offset, size)
    house.turn()


def test_a_drained_active_segment_gives_its_room_back(make_house: Any) -> None:
    """The road rolls it at 16 MiB; a round of upkeep from 64 KiB on, so an idle queue holds no disk."""
    house = make_house()
    house.begin()
    drained(house, 40)
    maintain(house)
    assert house.names(".log") == ["00000000000000000000.log"], "too small to be worth a new file"
    drained(house, 40)
    maintain(house)
    assert house.names(".log") == ["00000000000000000080.log"]
    assert len(house.log()) == 0
    maintain(house)
    assert house.names(".settled") == ["00000000000000000080.settled"]
    store = house.again()
    assert (store.record_count, store.next_offset) == (0, 80)
    assert house.append(b"next") == [80]
    house.turn()
    assert house.bodies() == [b"next"]


def test_a_segment_with_a_message_in_it_stays(make_house: Any) -> None:
    house = make_house()
    house.begin()
    drained(house, 40)
    house.append(b"wanted")
    drained(house, 40)
    maintain(house)
    assert house.names(".log") == ["00000000000000000000.log"]
    assert house.bodies() == [b"wanted"]


def test_a_work_queue_rolls_by_age(make_house: Any) -> None:
    house = make_house(segment_age_ms=3 * HOUR)
    house.begin()
    first = house.append(b"a", b"b")
    house.turn()
    house.clock.now_ms += 2 * HOUR
    maintain(house)
    assert len(house.names(".log")) == 1
    house.clock.now_ms += 2 * HOUR
    house.append(b"c")  # in the middle of a turn
    maintain(house)
    assert house.names(".log") == ["00000000000000000000.log", "00000000000000000003.log"]
    house.append(b"d")
    house.turn()
    assert house.bodies() == [b"a", b"b", b"c", b"d"]
    for offset in [*first, 2]:
        house.store.ack(offset, 1)
    house.turn()
    house.storage.commits.flush()
    house.loop()
    assert house.names(".log") == ["00000000000000000003.log"], "what is old and settled goes"
    assert read_lines(house.filesystem, f"{house.directory}/recovery-point-checkpoint", 1) == [(3,)]
    house.again()
    assert house.bodies() == [b"d"]


def test_a_log_that_nobody_uses_is_not_opened(make_house: Any) -> None:
    house = make_house(segment_age_ms=HOUR)
    house.begin()
    drained(house, 100)
    house.filesystem = house.filesystem.killed()
    house._storage()
    store = house.storage.open_queue("v", house.queue_id)
    house.clock.now_ms += 100 * HOUR
    maintain(house)
    assert not store.ready


KEEPING = [RetentionPolicy(), RetentionPolicy(segment_size_bytes=1 << 20), RetentionPolicy(max_age_ms=1)]


@pytest.mark.parametrize("policy", KEEPING)
def test_of_logs_that_keep_only_one_that_may_lose_something_is_opened(make_house: Any, policy: RetentionPolicy) -> None:
    house = make_house(segment_size_bytes=2500)
    kept(house, policy)
    house.filesystem = house.filesystem.killed()
    house._storage()
    store = house.storage.open_queue("v", house.queue_id, policy=policy)
    maintain(house)
    assert store.ready is policy.removes


def test_a_confirm_does_not_pass_by_a_sync_that_failed_before_it(make_house: Any) -> None:
    """Upkeep writes what a turn has appended so far into an earlier group. When that group's sync fails, the turn's own
    group must name the log as well: its publishers wait for that one.
    """
    house = make_house(segment_age_ms=HOUR)
    house.begin()
    house.append(b"a")
    house.turn()
    house.clock.now_ms += 2 * HOUR
    house.append(b"b")
    house.storage.maintain()
    house.filesystem.fault = lambda name, path: OSError(5, "EIO") if name == "fdatasync" else None
    house.loop()  # the earlier group is handed over and fails
    generation = house.storage.commits.generation
    house.turn()
    failed = [stores for number, stores in house.commits if number >= generation]
    assert failed == [[house.store]]


def test_a_round_gives_way(make_house: Any) -> None:
    """Between two slices the loop has its turn; a round that is under way is not begun again."""

    class SlowClock(SimulatedClock):
        """Each look at it takes 2 ms."""

        def monotonic(self) -> float:
            self.now_ms += 2
            return self.now_ms / 1000

    posted: list[Any] = []
    clock = SlowClock()
    tasks: list[Any] = []
    committer = SimpleNamespace(submit=tasks.append)
    upkeep = LogMaintenance(
        SimulatedFileSystem(), ClockWatch(clock), committer, posted.append, print, (0, 0), -1, False
    )
    house = make_house()
    house.begin()
    stores = [house.storage.create_queue("v", f"q{number}")[1] for number in range(20)]
    for store in stores:
        store.log.removals.schedule(["x"], clock.now_ms)
    looked_after: list[int] = []
    upkeep.maintain(stores)
    while posted:
        looked_after.append(sum(not store.log.removals.renamed_paths for store in stores))
        upkeep.maintain(stores)  # does not begin anew
        assert len(posted) == 1
        posted.pop()()
    assert len(looked_after) >= 5
    assert looked_after == sorted(set(looked_after)), "each slice went on where the last one had ended"
    assert not any(store.log.removals.renamed_paths for store in stores)
    assert len(tasks) == 1, "the files of all of them go in one task"


def test_files_are_renamed_first_and_removed_later(small: Any) -> None:
    kept(small, RetentionPolicy(max_records=6))
    maintain(small)
    gone = small.names(".deleted")
    assert [name for name in gone if name.endswith(".log.deleted")]
    assert [name for name in gone if name.endswith(".timeindex.deleted")]
    small.clock.now_ms += FILE_DELETE_DELAY_MS - 1
    maintain(small)
    assert small.names(".deleted") == gone
    small.clock.now_ms += 1
    maintain(small)
    assert small.names(".deleted") == []


def test_a_start_removes_what_was_renamed(small: Any) -> None:
    kept(small, RetentionPolicy(max_records=6))
    maintain(small)
    offsets = small.offsets()
    assert small.names(".deleted")
    small.again()
    assert small.names(".deleted") == []
    assert small.offsets() == offsets


def test_trim_to_the_record(small: Any) -> None:
    kept(small, RetentionPolicy())
    assert trim(small.store, 14) == 14
    small.turn()
    small.storage.commits.flush()
    small.loop()
    assert small.offsets() == list(range(14, 30))
    path = f"{small.directory}/log-start-offset-checkpoint"
    assert read_lines(small.filesystem, path, 1) == [(14,)]
    assert int(small.names(".log")[0][:20]) <= 14 < int(small.names(".log")[1][:20])
    assert trim(small.store, 3) == 14, "the start never goes back"
    store = small.again()
    assert small.offsets() == list(range(14, 30))
    assert store.log.start_offset() == 14
    assert trim(store, 1000) == 30
    assert small.offsets() == []


def test_a_trim_that_was_committed_survives_every_power_cut(small: Any) -> None:
    kept(small, RetentionPolicy(), turns=6)
    trim(small.store, 10)
    small.turn()
    small.storage.commits.flush()
    small.loop()
    image = small.filesystem
    for seed in range(60):
        store = small.again(image.crashed(seed), boot_id="2" * 32)
        assert small.offsets() == list(range(10, 18)), seed
        assert store.next_offset == 18
        assert not store.has_lost_offsets


def test_a_trim_at_work_leaves_the_log_before_or_behind_it(small: Any) -> None:
    """Whatever call the machine ends at: some of what was to go may be there still, and never is more gone."""
    kept(small, RetentionPolicy(), turns=6)
    base = small.filesystem
    number = 0
    seen = set()
    while number < 60:
        small.again(base.killed())
        small.storage.set_policy(small.store, RetentionPolicy())
        left = [number]

        def fault(name: str, path: str, left: list[int] = left) -> OSError | None:
            if left[0] == 0:
                raise KeyboardInterrupt  # the machine ends here
            left[0] -= 1
            return None

        filesystem = small.filesystem
        filesystem.fault = fault
        try:
            trim(small.store, 10)
            small.turn()
            small.storage.commits.flush()
            small.loop()
        except KeyboardInterrupt:
            pass
        done = left[0] > 0
        filesystem.fault = None
        for seed in range(4):
            small.again(filesystem.crashed(seed))
            offsets = small.offsets()
            assert offsets == sorted(set(offsets))
            assert set(range(10, 18)) <= set(offsets) <= set(range(18))
            assert small.store.record_count == len(offsets)
            seen.add(len(offsets))
            small.append(b"more")
            small.turn()
            assert small.offsets()[-1] == 18
        number += 1
        if done:
            break
    assert {18, 8} <= seen


def test_the_first_offset_that_is_not_settled() -> None:
    settled = AckSet(100)
    assert settled.first_free() == 100
    settled.add(105, 105)
    assert settled.first_free() == 100
    settled.add(100, 103)
    assert settled.first_free() == 104
    settled.add(100, 110)
    for offset in range(120, 2000, 2):  # many: bits
        settled.add(offset, offset)
    assert settled.range_count() == -1
    assert settled.first_free() == 111
    settled.add(111, 130)
    assert settled.first_free() == 131


def test_a_log_that_cannot_be_opened_keeps_nobody_else_from_being_looked_after(make_house: Any) -> None:
    house = make_house(segment_size_bytes=2500, strict=True)
    kept(house, RetentionPolicy())
    house.storage.commits.flush()
    house.loop()
    house.log(1)[200] ^= 1
    house.filesystem = house.filesystem.killed()
    house._storage()
    damaged = house.storage.open_queue("v", house.queue_id, policy=RetentionPolicy(max_records=1))
    _, house.store = house.storage.create_queue("v", "other", policy=RetentionPolicy(max_records=3))
    for _ in range(10):
        house.append(b"." * 1000)
        house.turn()
    maintain(house)
    assert not damaged.ready
    assert house.store.record_count < 10
