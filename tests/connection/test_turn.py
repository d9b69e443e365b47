"""The end of a loop turn: its order, its clock, and who waits for the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpd.broker.flow.loop_turn import LOOK_READS, SMALL_READ_BYTES, CommitListener, LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.publish.confirms import when_safe
from amqpd.storage.clock_watch import ClockWatch
from amqpd.storage.filesystem import Clock
from amqpd.storage.group_commit import GroupCommit
from amqpd.storage.loop_log import LogContext
from amqpd.storage.queue_log import QueueLog


class Disk(GroupCommit):
    """The storage as a turn sees it, and its commit cycle."""

    def __init__(self, log: list[str]) -> None:  # nothing below it: it writes to no file
        self.log = log
        self.generation = 1
        self.unsynced_bytes = 0
        self.commit_waiting = False
        self.many_dirty = False
        self.context = LogContext(Clock(), None)
        self.commits = self

    def postpone(self, call: Any) -> bool:
        postponed, self.many_dirty = self.many_dirty, False
        if postponed:
            self.log.append("wait")
            self.later = call
        return postponed

    def end_of_turn(self) -> None:
        self.log.append("write")

    def flush(self) -> None:
        self.log.append("flush logs")

    def write_overdue_acks(self) -> None:
        self.log.append("look")


class Sock:
    def __init__(self, log: list[str], name: str = "") -> None:
        self.log = log
        self.name = name

    def flush(self) -> None:
        self.log.append("send" + self.name)

    def on_synced(self) -> None:
        self.log.append("release" + self.name)


class Publisher(CommitListener):
    def __init__(self, log: list[str], waits: bool = False) -> None:
        self.log = log
        self.waits = waits

    def on_turn_end(self, generation: int, safe: bool) -> bool:
        self.log.append(f"confirm {generation} {'now' if safe else 'later'}")
        return self.waits

    def on_commit(self, generation: int, failed: list[Any]) -> bool:
        self.log.append(f"committed {generation}")
        return False


class Hands(Clock):
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic(self) -> float:
        return self.now_s


class Room:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.disk = Disk(self.log)
        self.soon: list[Callable[[], None]] = []
        disk: Any = self.disk
        self.clock = Hands()
        self.turn = LoopTurn(disk, self.soon.append, Timers(lambda delay_s, call: None, ClockWatch(self.clock)))

    def run(self) -> list[str]:
        for function in self.soon:
            function()
        self.soon.clear()
        log = list(self.log)
        self.log.clear()
        return log


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_turn_is_asked_for_once_and_has_an_order(room: Room) -> None:
    """Delivery marks are written before deliveries are sent, confirms are sent with what they confirm."""
    room.turn.flush_later(Sock(room.log))
    room.turn.confirm_later(Publisher(room.log))
    room.turn.schedule()
    assert len(room.soon) == 1
    assert room.run() == ["write", "confirm 1 now", "send"]
    assert room.run() == []


def test_acks_that_wait_too_long_are_looked_for_between_the_reads_of_a_long_turn(room: Room) -> None:
    """Each large read may be milliseconds of work; of small ones each sixteenth costs a look at the clock."""
    room.turn.begin_read(SMALL_READ_BYTES + 1)
    room.turn.begin_read(SMALL_READ_BYTES + 1)
    assert room.run() == ["look", "look", "write"]
    for _ in range(2 * LOOK_READS + 1):
        room.turn.begin_read(SMALL_READ_BYTES)
    assert room.run() == ["look", "look", "write"]


def test_the_clock_is_read_once_per_read_and_forgotten_with_the_turn(room: Room) -> None:
    turn, clock = room.turn, room.clock
    turn.begin_read(100)
    first = turn.now_ms()
    clock.now_s += 1
    assert turn.now_ms() == first
    turn.begin_read(100)
    assert turn.now_ms() == first + 1000
    clock.now_s += 1
    room.run()
    assert turn.now_ms() == first + 2000
    assert len(room.soon) == 1, "outside a turn it asks for one, so that it is forgotten"
    clock.now_s += 1
    room.run()
    assert turn.now_ms() == first + 3000


def test_a_turn_that_storage_puts_off(room: Room) -> None:
    """Nothing of it is worked off before, and nobody else asks for it meanwhile."""
    room.disk.many_dirty = True
    sock: Any = Sock(room.log)
    room.turn.flush_later(sock)
    assert room.run() == ["wait"]
    room.turn.schedule()
    assert room.soon == []
    room.disk.later()
    assert room.log[-2:] == ["write", "send"]


def test_a_confirm_waits_for_what_is_on_its_way(room: Room) -> None:
    room.disk.commit_waiting = True
    room.turn.confirm_later(Publisher(room.log, waits=True))
    assert room.run() == ["write", "confirm 1 later"]
    room.turn.committed(1, [])
    assert room.run() == ["committed 1"]
    room.turn.committed(2, [])
    assert room.run() == [], "asked again although nothing waits"


def test_who_waits_already_is_asked_once(room: Room) -> None:
    room.disk.commit_waiting = True
    publisher = Publisher(room.log, waits=True)
    for _ in range(3):
        room.turn.confirm_later(publisher)
        room.run()
    room.turn.committed(3, [])
    assert room.run() == ["committed 3"]


def test_tx_commit_does_not_wait_for_the_next_append(room: Room) -> None:
    room.turn.is_sync_urgent = True
    room.turn.schedule()
    assert room.run() == ["flush logs"]
    room.turn.schedule()
    assert room.run() == ["write"]


def test_one_question_is_answered_once(room: Room) -> None:
    """By the commit of its own generation, whether or not that took its logs."""
    told: list[bool] = []
    good, bad = (QueueLog("", "", name, "", local=True) for name in ("good", "bad"))
    room.disk.commit_waiting = True
    for logs in ([good], [good, bad], []):
        when_safe(room.turn, logs, told.append)
    room.run()
    room.turn.committed(0, [good])
    assert told == []
    room.turn.committed(1, [bad])
    assert told == [True, False, True]
    room.turn.committed(2, [good])
    room.disk.commit_waiting = False
    when_safe(room.turn, [], told.append)
    room.run()
    assert told == [True, False, True, True]


def test_publishers_are_held_until_the_bytes_are_synced(room: Room) -> None:
    room.turn.unsynced_bytes_max = 100
    for name in (" a", " b"):
        room.turn.pause_until_synced(Sock(room.log, name))
    room.disk.unsynced_bytes = 101
    room.turn.committed(1, [])
    assert room.run() == []
    room.disk.unsynced_bytes = 50
    room.turn.committed(2, [])
    assert room.run() == ["release a", "release b"]
    room.turn.committed(3, [])
    assert room.run() == []
