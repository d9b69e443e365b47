"""What may come in between while messages are moved: full targets, alarms, deletions, a stop, a kill."""

from __future__ import annotations

from typing import Any

import pytest
from surgery_room import KINDS, declare, fill, got, run

from amqpd.broker.jobs import job as job_module
from amqpd.broker.jobs import targets
from amqpd.broker.jobs.job import WAIT_MS
from amqpd.broker.jobs.jobs import JobManager, JobRequest


class TestHindrances:
    def test_a_target_with_a_length_waits_and_drops_nothing(self, room: Any, jobs: JobManager) -> None:
        for overflow in ("drop-head", "reject-publish"):
            source, target = room.queue(f"s-{overflow}"), room.queue(overflow, x_max_length=4, x_overflow=overflow)
            fill(room, source.name, 10)
            job = run(room, jobs, "move", source, to_queue=overflow)
            assert (job.state, job.reason) == ("waiting", "the target is full")
            assert (source.ready_count, target.ready_count, job.done_count) == (6, 4, 4)
            assert got(room, target) == [0, 1, 2, 3]
            room.advance(2 * WAIT_MS)
            assert got(room, target) == [4, 5, 6, 7]
            room.advance(2 * WAIT_MS)
            assert (job.state, got(room, target)) == ("done", [8, 9])

    @pytest.mark.parametrize("kind", [*KINDS, "groups"])
    @pytest.mark.parametrize("verb", ["move", "copy"])
    @pytest.mark.parametrize("where", ["", "n < 4"])
    def test_what_just_fits_does_not_wait(self, room: Any, jobs: JobManager, kind: str, verb: str, where: str) -> None:
        source = room.queue("source", x_group_by="routing_key") if kind == "groups" else declare(room, kind)
        target = room.queue("target", x_max_length=4)
        fill(room, "source", 10 if where else 4)
        job = run(room, jobs, verb, source, where, to_queue="target")
        assert (job.state, job.done_count, target.ready_count) == ("done", 4, 4)

    def test_a_target_with_a_length_in_bytes_behind_an_exchange(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target", x_max_length_bytes=4, x_overflow="reject-publish")
        room.exchange("x", "fanout")
        room.bind("x", target)
        fill(room, "source", 10)
        job = run(room, jobs, "move", source, to_exchange="x")
        assert (job.state, job.reason) == ("waiting", "the target is full")
        assert (source.ready_count, source.unacked_count, job.done_count) == (6, 0, 4)
        assert got(room, target) == [0, 1, 2, 3]
        room.advance(2 * WAIT_MS)
        assert got(room, target) == [4, 5, 6, 7]
        room.advance(2 * WAIT_MS)
        assert (job.state, got(room, target)) == ("done", [8, 9])

    @pytest.mark.parametrize("kind", [*KINDS, "groups"])
    def test_what_comes_back_one_by_one_is_found_once_more(self, room: Any, jobs: JobManager, kind: str) -> None:
        source = room.queue("source", x_group_by="routing_key") if kind == "groups" else declare(room, kind)
        target = room.queue("target", x_max_length=1)
        room.exchange("x", "fanout")
        room.bind("x", target)
        fill(room, "source", 5)
        job = run(room, jobs, "move", source, to_exchange="x")
        moved = []
        for _ in range(8):
            moved += got(room, target)
            room.advance(2 * WAIT_MS)
        assert (job.state, job.done_count, moved) == ("done", 5, list(range(5)))

    def test_a_target_with_a_length_in_bytes(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target", x_max_length_bytes=10)
        for number in range(6):
            room.publish("source", b"%04d" % number)
        job = run(room, jobs, "move", source, to_queue="target")
        for step in range(3):
            room.advance(3 * WAIT_MS)
            assert (target.ready_count, target.ready_bytes, source.unacked_count) == (2, 8, 0)
            assert (job.state, job.reason) == ("waiting", "the target is full") or step == 2
            assert got(room, target) == [2 * step, 2 * step + 1]
        room.advance(WAIT_MS)
        assert job.state == "done"

    def test_who_waits_touches_nothing(self, room: Any, jobs: JobManager) -> None:
        """Else each look would note in the log that something was given back."""
        source = room.queue("source")
        room.exchange("x", "fanout")
        room.bind("x", room.queue("target", x_max_length=1))
        fill(room, "source", 600)
        job = run(room, jobs, "move", source, to_exchange="x")
        assert job.done_count == 1
        looked = job.conditions.looked_count
        room.advance(20 * WAIT_MS)
        assert (job.state, job.conditions.looked_count) == ("waiting", looked)
        assert got(room, room.vhost.queues["target"]) == [0]
        room.advance(2 * WAIT_MS)
        assert got(room, room.vhost.queues["target"]) == [1]

    def test_a_target_that_refuses(self, room: Any, jobs: JobManager, monkeypatch: pytest.MonkeyPatch) -> None:
        source, target = room.queue("source"), room.queue("target", x_max_length=5, x_overflow="reject-publish")
        fill(room, "source", 3)
        monkeypatch.setattr(targets, "is_full", lambda queue, size: False)
        monkeypatch.setattr(job_module, "is_full", lambda queue, size: False)
        monkeypatch.setattr(job_module, "free_count", lambda queue, count: count)
        fill(room, "target", 4)
        job = run(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.done_count, source.ready_count, target.ready_count) == ("waiting", 1, 2, 5)
        assert got(room, target) == [0, 1, 2, 3, 0]
        room.advance(2 * WAIT_MS)
        assert (job.state, got(room, target), source.unacked_count) == ("done", [1, 2], 0)

    def test_an_alarm(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 2)
        room.turn.alarmed = True
        job = run(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.reason, source.ready_count) == ("waiting", "a resource alarm", 2)
        assert run(room, jobs, "delete", source, "n = 0").done_count == 1, "which needs no room"
        room.turn.alarmed = False
        room.advance(WAIT_MS + 10)
        assert (job.state, got(room, target)) == ("done", [1])

    def test_a_target_whose_log_takes_nothing(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 2)
        target.store.failed = True
        job = run(room, jobs, "move", source, to_queue="target")
        assert (job.state, job.reason) == ("waiting", "the target's log has failed")
        target.store.failed = False
        room.advance(WAIT_MS + 10)
        assert (job.state, got(room, target)) == ("done", [0, 1])

    def test_the_target_is_deleted_half_way(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        fill(room, "source", 5000)
        job = jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        for _ in range(3):
            soon, room._soon[:] = room._soon[:], []
            for call in soon:
                call()
        assert 0 < target.ready_count < 5000
        gone = target.ready_count
        room.delete(target)
        room.turns()
        assert (job.state, job.reason) == ("failed", "queue 'target' was deleted")
        assert source.unacked_count == 0
        assert job.done_count + source.ready_count == 5000 and job.done_count <= gone
        assert sorted(got(room, source)) == list(range(job.done_count, 5000))

    def test_a_temporary_log_that_goes_takes_none_with_it(self, room: Any, jobs: JobManager) -> None:
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
        assert sorted(got(room, source) + got(room, target)) == list(range(301))

    def test_the_source_is_deleted_half_way(self, room: Any, jobs: JobManager) -> None:
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

    def test_a_stop_gives_back(self, room: Any, jobs: JobManager) -> None:
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
        moved = got(room, target)
        assert moved == list(range(job.done_count))
        assert got(room, source) == list(range(job.done_count, 5000))

    def test_a_kill_before_the_target_is_safe(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target")
        fill(room, "source", 10)
        jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
        soon, room._soon[:] = room._soon[:], []
        for call in soon:
            call()
        room.republisher.run()
        room.restart()
        left = set(got(room, room.vhost.queues["source"]))
        moved = set(got(room, room.vhost.queues["target"]))
        assert left | moved == set(range(10))

    def test_it_may_be_asked_again_after_a_kill_and_doubles_are_marked(self, room: Any, jobs: JobManager) -> None:
        source = room.queue("source")
        room.queue("target")
        fill(room, "source", 10)
        run(room, jobs, "move", source, to_queue="target")  # settlements are not synced yet: a power cut takes them
        assert job_module.WINDOW_COUNT > 10
        offsets = []
        while (message := room.get(room.vhost.queues["target"])) is not None:
            offsets.append((message.headers["x-source-queue"], message.headers["x-source-offset"]))
        assert offsets == [("source", number) for number in range(10)]
