"""Queue jobs: move, copy and delete, their dry runs, and errors."""

from __future__ import annotations

from typing import Any

import pytest
from jobs_room import KINDS, declare_queue, drain, fill, run_job
from taker import take

from amqpd.broker.jobs.jobs import RUNNING_COUNT_MAX, JobManager, JobRequest
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filtered import FILTERS_MAX, FilteredOrder
from amqpd.errors import NotFound, PreconditionFailed
from amqpd.protocol.properties import decode_properties
from amqpd.routing.selector import parse_selector


class TestMove:
    @pytest.mark.parametrize("kind", KINDS)
    def test_all_messages_are_moved_in_order(self, room: Any, jobs: JobManager, kind: str) -> None:
        source, target = declare_queue(room, kind), room.queue("target")
        fill(room, "source", 5000)
        job = run_job(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.done_count, job.found_count) == ("done", 5000, 5000)
        assert (source.ready_count, source.ready_bytes, source.unacked_count) == (0, 0, 0)
        assert source.store is None or source.store.record_count == 0
        assert drain(room, target) == list(range(5000))

    @pytest.mark.parametrize("kind", KINDS)
    def test_selected_messages_are_moved_up_to_the_limit(self, room: Any, jobs: JobManager, kind: str) -> None:
        source, target = declare_queue(room, kind), room.queue("target")
        fill(room, "source", 300)
        job = run_job(room, jobs, "move", source, "n BETWEEN 100 AND 199", to_queue="target", limit=50)
        assert (job.state, job.done_count) == ("done", 50)
        assert sorted(drain(room, target)) == list(range(100, 150))
        remaining = drain(room, source)
        assert sorted(remaining) == [*range(100), *range(150, 300)]
        if kind != "priority":
            assert remaining == sorted(remaining)

    def test_moved_message_keeps_properties_exchange_and_routing_key(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        room.exchange("x", "direct")
        room.bind("x", source, "key")
        room.publish("key", b"1", exchange="x", headers={"a": 1}, message_id="m", expiration="60000")
        run_job(room, jobs, "move", source, to_queue="target")
        entry = target.get(True)
        message = entry.message
        properties = decode_properties(message.properties())
        assert (message.envelope.exchange, message.envelope.routing_key) == ("x", "key")
        assert (properties.message_id, properties.expiration, properties.delivery_mode) == ("m", "60000", 2)
        assert properties.headers == {"a": 1, "x-source-queue": "source", "x-source-offset": 0}

    def test_second_move_replaces_the_source_headers(self, room: Any, jobs: JobManager) -> None:
        one, two, three = room.queue("one"), room.queue("two"), room.queue("three")
        room.publish("one", b"0")
        room.publish("two", b"1")
        two.requeue(two.get(False), counts=True)
        run_job(room, jobs, "move", one, to_queue="two")
        run_job(room, jobs, "move", two, to_queue="three")
        assert [room.get(three).headers for _ in range(2)] == [
            {"x-source-queue": "two", "x-source-offset": 0, "x-source-redelivered": True},
            {"x-source-queue": "two", "x-source-offset": 1},
        ]

    def test_messages_published_during_the_move_stay(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 3)
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        room.publish("source", b"7")
        assert job.done_count == 3
        assert (drain(room, target), drain(room, source)) == ([0, 1, 2], [7])

    @pytest.mark.parametrize("kind", KINDS)
    def test_unacked_messages_are_not_moved(self, room: Any, jobs: JobManager, kind: str) -> None:
        source, target = declare_queue(room, kind), room.queue("target")
        fill(room, "source", 10)
        unacked = [source.get(False) for _ in range(3)]
        source.requeue(unacked.pop(), counts=False)
        taken = {int(entry.message.body()) for entry in unacked}
        job = run_job(room, jobs, "move", source, to_queue="target")
        assert job.done_count == 8
        assert source.unacked_count == 2
        assert set(drain(room, target)) == set(range(10)) - taken
        for entry in unacked:
            source.requeue(entry, counts=False)
        assert set(drain(room, source)) == taken

    def test_queue_returns_to_fifo_order_after_the_move(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target")
        fill(room, "source", 10)
        run_job(room, jobs, "move", source, "n = 5", to_queue="target")
        assert drain(room, source) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        room.turns()
        source.dispatch()
        assert type(source.order) is FifoOrder and source.filters is None
        assert not isinstance(source.order, FilteredOrder)

    def test_move_survives_restart(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target")
        fill(room, "source", 100)
        run_job(room, jobs, "move", source, "n < 40", to_queue="target")
        room.advance(200)
        room.restart()
        assert drain(room, room.vhost.queues["target"]) == list(range(40))
        assert drain(room, room.vhost.queues["source"]) == list(range(40, 100))

    def test_move_after_restart_reads_the_log(self, room: Any) -> None:
        for kind in ("durable", "priority"):
            declare_queue(room, kind, kind)
            fill(room, kind, 3000)
        room.queue("target")
        room.restart()
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        for kind in ("durable", "priority"):
            source = room.vhost.queues[kind]
            assert source.can_open()
            job = run_job(room, jobs, "move", source, to_queue="target")
            room.advance(100)
            assert (job.state, job.done_count, source.ready_count) == ("done", 3000, 0)
            target = room.vhost.queues["target"]
            assert drain(room, target) == list(range(3000))

    @pytest.mark.parametrize("durable", [True, False])
    def test_priority_queue_keeps_its_order_after_the_move(self, room: Any, jobs: JobManager, durable: bool) -> None:
        source, target = room.queue("source", durable=durable, x_max_priority=9), room.queue("target")
        source.order.memory.count_max = 10
        fill(room, "source", 900)
        entries = [source.get(False) for _ in range(150)]
        for entry in entries:
            source.requeue(entry, counts=False)
        moved = run_job(room, jobs, "move", source, "n % 2 = 0", to_queue="target")
        assert (moved.done_count, source.ready_count) == (450, 450)
        fill(room, "source", 3)
        assert sorted(drain(room, target)) == list(range(0, 900, 2))
        expected = [n for level in (2, 1, 0) for n in [*range(1, 900, 2), 0, 1, 2] if n % 3 == level]
        assert drain(room, source) == expected
        assert (source.ready_count, source.ready_bytes, source.unacked_count) == (0, 0, 0)

    def test_producer_headers_are_removed(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        room.publish("source", b"1", headers={"x-producer-id": 1, "x-producer-epoch": 0, "x-sequence": 9, "a": 1})
        run_job(room, jobs, "move", source, to_queue="target")
        assert room.get(target).headers == {"a": 1, "x-source-queue": "source", "x-source-offset": 0}

    def test_no_source_headers_if_headers_fill_a_frame(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        room.publish("source", b"1", headers={"a": "x" * 131_000})
        assert run_job(room, jobs, "move", source, to_queue="target").done_count == 1
        assert set(room.get(target).headers) == {"a"}

    def test_move_to_an_exchange(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        room.exchange("x", "topic")
        room.bind("x", target, "a.*")
        fill(room, "source", 2)
        job = run_job(room, jobs, "move", source, to_exchange="x")
        assert (job.state, job.done_count, job.conditions.left_counts) == ("done", 0, {"no target": 2})
        assert source.ready_count == 2, "unroutable messages stay in the source"
        job = run_job(room, jobs, "move", source, to_exchange="x", routing_key="a.b")
        assert job.done_count == 2
        first = room.get(target)
        assert (first.exchange, first.routing_key, first.body) == ("x", "a.b", b"0")

    def test_expired_messages_are_not_moved(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source", x_message_ttl=1000), room.queue("target")
        fill(room, "source", 5)
        room.clock.now_ms += 2000
        run_job(room, jobs, "move", source, to_queue="target")
        assert (source.ready_count, target.ready_count) == (0, 0)


class TestWithConsumerFilters:
    """Consumers with x-filter use the same order as jobs, with separate filters."""

    def test_consumers_get_matching_messages_during_the_move(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        consumer = take(room, source, "n < 10", credit=3)
        fill(room, "source", 600)
        assert consumer.got == [b"0", b"1", b"2"]
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target", selector=parse_selector("n >= 5")))
        for _ in range(3):
            soon, room._soon[:] = room._soon[:], []
            for call in soon:
                call()
        other = take(room, source, "n = 4")
        room.turns()
        assert job.done_count == 595
        assert other.got == [b"4"]
        consumer.ack_all()
        room.turns()
        assert consumer.got == [b"0", b"1", b"2", b"3"]
        assert drain(room, target) == list(range(5, 600))
        assert source.unacked_count == 2 and source.ready_count == 0

    def test_unmatched_count_ignores_the_jobs_filter(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target", x_max_length=0)
        take(room, source, "n < 0")
        fill(room, "source", 10)
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        room.turns()
        assert (job.state, source.filters.unmatched_count()) == ("waiting", 10)
        for number in range(FILTERS_MAX - 1):
            take(room, source, f"n < -{number + 1}")
        assert source.filters.full(parse_selector("n = 77")), "the job must not take a filter of the consumers"
        job.stop()
        room.turns()
        assert (job.state, source.filters.unmatched_count()) == ("stopped", 10)

    def test_consumer_without_filter_gets_messages_during_a_waiting_job(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target", x_max_length=0)
        fill(room, "source", 3)
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        room.turns()
        consumer = take(room, source, "")
        room.turns()
        assert consumer.got == [b"0", b"1", b"2"]
        job.stop()
        room.turns()
        assert job.state == "stopped"


class TestErrors:
    def test_source_as_target_is_refused(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        with pytest.raises(PreconditionFailed, match="is both source and target"):
            jobs.begin(JobRequest("move", room.vhost, source, to_queue="source"))
        room.exchange("x", "fanout")
        room.bind("x", source)
        fill(room, "source", 1)
        job = run_job(room, jobs, "move", source, to_exchange="x")
        assert (job.state, job.conditions.left_counts, source.ready_count) == ("done", {"no target": 1}, 1)

    def test_missing_target_is_refused(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        with pytest.raises(NotFound, match="no queue 'target' in vhost '/'"):
            jobs.begin(JobRequest("copy", room.vhost, source, to_queue="target"))
        with pytest.raises(NotFound, match="no exchange 'x' in vhost '/'"):
            jobs.begin(JobRequest("copy", room.vhost, source, to_exchange="x"))

    def test_move_delete_and_redrive_of_a_stream_are_refused(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source", x_queue_type="stream")
        room.queue("target")
        for verb in ("move", "delete", "redrive"):
            with pytest.raises(PreconditionFailed, match="is a stream"):
                jobs.begin(JobRequest(verb, room.vhost, source, to_queue="target"))

    def test_too_many_running_jobs_are_refused(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        fill(room, "source", 1)
        for _ in range(RUNNING_COUNT_MAX):
            jobs.begin(JobRequest("delete", room.vhost, source))
        with pytest.raises(PreconditionFailed, match="16 jobs are running"):
            jobs.begin(JobRequest("delete", room.vhost, source))
        room.turns()
        assert jobs.begin(JobRequest("delete", room.vhost, source))


class TestDelete:
    @pytest.mark.parametrize("kind", KINDS)
    def test_selected_messages_are_deleted(self, room: Any, jobs: JobManager, kind: str) -> None:
        source = declare_queue(room, kind)
        fill(room, "source", 2000)
        job = run_job(room, jobs, "delete", source, "n < 1500")
        assert (job.state, job.done_count) == ("done", 1500)
        assert sorted(drain(room, source)) == list(range(1500, 2000))
        assert source.store is None or source.store.record_count == 0


class TestCopy:
    @pytest.mark.parametrize("kind", KINDS)
    def test_copy_leaves_the_source_unchanged(self, room: Any, jobs: JobManager, kind: str) -> None:
        source, target = declare_queue(room, kind), room.queue("target")
        fill(room, "source", 3000)
        job = run_job(room, jobs, "copy", source, "n >= 1000", to_queue="target")
        assert (job.state, job.done_count) == ("done", 2000)
        assert (source.ready_count, source.unacked_count) == (3000, 0)
        assert sorted(drain(room, target)) == list(range(1000, 3000))
        assert sorted(drain(room, source)) == list(range(3000))

    def test_copy_of_a_stream_from_an_offset_or_a_time(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source", x_queue_type="stream"), room.queue("target")
        fill(room, "source", 10)
        room.advance(5000)
        late = room.clock.time_ms()
        fill(room, "source", 5)
        assert run_job(room, jobs, "copy", source, to_queue="target", begin=7).done_count == 8
        assert drain(room, target) == [7, 8, 9, 0, 1, 2, 3, 4]
        assert run_job(room, jobs, "copy", source, to_queue="target", begin_ms=late).done_count == 5
        assert drain(room, target) == [0, 1, 2, 3, 4]

    def test_unacked_messages_are_copied_too(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 3)
        source.get(False)
        assert run_job(room, jobs, "copy", source, to_queue="target").done_count == 3
        assert drain(room, target) == [0, 1, 2]


class TestDryRun:
    @pytest.mark.parametrize("kind", KINDS)
    def test_dry_run_counts_the_ready_messages(self, room: Any, jobs: JobManager, kind: str) -> None:
        source, target = declare_queue(room, kind), room.queue("target")
        fill(room, "source", 3000)
        held = [source.get(False) for _ in range(10)]
        for entry in held[:5]:
            source.requeue(entry, counts=False)
        for verb in ("move", "delete"):
            job = run_job(room, jobs, verb, source, to_queue="target", dry_run=True)
            assert (job.state, job.done_count) == ("done", 2995)
        job = run_job(room, jobs, "move", source, "n < 0", to_queue="target", dry_run=True)
        assert job.done_count == 0
        assert (source.ready_count, source.unacked_count, target.ready_count) == (2995, 5, 0)
