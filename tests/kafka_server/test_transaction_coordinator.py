"""The coordinator of transactions without a broker: refused writes, expiry, deleted vhosts, limits, load."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_filesystem import SimulatedClock
from test_committed_offsets import Disk, Lab

from amqpd.broker.flow import timers
from amqpd.kafka_server import transaction_coordinator, transactions
from amqpd.kafka_server.committed_offsets import CommittedOffset, OffsetKey
from amqpd.kafka_server.coordinator import SWEEP_MS
from amqpd.kafka_server.transaction_coordinator import (
    IDS_KEPT_FULL_MS,
    IDS_KEPT_MS,
    RETRY_MS,
    TransactionCoordinator,
    TransactionEntry,
)
from amqpd.kafka_server.transactions import TransactionMetadata, TransactionPartition, TransactionState
from amqpd.storage.clock_watch import ClockWatch

GONE = TransactionPartition("t", bytes(16), 0)
"""A partition of a deleted stream: it needs no marker."""
KEY = OffsetKey("v", "g", "t", 0)


class Timers:
    """Timers with a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.clock.now_ms = 1_000_000
        self.armed: dict[Any, int] = {}
        wheel = timers.Timers(lambda _delay_s, _call: None, ClockWatch(self.clock))
        self.now_ms, self.wall_ms = wheel.now_ms, wheel.wall_ms
        self.agreed_ms, self.from_wall = wheel.agreed_ms, wheel.from_wall

    @property
    def now(self) -> int:
        return self.clock.now_ms

    def arm(self, timer: Any, due_ms: int) -> None:
        self.armed[timer] = due_ms

    def cancel(self, timer: Any) -> None:
        self.armed.pop(timer, None)

    def move(self, ms: int) -> None:
        self.clock.now_ms += ms
        for timer, due_ms in list(self.armed.items()):
            if due_ms <= self.now and self.armed.pop(timer, None) is not None:
                timer.fire()


class Office:
    """A coordinator with its logs."""

    def __init__(self, path: Path, disk: Disk | None = None, timers: Timers | None = None) -> None:
        self.timers = timers or Timers()
        self.lab = Lab(path, disk)
        self.vhost: Any = SimpleNamespace(id="v", name="/", streams={})
        self.broker: Any = SimpleNamespace(
            storage=self.lab.storage,
            turn=SimpleNamespace(schedule=lambda: None),
            loop=SimpleNamespace(call_soon=self.lab.soon.append),
            timers=self.timers,
            vhosts={"/": self.vhost},
        )
        self.pace: Any = SimpleNamespace(later=self.lab.soon.append)
        self.coordinator = TransactionCoordinator(self.broker, self.lab.offsets, self.pace, self.sweep)
        self.coordinator.start()
        self.lab.run()
        self.coordinator.on_loaded()
        self.lab.run()

    def move(self, ms: int) -> None:
        self.timers.move(ms)
        self.lab.run()

    def sweep(self) -> None:
        for _ in self.coordinator.swept():
            continue

    def sweep_after(self, ms: int) -> None:
        self.move(ms)
        self.sweep()
        self.lab.run()

    def change(
        self, change: Callable[[TransactionMetadata | None], TransactionMetadata | int], name: str = "x"
    ) -> list[int]:
        """Return the answer, nothing if it waits."""
        answers: list[int] = []
        self.coordinator.change(self.vhost, name, change, answers.append)
        self.lab.run()
        return answers

    def init(self, name: str = "x", timeout_ms: int = 60_000) -> list[int]:
        return self.change(
            lambda current: transactions.init_producer(current, -1, -1, timeout_ms, 77, self.timers.wall_ms()), name
        )

    def begin(self, name: str = "x", timeout_ms: int = 60_000) -> None:
        assert self.init(name, timeout_ms) == [0]
        now_ms = self.timers.wall_ms()
        assert self.change(lambda current: transactions.add(current, 77, 0, [GONE], ["g"], now_ms), name) == [0]

    def add_offset(self, offset: int) -> None:
        answers: list[bool] = []
        self.lab.offsets.add_pending(77, [(KEY, CommittedOffset(offset, -1, "", 1, bytes(16)))], answers.append)
        self.lab.run()
        assert answers == [True]

    def end(self, commits: bool = True, name: str = "x") -> list[int]:
        return self.change(lambda current: transactions.end(current, 77, 0, commits, self.timers.wall_ms()), name)

    def state(self, name: str = "x") -> TransactionState | None:
        current = self.coordinator.find(self.vhost, name)
        return None if current is None else current.state

    def restart(self, clean: bool = False) -> Office:
        self.coordinator.stop()
        self.lab.storage.close(clean=clean)
        return Office(self.lab.storage.data_dir, timers=self.timers)  # type: ignore[arg-type]


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def test_states_survive_kills_and_stops(office: Office) -> None:
    office.begin()
    office.add_offset(5)
    for clean in (False, True):
        office = office.restart(clean)
        assert office.state() is TransactionState.ONGOING
    assert office.end() == [0]
    assert office.lab.content() == {"g": 5}
    office = office.restart()
    assert office.state() is TransactionState.COMPLETE_COMMIT
    assert office.end() == [0], "repeated"


def test_refused_state_changes_nothing_and_the_client_tries_again(tmp_path: Path) -> None:
    disk = Disk()
    office = Office(tmp_path, disk)
    disk.refuses_writes = True
    assert office.init() == [15]
    assert office.state() is None
    disk.refuses_writes = False
    office.begin()
    disk.refuses_writes = True
    assert office.end() == [15]
    assert office.state() is TransactionState.ONGOING
    disk.refuses_writes = False
    assert office.end() == [0]
    assert office.state() is TransactionState.COMPLETE_COMMIT


def test_completion_that_is_refused_is_repeated_and_then_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office(tmp_path)
    office.begin()
    office.add_offset(5)
    with monkeypatch.context() as patch:
        patch.setattr(office.lab.offsets, "complete", lambda *arguments: arguments[-1](False))
        assert office.end() == []
        office.move(RETRY_MS)
        assert office.state() is TransactionState.PREPARE_COMMIT
        assert office.end() == [51]
    answers: list[int] = []
    ((entry),) = office.coordinator._all()
    assert isinstance(entry, TransactionEntry)
    entry.waiting.append(answers.append)
    office.move(RETRY_MS)
    assert (answers, office.state()) == ([0], TransactionState.COMPLETE_COMMIT)
    assert office.lab.content() == {"g": 5}


def test_time_out_that_cannot_be_written_is_tried_again_without_a_busy_loop(tmp_path: Path) -> None:
    disk = Disk()
    office = Office(tmp_path, disk)
    office.begin(timeout_ms=5000)
    disk.refuses_writes = True
    office.move(5000)
    assert office.state() is TransactionState.ONGOING
    assert min(office.timers.armed.values()) >= office.timers.now + RETRY_MS
    disk.refuses_writes = False
    office.move(RETRY_MS)
    assert office.state() is TransactionState.COMPLETE_ABORT
    assert office.end() == [90]


def test_time_out_is_kept_if_a_change_that_it_waits_for_is_refused(tmp_path: Path) -> None:
    disk = Disk()
    office = Office(tmp_path, disk)
    office.begin(timeout_ms=5000)
    answers: list[int] = []
    office.coordinator.change(
        office.vhost,
        "x",
        lambda current: transactions.add(current, 77, 0, (), ["h"], office.timers.wall_ms()),
        answers.append,
    )
    disk.refuses_writes = True
    office.move(5000)  # the time is over before the change is written
    assert (answers, office.state()) == ([15], TransactionState.ONGOING)
    disk.refuses_writes = False
    office.move(RETRY_MS)
    assert office.state() is TransactionState.COMPLETE_ABORT


DAY_MS = 86_400_000


@pytest.mark.parametrize("jump_ms", [-DAY_MS, DAY_MS])
@pytest.mark.parametrize("restarts", [False, True])
def test_time_out_does_not_follow_a_jump_of_the_wall_clock(office: Office, jump_ms: int, restarts: bool) -> None:
    office.begin(timeout_ms=5000)
    office.timers.clock.jump_ms = jump_ms
    other = GONE._replace(topic="u")
    assert office.change(lambda current: transactions.add(current, 77, 0, [other], [], office.timers.wall_ms())) == [0]
    if restarts:
        office = office.restart()
    office.move(4000)
    assert office.state() is TransactionState.ONGOING
    office.move(1000)
    assert office.state() is TransactionState.COMPLETE_ABORT


def test_id_does_not_expire_by_a_jump_of_the_wall_clock(office: Office) -> None:
    assert office.init() == [0]
    office.timers.clock.jump_ms = 2 * IDS_KEPT_MS
    office.sweep_after(SWEEP_MS)
    assert office.state() is TransactionState.EMPTY


def test_unused_id_expires_and_an_open_transaction_does_not(office: Office) -> None:
    assert office.init("unused") == [0]
    office.begin("used")
    office.sweep_after(IDS_KEPT_MS - SWEEP_MS)
    assert office.state("unused") is TransactionState.EMPTY
    office.sweep_after(2 * SWEEP_MS)
    assert office.state("unused") is None
    assert office.state("used") is TransactionState.COMPLETE_ABORT, "its time-out"
    office = office.restart()
    assert office.state("unused") is None
    assert office.init("unused") == [0], "a new producer"


def test_deleted_vhost_takes_its_ids_and_pending_offsets(office: Office) -> None:
    office.begin()
    office.add_offset(5)
    office.broker.vhosts.clear()
    office.sweep_after(0)
    assert office.state() is None
    assert office.lab.offsets.pending_producers() == []
    office = office.restart()
    assert office.state() is None


def test_pending_offsets_without_a_transaction_are_dropped_at_the_start(office: Office) -> None:
    office.add_offset(5)
    office = office.restart()
    assert office.lab.offsets.pending_producers() == []
    assert office.lab.content() == {}


def test_ids_and_their_partitions_are_limited(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "IDS_MAX", 2)
    monkeypatch.setattr(transaction_coordinator, "PARTS_MAX", 3)
    office.begin("a")
    assert office.init("b") == [0]
    assert office.init("c") == [44]
    add = office.change(lambda current: transactions.add(current, 77, 0, [GONE], ["g"], 1), "b")
    assert add == [44], "two of the three are in use"
    assert office.end(name="a") == [0]
    assert office.change(lambda current: transactions.add(current, 77, 0, [GONE], ["g"], 1), "b") == [0]


def test_ids_that_are_idle_for_an_hour_make_room_in_a_full_vhost(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients with a new id for each run, such as Flink's, would otherwise be refused for a week."""
    monkeypatch.setattr(transaction_coordinator, "IDS_MAX", 3)
    assert office.init("idle") == [0]
    office.begin("open", 900_000)
    office.timers.clock.now_ms += IDS_KEPT_FULL_MS
    assert office.init("young") == [0]
    assert office.init("new") == [0]
    assert office.state("idle") is None
    assert office.state("open") is TransactionState.ONGOING
    assert office.state("young") is TransactionState.EMPTY
    assert office.init("refused") == [44], "all are in use, or were a moment ago"
    office = office.restart()
    assert office.state("idle") is None
    assert office.state("new") is TransactionState.EMPTY


def test_a_deleted_vhost_leaves_nothing_in_memory(office: Office) -> None:
    assert office.init() == [0]
    office.broker.vhosts.clear()
    office.sweep_after(0)
    assert office.coordinator._entries == {}


def test_requests_wait_until_both_logs_are_read(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.lab.offsets.is_loaded = False
    late = TransactionCoordinator(office.broker, office.lab.offsets, office.pace, office.sweep)
    late._log.directory += uuid.uuid4().hex
    session: Any = SimpleNamespace(operator=True)
    late.start()
    office.lab.run()
    assert late.error_for("x", session) == 14
    office.lab.offsets.is_loaded = True
    late.on_loaded()
    assert late.error_for("x", session) == 0
    assert late.error_for("", session) == late.error_for(None, session) == late.error_for("x" * 256, session) == 42
