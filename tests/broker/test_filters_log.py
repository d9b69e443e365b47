"""Consumers with filters over a log: after a kill, beside a long backlog, and what that costs a turn."""

from __future__ import annotations

import time
from itertools import pairwise

from colours import BLUE, RED, publish, texts
from taker import take

from amqpd.broker.flow import loop_turn
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.filtered import PUMP_COUNT_MAX, RANGE_MIN


class TestLog:
    def test_after_a_kill_each_knows_whether_it_was_delivered(self, room) -> None:
        queue = room.queue("q")
        queue.order.memory.count_max = 3
        publish(room, "bgbgbrgbrgbr")
        red = take(room, queue, RED, 2)
        red.ack()
        room.turns()
        assert texts(red.got) == "r5 r8 r11"
        room.turn.schedule()
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
        queue.order.memory.count_max = 1
        wanted = "b" + "r" + "b" * (RANGE_MIN + 8) + "rbrbb" + "b" * RANGE_MIN + "r"
        publish(room, wanted)
        red = take(room, queue, RED)
        queue.purge()
        room.turn.schedule()
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
        queue.order.memory.count_max = 5
        publish(room, "b" * 20)
        red = take(room, queue, RED)
        for number in range(20, 100, 4):
            publish(room, "rgrb", number)
            red.ack_all()
        assert len(red.got) == 40
        assert len(queue.order.hot.entries()) <= 5
        assert queue.ready_count == queue.filters.unmatched_count() == 60
        green = take(room, queue, "colour = 'green'")
        assert len(green.got) == 20
        anything = take(room, queue)
        assert len(anything.got) == 40
        assert queue.ready_count == 0

    def test_a_filter_that_asks_for_the_time_is_asked_of_each(self, room, monkeypatch) -> None:
        """Messages alike come from the log, and what it said of one does not hold for the next."""
        queue = room.queue("q")
        queue.order.memory.count_max = 1
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
        assert max(steps) <= loop_turn.SLICE_MS * loop_turn.LOOK_COUNT

    def test_what_others_have_unacked_is_passed_in_slices_too(self, room) -> None:
        queue = room.queue("q")
        queue.order.memory.count_max = 1
        queue.order.memory.bytes_max = 1600  # the window holds what nobody wants, and a few behind it
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
        assert max(after - before for before, after in pairwise(looked)) <= loop_turn.SLICE_MS * loop_turn.LOOK_COUNT

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
        queue.apply_config(QueueConfig({"length_max": 1500}))
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
