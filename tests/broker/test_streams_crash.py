"""A machine that ends at any call of the file system, while a stream is written, read and shortened: what was shown to
a reader and what was confirmed is there, at the same offsets, and nothing is there twice."""

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


def shown(reader: Reader) -> dict[int, bytes]:
    return dict(zip(reader.offsets(), reader.got, strict=True))


def write_and_read(room, queue: Queue, told: dict[str, int], readers: list[Reader], large: bool) -> None:
    """Until it is done or the machine ends. told: how many are confirmed."""
    readers.append(read(room, queue, x_stream_offset="first"))
    number = 0
    for turn in range(TURNS):
        for _ in range(1 + turn % 3):
            room.publish("s", body(number, large), persistent=number % 2 == 0, turn=False)
            number += 1
        readers.append(read(room, queue, turn=False, x_stream_offset="first"))  # in the middle of the turn
        room.turn.schedule()
        room.turns()
        told["confirmed"] = number
        if turn % 4 == 3:
            told["may have gone"] = number
            room.storage.maintain()
            room.turns()


@pytest.mark.parametrize("large", [False, True], ids=["one file", "files that go"])
def test_the_machine_ends_at_any_call(make_room: Callable, large: bool) -> None:
    limits = {"x_max_length_bytes": 2 * SEGMENT_SIZE_BYTES_MIN, "x_stream_max_segment_size_bytes": 0} if large else {}
    at = 0
    ended = True
    while ended and at < 500:
        filesystem = SimulatedFileSystem()
        room = make_room(ROOM, filesystem)
        room.boot_id = "1" * 32
        queue = room.queue("s", x_queue_type="stream", **limits)
        left = [at]

        def fault(name: str, path: str, left: list[int] = left) -> OSError | None:
            if left[0] == 0:
                raise KeyboardInterrupt  # the machine ends here
            left[0] -= 1
            return None

        filesystem.fault = fault
        told = {"confirmed": 0, "may have gone": 0}
        readers: list[Reader] = []
        try:
            write_and_read(room, queue, told, readers, large)
            ended = False
        except KeyboardInterrupt:
            pass
        filesystem.fault = None
        check(room, filesystem, queue, told, readers, at)
        at += 1 if not large else 3
    assert not ended
    assert at > 30


def check(room, filesystem: SimulatedFileSystem, queue: Queue, told, readers: list[Reader], seed: int) -> None:
    room.filesystem = filesystem.crashed(seed) if seed % 3 else filesystem.killed()
    room.boot_id = ("2" if seed % 3 else "1") * 32
    room.restart()
    again = room.vhost.queues["s"]
    again.prepare()
    found = shown(read(room, again, x_stream_offset="first"))
    assert list(found) == sorted(found)
    bodies = list(found.values())
    assert len(set(bodies)) == len(bodies)
    start = min(found, default=told["may have gone"])
    assert start <= told["may have gone"]
    missing = [offset for offset in range(start, told["confirmed"]) if offset not in found]
    assert missing == []
    for reader in readers:
        for offset, each in shown(reader).items():
            if offset >= start:
                assert found[offset] == each
    room.publish("s", b"one more")
    assert again.ready_count == len(found) + 1
    assert list(found) == list(range(start, start + len(found)))
