"""Sparse segments of a work queue: handled messages leave the disk although others of the same file wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

BODY = b"." * 100


class WorkQueue:
    """A queue in which each `every`-th message waits. `maintain` runs a round of upkeep."""

    def __init__(self, harness: Any, every: int = 29) -> None:
        self.harness = harness
        self.every = every
        self.waiting: list[int] = []
        harness.create_log()

    def work(self, count: int, *, persistent: bool = True) -> None:
        store = self.harness.store
        for offset in range(store.next_offset, store.next_offset + count):
            self.harness.append(BODY, persistent=persistent)
            if offset % 5 == 4:
                self.harness.end_turn()
        self.harness.end_turn()
        for offset in range(store.next_offset - count, store.next_offset):
            store.mark_delivered(offset)
            if offset % self.every == 0:
                self.waiting.append(offset)
            else:
                store.ack(offset, len(BODY))
        store.write_acks_this_turn()
        self.commit()

    def commit(self) -> None:
        self.harness.end_turn()
        self.harness.storage.commits.flush()
        self.harness.run_callbacks()

    def maintain(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.harness.storage.maintain()
            self.harness.run_callbacks()
            self.commit()

    def disk_bytes(self) -> int:
        return sum(len(self.harness.data(name)) for name in self.harness.names(".log"))

    def check(self) -> None:
        store = self.harness.store
        assert self.harness.offsets() == self.waiting
        assert store.record_count == len(self.waiting)
        assert store.size_bytes == len(self.waiting) * len(BODY)
        assert not store.has_lost_offsets


@pytest.fixture
def queue(make_harness: Callable[..., Any]) -> WorkQueue:
    return WorkQueue(make_harness(segment_size_bytes=3000))


def test_small_segments_are_merged_after_sparse_ones_were_rewritten(queue: WorkQueue) -> None:
    queue.work(1000)
    before = queue.disk_bytes()
    queue.maintain()
    assert queue.disk_bytes() == before, "segments that were not looked at before wait"
    queue.maintain(4)
    assert queue.disk_bytes() < before / 4
    assert len(queue.harness.names(".log")) < 8, "small segments are merged"
    assert queue.harness.names(".cleaned") == queue.harness.names(".swap") == queue.harness.names(".deleted") == []
    queue.check()
    names = queue.harness.names(".log")
    queue.maintain(3)
    assert queue.harness.names(".log") == names, "there is nothing to do any more"


@pytest.mark.parametrize("how", ["clean", "kill", "without .settled"])
def test_messages_and_sizes_after_a_restart(queue: WorkQueue, how: str) -> None:
    queue.work(1000)
    queue.maintain(2)
    queue.harness.store.ack(queue.waiting.pop(3), len(BODY))
    queue.commit()
    if how == "clean":
        queue.harness.storage.close(clean=True)
    after = queue.harness.filesystem.killed()
    if how == "without .settled":
        kept = queue.harness.offsets()
        first = queue.harness.names(".settled")[0]
        after.unlink(f"{queue.harness.directory}/{first}")
        queue.harness.restart(after)
        assert set(queue.harness.offsets()) >= set(kept)
        assert not set(queue.harness.offsets()) - set(kept) - {87}, "only the acknowledgement of one message is lost"
        return
    queue.harness.restart(after)
    queue.check()
    assert all(queue.harness.store.redelivered(offset) for offset in queue.waiting)


def test_deliveries_and_returns_are_known_after_a_restart(queue: WorkQueue) -> None:
    queue.work(300)
    store = queue.harness.store
    store.mark_returned(29, 3)
    store.mark_delayed(58, 2, 1_900_000_000_000)
    queue.commit()
    queue.maintain(3)
    for restarted in (False, True):
        if restarted:
            store = queue.harness.restart()
        assert store.delivery_count(29) == 3
        assert store.delivery_count(58) == 2
        assert store.due_ms(58) == 1_900_000_000_000
        assert store.redelivered(87) == restarted


def test_transient_messages_are_counted_right(queue: WorkQueue) -> None:
    """`x-max-length-bytes` would otherwise remove too many or too few after a restart."""
    queue.work(200)
    queue.work(200, persistent=False)
    queue.maintain(1)
    queue.harness.storage.maintain()  # the cleaner's part is done, the loop's is not
    store = queue.harness.store
    for offset in (queue.waiting[1], queue.waiting[9]):
        queue.waiting.remove(offset)
        store.ack(offset, len(BODY))
    queue.commit()
    queue.maintain()
    queue.check()
    queue.harness.storage.close(clean=True)
    queue.harness.restart()
    queue.waiting = [offset for offset in queue.waiting if offset < 200]
    queue.check()


@pytest.mark.parametrize("crash", [False, True])
def test_messages_settled_during_a_cleaning(queue: WorkQueue, crash: bool) -> None:
    queue.work(300)
    store = queue.harness.store
    queue.maintain()
    queue.harness.storage.maintain()
    for offset in queue.waiting[2:4]:
        store.ack(offset, len(BODY))
    del queue.waiting[2:4]
    store.write_acks_this_turn()
    queue.harness.storage.commits.end_of_turn()
    assert queue.harness.names(".swap")
    if not crash:
        queue.commit()
        queue.check()
        queue.maintain()
    queue.harness.restart()
    queue.check()
    queue.commit()
    queue.harness.restart()
    queue.check()


def test_segments_that_are_being_drained_wait(make_harness: Callable[..., Any]) -> None:
    """A segment that loses its messages will soon be removed as a whole, so a rewrite would be wasted."""
    queue = WorkQueue(make_harness(segment_size_bytes=6000), 4)
    queue.work(300)
    store = queue.harness.store
    second = store.log.segments[1]
    name = second.prefix.rpartition("/")[2] + ".log"
    before = bytes(queue.harness.data(name))
    queue.maintain()
    while second.live > 2:
        for offset in [each for each in queue.waiting if second.base <= each < second.end][:2]:
            queue.waiting.remove(offset)
            store.ack(offset, len(BODY))
        store.write_acks_this_turn()
        queue.commit()
        queue.maintain()
        assert bytes(queue.harness.data(name)) == before
    assert len(queue.harness.log(0)) < len(before) / 2, "it was rewritten"
    queue.maintain()
    assert len(queue.harness.data(name)) < len(before) / 2
    queue.check()


def test_settled_messages_that_are_kept_stay(make_harness: Callable[..., Any]) -> None:
    for keep in ("retention", "export"):
        queue = WorkQueue(make_harness(segment_size_bytes=3000))
        store = queue.harness.store
        if keep == "retention":
            queue.harness.storage.retain(store, -1, 1 << 40)
        else:
            queue.harness.storage.export_hold(store).add("lake")
        queue.work(300)
        before = queue.disk_bytes()
        queue.maintain(3)
        assert queue.disk_bytes() == before
        if keep == "export":
            queue.harness.storage.export_hold(store).commit("lake", store.next_offset)
            queue.maintain(3)
            assert queue.disk_bytes() < before / 2
            queue.check()


def test_replay_ends_a_cleaning_and_skips_what_it_removed(queue: WorkQueue) -> None:
    """A replay would otherwise make offsets live that have no message any more."""
    queue.work(300)
    store = queue.harness.store
    queue.maintain()
    replay = queue.harness.storage.replay(store)
    last = [
        offset for offset in range(270, 290) if offset not in queue.waiting and store.log.segments[-1].base <= offset
    ]
    assert last
    for offset in [*range(1, 10), *last]:
        replay.add(offset, len(BODY))
    queue.harness.storage.maintain()
    replay.begin()
    while not replay.is_finished:
        queue.maintain()
        replay.run_slice()
    assert replay.error is None
    queue.waiting = sorted({*queue.waiting, *last})
    queue.check()
    queue.harness.restart()
    queue.check()


def test_streams_are_not_touched(make_harness: Callable[..., Any]) -> None:
    queue = WorkQueue(make_harness(segment_size_bytes=3000))
    policy = RetentionPolicy(compaction=CleanerPolicy(key=lambda record: None, min_dirty_ratio=1.1))
    queue.harness.storage.set_policy(queue.harness.store, policy)
    queue.work(300)
    before = queue.disk_bytes()
    queue.maintain(3)
    assert queue.disk_bytes() == before
