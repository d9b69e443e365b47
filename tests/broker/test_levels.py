"""Levels: order, what lies in the log alone, requeues, limits, restarts; and the index beside a naive twin."""

from __future__ import annotations

import random

import pytest

from amqpd.broker.queue.priority import CHUNK_SIZE, PriorityIndex


def fill(room, queue, count: int, levels: int, seed: int = 7) -> list[bytes]:
    """Publishes `count` messages of mixed priorities; returns their bodies in the order they should come out."""
    chance = random.Random(seed)
    sent = []
    for number in range(count):
        priority = chance.randrange(levels)
        body = b"%d:%d" % (priority, number)
        sent.append((-priority, number, body))
        room.publish(queue.name, body, priority=priority, turn=number % 100 == 0)
    room.turn.schedule()
    room.turns()
    return [body for _, _, body in sorted(sent)]


@pytest.mark.parametrize("durable", [True, False])
class TestOrder:
    def test_higher_first_within_a_level_as_they_came(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=5)
        assert room.bodies(queue) == []
        for number, priority in enumerate([0, 3, 9, 1, None, 5, 3]):
            room.publish("q", b"%d" % number, priority=priority)
        assert room.bodies(queue) == [b"2", b"5", b"1", b"6", b"3", b"0", b"4"]

    def test_256_levels(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=255)
        order = fill(room, queue, 600, 256)
        assert room.bodies(queue) == order

    def test_zero_is_a_plain_order(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=0)
        for number in range(4):
            room.publish("q", b"%d" % number, priority=number)
        assert room.bodies(queue) == [b"0", b"1", b"2", b"3"]

    def test_requeued_ones_go_back_to_their_place(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=3)
        for number in range(6):
            room.publish("q", b"%d" % number, priority=number % 2)
        taken = [queue.get(False) for _ in range(5)]
        room.publish("q", b"new", priority=1)
        for entry in reversed(taken):
            queue.requeue(entry, True)
        assert room.bodies(queue) == [b"1", b"3", b"5", b"new", b"0", b"2", b"4"]

    def test_more_than_memory_holds(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=9)
        queue.order.memory.count_max = 200
        order = fill(room, queue, 3000, 10)
        assert queue.ready_count == 3000
        assert sum(queue.order.level_counts().values()) == 3000
        first = room.bodies(queue)
        assert first == order
        assert queue.ready_count == queue.ready_bytes == queue.order.memory.hot_bytes == 0


def fill_log(room) -> None:
    """More than one reading of the log brings back."""
    for number in range(900):
        room.publish("q", b"%1000d" % number, priority=number % 3, turn=number % 100 == 99)


class TestLog:
    def test_after_a_kill_levels_and_settlements_are_known(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        order = fill(room, queue, 500, 5)
        for body in order[:123]:
            assert room.get(queue).body == body
        room.restart()
        queue = room.vhost.queue("q")
        assert queue.ready_count == 500 - 123
        assert room.bodies(queue) == order[123:]
        assert queue.store.record_count == 0

    def test_what_has_a_time_to_live_of_its_own_goes_after_a_start(self, room) -> None:
        """Though the queue has none, and nobody takes it."""
        room.queue("q", x_max_priority=3)
        room.publish("q", b"1", priority=1, expiration="100")
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        room.turns()
        assert queue.ready_count == 1
        room.advance(120)
        assert queue.ready_count == 0

    def test_the_log_is_read_in_slices_after_a_start(self, room) -> None:
        """Nobody waits while a long queue is opened; what comes in meanwhile stands behind what was there."""
        queue = room.queue("q", x_max_priority=3)
        fill_log(room)
        room.publish("q", b"last", priority=2)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert (queue.ready_count, sum(queue.order.level_counts().values())) == (901, 0), "it was read at once"
        assert queue.head() is None
        room.publish("q", b"new", priority=2, turn=False)
        assert queue.ready_count == 902
        queue.dispatch()
        assert 0 < sum(queue.order.level_counts().values()) < 902, "it was read in one turn"
        room.turns()
        assert queue.order.level_counts() == {2: 302, 1: 300, 0: 300}
        expected = [b"%1000d" % number for level in (2, 1, 0) for number in range(level, 900, 3)]
        assert room.bodies(queue) == [*expected[:300], b"last", b"new", *expected[300:]]

    def test_basic_get_waits_until_it_is_read(self, room) -> None:
        """It is called in between, and takes nothing meanwhile."""
        queue = room.queue("q", x_max_priority=3)
        fill_log(room)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert queue.get(True) is None and queue.must_wait()
        assert queue.ready_count == 900
        assert room.get(queue).body == b"%1000d" % 2
        assert (queue.ready_count, queue.must_wait(), len(queue.getters or ())) == (899, False, 0)

    @pytest.mark.parametrize("pumps", [0, 1])
    def test_purged_while_it_is_opened(self, room, pumps) -> None:
        queue = room.queue("q", x_max_priority=3)
        fill_log(room)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        for _ in range(pumps):
            queue.dispatch()
        assert queue.purge() == 900
        room.turns()
        assert (queue.ready_count, queue.store.record_count, room.get(queue)) == (0, 0, None)
        room.publish("q", b"after")
        assert room.bodies(queue) == [b"after"]

    def test_a_time_to_live_is_over_though_nobody_asks(self, room) -> None:
        queue = room.queue("q", x_max_priority=3, x_message_ttl=500)
        fill_log(room)
        room.restart(down_ms=1000)
        queue = room.vhost.queues["q"]
        queue.prepare()
        room.turns()
        room.advance(20)
        assert (queue.ready_count, queue.store.record_count) == (0, 0)

    def test_redelivered_after_a_kill(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        room.publish("q", b"low", priority=0)
        room.publish("q", b"high", priority=4)
        queue.get(False)
        room.turn.schedule()
        room.turns()
        room.restart()
        queue = room.vhost.queue("q")
        got = room.get(queue)
        assert (got.body, got.redelivered) == (b"high", True)
        got = room.get(queue)
        assert (got.body, got.redelivered) == (b"low", False)

    def test_purge_spares_what_is_unacked(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        queue.order.memory.count_max = 100
        fill(room, queue, 700, 5)
        taken = [queue.get(False) for _ in range(3)]
        assert queue.purge() == 697
        room.turn.schedule()
        room.turns()
        assert queue.ready_count == 0
        room.restart()
        queue = room.vhost.queue("q")
        assert sorted(room.bodies(queue)) == sorted(entry.message.body() for entry in taken)

    def test_a_message_not_held_in_memory_finds_its_level_again(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        room.publish("q", b"low", priority=0)
        room.publish("q", b"high", priority=4)
        high, low = queue.get(False), queue.get(False)
        for entry in (low, high):
            entry.message = None  # as a channel does that has very many unacked
            queue.requeue(entry, True)
        assert room.bodies(queue) == [b"high", b"low"]


class TestFullDisk:
    def test_what_the_log_could_not_write_is_not_ready(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        queue.order.memory.count_max = 10
        order = fill(room, queue, 500, 5)
        gone = range(3, 400)
        queue.on_write_failed([(gone[0], 99), (100, gone[-1])])
        left = [body for body in order if int(body.partition(b":")[2]) not in gone]
        assert queue.ready_count == len(left) == 103
        assert room.bodies(queue) == left


class TestLimits:
    def test_the_head_is_the_highest(self, room) -> None:
        queue = room.queue("q", x_max_priority=3, x_max_length=3)
        for number, priority in enumerate([1, 3, 2, 0, 5]):
            room.publish("q", b"%d" % number, priority=priority)
        # rabbit: as measured, an urgent message makes way for a lesser one
        assert room.bodies(queue) == [b"2", b"0", b"3"]

    def test_expiry(self, room) -> None:
        queue = room.queue("q", x_max_priority=3)
        room.publish("q", b"low", priority=0, expiration="20")
        room.publish("q", b"high", priority=2, expiration="50")
        room.advance(30)
        assert queue.ready_count == 2
        room.advance(30)
        assert queue.ready_count == 0


class TestIndex:
    def test_beside_a_naive_twin(self) -> None:
        index = PriorityIndex()
        twin: dict[int, int] = {}
        chance = random.Random(3)
        offset = 0
        for _ in range(20_000):
            if chance.random() < 0.6 or not twin:
                offset += chance.choice([1, 1, 1, 2, CHUNK_SIZE // 3])
                level = chance.randrange(128)
                index.add(offset, level)
                twin[offset] = level
            else:
                level = chance.randrange(128)
                start = chance.randrange(offset + 1)
                expected = min((at for at, is_ in twin.items() if is_ == level and at >= start), default=-1)
                assert index.find(level, start) == expected
                if expected >= 0:
                    index.remove(expected)
                    del twin[expected]
        assert index.offsets() == sorted(twin)

    def test_empty_chunks_are_dropped(self) -> None:
        index = PriorityIndex()
        for offset in range(0, 10 * CHUNK_SIZE, 100):
            index.add(offset, 5)
        while (offset := index.find(5, 0)) >= 0:
            index.remove(offset)
        assert index.chunks == {}
