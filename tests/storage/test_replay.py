"""Acked messages that become live again: replay.py, also after a crash."""

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


def do_nothing() -> None: ...


@pytest.fixture
def harness(make_harness: Callable[..., Any]) -> Any:
    harness = make_harness(segment_size_bytes=4000)
    harness.create_log()
    harness.storage.retain(harness.store, -1, 1 << 40)
    return harness


def fill(harness: Any, count: int, *, is_acked: Callable[[int], bool] = lambda offset: True) -> None:
    store = harness.store
    for _ in range(count):
        harness.append(BODY)
        harness.end_turn()
    for offset in range(store.next_offset - count, store.next_offset):
        if is_acked(offset):
            store.ack(offset, len(BODY))
    store.write_acks_this_turn()
    run_commits(harness)


def run_commits(harness: Any) -> None:
    for _ in range(4):
        harness.clock.now_ms += 100
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()


def replay_of(harness: Any, offsets: set[int]) -> AckedReplay:
    store = harness.store
    replay: AckedReplay = harness.storage.replay(store)
    for offset in sorted(offsets):
        segment = store.log.segment_of(offset)
        if segment is not None and not segment.is_removed and segment.settled.contains(offset):
            replay.add(offset, len(BODY))
    return replay


def rewind(harness: Any, offsets: set[int]) -> AckedReplay:
    replay = replay_of(harness, offsets)
    replay.begin()
    for _ in range(50):
        if replay.is_finished:
            break
        replay.run_slice()
        run_commits(harness)
    assert replay.is_finished
    return replay


def live_offsets(harness: Any) -> set[int]:
    return set(harness.offsets())


class TestAckSet:
    @pytest.mark.parametrize("many", [False, True])
    def test_remove_all(self, many: bool) -> None:
        import random

        chance = random.Random(5)
        for _ in range(50):
            base = chance.randrange(1000)
            acked = {base + chance.randrange(2000) for _ in range(1500 if many else 30)}
            removed = {base + chance.randrange(2000) for _ in range(chance.choice([0, 3, 1500]))}
            sets = []
            for offsets in (acked, removed):
                made = AckSet(base)
                for offset in sorted(offsets):
                    made.add(offset, offset)
                sets.append(made)
            assert sets[0].remove_all(sets[1]) == len(acked & removed)
            remaining = acked - removed
            assert sets[0].count == len(remaining)
            assert {each for each in range(base, base + 2001) if sets[0].contains(each)} == remaining
            assert sets[0].highest == max(remaining, default=-1)
            readded = base + chance.randrange(2000)
            assert sets[0].add(readded, readded) == (readded not in remaining)
            assert {each for start, last in sets[0].ranges() for each in range(start, last + 1)} == remaining | {
                readded
            }


class TestRewindFile:
    def test_round_trip_by_segment(self) -> None:
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
        assert [*parts[10], *parts[5000]] == entries, "each entry belongs to one segment"
        assert replayed_offsets(parts[10], 10, 5000)[0].ranges() == [(12, 20)]
        assert replayed_offsets(parts[5000], 5000, 20_000)[0].ranges() == many.ranges()
        assert replayed_offsets(parts[5000], 5000, 20_000)[1] == 88

    def test_damaged_file_is_ignored_as_a_whole(self) -> None:
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


class TestReplay:
    def test_all_messages_become_live(self, harness: Any) -> None:
        fill(harness, 60)
        assert live_offsets(harness) == set()
        replay = rewind(harness, set(range(60)))
        assert (replay.error, replay.count, replay.size_bytes) == (None, 60, 60 * len(BODY))
        assert live_offsets(harness) == set(range(60))
        assert (harness.store.record_count, harness.store.size_bytes) == (60, 60 * len(BODY))
        assert all(harness.store.redelivered(offset) for offset in range(60))
        assert harness.names("rewind") == []

    def test_replayed_messages_can_be_acked_again(self, harness: Any) -> None:
        fill(harness, 60, is_acked=lambda offset: offset % 7 != 0)
        chosen = {offset for offset in range(60) if offset % 3 == 0}
        rewind(harness, chosen)
        sevens = set(range(0, 60, 7))
        assert live_offsets(harness) == chosen | sevens
        harness.restart()
        assert live_offsets(harness) == chosen | sevens
        assert harness.store.record_count == len(chosen | sevens)
        for offset in sorted(chosen):
            harness.store.ack(offset, len(BODY))
        harness.store.write_acks_this_turn()
        run_commits(harness)
        harness.restart()
        assert live_offsets(harness) == sevens - chosen
        assert harness.store.size_bytes == len(sevens - chosen) * len(BODY)

    def test_removed_segments_are_not_replayed(self, harness: Any) -> None:
        fill(harness, 60)
        replay = replay_of(harness, set(range(60)))
        harness.storage.retain(harness.store, -1, -1)
        run_commits(harness)
        replay.begin()
        for _ in range(10):
            replay.run_slice()
            run_commits(harness)
        assert replay.is_finished
        assert replay.error is None
        assert (
            live_offsets(harness)
            == {
                offset
                for base in replay.bases()
                for first, last in replay.ranges_of(base)
                for offset in range(first, last + 1)
            }
            != set()
        )

    def test_replayed_messages_are_redelivered_after_a_kill(self, harness: Any) -> None:
        """The kill comes after the rename of the new file and before the end of the turn."""
        fill(harness, 5)
        replay = replay_of(harness, set(range(5)))
        replay.begin()
        run_commits(harness)
        replay.run_slice()
        harness.storage.commits.submit_waiting()
        assert harness.names(".swap") == []
        harness.restart(harness.filesystem.killed())
        assert live_offsets(harness) == set(range(5))
        assert all(harness.store.redelivered(offset) for offset in range(5))

    def test_transient_messages_of_an_earlier_start_are_not_replayed(self, harness: Any) -> None:
        for number in range(20):
            harness.append(BODY, persistent=number % 2 == 0)
            harness.end_turn()
        harness.store.ack_range(0, 19, 20 * len(BODY))
        run_commits(harness)
        harness.restart()
        fetch = harness.store.new_cursor().read_settled(0, 1 << 30, do_nothing)
        assert [record.offset for record in fetch.records] == list(range(0, 20, 2))


class _CountingList(list[Any]):
    """A list of segments that counts how many segments all iterations visit."""

    visited = 0

    def __iter__(self) -> Any:
        self.visited += len(self)
        return super().__iter__()


@pytest.mark.skipif(is_compiled(), reason="compiled code goes over a list without asking it")
def test_replay_cost_is_linear_in_the_segments(harness: Any) -> None:
    fill(harness, 900)
    replay = replay_of(harness, set(range(900)))
    log = harness.store.log
    count = len(log.segments)
    assert count > 80
    visited = 0
    replay.begin()
    for _ in range(300):
        run_commits(harness)
        if replay.is_finished:
            break
        log.segments = counting = _CountingList(log.segments)
        replay.run_slice()
        visited += counting.visited
        log.segments = list(counting)
    assert replay.is_finished and replay.count == 900
    assert visited <= 4 * count
    assert (harness.store.record_count, harness.store.size_bytes) == (900, 900 * len(BODY))


class TestReadSettled:
    def test_only_acked_messages_are_read(self, harness: Any) -> None:
        fill(harness, 60, is_acked=lambda offset: offset % 7 != 0)
        found: list[int] = []
        offset = 0
        cursor = harness.store.new_cursor()
        while True:
            fetch = cursor.read_settled(offset, 1000, do_nothing)
            found += [record.offset for record in fetch.records]
            if fetch.next_offset <= offset:
                break
            offset = fetch.next_offset
        assert found == [each for each in range(60) if each % 7]


class TestCrash:
    """After a kill or a power cut at each call to the file system, all chosen messages are live or none."""

    @pytest.mark.parametrize("power", [False, True])
    @pytest.mark.parametrize("seed", range(int(os.environ.get("REWIND_SEEDS", "2"))))
    def test_replay_is_all_or_nothing(self, make_harness: Callable[..., Any], power: bool, seed: int) -> None:
        at = 0
        completed = 0
        while True:
            harness = make_harness(segment_size_bytes=4000)
            harness.create_log()
            harness.storage.retain(harness.store, -1, 1 << 40)
            fill(harness, 45, is_acked=lambda offset: offset % 7 != 0)
            before = live_offsets(harness)
            chosen = {offset for offset in range(45) if offset % 7 and offset % (2 + seed) == 0}
            calls = [0]
            images: list[Any] = []
            filesystem = harness.filesystem

            def watch(
                calls: list[int] = calls, images: list[Any] = images, harness: Any = harness, at: int = at
            ) -> None:
                calls[0] += 1
                if calls[0] - 1 == at and not images:
                    images.append(
                        harness.filesystem.crashed(seed * 1000 + at) if power else harness.filesystem.killed()
                    )

            _call_before_changes(filesystem, watch)
            rewind(harness, chosen)
            if not images:
                break
            boot = "2" * 32 if power else "1" * 32
            harness.restart(images[0], boot_id=boot)
            found = live_offsets(harness)
            assert found in (before, before | chosen), (at, found ^ before)
            completed += found == before | chosen
            run_commits(harness)
            store = harness.store
            for offset in sorted(found):
                store.ack(offset, len(BODY))
            harness.append(BODY)
            store.write_acks_this_turn()
            run_commits(harness)
            harness.restart()
            assert live_offsets(harness) == {45}, "later acks are kept"
            assert harness.names("rewind") == []
            at += 1
        assert at > 10 and 0 < completed < at


def _call_before_changes(filesystem: Any, before: Callable[[], None]) -> None:
    """Call `before` ahead of each call that changes something."""
    for name in ("open", "write", "fdatasync", "fsync_dir", "fsync_file", "rename", "unlink", "truncate"):
        if not hasattr(filesystem, name):
            continue
        original = getattr(filesystem, name)

        def call(*arguments: Any, original: Any = original, **named: Any) -> Any:
            before()
            return original(*arguments, **named)

        setattr(filesystem, name, call)
