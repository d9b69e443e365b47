"""Consumers with filters (x-filter): who gets what, what waits, what comes back, what a long backlog costs a turn."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from taker import Taker, take

from amqpd.broker.flow import scans
from amqpd.broker.queues.fifo import FifoOrder
from amqpd.broker.queues.filtered_order import RANGE_MIN, FilteredOrder
from amqpd.broker.queues.filters import FILTERS_MAX, PUMP_COUNT_MAX
from amqpd.broker.queues.offset_bits import CHUNK_SIZE, OffsetBits
from amqpd.broker.queues.rules import Rules
from amqpd.errors import PreconditionFailed

RED = "colour = 'red'"
BLUE = "colour = 'blue'"


def publish(room, colours: str, start: int = 0, **properties: object) -> None:
    """One letter a message."""
    names = {"r": "red", "b": "blue", "g": "green"}
    for number, letter in enumerate(colours, start):
        room.publish("q", b"%s%d" % (letter.encode(), number), headers={"colour": names[letter]}, **properties)


def texts(bodies: list[bytes]) -> str:
    return " ".join(body.decode() for body in bodies)


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
        queue.order.count_max = 4
        red = take(room, queue, RED, 3)
        publish(room, "bgbgbrgbrgbrgr")
        assert texts(red.got) == "r5 r8 r11"
        assert queue.purge() == 11
        room.turn.want()
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
        with pytest.raises(PreconditionFailed, match="serves 8 different x-filter already"):
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
        room.turn.want()
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
        room.turn.want()
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
        queue.obey(Rules({"length_max": 2}))
        room.turns()
        assert queue.ready_count == 2
        red.ack()
        room.turns()
        assert texts(red.got) == "r1 r5"


class TestLog:
    def test_after_a_kill_each_knows_whether_it_was_delivered(self, room) -> None:
        queue = room.queue("q")
        queue.order.count_max = 3
        publish(room, "bgbgbrgbrgbr")
        red = take(room, queue, RED, 2)
        red.ack()
        room.turns()
        assert texts(red.got) == "r5 r8 r11"
        room.turn.want()
        room.turns()
        room.restart()
        queue = room.vhost.queue("q")
        queue.prepare()
        assert queue.ready_count == 11
        got = [room.get(queue) for _ in range(11)]
        assert texts([each.body for each in got]) == "b0 g1 b2 g3 b4 g6 b7 r8 g9 b10 r11"
        assert [each.redelivered for each in got] == [False] * 7 + [True, False, False, True]

    def test_a_purge_leaves_the_unacked_ones_between_many_and_few(self, room) -> None:
        queue = room.queue("q")
        queue.order.count_max = 1
        wanted = "b" + "r" + "b" * (RANGE_MIN + 8) + "rbrbb" + "b" * RANGE_MIN + "r"
        publish(room, wanted)
        red = take(room, queue, RED)
        queue.purge()
        room.turn.want()
        room.turns()
        assert (queue.ready_count, queue.ready_bytes, queue.unacked_count) == (0, 0, 4)
        assert queue.store.record_count == 4
        assert queue.store.size_bytes == sum(len(body) for body in red.got)
        room.restart()
        queue = room.vhost.queue("q")
        queue.prepare()
        assert room.bodies(queue) == red.got

    def test_behind_a_backlog_nobody_wants(self, room) -> None:
        """What comes is in the log alone then, and what was taken of it is not met again."""
        queue = room.queue("q")
        queue.order.count_max = 5
        publish(room, "b" * 20)
        red = take(room, queue, RED)
        for number in range(20, 100, 4):
            publish(room, "rgrb", number)
            red.ack_all()
        assert len(red.got) == 40
        assert len(queue.order.hot.rest()) <= 5
        assert queue.ready_count == queue.filters.unmatched_count() == 60
        green = take(room, queue, "colour = 'green'")
        assert len(green.got) == 20
        anything = take(room, queue)
        assert len(anything.got) == 40
        assert queue.ready_count == 0

    def test_a_filter_that_asks_for_the_time_is_asked_of_each(self, room, monkeypatch) -> None:
        """Messages alike come from the log, and what it said of one does not hold for the next."""
        queue = room.queue("q")
        queue.order.count_max = 1
        publish(room, "rrrrrr")
        now_ms = [100]
        monkeypatch.setattr(time, "time_ns", lambda: now_ms[0] * 1_000_000)
        red = take(room, queue, f"{RED} AND UTC() < 200", 2)
        red.ack_all()
        room.turns()
        assert texts(red.got) == "r0 r1 r2 r3"
        now_ms[0] = 300
        red.ack_all()
        room.turns()
        assert texts(red.got) == "r0 r1 r2 r3"
        assert queue.ready_count == queue.filters.unmatched_count() == 2

    def test_a_slice_a_turn(self, room) -> None:
        """A clock that goes on with each look: a turn looks at a bounded number of messages."""
        queue = room.queue("q")
        for number in range(5000):
            room.publish("q", b"%d" % number, headers={"colour": "blue"}, turn=False)
        publish(room, "r", 5000)
        room.clock.per_look_ms = 1
        red = take(room, queue, RED, turn=False)
        looked: list[int] = []
        for _ in range(1000):
            looked.append(queue.filters.unmatched_count())
            if red.got:
                break
            room.turn.run()
        assert texts(red.got) == "r5000"
        steps = [after - before for before, after in pairwise(looked)]
        assert 10 < len(steps) < 200
        assert max(steps) <= scans.SLICE_MS * scans.LOOK_COUNT

    def test_what_others_have_unacked_is_passed_in_slices_too(self, room) -> None:
        queue = room.queue("q")
        queue.order.count_max = 1
        queue.order.bytes_max = 1600  # the window holds what nobody wants, and a few behind it
        publish(room, "g")
        for number in range(1000):
            room.publish("q", b"%d" % number, headers={"colour": "red"}, turn=False)
        publish(room, "b", 1000)
        assert len(take(room, queue, RED).got) == 1000
        room.clock.per_look_ms = 1
        blue = take(room, queue, BLUE, turn=False)
        cursor = queue.order.cursors[1]
        looked = [0]
        while not blue.got and len(looked) < 1000:
            looked.append(cursor.position)
            room.turn.run()
        assert texts(blue.got) == "b1000"
        assert max(after - before for before, after in pairwise(looked)) <= scans.SLICE_MS * scans.LOOK_COUNT

    def test_others_are_served_meanwhile(self, room) -> None:
        slow = room.queue("q")
        for number in range(3000):
            room.publish("q", b"%d" % number, headers={"colour": "blue"}, turn=False)
        publish(room, "r", 3000)
        quick = room.queue("quick")
        room.clock.per_look_ms = 1
        red = take(room, slow, RED, turn=False)
        blue = take(room, quick, BLUE, turn=False)
        room.turn.run()
        room.publish("quick", b"now", headers={"colour": "blue"}, turn=False)
        for _ in range(3):
            room.turn.run()
        assert blue.got == [b"now"]
        assert red.got == []
        room.turns()
        assert texts(red.got) == "r3000"

    def test_a_queue_that_has_something_else_to_do_first_goes_on_looking(self, room) -> None:
        """A rule that has slices of its own comes while a filter goes over the backlog."""
        queue = room.queue("q")
        for number in range(3000):
            room.publish("q", b"%d" % number, headers={"colour": "blue"}, turn=False)
        publish(room, "r", 3000)
        room.clock.per_look_ms = 1
        red = take(room, queue, RED, turn=False)
        room.turn.run()
        queue.obey(Rules({"length_max": 1500}))
        room.turn.run()
        assert queue.ready_count > 1500
        room.turns()
        assert texts(red.got) == "r3000"
        assert queue.ready_count <= 1500

    def test_what_no_log_could_take_is_delivered_all_the_same(self, room) -> None:
        """It has no offset any more, and its message is in memory alone."""
        queue = room.queue("q", durable=False)
        red = take(room, queue, RED, 1)
        publish(room, "rrb")
        red.entries[0].offset = -1
        red.requeue()
        room.turns()
        assert texts(red.got) == "r0 r0"
        red.ack()
        room.turns()
        assert texts(red.got) == "r0 r0 r1"

    def test_more_than_one_pump(self, room) -> None:
        queue = room.queue("q")
        for number in range(PUMP_COUNT_MAX + 500):
            room.publish("q", b"%d" % number, headers={"colour": "red"}, turn=False)
        red = take(room, queue, RED, turn=False)
        assert len(red.got) == PUMP_COUNT_MAX
        room.turns()
        assert len(red.got) == PUMP_COUNT_MAX + 500

    def test_what_is_requeued_for_ever_costs_no_memory(self, room) -> None:
        queue = room.queue("q")
        publish(room, "r")
        red = take(room, queue, RED, 1)
        blue = take(room, queue, BLUE, 1)
        publish(room, "bb", 1)
        assert texts(blue.got) == "b1", "it has no credit from here on, and looks at nothing"
        for _ in range(1000):
            red.requeue()
            room.turns()
        for cursor in queue.order.cursors:
            assert len(cursor.again) < 200
        assert len(queue.order.returned) < 200


class TestOffsetBits:
    def test_beside_a_set(self) -> None:
        chance = random.Random(5)
        bits = OffsetBits()
        twin: set[int] = set()
        for _ in range(3000):
            offset = chance.choice([chance.randrange(3 * CHUNK_SIZE), chance.randrange(400)])
            bits.add(offset)
            twin.add(offset)
        for offset in [*twin, *range(500)]:
            assert bits.has(offset) == (offset in twin)
        found = [offset for first, last in bits.gaps(3, 5 * CHUNK_SIZE) for offset in range(first, last + 1)]
        assert found == [offset for offset in range(3, 5 * CHUNK_SIZE + 1) if offset not in twin]
        bits.drop_below(CHUNK_SIZE + 5)
        assert not bits.has(min(twin))
        assert all(bits.has(offset) for offset in twin if offset >= CHUNK_SIZE)

    def test_a_full_chunk_is_no_bytes(self) -> None:
        bits = OffsetBits()
        for offset in range(CHUNK_SIZE + 3):
            bits.add(offset)
        bits.add(7)
        assert bits.has(0)
        assert bits.has(CHUNK_SIZE - 1)
        assert not bits.has(CHUNK_SIZE + 3)
        assert bits.gaps(0, CHUNK_SIZE + 9) == [(CHUNK_SIZE + 3, CHUNK_SIZE + 9)]
        assert bits.gaps(0, CHUNK_SIZE - 1) == []
        bits.clear()
        assert not bits
