"""Settled messages that become live again: replay.py, and what a crash leaves of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from amqpd._build import is_compiled
from amqpd.storage.acks.ack_set import AckSet
from amqpd.storage.acks.replay import AckedReplay
from amqpd.storage.acks.replay_file import by_segment, decode_rewind, encode_rewind, replayed_offsets

BODY = b"." * 400


def nothing() -> None: ...


@pytest.fixture
def house(make_house: Callable[..., Any]) -> Any:
    house = make_house(segment_size_bytes=4000)
    house.begin()
    house.storage.retain(house.store, -1, 1 << 40)
    return house


def fill(house: Any, count: int, *, settle: Callable[[int], bool] = lambda offset: True) -> None:
    store = house.store
    for _ in range(count):
        house.append(BODY)
        house.turn()
    for offset in range(store.next_offset - count, store.next_offset):
        if settle(offset):
            store.ack(offset, len(BODY))
    store.write_acks_this_turn()
    rest(house)


def rest(house: Any) -> None:
    for _ in range(4):
        house.clock.now_ms += 100
        house.turn()
        house.storage.commits.flush()
        house.loop()


def wanted(house: Any, offsets: set[int]) -> AckedReplay:
    store = house.store
    made: AckedReplay = house.storage.replay(store)
    for offset in sorted(offsets):
        segment = store.log.segment_of(offset)
        if segment is not None and not segment.is_removed and segment.settled.contains(offset):
            made.add(offset, len(BODY))
    return made


def rewind(house: Any, offsets: set[int]) -> AckedReplay:
    made = wanted(house, offsets)
    made.begin()
    for _ in range(50):
        if made.is_finished:
            break
        made.run_slice()
        rest(house)
    assert made.is_finished
    return made


def live(house: Any) -> set[int]:
    return set(house.offsets())


class TestSet:
    @pytest.mark.parametrize("many", [False, True])
    def test_it_is_taken_out(self, many: bool) -> None:
        import random

        chance = random.Random(5)
        for _ in range(50):
            base = chance.randrange(1000)
            mine = {base + chance.randrange(2000) for _ in range(1500 if many else 30)}
            other = {base + chance.randrange(2000) for _ in range(chance.choice([0, 3, 1500]))}
            sets = []
            for offsets in (mine, other):
                made = AckSet(base)
                for offset in sorted(offsets):
                    made.add(offset, offset)
                sets.append(made)
            assert sets[0].remove_all(sets[1]) == len(mine & other)
            left = mine - other
            assert sets[0].count == len(left)
            assert {each for each in range(base, base + 2001) if sets[0].contains(each)} == left
            assert sets[0].highest == max(left, default=-1)
            again = base + chance.randrange(2000)
            assert sets[0].add(again, again) == (again not in left)
            assert {each for first, last in sets[0].ranges() for each in range(first, last + 1)} == left | {again}


class TestFile:
    def test_what_it_says(self) -> None:
        few, many = AckSet(10), AckSet(5000)
        few.add(12, 20)
        for offset in range(5000, 9000, 3):
            many.add(offset, offset)
        data = encode_rewind({10: few, 5000: many}, {10: 77, 5000: 88}, 4)
        entries, epoch = decode_rewind(data)  # type: ignore[misc]
        assert epoch == 4
        assert replayed_offsets(entries, 10, 5000)[0].ranges() == [(12, 20)]
        assert replayed_offsets(entries, 10, 5000)[1] == 77
        assert replayed_offsets(entries, 5000, 20_000)[0].ranges() == many.ranges()
        assert replayed_offsets(entries, 5000, 6000)[0].count == len(range(5000, 6000, 3))
        parts = by_segment(entries)
        assert [*parts[10], *parts[5000]] == entries, "each of them is looked at for one segment alone"
        assert replayed_offsets(parts[10], 10, 5000)[0].ranges() == [(12, 20)]
        assert replayed_offsets(parts[5000], 5000, 20_000)[0].ranges() == many.ranges()
        assert replayed_offsets(parts[5000], 5000, 20_000)[1] == 88

    def test_it_is_whole_or_nothing(self) -> None:
        few = AckSet(0)
        few.add(1, 2)
        data = encode_rewind({0: few}, {0: 1}, 0)
        assert decode_rewind(data) is not None
        for end in range(len(data)):
            assert decode_rewind(data[:end]) is None
        for position in range(len(data)):
            bad = bytearray(data)
            bad[position] ^= 1
            assert decode_rewind(bytes(bad)) is None


class TestRewind:
    def test_all_of_it(self, house: Any) -> None:
        fill(house, 60)
        assert live(house) == set()
        made = rewind(house, set(range(60)))
        assert (made.error, made.count, made.size_bytes) == (None, 60, 60 * len(BODY))
        assert live(house) == set(range(60))
        assert (house.store.record_count, house.store.size_bytes) == (60, 60 * len(BODY))
        assert all(house.store.redelivered(offset) for offset in range(60))
        assert house.names("rewind") == []

    def test_some_and_they_can_be_settled_again(self, house: Any) -> None:
        fill(house, 60, settle=lambda offset: offset % 7 != 0)
        chosen = {offset for offset in range(60) if offset % 3 == 0}
        rewind(house, chosen)
        sevens = set(range(0, 60, 7))
        assert live(house) == chosen | sevens
        house.again()
        assert live(house) == chosen | sevens
        assert house.store.record_count == len(chosen | sevens)
        for offset in sorted(chosen):
            house.store.ack(offset, len(BODY))
        house.store.write_acks_this_turn()
        rest(house)
        house.again()
        assert live(house) == sevens - chosen
        assert house.store.size_bytes == len(sevens - chosen) * len(BODY)

    def test_what_is_gone_is_not_taken_back(self, house: Any) -> None:
        fill(house, 60)
        made = wanted(house, set(range(60)))
        house.storage.retain(house.store, -1, -1)
        rest(house)
        made.begin()
        for _ in range(10):
            made.run_slice()
            rest(house)
        assert made.is_finished
        assert made.error is None
        assert live(house) == {offset for first, last in made.ranges() for offset in range(first, last + 1)} != set()

    def test_the_new_file_says_that_they_were_delivered(self, house: Any) -> None:
        """Killed when it has its name, before the turn ends that would have told it."""
        fill(house, 5)
        made = wanted(house, set(range(5)))
        made.begin()
        rest(house)
        made.run_slice()
        house.storage.commits.submit_waiting()
        assert house.names(".swap") == []
        house.again(house.filesystem.killed())
        assert live(house) == set(range(5))
        assert all(house.store.redelivered(offset) for offset in range(5))

    def test_transient_ones_of_an_earlier_life_stay_settled(self, house: Any) -> None:
        for number in range(20):
            house.append(BODY, persistent=number % 2 == 0)
            house.turn()
        house.store.ack_range(0, 19, 20 * len(BODY))
        rest(house)
        house.again()
        fetch = house.store.new_cursor().read_settled(0, 1 << 30, nothing)
        assert [record.offset for record in fetch.records] == list(range(0, 20, 2))


class _Counted(list[Any]):
    """Segments, and how many of them who went over all of them has looked at."""

    looked_at = 0

    def __iter__(self) -> Any:
        self.looked_at += len(self)
        return super().__iter__()


@pytest.mark.skipif(is_compiled(), reason="compiled code goes over a list without asking it")
def test_what_it_costs_grows_with_its_segments(house: Any) -> None:
    """And not with their square."""
    fill(house, 900)
    made = wanted(house, set(range(900)))
    log = house.store.log
    count = len(log.segments)
    assert count > 80
    looked_at = 0
    made.begin()
    for _ in range(300):
        rest(house)
        if made.is_finished:
            break
        log.segments = counted = _Counted(log.segments)
        made.run_slice()
        looked_at += counted.looked_at
        log.segments = list(counted)
    assert made.is_finished and made.count == 900
    assert looked_at <= 4 * count
    assert (house.store.record_count, house.store.size_bytes) == (900, 900 * len(BODY))


class TestReading:
    def test_what_is_settled_and_only_that(self, house: Any) -> None:
        fill(house, 60, settle=lambda offset: offset % 7 != 0)
        found: list[int] = []
        offset = 0
        cursor = house.store.new_cursor()
        while True:
            fetch = cursor.read_settled(offset, 1000, nothing)
            found += [record.offset for record in fetch.records]
            if fetch.next_offset <= offset:
                break
            offset = fetch.next_offset
        assert found == [each for each in range(60) if each % 7]


class TestCrash:
    """At each call to the file system, killed or with the power cut: none of it, or all of it, and nothing else."""

    @pytest.mark.parametrize("power", [False, True])
    @pytest.mark.parametrize("seed", range(int(os.environ.get("REWIND_SEEDS", "2"))))
    def test_all_or_none(self, make_house: Callable[..., Any], power: bool, seed: int) -> None:
        at = 0
        afters = 0
        while True:
            house = make_house(segment_size_bytes=4000)
            house.begin()
            house.storage.retain(house.store, -1, 1 << 40)
            fill(house, 45, settle=lambda offset: offset % 7 != 0)
            before = live(house)
            chosen = {offset for offset in range(45) if offset % 7 and offset % (2 + seed) == 0}
            calls = [0]
            images: list[Any] = []
            filesystem = house.filesystem

            def watch(calls: list[int] = calls, images: list[Any] = images, house: Any = house, at: int = at) -> None:
                calls[0] += 1
                if calls[0] - 1 == at and not images:
                    images.append(house.filesystem.crashed(seed * 1000 + at) if power else house.filesystem.killed())

            _watched(filesystem, watch)
            rewind(house, chosen)
            if not images:
                break
            boot = "2" * 32 if power else "1" * 32
            house.again(images[0], boot_id=boot)
            found = live(house)
            assert found in (before, before | chosen), (at, found ^ before)
            afters += found == before | chosen
            rest(house)
            store = house.store
            for offset in sorted(found):
                store.ack(offset, len(BODY))
            house.append(BODY)
            store.write_acks_this_turn()
            rest(house)
            house.again()
            assert live(house) == {45}, "what was settled behind it stays settled"
            assert house.names("rewind") == []
            at += 1
        assert at > 10 and 0 < afters < at


def _watched(filesystem: Any, before: Callable[[], None]) -> None:
    """`before` is called ahead of each call that changes something."""
    for name in ("open", "write", "fdatasync", "fsync_dir", "fsync_file", "rename", "unlink", "truncate"):
        if not hasattr(filesystem, name):
            continue
        original = getattr(filesystem, name)

        def call(*arguments: Any, original: Any = original, **named: Any) -> Any:
            before()
            return original(*arguments, **named)

        setattr(filesystem, name, call)
