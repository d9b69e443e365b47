"""The republisher with a user that is not dead letters: a log that belongs to no queue, whose messages move on.

Each message carries, as its properties say in the header `to`, where it goes; on the way it gets the header `moved`. So
delays and retries may use it one day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.broker.message import NO_MESSAGE, MessageRoute, make_message
from amqpd.broker.publish import router
from amqpd.broker.publish.republisher import (
    HELD_COUNT_MAX,
    RETRY_MS,
    SLICE_COUNT_MAX,
    RepublishSource,
    RewrittenMessage,
)
from amqpd.broker.queue import log_opener
from amqpd.protocol.properties import Properties, decode_properties, encode_properties, scan_properties
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.queue_log import QueueLog

ROUTE = RecordRoute(b"first", b"key")


def encoded(to: str) -> bytes:
    return encode_properties(Properties(delivery_mode=2, headers={"to": to}))


class Mover(RepublishSource):
    """Messages of one log go to the queues that their header names, separated by spaces; "nowhere" is over at once."""

    def __init__(self, room: Any, store: Any) -> None:
        super().__init__("moved")
        self.room = room
        self.store = store
        self.deleted = False
        self.lasting = True
        self.told: list[tuple[int, int]] = []
        self.waiting = 0
        self.dressed: list[bytes] = []
        self.broken = True
        self.left_there: list[tuple[int, bool]] = []

    def on_stop(self, offset: int, again: bool) -> None:
        self.left_there.append((offset, again))

    def log(self) -> Any:
        return self.store

    def is_durable(self) -> bool:
        return self.lasting

    def is_deleted(self) -> bool:
        return self.deleted

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        self.dressed.append(properties)
        assert (envelope.exchange, envelope.routing_key) == ("first", "key")
        to = decode_properties(properties).headers["to"]  # type: ignore[index]
        if to == "nowhere":
            return None
        if to == "bug" and self.broken:
            raise ValueError("a bug")
        vhost = self.room.vhost
        keys = str(to).split()
        changed = encode_properties(Properties(delivery_mode=2, headers={"moved": True}))
        destinations = router.route(vhost, vhost.default_exchange, keys, NO_MESSAGE)
        return RewrittenMessage(
            MessageRoute("", keys[0]), changed, scan_properties(changed, 0, len(changed)), destinations
        )

    def on_safe(self, first: int, last: int, size: int) -> None:
        self.told.append((first, last))
        super().on_safe(first, last, size)

    def on_queued(self, count: int) -> None:
        self.waiting += count

    def log_fields(self) -> dict[str, object]:
        return {"queue": "a log of its own"}

    # -- what the test does with it

    def keep(self, bodies: list[bytes], to: str = "target") -> None:
        properties = encoded(to)
        for body in bodies:
            content = properties + body
            split, end = len(properties), len(content)
            self.store.append(ROUTE, content, 0, split, split, end, True)

    def offsets_told(self) -> list[int]:
        return sorted(offset for first, last in self.told for offset in range(first, last + 1))


@pytest.fixture
def mover(room: Any) -> Mover:
    _, store = room.storage.create_queue("v1", "moving")
    return Mover(room, store)


def quickly(queue: Any) -> list[bytes]:
    found = []
    while (entry := queue.get(True)) is not None:
        found.append(entry.message.body())
    return found


def watch_commits(room: Any, each: Callable[[list[Any]], list[Any]]) -> None:
    """each: gets the logs that failed in a commit, returns which the broker is told of."""
    on_commit = room.storage.commits.on_commit
    room.storage.commits.on_commit = lambda generation, failed: on_commit(generation, each(failed))


def spoil(room: Any, queue_id: str) -> Callable[[], None]:
    """The log's segment cannot be opened until what is returned is called."""
    (segment,) = next(room.data_dir.rglob(queue_id)).glob("*.log")
    aside = segment.rename(segment.with_suffix(".aside"))
    segment.mkdir()

    def mend() -> None:
        segment.rmdir()
        aside.rename(segment)

    return mend


class TestRoad:
    def test_a_range_goes_in_order_and_is_settled(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        mover.keep([b"%d" % number for number in range(20)])
        room.republisher.add_range(mover, 5, 19)
        assert target.ready_count == 0, "never from within the call"
        room.turns()
        got = room.get(target)
        assert (got.body, got.exchange, got.routing_key, got.headers) == (b"5", "", "target", {"moved": True})
        assert quickly(target) == [b"%d" % number for number in range(6, 20)]
        assert mover.offsets_told() == list(range(5, 20))
        assert mover.store.record_count == 5, "what was not handed over stays"
        assert mover.waiting == 0

    def test_what_is_settled_already_is_not_published(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        mover.keep([b"0", b"1", b"2"])
        mover.store.ack(1, 1)
        room.republisher.add_range(mover, 0, 2)
        room.turns()
        assert quickly(target) == [b"0", b"2"]
        assert mover.store.record_count == 0

    def test_a_message_in_memory_with_a_place_and_without(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        mover.keep([b"logged"])
        properties = encoded("target")
        info = scan_properties(properties, 0, len(properties))
        for body, offset in ((b"logged", 0), (b"never logged", -1)):
            message = make_message(MessageRoute("first", "key"), properties, body, True, info)
            room.republisher.add(mover, message, offset)
        assert room.republisher.held_bytes == len(b"logged" + b"never logged")
        room.turns()
        assert room.republisher.held_bytes == 0
        assert quickly(target) == [b"logged", b"never logged"]
        assert mover.told == [(0, 0)]

    def test_what_goes_nowhere_is_over(self, room: Any, mover: Mover) -> None:
        mover.keep([b"0", b"1"], "nowhere")
        room.republisher.add_range(mover, 0, 1)
        room.turns()
        assert mover.offsets_told() == [0, 1]
        assert mover.store.record_count == 0

    def test_several_targets_each_get_it(self, room: Any, mover: Mover) -> None:
        one, two = room.queue("one"), room.queue("two", durable=False)
        mover.keep([b"1"], "one two")
        room.republisher.add_range(mover, 0, 0)
        room.turns()
        assert quickly(one) == quickly(two) == [b"1"]
        assert mover.store.record_count == 0

    def test_neighbours_become_one_range(self, room: Any, mover: Mover) -> None:
        other = Mover(room, mover.store)
        for offset in range(1000):
            room.republisher.add_range(mover, offset, offset)
        room.republisher.add_range(other, 1000, 1000)
        assert [(each.first, each.last) for each in room.republisher.line] == [(0, 999), (1000, 1000)]
        assert (mover.waiting, other.waiting) == (1, 1)
        room.turns()

    def test_many_go_in_slices(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        count = SLICE_COUNT_MAX + 1000
        mover.keep([b""] * count)
        room.republisher.add_range(mover, 0, count - 1)
        room.republisher.run()
        assert 0 < target.ready_count < count
        assert room.turn.dead_letters_pending, "who sends without a bound waits for the rest"
        room.turns()
        assert target.ready_count == count
        assert room.republisher.slice_number >= 2
        assert mover.store.record_count == 0

    def test_beside_dead_letters_each_has_its_place_in_line(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="target")
        room.publish("q", b"dead 1")
        room.publish("q", b"dead 2")
        mover.keep([b"moved"])
        first, second = queue.get(False), queue.get(False)
        queue.reject(first)
        room.republisher.add_range(mover, 0, 0)
        queue.reject(second)
        room.turns()
        assert quickly(target) == [b"dead 1", b"moved", b"dead 2"]


class TestSafety:
    def test_the_source_keeps_it_until_the_targets_are_synced(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        mover.keep([b"1"])
        room.turn.schedule()
        room.turns()
        before: list[tuple[list[tuple[int, int]], int]] = []

        def look(failed: list[Any]) -> list[Any]:
            before.append((list(mover.told), target.store.record_count))
            return failed

        watch_commits(room, look)
        room.republisher.add_range(mover, 0, 0)
        room.republisher.run()
        assert mover.told == [] and target.ready_count == 1
        room.turns()
        assert before[0] == ([], 1)
        assert mover.told == [(0, 0)]

    def test_a_source_that_does_not_last_waits_for_nothing(self, room: Any, mover: Mover) -> None:
        room.queue("target")
        mover.lasting = False
        mover.keep([b"1"])
        room.republisher.add_range(mover, 0, 0)
        room.republisher.run()
        assert mover.told == [(0, 0)]

    def test_a_target_without_a_log_is_safe_at_once(self, room: Any, mover: Mover) -> None:
        room.queue("target", durable=False)
        mover.keep([b"1"])
        room.republisher.add_range(mover, 0, 0)
        room.republisher.run()
        assert mover.told == [(0, 0)]

    def test_a_kill_before_they_are_safe_repeats_and_loses_none(self, room: Any, mover: Mover) -> None:
        room.queue("target")
        mover.keep([b"%d" % number for number in range(10)])
        room.turn.schedule()
        room.turns()
        queue_id = mover.store.queue_id
        room.republisher.add_range(mover, 0, 9)
        room.republisher.run()  # published, but their turn does not end
        room.restart()
        again = Mover(room, room.storage.open_queue("v1", queue_id, "moving"))
        again.store.recover()
        assert again.store.record_count == 10
        room.republisher.add_range(again, 0, 9)
        room.turns()
        assert set(quickly(room.vhost.queue("target"))) == {b"%d" % number for number in range(10)}
        assert again.store.record_count == 0

    def test_a_stop_leaves_what_is_not_published(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        mover.keep([b"1", b"2"])
        room.republisher.add_range(mover, 0, 1)
        room.republisher.stop()
        room.turns()
        assert target.ready_count == 0 and mover.told == []
        assert mover.store.record_count == 2

    def test_a_stop_tells_what_may_be_published_again(self, room: Any, mover: Mover) -> None:
        """Of the one that has raised some targets may have a copy; the other one was never tried."""
        room.queue("target")
        for offset, to in enumerate(("bug", "target")):
            message = make_message(
                MessageRoute("first", "key"), encoded(to), b"", True, scan_properties(encoded(to), 0, len(encoded(to)))
            )
            room.republisher.add(mover, message, offset)
            if to == "bug":
                room.turns()
        room.republisher.stop()
        assert sorted(mover.left_there) == [(0, True), (1, False)]


class TestLater:
    def test_a_target_whose_log_takes_nothing(self, room: Any, mover: Mover, caplog: pytest.LogCaptureFixture) -> None:
        target = room.queue("target")
        mover.keep([b"%d" % number for number in range(5)])
        target.store.failed = True
        room.republisher.add_range(mover, 0, 4)
        with caplog.at_level(logging.WARNING):
            room.turns()
        assert [record.getMessage() for record in caplog.records] == ["a moved target takes nothing, it is tried again"]
        assert caplog.records[0].queue == "a log of its own"
        assert (target.ready_count, mover.told, mover.waiting) == (0, [], 1)
        target.store.failed = False
        room.advance(RETRY_MS - 100)
        assert target.ready_count == 0
        room.advance(110)
        assert quickly(target) == [b"%d" % number for number in range(5)]
        assert mover.offsets_told() == list(range(5))
        assert mover.waiting == 0

    @pytest.mark.parametrize("in_memory", [True, False])
    def test_what_raises_is_tried_again(
        self, room: Any, mover: Mover, in_memory: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A bug in amqpd: neither it nor what stands behind it in line is lost or stands still."""
        target, bug = room.queue("target"), room.queue("bug")
        mover.keep([b"0"])
        mover.keep([b"1"], "bug")
        mover.keep([b"2"])
        if in_memory:
            room.republisher.add(mover, make_message(MessageRoute("first", "key"), encoded("bug"), b"1", True, None), 1)
            room.republisher.add(
                mover, make_message(MessageRoute("first", "key"), encoded("target"), b"2", True, None), 2
            )
        else:
            room.republisher.add_range(mover, 0, 1)
        other = Mover(room, mover.store)
        room.republisher.add(other, make_message(MessageRoute("first", "key"), encoded("target"), b"3", True, None), -1)
        room.turns()
        assert room.bodies(target) == ([b"2", b"3"] if in_memory else [b"0", b"3"])
        assert [each.levelname for each in caplog.records if each.exc_info] == ["ERROR"]
        room.advance(2 * RETRY_MS + 10)
        assert len([each for each in caplog.records if "a bug in amqpd, please report it" in each.message]) == 3
        assert bug.ready_count == 0
        mover.broken = False
        room.advance(RETRY_MS + 10)
        assert room.bodies(bug) == [b"1"]
        assert mover.offsets_told() == ([1, 2] if in_memory else [0, 1])
        assert not room.republisher.line

    def test_others_go_on_meanwhile(self, room: Any, mover: Mover) -> None:
        bad, good = room.queue("bad"), room.queue("good")
        other = Mover(room, room.storage.create_queue("v1", "other")[1])
        mover.keep([b"1"], "bad")
        other.keep([b"2"], "good")
        bad.store.failed = True
        room.republisher.add_range(mover, 0, 0)
        room.republisher.add_range(other, 0, 0)
        room.turns()
        assert quickly(good) == [b"2"] and other.told == [(0, 0)]
        assert mover.told == []

    @pytest.mark.parametrize("in_memory", [True, False])
    def test_a_log_that_stays_failed_does_not_flood_the_other_targets(
        self, room: Any, mover: Mover, in_memory: bool
    ) -> None:
        """A log that could not be written takes nothing until the next start: the others do not get a copy each time
        it is tried."""
        bad, good = room.queue("bad"), room.queue("good")
        mover.keep([b"1"], "good bad")
        bad.store.failed = True
        if in_memory:
            message = make_message(MessageRoute("first", "key"), encoded("good bad"), b"1", True, None)
            room.republisher.add(mover, message, 0)
        else:
            room.republisher.add_range(mover, 0, 0)
        for _ in range(5):
            room.turns()
            room.advance(RETRY_MS + 10)
        assert good.ready_count == 0 and mover.told == []
        bad.store.failed = False
        room.advance(RETRY_MS + 10)
        assert (quickly(good), quickly(bad)) == ([b"1"], [b"1"])
        assert mover.told == [(0, 0)]

    def test_a_target_that_cannot_be_opened_keeps_it_from_all(self, room: Any, mover: Mover) -> None:
        room.queue("good")
        room.queue("bad")
        room.publish("bad", b"before")
        mover.keep([b"1"], "good bad")
        room.turn.schedule()
        room.turns()
        queue_id = mover.store.queue_id
        room.restart()
        mover = Mover(room, room.storage.open_queue("v1", queue_id, "moving"))
        mover.store.recover()
        good, bad = room.vhost.queues["good"], room.vhost.queues["bad"]
        mend = spoil(room, bad.id)
        room.republisher.add_range(mover, 0, 0)
        room.turns()
        assert good.can_open() and good.ready_count == 0, "none gets it before all can"
        assert mover.told == [] and mover.waiting == 1
        mend()
        room.advance(RETRY_MS + 10)
        assert quickly(good) == [b"1"]
        assert quickly(bad) == [b"before", b"1"]
        assert mover.told == [(0, 0)]

    def test_a_target_that_is_not_open_yet(self, room: Any, mover: Mover) -> None:
        room.queue("one")
        room.queue("two")
        mover.keep([b"%d" % number for number in range(3)], "one two")
        room.turn.schedule()
        room.turns()
        queue_id = mover.store.queue_id
        room.restart()
        again = Mover(room, room.storage.open_queue("v1", queue_id, "moving"))
        again.store.recover()
        one, two = room.vhost.queues["one"], room.vhost.queues["two"]
        assert one.opening is not None and two.opening is not None
        room.republisher.add_range(again, 0, 2)
        room.republisher.run()
        assert again.told == [], "opening takes a turn at least"
        room.turns()
        assert one.opening is None and two.opening is None
        assert quickly(one) == quickly(two) == [b"0", b"1", b"2"]
        assert again.offsets_told() == [0, 1, 2]
        assert again.waiting == 0

    def test_targets_that_open_one_by_one(self, room: Any, mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each brings what waits for it, and no look at what waits for others."""
        names = [f"target{number}" for number in range(20)]
        for name in names:
            room.queue(name)
            mover.keep([name.encode()], name)
        room.turn.schedule()
        room.turns()
        queue_id = mover.store.queue_id
        room.restart()
        store = room.storage.open_queue("v1", queue_id, "moving")
        store.recover()
        monkeypatch.setattr(log_opener, "SLICE_S", 1e-9)
        movers = [Mover(room, store) for _ in names]
        for offset, each in enumerate(movers):
            room.republisher.add_range(each, offset, offset)
        room.turns()
        assert [quickly(room.vhost.queues[name]) for name in names] == [[name.encode()] for name in names]
        assert [each.waiting for each in movers] == [0] * len(names)
        assert max(len(each.dressed) for each in movers) == 2

    def test_a_target_that_fails_to_sync_gets_it_again(self, room: Any, mover: Mover) -> None:
        good, bad = room.queue("good"), room.queue("bad")
        mover.keep([b"0", b"1"], "good")
        mover.keep([b"2", b"3"], "bad")
        room.turn.schedule()
        room.turns()
        failing = [bad.store]
        watch_commits(room, lambda failed: [*failed, *failing])
        room.republisher.add_range(mover, 0, 3)
        room.turns()
        assert mover.offsets_told() == [0, 1], "the others are safe"
        failing.clear()
        room.advance(RETRY_MS + 10)
        assert mover.offsets_told() == [0, 1, 2, 3]
        assert quickly(good) == [b"0", b"1"]
        assert quickly(bad) == [b"2", b"3", b"2", b"3"], "at least once"

    def test_a_source_that_is_deleted_meanwhile(self, room: Any, mover: Mover) -> None:
        target = room.queue("target", durable=False)
        count = SLICE_COUNT_MAX + 1000
        mover.keep([b""] * count)
        room.republisher.add_range(mover, 0, count - 1)
        room.republisher.run()
        went = target.ready_count
        assert 0 < went < count
        mover.deleted = True
        room.turns()
        assert target.ready_count == went
        assert mover.offsets_told() == list(range(went))
        assert mover.waiting == 0

    def test_a_source_that_cannot_be_read(self, room: Any, mover: Mover, caplog: pytest.LogCaptureFixture) -> None:
        room.queue("target")
        mover.keep([b"1"])
        room.turn.schedule()
        room.turns()
        queue_id = mover.store.queue_id
        room.restart()
        mover = Mover(room, room.storage.open_queue("v1", queue_id, "moving"))
        mend = spoil(room, queue_id)
        room.republisher.add_range(mover, 0, 0)
        with caplog.at_level(logging.ERROR):
            room.turns()
        assert "a moved source cannot be read: [Errno 21] Is a directory" in caplog.text
        assert mover.told == [] and mover.waiting == 1
        mend()
        room.advance(RETRY_MS + 10)
        assert quickly(room.vhost.queue("target")) == [b"1"]
        assert mover.told == [(0, 0)]

    @pytest.mark.parametrize(("body_size", "count"), [(1 << 20, 64), (0, HELD_COUNT_MAX)])
    def test_it_holds_publishers_while_it_fills_memory(
        self, room: Any, mover: Mover, body_size: int, count: int
    ) -> None:
        """Until half of it is left. Messages of transient queues, that only memory has."""
        properties = encoded("nowhere")
        message = make_message(
            MessageRoute("first", "key"),
            properties,
            b"x" * body_size,
            True,
            scan_properties(properties, 0, len(properties)),
        )
        released: list[int] = []
        holding = SimpleNamespace(on_synced=lambda: released.append(len(room.republisher.line)))
        for number in range(count):
            assert not room.turn.is_republisher_full, number
            room.republisher.add(mover, message, -1)
        assert room.turn.is_republisher_full
        room.turn.pause_until_synced(holding)
        room.turn.resume_paused()
        assert released == []
        room.turns()
        assert not room.turn.is_republisher_full
        assert len(released) == 1
        assert released[0] <= count // 2
        assert room.republisher.held_bytes == 0

    def test_what_a_target_does_not_take_holds_no_publisher(
        self, room: Any, mover: Mover, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.queue("target").store.failed = True
        properties = encoded("target")
        message = make_message(
            MessageRoute("first", "key"),
            properties,
            b"x" * (1 << 20),
            True,
            scan_properties(properties, 0, len(properties)),
        )
        for _ in range(64):
            room.republisher.add(mover, message, -1)
        assert room.turn.is_republisher_full
        room.turns()
        assert not room.turn.is_republisher_full
        assert room.republisher.held_bytes == 64 << 20

    def test_a_disk_that_is_behind_holds_it_up(self, room: Any, mover: Mover) -> None:
        target = room.queue("target")
        mover.keep([b"1"])
        room.turn.schedule()
        room.turns()
        room.turn.unsynced_bytes_max = 0
        room.republisher.add_range(mover, 0, 0)
        room.republisher.run()
        assert target.ready_count == 0
        room.turn.unsynced_bytes_max = 64 * 1024 * 1024
        room.turns()
        assert target.ready_count == 1 and mover.told == [(0, 0)]


class Elsewhere(QueueLog):
    """A log on another machine: what it took is safe when the test says so."""

    def __init__(self) -> None:
        super().__init__("", "", "elsewhere", "", local=False)
        self.safe_end = 0

    @property
    def high_watermark(self) -> int:
        return self.safe_end

    def append(self, *record: Any) -> int:
        self.next_offset += 1
        return self.next_offset - 1

    def confirm(self) -> None:
        self.safe_end = self.next_offset
        self.on_high_watermark()

    def fail(self) -> None:
        self.failed = True
        self.on_high_watermark()


class TestOtherMachines:
    @pytest.fixture
    def far(self, room: Any) -> Elsewhere:
        queue = room.queue("far", durable=False)
        log = queue.backing.store = Elsewhere()
        return log

    def test_it_waits_for_the_high_watermark(self, room: Any, mover: Mover, far: Elsewhere) -> None:
        near = room.queue("near")
        mover.keep([b"1"], "near far")
        room.republisher.add_range(mover, 0, 0)
        room.turns()
        assert near.ready_count == 1 and far.next_offset == 1
        assert mover.told == [], "the near log is synced, the other one is not"
        far.confirm()
        assert mover.told == [(0, 0)]

    def test_answers_may_come_before_the_sync(self, room: Any, mover: Mover, far: Elsewhere) -> None:
        room.queue("near")
        mover.keep([b"1"], "near far")
        far.safe_end = 1 << 40
        room.republisher.add_range(mover, 0, 0)
        room.republisher.run()
        assert mover.told == []
        room.turns()
        assert mover.told == [(0, 0)]

    def test_one_that_fails_gets_it_again(self, room: Any, mover: Mover, far: Elsewhere) -> None:
        mover.keep([b"1"], "far")
        room.republisher.add_range(mover, 0, 0)
        room.turns()
        far.fail()
        room.turns()
        assert mover.told == [] and mover.waiting == 1
        far.failed = False
        room.advance(RETRY_MS + 10)
        assert far.next_offset == 2 and mover.told == []
        far.confirm()
        assert mover.told == [(0, 0)]
