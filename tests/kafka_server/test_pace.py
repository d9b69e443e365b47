"""The time of a turn, shared by requests: what begins, what continues later, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.kafka_server import pace as module
from amqpd.kafka_server.messages import MalformedRequest
from amqpd.kafka_server.pace import ACTIVE_MAX, REQUESTS_S, SLICE_S, Pace, Steps

STEP_S = SLICE_S / 4


class Loop:
    """A loop whose clock moves only in steps of requests."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.soon: deque[Callable[[], None]] = deque()
        self.turn: Any = SimpleNamespace(number=0)
        patch.setattr(module.time, "monotonic", lambda: self.now_s)
        self.pace = Pace(self.turn, self.soon.append)

    def run_turn(self) -> float:
        """Run what is called in this turn, and return the time that it took."""
        begun_s = self.now_s
        for _ in range(len(self.soon)):
            self.soon.popleft()()
        self.turn.number += 1
        return self.now_s - begun_s

    def steps(self, count: int, log: list[str], name: str) -> Steps[None]:
        for _ in range(count):
            self.now_s += STEP_S
            log.append(name)
            yield


class Connection:
    def __init__(self) -> None:
        self.closed = False
        self.works = 0
        self.errors: list[Exception] = []
        self.reads = 0
        self.read: Callable[[], None] = lambda: None

    def begin_work(self) -> None:
        self.works += 1

    def end_work(self) -> None:
        self.works -= 1

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    def read_on(self) -> None:
        self.reads += 1
        self.read()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def run(loop: Loop, connection: Connection, steps: Steps[None]) -> None:
    client: Any = connection
    loop.pace.run(client, steps)


def test_short_work_is_done_at_once(loop: Loop) -> None:
    log: list[str] = []
    connection = Connection()
    run(loop, connection, loop.steps(3, log, "a"))
    assert (log, connection.works, len(loop.soon)) == (["a"] * 3, 0, 0)


def test_long_work_takes_a_slice_of_each_turn_and_the_connection_waits(loop: Loop) -> None:
    log: list[str] = []
    connection = Connection()
    run(loop, connection, loop.steps(20, log, "a"))
    assert connection.works == 1
    turns = []
    while loop.soon:
        turns.append(loop.run_turn())
    assert max(turns) <= SLICE_S + STEP_S
    assert (len(log), len(turns), connection.works) == (20, 5, 0)  # the last one finds that nothing is left


def test_works_of_many_connections_share_the_slice(loop: Loop) -> None:
    """One slice a turn for all of them, ACTIVE_MAX begun ones at a time."""
    log: list[str] = []
    connections = [Connection() for _ in range(2 * ACTIVE_MAX)]
    for number, each in enumerate(connections):
        run(loop, each, loop.steps(9, log, str(number)))
    log.clear()
    while loop.soon:
        assert loop.run_turn() <= SLICE_S + STEP_S
    assert {each.works for each in connections} == {0}
    first = log.index(str(ACTIVE_MAX))
    assert {str(number) for number in range(ACTIVE_MAX)} <= set(log[: first + 8 * ACTIVE_MAX])


def test_work_of_a_closed_connection_ends(loop: Loop) -> None:
    log: list[str] = []
    connection = Connection()
    run(loop, connection, loop.steps(20, log, "a"))
    connection.closed = True
    loop.run_turn()
    assert (len(log), len(loop.soon)) == (4, 0)
    run(loop, connection, loop.steps(1, log, "a"))
    assert len(log) == 4


@pytest.mark.parametrize("before", [0, 10])
def test_an_error_goes_to_its_connection_and_others_go_on(loop: Loop, before: int) -> None:
    def failing() -> Steps[None]:
        yield from loop.steps(before, [], "")
        raise MalformedRequest("wrong")

    log: list[str] = []
    bad, good = Connection(), Connection()
    run(loop, bad, failing())
    run(loop, good, loop.steps(20, log, "good"))
    while loop.soon:
        loop.run_turn()
    assert [str(each) for each in bad.errors] == ["wrong"]
    assert (good.errors, len(log)) == ([], 20)


def test_requests_begin_for_a_while_in_a_turn_and_the_others_in_order(loop: Loop) -> None:
    assert loop.pace.may_begin()
    loop.pace.count(REQUESTS_S)
    assert not loop.pace.may_begin()
    order: list[int] = []
    waiting = []
    for number in range(5):
        connection = Connection()

        def read(number: int = number) -> None:
            order.append(number)
            loop.pace.count(REQUESTS_S / 2)

        connection.read = read
        client: Any = connection
        loop.pace.read_later(client)
        waiting.append(connection)
    turns = []
    while loop.soon:
        loop.run_turn()
        turns.append(len(order))
    assert (order, turns) == ([0, 1, 2, 3, 4], [2, 4, 5])
    assert loop.pace.may_begin()


def test_a_failed_call_does_not_stop_others(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError

    loop.pace.later(fail)
    loop.pace.later(lambda: done.append(1))
    loop.run_turn()
    assert done == [1]
    assert "a bug in amqpd" in caplog.text


def test_others_go_on_after_a_connection_that_fails_while_it_reads(loop: Loop) -> None:
    log: list[str] = []
    broken, other = Connection(), Connection()

    def fail() -> None:
        raise RuntimeError

    broken.read = fail
    client: Any = broken
    run(loop, other, loop.steps(20, log, "a"))
    loop.pace.read_later(client)
    with pytest.raises(RuntimeError):
        loop.run_turn()
    while loop.soon:
        loop.run_turn()
    assert (len(log), other.works) == (20, 0)
