"""Rewind of queues with x-retain: acked messages become ready again, in place or in another queue."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from taker import take

from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filtered import FilteredOrder
from amqpd.broker.queue.offset_bitmap import CHUNK_SIZE, OffsetBitmap
from amqpd.errors import NotFound, PreconditionFailed
from amqpd.routing.selector import parse_selector


def run(room: Any, jobs: JobManager, source: Any, selector: str = "", **more: Any) -> QueueJob:
    job = jobs.begin(
        JobRequest("rewind", room.vhost, source, selector=parse_selector(selector) if selector else None, **more)
    )
    for _ in range(100):
        room.advance(25)
        if job.ended_ms:
            break
    assert job.ended_ms, (job.state, job.reason)
    return job


def fill(room: Any, name: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        room.publish(name, b"%d" % number, priority=number % 3, headers={"n": number}, turn=False)
    room.turn.schedule()
    room.turns()


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body) for body in bodies]


class TestInPlace:
    @pytest.mark.parametrize("kind", ["classic", "quorum"])
    def test_all_messages_are_rewound_in_order(self, room, jobs, kind) -> None:
        queue = room.queue("q", x_retain="1h", x_queue_type=kind)
        fill(room, "q", 50)
        assert len(room.bodies(queue)) == 50
        job = run(room, jobs, queue)
        assert (job.state, job.done_count, job.description["from_offset"]) == ("done", 50, 0)
        assert queue.ready_count == 50 and queue.ready_bytes == sum(len(b"%d" % n) for n in range(50))
        got = [room.get(queue) for _ in range(50)]
        assert [int(each.body) for each in got] == list(range(50))
        assert all(each.redelivered for each in got)
        assert room.get(queue) is None

    def test_second_rewind_of_a_queue_is_refused(self, room, jobs) -> None:
        """Regression: both rewinds found the same messages and made them ready, so one message was delivered twice."""
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 20)
        room.bodies(queue)
        first = jobs.begin(JobRequest("rewind", room.vhost, queue, until=10))
        with pytest.raises(PreconditionFailed, match=f"is being rewound: wait for job {first.id} to end, or stop it"):
            jobs.begin(JobRequest("rewind", room.vhost, queue, begin=5))
        assert run(room, jobs, queue, dry_run=True).done_count in (10, 20)
        room.queue("other")
        run(room, jobs, queue, to_queue="other")
        while first.ended_ms == 0:
            room.advance(25)
        assert run(room, jobs, queue, begin=5).done_count == 10, "the messages of the first rewind are ready"
        assert numbers(room.bodies(queue)) == list(range(20))

    def test_range_of_offsets_is_rewound(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 50)
        room.bodies(queue)
        job = run(room, jobs, queue, begin=10, until=20)
        assert job.done_count == 10
        assert numbers(room.bodies(queue)) == list(range(10, 20))

    def test_range_of_times_is_rewound(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        times = []
        for number in range(5):
            times.append(room.clock.time_ms())
            fill(room, "q", 10, first=10 * number)
            room.advance(1000)
        room.bodies(queue)
        assert run(room, jobs, queue, begin_ms=times[1], until_ms=times[3]).done_count == 20
        assert numbers(room.bodies(queue)) == list(range(10, 30))

    def test_only_matching_messages_are_rewound(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 50)
        room.bodies(queue)
        assert run(room, jobs, queue, "n >= 40 OR n < 3").done_count == 13
        assert numbers(room.bodies(queue)) == [0, 1, 2, *range(40, 50)]

    def test_limit_stops_the_rewind(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 50)
        room.bodies(queue)
        assert run(room, jobs, queue, limit=7).done_count == 7
        assert numbers(room.bodies(queue)) == list(range(7))

    def test_rewind_among_ready_and_unacked_messages(self, room, jobs) -> None:
        """Messages 0 to 9 are acked, except 3 and 7 (unacked) and 5 (requeued); 10 to 19 are ready."""
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 20)
        entries = [queue.get(False) for _ in range(10)]
        for number, entry in enumerate(entries):
            if number not in (3, 5, 7):
                queue.ack(entry)
        queue.requeue(entries[5], False)
        room.turn.schedule()
        room.turns()
        assert (queue.ready_count, queue.unacked_count) == (11, 2)
        assert run(room, jobs, queue).done_count == 7
        assert (queue.ready_count, queue.unacked_count) == (18, 2)
        queue.requeue(entries[7], False)
        assert numbers(room.bodies(queue)) == [0, 1, 2, 4, 5, 6, 7, 8, 9, *range(10, 20)]
        queue.ack(entries[3])
        assert (queue.ready_count, queue.unacked_count, queue.store.record_count) == (0, 0, 0)

    def test_rewind_with_a_small_memory_window(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        queue.order.memory.count_max = 4
        fill(room, "q", 60)
        for number in range(40):
            entry = queue.get(False)
            if number % 10 != 9:
                queue.ack(entry)
        assert run(room, jobs, queue, "n >= 15").done_count == 22
        left = [n for n in range(15, 60) if n not in (19, 29, 39)]
        assert numbers(room.bodies(queue)) == left
        fill(room, "q", 3, first=60)
        assert numbers(room.bodies(queue)) == [60, 61, 62]

    def test_repeated_rewinds(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 30)
        for _ in range(4):
            assert numbers(room.bodies(queue)) == list(range(30))
            assert run(room, jobs, queue).done_count == 30
        assert run(room, jobs, queue).done_count == 0, "a ready message is not acked, so it is not rewound"
        assert numbers(room.bodies(queue)) == list(range(30))

    def test_queue_returns_to_fifo_order_after_rewind(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 30)
        room.bodies(queue)
        entry = queue.get(False)
        assert entry is None
        fill(room, "q", 1, first=30)
        unacked = queue.get(False)
        run(room, jobs, queue)
        assert isinstance(queue.order, FilteredOrder), "an unacked message is behind the rewound ones"
        consumer = take(room, queue)
        assert numbers(consumer.got) == list(range(30)) and all(consumer.redelivered)
        consumer.ack_all()
        queue.ack(unacked)
        queue.schedule_dispatch()
        room.turn.schedule()
        room.turns()
        assert type(queue.order) is FifoOrder
        fill(room, "q", 3, first=31)
        assert numbers(consumer.got)[30:] == [31, 32, 33] and not any(consumer.redelivered[30:])

    def test_messages_acked_by_no_ack_delivery_or_purge_are_rewound(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        consumer = take(room, queue, no_ack=True)
        fill(room, "q", 5)
        assert run(room, jobs, queue).done_count == 5
        assert numbers(consumer.got) == [*range(5), *range(5)]
        consumer.leave()
        fill(room, "q", 5, first=5)
        assert queue.purge() == 5
        assert run(room, jobs, queue, begin=5).done_count == 5
        assert queue.purge() == 5
        assert queue.store.record_count == 0

    def test_consumers_with_filters_get_matching_rewound_messages(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        low = take(room, queue, "n < 10")
        high = take(room, queue, "n >= 20")
        fill(room, "q", 30)
        low.ack_all()
        high.ack_all()
        assert run(room, jobs, queue).done_count == 20
        assert numbers(low.got) == [*range(10), *range(10)]
        assert numbers(high.got) == [*range(20, 30), *range(20, 30)]
        assert (queue.ready_count, queue.filters.unmatched_count()) == (10, 10)

    def test_rewind_keeps_priority_order(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h", x_max_priority=5)
        fill(room, "q", 30)
        first = numbers(room.bodies(queue))
        job = run(room, jobs, queue)
        assert (job.state, job.done_count, queue.ready_count) == ("done", 30, 30)
        assert numbers(room.bodies(queue)) == first
        assert run(room, jobs, queue, "n < 9").done_count == 9
        assert numbers(room.bodies(queue)) == [2, 5, 8, 1, 4, 7, 0, 3, 6]

    def test_expired_messages_are_not_rewound(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h", x_message_ttl=1000)
        fill(room, "q", 5)
        room.advance(2000)
        fill(room, "q", 5, first=5)
        room.bodies(queue)
        job = run(room, jobs, queue)
        assert (job.done_count, dict(job.conditions.left_counts)) == (5, {"expired": 5})

    def test_rewind_over_max_length_fails(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h", x_max_length=10)
        fill(room, "q", 10)
        room.bodies(queue)
        fill(room, "q", 5, first=10)
        job = run(room, jobs, queue)
        assert (job.state, job.done_count, queue.ready_count) == ("failed", 0, 5)
        assert job.reason == "queue 'q' would exceed its length limit with 10 more messages"
        assert run(room, jobs, queue, begin=5).done_count == 5
        assert queue.ready_count == 10

    def test_messages_that_wait_for_a_retry_count_for_max_length(self, room, jobs) -> None:
        retry = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 600_000}
        queue = room.queue("q", x_retain="1h", x_max_length=10, **retry)
        fill(room, "q", 8)
        room.bodies(queue)
        fill(room, "q", 4, first=8)
        for entry in [queue.get(False) for _ in range(4)]:
            queue.requeue(entry, True)
        job = run(room, jobs, queue)
        assert (job.state, queue.ready_count, queue.delayed_count) == ("failed", 0, 4)

    def test_message_expired_before_restart_is_not_rewound(self, room, jobs) -> None:
        """The message has its own expiration, and the restarted queue has not read it yet."""
        queue = room.queue("q", x_retain="1h")
        room.publish("q", b"short", expiration="100")
        room.publish("q", b"long", expiration="100000")
        room.advance(300)
        queue.ack(queue.get(False))
        room.advance(60)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        job = run(room, jobs, queue)
        assert (job.done_count, dict(job.conditions.left_counts)) == (1, {"expired": 1})
        assert room.bodies(queue) == [b"long"]

    def test_rewound_messages_survive_restart(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 50)
        room.bodies(queue)
        run(room, jobs, queue, "n < 20")
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert queue.ready_count == 20
        got = [room.get(queue) for _ in range(20)]
        assert [int(each.body) for each in got] == list(range(20)) and all(each.redelivered for each in got)
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        assert run(room, jobs, queue).done_count == 50

    def test_removed_messages_are_counted_as_gone(self, room, jobs) -> None:
        queue = room.queue("q", x_retain=2 << 20)
        for number in range(80):
            room.publish("q", b"%d" % number + b" " * 100_000)
        room.bodies(queue)
        for _ in range(4):
            room.storage.maintain()
            room.turn.schedule()
            room.turns()
        job = run(room, jobs, queue)
        first = job.description["from_offset"]
        assert 0 < first < 60
        assert dict(job.conditions.left_counts) == {"gone": first}
        assert job.done_count == 80 - first == queue.ready_count
        assert numbers(room.bodies(queue)) == list(range(first, 80))

    def test_stopped_rewind_changes_nothing(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 50)
        room.bodies(queue)
        job = jobs.begin(JobRequest("rewind", room.vhost, queue))
        job.stop()
        room.advance(100)
        assert (job.state, queue.ready_count) == ("stopped", 0)


class TestOtherQueue:
    @pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 3}, {"x_group_by": "routing_key"}])
    def test_rewind_into_another_queue(self, room, jobs, arguments) -> None:
        queue = room.queue("q", x_retain="1h", **arguments)
        other = room.queue("other")
        fill(room, "q", 30)
        room.bodies(queue)
        job = run(room, jobs, queue, "n >= 10", to_queue="other")
        assert (job.state, job.done_count, queue.ready_count) == ("done", 20, 0)
        got = [room.get(other) for _ in range(20)]
        assert sorted(int(each.body) for each in got) == list(range(10, 30))
        assert got[0].headers["x-source-queue"] == "q"
        assert run(room, jobs, queue, to_queue="other").done_count == 30, "the source keeps all messages"

    def test_full_target_is_waited_for(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        other = room.queue("other", x_max_length=4)
        fill(room, "q", 20)
        room.bodies(queue)
        job = jobs.begin(JobRequest("rewind", room.vhost, queue, to_queue="other"))
        received: list[int] = []
        for _ in range(30):
            room.advance(300)
            received += numbers(room.bodies(other))
        assert job.state == "done"
        assert received == list(range(20))

    def test_dry_run_counts_without_rewinding(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        fill(room, "q", 20)
        room.bodies(queue)
        job = run(room, jobs, queue, "n < 5", dry_run=True)
        assert (job.done_count, queue.ready_count) == (5, 0)


class TestErrors:
    def test_queue_without_retain_is_refused(self, room, jobs) -> None:
        for queue, why in (
            (room.queue("s", x_queue_type="stream"), "is a stream"),
            (room.queue("t", durable=False), "is not durable"),
            (room.queue("g", x_group_by="routing_key"), "has groups"),
        ):
            with pytest.raises(PreconditionFailed, match=why):
                jobs.begin(JobRequest("rewind", room.vhost, queue))

    def test_missing_target_or_source_as_target_is_refused(self, room, jobs) -> None:
        queue = room.queue("q", x_retain="1h")
        with pytest.raises(NotFound):
            jobs.begin(JobRequest("rewind", room.vhost, queue, to_queue="nowhere"))
        with pytest.raises(PreconditionFailed, match="both source and target"):
            jobs.begin(JobRequest("rewind", room.vhost, queue, to_queue="q"))


class TestOffsetBitmap:
    def test_ranges_match_a_set(self) -> None:
        import random

        rng = random.Random(3)
        span = 3 * CHUNK_SIZE
        for _ in range(6):
            bits, twin = OffsetBitmap(), set()
            for _ in range(12):
                first = rng.randrange(span)
                last = min(span, first + rng.choice([0, 5, 300, CHUNK_SIZE, 2 * CHUNK_SIZE]))
                if rng.random() < 0.6:
                    bits.add_range(first, last)
                    twin |= set(range(first, last + 1))
                else:
                    bits.remove_range(first, last)
                    twin -= set(range(first, last + 1))
            assert {each for each in range(span + 1) if bits.has(each)} == twin
            gaps = {each for low, high in bits.gaps(0, span) for each in range(low, high + 1)}
            assert gaps == set(range(span + 1)) - twin
            assert bool(bits) == bool(twin)

    @pytest.mark.slow
    def test_bulk_operations_match_sets(self) -> None:
        import random

        rng = random.Random(4)
        span = 3 * CHUNK_SIZE
        sets: list[tuple[OffsetBitmap, set[int]]] = []
        for _ in range(12):
            bits, twin = OffsetBitmap(), set()
            for _ in range(5):
                base = rng.randrange(span)
                size = rng.choice([1, 9, 300, CHUNK_SIZE, 2 * CHUNK_SIZE])
                mask = rng.choice([(1 << size) - 1, rng.getrandbits(size), 1 << (size - 1)])
                offsets = {base + n for n in range(size) if mask >> n & 1} if size < 400 else set()
                if size >= 400:
                    text = bin(mask)[:1:-1]
                    offsets = {base + n for n, bit in enumerate(text) if bit == "1"}
                if rng.random() < 0.6:
                    bits.add_bits(base, mask)
                    twin |= offsets
                else:
                    bits.remove_bits(base, mask)
                    twin -= offsets
            sets.append((bits, twin))
            self.assert_equal(bits, twin)
        for (bits, twin), (other, other_twin) in pairwise(sets):
            first = rng.randrange(span)
            last = min(2 * span, first + rng.choice([-1, 0, 77, CHUNK_SIZE, 2 * CHUNK_SIZE]))
            bits.keep_common(other, first, last)
            twin -= {each for each in twin if first <= each <= last and each not in other_twin}
            self.assert_equal(bits, twin)
            border = rng.randrange(span)
            bits.add_from(other, border)
            twin |= {each for each in other_twin if each >= border}
            self.assert_equal(bits, twin)

    @staticmethod
    def assert_equal(bits: OffsetBitmap, twin: set[int]) -> None:
        assert {each for each in range(6 * CHUNK_SIZE) if bits.has(each)} == twin
        assert bool(bits) == bool(twin)
