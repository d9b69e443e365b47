"""The machine ends at any call of the file system while messages are delayed, go down a level and are released.

After the next start every message that was confirmed comes to its queue in its time, in the order of it, and once; one
that comes twice, because the crash fell between its release and what notes it, says so. What was cancelled, and told
so when it was safe, does not come.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delay_room import HOUR, MINUTE, declare, later, leap, restart
from simulated_filesystem import SimulatedFileSystem

from amqpd.broker.delayed.bucket import read_due_ms, read_number
from amqpd.broker.delayed.listing import cancel
from amqpd.protocol.properties import decode_properties

ROOM = Path("/room")
DELAYS = (50, 3 * MINUTE, 20 * MINUTE, 2 * HOUR, 5 * HOUR)


def taken(room: Any, came: list[bytes] | None = None) -> list[tuple[bytes, bool]]:
    """All that is in the queue, with whether it says that it may have come before. came: gets them as they come."""
    queue = room.vhost.queues["later"]
    queue.prepare()
    found = []
    while (entry := queue.get(True)) is not None:
        if came is not None:
            came.append(entry.message.body())
        room.turn.schedule()
        room.turns()
        headers = decode_properties(entry.message.properties()).headers or {}
        found.append((entry.message.body(), entry.redelivered or "x-delayed-redelivered" in headers))
    return found


def live(room: Any, told: dict[str, list[bytes]]) -> None:
    """Until it is done or the machine ends. told: what is confirmed, and what came to whoever consumes."""
    for number in range(10):
        body = b"%d" % number
        later(room, DELAYS[number % len(DELAYS)] + number, body)
        told["confirmed"].append(body)
    for step in (60, 2 * MINUTE, MINUTE + 100, 10 * MINUTE, 30 * MINUTE, HOUR):
        leap(room, step)
        room.advance(3)
        taken(room, told["came"])


def ends_at(make_room: Callable[..., Any], at: int) -> tuple[Any, SimulatedFileSystem, dict[str, list[bytes]], bool]:
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    room.boot_id = "1" * 32
    declare(room)
    left = [at]

    def fault(name: str, path: str) -> OSError | None:
        if left[0] == 0:
            raise KeyboardInterrupt  # the machine ends here
        left[0] -= 1
        return None

    filesystem.fault = fault
    told: dict[str, list[bytes]] = {"confirmed": [], "came": []}
    ended = True
    try:
        live(room, told)
        ended = False
    except KeyboardInterrupt:
        pass
    filesystem.fault = None
    return room, filesystem, told, ended


@pytest.mark.slow
def test_the_machine_ends_at_any_call(make_room: Callable[..., Any]) -> None:
    """Each call, once for a kill and for two ways in which a power cut may leave the disk."""
    at = 0
    while True:
        room, filesystem, told, ended = ends_at(make_room, at // 3)
        cut = at % 3 != 0
        room.filesystem = filesystem.crashed(at) if cut else filesystem.killed()
        room.boot_id = ("2" if cut else "1") * 32
        restart(room)
        leap(room, 10)
        came = taken(room)
        leap(room, 6 * HOUR)
        leap(room, 10)
        room.advance(5)
        came += taken(room)
        bodies = [body for body, _ in came]
        missing = set(told["confirmed"]) - set(bodies) - set(told["came"])
        assert not missing, (at, missing)
        for body in set(bodies):
            marks = [again for each, again in came if each == body]
            fresh = marks.count(False)
            assert fresh <= (0 if body in told["came"] else 1), (at, body, marks)
        leap(room, MINUTE)
        assert room.vhost.exchanges["later"].wheel.count() == 0, at
        room.storage.close(clean=False)
        if not ended:
            break
        at += 1
    assert at > 3 * 200, at


def test_a_start_that_is_stopped_at_once_forgets_nothing(make_room: Callable[..., Any]) -> None:
    """A kill, a start that is stopped cleanly before it has released anything, and another start: what the kill has
    left in both places still says so. And where nothing is left in both a clean stop leaves no mark.
    """
    doubles = 0
    for at in range(0, 200, 2):
        room, filesystem, _, _ = ends_at(make_room, at)
        room.filesystem = filesystem.killed()
        restart(room, turns=False)
        room.delays.stop()
        room.storage.close(clean=True)
        restart(room)
        leap(room, 6 * HOUR)
        leap(room, 10)
        room.advance(5)
        came = taken(room)
        for body in {body for body, _ in came}:
            marks = [again for each, again in came if each == body]
            doubles += len(marks) > 1
            assert marks.count(False) <= 1, (at, body, marks)
        room.storage.close(clean=False)
    assert doubles > 0


def test_after_a_clean_stop_nothing_says_that_it_may_come_twice(make_room: Callable[..., Any]) -> None:
    """Neither after one nor after two, though messages of the same bucket came before."""
    room = make_room(ROOM, SimulatedFileSystem())
    room.boot_id = "1" * 32
    declare(room)
    for delay in (3000, 2000, 1000, 100):
        later(room, delay, b"%d" % delay)
    for step in (150, 1000, 1000, 1000):
        leap(room, step)
        room.advance(100)
        assert [again for _, again in taken(room)] == [False]
        room.advance(100)
        restart(room, clean=True)


def test_what_was_cancelled_does_not_come(make_room: Callable[..., Any]) -> None:
    """Cancelled before, while and after its bucket goes down; then the machine ends."""
    for seed in range(12):
        filesystem = SimulatedFileSystem()
        room = make_room(ROOM, filesystem)
        room.boot_id = "1" * 32
        wheel = declare(room)
        for number in range(6):
            later(room, 20 * MINUTE + number, b"%d" % number)
        (bucket,) = wheel.buckets
        record = bucket.store.new_cursor().read(3, 1).records[0]
        leap(room, seed * 100_000)
        *_, answer = cancel([wheel], read_due_ms(record.properties), read_number(record.properties))
        room.turns()
        assert answer is True, seed
        room.advance(100)
        room.filesystem = filesystem.crashed(seed) if seed % 2 else filesystem.killed()
        room.boot_id = ("2" if seed % 2 else "1") * 32
        restart(room)
        leap(room, 21 * MINUTE)
        leap(room, 10)
        assert [body for body, _ in taken(room)] == [b"0", b"1", b"2", b"4", b"5"], seed
        room.storage.close(clean=False)


def test_whose_they_are_is_told_by_each_bucket(make_room: Callable[..., Any]) -> None:
    """A power cut has left a bucket without its queue.json; the other ones' told, and are gone at the next start."""
    room = make_room(ROOM, SimulatedFileSystem())
    room.boot_id = "1" * 32
    wheel = declare(room)
    later(room, 500, b"soon")
    later(room, 20 * MINUTE, b"late")
    (bare,) = [bucket.chain[-1] for bucket in wheel.buckets if bucket.level == 1]
    room.filesystem = room.filesystem.crashed(1)
    room.filesystem.replace_file(f"{bare}/queue.json", b"", sync=True)
    room.boot_id = "2" * 32
    restart(room)
    leap(room, MINUTE)
    leap(room, 10)
    assert [body for body, _ in taken(room)] == [b"soon"]
    room.advance(100)
    room.filesystem = room.filesystem.crashed(2)
    room.boot_id = "3" * 32
    restart(room)
    leap(room, 20 * MINUTE)
    leap(room, 10)
    assert [body for body, _ in taken(room)] == [b"late"]
    room.storage.close(clean=False)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_full_disk_while_a_bucket_goes_down(make_room: Callable[..., Any], level: int) -> None:
    """It is tried again, and nothing is doubled."""
    import errno

    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    wheel = declare(room)
    delay = (20 * MINUTE, 5 * HOUR, 100 * HOUR)[level - 1]
    for number in range(100):
        later(room, delay + number, b"%d" % number)
    (bucket,) = wheel.buckets
    assert bucket.level == level
    room.advance(60)
    full = [True]

    def fault(name: str, path: str) -> OSError | None:
        if full[0] and "/delays/" in path and name in ("writev", "pwrite", "write", "open"):
            return OSError(errno.ENOSPC, "full")
        return None

    filesystem.fault = fault
    leap(room, bucket.work_ms - room.clock.time_ms() + 10)
    leap(room, 10)
    assert wheel.count() == 100, "they are where they were"
    full[0] = False
    leap(room, 3000)
    leap(room, delay)
    for _ in range(5):
        leap(room, 10)
    assert sorted(int(body) for body, _ in taken(room)) == list(range(100))
    assert wheel.count() == 0
