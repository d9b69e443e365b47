"""A crash at any call of the file system while messages are delayed, cascade to a lower level and are released.

After the next start, every confirmed message is released when due, in order of due times. A message that is released
twice, because the crash came between its release and the ack in its bucket, is marked as redelivered. A message whose
cancellation was confirmed is not released.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delay_room import HOUR, MINUTE, declare, jump, publish_delayed, restart
from simulated_filesystem import SimulatedFileSystem

from amqpd.broker.delayed.bucket import read_due_ms, read_number
from amqpd.broker.delayed.listing import cancel
from amqpd.protocol.properties import decode_properties

ROOM = Path("/room")
DELAYS = (50, 3 * MINUTE, 20 * MINUTE, 2 * HOUR, 5 * HOUR)


def consume_all(room: Any, consumed: list[bytes] | None = None) -> list[tuple[bytes, bool]]:
    """Consume all messages. Return their bodies, each with True if it is marked as redelivered.

    The bodies are also appended to `consumed`, one by one, so that they survive a crash in this function.
    """
    queue = room.vhost.queues["later"]
    queue.prepare()
    found = []
    while (entry := queue.get(True)) is not None:
        if consumed is not None:
            consumed.append(entry.message.body())
        room.turn.schedule()
        room.turns()
        headers = decode_properties(entry.message.properties()).headers or {}
        found.append((entry.message.body(), entry.redelivered or "x-delayed-redelivered" in headers))
    return found


def run_workload(room: Any, record: dict[str, list[bytes]]) -> None:
    """Publish, advance the clock and consume, until the end or a crash. Record confirmed and consumed bodies."""
    for number in range(10):
        body = b"%d" % number
        publish_delayed(room, DELAYS[number % len(DELAYS)] + number, body)
        record["confirmed"].append(body)
    for step in (60, 2 * MINUTE, MINUTE + 100, 10 * MINUTE, 30 * MINUTE, HOUR):
        jump(room, step)
        room.advance(3)
        consume_all(room, record["consumed"])


def crash_at(
    make_room: Callable[..., Any], call_number: int
) -> tuple[Any, SimulatedFileSystem, dict[str, list[bytes]], bool]:
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    room.boot_id = "1" * 32
    declare(room)
    calls_left = [call_number]

    def fault(name: str, path: str) -> OSError | None:
        if calls_left[0] == 0:
            raise KeyboardInterrupt  # the crash
        calls_left[0] -= 1
        return None

    filesystem.fault = fault
    record: dict[str, list[bytes]] = {"confirmed": [], "consumed": []}
    crashed_midway = True
    try:
        run_workload(room, record)
        crashed_midway = False
    except KeyboardInterrupt:
        pass
    filesystem.fault = None
    return room, filesystem, record, crashed_midway


@pytest.mark.slow
def test_crash_at_any_file_system_call_loses_nothing(make_room: Callable[..., Any]) -> None:
    """A kill and two states of the disk after a power cut, for each call."""
    state = 0
    while True:
        room, filesystem, record, crashed_midway = crash_at(make_room, state // 3)
        cut = state % 3 != 0
        room.filesystem = filesystem.crashed(state) if cut else filesystem.killed()
        room.boot_id = ("2" if cut else "1") * 32
        restart(room)
        jump(room, 10)
        consumed = consume_all(room)
        jump(room, 6 * HOUR)
        jump(room, 10)
        room.advance(5)
        consumed += consume_all(room)
        bodies = [body for body, _ in consumed]
        missing = set(record["confirmed"]) - set(bodies) - set(record["consumed"])
        assert not missing, (state, missing)
        for body in set(bodies):
            marks = [redelivered for each, redelivered in consumed if each == body]
            fresh = marks.count(False)
            assert fresh <= (0 if body in record["consumed"] else 1), (state, body, marks)
        jump(room, MINUTE)
        assert room.vhost.exchanges["later"].wheel.count() == 0, state
        room.storage.close(clean=False)
        if not crashed_midway:
            break
        state += 1
    assert state > 3 * 200, state


def test_stop_right_after_start_keeps_redelivered_marks(make_room: Callable[..., Any]) -> None:
    """A kill, a start with a clean stop before it releases anything, and another start.

    A message that the kill left both in its bucket and in its queue is still marked as redelivered.
    """
    doubles = 0
    for call_number in range(0, 200, 2):
        room, filesystem, _, _ = crash_at(make_room, call_number)
        room.filesystem = filesystem.killed()
        restart(room, turns=False)
        room.delays.stop()
        room.storage.close(clean=True)
        restart(room)
        jump(room, 6 * HOUR)
        jump(room, 10)
        room.advance(5)
        consumed = consume_all(room)
        for body in {body for body, _ in consumed}:
            marks = [redelivered for each, redelivered in consumed if each == body]
            doubles += len(marks) > 1
            assert marks.count(False) <= 1, (call_number, body, marks)
        room.storage.close(clean=False)
    assert doubles > 0


def test_clean_stop_marks_nothing_as_redelivered(make_room: Callable[..., Any]) -> None:
    """Messages of one bucket are released before and after several clean stops."""
    room = make_room(ROOM, SimulatedFileSystem())
    room.boot_id = "1" * 32
    declare(room)
    for delay in (3000, 2000, 1000, 100):
        publish_delayed(room, delay, b"%d" % delay)
    for step in (150, 1000, 1000, 1000):
        jump(room, step)
        room.advance(100)
        assert [redelivered for _, redelivered in consume_all(room)] == [False]
        room.advance(100)
        restart(room, clean=True)


def test_cancelled_message_is_not_released_after_crash(make_room: Callable[..., Any]) -> None:
    """The message is cancelled before, during or after the cascade of its bucket; then the broker crashes."""
    for seed in range(12):
        filesystem = SimulatedFileSystem()
        room = make_room(ROOM, filesystem)
        room.boot_id = "1" * 32
        wheel = declare(room)
        for number in range(6):
            publish_delayed(room, 20 * MINUTE + number, b"%d" % number)
        (bucket,) = wheel.buckets
        record = bucket.store.new_cursor().read(3, 1).records[0]
        jump(room, seed * 100_000)
        *_, answer = cancel([wheel], read_due_ms(record.properties), read_number(record.properties))
        room.turns()
        assert answer is True, seed
        room.advance(100)
        room.filesystem = filesystem.crashed(seed) if seed % 2 else filesystem.killed()
        room.boot_id = ("2" if seed % 2 else "1") * 32
        restart(room)
        jump(room, 21 * MINUTE)
        jump(room, 10)
        assert [body for body, _ in consume_all(room)] == [b"0", b"1", b"2", b"4", b"5"], seed
        room.storage.close(clean=False)


def test_bucket_with_empty_queue_json_keeps_its_exchange(make_room: Callable[..., Any]) -> None:
    """A power cut leaves one bucket with an empty queue.json. At the second start the other buckets are gone."""
    room = make_room(ROOM, SimulatedFileSystem())
    room.boot_id = "1" * 32
    wheel = declare(room)
    publish_delayed(room, 500, b"soon")
    publish_delayed(room, 20 * MINUTE, b"late")
    (bare,) = [bucket.chain[-1] for bucket in wheel.buckets if bucket.level == 1]
    room.filesystem = room.filesystem.crashed(1)
    room.filesystem.replace_file(f"{bare}/queue.json", b"", sync=True)
    room.boot_id = "2" * 32
    restart(room)
    jump(room, MINUTE)
    jump(room, 10)
    assert [body for body, _ in consume_all(room)] == [b"soon"]
    room.advance(100)
    room.filesystem = room.filesystem.crashed(2)
    room.boot_id = "3" * 32
    restart(room)
    jump(room, 20 * MINUTE)
    jump(room, 10)
    assert [body for body, _ in consume_all(room)] == [b"late"]
    room.storage.close(clean=False)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_full_disk_delays_cascade(make_room: Callable[..., Any], level: int) -> None:
    """The cascade is repeated when the disk has space, and no message is duplicated."""
    import errno

    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    wheel = declare(room)
    delay = (20 * MINUTE, 5 * HOUR, 100 * HOUR)[level - 1]
    for number in range(100):
        publish_delayed(room, delay + number, b"%d" % number)
    (bucket,) = wheel.buckets
    assert bucket.level == level
    room.advance(60)
    full = [True]

    def fault(name: str, path: str) -> OSError | None:
        if full[0] and "/delays/" in path and name in ("writev", "pwrite", "write", "open"):
            return OSError(errno.ENOSPC, "full")
        return None

    filesystem.fault = fault
    jump(room, bucket.work_ms - room.clock.time_ms() + 10)
    jump(room, 10)
    assert wheel.count() == 100, "all messages remain in the bucket"
    full[0] = False
    jump(room, 3000)
    jump(room, delay)
    for _ in range(5):
        jump(room, 10)
    assert sorted(int(body) for body, _ in consume_all(room)) == list(range(100))
    assert wheel.count() == 0
