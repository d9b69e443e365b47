"""The republisher with a source other than dead letters: a log without a queue.

The header `to` of each message names its target queues. The republished message has the header `moved`. Delays and
retries can use such a source.
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


class LogSource(RepublishSource):
    """Republish messages of one log to the queues in their header `to`, separated by spaces; "nowhere": no target."""

    def __init__(self, room: Any, store: Any) -> None:
        super().__init__("moved")
        self.room = room
        self.store = store
        self.deleted = False
        self.durable = True
        self.safe_ranges: list[tuple[int, int]] = []
        self.queued_count = 0
        self.rewritten: list[bytes] = []
        self.raises = True
        self.stopped: list[tuple[int, bool]] = []

    def on_stop(self, offset: int, again: bool) -> None:
        self.stopped.append((offset, again))

    def log(self) -> Any:
        return self.store

    def is_durable(self) -> bool:
        return self.durable

    def is_deleted(self) -> bool:
        return self.deleted

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        return MessageRoute(exchange.decode(), routing_key.decode())

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        self.rewritten.append(properties)
        assert (envelope.exchange, envelope.routing_key) == ("first", "key")
        to = decode_properties(properties).headers["to"]  # type: ignore[index]
        if to == "nowhere":
            return None
        if to == "bug" and self.raises:
            raise ValueError("a bug")
        vhost = self.room.vhost
        keys = str(to).split()
        changed = encode_properties(Properties(delivery_mode=2, headers={"moved": True}))
        destinations = router.route(vhost, vhost.default_exchange, keys, NO_MESSAGE)
        return RewrittenMessage(
            MessageRoute("", keys[0]), changed, scan_properties(changed, 0, len(changed)), destinations
        )

    def on_safe(self, first: int, last: int, size: int) -> None:
        self.safe_ranges.append((first, last))
        super().on_safe(first, last, size)

    def on_queued(self, count: int) -> None:
        self.queued_count += count

    def log_fields(self) -> dict[str, object]:
        return {"queue": "a log of its own"}

    # -- controls for tests

    def append(self, bodies: list[bytes], to: str = "target") -> None:
        properties = encoded(to)
        for body in bodies:
            content = properties + body
            split, end = len(properties), len(content)
            self.store.append(ROUTE, content, 0, split, split, end, True)

    def safe_offsets(self) -> list[int]:
        return sorted(offset for first, last in self.safe_ranges for offset in range(first, last + 1))


@pytest.fixture
def source(room: Any) -> LogSource:
    _, store = room.storage.create_queue("v1", "moving")
    return LogSource(room, store)


def get_all(queue: Any) -> list[bytes]:
    found = []
    while (entry := queue.get(True)) is not None:
        found.append(entry.message.body())
    return found


def watch_commits(room: Any, each: Callable[[list[Any]], list[Any]]) -> None:
    """Replace the list of failed logs of each commit by `each(failed)`."""
    on_commit = room.storage.commits.on_commit
    room.storage.commits.on_commit = lambda generation, failed: on_commit(generation, each(failed))


def make_unreadable(room: Any, queue_id: str) -> Callable[[], None]:
    """Replace the log's segment by a directory, so that it cannot be opened. Return a function that restores it."""
    (segment,) = next(room.data_dir.rglob(queue_id)).glob("*.log")
    aside = segment.rename(segment.with_suffix(".aside"))
    segment.mkdir()

    def restore() -> None:
        segment.rmdir()
        aside.rename(segment)

    return restore


class TestRepublish:
    def test_range_is_republished_in_order_and_acked(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        source.append([b"%d" % number for number in range(20)])
        room.republisher.add_range(source, 5, 19)
        assert target.ready_count == 0, "add_range must not publish from within the call"
        room.turns()
        got = room.get(target)
        assert (got.body, got.exchange, got.routing_key, got.headers) == (b"5", "", "target", {"moved": True})
        assert get_all(target) == [b"%d" % number for number in range(6, 20)]
        assert source.safe_offsets() == list(range(5, 20))
        assert source.store.record_count == 5, "offsets outside the range stay"
        assert source.queued_count == 0

    def test_acked_message_is_not_republished(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        source.append([b"0", b"1", b"2"])
        source.store.ack(1, 1)
        room.republisher.add_range(source, 0, 2)
        room.turns()
        assert get_all(target) == [b"0", b"2"]
        assert source.store.record_count == 0

    def test_message_in_memory_with_and_without_offset(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        source.append([b"logged"])
        properties = encoded("target")
        info = scan_properties(properties, 0, len(properties))
        for body, offset in ((b"logged", 0), (b"never logged", -1)):
            message = make_message(MessageRoute("first", "key"), properties, body, True, info)
            room.republisher.add(source, message, offset)
        assert room.republisher.held_bytes == len(b"logged" + b"never logged")
        room.turns()
        assert room.republisher.held_bytes == 0
        assert get_all(target) == [b"logged", b"never logged"]
        assert source.safe_ranges == [(0, 0)]

    def test_message_without_target_is_acked(self, room: Any, source: LogSource) -> None:
        source.append([b"0", b"1"], "nowhere")
        room.republisher.add_range(source, 0, 1)
        room.turns()
        assert source.safe_offsets() == [0, 1]
        assert source.store.record_count == 0

    def test_every_target_gets_the_message(self, room: Any, source: LogSource) -> None:
        one, two = room.queue("one"), room.queue("two", durable=False)
        source.append([b"1"], "one two")
        room.republisher.add_range(source, 0, 0)
        room.turns()
        assert get_all(one) == get_all(two) == [b"1"]
        assert source.store.record_count == 0

    def test_adjacent_offsets_are_merged_into_one_range(self, room: Any, source: LogSource) -> None:
        other = LogSource(room, source.store)
        for offset in range(1000):
            room.republisher.add_range(source, offset, offset)
        room.republisher.add_range(other, 1000, 1000)
        assert [(each.first, each.last) for each in room.republisher.line] == [(0, 999), (1000, 1000)]
        assert (source.queued_count, other.queued_count) == (1, 1)
        room.turns()

    def test_long_range_is_republished_in_slices(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        count = SLICE_COUNT_MAX + 1000
        source.append([b""] * count)
        room.republisher.add_range(source, 0, count - 1)
        room.republisher.run()
        assert 0 < target.ready_count < count
        assert room.turn.dead_letters_pending, "publishers must wait for the rest"
        room.turns()
        assert target.ready_count == count
        assert room.republisher.slice_number >= 2
        assert source.store.record_count == 0

    def test_sources_are_served_in_order_of_arrival(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="target")
        room.publish("q", b"dead 1")
        room.publish("q", b"dead 2")
        source.append([b"moved"])
        first, second = queue.get(False), queue.get(False)
        queue.reject(first)
        room.republisher.add_range(source, 0, 0)
        queue.reject(second)
        room.turns()
        assert get_all(target) == [b"dead 1", b"moved", b"dead 2"]


class TestSafety:
    def test_source_keeps_message_until_targets_are_synced(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        source.append([b"1"])
        room.turn.schedule()
        room.turns()
        at_commit: list[tuple[list[tuple[int, int]], int]] = []

        def on_commit(failed: list[Any]) -> list[Any]:
            at_commit.append((list(source.safe_ranges), target.store.record_count))
            return failed

        watch_commits(room, on_commit)
        room.republisher.add_range(source, 0, 0)
        room.republisher.run()
        assert source.safe_ranges == [] and target.ready_count == 1
        room.turns()
        assert at_commit[0] == ([], 1)
        assert source.safe_ranges == [(0, 0)]

    def test_transient_source_does_not_wait_for_sync(self, room: Any, source: LogSource) -> None:
        room.queue("target")
        source.durable = False
        source.append([b"1"])
        room.republisher.add_range(source, 0, 0)
        room.republisher.run()
        assert source.safe_ranges == [(0, 0)]

    def test_transient_target_is_safe_immediately(self, room: Any, source: LogSource) -> None:
        room.queue("target", durable=False)
        source.append([b"1"])
        room.republisher.add_range(source, 0, 0)
        room.republisher.run()
        assert source.safe_ranges == [(0, 0)]

    def test_kill_before_sync_repeats_and_loses_none(self, room: Any, source: LogSource) -> None:
        room.queue("target")
        source.append([b"%d" % number for number in range(10)])
        room.turn.schedule()
        room.turns()
        queue_id = source.store.queue_id
        room.republisher.add_range(source, 0, 9)
        room.republisher.run()  # published, but the turn does not end, so nothing is synced
        room.restart()
        again = LogSource(room, room.storage.open_queue("v1", queue_id, "moving"))
        again.store.recover()
        assert again.store.record_count == 10
        room.republisher.add_range(again, 0, 9)
        room.turns()
        assert set(get_all(room.vhost.queue("target"))) == {b"%d" % number for number in range(10)}
        assert again.store.record_count == 0

    def test_stop_leaves_unpublished_messages_in_the_source(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        source.append([b"1", b"2"])
        room.republisher.add_range(source, 0, 1)
        room.republisher.stop()
        room.turns()
        assert target.ready_count == 0 and source.safe_ranges == []
        assert source.store.record_count == 2

    def test_stop_reports_which_messages_may_be_duplicated(self, room: Any, source: LogSource) -> None:
        """Targets may have a copy of the message that raised; the other one was never tried."""
        room.queue("target")
        for offset, to in enumerate(("bug", "target")):
            message = make_message(
                MessageRoute("first", "key"), encoded(to), b"", True, scan_properties(encoded(to), 0, len(encoded(to)))
            )
            room.republisher.add(source, message, offset)
            if to == "bug":
                room.turns()
        room.republisher.stop()
        assert sorted(source.stopped) == [(0, True), (1, False)]


class TestRetry:
    def test_target_with_failed_log_is_retried(
        self, room: Any, source: LogSource, caplog: pytest.LogCaptureFixture
    ) -> None:
        target = room.queue("target")
        source.append([b"%d" % number for number in range(5)])
        target.store.failed = True
        room.republisher.add_range(source, 0, 4)
        with caplog.at_level(logging.WARNING):
            room.turns()
        assert [record.getMessage() for record in caplog.records] == ["a moved target takes nothing, it is tried again"]
        assert caplog.records[0].queue == "a log of its own"
        assert (target.ready_count, source.safe_ranges, source.queued_count) == (0, [], 1)
        target.store.failed = False
        room.advance(RETRY_MS - 100)
        assert target.ready_count == 0
        room.advance(110)
        assert get_all(target) == [b"%d" % number for number in range(5)]
        assert source.safe_offsets() == list(range(5))
        assert source.queued_count == 0

    @pytest.mark.parametrize("in_memory", [True, False])
    def test_exception_in_rewrite_is_logged_and_retried(
        self, room: Any, source: LogSource, in_memory: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A bug in amqpd must not lose or block the message, nor those behind it."""
        target, bug = room.queue("target"), room.queue("bug")
        source.append([b"0"])
        source.append([b"1"], "bug")
        source.append([b"2"])
        if in_memory:
            room.republisher.add(
                source, make_message(MessageRoute("first", "key"), encoded("bug"), b"1", True, None), 1
            )
            room.republisher.add(
                source, make_message(MessageRoute("first", "key"), encoded("target"), b"2", True, None), 2
            )
        else:
            room.republisher.add_range(source, 0, 1)
        other = LogSource(room, source.store)
        room.republisher.add(other, make_message(MessageRoute("first", "key"), encoded("target"), b"3", True, None), -1)
        room.turns()
        assert room.bodies(target) == ([b"2", b"3"] if in_memory else [b"0", b"3"])
        assert [each.levelname for each in caplog.records if each.exc_info] == ["ERROR"]
        room.advance(2 * RETRY_MS + 10)
        assert len([each for each in caplog.records if "a bug in amqpd, please report it" in each.message]) == 3
        assert bug.ready_count == 0
        source.raises = False
        room.advance(RETRY_MS + 10)
        assert room.bodies(bug) == [b"1"]
        assert source.safe_offsets() == ([1, 2] if in_memory else [0, 1])
        assert not room.republisher.line

    def test_failed_target_does_not_block_other_sources(self, room: Any, source: LogSource) -> None:
        bad, good = room.queue("bad"), room.queue("good")
        other = LogSource(room, room.storage.create_queue("v1", "other")[1])
        source.append([b"1"], "bad")
        other.append([b"2"], "good")
        bad.store.failed = True
        room.republisher.add_range(source, 0, 0)
        room.republisher.add_range(other, 0, 0)
        room.turns()
        assert get_all(good) == [b"2"] and other.safe_ranges == [(0, 0)]
        assert source.safe_ranges == []

    @pytest.mark.parametrize("in_memory", [True, False])
    def test_permanently_failed_target_does_not_flood_the_others(
        self, room: Any, source: LogSource, in_memory: bool
    ) -> None:
        """A failed log takes no message until the next start. The other targets must not get a copy at each retry."""
        bad, good = room.queue("bad"), room.queue("good")
        source.append([b"1"], "good bad")
        bad.store.failed = True
        if in_memory:
            message = make_message(MessageRoute("first", "key"), encoded("good bad"), b"1", True, None)
            room.republisher.add(source, message, 0)
        else:
            room.republisher.add_range(source, 0, 0)
        for _ in range(5):
            room.turns()
            room.advance(RETRY_MS + 10)
        assert good.ready_count == 0 and source.safe_ranges == []
        bad.store.failed = False
        room.advance(RETRY_MS + 10)
        assert (get_all(good), get_all(bad)) == ([b"1"], [b"1"])
        assert source.safe_ranges == [(0, 0)]

    def test_unopenable_target_delays_the_message_for_all_targets(self, room: Any, source: LogSource) -> None:
        room.queue("good")
        room.queue("bad")
        room.publish("bad", b"before")
        source.append([b"1"], "good bad")
        room.turn.schedule()
        room.turns()
        queue_id = source.store.queue_id
        room.restart()
        source = LogSource(room, room.storage.open_queue("v1", queue_id, "moving"))
        source.store.recover()
        good, bad = room.vhost.queues["good"], room.vhost.queues["bad"]
        restore = make_unreadable(room, bad.id)
        room.republisher.add_range(source, 0, 0)
        room.turns()
        assert good.can_open() and good.ready_count == 0, "no target gets it before all can"
        assert source.safe_ranges == [] and source.queued_count == 1
        restore()
        room.advance(RETRY_MS + 10)
        assert get_all(good) == [b"1"]
        assert get_all(bad) == [b"before", b"1"]
        assert source.safe_ranges == [(0, 0)]

    def test_target_that_is_still_opening_is_waited_for(self, room: Any, source: LogSource) -> None:
        room.queue("one")
        room.queue("two")
        source.append([b"%d" % number for number in range(3)], "one two")
        room.turn.schedule()
        room.turns()
        queue_id = source.store.queue_id
        room.restart()
        again = LogSource(room, room.storage.open_queue("v1", queue_id, "moving"))
        again.store.recover()
        one, two = room.vhost.queues["one"], room.vhost.queues["two"]
        assert one.opening is not None and two.opening is not None
        room.republisher.add_range(again, 0, 2)
        room.republisher.run()
        assert again.safe_ranges == [], "opening takes at least one turn"
        room.turns()
        assert one.opening is None and two.opening is None
        assert get_all(one) == get_all(two) == [b"0", b"1", b"2"]
        assert again.safe_offsets() == [0, 1, 2]
        assert again.queued_count == 0

    def test_opened_target_gets_only_its_own_messages(
        self, room: Any, source: LogSource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Opening a target republishes what waits for it, without a look at messages for other targets."""
        names = [f"target{number}" for number in range(20)]
        for name in names:
            room.queue(name)
            source.append([name.encode()], name)
        room.turn.schedule()
        room.turns()
        queue_id = source.store.queue_id
        room.restart()
        store = room.storage.open_queue("v1", queue_id, "moving")
        store.recover()
        monkeypatch.setattr(log_opener, "SLICE_S", 1e-9)
        movers = [LogSource(room, store) for _ in names]
        for offset, each in enumerate(movers):
            room.republisher.add_range(each, offset, offset)
        room.turns()
        assert [get_all(room.vhost.queues[name]) for name in names] == [[name.encode()] for name in names]
        assert [each.queued_count for each in movers] == [0] * len(names)
        assert max(len(each.rewritten) for each in movers) == 2

    def test_target_that_fails_to_sync_gets_the_messages_again(self, room: Any, source: LogSource) -> None:
        good, bad = room.queue("good"), room.queue("bad")
        source.append([b"0", b"1"], "good")
        source.append([b"2", b"3"], "bad")
        room.turn.schedule()
        room.turns()
        failing = [bad.store]
        watch_commits(room, lambda failed: [*failed, *failing])
        room.republisher.add_range(source, 0, 3)
        room.turns()
        assert source.safe_offsets() == [0, 1], "the messages of the good target are safe"
        failing.clear()
        room.advance(RETRY_MS + 10)
        assert source.safe_offsets() == [0, 1, 2, 3]
        assert get_all(good) == [b"0", b"1"]
        assert get_all(bad) == [b"2", b"3", b"2", b"3"], "delivery is at least once"

    def test_deleted_source_stops_republishing(self, room: Any, source: LogSource) -> None:
        target = room.queue("target", durable=False)
        count = SLICE_COUNT_MAX + 1000
        source.append([b""] * count)
        room.republisher.add_range(source, 0, count - 1)
        room.republisher.run()
        published_count = target.ready_count
        assert 0 < published_count < count
        source.deleted = True
        room.turns()
        assert target.ready_count == published_count
        assert source.safe_offsets() == list(range(published_count))
        assert source.queued_count == 0

    def test_unreadable_source_is_retried(self, room: Any, source: LogSource, caplog: pytest.LogCaptureFixture) -> None:
        room.queue("target")
        source.append([b"1"])
        room.turn.schedule()
        room.turns()
        queue_id = source.store.queue_id
        room.restart()
        source = LogSource(room, room.storage.open_queue("v1", queue_id, "moving"))
        restore = make_unreadable(room, queue_id)
        room.republisher.add_range(source, 0, 0)
        with caplog.at_level(logging.ERROR):
            room.turns()
        assert "a moved source cannot be read: [Errno 21] Is a directory" in caplog.text
        assert source.safe_ranges == [] and source.queued_count == 1
        restore()
        room.advance(RETRY_MS + 10)
        assert get_all(room.vhost.queue("target")) == [b"1"]
        assert source.safe_ranges == [(0, 0)]

    @pytest.mark.parametrize(("body_size", "count"), [(1 << 20, 64), (0, HELD_COUNT_MAX)])
    def test_full_republisher_pauses_publishers(self, room: Any, source: LogSource, body_size: int, count: int) -> None:
        """Publishers resume when half of it is left. Messages of transient queues are only in memory."""
        properties = encoded("nowhere")
        message = make_message(
            MessageRoute("first", "key"),
            properties,
            b"x" * body_size,
            True,
            scan_properties(properties, 0, len(properties)),
        )
        released: list[int] = []
        paused_connection = SimpleNamespace(on_synced=lambda: released.append(len(room.republisher.line)))
        for number in range(count):
            assert not room.turn.is_republisher_full, number
            room.republisher.add(source, message, -1)
        assert room.turn.is_republisher_full
        room.turn.pause_until_synced(paused_connection)
        room.turn.resume_paused()
        assert released == []
        room.turns()
        assert not room.turn.is_republisher_full
        assert len(released) == 1
        assert released[0] <= count // 2
        assert room.republisher.held_bytes == 0

    def test_messages_for_a_failed_target_do_not_pause_publishers(
        self, room: Any, source: LogSource, monkeypatch: pytest.MonkeyPatch
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
            room.republisher.add(source, message, -1)
        assert room.turn.is_republisher_full
        room.turns()
        assert not room.turn.is_republisher_full
        assert room.republisher.held_bytes == 64 << 20

    def test_republisher_waits_while_too_many_bytes_are_unsynced(self, room: Any, source: LogSource) -> None:
        target = room.queue("target")
        source.append([b"1"])
        room.turn.schedule()
        room.turns()
        room.turn.unsynced_bytes_max = 0
        room.republisher.add_range(source, 0, 0)
        room.republisher.run()
        assert target.ready_count == 0
        room.turn.unsynced_bytes_max = 64 * 1024 * 1024
        room.turns()
        assert target.ready_count == 1 and source.safe_ranges == [(0, 0)]


class RemoteLog(QueueLog):
    """A log on another machine: its records are safe when the test calls `confirm`."""

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


class TestRemoteLog:
    @pytest.fixture
    def remote(self, room: Any) -> RemoteLog:
        queue = room.queue("far", durable=False)
        log = queue.backing.store = RemoteLog()
        return log

    def test_source_waits_for_high_watermark_of_remote_log(
        self, room: Any, source: LogSource, remote: RemoteLog
    ) -> None:
        near = room.queue("near")
        source.append([b"1"], "near far")
        room.republisher.add_range(source, 0, 0)
        room.turns()
        assert near.ready_count == 1 and remote.next_offset == 1
        assert source.safe_ranges == [], "the remote log has not confirmed the record"
        remote.confirm()
        assert source.safe_ranges == [(0, 0)]

    def test_remote_log_may_confirm_before_the_local_sync(
        self, room: Any, source: LogSource, remote: RemoteLog
    ) -> None:
        room.queue("near")
        source.append([b"1"], "near far")
        remote.safe_end = 1 << 40
        room.republisher.add_range(source, 0, 0)
        room.republisher.run()
        assert source.safe_ranges == []
        room.turns()
        assert source.safe_ranges == [(0, 0)]

    def test_failed_remote_log_gets_the_message_again(self, room: Any, source: LogSource, remote: RemoteLog) -> None:
        source.append([b"1"], "far")
        room.republisher.add_range(source, 0, 0)
        room.turns()
        remote.fail()
        room.turns()
        assert source.safe_ranges == [] and source.queued_count == 1
        remote.failed = False
        room.advance(RETRY_MS + 10)
        assert remote.next_offset == 2 and source.safe_ranges == []
        remote.confirm()
        assert source.safe_ranges == [(0, 0)]
