"""The end of a loop turn: its order, its clock, and publishers that wait for the disk."""

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


class FakeStorage(GroupCommit):
    """Fake storage with the commit cycle of a turn."""

    def __init__(self, log: list[str]) -> None:  # writes no files
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


class FakeSocket:
    def __init__(self, log: list[str], name: str = "") -> None:
        self.log = log
        self.name = name

    def flush(self) -> None:
        self.log.append("send" + self.name)

    def on_synced(self) -> None:
        self.log.append("release" + self.name)


class FakePublisher(CommitListener):
    def __init__(self, log: list[str], waits: bool = False) -> None:
        self.log = log
        self.waits = waits

    def on_turn_end(self, generation: int, safe: bool) -> bool:
        self.log.append(f"confirm {generation} {'now' if safe else 'later'}")
        return self.waits

    def on_commit(self, generation: int, failed: list[Any]) -> bool:
        self.log.append(f"committed {generation}")
        return False


class FakeClock(Clock):
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic(self) -> float:
        return self.now_s


class TurnRig:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.disk = FakeStorage(self.log)
        self.soon: list[Callable[[], None]] = []
        disk: Any = self.disk
        self.clock = FakeClock()
        self.turn = LoopTurn(disk, self.soon.append, Timers(lambda delay_s, call: None, ClockWatch(self.clock)))

    def run(self) -> list[str]:
        for function in self.soon:
            function()
        self.soon.clear()
        log = list(self.log)
        self.log.clear()
        return log


@pytest.fixture
def rig() -> TurnRig:
    return TurnRig()


def test_turn_runs_once_in_order(rig: TurnRig) -> None:
    """Delivery marks are written before deliveries are sent. Confirms are sent after the write."""
    rig.turn.flush_later(FakeSocket(rig.log))
    rig.turn.confirm_later(FakePublisher(rig.log))
    rig.turn.schedule()
    assert len(rig.soon) == 1
    assert rig.run() == ["write", "confirm 1 now", "send"]
    assert rig.run() == []


def test_overdue_acks_are_written_between_reads_of_long_turn(rig: TurnRig) -> None:
    """Each large read may take milliseconds. Of small reads only each sixteenth looks at the clock."""
    rig.turn.begin_read(SMALL_READ_BYTES + 1)
    rig.turn.begin_read(SMALL_READ_BYTES + 1)
    assert rig.run() == ["look", "look", "write"]
    for _ in range(2 * LOOK_READS + 1):
        rig.turn.begin_read(SMALL_READ_BYTES)
    assert rig.run() == ["look", "look", "write"]


def test_clock_is_cached_until_next_read_or_turn(rig: TurnRig) -> None:
    turn, clock = rig.turn, rig.clock
    turn.begin_read(100)
    first = turn.now_ms()
    clock.now_s += 1
    assert turn.now_ms() == first
    turn.begin_read(100)
    assert turn.now_ms() == first + 1000
    clock.now_s += 1
    rig.run()
    assert turn.now_ms() == first + 2000
    assert len(rig.soon) == 1, "a call outside a turn schedules one"
    clock.now_s += 1
    rig.run()
    assert turn.now_ms() == first + 3000


def test_postponed_turn_runs_once(rig: TurnRig) -> None:
    """Storage postpones the turn: nothing is written or sent before, and no second turn is scheduled."""
    rig.disk.many_dirty = True
    sock: Any = FakeSocket(rig.log)
    rig.turn.flush_later(sock)
    assert rig.run() == ["wait"]
    rig.turn.schedule()
    assert rig.soon == []
    rig.disk.later()
    assert rig.log[-2:] == ["write", "send"]


def test_confirm_waits_for_pending_commit(rig: TurnRig) -> None:
    rig.disk.commit_waiting = True
    rig.turn.confirm_later(FakePublisher(rig.log, waits=True))
    assert rig.run() == ["write", "confirm 1 later"]
    rig.turn.committed(1, [])
    assert rig.run() == ["committed 1"]
    rig.turn.committed(2, [])
    assert rig.run() == [], "called although nothing waits"


def test_waiting_publisher_is_called_once_per_commit(rig: TurnRig) -> None:
    rig.disk.commit_waiting = True
    publisher = FakePublisher(rig.log, waits=True)
    for _ in range(3):
        rig.turn.confirm_later(publisher)
        rig.run()
    rig.turn.committed(3, [])
    assert rig.run() == ["committed 3"]


def test_tx_commit_flushes_logs_at_once(rig: TurnRig) -> None:
    rig.turn.is_sync_urgent = True
    rig.turn.schedule()
    assert rig.run() == ["flush logs"]
    rig.turn.schedule()
    assert rig.run() == ["write"]


def test_when_safe_answers_once_per_call(rig: TurnRig) -> None:
    """Each question is answered by the commit of its own generation, even if that commit had none of its logs."""
    answers: list[bool] = []
    good, bad = (QueueLog("", "", name, "", local=True) for name in ("good", "bad"))
    rig.disk.commit_waiting = True
    for logs in ([good], [good, bad], []):
        when_safe(rig.turn, logs, answers.append)
    rig.run()
    rig.turn.committed(0, [good])
    assert answers == []
    rig.turn.committed(1, [bad])
    assert answers == [True, False, True]
    rig.turn.committed(2, [good])
    rig.disk.commit_waiting = False
    when_safe(rig.turn, [], answers.append)
    rig.run()
    assert answers == [True, False, True, True]


def test_publishers_wait_until_bytes_are_synced(rig: TurnRig) -> None:
    rig.turn.unsynced_bytes_max = 100
    for name in (" a", " b"):
        rig.turn.pause_until_synced(FakeSocket(rig.log, name))
    rig.disk.unsynced_bytes = 101
    rig.turn.committed(1, [])
    assert rig.run() == []
    rig.disk.unsynced_bytes = 50
    rig.turn.committed(2, [])
    assert rig.run() == ["release a", "release b"]
    rig.turn.committed(3, [])
    assert rig.run() == []
