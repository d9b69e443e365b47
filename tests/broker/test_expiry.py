"""Message TTL: of the queue (x-message-ttl) and of the message (expiration), with requeues and restarts."""

from __future__ import annotations

import errno

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd._build import is_compiled
from amqpd.broker.consumer import NO_ARGUMENTS, Consumer
from amqpd.broker.message import TTL_MS_MAX, expiration_ms
from amqpd.broker.publish.dead_letter import BEHIND_BYTES, HELD_MAX
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.expiry import SLICE_COUNT, SLICE_MS

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 150)),
        st.tuples(st.just("advance"), st.sampled_from([1, 20, 45, 110])),
        st.tuples(st.sampled_from(["get", "get", "ack", "requeue"]), st.integers(0, 100)),
    ),
    min_size=5,
    max_size=40,
)


class UnlimitedConsumer(Consumer):
    """A consumer with unlimited credit that must get no message."""

    def __init__(self, queue) -> None:
        super().__init__(queue, "hungry", False, False, NO_ARGUMENTS)

    def can_take(self) -> bool:
        return True

    def deliver(self, message, entry, redelivered) -> None:
        raise AssertionError("an expired message was delivered")


@pytest.mark.parametrize("durable", [True, False])
class TestExpiryAtHead:
    def test_message_expires_after_queue_ttl(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        room.advance(99)
        assert queue.ready_count == 1
        room.advance(6)
        assert queue.ready_count == 0

    def test_smaller_of_queue_and_message_ttl_is_used(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"short", expiration="20")
        room.publish("q", b"long", expiration="100000")
        room.advance(30)
        assert queue.ready_count == 1
        room.advance(80)
        assert queue.ready_count == 0

    def test_expiration_of_message_without_queue_ttl(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        room.publish("q", b"mortal", expiration="20")
        room.publish("q", b"immortal")
        room.advance(30)
        assert room.bodies(queue) == [b"immortal"]

    def test_message_expires_only_at_head(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        room.publish("q", b"immortal")
        room.publish("q", b"mortal", expiration="20")
        room.advance(50)
        assert queue.ready_count == 2
        assert room.bodies(queue) == [b"immortal"]

    def test_new_head_after_drop_by_max_length_expires(self, room, durable) -> None:
        """RabbitMQ: after a drop by x-max-length, the new head may be expired already."""
        queue = room.queue(
            "q", durable=durable, x_max_length=2, x_dead_letter_exchange="", x_dead_letter_routing_key="d"
        )
        dead = room.queue("d")
        room.publish("q", b"first")
        room.publish("q", b"over", expiration="20")
        room.advance(40)
        room.publish("q", b"third")
        assert (queue.ready_count, room.bodies(dead)) == (1, [b"first", b"over"])

    def test_new_head_after_reduction_of_max_length_expires(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_length=3)
        room.publish("q", b"first")
        room.publish("q", b"over", expiration="20")
        room.publish("q", b"third")
        room.advance(40)
        queue.apply_config(QueueConfig({"length_max": 2}, ()))
        room.turns()
        assert queue.ready_count == 1
        assert room.bodies(queue) == [b"third"]

    def test_ttl_zero_drops_without_consumer(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=0)
        room.publish("q", b"1")
        assert queue.ready_count == 0
        plain = room.queue("plain", durable=durable)
        room.publish("plain", b"1", expiration="0")
        assert plain.ready_count == 0

    def test_requeue_does_not_extend_ttl(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        entry = queue.get(False)
        room.advance(90)
        queue.requeue(entry, True)
        queue.dispatch()
        assert queue.ready_count == 1
        room.advance(15)
        assert queue.ready_count == 0

    def test_message_expired_while_unacked_is_dropped_on_requeue(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        entry = queue.get(False)
        room.advance(200)
        queue.requeue(entry, True)
        queue.dispatch()
        assert queue.ready_count == 0
        assert queue.unacked_count == 0

    def test_continuous_publishes_expire_in_time(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        for _ in range(50):
            room.publish("q", b"1")
            room.advance(20)
            assert queue.ready_count <= 6

    def test_expiry_keeps_up_with_many_publishes(self, room, durable) -> None:
        """Expiry keeps up with any rate of publishes: ready messages are those with time left."""
        queue = room.queue("q", durable=durable, x_message_ttl=20)
        ready_max = 0
        for _ in range(30):
            for _ in range(3000):
                room.publish("q", b"", turn=False)
            room.advance(5)
            ready_max = max(ready_max, queue.ready_count)
        assert ready_max <= 3000 * (20 // 5 + 3)
        room.advance(60)
        assert queue.ready_count == 0

    def test_get_does_not_return_expired_message(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        room.publish("q", b"1")
        room.clock.now_ms += 150  # the timer has not fired yet
        assert queue.get(True) is None


class TestRestart:
    def test_message_expired_during_downtime_is_dropped(self, room) -> None:
        room.queue("q", x_message_ttl=10_000)
        room.publish("q", b"1")
        room.advance(10)
        room.restart(down_ms=20_000)
        assert room.vhost.queue("q").ready_count == 0

    def test_expiration_of_message_continues_during_downtime(self, room) -> None:
        room.queue("q")
        room.publish("q", b"1", expiration="10000")
        room.publish("q", b"2")
        room.advance(10)
        room.restart(down_ms=20_000)
        assert room.bodies(room.vhost.queue("q")) == [b"2"]

    def test_remaining_ttl_is_kept_over_restart(self, room) -> None:
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

    def test_messages_expired_during_downtime_are_dead_lettered(self, room) -> None:
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

    def test_clock_set_back_limits_remaining_ttl_to_queue_ttl(self, room) -> None:
        room.queue("q", x_message_ttl=1_000)
        room.publish("q", b"1")
        room.restart(down_ms=-1_000_000)
        queue = room.vhost.queue("q")
        assert queue.ready_count == 1
        room.advance(1_010)
        assert queue.ready_count == 0


class TestBacklog:
    def test_backlog_in_log_expires(self, room) -> None:
        """The backlog is larger than the window in memory, so most messages are read from the log to be dropped."""
        queue = room.queue("q", x_message_ttl=1000)
        for number in range(9000):
            room.publish("q", b"%d" % number, turn=False)
        room.turn.schedule()
        room.advance(990)
        assert queue.ready_count == 9000
        room.advance(60)
        assert queue.ready_count == 0
        assert queue.store.record_count == 0

    @pytest.mark.parametrize("days", [1, -1])
    def test_clock_jump_does_not_expire_messages(self, room, days: int) -> None:
        """Messages in memory and in the log, published before and after the jump, expire after their own TTL."""
        queue = room.queue("q", x_message_ttl=1000)
        for number in range(9000):
            room.publish("q", b"%d" % number, turn=False)
        room.turn.schedule()
        room.advance(500)
        room.clock.wall_base_ms += days * 86_400_000
        room.publish("q", b"later")
        room.advance(480)
        assert queue.ready_count == 9001
        room.advance(70)
        assert room.bodies(queue) == [b"later"]


def test_messages_with_shared_properties_expire_separately(room) -> None:
    """Messages can share the parsed properties but not the time of arrival."""
    queue = room.queue("q")
    for _ in range(3):
        room.publish("q", expiration="100")
        room.advance(30)
    entries = queue.order.hot.entries()
    info = entries[0].message.info
    for entry in entries:
        entry.message.info = info
    counts = []
    for _ in range(5):
        counts.append(queue.ready_count)
        room.advance(30)
    assert counts == [3, 2, 1, 0, 0]


def test_expiration_is_limited_to_maximum() -> None:
    assert expiration_ms(b"15") == 15
    assert expiration_ms(b"1" * 30) == TTL_MS_MAX


class TestSlices:
    """Expired messages are dropped in slices of loop time, whole batches of a log at once."""

    def test_slice_ends_after_its_time(self, room) -> None:
        queue = room.queue("q")
        for number in range(5000):
            room.publish("q", b"%d" % number, turn=False, expiration="10")
        room.turn.schedule()
        room.turns()
        room.clock.now_ms += 20
        room.clock.per_look_ms = 1
        queue.dispatch()
        assert 5000 - 2 * SLICE_COUNT * (SLICE_MS + 1) <= queue.ready_count < 5000
        assert queue.pump_wanted
        room.clock.per_look_ms = 0
        room.turns()
        assert queue.ready_count == 0

    @pytest.mark.parametrize("durable", [True, False])
    def test_log_acks_expired_batches(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_message_ttl=100)
        queue.order.memory.count_max = 10
        for number in range(1000):
            room.publish("q", b"." * number, turn=number % 50 == 49)
        unacked_entries = [queue.get(False) for _ in range(3)]
        room.advance(90)
        for number in range(100):
            room.publish("q", b"young %d" % number, turn=number == 99)
        room.advance(20)
        assert queue.ready_count == 100
        assert queue.ready_bytes == sum(len(b"young %d" % number) for number in range(100))
        assert [queue.get(False).message.body() for _ in range(2)] == [b"young 0", b"young 1"]
        room.advance(100)
        assert queue.ready_count == queue.ready_bytes == 0
        for entry in unacked_entries:
            queue.ack(entry)
        room.turn.schedule()
        room.turns()
        if durable:
            assert queue.store.record_count == 2  # the two young messages, unacked
            assert queue.store.size_bytes == 14
            room.restart(down_ms=1)
            queue = room.vhost.queue("q")
            queue.prepare()
            assert queue.ready_count == 0  # the young messages have expired

    @pytest.mark.skipif(is_compiled(), reason="a compiled Consumer has no interpreted guests")
    def test_waiting_dead_letters_are_limited_in_memory(self, room) -> None:
        """A consumer with credit also triggers expiry, but not faster than dead letters are published."""
        room.queue("dead")
        queue = room.queue("q", x_message_ttl=50, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        for number in range(6000):
            room.publish("q", b"%d" % number, turn=False)
        room.turn.schedule()
        room.turns()
        room.clock.now_ms += 60
        queue.add_consumer(UnlimitedConsumer(queue))
        for _ in range(20):
            queue.dispatch()
        assert len(room.republisher.line) <= HELD_MAX + 64 + 20
        room.turns()
        assert room.vhost.queue("dead").ready_count == 6000
        assert [room.get(room.vhost.queue("dead")).body for _ in range(3)] == [b"0", b"1", b"2"]

    def test_queue_without_dead_letters_expires_while_others_wait(self, room) -> None:
        room.queue("dead")
        dying = room.queue("dying", x_message_ttl=50, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        plain = room.queue("plain")
        for number in range(3000):
            room.publish("dying", b"%d" % number, turn=False)
        room.publish("plain", b"over", expiration="50", turn=False)
        room.publish("plain", b"stays")
        room.clock.now_ms += 60
        room.republisher.held_bytes += BEHIND_BYTES
        dying.dispatch()
        dying.dispatch()
        assert room.dead_letters.is_behind() and dying.ready_count > 0, (
            "the queue stops dropping while many dead letters wait"
        )
        plain.dispatch()
        assert plain.ready_count == 1
        room.republisher.held_bytes -= BEHIND_BYTES
        room.turns()
        assert room.bodies(plain) == [b"stays"]
        assert room.vhost.queue("dead").ready_count == 3000

    @settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(steps=STEPS, window=st.sampled_from([1, 3, 4096]), durable=st.booleans())
    def test_expiry_against_model(self, memory_room, steps: list[tuple], window: int, durable: bool) -> None:
        room = memory_room()
        try:
            compare(room, steps, window, durable)
        finally:
            room.storage.close(clean=False)


def compare(room, steps: list[tuple], window: int, durable: bool) -> None:
    """Compare the queue with a model: a list of (number, body, expiry time) that expires at its head only."""
    queue = room.queue("q", durable=durable, x_message_ttl=100)
    queue.order.memory.count_max = window
    ready: list[tuple[int, bytes, int]] = []
    unacked: list[tuple[object, tuple[int, bytes, int]]] = []

    def drop_expired() -> None:
        while ready and ready[0][2] <= room.clock.now_ms:
            ready.pop(0)

    for number, (step, value) in enumerate(steps):
        if step == "publish":
            for index in range(value):
                body = b"%d.%d" % (number, index) + b"." * (value * index % 40)
                mortal = (number + index) % 7 == 0
                room.publish("q", body, turn=False, **({"expiration": "40"} if mortal else {}))
                ready.append((number * 1000 + index, body, room.clock.now_ms + (40 if mortal else 100)))
                drop_expired()
            room.turn.schedule()
            room.turns()
        elif step == "advance":
            room.advance(value)
        elif step == "get":
            drop_expired()
            entry = queue.get(False)
            if ready:
                assert entry.message.body() == ready[0][1]
                unacked.append((entry, ready.pop(0)))
            else:
                assert entry is None
        elif unacked:
            entry, expected = unacked.pop(value % len(unacked))
            if step == "ack":
                queue.ack(entry)
            else:
                queue.requeue(entry, True)
                queue.dispatch()
                ready.append(expected)
                ready.sort()
            room.turn.schedule()
            room.turns()
        drop_expired()
        if not any(0 <= room.clock.now_ms - expected[2] <= 8 for expected in ready) and step == "advance" and value > 8:
            assert queue.ready_count == len(ready)
            assert queue.ready_bytes == sum(len(expected[1]) for expected in ready)
    room.advance(200)
    assert queue.ready_count == queue.ready_bytes == 0
    for entry, _ in unacked:
        queue.ack(entry)
    room.turn.schedule()
    room.turns()
    if durable:
        assert queue.store.record_count == queue.store.size_bytes == 0


class TestUnreadableLog:
    """Two requeued messages of which only the log has the second body, or both, and a disk that cannot be read."""

    def requeue(self, room, ttl_ms: int, first_held: int):
        queue = room.queue("q", x_message_ttl=ttl_ms)
        for number in range(2):
            room.publish("q", b"%d" % number)
        for number, entry in enumerate([queue.get(False) for _ in range(2)]):
            if number >= first_held:
                entry.message = None  # as after a delivery from a log
            queue.requeue(entry, True)
        room.filesystem.fault = lambda name, _path: OSError(errno.EIO, "unreadable") if name == "pread" else None
        return queue

    def test_messages_expire_when_log_can_be_read_again(self, memory_room) -> None:
        room = memory_room()
        queue = self.requeue(room, 100, 0)
        room.advance(150)
        assert queue.ready_count == 2
        room.filesystem.fault = None
        room.advance(2000)
        assert queue.ready_count == 0

    def test_get_returns_message_although_next_head_cannot_be_read(self, memory_room) -> None:
        queue = self.requeue(memory_room(), 1000, 1)
        entry = queue.get(False)
        assert entry is not None and entry.message.body() == b"0"
        assert (queue.unacked_count, queue.ready_count) == (1, 1)
