"""Consumers with filters (x-filter): who gets what, what waits and what comes back, under every rule."""

from __future__ import annotations

import pytest
from colours import BLUE, RED, publish, texts
from taker import Taker, take

from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filtered import FILTERS_MAX, FilteredOrder
from amqpd.errors import PreconditionFailed


@pytest.mark.parametrize("durable", [True, False])
class TestWhoGetsWhat:
    def test_only_what_matches_and_the_rest_waits(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        publish(room, "rbgr")
        red = take(room, queue, RED)
        assert texts(red.got) == "r0 r3"
        publish(room, "gr", 4)
        assert texts(red.got) == "r0 r3 r5"
        assert queue.ready_count == 3
        assert queue.filters.unmatched_count() == 3
        assert texts(room.bodies(queue)) == "b1 g2 g4", "basic.get takes anything"
        assert queue.filters.unmatched_count() == 0

    def test_two_filters_and_one_who_takes_anything(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        red = take(room, queue, RED)
        blue = take(room, queue, BLUE)
        publish(room, "rbgrbg")
        assert (texts(red.got), texts(blue.got), queue.ready_count) == ("r0 r3", "b1 b4", 2)
        assert queue.filters.unmatched_count() == 2
        anything = take(room, queue)
        assert texts(anything.got) == "g2 g5"
        assert queue.filters.unmatched_count() == 0
        publish(room, "rrrr", 6)
        assert (texts(red.got[2:]), texts(anything.got[2:])) in [("r6 r8", "r7 r9"), ("r7 r9", "r6 r8")]

    def test_priorities(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        low = take(room, queue)
        high = take(room, queue, RED, 2, priority=5)
        publish(room, "rbrrg")
        assert (texts(high.got), texts(low.got)) == ("r0 r2", "b1 r3 g4"), "the fourth finds no credit there"
        high.ack()
        publish(room, "r", 5)
        assert texts(high.got) == "r0 r2 r5"

    def test_what_came_back_goes_to_the_highest_priority_although_memory_is_full(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        low = take(room, queue, RED)
        queue.order.memory.count_max = 2
        for name in ("r0", "r1", "r2"):
            room.publish("q", name.encode(), headers={"colour": "red"}, turn=False)
        room.turns()
        high = take(room, queue, priority=3)
        while low.entries:
            low.requeue()
        room.turns()
        assert (texts(high.got), texts(low.got[3:])) == ("r0 r1 r2", "")

    def test_credit(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        publish(room, "rrbr")
        red = take(room, queue, RED, 1)
        assert texts(red.got) == "r0"
        assert queue.ready_count == 3
        red.ack()
        room.turns()
        assert texts(red.got) == "r0 r1"
        red.ack()
        room.turns()
        assert texts(red.got) == "r0 r1 r3"

    def test_a_new_filter_begins_at_the_front(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        take(room, queue, RED)
        publish(room, "bgbg")
        assert queue.filters.unmatched_count() == 4
        blue = take(room, queue, BLUE)
        assert texts(blue.got) == "b0 b2"
        assert queue.filters.unmatched_count() == 2

    def test_what_came_back_is_seen_again(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        publish(room, "brgr")
        red = take(room, queue, RED, 1)
        red.requeue()
        room.turns()
        assert texts(red.got) == "r1 r1"
        assert red.redelivered == [False, True]
        blue = take(room, queue, BLUE, 5)
        anything = take(room, queue, "colour IN ('red', 'green')", 1)
        assert (texts(blue.got), texts(anything.got)) == ("b0", "g2")
        red.requeue()
        anything.ack()
        room.turns()
        assert sorted(texts(red.got + anything.got).split()) == ["g2", "r1", "r1", "r1", "r3"]

    def test_no_ack(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        publish(room, "brgr")
        red = take(room, queue, RED, no_ack=True)
        assert texts(red.got) == "r1 r3"
        assert (queue.ready_count, queue.unacked_count, queue.delivered_no_ack_count) == (2, 0, 2)

    def test_the_last_filter_goes_and_a_plain_queue_is_left(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        red = take(room, queue, RED, 1)
        anything = take(room, queue, "", 1)
        publish(room, "rbrbrb")
        assert isinstance(queue.order, FilteredOrder)
        red.leave()
        room.turns()
        assert queue.filters is not None, "what may come back has a place that a plain order does not know"
        while anything.entries:
            anything.ack()
            room.turns()
        assert texts(anything.got) == "b1 r0 r2 b3 r4 b5"
        publish(room, "r", 6)
        anything.ack()
        room.turns()
        assert queue.filters is None
        assert type(queue.order) is FifoOrder
        publish(room, "bb", 7)
        assert texts(anything.got) == "b1 r0 r2 b3 r4 b5 r6 b7"
        assert texts(room.bodies(queue)) == "b8"

    def test_the_last_filter_goes_and_others_stay(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        first, red, second = take(room, queue), take(room, queue, RED), take(room, queue)
        red.leave()
        publish(room, "rbrb")
        assert (texts(first.got), texts(second.got)) == ("r0 r2", "b1 b3")

    def test_purge_leaves_what_is_unacked(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        queue.order.memory.count_max = 4
        red = take(room, queue, RED, 3)
        publish(room, "bgbgbrgbrgbrgr")
        assert texts(red.got) == "r5 r8 r11"
        assert queue.purge() == 11
        room.turn.schedule()
        room.turns()
        assert (queue.ready_count, queue.ready_bytes, queue.unacked_count) == (0, 0, 3)
        if durable:
            room.restart()
            queue = room.vhost.queue("q")
            queue.prepare()
        else:
            red.leave()
            room.turns()
        assert texts(room.bodies(queue)) == "r5 r8 r11"

    def test_deleted_with_its_filters(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        red = take(room, queue, RED)
        publish(room, "rb")
        assert room.delete(queue) == 1
        room.turns()
        assert red.cancelled
        red.ack_all()
        room.turns()


class TestRefused:
    def test_a_ninth_filter(self, room) -> None:
        queue = room.queue("q")
        takers = [take(room, queue, f"number = {number}") for number in range(FILTERS_MAX)]
        take(room, queue, "number =   3")  # the same as one that is there
        take(room, queue)
        with pytest.raises(PreconditionFailed, match="serves 8 different x-filter values already"):
            take(room, queue, "number = 8")
        takers[5].leave()
        take(room, queue, "number = 8")

    def test_a_queue_with_priorities(self, room) -> None:
        queue = room.queue("q", x_max_priority=3)
        with pytest.raises(PreconditionFailed, match="has priorities"):
            take(room, queue, RED)
        take(room, queue)

    @pytest.mark.parametrize(("wanted", "why"), [("colour =", "1:9"), ("colour ~ 'red'", "")])
    def test_a_selector_that_is_none(self, room, wanted, why) -> None:
        queue = room.queue("q")
        with pytest.raises(PreconditionFailed, match=r"invalid arg 'x-filter' for queue 'q' in vhost '/'"):
            take(room, queue, wanted)

    def test_what_is_no_text(self, room) -> None:
        with pytest.raises(PreconditionFailed, match="unacceptable_type,signedint"):
            Taker(room.queue("q"), 0, False, {"x-filter": 3})

    def test_an_empty_text_is_no_filter(self, room) -> None:
        queue = room.queue("q")
        taker = Taker(queue, 0, False, {"x-filter": " "})
        assert taker.arguments.selector is None


class TestSingleActive:
    def test_only_the_active_one_gets_and_by_its_filter(self, room) -> None:
        queue = room.queue("q", x_single_active_consumer=True)
        red = take(room, queue, RED)
        blue = take(room, queue, BLUE)
        publish(room, "rbgr")
        assert (texts(red.got), texts(blue.got)) == ("r0 r3", "")
        assert queue.filters.unmatched_count() == 2
        red.ack_all()
        red.leave()
        room.turns()
        assert texts(blue.got) == "b1"
        assert queue.filters.unmatched_count() == 1
        blue.leave()
        room.turns()
        assert texts(room.bodies(queue)) == "b1 g2"


class TestWithRules:
    def test_what_is_over_is_not_delivered_and_goes_at_the_head(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        red = take(room, queue, RED, 1)
        publish(room, "bgrr")
        assert texts(red.got) == "r2"
        room.advance(50)
        publish(room, "br", 4)
        room.advance(60)
        assert texts(room.bodies(dead)) == "b0 g1 r3"
        assert queue.ready_count == 2
        red.ack()
        room.turns()
        assert texts(red.got) == "r2 r5"
        room.advance(60)
        assert texts(room.bodies(dead)) == "b4"

    def test_a_message_of_its_own_time_in_the_middle(self, room) -> None:
        queue = room.queue("q")
        red = take(room, queue, RED, 1)
        publish(room, "rb")
        publish(room, "r", 2, expiration="50")
        publish(room, "r", 3)
        room.advance(60)
        assert queue.ready_count == 3, "b1 stands before it"
        red.ack()
        room.turns()
        assert texts(red.got) == "r0 r3"
        assert queue.ready_count == 1

    def test_a_time_to_live_of_0_is_deliver_or_drop(self, room) -> None:
        """Also behind others of the same turn."""
        queue = room.queue("q")
        one = take(room, queue, "a = 1")
        for number in range(6):
            room.publish("q", b"%d" % number, headers={"a": number % 2}, expiration="0", turn=False)
        room.turns()
        assert (one.got, queue.ready_count) == ([b"1", b"3", b"5"], 0)

    def test_drop_head(self, room) -> None:
        queue = room.queue("q", x_max_length=3)
        red = take(room, queue, RED)
        publish(room, "bgrbgb")
        assert texts(red.got) == "r2"
        assert queue.filters.unmatched_count() == 3
        assert texts(room.bodies(queue)) == "b3 g4 b5"

    def test_reject_publish_counts_what_waits(self, room) -> None:
        queue = room.queue("q", x_max_length=2, x_overflow="reject-publish")
        red = take(room, queue, RED)
        publish(room, "bgrb")
        assert queue.ready_count == 2
        assert texts(red.got) == "", "the queue was full of what nobody wants"

    @pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
    def test_a_burst_that_is_wanted_is_never_too_much(self, room, overflow) -> None:
        """All of it in one turn, as a flood comes."""
        queue = room.queue("q", x_max_length=3, x_overflow=overflow)
        red = take(room, queue, RED, 50)
        publish(room, "bg")
        for number in range(2, 60):
            room.publish("q", b"r%d" % number, headers={"colour": "red"}, turn=False)
        room.turn.schedule()
        room.turns()
        assert len(red.got) == 50
        assert queue.ready_count == 3
        red.ack_all()
        room.turns()
        if overflow == "drop-head":
            assert texts(red.got[50:]) == "r57 r58 r59"
        else:
            assert texts(red.got[50:]) == "r52"
            assert texts(room.bodies(queue)) == "b0 g1"

    def test_rejected_ones_are_dead_letters(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        red = take(room, queue, RED)
        publish(room, "brb")
        red.reject()
        room.turn.schedule()
        room.turns()
        assert texts(room.bodies(dead)) == "r1"

    def test_delivery_limit(self, room) -> None:
        queue = room.queue("q", x_queue_type="quorum", x_delivery_limit=2)
        red = take(room, queue, RED, 1)
        publish(room, "br")
        for _ in range(3):
            red.requeue()
            room.turns()
        assert texts(red.got) == "r1 r1 r1"
        assert queue.ready_count == 1

    def test_rules_that_come_on_the_way(self, room) -> None:
        queue = room.queue("q")
        red = take(room, queue, RED, 1)
        publish(room, "brgrgrg")
        queue.apply_config(QueueConfig({"length_max": 2}))
        room.turns()
        assert queue.ready_count == 2
        red.ack()
        room.turns()
        assert texts(red.got) == "r1 r5"
