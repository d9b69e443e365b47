"""Heartbeats on a clock of their own: what a test does in no time takes the peers minutes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pamqp.commands as spec
import pytest
from memory_broker import MemoryBroker, Wire
from served import Served

from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.connection.close_handler import CLOSING, HANDSHAKE, RUNNING
from amqpd.connection.heartbeat import HEARTBEAT_FRAME, MID_FRAME_S, Heartbeats
from amqpd.connection.read_pause import ALARM, BACKLOG, BODIES, OUTPUT, PACED, SHARING, SYNC, ReadPause


class Timer:
    def __init__(self, due: float, function: Callable[[], None]) -> None:
        self.due = due
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Time passes when `advance` says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, function: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay_s, function)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.timers = [timer for timer in self.timers if not timer.cancelled]
            due = [timer for timer in self.timers if timer.due <= end]
            if not due:
                break
            timer = min(due, key=lambda each: each.due)
            self.timers.remove(timer)
            self.now = timer.due
            timer.function()
        self.now = end


class Parser:
    def __init__(self) -> None:
        self.half_a_frame = False
        self.contents = 0
        self.missing = 1000

    def is_mid_command(self) -> bool:
        return self.half_a_frame or self.contents > 0

    def has_partial_content(self) -> bool:
        return self.contents > 0

    def progress(self) -> tuple[int, int, int]:
        return self.contents, self.missing, 0


class Output:
    def __init__(self) -> None:
        self.sent = False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.sent = True


class Connection:
    """Its wire and its control note what is asked of them."""

    def __init__(self, turn: LoopTurn, heartbeat_s: int) -> None:
        self.name = "test"
        self.close_handler = SimpleNamespace(state=RUNNING)
        self.heartbeat_s = heartbeat_s
        self.received = False
        self.output = Output()
        self.read_pause = ReadPause(Wire(), turn)
        self.parser = Parser()
        self.broker = SimpleNamespace(unfinished_bodies=SimpleNamespace(full=False))
        self.wire = self.control = self
        self.aborted = False
        self.forced = ""

    def force(self, reason: str) -> None:
        self.forced = reason

    def abort(self) -> None:
        self.aborted = True


class Room:
    def __init__(self, heartbeat_s: int = 10) -> None:
        self.loop = Loop()
        loop: Any = self.loop
        self.turn = MemoryBroker().broker.turn
        self.heartbeats = Heartbeats(loop)
        self.connection = self.add(heartbeat_s)

    def add(self, heartbeat_s: int) -> Connection:
        connection = Connection(self.turn, heartbeat_s)
        member: Any = connection
        self.heartbeats.add(member)
        return connection

    def pass_by(self, seconds: float, *, speaks: bool = True) -> None:
        """Time goes by in steps of a second; the peer speaks in each or in none."""
        while seconds > 0:
            if speaks:
                self.connection.received = True
            self.loop.advance(min(1.0, seconds))
            seconds -= 1


def test_a_heartbeat_after_half_the_interval() -> None:
    room = Room(10)
    room.pass_by(4.5)
    assert room.connection.output.written == []
    room.pass_by(1)
    assert room.connection.output.written == [HEARTBEAT_FRAME]
    room.pass_by(20)
    assert room.connection.output.written == [HEARTBEAT_FRAME] * 4  # a tick late each time, at most


def test_who_speaks_needs_no_heartbeat() -> None:
    room = Room(10)
    for _ in range(20):
        room.connection.output.sent = True
        room.pass_by(2)
    assert room.connection.output.written == []


def test_dropped_after_two_silent_intervals_and_not_before() -> None:
    room = Room(10)
    room.pass_by(3)
    room.pass_by(19, speaks=False)
    assert not room.connection.aborted
    room.pass_by(2, speaks=False)
    assert room.connection.aborted


def test_a_peer_that_speaks_stays() -> None:
    room = Room(1)
    room.pass_by(600)
    assert not room.connection.aborted


def test_no_interval_no_heartbeats() -> None:
    room = Room(0)
    room.pass_by(1000, speaks=False)
    assert not room.connection.aborted
    assert room.connection.output.written == []


@pytest.mark.parametrize("reason", [SYNC, BACKLOG, ALARM, OUTPUT, SHARING, PACED, BODIES])
def test_our_own_pause_does_not_count_against_the_peer(reason: int) -> None:
    """Neither while it lasts nor in the tick after it, and not for half a frame that we did not read on."""
    room = Room(10)
    room.connection.parser.half_a_frame = True
    room.connection.read_pause.pause(reason)
    room.pass_by(500, speaks=False)
    assert not room.connection.aborted
    assert len(room.connection.output.written) >= 90, "we go on to send heartbeats"
    room.connection.read_pause.resume(reason)
    room.pass_by(19, speaks=False)
    assert not room.connection.aborted
    room.pass_by(3, speaks=False)
    assert room.connection.aborted


def test_half_a_frame_is_given_up() -> None:
    room = Room(0)
    room.connection.parser.half_a_frame = True
    room.pass_by(MID_FRAME_S - 2, speaks=False)
    assert not room.connection.aborted
    room.pass_by(4, speaks=False)
    assert room.connection.aborted


def test_a_frame_that_arrives_slowly_is_not() -> None:
    room = Room(0)
    for _ in range(20):
        room.connection.parser.half_a_frame = True
        room.pass_by(1)
        room.pass_by(20, speaks=False)
    assert not room.connection.aborted


def test_a_message_that_does_not_go_on_closes_its_connection() -> None:
    """Although its client speaks: heartbeats, or another message. The clock stands while we do not read."""
    room = Room(10)
    room.connection.parser.contents = 1
    for _ in range(3):
        room.connection.parser.missing -= 1
        room.pass_by(MID_FRAME_S - 2)
        assert not room.connection.forced
    room.connection.read_pause.pause(BODIES)
    room.pass_by(500)
    room.connection.read_pause.resume(BODIES)
    room.pass_by(MID_FRAME_S - 2)
    assert not room.connection.forced
    room.pass_by(4)
    assert room.connection.forced == "no data of an incomplete message for 60 s"
    assert not room.connection.aborted


@pytest.mark.parametrize("full", [False, True])
def test_a_message_of_a_peer_that_does_not_read(full: bool) -> None:
    """It may take its time, but not where others' messages wait for the end of its own."""
    room = Room(10)
    room.connection.parser.contents = 1
    room.connection.read_pause.pause(OUTPUT)
    room.connection.broker.unfinished_bodies.full = full
    room.pass_by(MID_FRAME_S - 2, speaks=False)
    assert not room.connection.forced
    room.pass_by(4, speaks=False)
    assert bool(room.connection.forced) == full
    assert not room.connection.aborted


@pytest.mark.parametrize("state", [HANDSHAKE, CLOSING])
def test_other_states_have_deadlines_of_their_own(state: int) -> None:
    room = Room(1)
    room.connection.close_handler.state = state
    room.connection.parser.half_a_frame = True
    room.pass_by(500, speaks=False)
    assert not room.connection.aborted
    assert room.connection.output.written == []


def test_one_timer_for_all_and_none_for_nobody() -> None:
    room = Room(10)
    others = [room.add(10) for _ in range(100)]
    assert len(room.loop.timers) == 1
    assert room.heartbeats.open_count() == 101
    for connection in [room.connection, *others]:
        member: Any = connection
        room.heartbeats.remove(member)
    room.loop.advance(1)
    assert room.loop.timers == []
    late = room.add(2)
    room.loop.advance(1.5)
    assert late.output.written == [HEARTBEAT_FRAME]


def test_stop_and_abort_all() -> None:
    room = Room(1)
    other = room.add(0)
    room.heartbeats.abort_all()
    assert room.connection.aborted
    assert other.aborted
    room.heartbeats.stop()
    room.connection.aborted = False
    room.loop.advance(100)
    assert not room.connection.aborted


def test_a_reader_that_is_slow_is_not_dropped() -> None:
    """Two megabytes of answers wait for it, so we do not read: its heartbeats lie in the socket."""
    house = MemoryBroker()
    client = Served(house)
    client.connection.heartbeat_s = 10
    client.say(1, spec.Channel.Open())
    client.heard()
    loop = Loop()
    as_loop: Any = loop
    heartbeats = Heartbeats(as_loop)
    heartbeats.add(client.connection)
    client.transport.pause_writing()
    for _ in range(20):
        client.connection.output.write(bytes(200_000))
    client.say(1, spec.Basic.Qos(prefetch_count=1))
    assert not client.socket.reading
    loop.advance(500)
    assert not client.socket.aborted
    house.end()
