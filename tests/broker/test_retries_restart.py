"""Retry with delay over a restart: who still waits, for how long, and what very many of them cost."""

from __future__ import annotations

import pytest
from test_other_log import MemoryLog, ShyLog, over
from test_retries import ALL, KINDS, counts, fail

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.queue import log_opener
from amqpd.broker.queue.arguments import rules_of
from amqpd.errors import ResourceError
from amqpd.storage.log.record import RecordRoute


@pytest.mark.parametrize("kind", ["classic", "quorum", "priorities", "single"])
class TestRestart:
    def test_it_waits_for_the_rest_of_its_time(self, room, kind) -> None:
        room.queue("q", **KINDS[kind], **ALL)
        for number in range(4):
            room.publish("q", b"%d" % number)
        queue = room.vhost.queues["q"]
        fail(queue)
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

    def test_what_was_due_meanwhile_is_ready(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        room.publish("q", b"0")
        fail(queue)
        room.turn.schedule()
        room.turns()
        room.restart(down_ms=5000)
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert counts(queue) == (1, 0, 0)
        assert room.bodies(queue) == [b"0"]

    def test_a_clock_that_was_set_back_costs_one_delay_at_most(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        room.publish("q", b"0")
        fail(queue)
        room.turn.schedule()
        room.turns()
        room.restart(down_ms=-86_400_000)
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert counts(queue) == (0, 0, 1)
        room.advance(1005)
        assert room.bodies(queue) == [b"0"]

    def test_purge_and_newcomers_while_it_waits(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        for number in range(3):
            room.publish("q", b"%d" % number)
        fail(queue)
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

    def test_alone(self, room, kind) -> None:
        """Its bytes are counted once: where nothing was ready they stayed among what is ready, too."""
        queue = room.queue("q", **KINDS[kind], **ALL)
        room.publish("q", b"alone")
        fail(queue)
        room.turn.schedule()
        room.turns()
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert counts(queue) == (0, 0, 1)
        assert (queue.ready_bytes, queue.delayed_bytes) == (0, 5)

    def test_twice(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        for number in range(3):
            room.publish("q", b"%d" % number)
        fail(queue, 2)
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
def test_very_many_after_a_restart(room, purged) -> None:
    """More than are read for their size."""
    queue = room.queue("q", **ALL)
    bodies = [b"x" * (number % 7) + b"%d" % number for number in range(200)]
    for body in bodies:
        room.publish("q", body, turn=False)
    room.turns()
    fail(queue, 150)
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
def test_what_is_due_first_comes_first_after_a_restart(room, kind) -> None:
    """More than are read for their size, among them what comes back anew; few of them are in memory meanwhile."""
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
    fail(queue)  # 190, due behind the others
    seen: list[int] = []
    while queue.delayed_count:
        room.advance(20)
        while queue.ready_count > 9:
            seen.append(int(room.get(queue).body))
    assert seen == [*range(189, -1, -1), 190]
    assert counts(queue) == (9, 0, 0)


def test_its_time_survives_a_file_that_is_written_anew(room) -> None:
    queue = room.queue("q", **ALL)
    room.publish("q", b"kept")
    fail(queue)
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
    assert 0 < sum(file.stat().st_size for file in files) < 12000 * 32, "it was never written anew"
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (400, 0, 1)


def test_a_queue_with_groups_takes_it_as_ready_after_a_restart(room) -> None:
    queue = room.queue("q", x_group_by="routing_key", **ALL)
    room.publish("q", b"0")
    fail(queue)
    room.turn.schedule()
    room.turns()
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (1, 0, 0)
    assert room.bodies(queue) == [b"0"]


class TestSlices:
    """What waits is found in slices before the queue is open. Each look at the clock takes as long as a slice may, so
    that one has LOOK_COUNT messages; and a turn has one slice."""

    @pytest.fixture
    def begun(self, room, monkeypatch):
        """A queue of 150 that wait and 50 that are ready, of which one slice is found; and who is to be called."""
        queue = room.queue("q", **ALL)
        for number in range(200):
            room.publish("q", b"%d" % number, turn=False)
        room.turns()
        fail(queue, 150)
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

    def test_nothing_is_given_out_before_all_are_known(self, room, begun) -> None:
        queue, called = begun
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

    def test_another_log_opens_meanwhile(self, room, begun) -> None:
        _, called = begun
        other = over(room, MemoryLog("other"))
        with pytest.raises(LogNotOpen):
            other.prepare()
        other.when_open(lambda: called.append("other"))
        room.turns()
        assert called == ["other", "open"]

    def test_it_is_deleted_meanwhile(self, room, begun) -> None:
        queue, called = begun
        retries = queue.enforcement.retries
        room.delete(queue)
        room.turns()
        assert (called, queue.opening, counts(queue), retries._earlier) == (["open"], None, (0, 0, 0), [])

    def test_a_purge_waits_for_all_of_them(self, room, begun) -> None:
        queue, called = begun
        queue.when_open(lambda: called.append(queue.purge()))
        room.turns()
        assert (called, counts(queue), queue.store.record_count) == (["open", 200], (0, 0, 0), 0)

    def test_who_cannot_wait_has_the_rest_found_at_once(self, room, begun) -> None:
        queue, called = begun
        assert queue.can_open()
        assert (counts(queue), called) == ((50, 0, 150), [])
        room.turns()
        assert (counts(queue), called) == ((50, 0, 150), ["open"])
        assert len(queue.enforcement.retries._earlier) + len(queue.enforcement.retries._heap) == 150

    @pytest.mark.parametrize("clean", [False, True])
    def test_a_stop_in_the_middle_loses_nothing(self, room, begun, clean) -> None:
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

    def test_the_rule_goes_meanwhile(self, room, begun) -> None:
        queue, called = begun
        queue.apply_config(rules_of({}))
        room.turns()
        assert (called, counts(queue)) == (["open"], (200, 0, 0))

    def test_another_rule_comes_meanwhile(self, room, begun) -> None:
        """A shorter one, which bounds how long they wait."""
        queue, called = begun
        queue.apply_config(rules_of({"x-delayed-retry-type": "all", "x-delayed-retry-min": 100}))
        room.turns()
        assert (called, counts(queue)) == (["open"], (50, 0, 150))
        room.clock.per_look_ms = 0
        room.advance(150)
        assert counts(queue) == (200, 0, 0)

    @pytest.mark.parametrize("readable", [True, False])
    def test_behind_a_disk_that_takes_its_time(self, room, monkeypatch, readable) -> None:
        """There are slices all the same, and its log is not asked again."""
        monkeypatch.setattr(log_opener, "SLICE_S", 1e-9)
        log = DelayingLog("shy")
        for number in range(100):
            log.append_parts(RecordRoute(b"", b"shy"), b"\0\0", b"%d" % number, True)
            log.mark_returned(number, 1)
        queue = over(room, log, **ALL)
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


class DelayingLog(ShyLog):
    """All that was given back waits. broken: it cannot be opened."""

    broken = False

    def recover(self) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")

    def returned_offsets(self) -> list[int]:
        return list(self.returned)

    def due_ms(self, offset: int) -> int:
        return 1_700_001_100_000
