"""Priority queues: order, messages only in the log, requeue, limits, restart; PriorityIndex against a naive twin."""

from __future__ import annotations

import random

import pytest

from amqpd.broker.queue.priority import CHUNK_SIZE, PriorityIndex


def fill(room, queue, count: int, levels: int, seed: int = 7) -> list[bytes]:
    """Publish `count` messages of mixed priorities. Return their bodies in the expected delivery order."""
    rng = random.Random(seed)
    sent = []
    for number in range(count):
        priority = rng.randrange(levels)
        body = b"%d:%d" % (priority, number)
        sent.append((-priority, number, body))
        room.publish(queue.name, body, priority=priority, turn=number % 100 == 0)
    room.turn.schedule()
    room.turns()
    return [body for _, _, body in sorted(sent)]


@pytest.mark.parametrize("durable", [True, False])
class TestOrder:
    def test_higher_priority_first_then_publish_order(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=5)
        assert room.bodies(queue) == []
        for number, priority in enumerate([0, 3, 9, 1, None, 5, 3]):
            room.publish("q", b"%d" % number, priority=priority)
        assert room.bodies(queue) == [b"2", b"5", b"1", b"6", b"3", b"0", b"4"]

    def test_256_priorities_are_delivered_in_order(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=255)
        order = fill(room, queue, 600, 256)
        assert room.bodies(queue) == order

    def test_max_priority_zero_keeps_publish_order(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=0)
        for number in range(4):
            room.publish("q", b"%d" % number, priority=number)
        assert room.bodies(queue) == [b"0", b"1", b"2", b"3"]

    def test_requeued_messages_return_to_their_place(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=3)
        for number in range(6):
            room.publish("q", b"%d" % number, priority=number % 2)
        taken = [queue.get(False) for _ in range(5)]
        room.publish("q", b"new", priority=1)
        for entry in reversed(taken):
            queue.requeue(entry, True)
        assert room.bodies(queue) == [b"1", b"3", b"5", b"new", b"0", b"2", b"4"]

    def test_backlog_larger_than_memory_is_delivered_in_order(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_priority=9)
        queue.order.memory.count_max = 200
        order = fill(room, queue, 3000, 10)
        assert queue.ready_count == 3000
        assert sum(level_counts(queue.order).values()) == 3000
        first = room.bodies(queue)
        assert first == order
        assert queue.ready_count == queue.ready_bytes == queue.order.memory.hot_bytes == 0


def level_counts(order) -> dict[int, int]:
    """Return the number of ready messages of each level, in memory and in the log."""
    return {level.number: len(level.returned) + len(level.hot) + level.cold_count for level in order._levels}


def fill_log(room) -> None:
    """Publish more than one read of the log returns."""
    for number in range(900):
        room.publish("q", b"%1000d" % number, priority=number % 3, turn=number % 100 == 99)


class TestLog:
    def test_priorities_and_acks_survive_kill(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        order = fill(room, queue, 500, 5)
        for body in order[:123]:
            assert room.get(queue).body == body
        room.restart()
        queue = room.vhost.queue("q")
        assert queue.ready_count == 500 - 123
        assert room.bodies(queue) == order[123:]
        assert queue.store.record_count == 0

    def test_message_with_expiration_expires_after_restart(self, room) -> None:
        """The queue itself has no TTL and no consumer."""
        room.queue("q", x_max_priority=3)
        room.publish("q", b"1", priority=1, expiration="100")
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        room.turns()
        assert queue.ready_count == 1
        room.advance(120)
        assert queue.ready_count == 0

    def test_log_is_read_in_slices_after_restart(self, room) -> None:
        """Opening a long queue does not block the loop. A message published meanwhile goes behind the old ones."""
        queue = room.queue("q", x_max_priority=3)
        fill_log(room)
        room.publish("q", b"last", priority=2)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert (queue.ready_count, sum(level_counts(queue.order).values())) == (901, 0), "the log was read at once"
        assert queue.order.head(queue) is None
        room.publish("q", b"new", priority=2, turn=False)
        assert queue.ready_count == 902
        queue.dispatch()
        assert 0 < sum(level_counts(queue.order).values()) < 902, "the log was read in one turn"
        room.turns()
        assert level_counts(queue.order) == {2: 302, 1: 300, 0: 300}
        expected = [b"%1000d" % number for level in (2, 1, 0) for number in range(level, 900, 3)]
        assert room.bodies(queue) == [*expected[:300], b"last", b"new", *expected[300:]]

    def test_basic_get_waits_until_log_is_read(self, room) -> None:
        """A get before the log is read returns no message and takes none."""
        queue = room.queue("q", x_max_priority=3)
        fill_log(room)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert queue.get(True) is None and queue.must_wait()
        assert queue.ready_count == 900
        assert room.get(queue).body == b"%1000d" % 2
        assert (queue.ready_count, queue.must_wait(), len(queue.getters)) == (899, False, 0)

    @pytest.mark.parametrize("pumps", [0, 1])
    def test_purge_while_queue_is_opened(self, room, pumps) -> None:
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

    def test_queue_ttl_expires_messages_after_restart_without_consumer(self, room) -> None:
        queue = room.queue("q", x_max_priority=3, x_message_ttl=500)
        fill_log(room)
        room.restart(down_ms=1000)
        queue = room.vhost.queues["q"]
        queue.prepare()
        room.turns()
        room.advance(20)
        assert (queue.ready_count, queue.store.record_count) == (0, 0)

    def test_unacked_message_is_redelivered_after_kill(self, room) -> None:
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

    def test_purge_spares_unacked_messages(self, room) -> None:
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

    def test_requeued_message_read_from_log_keeps_its_priority(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        room.publish("q", b"low", priority=0)
        room.publish("q", b"high", priority=4)
        high, low = queue.get(False), queue.get(False)
        for entry in (low, high):
            entry.message = None  # as a channel does that has very many unacked messages
            queue.requeue(entry, True)
        assert room.bodies(queue) == [b"high", b"low"]


class TestFullDisk:
    def test_messages_the_log_failed_to_write_are_not_ready(self, room) -> None:
        queue = room.queue("q", x_max_priority=4)
        queue.order.memory.count_max = 10
        order = fill(room, queue, 500, 5)
        lost = range(3, 400)
        queue.on_write_failed([(lost[0], 99), (100, lost[-1])])
        left = [body for body in order if int(body.partition(b":")[2]) not in lost]
        assert queue.ready_count == len(left) == 103
        assert room.bodies(queue) == left


class TestLimits:
    def test_max_length_drops_the_highest_priority_first(self, room) -> None:
        queue = room.queue("q", x_max_priority=3, x_max_length=3)
        for number, priority in enumerate([1, 3, 2, 0, 5]):
            room.publish("q", b"%d" % number, priority=priority)
        # RabbitMQ (measured): the message of the highest priority is at the head, so it is dropped first.
        assert room.bodies(queue) == [b"2", b"0", b"3"]

    def test_messages_expire_in_each_priority(self, room) -> None:
        queue = room.queue("q", x_max_priority=3)
        room.publish("q", b"low", priority=0, expiration="20")
        room.publish("q", b"high", priority=2, expiration="50")
        room.advance(30)
        assert queue.ready_count == 2
        room.advance(30)
        assert queue.ready_count == 0


class TestIndex:
    def test_index_matches_naive_twin(self) -> None:
        index = PriorityIndex()
        twin: dict[int, int] = {}
        rng = random.Random(3)
        offset = 0
        for _ in range(20_000):
            if rng.random() < 0.6 or not twin:
                offset += rng.choice([1, 1, 1, 2, CHUNK_SIZE // 3])
                level = rng.randrange(128)
                index.add(offset, level)
                twin[offset] = level
            else:
                level = rng.randrange(128)
                start = rng.randrange(offset + 1)
                expected = min(
                    (
                        twin_offset
                        for twin_offset, twin_level in twin.items()
                        if twin_level == level and twin_offset >= start
                    ),
                    default=-1,
                )
                assert index.find(level, start) == expected
                if expected >= 0:
                    index.remove(expected)
                    del twin[expected]
        assert index.offsets() == sorted(twin)

    def test_empty_chunks_are_removed(self) -> None:
        index = PriorityIndex()
        for offset in range(0, 10 * CHUNK_SIZE, 100):
            index.add(offset, 5)
        while (offset := index.find(5, 0)) >= 0:
            index.remove(offset)
        assert index.chunks == {}
