"""Delays when something goes wrong: a disk that is not read, a bug, two directories of one exchange, a clean stop."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delay_room import MINUTE, declare, later, leap, restart
from simulated_filesystem import SimulatedFileSystem
from test_delays_crash import taken

from amqpd.broker.vhost import declare as exchanges
from amqpd.storage.log.record import RecordRoute

ROOM = Path("/room")
COUNT = 20


@pytest.mark.parametrize("delay", [300, 20 * MINUTE])
@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_what_cannot_be_read_comes_when_it_can(
    make_room: Callable[..., Any], caplog: pytest.LogCaptureFixture, kind: type[Exception], delay: int
) -> None:
    """Be it the disk or a bug: others go on meanwhile, and it is tried again, ever more seldom."""
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    wheel = declare(room)
    declare(room, "other")
    for number in range(COUNT):
        later(room, delay + number, b"%d" % number)
    broken = next(iter(wheel.buckets)).chain[-2]
    tries = [0]
    works = [False]

    def fault(name: str, path: str) -> OSError | None:
        if works[0] or name != "pread" or not path.startswith(broken):
            return None
        tries[0] += 1
        raise kind(errno.EIO, "cannot be read")

    filesystem.fault = fault
    with caplog.at_level(logging.ERROR):
        leap(room, delay - 100)
        later(room, 150, b"other", "other")
        for _ in range(20):
            leap(room, 10_000)
            room.advance(2)
    assert wheel.count() == COUNT
    assert room.bodies(room.vhost.queues["other"]) == [b"other"]
    assert 2 <= tries[0] <= 60, tries
    assert len([each for each in caplog.records if each.exc_info]) == (0 if kind is OSError else 1)
    works[0] = True
    leap(room, 31_000)
    for _ in range(10):
        leap(room, 3000)
    assert [int(body) for body, _ in taken(room)] == list(range(COUNT))
    assert (wheel.count(), wheel.failures) == (0, 0)
    later(room, 100, b"later on")
    leap(room, 200)
    assert [body for body, _ in taken(room)] == [b"later on"]


@pytest.mark.parametrize("delay", [300, 20 * MINUTE])
def test_a_record_that_is_no_delayed_message(make_room: Callable[..., Any], delay: int) -> None:
    room = make_room(ROOM, SimulatedFileSystem())
    wheel = declare(room)
    later(room, delay, b"0")
    (bucket,) = wheel.buckets
    bucket.store.append_parts(RecordRoute(b"", b""), b"\0\0", b"foreign", True)
    later(room, delay, b"1")
    restart(room)
    for step in (delay - 10, 20, 5000, 10):
        leap(room, step)
    assert [body for body, _ in taken(room)] == [b"0", b"1"]


def folders(room: Any) -> list[str]:
    return sorted(room.storage.filesystem.listdir(room.storage.delay_chain("v1")[-1]))


def test_two_directories_of_one_exchange(make_room: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """The disk has refused the rename when one of the name was deleted, and after the next start there are two."""
    filesystem = SimulatedFileSystem()
    room = make_room(ROOM, filesystem)
    declare(room)
    later(room, 20 * MINUTE, b"old")
    filesystem.fault = lambda name, path: OSError(errno.EIO, "") if name == "rename" and "/delays/" in path else None
    exchanges.delete_exchange(room.vhost, room.vhost.exchanges["later"], False)
    room.turns()
    filesystem.fault = None
    declare(room)
    later(room, 20 * MINUTE, b"new")
    later(room, 400 * MINUTE, b"last")
    for _ in range(2):
        restart(room)
        assert len(folders(room)) == 2
    assert "also has delayed messages of exchange 'later'" in caplog.text
    wheel = room.vhost.exchanges["later"].wheel
    later(room, 20 * MINUTE, b"newer")
    assert wheel.count() == 4
    leap(room, 20 * MINUTE)
    leap(room, 10)
    assert sorted(body for body, _ in taken(room)) == [b"new", b"newer", b"old"]
    restart(room)
    later(room, 400 * MINUTE, b"never")
    wheel = room.vhost.exchanges["later"].wheel
    assert wheel.count() == 2
    exchanges.delete_exchange(room.vhost, room.vhost.exchanges["later"], False)
    room.turns()
    declare(room)
    restart(room)
    assert room.vhost.exchanges["later"].wheel.count() == 0


def test_an_exchange_that_is_gone_leaves_nothing_when_clients_are_served(make_room: Callable[..., Any]) -> None:
    """Else one of its name that they declare would find its messages at the start after that."""
    room = make_room(ROOM, SimulatedFileSystem())
    declare(room)
    later(room, 20 * MINUTE, b"old")
    (before,) = folders(room)
    room.restart()
    room.delays.begin()
    assert folders(room) in ([], [before + ".deleted"])


def stop(room: Any) -> None:
    """As the server does it."""
    room.timers.stop()
    once_round(room)
    room.delays.stop()
    room.republisher.stop()
    once_round(room)
    room.turn.finish()
    room.storage.close(clean=True)


def once_round(room: Any) -> None:
    soon = room._soon[:]
    room._soon.clear()
    for call in soon:
        call()


@pytest.mark.parametrize("tried", [False, True])
def test_a_clean_stop_while_a_target_takes_nothing(make_room: Callable[..., Any], tried: bool) -> None:
    """tried: another target may have it already, so it says so when it comes in the next life."""
    room = make_room(ROOM, SimulatedFileSystem())
    room.boot_id = "1" * 32
    declare(room)
    later(room, 100, b"0")
    room.vhost.queues["later"].store.failed = True
    leap(room, 110)
    (pending,) = room.republisher._failed
    assert pending.message is not None
    if tried:
        pending.again_end = pending.first + 1
    room.vhost.queues["later"].store.failed = False
    stop(room)
    restart(room)
    room.advance(5)
    assert taken(room) == [(b"0", tried)]


@pytest.mark.parametrize("wait", [0, 9000])
def test_a_clean_stop_at_any_moment(make_room: Callable[..., Any], wait: int) -> None:
    """Each message comes once, and none says that it may have come before. wait: the bucket takes nothing more."""
    moment = 0
    while True:
        room = make_room(ROOM, SimulatedFileSystem())
        room.boot_id = "1" * 32
        declare(room)
        for number in range(6):
            later(room, 9500 + number % 2, b"%d" % number)
        if wait:
            leap(room, wait)
        room.clock.now_ms += 9502 - wait
        due = [call for at, call in room._later if at <= room.clock.monotonic()]
        room._later.clear()
        for call in due:
            call()
        for _ in range(moment):
            if room._soon:
                room._soon.pop(0)()
        over = not room._soon
        stop(room)
        restart(room)
        leap(room, MINUTE)
        leap(room, 10)
        came = taken(room)
        assert sorted(came) == [(b"%d" % number, False) for number in range(6)], moment
        assert room.vhost.exchanges["later"].wheel.count() == 0
        room.storage.close(clean=False)
        if over:
            break
        moment += 1
    assert moment > 5
