"""A log is cut while it is open: what is behind the cut is gone for good, what is before it stays as it was."""

from __future__ import annotations

import random
from typing import Any

import pytest
from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log import checkpoint
from amqpd.storage.log.segment import Segment
from amqpd.storage.log.truncation import LogBusy
from amqpd.storage.queue_log import LogFailed


def fill(house: Any, turns: int, count: int = 10, size: int = 100) -> None:
    """`turns` batches of `count` messages, whose bodies tell their offsets."""
    for _ in range(turns):
        first = house.store.next_offset
        house.append(*[b"%d" % offset + b"x" * size for offset in range(first, first + count)])
        house.turn()


def number(body: bytes) -> int:
    return int(body.rstrip(b"xy"))


def test_batches_at_the_offset_and_behind_it_go(house: Any) -> None:
    store = house.begin()
    fill(house, 10)
    assert store.truncate_to(50) == 50
    assert (store.next_offset, store.record_count, store.high_watermark) == (50, 50, 50)
    assert house.offsets() == list(range(50))
    sizes = store.size_bytes
    assert house.append(b"50y") == [50]
    house.turn()
    assert house.bodies()[-1] == b"50y"
    assert store.size_bytes == sizes + 3
    for left in (house.filesystem.killed(), house.filesystem.crashed(3)):
        again = house.again(left)
        assert (again.next_offset, again.record_count, again.lost, again.size_bytes) == (51, 51, [], sizes + 3)
        assert [number(body) for body in house.bodies()] == list(range(51))


def test_a_batch_goes_as_a_whole(house: Any) -> None:
    store = house.begin()
    fill(house, 3)
    assert store.truncate_to(15) == 10
    assert house.offsets() == list(range(10))
    assert store.truncate_to(10) == 10
    assert store.truncate_to(99) == 10
    assert store.truncate_to(0) == 0
    assert (house.offsets(), store.record_count, store.size_bytes) == ([], 0, 0)
    assert house.append(b"0y") == [0]


def test_what_was_not_yet_written_goes_too(house: Any) -> None:
    store = house.begin()
    fill(house, 2)
    house.append(b"20x", b"21x")
    assert store.truncate_to(20) == 20
    house.turn()
    assert house.offsets() == list(range(20))
    assert house.commits[-1][1] == []


def test_whole_segments_go(make_house: Any) -> None:
    house = make_house(segment_size_bytes=4096)
    store = house.begin()
    fill(house, 30)
    files = house.names(".log")
    assert len(files) > 5
    assert store.truncate_to(40) == 40
    assert house.names(".log") == [name for name in files if int(name[:20]) <= 40]
    assert house.names(".settled") == [name.replace(".log", ".settled") for name in house.names(".log")]
    fill(house, 30)
    again = house.again()
    assert (again.record_count, again.lost) == (340, [])
    assert [number(body) for body in house.bodies()] == list(range(340))


def test_settlements_and_the_delivery_mark_behind_it_are_dropped(house: Any) -> None:
    store = house.begin()
    fill(house, 5)
    for offset in (3, 25, 45):
        store.mark_delivered(offset)
        store.mark_returned(offset, 2)
    for offset in (5, 26, 46):
        store.settle(offset, 102)
    house.turn()
    assert store.truncate_to(30) == 30
    assert (store.record_count, store.delivered_mark) == (28, 29)
    fill(house, 2)
    assert house.offsets() == [offset for offset in range(50) if offset not in (5, 26)]
    assert [store.delivery_count(offset) for offset in (3, 25, 45)] == [2, 2, 0]
    assert not store.redelivered(45)
    left = house.filesystem.killed()
    store = house.again(left)
    assert house.offsets() == [offset for offset in range(50) if offset not in (5, 26)]
    assert store.delivered_mark == 29
    assert [store.redelivered(offset) for offset in (29, 30, 45)] == [True, False, False]


def test_a_new_epoch_begins(house: Any) -> None:
    house.begin()
    fill(house, 2)
    store = house.again()
    fill(house, 2)
    assert store.log.epochs == [(0, 0), (1, 20)]
    store.truncate_to(10)
    assert store.log.epochs == [(0, 0), (2, 10)]
    fill(house, 1)
    assert [epoch for epoch, _ in house.again().log.epochs] == [0, 2]


def test_a_transaction_goes_as_a_whole(house: Any) -> None:
    store = house.begin()
    fill(house, 1)
    store.begin_transaction()
    house.append(*[b"%d" % offset for offset in range(10, 210)])
    store.end_transaction()
    house.turn()
    assert store.next_offset == 211  # its commit marker has an offset
    assert store.truncate_to(211) == 211
    assert store.truncate_to(100) == 10
    assert house.offsets() == list(range(10))


def test_what_is_below_the_log_cannot_be_its_end(make_house: Any) -> None:
    house = make_house(segment_size_bytes=4096)
    store = house.begin()
    fill(house, 20)
    store.settle_range(0, 99)
    house.turn()
    house.turn()
    assert int(house.names(".log")[0][:20]) > 0
    with pytest.raises(ValueError, match="starts behind"):
        store.truncate_to(0)
    assert not store.failed
    assert house.offsets() == list(range(100, 200))


def test_not_in_a_job(house: Any) -> None:
    store = house.begin()
    fill(house, 2)
    house.append(b"20x")
    house.storage.commits.end_of_turn()  # what the job answers is posted
    with pytest.raises(LogBusy):
        store.truncate_to(10)
    assert house.offsets() == list(range(21))
    house.loop()
    assert store.truncate_to(10) == 10


def test_after_a_disk_that_fails_the_log_takes_nothing_more(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = house.begin()
    fill(house, 3)

    def fails(self: object, path: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "fsync_file", fails)
        with pytest.raises(LogFailed):
            store.truncate_to(10)
    assert store.failed
    again = house.again()
    assert house.offsets() == list(range(again.next_offset))
    assert (again.next_offset in (10, 20, 30), again.lost) == (True, [])


def test_not_while_the_disk_is_asked_for_it(house: Any) -> None:
    """Whoever waits for what is read ahead would wait for ever."""
    store = house.begin()
    fill(house, 3)
    file = store.log.segments[0].open_log()
    file.pins += 1
    with pytest.raises(LogBusy):
        store.truncate_to(10)
    file.unpin()
    assert store.truncate_to(10) == 10


def test_who_waits_for_what_goes_is_told(house: Any) -> None:
    """And not that it is safe, once other messages at its offsets are."""
    store = house.begin()
    fill(house, 1)
    told: list[tuple[int, bool]] = []
    house.append(b"10x", b"11x")
    for offset in (9, 10, 11):
        store.when_safe(offset, lambda safe, offset=offset: told.append((offset, safe)))  # type: ignore[misc]
    assert store.truncate_to(10) == 10
    assert told == [(9, True), (10, False), (11, False)]
    house.append(b"10y")
    house.turn()
    assert len(told) == 3


def test_segments_sealed_in_this_turn_leave_no_recovery_point(make_house: Any) -> None:
    """It would stand above the end, and the next start would not check what is appended below it."""
    house = make_house(segment_size_bytes=4096)
    store = house.begin()
    for first in range(0, 120, 10):
        house.append(*[b"%d" % offset + b"x" * 100 for offset in range(first, first + 10)])
        house.offsets()  # what is read is written
    assert len(house.names(".log")) > 3
    assert store.truncate_to(10) == 10
    house.turn()
    path = f"{house.directory}/{checkpoint.RECOVERY_POINT}"
    assert checkpoint.read_lines(house.filesystem, path, 1) == [(0,)]


def test_what_recovery_wanted_synced_goes(make_house: Any) -> None:
    """The first job after a kill would look for files that are not there."""
    house = make_house(segment_size_bytes=4096)
    store = house.begin()
    fill(house, 12)
    for offset in range(0, 120, 7):
        store.settle(offset, 102)
    house.turn()
    store = house.again()
    assert len(store.log.unsynced.paths) > 2
    assert store.truncate_to(10) == 10
    fill(house, 1)
    assert (store.failed, house.commits[-1][1]) == (False, [])


def test_files_written_anew_get_no_name_behind_it(make_house: Any, caplog: pytest.LogCaptureFixture) -> None:
    house = make_house(segment_size_bytes=1 << 16)
    store = house.begin()
    fill(house, 200)
    assert len(store.log.segments) > 3
    for segment in store.log.segments:
        segment.rewrite_from = 32
    for offset in range(0, 1990, 3):
        store.settle(offset, 102)
    assert store.truncate_to(100) == 100
    caplog.clear()
    fill(house, 2)
    assert caplog.text == ""
    assert house.names(".swap") == []
    assert len(house.names(".settled")) == 1


def test_a_sealed_segment_that_is_cut_is_indexed_on(make_house: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Else the file's entries, which fit the batches that went, lead the next cut into the middle of others."""
    house = make_house(segment_size_bytes=60_000)
    store = house.begin()
    fill(house, 70)
    segment = store.log.segments[0]
    assert segment.sealed
    assert store.truncate_to(100) == 100
    while segment.size < 59_000:
        fill(house, 1, 1, 37)
    assert store.log.segments == [segment]
    assert house.offsets(250)[0] == 250
    assert store.truncate_to(300) == 300
    assert house.offsets() == list(range(300))
    assert caplog.text == ""


def test_an_index_that_is_wrong_is_not_believed(make_house: Any) -> None:
    house = make_house(segment_size_bytes=60_000)
    store = house.begin()
    fill(house, 70)
    name = house.names(".index")[0]
    store.log.release()
    house.data(name)[:] = bytes(byte ^ (1 if number % 8 == 7 else 0) for number, byte in enumerate(house.data(name)))
    assert store.truncate_to(200) == 200
    assert house.offsets() == list(range(200))


def test_the_high_watermark_is_lowered_before_anything_goes(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes would count as lost by the next start."""
    store = house.begin()
    fill(house, 3)
    store.release()

    def fails(self: object, path: str, size: int) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedFileSystem, "map", fails)
        assert store.truncate_to(10) == 10
    again = house.again()
    assert (again.next_offset, again.lost) == (10, [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_call_leaves_the_log_whole_or_cut(make_house: Any, seed: int) -> None:
    """Every state that a power cut or a kill may leave on the way: what is before the cut is there, nothing is lost,
    what is behind it is a prefix of what there was; and new messages at its offsets are new.
    """
    chance = random.Random(seed)
    house = make_house(segment_size_bytes=chance.choice([3000, 1 << 20]))
    store = house.begin()
    fill(house, chance.randrange(3, 25))
    end = store.next_offset
    for offset in chance.sample(range(end), chance.randrange(0, end // 2)):
        store.settle(offset, 100)
    house.turn()
    live = set(house.offsets())
    first = int(house.names(".log")[0][:20]) if house.names(".log") else 0
    wanted = chance.randrange(first, end)
    if chance.random() < 0.5:
        store = house.again()
    states: list[SimulatedFileSystem] = []
    filesystem = house.filesystem

    def stop(name: str, path: str) -> None:
        """Before each call."""
        if name not in ("pread", "listdir", "size", "exists"):
            states.append(filesystem.killed())
            states.extend(filesystem.crashed(chance.randrange(1 << 30)) for _ in range(3))

    filesystem.fault = stop
    cut = store.truncate_to(wanted)
    filesystem.fault = None
    assert cut <= wanted
    states += [filesystem.killed(), filesystem.crashed(seed)]
    for number_of_state, left in enumerate(states):
        store = house.again(left)
        assert store.lost == [], number_of_state
        assert cut <= store.next_offset <= end
        assert store.next_offset == cut or number_of_state < len(states) - 2
        found = house.offsets()
        assert found == [offset for offset in sorted(live) if offset < store.next_offset]
        assert all(number(body) == offset for offset, body in zip(found, house.bodies(), strict=True))
        new = house.append(b"%dy" % store.next_offset)
        house.turn()
        assert house.offsets() == found + new


def test_transient_messages_behind_it_never_were(make_house: Any) -> None:
    """The files of a sealed segment tell which offsets were transient: what is appended at those anew is not."""
    house = make_house(segment_size_bytes=4096)
    store = house.begin()
    fill(house, 1)
    for _ in range(3):  # one range of offsets in memory, of which the cut leaves a part
        house.append(*[b"transient" for _ in range(3)], persistent=False)
        house.turn()
    assert store.truncate_to(13) == 13
    assert store.log.segments[0].transient == [(10, 12, 27)]
    fill(house, 12)
    assert len(house.names(".log")) > 1
    sealed = store.log.segments[0]
    assert sealed.sealed and sealed.end > 19
    again = house.again()
    assert house.offsets() == [*range(10), *range(13, 133)]
    assert (again.record_count, again.lost) == (130, [])


def test_ranges_lost_behind_it_never_were(house: Any) -> None:
    """Nor do the files call offsets lost that are given out again."""
    store = house.begin()
    fill(house, 5)
    store.log.note_lost(store.log.segments[0], 25, 44)
    store.recount()
    house.turn()
    assert store.truncate_to(30) == 30
    assert store.log.segments[0].lost == [(25, 29)]
    fill(house, 2)
    again = house.again()
    assert house.offsets() == [*range(25), *range(30, 50)]
    assert again.lost == [(25, 29)]


@pytest.mark.parametrize(
    ("ranges", "end", "left"),
    [
        ([(2, 4), (6, 8)], 9, [(2, 4), (6, 8)]),
        ([(2, 4), (6, 8)], 8, [(2, 4), (6, 7)]),
        ([(2, 4), (6, 8)], 6, [(2, 4)]),
        ([(2, 4), (6, 8)], 5, [(2, 4)]),
        ([(2, 4), (6, 8)], 2, []),
        ([(2, 4), (6, 8)], 0, []),
        ([(6, 8)], 6, []),
    ],
)
def test_a_range_that_begins_at_the_end_or_beyond_goes(
    ranges: list[tuple[int, int]], end: int, left: list[tuple[int, int]]
) -> None:
    """Recovery and an open log cut by the same rule."""
    segment = Segment(SimulatedFileSystem(), "/log", 0)
    for first, last in ranges:
        segment.settled.add(first, last)
    segment.gaps = list(ranges)
    segment.lost = list(ranges)
    segment.transient_gone = [(first, last, 10) for first, last in ranges]
    segment.forget_settled(end)
    assert segment.settled.ranges() == left
    assert segment.settled.highest == max([last for _, last in left], default=-1)
    assert segment.gaps == segment.lost == left
    assert segment.transient_gone == [(first, last, 10) for first, last in ranges if last < end]
