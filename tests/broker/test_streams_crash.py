"""A crash at any file system call while a stream is written, read and truncated by retention.

Confirmed messages and messages delivered to a consumer are there afterwards, at the same offsets and only once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_filesystem import SimulatedFileSystem

from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.stream import SEGMENT_SIZE_BYTES_MIN

from .stream_room import LARGE, Reader, read

TURNS = 12
ROOM = Path("/data")


def body(number: int, large: bool) -> bytes:
    return b"%d" % number + (b"." * LARGE if large else b"")


def delivered(reader: Reader) -> dict[int, bytes]:
    return dict(zip(reader.offsets(), reader.got, strict=True))


def write_and_read(room, queue: Queue, progress: dict[str, int], readers: list[Reader], large: bool) -> None:
    """Publish and read until all turns are done or the crash. progress: how many messages are confirmed."""
    readers.append(read(room, queue, x_stream_offset="first"))
    number = 0
    for turn in range(TURNS):
        for _ in range(1 + turn % 3):
            room.publish("s", body(number, large), persistent=number % 2 == 0, turn=False)
            number += 1
        readers.append(read(room, queue, turn=False, x_stream_offset="first"))  # in the middle of the turn
        room.turn.schedule()
        room.turns()
        progress["confirmed"] = number
        if turn % 4 == 3:
            progress["may have gone"] = number
            room.storage.maintain()
            room.turns()


@pytest.mark.parametrize("large", [False, True], ids=["one file", "files that go"])
def test_crash_at_any_file_system_call(make_room: Callable, large: bool) -> None:
    limits = {"x_max_length_bytes": 2 * SEGMENT_SIZE_BYTES_MIN, "x_stream_max_segment_size_bytes": 0} if large else {}
    crash_at = 0
    crashed = True
    while crashed and crash_at < 500:
        filesystem = SimulatedFileSystem()
        room = make_room(ROOM, filesystem)
        room.boot_id = "1" * 32
        queue = room.queue("s", x_queue_type="stream", **limits)
        calls_left = [crash_at]

        def fault(name: str, path: str, calls_left: list[int] = calls_left) -> OSError | None:
            if calls_left[0] == 0:
                raise KeyboardInterrupt  # the crash
            calls_left[0] -= 1
            return None

        filesystem.fault = fault
        progress = {"confirmed": 0, "may have gone": 0}
        readers: list[Reader] = []
        try:
            write_and_read(room, queue, progress, readers, large)
            crashed = False
        except KeyboardInterrupt:
            pass
        filesystem.fault = None
        check(room, filesystem, queue, progress, readers, crash_at)
        crash_at += 1 if not large else 3
    assert not crashed
    assert crash_at > 30


def check(room, filesystem: SimulatedFileSystem, queue: Queue, progress, readers: list[Reader], seed: int) -> None:
    room.filesystem = filesystem.crashed(seed) if seed % 3 else filesystem.killed()
    room.boot_id = ("2" if seed % 3 else "1") * 32
    room.restart()
    restarted = room.vhost.queues["s"]
    restarted.prepare()
    messages = delivered(read(room, restarted, x_stream_offset="first"))
    assert list(messages) == sorted(messages)
    bodies = list(messages.values())
    assert len(set(bodies)) == len(bodies)
    start = min(messages, default=progress["may have gone"])
    assert start <= progress["may have gone"]
    missing = [offset for offset in range(start, progress["confirmed"]) if offset not in messages]
    assert missing == []
    for reader in readers:
        for offset, each in delivered(reader).items():
            if offset >= start:
                assert messages[offset] == each
    room.publish("s", b"one more")
    assert restarted.ready_count == len(messages) + 1
    assert list(messages) == list(range(start, start + len(messages)))
