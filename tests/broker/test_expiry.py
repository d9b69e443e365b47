"""Time to live: of the queue, of the message, across requeues and restarts."""

from __future__ import annotations

import pytest

from amqpd.broker.expiry import expiration_ms


@pytest.mark.parametrize("durable", [True, False])
class TestHead:
    def test_a_message_goes_when_its_time_is_over(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        room.advance(99)
        assert queue.ready_count == 1
        room.advance(6)
        assert queue.ready_count == 0

    def test_the_smaller_one_wins(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"short", expiration="20")
        room.publish("q", b"long", expiration="100000")
        room.advance(30)
        assert queue.ready_count == 1
        room.advance(80)
        assert queue.ready_count == 0

    def test_a_plain_queue_obeys_the_message(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        room.publish("q", b"mortal", expiration="20")
        room.publish("q", b"immortal")
        room.advance(30)
        assert room.bodies(queue) == [b"immortal"]

    def test_only_the_head_expires(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        room.publish("q", b"immortal")
        room.publish("q", b"mortal", expiration="20")
        room.advance(50)
        assert queue.ready_count == 2
        assert room.bodies(queue) == [b"immortal"]

    def test_zero_is_now_or_never(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=0)
        room.publish("q", b"1")
        assert queue.ready_count == 0
        plain = room.queue("plain", durable=durable)
        room.publish("plain", b"1", expiration="0")
        assert plain.ready_count == 0

    def test_a_requeued_message_is_as_old_as_it_was(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        entry = queue.get(False)
        room.advance(90)
        queue.requeue(entry, True)
        queue.pump()
        assert queue.ready_count == 1
        room.advance(15)
        assert queue.ready_count == 0

    def test_a_message_out_for_too_long_goes_when_it_returns(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        entry = queue.get(False)
        room.advance(200)
        queue.requeue(entry, True)
        queue.pump()
        assert queue.ready_count == 0
        assert queue.unacked_count == 0

    def test_a_steady_stream_expires_promptly(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        for _ in range(50):
            room.publish("q", b"1")
            room.advance(20)
            assert queue.ready_count <= 6

    def test_a_flood_does_not_outrun_its_end(self, room, durable) -> None:
        """However many come in a turn, as many may go: what waits is what has still time to live."""
        queue = room.queue("q", durable=durable, x_message_ttl=20)
        most = 0
        for _ in range(30):
            for _ in range(3000):
                room.publish("q", b"", turn=False)
            room.advance(5)
            most = max(most, queue.ready_count)
        assert most <= 3000 * (20 // 5 + 3)
        room.advance(60)
        assert queue.ready_count == 0

    def test_a_get_never_sees_what_is_over(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        room.clock.now_ms += 150  # the timer has not fired yet
        assert queue.get(True) is None


class TestRestart:
    def test_what_expired_meanwhile_is_gone(self, room) -> None:
        room.queue("q", x_message_ttl=10_000)
        room.publish("q", b"1")
        room.advance(10)
        room.restart(down_ms=20_000)
        assert room.vhost.queue("q").ready_count == 0

    def test_also_by_expiration_of_a_plain_queue(self, room) -> None:
        room.queue("q")
        room.publish("q", b"1", expiration="10000")
        room.publish("q", b"2")
        room.advance(10)
        room.restart(down_ms=20_000)
        assert room.bodies(room.vhost.queue("q")) == [b"2"]

    def test_the_rest_of_the_time_is_left(self, room) -> None:
        room.queue("q", x_message_ttl=10_000)
        room.publish("q", b"1")
        room.advance(10)
        room.restart(down_ms=9_900)
        queue = room.vhost.queue("q")
        assert queue.ready_count == 1
        room.advance(80)
        assert queue.ready_count == 1
        room.advance(20)
        assert queue.ready_count == 0

    def test_dead_letters_go_without_anybody_asking(self, room) -> None:
        room.queue("dead")
        room.queue("q", x_message_ttl=10_000, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        room.restart(down_ms=20_000)
        room.advance(40)
        dead = room.vhost.queue("dead")
        assert dead.ready_count == 1
        assert room.get(dead).headers["x-first-death-reason"] == "expired"
        room.restart()
        room.advance(40)
        assert room.vhost.queue("dead").ready_count == 0
        assert room.vhost.queue("q").ready_count == 0

    def test_a_clock_that_was_put_back_does_not_keep_it_for_ever(self, room) -> None:
        room.queue("q", x_message_ttl=1_000)
        room.publish("q", b"1")
        room.restart(down_ms=-1_000_000)
        queue = room.vhost.queue("q")
        assert queue.ready_count == 1
        room.advance(1_010)
        assert queue.ready_count == 0


class TestBacklog:
    def test_a_backlog_in_the_log_expires_in_order(self, room) -> None:
        """More than the window in memory holds, so most of it is read back to be dropped."""
        queue = room.queue("q", x_message_ttl=1000)
        for number in range(9000):
            room.publish("q", b"%d" % number, turn=False)
        room.turn.want()
        room.advance(990)
        assert queue.ready_count == 9000
        room.advance(60)
        assert queue.ready_count == 0
        assert queue.store.record_count == 0


def test_numbers_larger_than_any_clock() -> None:
    assert expiration_ms(b"15") == 15
    assert expiration_ms(b"1" * 30) == 1 << 60
