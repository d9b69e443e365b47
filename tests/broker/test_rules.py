"""Rules that come, change and go while a queue runs: each is obeyed at once, and no message is lost but by them."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.queue.config import PLAIN, QueueConfig
from amqpd.broker.queue.queue import Queue, for_consumer

pytestmark = pytest.mark.parametrize("durable", [True, False])


def rules(**values: object) -> QueueConfig:
    return QueueConfig(values)


def filled(room: Any, durable: bool, count: int = 5, **arguments: object) -> Queue:
    queue: Queue = room.queue("q", durable=durable, **arguments)
    for number in range(count):
        assert room.publish("q", b"%d" % number)
    return queue


def obey(room: Any, queue: Queue, **values: object) -> None:
    queue.apply_config(QueueConfig(values))
    room.turns()


class TestTimeToLive:
    def test_it_comes_and_what_is_there_ages_from_then_on(self, room, durable) -> None:
        queue = filled(room, durable)
        room.advance(1000)
        obey(room, queue, ttl_ms=100)
        assert queue.ready_count == 5
        room.advance(99)
        room.publish("q", b"later")
        room.advance(10)
        assert room.bodies(queue) == [b"later"]

    def test_what_only_the_log_has_is_as_old_as_its_record(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        queue.order.memory.count_max = 2
        for number in range(50):
            room.publish("q", b"%d" % number)
        room.advance(1000)
        obey(room, queue, ttl_ms=100)
        assert queue.ready_count == 50, "the head, in memory, is not over"
        room.advance(110)
        assert (queue.ready_count, queue.ready_bytes) == (0, 0)

    def test_a_shorter_one_is_obeyed_at_once(self, room, durable) -> None:
        queue = filled(room, durable, x_message_ttl=60_000)
        room.advance(200)
        room.publish("q", b"young")
        obey(room, queue, ttl_ms=100)
        assert room.bodies(queue) == [b"young"]

    def test_a_longer_one_too(self, room, durable) -> None:
        queue = filled(room, durable, x_message_ttl=100)
        room.advance(90)
        obey(room, queue, ttl_ms=1000)
        room.advance(500)
        assert queue.ready_count == 5
        room.advance(500)
        assert queue.ready_count == 0

    def test_without_it_nothing_goes_but_what_brings_its_own(self, room, durable) -> None:
        queue = filled(room, durable, x_message_ttl=100)
        room.publish("q", b"own", expiration="300")
        queue.apply_config(PLAIN)
        room.advance(1000)
        assert room.bodies(queue) == [b"0", b"1", b"2", b"3", b"4"]

    def test_what_is_unacked_meanwhile_ages_from_its_return_on(self, room, durable) -> None:
        queue = filled(room, durable, 1)
        entry = queue.get(False)
        assert entry is not None
        obey(room, queue, ttl_ms=100)
        room.advance(1000)
        queue.requeue(entry, True)
        queue.schedule_dispatch()
        room.turns()
        assert queue.ready_count == 1
        room.advance(110)
        assert (queue.ready_count, queue.unacked_count) == (0, 0)

    def test_with_levels(self, room, durable) -> None:
        queue = filled(room, durable, x_max_priority=3)
        room.publish("q", b"high", priority=3)
        obey(room, queue, ttl_ms=100, level_max=3)
        room.advance(50)
        assert room.get(queue).body == b"high"
        room.advance(60)
        assert queue.ready_count == 0


class TestLength:
    def test_it_comes_and_what_is_over_goes_at_once(self, room, durable) -> None:
        queue = filled(room, durable)
        obey(room, queue, length_max=2)
        assert room.bodies(queue) == [b"3", b"4"]
        for number in range(5):
            room.publish("q", b"%d" % number)
        assert queue.ready_count == 2

    def test_bytes(self, room, durable) -> None:
        """They were counted before anybody asked."""
        queue = filled(room, durable)
        obey(room, queue, length_bytes_max=3)
        assert queue.ready_bytes == 3
        assert room.bodies(queue) == [b"2", b"3", b"4"]

    def test_bytes_of_what_the_log_alone_has(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        queue.order.memory.count_max = 2
        for number in range(10, 60):
            room.publish("q", b"%d" % number)
        held = [queue.get(False) for _ in range(10)]
        assert queue.ready_bytes == 80
        for entry in held:
            assert entry is not None
            queue.requeue(entry, True)
        obey(room, queue, length_bytes_max=10)
        assert room.bodies(queue) == [b"%d" % number for number in range(55, 60)]

    def test_a_smaller_one(self, room, durable) -> None:
        queue = filled(room, durable, x_max_length=4)
        obey(room, queue, length_max=1)
        assert room.bodies(queue) == [b"4"]

    def test_a_larger_one_and_none(self, room, durable) -> None:
        queue = filled(room, durable, x_max_length=2)
        obey(room, queue, length_max=3)
        assert room.publish("q", b"5")
        assert queue.ready_count == 3
        obey(room, queue)
        for number in range(10):
            room.publish("q", b"%d" % number)
        assert queue.ready_count == 13

    def test_refusing_keeps_what_is_there(self, room, durable) -> None:
        queue = filled(room, durable)
        obey(room, queue, length_max=2, overflow="reject-publish")
        assert queue.ready_count == 5
        assert not room.publish("q", b"5")
        obey(room, queue, length_max=2, overflow="drop-head")
        assert room.bodies(queue) == [b"3", b"4"]

    def test_in_a_queue_with_a_log_that_is_not_open_yet(self, room, durable) -> None:
        queue = filled(room, durable)
        room.restart()
        if durable:
            queue = room.vhost.queues["q"]
            assert queue.opening is not None
            queue.apply_config(rules(length_max=2))
            assert queue.can_open()
            assert room.bodies(queue) == [b"3", b"4"]

    def test_with_levels_the_highest_goes(self, room, durable) -> None:
        queue = filled(room, durable, x_max_priority=3)
        room.publish("q", b"high", priority=3)
        obey(room, queue, length_max=5, level_max=3)
        assert room.bodies(queue) == [b"0", b"1", b"2", b"3", b"4"]


class TestDeadLetters:
    def test_a_target_comes_changes_and_goes(self, room, durable) -> None:
        queue = filled(room, durable)
        first, second = room.queue("first"), room.queue("second")

        def refuse() -> None:
            entry = queue.get(False)
            assert entry is not None
            queue.reject(entry)
            room.turn.schedule()
            room.turns()

        refuse()
        obey(room, queue, dead_letter_exchange="", dead_letter_key="first")
        refuse()
        obey(room, queue, dead_letter_exchange="", dead_letter_key="second")
        refuse()
        obey(room, queue)
        refuse()
        assert (room.bodies(first), room.bodies(second)) == ([b"1"], [b"2"])
        assert room.bodies(queue) == [b"4"]
        assert queue.unacked_count == 0

    def test_what_a_length_displaces_when_it_comes(self, room, durable) -> None:
        queue = filled(room, durable)
        dead = room.queue("dead")
        obey(room, queue, length_max=2, dead_letter_exchange="", dead_letter_key="dead")
        assert room.bodies(dead) == [b"0", b"1", b"2"]
        assert room.bodies(queue) == [b"3", b"4"]


class TestLease:
    def test_it_comes(self, room, durable) -> None:
        queue = filled(room, durable)
        room.advance(1000)
        obey(room, queue, expires_ms=50)
        room.advance(40)
        assert not queue.deleted
        room.advance(20)
        assert room.expired == ["q"]

    def test_it_changes_and_goes(self, room, durable) -> None:
        queue = filled(room, durable, x_expires=50)
        room.advance(40)
        obey(room, queue, expires_ms=100)
        room.advance(90)
        assert not queue.deleted
        obey(room, queue)
        room.advance(1000)
        assert not queue.deleted
        assert (room.timers.armed_count(), queue.ready_count) == (0, 5)


class TestDeliveryLimit:
    def test_it_comes_and_goes(self, room, durable) -> None:
        queue = filled(room, durable, 1)

        def again() -> None:
            entry: QueueEntry | None = queue.get(False)
            assert entry is not None
            queue.requeue(entry, True)

        for _ in range(3):
            again()
        assert queue.ready_count == 1
        obey(room, queue, delivery_limit=10)
        again()
        obey(room, queue)
        for _ in range(20):
            again()
        obey(room, queue, delivery_limit=2)
        again()
        assert (queue.ready_count, queue.unacked_count) == (0, 0)

    def test_the_count_is_shown_while_it_is_a_rule(self, room, durable) -> None:
        queue = filled(room, durable, 1)
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


class TestAll:
    def test_all_at_once_and_back(self, room, durable) -> None:
        queue = filled(room, durable, 100)
        for _ in range(3):
            obey(
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
            obey(room, queue)
            assert queue.enforcement is None
        room.advance(100_000 // 50)
        assert len(room.bodies(queue)) == 100

    def test_levels_are_for_life(self, room, durable) -> None:
        queue = filled(room, durable)
        with pytest.raises(ValueError, match="cannot change its priorities"):
            queue.apply_config(rules(level_max=3))
        assert queue.rules is PLAIN

    def test_the_plain_road_is_taken_again(self, room, durable) -> None:
        queue = filled(room, durable, x_max_length=10)
        assert not queue.takes_prepared()
        queue.apply_config(PLAIN)
        assert queue.takes_prepared() is durable
