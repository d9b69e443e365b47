"""Settled messages that stay for a while: retained.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpd.storage.acks.retained import Retained, retained_of

BODY = b"." * 400


@pytest.fixture
def house(make_house: Callable[..., Any]) -> Any:
    return make_house(segment_size_bytes=4000)


def kept_of(store: Any) -> Retained:
    return retained_of(store.log.segments, store.next_offset, store.record_count)


def fill(house: Any, count: int) -> None:
    """Appends and settles."""
    store = house.store
    for _ in range(count):
        offset = store.next_offset
        house.append(BODY)
        store.ack(offset, len(BODY))
        house.turn()
    rest(house)


def rest(house: Any) -> None:
    """What is due is done."""
    for _ in range(4):
        house.storage.maintain()
        house.turn()
        house.storage.commits.flush()
        house.loop()


class TestBytes:
    def test_the_newest_stay(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, -1, 12_000)
        fill(house, 100)
        kept = sum(segment.size for segment in store.log.segments if not segment.is_removed)
        assert 12_000 <= kept <= 12_000 + 3 * 4000
        found = kept_of(store)
        assert found.messages == store.next_offset - found.first_offset < 100
        assert found.body_bytes == found.messages * len(BODY)
        assert store.record_count == 0
        assert house.storage.retained.bytes == sum(
            segment.size for segment in store.log.segments if not segment.is_removed and segment.sealed
        )

    def test_nothing_of_0_bytes(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, -1, 0)
        fill(house, 100)
        assert len([segment for segment in store.log.segments if not segment.is_removed]) <= 2
        assert house.storage.retained.bytes == 0

    def test_what_waits_is_not_counted(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, -1, 8_000)
        for _ in range(50):
            house.append(BODY)
            house.turn()
        fill(house, 50)
        assert store.record_count == 50
        assert kept_of(store).first_offset == 0, "nothing before what waits went"
        assert kept_of(store).messages < 50


class TestAge:
    def test_it_goes_when_it_is_old(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, 60_000, -1)
        fill(house, 50)
        assert kept_of(store).messages == 50
        house.clock.now_ms += 59_000
        rest(house)
        assert kept_of(store).messages == 50
        house.clock.now_ms += 2_000
        rest(house)
        assert kept_of(store).messages == 0
        assert house.storage.retained.bytes == 0
        assert store.next_offset == 50

    def test_a_clock_that_jumps_makes_nothing_old(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, 60_000, -1)
        fill(house, 50)
        house.clock.jump_ms = 86_400_000
        rest(house)
        assert kept_of(store).messages == 50
        house.storage.clock_watch.accept()
        rest(house)
        assert kept_of(store).messages == 0

    def test_it_is_as_old_as_its_append(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, 60_000, -1)
        for _ in range(50):
            house.append(BODY)
            house.turn()
        house.clock.now_ms += 61_000
        store.ack_range(0, 49, 50 * len(BODY))
        house.turn()
        rest(house)
        assert kept_of(store).messages == 0

    def test_an_idle_log_gives_back_its_last_segment(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, 60_000, -1)
        fill(house, 3)
        assert len(house.names(".log")) == 1
        house.clock.now_ms += 61_000
        rest(house)
        assert [len(house.data(name)) for name in house.names(".log")] == [0]


class TestItsLife:
    def test_after_a_restart_it_is_said_again(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, 60_000, -1)
        fill(house, 50)
        store = house.again()
        house.storage.retain(store, 60_000, -1)
        rest(house)
        assert kept_of(store).messages == 50
        assert store.record_count == 0
        house.clock.now_ms += 61_000
        rest(house)
        assert kept_of(store).messages == 0

    def test_cleared_it_goes_at_once(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, 60_000, -1)
        fill(house, 50)
        assert house.storage.retained.bytes > 0
        house.storage.retain(store, -1, -1)
        rest(house)
        assert len([segment for segment in store.log.segments if not segment.is_removed]) <= 2
        assert house.storage.retained.bytes == 0
        assert store.log.segment_size_bytes == house.storage.segment_size_bytes

    def test_set_on_a_log_that_runs(self, house: Any) -> None:
        store = house.begin()
        fill(house, 50)
        gone = kept_of(store).first_offset
        assert gone > 0
        house.storage.retain(store, 60_000, -1)
        fill(house, 50)
        assert kept_of(store).first_offset == gone

    def test_deleted_it_is_not_counted_any_more(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, 60_000, -1)
        fill(house, 50)
        assert house.storage.retained.bytes > 0
        house.storage.delete_queue(store)
        assert house.storage.retained.bytes == 0

    def test_the_checkpoint_tells_where_the_log_starts(self, house: Any) -> None:
        store = house.begin()
        house.storage.retain(store, -1, 12_000)
        fill(house, 100)
        path = f"{store.log.directory}/log-start-offset-checkpoint"
        start = int(store.log.filesystem.read_file(path).split()[-1])
        assert 0 < start <= kept_of(store).first_offset < 100

    def test_small_segments_for_little(self, make_house: Callable[..., Any]) -> None:
        house = make_house(segment_size_bytes=64 << 20)
        store = house.begin()
        house.storage.retain(store, -1, 16 << 20)
        assert store.log.segment_size_bytes == 2 << 20
        house.storage.retain(store, -1, 100)
        assert store.log.segment_size_bytes == 1 << 20
        house.storage.retain(store, 1000, -1)
        assert store.log.segment_size_bytes == 64 << 20
