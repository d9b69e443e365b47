"""Redrive: dead letters go back to the queue or exchange that x-death names."""

from __future__ import annotations

from typing import Any

import pytest
from jobs_room import run_job

from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.errors import ResourceLocked
from amqpd.protocol.properties import decode_properties


class TestRedrive:
    def dead(self, room: Any, count: int = 4) -> tuple[Any, Any]:
        room.exchange("x", "topic")
        room.exchange("dead", "fanout")
        work = room.queue("work", x_dead_letter_exchange="dead")
        dead = room.queue("dead")
        room.bind("x", work, "order.#")
        room.bind("dead", dead)
        for number in range(count):
            room.publish(f"order.{number}", b"%d" % number, exchange="x", headers={"a": 1})
        for _ in range(count):
            work.reject(work.get(False))
        room.turns()
        assert dead.ready_count == count
        return work, dead

    def test_dead_letters_return_as_published(self, room: Any, jobs: JobManager) -> None:
        work, dead = self.dead(room)
        room.publish("dead", b"never died")
        job = run_job(room, jobs, "redrive", dead)
        assert (job.state, job.done_count, job.conditions.left_counts) == ("done", 4, {"not dead-lettered": 1})
        first = room.get(work)
        assert (first.exchange, first.routing_key, first.body) == ("x", "order.0", b"0")
        assert first.headers == {
            "a": 1,
            "x-redrive-count": 1,
            "x-source-queue": "dead",
            "x-source-offset": 0,
        }
        assert dead.ready_count == 1

    def test_second_dead_lettering_increments_redrive_count(self, room: Any, jobs: JobManager) -> None:
        work, dead = self.dead(room, 1)
        for number in range(1, 4):
            assert run_job(room, jobs, "redrive", dead).done_count == 1
            entry = work.get(False)
            assert decode_properties(entry.message.properties()).headers["x-redrive-count"] == number
            work.reject(entry)
            room.turns()
        assert room.get(dead).headers["x-death"][0]["count"] == 1

    def test_redrive_to_the_exchange_if_the_queue_was_deleted(self, room: Any, jobs: JobManager) -> None:
        work, dead = self.dead(room)
        room.delete(work)
        assert run_job(room, jobs, "redrive", dead).conditions.left_counts == {"no target": 4}
        again = room.queue("again")
        room.bind("x", again, "order.#")
        assert run_job(room, jobs, "redrive", dead).done_count == 4
        first = room.get(again)
        assert (first.exchange, first.routing_key, first.headers["x-redrive-count"]) == ("x", "order.0", 1)

    def test_dead_letters_stay_without_write_permission(self, room: Any, jobs: JobManager) -> None:
        _, dead = self.dead(room)
        job = run_job(room, jobs, "redrive", dead, may_write=lambda kind, name: False)
        assert (job.done_count, job.conditions.left_counts, dead.ready_count) == (0, {"no permission": 4}, 4)
        job = run_job(room, jobs, "redrive", dead, dry_run=True)
        assert (job.done_count, dead.ready_count) == (4, 4)

    @pytest.mark.parametrize(
        "death",
        [
            "text",
            [],
            [1],
            [{}],
            [{"queue": "work"}],
            [{"queue": "work", "routing-keys": []}],
            [{"queue": "work", "exchange": "", "routing-keys": ["k" * 256]}],
            [{"queue": "work", "exchange": b"\xff", "routing-keys": ["k"]}],
            [{"queue": "dead", "exchange": "", "routing-keys": ["k"]}],
            [{"queue": "none", "exchange": "", "routing-keys": ["work"]}],
        ],
    )
    def test_dead_letters_with_invalid_x_death_stay(self, room: Any, jobs: JobManager, death: Any) -> None:
        self.dead(room, 0)
        dead = room.vhost.queues["dead"]
        room.publish("dead", b"1", headers={"x-death": death})
        job = run_job(room, jobs, "redrive", dead)
        assert (job.state, job.done_count, dead.ready_count) == ("done", 0, 1)

    def test_move_to_exclusive_queue_of_another_owner_is_refused(self, room: Any, jobs: JobManager) -> None:
        source, target = room.queue("source"), room.queue("target")
        target.exclusive_owner = object()
        with pytest.raises(ResourceLocked):
            jobs.begin(JobRequest("move", room.vhost, source, to_queue="target"))
