"""Retry with delay over a restart: who still waits, for how long, and what very many of them cost."""

from __future__ import annotations

import pytest
from test_retries import ALL, KINDS, counts, fail


@pytest.mark.parametrize("kind", ["classic", "quorum", "priorities", "single"])
class TestRestart:
    def test_it_waits_for_the_rest_of_its_time(self, room, kind) -> None:
        room.queue("q", **KINDS[kind], **ALL)
        for number in range(4):
            room.publish("q", b"%d" % number)
        queue = room.vhost.queues["q"]
        fail(queue)
        queue.settle(queue.get(False))
        room.turn.want()
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
        queue.settle(entry)
        assert room.bodies(queue) == [b"2", b"3"]
        assert (queue.ready_bytes, queue.store.record_count, queue.store.size_bytes) == (0, 0, 0)

    def test_what_was_due_meanwhile_is_ready(self, room, kind) -> None:
        queue = room.queue("q", **KINDS[kind], **ALL)
        room.publish("q", b"0")
        fail(queue)
        room.turn.want()
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
        room.turn.want()
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
        room.turn.want()
        room.turns()
        room.restart()
        queue = room.vhost.queues["q"]
        room.publish("q", b"3")
        assert counts(queue) == (3, 0, 1)
        assert queue.purge() == 4
        room.turn.want()
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
        room.turn.want()
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
        room.turn.want()
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
    room.turn.want()
    room.turns()
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (50, 0, 150)
    assert queue.ready_bytes + queue.delayed_bytes == sum(len(body) for body in bodies)
    if purged:
        assert queue.purge() == 200
        room.turn.want()
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
    room.turn.want()
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
        room.turn.want()
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
    room.turn.want()
    room.turns()
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    assert counts(queue) == (1, 0, 0)
    assert room.bodies(queue) == [b"0"]
