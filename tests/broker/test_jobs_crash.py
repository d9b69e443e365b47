"""A crash at any file system call while messages are moved, followed by another move.

No message is lost, and two copies of one message have the same source headers.
"""

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
    """Move in steps of a few messages. Time passes between the steps, so acks are written."""
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
def test_crash_at_any_file_system_call(make_room: Any, where: str, levels: dict[str, object]) -> None:
    crash_at = 0
    crashed = True
    duplicates = 0
    while crashed and crash_at < 500:
        filesystem = SimulatedFileSystem()
        room = make_room(ROOM, filesystem)
        room.boot_id = "1" * 32
        room.queue("source", **levels)
        room.queue("target")
        fill(room)
        room.advance(100)
        calls_left = [crash_at]

        def fault(name: str, path: str, calls_left: list[int] = calls_left) -> OSError | None:
            if calls_left[0] == 0:
                raise KeyboardInterrupt  # the crash
            calls_left[0] -= 1
            return None

        filesystem.fault = fault
        try:
            move(room, where)
            crashed = False
        except KeyboardInterrupt:
            pass
        filesystem.fault = None
        duplicates += check(room, filesystem, where, crash_at)
        crash_at += 1
    assert not crashed
    assert crash_at > 10
    assert duplicates > 0, "no crash was between the writes of target and source"


def check(room: Any, filesystem: SimulatedFileSystem, where: str, seed: int) -> int:
    """Check the queues after the crash. Return the number of duplicates in the target."""
    room.filesystem = filesystem.crashed(seed) if seed % 3 else filesystem.killed()
    room.boot_id = ("2" if seed % 3 else "1") * 32
    room.restart()
    for name in ("source", "target"):
        assert room.vhost.queues[name].can_open()
    room.advance(100)
    move(room, where)
    moved = bodies(room, "target")
    stayed = [number for number, _ in bodies(room, "source")]
    source_offsets: dict[int, object] = {}
    for number, headers in moved:
        assert headers["x-source-queue"] == "source"
        assert source_offsets.setdefault(number, headers["x-source-offset"]) == headers["x-source-offset"]
    assert len(set(source_offsets.values())) == len(source_offsets)
    selected = set(range(6, 18)) if where else set(range(COUNT))
    assert set(source_offsets) == selected
    assert sorted(stayed) == sorted(set(range(COUNT)) - selected)
    return len(moved) - len(source_offsets)
