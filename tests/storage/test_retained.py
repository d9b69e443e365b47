"""Acked messages that are retained for a time or up to a size: retained.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpd.storage.acks.retained import Retained, retained_of

BODY = b"." * 400


@pytest.fixture
def harness(make_harness: Callable[..., Any]) -> Any:
    return make_harness(segment_size_bytes=4000)


def retained_in(store: Any) -> Retained:
    return retained_of(store.log.segments, store.next_offset, store.record_count)


def fill(harness: Any, count: int) -> None:
    """Append and ack messages."""
    store = harness.store
    for _ in range(count):
        offset = store.next_offset
        harness.append(BODY)
        store.ack(offset, len(BODY))
        harness.end_turn()
    run_upkeep(harness)


def run_upkeep(harness: Any) -> None:
    """Run maintenance and all pending commits."""
    for _ in range(4):
        harness.storage.maintain()
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()


class TestSizeLimit:
    def test_newest_messages_are_retained(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, -1, 12_000)
        fill(harness, 100)
        kept_bytes = sum(segment.size for segment in store.log.segments if not segment.is_removed)
        assert 12_000 <= kept_bytes <= 12_000 + 3 * 4000
        retained = retained_in(store)
        assert retained.messages == store.next_offset - retained.first_offset < 100
        assert retained.body_bytes == retained.messages * len(BODY)
        assert store.record_count == 0
        assert harness.storage.retained.bytes == sum(
            segment.size for segment in store.log.segments if not segment.is_removed and segment.sealed
        )

    def test_limit_of_0_bytes_retains_nothing(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, -1, 0)
        fill(harness, 100)
        assert len([segment for segment in store.log.segments if not segment.is_removed]) <= 2
        assert harness.storage.retained.bytes == 0

    def test_waiting_messages_are_not_counted(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, -1, 8_000)
        for _ in range(50):
            harness.append(BODY)
            harness.end_turn()
        fill(harness, 50)
        assert store.record_count == 50
        assert retained_in(store).first_offset == 0, "no message before the waiting ones is removed"
        assert retained_in(store).messages < 50


class TestAgeLimit:
    def test_old_messages_are_removed(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, 60_000, -1)
        fill(harness, 50)
        assert retained_in(store).messages == 50
        harness.clock.now_ms += 59_000
        run_upkeep(harness)
        assert retained_in(store).messages == 50
        harness.clock.now_ms += 2_000
        run_upkeep(harness)
        assert retained_in(store).messages == 0
        assert harness.storage.retained.bytes == 0
        assert store.next_offset == 50

    def test_clock_jump_makes_no_message_old(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, 60_000, -1)
        fill(harness, 50)
        harness.clock.jump_ms = 86_400_000
        run_upkeep(harness)
        assert retained_in(store).messages == 50
        harness.storage.clock_watch.accept()
        run_upkeep(harness)
        assert retained_in(store).messages == 0

    def test_age_counts_from_the_append(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, 60_000, -1)
        for _ in range(50):
            harness.append(BODY)
            harness.end_turn()
        harness.clock.now_ms += 61_000
        store.ack_range(0, 49, 50 * len(BODY))
        harness.end_turn()
        run_upkeep(harness)
        assert retained_in(store).messages == 0

    def test_idle_log_empties_its_last_segment(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, 60_000, -1)
        fill(harness, 3)
        assert len(harness.names(".log")) == 1
        harness.clock.now_ms += 61_000
        run_upkeep(harness)
        assert [len(harness.data(name)) for name in harness.names(".log")] == [0]


class TestLifecycle:
    def test_limits_are_set_again_after_a_restart(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, 60_000, -1)
        fill(harness, 50)
        store = harness.restart()
        harness.storage.retain(store, 60_000, -1)
        run_upkeep(harness)
        assert retained_in(store).messages == 50
        assert store.record_count == 0
        harness.clock.now_ms += 61_000
        run_upkeep(harness)
        assert retained_in(store).messages == 0

    def test_cleared_limits_remove_messages_at_once(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, 60_000, -1)
        fill(harness, 50)
        assert harness.storage.retained.bytes > 0
        harness.storage.retain(store, -1, -1)
        run_upkeep(harness)
        assert len([segment for segment in store.log.segments if not segment.is_removed]) <= 2
        assert harness.storage.retained.bytes == 0
        assert store.log.segment_size_bytes == harness.storage.segment_size_bytes

    def test_limits_set_on_a_log_in_use(self, harness: Any) -> None:
        store = harness.create_log()
        fill(harness, 50)
        first_offset = retained_in(store).first_offset
        assert first_offset > 0
        harness.storage.retain(store, 60_000, -1)
        fill(harness, 50)
        assert retained_in(store).first_offset == first_offset

    def test_deleted_queue_is_not_counted(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, 60_000, -1)
        fill(harness, 50)
        assert harness.storage.retained.bytes > 0
        harness.storage.delete_queue(store)
        assert harness.storage.retained.bytes == 0

    def test_checkpoint_has_the_log_start_offset(self, harness: Any) -> None:
        store = harness.create_log()
        harness.storage.retain(store, -1, 12_000)
        fill(harness, 100)
        path = f"{store.log.directory}/log-start-offset-checkpoint"
        start = int(store.log.filesystem.read_file(path).split()[-1])
        assert 0 < start <= retained_in(store).first_offset < 100

    def test_small_size_limit_makes_small_segments(self, make_harness: Callable[..., Any]) -> None:
        harness = make_harness(segment_size_bytes=64 << 20)
        store = harness.create_log()
        harness.storage.retain(store, -1, 16 << 20)
        assert store.log.segment_size_bytes == 2 << 20
        harness.storage.retain(store, -1, 100)
        assert store.log.segment_size_bytes == 1 << 20
        harness.storage.retain(store, 1000, -1)
        assert store.log.segment_size_bytes == 64 << 20
