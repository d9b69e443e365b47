"""Surgery in a room: jobs, queues of each kind, what fills them and what takes everything out."""

from __future__ import annotations

from typing import Any

from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.routing.selector import parse_selector

KINDS = ("durable", "transient", "quorum", "priority")


def declare(room: Any, kind: str, name: str = "source") -> Any:
    if kind == "quorum":
        return room.queue(name, x_queue_type="quorum")
    if kind == "priority":
        return room.queue(name, x_max_priority=9)
    return room.queue(name, durable=kind == "durable")


def run(room: Any, jobs: JobManager, verb: str, source: Any, selector: str = "", **more: Any) -> QueueJob:
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


def got(room: Any, queue: Any) -> list[int]:
    """Takes everything that is ready."""
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
