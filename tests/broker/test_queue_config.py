"""QueueConfig set, changed and cleared on a running queue: it applies at once, and no other message is lost."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.queue.config import PLAIN, QueueConfig
from amqpd.broker.queue.queue import Queue, for_consumer

pytestmark = pytest.mark.parametrize("durable", [True, False])


def rules(**values: object) -> QueueConfig:
    return QueueConfig(values)


def filled_queue(room: Any, durable: bool, count: int = 5, **arguments: object) -> Queue:
    queue: Queue = room.queue("q", durable=durable, **arguments)
    for number in range(count):
        assert room.publish("q", b"%d" % number)
    return queue


def apply_config(room: Any, queue: Queue, **values: object) -> None:
    queue.apply_config(QueueConfig(values))
    room.turns()


class TestTtl:
    def test_messages_age_from_the_time_the_ttl_is_set(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        room.advance(1000)
        apply_config(room, queue, ttl_ms=100)
        assert queue.ready_count == 5
        room.advance(99)
        room.publish("q", b"later")
        room.advance(10)
        assert room.bodies(queue) == [b"later"]

    def test_messages_only_in_the_log_have_the_age_of_their_record(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        queue.order.memory.count_max = 2
        for number in range(50):
            room.publish("q", b"%d" % number)
        room.advance(1000)
        apply_config(room, queue, ttl_ms=100)
        assert queue.ready_count == 50, "the head is in memory and has not expired"
        room.advance(110)
        assert (queue.ready_count, queue.ready_bytes) == (0, 0)

    def test_shorter_ttl_applies_at_once(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_message_ttl=60_000)
        room.advance(200)
        room.publish("q", b"young")
        apply_config(room, queue, ttl_ms=100)
        assert room.bodies(queue) == [b"young"]

    def test_longer_ttl_applies_at_once(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_message_ttl=100)
        room.advance(90)
        apply_config(room, queue, ttl_ms=1000)
        room.advance(500)
        assert queue.ready_count == 5
        room.advance(500)
        assert queue.ready_count == 0

    def test_cleared_ttl_expires_only_messages_with_expiration(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_message_ttl=100)
        room.publish("q", b"own", expiration="300")
        queue.apply_config(PLAIN)
        room.advance(1000)
        assert room.bodies(queue) == [b"0", b"1", b"2", b"3", b"4"]

    def test_unacked_message_ages_from_its_requeue(self, room, durable) -> None:
        queue = filled_queue(room, durable, 1)
        entry = queue.get(False)
        assert entry is not None
        apply_config(room, queue, ttl_ms=100)
        room.advance(1000)
        queue.requeue(entry, True)
        queue.schedule_dispatch()
        room.turns()
        assert queue.ready_count == 1
        room.advance(110)
        assert (queue.ready_count, queue.unacked_count) == (0, 0)

    def test_ttl_with_priorities(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_max_priority=3)
        room.publish("q", b"high", priority=3)
        apply_config(room, queue, ttl_ms=100, level_max=3)
        room.advance(50)
        assert room.get(queue).body == b"high"
        room.advance(60)
        assert queue.ready_count == 0


class TestLength:
    def test_new_max_length_drops_the_excess_at_once(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        apply_config(room, queue, length_max=2)
        assert room.bodies(queue) == [b"3", b"4"]
        for number in range(5):
            room.publish("q", b"%d" % number)
        assert queue.ready_count == 2

    def test_new_max_length_bytes_drops_the_excess_at_once(self, room, durable) -> None:
        """The bytes were counted before there was a limit."""
        queue = filled_queue(room, durable)
        apply_config(room, queue, length_bytes_max=3)
        assert queue.ready_bytes == 3
        assert room.bodies(queue) == [b"2", b"3", b"4"]

    def test_max_length_bytes_counts_messages_only_in_the_log(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        queue.order.memory.count_max = 2
        for number in range(10, 60):
            room.publish("q", b"%d" % number)
        unacked = [queue.get(False) for _ in range(10)]
        assert queue.ready_bytes == 80
        for entry in unacked:
            assert entry is not None
            queue.requeue(entry, True)
        apply_config(room, queue, length_bytes_max=10)
        assert room.bodies(queue) == [b"%d" % number for number in range(55, 60)]

    def test_smaller_max_length_drops_more(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_max_length=4)
        apply_config(room, queue, length_max=1)
        assert room.bodies(queue) == [b"4"]

    def test_larger_or_no_max_length_allows_more(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_max_length=2)
        apply_config(room, queue, length_max=3)
        assert room.publish("q", b"5")
        assert queue.ready_count == 3
        apply_config(room, queue)
        for number in range(10):
            room.publish("q", b"%d" % number)
        assert queue.ready_count == 13

    def test_reject_publish_keeps_existing_messages(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        apply_config(room, queue, length_max=2, overflow="reject-publish")
        assert queue.ready_count == 5
        assert not room.publish("q", b"5")
        apply_config(room, queue, length_max=2, overflow="drop-head")
        assert room.bodies(queue) == [b"3", b"4"]

    def test_max_length_set_before_the_log_is_open(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        room.restart()
        if durable:
            queue = room.vhost.queues["q"]
            assert queue.opening is not None
            queue.apply_config(rules(length_max=2))
            assert queue.can_open()
            assert room.bodies(queue) == [b"3", b"4"]

    def test_max_length_with_priorities_drops_the_highest(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_max_priority=3)
        room.publish("q", b"high", priority=3)
        apply_config(room, queue, length_max=5, level_max=3)
        assert room.bodies(queue) == [b"0", b"1", b"2", b"3", b"4"]


class TestDeadLetters:
    def test_dead_letter_target_is_set_changed_and_cleared(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        first, second = room.queue("first"), room.queue("second")

        def reject_head() -> None:
            entry = queue.get(False)
            assert entry is not None
            queue.reject(entry)
            room.turn.schedule()
            room.turns()

        reject_head()
        apply_config(room, queue, dead_letter_exchange="", dead_letter_key="first")
        reject_head()
        apply_config(room, queue, dead_letter_exchange="", dead_letter_key="second")
        reject_head()
        apply_config(room, queue)
        reject_head()
        assert (room.bodies(first), room.bodies(second)) == ([b"1"], [b"2"])
        assert room.bodies(queue) == [b"4"]
        assert queue.unacked_count == 0

    def test_messages_dropped_by_new_max_length_are_dead_lettered(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        dead = room.queue("dead")
        apply_config(room, queue, length_max=2, dead_letter_exchange="", dead_letter_key="dead")
        assert room.bodies(dead) == [b"0", b"1", b"2"]
        assert room.bodies(queue) == [b"3", b"4"]


class TestExpires:
    def test_expires_counts_from_the_time_it_is_set(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        room.advance(1000)
        apply_config(room, queue, expires_ms=50)
        room.advance(40)
        assert not queue.deleted
        room.advance(20)
        assert room.expired == ["q"]

    def test_expires_is_changed_and_cleared(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_expires=50)
        room.advance(40)
        apply_config(room, queue, expires_ms=100)
        room.advance(90)
        assert not queue.deleted
        apply_config(room, queue)
        room.advance(1000)
        assert not queue.deleted
        assert (room.timers.armed_count(), queue.ready_count) == (0, 5)


class TestDeliveryLimit:
    def test_delivery_limit_is_set_and_cleared(self, room, durable) -> None:
        queue = filled_queue(room, durable, 1)

        def redeliver() -> None:
            entry: QueueEntry | None = queue.get(False)
            assert entry is not None
            queue.requeue(entry, True)

        for _ in range(3):
            redeliver()
        assert queue.ready_count == 1
        apply_config(room, queue, delivery_limit=10)
        redeliver()
        apply_config(room, queue)
        for _ in range(20):
            redeliver()
        apply_config(room, queue, delivery_limit=2)
        redeliver()
        assert (queue.ready_count, queue.unacked_count) == (0, 0)

    def test_delivery_count_header_is_set_while_configured(self, room, durable) -> None:
        queue = filled_queue(room, durable, 1)
        entry = queue.get(False)
        assert entry is not None
        queue.requeue(entry, True)
        queue.apply_config(rules(counts_shown=True))
        entry = queue.get(False)
        assert entry is not None
        shown = for_consumer(entry, queue.rules.counts_shown)
        assert shown is not None and b"x-delivery-count" in shown.properties()
        queue.apply_config(PLAIN)
        assert for_consumer(entry, queue.rules.counts_shown) is entry.message


class TestWholeConfig:
    def test_all_limits_are_set_and_cleared(self, room, durable) -> None:
        queue = filled_queue(room, durable, 100)
        for _ in range(3):
            apply_config(
                room,
                queue,
                ttl_ms=60_000,
                expires_ms=60_000,
                length_max=100,
                length_bytes_max=1000,
                delivery_limit=3,
                dead_letter_exchange="nowhere",
            )
            assert queue.enforcement is not None
            apply_config(room, queue)
            assert queue.enforcement is None
        room.advance(100_000 // 50)
        assert len(room.bodies(queue)) == 100

    def test_priorities_cannot_be_changed(self, room, durable) -> None:
        queue = filled_queue(room, durable)
        with pytest.raises(ValueError, match="cannot change its priorities"):
            queue.apply_config(rules(level_max=3))
        assert queue.rules is PLAIN

    def test_plain_config_takes_prepared_batches_again(self, room, durable) -> None:
        queue = filled_queue(room, durable, x_max_length=10)
        assert not queue.takes_prepared()
        queue.apply_config(PLAIN)
        assert queue.takes_prepared() is durable
