"""Helpers for tests of queue jobs: queues of each kind, and functions that fill them, run a job and drain them."""

from __future__ import annotations

from typing import Any

from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.routing.selector import parse_selector

KINDS = ("durable", "transient", "quorum", "priority")


def declare_queue(room: Any, kind: str, name: str = "source") -> Any:
    if kind == "quorum":
        return room.queue(name, x_queue_type="quorum")
    if kind == "priority":
        return room.queue(name, x_max_priority=9)
    return room.queue(name, durable=kind == "durable")


def run_job(room: Any, jobs: JobManager, verb: str, source: Any, selector: str = "", **more: Any) -> QueueJob:
    job = jobs.begin(
        JobRequest(verb, room.vhost, source, selector=parse_selector(selector) if selector else None, **more)
    )
    room.turns()
    return job


def fill(room: Any, name: str, count: int, **properties: Any) -> None:
    for number in range(count):
        headers = {"n": number, **properties.get("headers", {})}
        room.publish(name, b"%d" % number, priority=number % 3, headers=headers, turn=False)
    room.turn.schedule()
    room.turns()


def drain(room: Any, queue: Any) -> list[int]:
    """Take all ready messages. Return their numbers."""
    assert queue.can_open()
    found = []
    while True:
        entry = queue.get(True)
        if entry is not None:
            found.append(int(entry.message.body()))
        elif queue.must_wait():
            queue.when_ready(int)
            room.turns()
        else:
            room.turn.schedule()
            room.turns()
            return found
