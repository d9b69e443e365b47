"""Queue jobs with obstacles: full targets, alarms, deletions, a stop, a kill."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from jobs_room import KINDS, declare_queue, drain, fill, run_job

from amqpd.broker.jobs import job as job_module
from amqpd.broker.jobs.job import WAIT_MS
from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.broker.message import Message
from amqpd.broker.queue.config import PublishCheck, QueueConfig
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import QueueServices


class FiveMessages(PublishCheck):
    """A rule that refuses the sixth message."""

    def admits(self, queue: Queue, host: QueueServices, message: Message) -> bool:
        return queue.ready_count < 5


class TestObstacles:
    def test_job_waits_for_a_full_target(self, room: Any, jobs: JobManager) -> None:
        for overflow in ("drop-head", "reject-publish"):
            source, target = room.queue(f"s-{overflow}"), room.queue(overflow, x_max_length=4, x_overflow=overflow)
            fill(room, source.name, 10)
            job = run_job(room, jobs, "move", source, to_queue=overflow)
            assert (job.state, job.reason) == ("waiting", "the target is full")
            assert (source.ready_count, target.ready_count, job.done_count) == (6, 4, 4)
            assert drain(room, target) == [0, 1, 2, 3]
            room.advance(2 * WAIT_MS)
            assert drain(room, target) == [4, 5, 6, 7]
            room.advance(2 * WAIT_MS)
            assert (job.state, drain(room, target)) == ("done", [8, 9])

    @pytest.mark.parametrize("kind", [*KINDS, "groups"])
    @pytest.mark.parametrize("verb", ["move", "copy"])
    @pytest.mark.parametrize("where", ["", "n < 4"])
    def test_job_that_just_fits_does_not_wait(
        self, room: Any, jobs: JobManager, kind: str, verb: str, where: str
    ) -> None:
        source = room.queue("source", x_group_by="routing_key") if kind == "groups" else declare_queue(room, kind)
        target = room.queue("target", x_max_length=4)
        fill(room, "source", 10 if where else 4)
        job = run_job(room, jobs, verb, source, where, to_queue="target")
        assert (job.state, job.done_count, target.ready_count) == ("done", 4, 4)

    def test_job_waits_for_full_target_bytes_behind_an_exchange(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target", x_max_length_bytes=4, x_overflow="reject-publish")
        room.exchange("x", "fanout")
        room.bind("x", target)
        fill(room, "source", 10)
        job = run_job(room, jobs, "move", source, to_exchange="x")
        assert (job.state, job.reason) == ("waiting", "the target is full")
        assert (source.ready_count, source.unacked_count, job.done_count) == (6, 0, 4)
        assert drain(room, target) == [0, 1, 2, 3]
        room.advance(2 * WAIT_MS)
        assert drain(room, target) == [4, 5, 6, 7]
        room.advance(2 * WAIT_MS)
        assert (job.state, drain(room, target)) == ("done", [8, 9])

    @pytest.mark.parametrize("kind", [*KINDS, "groups"])
    def test_messages_returned_one_by_one_are_found_again(self, room: Any, jobs: JobManager, kind: str) -> None:
        source = room.queue("source", x_group_by="routing_key") if kind == "groups" else declare_queue(room, kind)
        target = room.queue("target", x_max_length=1)
        room.exchange("x", "fanout")
        room.bind("x", target)
        fill(room, "source", 5)
        job = run_job(room, jobs, "move", source, to_exchange="x")
        moved = []
        for _ in range(8):
            moved += drain(room, target)
            room.advance(2 * WAIT_MS)
        assert (job.state, job.done_count, moved) == ("done", 5, list(range(5)))

    def test_job_waits_for_a_target_with_max_length_bytes(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target", x_max_length_bytes=10)
        for number in range(6):
            room.publish("source", b"%04d" % number)
        job = run_job(room, jobs, "move", source, to_queue="target")
        for step in range(3):
            room.advance(3 * WAIT_MS)
            assert (target.ready_count, target.ready_bytes, source.unacked_count) == (2, 8, 0)
            assert (job.state, job.reason) == ("waiting", "the target is full") or step == 2
            assert drain(room, target) == [2 * step, 2 * step + 1]
        room.advance(WAIT_MS)
        assert job.state == "done"

    def test_bytes_that_wait_for_a_retry_in_the_target_count(self, room: Any, jobs: JobManager) -> None:
        retry = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 60_000}
        source, target = room.queue("source"), room.queue("target", x_max_length_bytes=10, **retry)
        room.publish("target", b"12345678")
        target.requeue(target.get(False), True)
        assert target.delayed_bytes == 8
        fill(room, "source", 9)
        job = run_job(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.done_count, job.conditions.looked_count) == ("waiting", 2, 2)
        assert not source.get(False).redelivered, "the job took a message for which the target has no room"

    def test_waiting_job_does_not_touch_messages(self, room: Any, jobs: JobManager) -> None:
        """Otherwise each look would write a requeue to the log."""
        source = room.queue("source")
        room.exchange("x", "fanout")
        room.bind("x", room.queue("target", x_max_length=1))
        fill(room, "source", 600)
        job = run_job(room, jobs, "move", source, to_exchange="x")
        assert job.done_count == 1
        looked_count = job.conditions.looked_count
        room.advance(20 * WAIT_MS)
        assert (job.state, job.conditions.looked_count) == ("waiting", looked_count)
        assert drain(room, room.vhost.queues["target"]) == [0]
        room.advance(2 * WAIT_MS)
        assert drain(room, room.vhost.queues["target"]) == [1]

    def test_rejected_messages_return_to_the_source(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        target.apply_config(QueueConfig({}, [FiveMessages()]))  # the job does not know this limit
        fill(room, "source", 3)
        fill(room, "target", 4)
        job = run_job(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.done_count, source.ready_count, target.ready_count) == ("waiting", 1, 2, 5)
        assert drain(room, target) == [0, 1, 2, 3, 0]
        room.advance(2 * WAIT_MS)
        assert (job.state, drain(room, target), source.unacked_count) == ("done", [1, 2], 0)

    def test_job_waits_during_an_alarm(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 2)
        room.turn.alarmed = True
        job = run_job(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.reason, source.ready_count) == ("waiting", "a resource alarm", 2)
        assert run_job(room, jobs, "delete", source, "n = 0").done_count == 1, "a delete needs no space"
        room.turn.alarmed = False
        room.advance(WAIT_MS + 10)
        assert (job.state, drain(room, target)) == ("done", [1])

    def test_job_waits_for_a_target_with_a_failed_log(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 2)
        target.store.failed = True
        job = run_job(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.reason) == ("waiting", "the target's log has failed")
        target.store.failed = False
        room.advance(WAIT_MS + 10)
        assert (job.state, drain(room, target)) == ("done", [0, 1])

    def test_job_fails_when_the_target_is_deleted(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 5000)
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        for _ in range(3):
            soon, room._soon[:] = room._soon[:], []
            for call in soon:
                call()
        assert 0 < target.ready_count < 5000
        enqueued_count = target.ready_count
        room.delete(target)
        room.turns()
        assert (job.state, job.reason) == ("failed", "queue 'target' was deleted")
        assert source.unacked_count == 0
        assert job.done_count + source.ready_count == 5000 and job.done_count <= enqueued_count
        assert sorted(drain(room, source)) == list(range(job.done_count, 5000))

    def test_stopped_job_on_a_spilled_transient_queue_loses_none(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source", durable=False), room.queue("target", x_max_length=200)
        source.order.memory.count_max = 50
        fill(room, "source", 300)
        assert source.backing.spilled
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        for _ in range(2):
            soon, room._soon[:] = room._soon[:], []
            for call in soon:
                call()
        job.stop()
        room.publish("source", b"300", turn=False)
        room.turns()
        assert job.state == "stopped" and source.unacked_count == 0
        assert sorted(drain(room, source) + drain(room, target)) == list(range(301))

    def test_job_fails_when_the_source_is_deleted(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target")
        fill(room, "source", 5000)
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        for _ in range(3):
            soon, room._soon[:] = room._soon[:], []
            for call in soon:
                call()
        room.delete(source)
        room.turns()
        assert (job.state, job.reason) == ("failed", "queue 'source' was deleted")

    def test_stopped_job_returns_its_messages(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 5000)
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        for _ in range(3):
            soon, room._soon[:] = room._soon[:], []
            for call in soon:
                call()
        job.stop()
        room.turns()
        assert job.state == "stopped" and 0 < job.done_count < 5000
        assert source.unacked_count == 0
        moved = drain(room, target)
        assert moved == list(range(job.done_count))
        assert drain(room, source) == list(range(job.done_count, 5000))

    def test_kill_before_sync_of_the_target_loses_none(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target")
        fill(room, "source", 10)
        jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        soon, room._soon[:] = room._soon[:], []
        for call in soon:
            call()
        room.republisher.run()
        room.restart()
        left = set(drain(room, room.vhost.queues["source"]))
        moved = set(drain(room, room.vhost.queues["target"]))
        assert left | moved == set(range(10))

    def test_moved_messages_have_source_headers_for_deduplication(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target")
        fill(room, "source", 10)
        run_job(room, jobs, "move", source, to_queue="target")  # acks are not synced yet: a power cut loses them
        assert job_module.WINDOW_COUNT > 10
        offsets = []
        while (message := room.get(room.vhost.queues["target"])) is not None:
            offsets.append((message.headers["x-source-queue"], message.headers["x-source-offset"]))
        assert offsets == [("source", number) for number in range(10)]

    def test_job_that_cannot_begin_is_not_listed(self, memory_room: Any) -> None:
        """If it were listed, it would count as a running job for ever, and a broker runs only a few jobs."""
        room = memory_room()
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        source = room.queue("source")
        room.queue("target")
        for _ in range(3):
            room.publish("source", bytes(300_000))
            room.advance(2)
        begin_ms = room.clock.time_ms() - 2
        room.filesystem.fault = lambda name, _path: OSError(errno.EIO, "unreadable") if name == "pread" else None
        with pytest.raises(OSError):
            jobs.begin(JobRequest("copy", room.vhost, source, to_queue="target", begin_ms=begin_ms))
        assert jobs.all() == []
