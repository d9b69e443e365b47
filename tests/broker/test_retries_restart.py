"""Delayed retry over a restart: which messages are still delayed, for how long, and the cost of very many of them."""

from __future__ import annotations

import pytest
from test_memory_log import FailingLog, MemoryLog, queue_over
from test_retries import ALL, KINDS, counts, requeue_messages

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.queue import log_opener
from amqpd.broker.queue.arguments import rules_of
from amqpd.errors import ResourceError
from amqpd.storage.log.record import RecordRoute


@pytest.mark.parametrize("kind", ["classic", "quorum", "priorities", "single"])
class TestRestart:
    def test_message_waits_for_the_rest_of_its_delay(self, room, kind) -> None:
        room.queue("q", **KINDS[kind], **ALL)
        for number in range(4):
            room.publish("q", b"%d" % number)
        queue = room.vhost.queues["q"]
        requeue_messages(queue)
        queue.ack(queue.get(False))
        room.turn.schedule()
        room.advance(300)
        room.restart(down_ms=200)
        queue = room.vhost.queues["q"]
        queue.prepare()
        room.turns()
        assert counts(queue) == (2, 0, 1)
        room.advance(490)
        assert counts(queue) == (2, 0, 1)
        room.advance(20)
        assert counts(queue) == (3, 0, 0)
        entry = queue.get(False)
        assert (entry.message.body(), entry.redelivered, entry.delivery_count, entry.body_size) == (b"0", True, 1, 1)
        queue.ack(entry)
        assert room.bodies(queue) == [b"2", b"3"]
        assert (queue.ready_bytes, queue.store.record_count, queue.store.size_bytes) == (0, 0, 0)

    def test_message_due_during_downtime_is_ready(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        room.publish("q", b"0")
        requeue_messages(queue)
        room.turn.schedule()
        room.turns()
        room.restart(down_ms=5000)
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert counts(queue) == (1, 0, 0)
        assert room.bodies(queue) == [b"0"]

    def test_clock_set_back_costs_at_most_one_delay(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        room.publish("q", b"0")
        requeue_messages(queue)
        room.turn.schedule()
        room.turns()
        room.restart(down_ms=-86_400_000)
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert counts(queue) == (0, 0, 1)
        room.advance(1005)
        assert room.bodies(queue) == [b"0"]

    def test_publish_and_purge_while_a_message_is_delayed(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        for number in range(3):
            room.publish("q", b"%d" % number)
        requeue_messages(queue)
        room.turn.schedule()
        room.turns()
        room.restart()
        queue = room.vhost.queues["q"]
        room.publish("q", b"3")
        assert counts(queue) == (3, 0, 1)
        assert queue.purge() == 4
        room.turn.schedule()
        room.advance(1005)
        assert (counts(queue), queue.store.record_count, queue.store.size_bytes) == ((0, 0, 0), 0, 0)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert counts(queue) == (0, 0, 0)

    def test_bytes_of_only_delayed_message_are_counted_once(self, room, kind) -> None:
        """Regression: without ready messages its bytes were counted as ready bytes too."""
        queue = room.queue("q", **KINDS[kind], **ALL)
        room.publish("q", b"alone")
        requeue_messages(queue)
        room.turn.schedule()
        room.turns()
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert counts(queue) == (0, 0, 1)
        assert (queue.ready_bytes, queue.delayed_bytes) == (0, 5)

    def test_two_restarts_keep_delays(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        for number in range(3):
            room.publish("q", b"%d" % number)
        requeue_messages(queue, 2)
        room.turn.schedule()
        room.turns()
        for _ in range(2):
            room.restart()
            queue = room.vhost.queues["q"]
            queue.prepare()
            room.turns()
            assert counts(queue) == (1, 0, 2)
        room.advance(1005)
        assert room.bodies(queue) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("purged", [False, True])
def test_many_delayed_messages_after_restart(room, purged) -> None:
    """More messages are delayed than the start reads for their sizes."""
    queue = room.queue("q", **ALL)
    bodies = [b"x" * (number % 7) + b"%d" % number for number in range(200)]
    for body in bodies:
        room.publish("q", body, turn=False)
    room.turns()
    requeue_messages(queue, 150)
    room.turn.schedule()
    room.turns()
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (50, 0, 150)
    assert queue.ready_bytes + queue.delayed_bytes == sum(len(body) for body in bodies)
    if purged:
        assert queue.purge() == 200
        room.turn.schedule()
        room.turns()
    else:
        room.advance(1100)
        assert counts(queue) == (200, 0, 0)
        assert queue.ready_bytes == sum(len(body) for body in bodies)
        assert [entry.message for entry in queue.order.returned] == [None] * 150
        assert room.bodies(queue) == bodies
    assert (queue.ready_bytes, queue.delayed_bytes, queue.store.record_count) == (0, 0, 0)
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["classic", "priorities"])
def test_messages_are_released_in_due_order_after_restart(room, kind) -> None:
    """More messages are delayed than the start reads for their sizes; one more is added later. Few are in memory."""
    queue = room.queue("q", **{**KINDS[kind], **ALL, "x_delayed_retry_min": 10_000})
    for number in range(200):
        room.publish("q", b"%d" % number, turn=False)
    room.turns()
    for entry in reversed([queue.get(False) for _ in range(190)]):
        queue.requeue(entry, True, True)
        room.clock.now_ms += 20
    room.turn.schedule()
    room.turns()
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (10, 0, 190)
    assert len(queue.enforcement.retries._heap) < 70
    room.advance(5000)
    requeue_messages(queue)  # message 190, due after the others
    released: list[int] = []
    while queue.delayed_count:
        room.advance(20)
        while queue.ready_count > 9:
            released.append(int(room.get(queue).body))
    assert released == [*range(189, -1, -1), 190]
    assert counts(queue) == (9, 0, 0)


def test_due_time_survives_rewrite_of_the_acks_file(room) -> None:
    queue = room.queue("q", **ALL)
    room.publish("q", b"kept")
    requeue_messages(queue)
    for number in range(400):
        room.publish("q", b"%d" % number, turn=False)
    room.turns()
    for _ in range(30):
        entries = [queue.get(False) for _ in range(400)]
        for entry in entries:
            queue.requeue(entry, False)
        room.turn.schedule()
        room.turns()
    files = list(room.data_dir.rglob("*.settled*"))
    assert 0 < sum(file.stat().st_size for file in files) < 12000 * 32, "the file was never rewritten"
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (400, 0, 1)


def test_grouped_queue_has_delayed_message_ready_after_restart(room) -> None:
    queue = room.queue("q", x_group_by="routing_key", **ALL)
    room.publish("q", b"0")
    requeue_messages(queue)
    room.turn.schedule()
    room.turns()
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (1, 0, 0)
    assert room.bodies(queue) == [b"0"]


class TestSlices:
    """Delayed messages are found in slices before the queue is open.

    Each look at the clock takes as long as a slice may last, so a slice has LOOK_COUNT messages. A turn has one slice.
    """

    @pytest.fixture
    def opening_queue(self, room, monkeypatch):
        """Return a queue of 150 delayed and 50 ready messages after the first slice, and the `when_open` calls."""
        queue = room.queue("q", **ALL)
        for number in range(200):
            room.publish("q", b"%d" % number, turn=False)
        room.turns()
        requeue_messages(queue, 150)
        room.turn.schedule()
        room.turns()
        room.restart()
        room.clock.per_look_ms = 2
        monkeypatch.setattr(log_opener, "SLICE_S", 1e-9)
        queue = room.vhost.queues["q"]
        with pytest.raises(LogNotOpen):
            queue.prepare()
        called: list[str] = []
        queue.when_open(lambda: called.append("open"))
        return queue, called

    def test_no_message_is_delivered_before_all_delayed_are_found(self, room, opening_queue) -> None:
        queue, called = opening_queue
        slices = 1
        while not called:
            assert (queue.opening is None, counts(queue)) == (False, (0, 0, 0))
            with pytest.raises(LogNotOpen):
                queue.prepare()
            slices += 1
            soon, room._soon[:] = room._soon[:], []
            for call in soon:
                call()
        assert slices == 5
        queue.prepare()
        assert counts(queue) == (50, 0, 150)
        assert room.bodies(queue) == [b"%d" % number for number in range(150, 200)]
        room.clock.per_look_ms = 0
        room.advance(1100)
        assert room.bodies(queue) == [b"%d" % number for number in range(150)]

    def test_another_queue_opens_meanwhile(self, room, opening_queue) -> None:
        _, called = opening_queue
        other = queue_over(room, MemoryLog("other"))
        with pytest.raises(LogNotOpen):
            other.prepare()
        other.when_open(lambda: called.append("other"))
        room.turns()
        assert called == ["other", "open"]

    def test_queue_is_deleted_while_opening(self, room, opening_queue) -> None:
        queue, called = opening_queue
        retries = queue.enforcement.retries
        room.delete(queue)
        room.turns()
        assert (called, queue.opening, counts(queue), retries._earlier) == (["open"], None, (0, 0, 0), [])

    def test_purge_waits_until_all_delayed_are_found(self, room, opening_queue) -> None:
        queue, called = opening_queue
        queue.when_open(lambda: called.append(queue.purge()))
        room.turns()
        assert (called, counts(queue), queue.store.record_count) == (["open", 200], (0, 0, 0), 0)

    def test_can_open_finds_the_rest_at_once(self, room, opening_queue) -> None:
        queue, called = opening_queue
        assert queue.can_open()
        assert (counts(queue), called) == ((50, 0, 150), [])
        room.turns()
        assert (counts(queue), called) == ((50, 0, 150), ["open"])
        assert len(queue.enforcement.retries._earlier) + len(queue.enforcement.retries._heap) == 150

    @pytest.mark.parametrize("clean", [False, True])
    def test_stop_while_opening_loses_no_message(self, room, opening_queue, clean) -> None:
        if clean:
            room.storage.close(clean=True)
        room.restart()
        room.clock.per_look_ms = 0
        queue = room.vhost.queues["q"]
        queue.when_open(lambda: None)
        assert queue.can_open()
        assert counts(queue) == (50, 0, 150)
        room.advance(1100)
        assert sorted(map(int, room.bodies(queue))) == list(range(200))

    def test_rule_removed_while_opening(self, room, opening_queue) -> None:
        queue, called = opening_queue
        queue.apply_config(rules_of({}))
        room.turns()
        assert (called, counts(queue)) == (["open"], (200, 0, 0))

    def test_rule_changed_while_opening(self, room, opening_queue) -> None:
        """The new rule has a shorter delay, which limits the delay of messages found later."""
        queue, called = opening_queue
        queue.apply_config(rules_of({"x-delayed-retry-type": "all", "x-delayed-retry-min": 100}))
        room.turns()
        assert (called, counts(queue)) == (["open"], (50, 0, 150))
        room.clock.per_look_ms = 0
        room.advance(150)
        assert counts(queue) == (200, 0, 0)

    @pytest.mark.parametrize("readable", [True, False])
    def test_slow_log_is_scanned_in_slices_once(self, room, monkeypatch, readable) -> None:
        """The scan still has slices, and the log is opened only once."""
        monkeypatch.setattr(log_opener, "SLICE_S", 1e-9)
        log = DelayingLog("shy")
        for number in range(100):
            log.append_parts(RecordRoute(b"", b"shy"), b"\0\0", b"%d" % number, True)
            log.mark_returned(number, 1)
        queue = queue_over(room, log, **ALL)
        room.clock.per_look_ms = 2
        with pytest.raises(LogNotOpen):
            queue.prepare()
        called: list[bool] = []
        queue.when_open(lambda: called.append(True))
        room.turns()
        assert (called, len(log.opened)) == ([], 1)
        log.broken = not readable
        log.opened[0]()
        assert (called, queue.opening is None) == ([] if readable else [True], False)
        room.turns()
        assert (called, len(log.opened), queue.opening is None) == ([True], 1, readable)
        if readable:
            assert counts(queue) == (0, 0, 100)
        else:
            with pytest.raises(ResourceError):
                queue.prepare()


class DelayingLog(FailingLog):
    """A log in which all returned messages are delayed. broken: it cannot be opened."""

    broken = False

    def recover(self) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")

    def returned_offsets(self) -> list[int]:
        return list(self.returned)

    def due_ms(self, offset: int) -> int:
        return 1_700_001_100_000
