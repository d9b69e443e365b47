"""Stored stream offsets, with a fake metadata store that commits or fails on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from simulated_filesystem import SimulatedClock

from amqpd.broker.vhost import declare
from amqpd.broker.vhost.consumer_offsets import NAMES_MAX, PART_MAX, WRITE_S, ConsumerOffsets
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.storage.metadata.rows import Change, Delete, Put, StoredOffsetRow
from amqpd.storage.metadata.store import MetadataClosed, WriteFailed

A, B = "a" * 32, "b" * 32
Done = Callable[[BaseException | None], None]


class FakeMetadata:
    """rows: committed rows. failing: every commit fails. held: commits that wait for `complete`."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[int, int]] = {}
        self.failing = self.closed = False
        self.submissions: list[list[Change]] = []
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.held: list[tuple[list[Change], Done]] | None = None
        self.clock = SimulatedClock()

    def commit(self, changes: Sequence[Change], done: Done) -> None:
        if self.closed:
            raise MetadataClosed("closed")
        self.submissions.append(list(changes))
        if self.held is not None:
            self.held.append((list(changes), done))
        else:
            self.apply(list(changes), done)

    def apply(self, changes: list[Change], done: Done) -> None:
        if self.failing:
            done(WriteFailed("disk full"))
            return
        for change in changes:
            assert isinstance(change, Put | Delete)
            assert isinstance(change.row, StoredOffsetRow)
            queue_id, name, offset, time_ms = change.row
            if isinstance(change, Put):
                self.rows[queue_id, name] = (offset, time_ms)
            else:
                self.rows.pop((queue_id, name), None)
        done(None)

    def complete(self) -> None:
        held, self.held = self.held or [], None
        for changes, done in held:
            self.apply(changes, done)

    def run_soon(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()

    def run_later(self) -> None:
        later, self.later = self.later, []
        for delay_s, call in later:
            assert delay_s == WRITE_S
            call()


@pytest.fixture
def metadata() -> FakeMetadata:
    return FakeMetadata()


@pytest.fixture
def offsets(metadata: FakeMetadata) -> ConsumerOffsets:
    offsets = ConsumerOffsets(
        metadata.commit,
        metadata.soon.append,
        lambda delay_s, call: metadata.later.append((delay_s, call)),
        metadata.clock,
    )
    offsets.load([StoredOffsetRow(A, "old", 5, 1)])
    return offsets


class TestDelayedWrites:
    def test_many_acks_are_written_as_one_row(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        assert offsets.admit(A, "reader")
        for offset in range(1, 1001):
            offsets.put(A, "reader", offset)
        assert offsets.get(A, "reader") == 1000
        assert metadata.submissions == []
        assert len(metadata.later) == 1
        metadata.run_later()
        assert metadata.rows == {(A, "reader"): (1000, metadata.clock.now_ms)}
        assert offsets.of_queue(A)["reader"].time_ms == metadata.clock.now_ms
        assert metadata.later == [], "without a change there is no timer"
        offsets.put(A, "reader", 1001)
        assert len(metadata.later) == 1

    def test_offsets_of_ended_consumers_are_written_together(
        self, metadata: FakeMetadata, offsets: ConsumerOffsets
    ) -> None:
        for name in ("one", "two", "three"):
            offsets.admit(A, name)
            offsets.put(A, name, 7)
        offsets.settle(A, "one")
        offsets.settle(A, "two")
        offsets.settle(B, "nobody")
        assert len(metadata.soon) == 1
        metadata.run_soon()
        assert len(metadata.submissions) == 1
        assert {name for _, name in metadata.rows} == {"one", "two", "three"}
        offsets.settle(A, "one")
        assert metadata.soon == [], "no offset has changed since"

    def test_ten_thousand_offsets_are_written_in_parts(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        for number in range(10_000):
            queue_id = f"{number % 50:032x}"
            assert offsets.admit(queue_id, f"reader {number}")
            offsets.put(queue_id, f"reader {number}", number)
        offsets.flush()
        assert len(metadata.rows) == 10_000
        assert max(map(len, metadata.submissions)) == PART_MAX

    def test_failed_write_is_retried(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 9)
        metadata.failing = True
        metadata.run_later()
        assert metadata.rows == {}
        assert offsets.get(A, "reader") == 9
        metadata.failing = False
        offsets.put(A, "reader", 10)
        assert len(metadata.later) == 1
        metadata.run_later()
        assert metadata.rows[A, "reader"][0] == 10

    def test_time_is_set_only_after_the_commit(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        """An operator who sees a time finds the offset after a crash."""
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 9)
        metadata.held = []
        offsets.flush()
        offsets.set(A, "other", 3, lambda error: None)
        assert [offsets.of_queue(A)[name].time_ms for name in ("reader", "other")] == [0, 0]
        metadata.complete()
        assert {offsets.of_queue(A)[name].time_ms for name in ("reader", "other")} == {metadata.clock.now_ms}
        metadata.held = []
        offsets.put(A, "reader", 10)
        offsets.flush()
        offsets.put(A, "reader", 11)
        metadata.complete()
        assert offsets.of_queue(A)["reader"] == (11, 0), "only offset 10 is committed"

    def test_flush_after_close_of_metadata_writes_nothing(
        self, metadata: FakeMetadata, offsets: ConsumerOffsets
    ) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 9)
        metadata.closed = True
        offsets.flush()
        assert metadata.rows == {}

    def test_loaded_offsets_are_known(self, offsets: ConsumerOffsets) -> None:
        assert offsets.get(A, "old") == 5
        assert (offsets.get(A, "new"), offsets.get(B, "old")) == (None, None)

    def test_names_per_queue_are_bounded(self, offsets: ConsumerOffsets) -> None:
        for number in range(NAMES_MAX):
            assert offsets.admit(B, str(number))
            offsets.put(B, str(number), 1)
        assert not offsets.admit(B, "one more")
        assert offsets.admit(B, "0"), "an existing name is still admitted"
        assert offsets.admit(A, "one more")


class TestSetAndDelete:
    def test_set_applies_after_commit(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        answers: list[BaseException | None] = []
        offsets.set(A, "old", 99, answers.append)
        assert (offsets.get(A, "old"), metadata.rows[A, "old"][0], answers) == (99, 99, [None])

    @pytest.mark.parametrize(("name", "before"), [("old", 5), ("new", None)])
    def test_failed_set_keeps_the_old_offset(
        self, metadata: FakeMetadata, offsets: ConsumerOffsets, name: str, before: int | None
    ) -> None:
        metadata.failing = True
        answers: list[BaseException | None] = []
        offsets.set(A, name, 99, answers.append)
        assert isinstance(answers[0], WriteFailed)
        assert offsets.get(A, name) == before

    def test_ack_during_a_failed_set_is_kept(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        metadata.held = []
        answers: list[BaseException | None] = []
        offsets.set(A, "old", 99, answers.append)
        offsets.put(A, "old", 100)
        metadata.failing = True
        metadata.complete()
        assert isinstance(answers[0], WriteFailed)
        assert offsets.get(A, "old") == 100

    def test_delete_removes_offset_and_row(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        answers: list[BaseException | None] = []
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 3)
        assert offsets.delete(A, "reader", answers.append)
        offsets.flush()
        assert (offsets.get(A, "reader"), metadata.rows, answers) == (None, {}, [None])
        assert not offsets.delete(A, "reader", answers.append)
        assert answers == [None, None]

    def test_failed_delete_restores_the_offset(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        metadata.held = []
        answers: list[BaseException | None] = []
        assert offsets.delete(A, "old", answers.append)
        assert offsets.get(A, "old") is None
        metadata.failing = True
        metadata.complete()
        assert isinstance(answers[0], WriteFailed)
        assert offsets.get(A, "old") == 5


class TestDeletedQueue:
    def test_offsets_of_deleted_queue_are_not_written(self, metadata: FakeMetadata, offsets: ConsumerOffsets) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 3)
        offsets.forget(A)
        offsets.put(A, "reader", 4)  # a late ack
        offsets.flush()
        assert metadata.submissions == []
        assert offsets.of_queue(A) == {}

    def test_failed_write_does_not_restore_a_deleted_queue(
        self, metadata: FakeMetadata, offsets: ConsumerOffsets
    ) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 3)
        metadata.held = []
        offsets.flush()
        offsets.forget(A)
        metadata.failing = True
        metadata.complete()
        metadata.later.clear()
        offsets.flush()
        assert len(metadata.submissions) == 1

    def test_delete_of_queue_deletes_its_offsets(self, room: Any) -> None:
        stored = room.catalogue.stored_offsets
        declare.declare_queue(room.vhost, QueueDeclaration("q", True, False, False, {}))
        queue = room.vhost.queues["q"]
        stored.admit(queue.id, "reader")
        stored.put(queue.id, "reader", 3)
        assert stored.get(queue.id, "reader") == 3
        declare.delete_queue(room.vhost, queue)
        assert stored.of_queue(queue.id) == {}
