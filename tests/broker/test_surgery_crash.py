"""A machine that ends at any call of the file system while messages are moved, part of them or all, and moved once more
afterwards: none is lost, and two copies of one message have the same mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_filesystem import SimulatedFileSystem

from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.protocol.properties import decode_properties
from amqpd.routing.selector import parse_selector

ROOM = Path("/data")
COUNT = 24


def fill(room: Any) -> None:
    for number in range(COUNT):
        properties = {"headers": {"n": number}, "priority": number % 2}
        room.publish("source", b"%d" % number, turn=number % 8 == 7, **properties)


def move(room: Any, where: str) -> None:
    """In steps of a few messages, with time passing in between, so that settlements are written on the way."""
    jobs = JobManager(room.republisher, room.turn, room._soon.append)
    source = room.vhost.queues["source"]
    selector = parse_selector(where) if where else None
    for limit in (5, 5, 0):
        job = jobs.begin(JobRequest("move", room.vhost, source, "target", selector=selector, limit=limit))
        room.advance(60)
        assert job.state == "done", job.reason
    room.advance(200)


def bodies(room: Any, name: str) -> list[tuple[int, Any]]:
    queue = room.vhost.queues[name]
    assert queue.can_open()
    found = []
    while (entry := queue.get(False)) is not None or queue.must_wait():
        if entry is None:
            room.turns()
            continue
        found.append((int(entry.message.body()), decode_properties(entry.message.properties()).headers))
    return found


@pytest.mark.parametrize("levels", [{}, {"x_max_priority": 3}], ids=["by arrival", "by priority"])
@pytest.mark.parametrize("where", ["", "n BETWEEN 6 AND 17"], ids=["all", "some"])
def test_the_machine_ends_at_any_call(make_room: Any, where: str, levels: dict[str, object]) -> None:
    at = 0
    ended = True
    doubles = 0
    while ended and at < 500:
        filesystem = SimulatedFileSystem()
        room = make_room(ROOM, filesystem)
        room.boot_id = "1" * 32
        room.queue("source", **levels)
        room.queue("target")
        fill(room)
        room.advance(100)
        left = [at]

        def fault(name: str, path: str, left: list[int] = left) -> OSError | None:
            if left[0] == 0:
                raise KeyboardInterrupt  # the machine ends here
            left[0] -= 1
            return None

        filesystem.fault = fault
        try:
            move(room, where)
            ended = False
        except KeyboardInterrupt:
            pass
        filesystem.fault = None
        doubles += check(room, filesystem, where, at)
        at += 1
    assert not ended
    assert at > 10
    assert doubles > 0, "it never ended between the target and the source"


def check(room: Any, filesystem: SimulatedFileSystem, where: str, seed: int) -> int:
    """Returns how many messages were in both queues."""
    room.filesystem = filesystem.crashed(seed) if seed % 3 else filesystem.killed()
    room.boot_id = ("2" if seed % 3 else "1") * 32
    room.restart()
    for name in ("source", "target"):
        assert room.vhost.queues[name].can_open()
    room.advance(100)
    move(room, where)
    moved = bodies(room, "target")
    stayed = [number for number, _ in bodies(room, "source")]
    marks: dict[int, object] = {}
    for number, headers in moved:
        assert headers["x-source-queue"] == "source"
        assert marks.setdefault(number, headers["x-source-offset"]) == headers["x-source-offset"]
    assert len(set(marks.values())) == len(marks)
    wanted = set(range(6, 18)) if where else set(range(COUNT))
    assert set(marks) == wanted
    assert sorted(stayed) == sorted(set(range(COUNT)) - wanted)
    return len(moved) - len(marks)
