"""Consumers with filters (x-filter): routing, requeue, refusals, and filters with other queue arguments."""

from __future__ import annotations

import pytest
from colours import BLUE, RED, publish, texts
from taker import Taker, take

from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filtered import FILTERS_MAX, FilteredOrder
from amqpd.errors import PreconditionFailed


@pytest.mark.parametrize("durable", [True, False])
class TestRouting:
    def test_consumer_gets_matches_and_others_wait(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        publish(room, "rbgr")
        red = take(room, queue, RED)
        assert texts(red.got) == "r0 r3"
        publish(room, "gr", 4)
        assert texts(red.got) == "r0 r3 r5"
        assert queue.ready_count == 3
        assert queue.filters.unmatched_count() == 3
        assert texts(room.bodies(queue)) == "b1 g2 g4", "basic.get ignores filters"
        assert queue.filters.unmatched_count() == 0

    def test_two_filters_and_consumer_without_filter(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        red = take(room, queue, RED)
        blue = take(room, queue, BLUE)
        publish(room, "rbgrbg")
        assert (texts(red.got), texts(blue.got), queue.ready_count) == ("r0 r3", "b1 b4", 2)
        assert queue.filters.unmatched_count() == 2
        unfiltered = take(room, queue)
        assert texts(unfiltered.got) == "g2 g5"
        assert queue.filters.unmatched_count() == 0
        publish(room, "rrrr", 6)
        assert (texts(red.got[2:]), texts(unfiltered.got[2:])) in [("r6 r8", "r7 r9"), ("r7 r9", "r6 r8")]

    def test_consumer_of_higher_priority_gets_matches_first(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        low = take(room, queue)
        high = take(room, queue, RED, 2, priority=5)
        publish(room, "rbrrg")
        assert (texts(high.got), texts(low.got)) == ("r0 r2", "b1 r3 g4"), (
            "r3 goes to the lower priority: the higher one has no credit left"
        )
        high.ack()
        publish(room, "r", 5)
        assert texts(high.got) == "r0 r2 r5"

    def test_requeued_beyond_memory_window_goes_to_highest_priority(self, room, durable) -> None:
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

    def test_consumer_without_credit_waits(self, room, durable) -> None:
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

    def test_new_filter_starts_at_head_of_queue(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        take(room, queue, RED)
        publish(room, "bgbg")
        assert queue.filters.unmatched_count() == 4
        blue = take(room, queue, BLUE)
        assert texts(blue.got) == "b0 b2"
        assert queue.filters.unmatched_count() == 2

    def test_requeued_message_is_matched_again(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        publish(room, "brgr")
        red = take(room, queue, RED, 1)
        red.requeue()
        room.turns()
        assert texts(red.got) == "r1 r1"
        assert red.redelivered == [False, True]
        blue = take(room, queue, BLUE, 5)
        unfiltered = take(room, queue, "colour IN ('red', 'green')", 1)
        assert (texts(blue.got), texts(unfiltered.got)) == ("b0", "g2")
        red.requeue()
        unfiltered.ack()
        room.turns()
        assert sorted(texts(red.got + unfiltered.got).split()) == ["g2", "r1", "r1", "r1", "r3"]

    def test_no_ack_consumer_gets_matches(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        publish(room, "brgr")
        red = take(room, queue, RED, no_ack=True)
        assert texts(red.got) == "r1 r3"
        assert (queue.ready_count, queue.unacked_count, queue.delivered_no_ack_count) == (2, 0, 2)

    def test_queue_becomes_plain_after_last_filter(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        red = take(room, queue, RED, 1)
        unfiltered = take(room, queue, "", 1)
        publish(room, "rbrbrb")
        assert isinstance(queue.order, FilteredOrder)
        red.leave()
        room.turns()
        assert queue.filters is not None, (
            "an unacked message may be requeued to a position that a FIFO order cannot restore"
        )
        while unfiltered.entries:
            unfiltered.ack()
            room.turns()
        assert texts(unfiltered.got) == "b1 r0 r2 b3 r4 b5"
        publish(room, "r", 6)
        unfiltered.ack()
        room.turns()
        assert queue.filters is None
        assert type(queue.order) is FifoOrder
        publish(room, "bb", 7)
        assert texts(unfiltered.got) == "b1 r0 r2 b3 r4 b5 r6 b7"
        assert texts(room.bodies(queue)) == "b8"

    def test_consumers_without_filter_remain_after_last_filter(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        first, red, second = take(room, queue), take(room, queue, RED), take(room, queue)
        red.leave()
        publish(room, "rbrb")
        assert (texts(first.got), texts(second.got)) == ("r0 r2", "b1 b3")

    def test_purge_keeps_unacked_messages(self, room, durable) -> None:
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

    def test_deletion_of_queue_cancels_filtered_consumer(self, room, durable) -> None:
        queue = room.queue("q", durable=durable)
        red = take(room, queue, RED)
        publish(room, "rb")
        assert room.delete(queue) == 1
        room.turns()
        assert red.cancelled
        red.ack_all()
        room.turns()


class TestRefused:
    def test_ninth_filter_is_refused(self, room) -> None:
        queue = room.queue("q")
        consumers = [take(room, queue, f"number = {number}") for number in range(FILTERS_MAX)]
        take(room, queue, "number =   3")  # equal to an existing filter
        take(room, queue)
        with pytest.raises(PreconditionFailed, match="serves 8 different x-filter values already"):
            take(room, queue, "number = 8")
        consumers[5].leave()
        take(room, queue, "number = 8")

    def test_filter_on_priority_queue_is_refused(self, room) -> None:
        queue = room.queue("q", x_max_priority=3)
        with pytest.raises(PreconditionFailed, match="has priorities"):
            take(room, queue, RED)
        take(room, queue)

    @pytest.mark.parametrize(("wanted", "why"), [("colour =", "1:9"), ("colour ~ 'red'", "")])
    def test_invalid_selector_is_refused(self, room, wanted, why) -> None:
        queue = room.queue("q")
        with pytest.raises(PreconditionFailed, match=r"invalid arg 'x-filter' for queue 'q' in vhost '/'"):
            take(room, queue, wanted)

    def test_filter_that_is_no_string_is_refused(self, room) -> None:
        with pytest.raises(PreconditionFailed, match="unacceptable_type,signedint"):
            Taker(room.queue("q"), 0, False, {"x-filter": 3})

    def test_blank_filter_means_no_filter(self, room) -> None:
        queue = room.queue("q")
        consumer = Taker(queue, 0, False, {"x-filter": " "})
        assert consumer.arguments.selector is None


class TestSingleActive:
    def test_only_active_consumer_gets_matches(self, room) -> None:
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


class TestWithQueueArguments:
    def test_expired_message_is_dead_lettered_at_head_and_not_delivered(self, room) -> None:
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

    def test_expired_message_in_middle_is_not_delivered(self, room) -> None:
        queue = room.queue("q")
        red = take(room, queue, RED, 1)
        publish(room, "rb")
        publish(room, "r", 2, expiration="50")
        publish(room, "r", 3)
        room.advance(60)
        assert queue.ready_count == 3, "the expired r2 is behind b1, the head"
        red.ack()
        room.turns()
        assert texts(red.got) == "r0 r3"
        assert queue.ready_count == 1

    def test_expiration_0_delivers_to_match_or_drops(self, room) -> None:
        """Messages that match are delivered, others are dropped, also if all are published in one loop turn."""
        queue = room.queue("q")
        odd = take(room, queue, "a = 1")
        for number in range(6):
            room.publish("q", b"%d" % number, headers={"a": number % 2}, expiration="0", turn=False)
        room.turns()
        assert (odd.got, queue.ready_count) == ([b"1", b"3", b"5"], 0)

    def test_drop_head_drops_unmatched_messages(self, room) -> None:
        queue = room.queue("q", x_max_length=3)
        red = take(room, queue, RED)
        publish(room, "bgrbgb")
        assert texts(red.got) == "r2"
        assert queue.filters.unmatched_count() == 3
        assert texts(room.bodies(queue)) == "b3 g4 b5"

    def test_reject_publish_counts_unmatched_messages(self, room) -> None:
        queue = room.queue("q", x_max_length=2, x_overflow="reject-publish")
        red = take(room, queue, RED)
        publish(room, "bgrb")
        assert queue.ready_count == 2
        assert texts(red.got) == "", "the queue is full of unmatched messages"

    @pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
    def test_matching_burst_does_not_exceed_max_length(self, room, overflow) -> None:
        """A burst in one loop turn: messages that a consumer takes do not count against x-max-length."""
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

    def test_rejected_message_is_dead_lettered(self, room) -> None:
        dead = room.queue("dead")
        queue = room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        red = take(room, queue, RED)
        publish(room, "brb")
        red.reject()
        room.turn.schedule()
        room.turns()
        assert texts(room.bodies(dead)) == "r1"

    def test_delivery_limit_drops_after_third_requeue(self, room) -> None:
        queue = room.queue("q", x_queue_type="quorum", x_delivery_limit=2)
        red = take(room, queue, RED, 1)
        publish(room, "br")
        for _ in range(3):
            red.requeue()
            room.turns()
        assert texts(red.got) == "r1 r1 r1"
        assert queue.ready_count == 1

    def test_max_length_set_later_is_obeyed(self, room) -> None:
        queue = room.queue("q")
        red = take(room, queue, RED, 1)
        publish(room, "brgrgrg")
        queue.apply_config(QueueConfig({"length_max": 2}))
        room.turns()
        assert queue.ready_count == 2
        red.ack()
        room.turns()
        assert texts(red.got) == "r1 r5"
