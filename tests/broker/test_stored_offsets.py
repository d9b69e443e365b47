"""Stored offsets against metadata that commit, or fail, when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from simulated_filesystem import SimulatedClock

from amqpd.broker.vhost import declare
from amqpd.broker.vhost.consumer_offsets import NAMES_MAX, PART_MAX, WRITE_S, ConsumerOffsets
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.storage.metadata.store import Change, Delete, MetadataClosed, Put, StoredOffsetRow, WriteFailed

A, B = "a" * 32, "b" * 32
Done = Callable[[BaseException | None], None]


class Database:
    """rows: what is committed. failing: every commit fails. held: commits that `answer` will see to."""

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

    def answer(self) -> None:
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
def database() -> Database:
    return Database()


@pytest.fixture
def offsets(database: Database) -> ConsumerOffsets:
    made = ConsumerOffsets(
        database.commit,
        database.soon.append,
        lambda delay_s, call: database.later.append((delay_s, call)),
        database.clock,
    )
    made.load([StoredOffsetRow(A, "old", 5, 1)])
    return made


class TestLazy:
    def test_many_acks_are_one_row(self, database: Database, offsets: ConsumerOffsets) -> None:
        assert offsets.admit(A, "reader")
        for offset in range(1, 1001):
            offsets.put(A, "reader", offset)
        assert offsets.get(A, "reader") == 1000
        assert database.submissions == []
        assert len(database.later) == 1
        database.run_later()
        assert database.rows == {(A, "reader"): (1000, database.clock.now_ms)}
        assert offsets.of_queue(A)["reader"].time_ms == database.clock.now_ms
        assert database.later == [], "nothing changes, nothing is timed"
        offsets.put(A, "reader", 1001)
        assert len(database.later) == 1

    def test_the_end_of_consumers_writes_them_together(self, database: Database, offsets: ConsumerOffsets) -> None:
        for name in ("one", "two", "three"):
            offsets.admit(A, name)
            offsets.put(A, name, 7)
        offsets.settle(A, "one")
        offsets.settle(A, "two")
        offsets.settle(B, "nobody")
        assert len(database.soon) == 1
        database.run_soon()
        assert len(database.submissions) == 1
        assert {name for _, name in database.rows} == {"one", "two", "three"}
        offsets.settle(A, "one")
        assert database.soon == [], "nothing has changed since"

    def test_ten_thousand_go_in_parts(self, database: Database, offsets: ConsumerOffsets) -> None:
        for number in range(10_000):
            queue_id = f"{number % 50:032x}"
            assert offsets.admit(queue_id, f"reader {number}")
            offsets.put(queue_id, f"reader {number}", number)
        offsets.flush()
        assert len(database.rows) == 10_000
        assert max(map(len, database.submissions)) == PART_MAX

    def test_what_could_not_be_written_is_written_later(self, database: Database, offsets: ConsumerOffsets) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 9)
        database.failing = True
        database.run_later()
        assert database.rows == {}
        assert offsets.get(A, "reader") == 9
        database.failing = False
        offsets.put(A, "reader", 10)
        assert len(database.later) == 1
        database.run_later()
        assert database.rows[A, "reader"][0] == 10

    def test_a_time_says_that_it_is_written(self, database: Database, offsets: ConsumerOffsets) -> None:
        """Not that it is on its way: who is told of one finds it after a crash."""
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 9)
        database.held = []
        offsets.flush()
        offsets.set(A, "other", 3, lambda error: None)
        assert [offsets.of_queue(A)[name].time_ms for name in ("reader", "other")] == [0, 0]
        database.answer()
        assert {offsets.of_queue(A)[name].time_ms for name in ("reader", "other")} == {database.clock.now_ms}
        database.held = []
        offsets.put(A, "reader", 10)
        offsets.flush()
        offsets.put(A, "reader", 11)
        database.answer()
        assert offsets.of_queue(A)["reader"] == (11, 0), "10 is written"

    def test_after_the_end_of_the_metadata(self, database: Database, offsets: ConsumerOffsets) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 9)
        database.closed = True
        offsets.flush()
        assert database.rows == {}

    def test_an_earlier_life(self, offsets: ConsumerOffsets) -> None:
        assert offsets.get(A, "old") == 5
        assert (offsets.get(A, "new"), offsets.get(B, "old")) == (None, None)

    def test_names_are_bounded(self, offsets: ConsumerOffsets) -> None:
        for number in range(NAMES_MAX):
            assert offsets.admit(B, str(number))
            offsets.put(B, str(number), 1)
        assert not offsets.admit(B, "one more")
        assert offsets.admit(B, "0"), "who is there stays"
        assert offsets.admit(A, "one more")


class TestOperators:
    def test_set_holds_once_it_is_committed(self, database: Database, offsets: ConsumerOffsets) -> None:
        answers: list[BaseException | None] = []
        offsets.set(A, "old", 99, answers.append)
        assert (offsets.get(A, "old"), database.rows[A, "old"][0], answers) == (99, 99, [None])

    @pytest.mark.parametrize(("name", "before"), [("old", 5), ("new", None)])
    def test_a_set_that_failed_leaves_what_was(
        self, database: Database, offsets: ConsumerOffsets, name: str, before: int | None
    ) -> None:
        database.failing = True
        answers: list[BaseException | None] = []
        offsets.set(A, name, 99, answers.append)
        assert isinstance(answers[0], WriteFailed)
        assert offsets.get(A, name) == before

    def test_an_ack_behind_a_set_that_failed_stays(self, database: Database, offsets: ConsumerOffsets) -> None:
        database.held = []
        answers: list[BaseException | None] = []
        offsets.set(A, "old", 99, answers.append)
        offsets.put(A, "old", 100)
        database.failing = True
        database.answer()
        assert isinstance(answers[0], WriteFailed)
        assert offsets.get(A, "old") == 100

    def test_delete(self, database: Database, offsets: ConsumerOffsets) -> None:
        answers: list[BaseException | None] = []
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 3)
        assert offsets.delete(A, "reader", answers.append)
        offsets.flush()
        assert (offsets.get(A, "reader"), database.rows, answers) == (None, {}, [None])
        assert not offsets.delete(A, "reader", answers.append)
        assert answers == [None, None]

    def test_a_deletion_that_failed_brings_it_back(self, database: Database, offsets: ConsumerOffsets) -> None:
        database.held = []
        answers: list[BaseException | None] = []
        assert offsets.delete(A, "old", answers.append)
        assert offsets.get(A, "old") is None
        database.failing = True
        database.answer()
        assert isinstance(answers[0], WriteFailed)
        assert offsets.get(A, "old") == 5


class TestQueueGone:
    def test_nothing_of_it_is_written_any_more(self, database: Database, offsets: ConsumerOffsets) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 3)
        offsets.forget(A)
        offsets.put(A, "reader", 4)  # an ack that comes late
        offsets.flush()
        assert database.submissions == []
        assert offsets.of_queue(A) == {}

    def test_a_failed_write_does_not_bring_it_back(self, database: Database, offsets: ConsumerOffsets) -> None:
        offsets.admit(A, "reader")
        offsets.put(A, "reader", 3)
        database.held = []
        offsets.flush()
        offsets.forget(A)
        database.failing = True
        database.answer()
        database.later.clear()
        offsets.flush()
        assert len(database.submissions) == 1

    def test_it_goes_with_its_queue(self, room: Any) -> None:
        stored = room.catalogue.stored_offsets
        declare.declare_queue(room.vhost, QueueDeclaration("q", True, False, False, {}))
        queue = room.vhost.queues["q"]
        stored.admit(queue.id, "reader")
        stored.put(queue.id, "reader", 3)
        assert stored.get(queue.id, "reader") == 3
        declare.delete_queue(room.vhost, queue)
        assert stored.of_queue(queue.id) == {}
