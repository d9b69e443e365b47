"""Consumers with filters on logged queues: after a kill, with a long backlog, cost per loop turn."""

from __future__ import annotations

import time
from itertools import pairwise

from colours import BLUE, RED, publish, texts
from taker import take

from amqpd.broker.flow import loop_turn
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.filtered import PUMP_COUNT_MAX, RANGE_MIN


class TestLog:
    def test_redelivered_flags_after_kill(self, room) -> None:
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

    def test_purge_keeps_unacked_between_long_and_short_ranges(self, room) -> None:
        queue = room.queue("q")
        queue.order.memory.count_max = 1
        letters = "b" + "r" + "b" * (RANGE_MIN + 8) + "rbrbb" + "b" * RANGE_MIN + "r"
        publish(room, letters)
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

    def test_unacked_messages_that_were_not_written_are_not_counted_as_ready(self, room) -> None:
        queue = room.queue("q")
        queue.order.memory.count_max = 1
        publish(room, "brbrb")
        red = take(room, queue, RED)
        assert texts(red.got) == "r1 r3"
        queue.on_write_failed([(3, 4)])
        assert (queue.ready_count, queue.unacked_count) == (2, 2)
        assert texts(room.bodies(queue)) == "b0 b2"

    def test_matches_behind_unmatched_backlog_are_delivered(self, room) -> None:
        """New messages are only in the log then. The filter does not read the acked ones again."""
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
        unfiltered = take(room, queue)
        assert len(unfiltered.got) == 40
        assert queue.ready_count == 0

    def test_filter_with_utc_is_evaluated_per_message(self, room, monkeypatch) -> None:
        """Equal messages are read from the log, but the result for one must not be cached for the next."""
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

    def test_scan_of_backlog_is_sliced(self, room) -> None:
        """Each reading of the clock takes 1 ms, so a loop turn must match a bounded number of messages."""
        queue = room.queue("q")
        for number in range(5000):
            room.publish("q", b"%d" % number, headers={"colour": "blue"}, turn=False)
        publish(room, "r", 5000)
        room.clock.per_look_ms = 1
        red = take(room, queue, RED, turn=False)
        unmatched_counts: list[int] = []
        for _ in range(1000):
            unmatched_counts.append(queue.filters.unmatched_count())
            if red.got:
                break
            room.turn.run()
        assert texts(red.got) == "r5000"
        steps = [after - before for before, after in pairwise(unmatched_counts)]
        assert 10 < len(steps) < 200
        assert max(steps) <= loop_turn.SLICE_MS * loop_turn.LOOK_COUNT

    def test_scan_over_unacked_messages_is_sliced(self, room) -> None:
        queue = room.queue("q")
        queue.order.memory.count_max = 1
        queue.order.memory.bytes_max = 1600  # the window holds the unmatched message and a few behind it
        publish(room, "g")
        for number in range(1000):
            room.publish("q", b"%d" % number, headers={"colour": "red"}, turn=False)
        publish(room, "b", 1000)
        assert len(take(room, queue, RED).got) == 1000
        room.clock.per_look_ms = 1
        blue = take(room, queue, BLUE, turn=False)
        cursor = queue.order.cursors[1]
        positions = [0]
        while not blue.got and len(positions) < 1000:
            positions.append(cursor.position)
            room.turn.run()
        assert texts(blue.got) == "b1000"
        assert max(after - before for before, after in pairwise(positions)) <= loop_turn.SLICE_MS * loop_turn.LOOK_COUNT

    def test_other_queues_are_served_during_scan(self, room) -> None:
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

    def test_scan_continues_after_drops_by_max_length(self, room) -> None:
        """x-max-length, which drops in slices of its own, is set while a filter scans the backlog."""
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

    def test_requeued_message_without_offset_is_delivered(self, room) -> None:
        """The message has no offset, and only memory has it."""
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

    def test_delivery_continues_after_pump_limit(self, room) -> None:
        queue = room.queue("q")
        for number in range(PUMP_COUNT_MAX + 500):
            room.publish("q", b"%d" % number, headers={"colour": "red"}, turn=False)
        red = take(room, queue, RED, turn=False)
        assert len(red.got) == PUMP_COUNT_MAX
        room.turns()
        assert len(red.got) == PUMP_COUNT_MAX + 500

    def test_repeated_requeues_use_bounded_memory(self, room) -> None:
        queue = room.queue("q")
        publish(room, "r")
        red = take(room, queue, RED, 1)
        blue = take(room, queue, BLUE, 1)
        publish(room, "bb", 1)
        assert texts(blue.got) == "b1", "the blue consumer has no credit left and does not scan"
        for _ in range(1000):
            red.requeue()
            room.turns()
        for cursor in queue.order.cursors:
            assert len(cursor.again) < 200
        assert len(queue.order.returned) < 200
