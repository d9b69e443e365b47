"""Queue limits: length, bytes, overflow, x-expires, delivery count."""

from __future__ import annotations

import errno

import pytest
from taker import Taker

from amqpd.broker import consume
from amqpd.broker.queue.queue import Queue, for_consumer


def deaths(got) -> list[tuple]:
    return [(death["queue"], death["reason"], death["count"]) for death in got.headers["x-death"]]


class TestRules:
    def test_queue_without_arguments_has_no_enforcement(self, room) -> None:
        queue = room.queue("q")
        assert (queue.rules.plain, queue.enforcement, queue.expiry) == (True, None, None)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"x_message_ttl": 1},
            {"x_expires": 1},
            {"x_max_length": 0},
            {"x_max_length_bytes": 0},
            {"x_dead_letter_exchange": ""},
            {"x_queue_type": "quorum"},
        ],
    )
    def test_queue_with_a_limit_has_enforcement(self, room, arguments) -> None:
        queue = room.queue("q", **arguments)
        assert not queue.rules.plain
        assert queue.enforcement is not None


@pytest.mark.parametrize("durable", [True, False])
class TestLength:
    def test_max_length_drops_the_head(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_length=3)
        for number in range(5):
            assert room.publish("q", b"%d" % number)
        assert queue.ready_count == 3
        assert room.bodies(queue) == [b"2", b"3", b"4"]

    def test_max_length_zero_keeps_no_message(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_length=0)
        assert room.publish("q", b"1")
        assert queue.ready_count == 0

    def test_max_length_bytes_drops_the_head(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_length_bytes=10)
        for size in (4, 4, 4):
            room.publish("q", b"x" * size)
        assert (queue.ready_count, queue.ready_bytes) == (2, 8)
        room.publish("q", b"x" * 11)
        assert (queue.ready_count, queue.ready_bytes) == (0, 0)

    def test_unacked_messages_count_only_after_requeue(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_length=2)
        for number in range(2):
            room.publish("q", b"%d" % number)
        taken = [queue.get(False), queue.get(False)]
        for number in range(2, 4):
            room.publish("q", b"%d" % number)
        assert queue.ready_count == 2
        for entry in taken:
            queue.requeue(entry, True)
        assert room.bodies(queue) == [b"2", b"3"]

    def test_purge_resets_ready_bytes(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_length_bytes=10)
        room.publish("q", b"12345678")
        assert queue.purge() == 1
        room.publish("q", b"123456789")
        assert room.bodies(queue) == [b"123456789"]

    def test_reject_publish_refuses_the_new_message(self, room, durable) -> None:
        queue = room.queue("q", durable=durable, x_max_length=1, x_overflow="reject-publish")
        assert [room.publish("q", b"1"), room.publish("q", b"2")] == [True, False]
        assert room.bodies(queue) == [b"1"]
        assert room.publish("q", b"3")

    def test_reject_publish_with_max_length_bytes(self, room, durable) -> None:
        room.queue("q", durable=durable, x_max_length_bytes=5, x_overflow="reject-publish")
        assert [room.publish("q", b"x" * size) for size in (3, 3, 2, 1)] == [True, False, True, False]

    def test_reject_publish_dlx_dead_letters_the_refused_message(self, room, durable) -> None:
        dead = room.queue("dead")
        room.queue(
            "q",
            durable=durable,
            x_max_length=1,
            x_overflow="reject-publish-dlx",
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="dead",
        )
        assert [room.publish("q", b"1"), room.publish("q", b"2")] == [True, False]
        got = room.get(dead)
        assert got.body == b"2"
        assert deaths(got) == [("q", "maxlen", 1)]


class TestFullDisk:
    def test_bytes_the_log_failed_to_write_do_not_count(self, room) -> None:
        queue = room.queue("q", x_max_length_bytes=1000)
        for number in range(5):
            room.publish("q", b"%d..." % number)
        queue.on_write_failed([(3, 4)])
        assert (queue.ready_count, queue.ready_bytes) == (3, 12)
        assert room.bodies(queue) == [b"0...", b"1...", b"2..."]

    def test_queue_whose_ready_messages_are_all_lost_has_no_ready_bytes(self, room) -> None:
        queue = room.queue("q", x_max_length_bytes=10, x_overflow="reject-publish")
        queue.order.memory.count_max = 0
        room.publish("q", b"0" * 10)
        unacked = queue.get(False)
        room.publish("q", b"1" * 10)
        queue.on_write_failed([(1, 1)])
        assert (queue.ready_count, queue.ready_bytes) == (0, 0)
        assert room.publish("q", b"2"), "the empty queue is full"
        queue.ack(unacked)

    def test_returned_messages_keep_their_order_when_some_were_not_written(self, room) -> None:
        queue = room.queue("q")
        for number in range(4):
            room.publish("q", b"%d" % number)
        entries = [queue.get(False) for _ in range(4)]
        for number in (1, 3, 2):
            queue.requeue(entries[number], True)
        queue.on_write_failed([(2, 3)])
        queue.requeue(entries[0], True)
        bodies = room.bodies(queue)
        assert sorted(bodies) == [b"0", b"1", b"2", b"3"]
        assert bodies.index(b"0") < bodies.index(b"1")


class TestAfterKill:
    def test_max_length_bytes_holds_after_kill(self, room) -> None:
        room.queue("q", x_max_length_bytes=10)
        for number in range(4):
            room.publish("q", b"%d..." % number)
        room.restart()
        queue = room.vhost.queue("q")
        assert (queue.ready_count, queue.ready_bytes) == (2, 8)
        room.publish("q", b"4...")
        assert room.bodies(queue) == [b"3...", b"4..."]

    def test_delivery_count_survives_kill(self, room) -> None:
        room.queue("dead")
        queue = room.queue(
            "q", x_queue_type="quorum", x_delivery_limit=2, x_dead_letter_exchange="", x_dead_letter_routing_key="dead"
        )
        room.publish("q", b"1")
        for _ in range(2):
            queue.requeue(queue.get(False), True)
        room.turn.schedule()
        room.turns()
        room.restart()
        queue = room.vhost.queue("q")
        entry = queue.get(False)
        assert entry.delivery_count == 2
        assert entry.redelivered
        queue.requeue(entry, True)
        room.turns()
        assert queue.ready_count == 0
        got = room.get(room.vhost.queue("dead"))
        assert deaths(got) == [("q", "delivery_limit", 1)]


class StalledTaker(Taker):
    """A consumer whose output may have no room."""

    def __init__(self, queue: Queue, credit: int, has_room: bool) -> None:
        super().__init__(queue, credit, False, {})
        self.has_room = has_room
        self.asked_count = 0
        consume.start_consumer(queue, self)

    def can_take(self) -> bool:
        return self.has_room and super().can_take()

    def unused_credit(self) -> int:
        self.asked_count += 1
        return self.credit - self.in_flight


class TestCredit:
    def test_quorum_queue_drops_nothing_that_a_stalled_consumer_has_credit_for(self, room) -> None:
        queue = room.queue("q", x_queue_type="quorum", x_max_length=1)
        taker = StalledTaker(queue, 3, has_room=False)
        for number in range(6):
            room.publish("q", b"%d" % number)
            room.turns()
        assert queue.ready_count == 4
        taker.has_room = True
        queue.activate(taker)
        room.turns()
        assert taker.got == [b"2", b"3", b"4"]
        room.publish("q", b"6")
        assert room.bodies(queue) == [b"6"]

    def test_full_quorum_queue_asks_no_consumer_without_credit(self, room) -> None:
        """Each publish would cost a step per consumer."""
        queue = room.queue("q", x_queue_type="quorum", x_max_length=1)
        takers = [StalledTaker(queue, 1, has_room=True) for _ in range(50)]
        for number in range(52):
            room.publish("q", b"%d" % number)
            room.turns()
        assert [len(taker.got) for taker in takers] == [1] * 50
        before = [taker.asked_count for taker in takers]
        for _ in range(10):
            room.publish("q", b"more")
            room.turns()
        assert [taker.asked_count for taker in takers] == before
        assert queue.ready_count == 1


class TestDeliveryCount:
    def test_delivery_count_header_counts_requeues(self, room) -> None:
        queue = room.queue("q", x_queue_type="quorum")
        room.publish("q", b"1", headers={"x-delivery-count": 77, "mine": "stays"})
        has_header = []
        for _ in range(3):
            entry = queue.get(False)
            message = for_consumer(entry, queue.rules.counts_shown)
            has_header.append(b"x-delivery-count" in message.properties())
            queue.requeue(entry, True)
            assert entry.delivery_count == len(has_header)
        got = room.get(queue)
        assert got.headers == {"x-delivery-count": 3, "mine": "stays"}
        assert has_header == [True, True, True]

    def test_delivery_limit_zero_allows_one_delivery(self, room) -> None:
        queue = room.queue("q", x_queue_type="quorum", x_delivery_limit=0)
        room.publish("q", b"1")
        queue.requeue(queue.get(False), True)
        assert queue.ready_count == 0

    def test_dead_letter_has_no_delivery_count_header(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue(
            "q", x_queue_type="quorum", x_delivery_limit=0, x_dead_letter_exchange="", x_dead_letter_routing_key="dead"
        )
        room.publish("q", b"1")
        queue.requeue(queue.get(False), True)
        room.turns()
        assert "x-delivery-count" not in room.get(dead).headers


class TestExpires:
    def test_unused_queue_is_deleted(self, room) -> None:
        queue = room.queue("q", x_expires=100)
        room.advance(99)
        assert room.expired == []
        room.advance(6)
        assert room.expired == ["q"]
        assert queue.deleted
        assert "q" not in room.vhost.queues

    def test_use_restarts_the_expiry(self, room) -> None:
        queue = room.queue("q", x_expires=100)
        for _ in range(5):
            room.advance(60)
            queue.touch()
        assert room.expired == []
        room.advance(105)
        assert room.expired == ["q"]

    def test_publish_does_not_restart_the_expiry(self, room) -> None:
        room.queue("q", x_expires=100)
        room.advance(60)
        room.publish("q", b"1")
        room.advance(45)
        assert room.expired == ["q"]

    def test_deleted_queue_disarms_its_timers(self, room) -> None:
        queue = room.queue("q", x_expires=100_000, x_message_ttl=50_000)
        room.publish("q", b"1")
        assert room.timers.armed_count() >= 2
        room.delete(queue)
        assert room.timers.armed_count() == 0

    def test_restart_of_the_broker_restarts_the_expiry(self, room) -> None:
        room.queue("q", x_expires=100)
        room.advance(80)
        room.restart()
        room.advance(80)
        assert room.expired == []
        room.advance(30)
        assert room.expired == ["q"]

    def test_messages_of_expired_queue_are_not_dead_lettered(self, room) -> None:
        dead = room.queue("dead")
        room.queue("q", x_expires=50, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        room.publish("q", b"1")
        room.advance(80)
        assert room.expired == ["q"]
        assert dead.ready_count == 0


@pytest.mark.parametrize("arguments", [{"x_max_priority": 3}, {"x_max_length": 2}])
def test_message_returns_to_its_queue_while_log_cannot_be_read(memory_room, arguments) -> None:
    """A connection that ends returns all its messages: an error at one of them would keep the others unacked."""
    room = memory_room()
    queue = room.queue("q", **arguments)
    for number in range(2):
        room.publish("q", b"%d" % number)
    taken = [queue.get(False) for _ in range(2)]
    for number in range(2, 4):
        room.publish("q", b"%d" % number)
    unreadable = ("open", "pread", "read_file")
    room.filesystem.fault = lambda name, _path: OSError(errno.EIO, "unreadable") if name in unreadable else None
    for entry in taken:
        entry.message = None  # as after a delivery from a log
        queue.requeue(entry, True)
    assert queue.unacked_count == 0
    room.filesystem.fault = None
    room.turn.schedule()
    room.advance(2000)
    assert room.bodies(queue) == [b"0", b"1", b"2", b"3"][2 if "x_max_length" in arguments else 0 :]


@pytest.mark.parametrize("arguments", [{"x_max_length": 2}, {"x_max_length": 2, "x_max_priority": 3}])
def test_publish_to_full_queue_while_log_cannot_be_read(memory_room, arguments) -> None:
    """The message is in the queue already: an error would keep it from the other queues of a fan-out."""
    room = memory_room()
    queue = room.queue("q", **arguments)
    for number in range(2):
        room.publish("q", b"%d" % number)
    for entry in [queue.get(False) for _ in range(2)]:
        entry.message = None  # as after a delivery from a log
        queue.requeue(entry, True)
    room.filesystem.fault = lambda name, _path: OSError(errno.EIO, "unreadable") if name == "pread" else None
    assert room.publish("q", b"2")
    room.filesystem.fault = None
    room.turn.schedule()
    room.advance(2000)
    assert room.bodies(queue) == [b"1", b"2"]


def test_queue_that_cannot_be_read_has_one_retry_at_a_time(memory_room, monkeypatch) -> None:
    """Its dispatch has parts that fail on their own. With a retry for each, there were twice as many a second later."""
    room = memory_room()
    queue = room.queue("q", x_max_length=2, x_message_ttl=1_000_000, x_retain="1h")
    for number in range(2):
        room.publish("q", b"%d" % number)
    for entry in [queue.get(False) for _ in range(2)]:
        entry.message = None  # as after a delivery from a log
        queue.requeue(entry, True)
    room.filesystem.fault = lambda name, _path: OSError(errno.EIO, "unreadable") if name == "pread" else None
    delays = []
    call_later = room.pump_retries.call_later

    def count(delay_s: float, *call: object) -> None:
        delays.append(delay_s)
        call_later(delay_s, *call)

    monkeypatch.setattr(room.pump_retries, "call_later", count)
    assert room.publish("q", b"2")
    for _ in range(10):
        room.advance(1000)
    assert delays == [1, 2, 4, 8]
    room.filesystem.fault = None
    room.advance(10_000)
    assert room.bodies(queue) == [b"1", b"2"]
