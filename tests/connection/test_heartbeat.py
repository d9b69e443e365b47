"""Heartbeats on a simulated clock: minutes pass instantly."""

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
    """Fake loop whose time passes only in `advance`."""

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
            self.now = max(self.now, timer.due)
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
    """Fake connection that is its own wire and control, and records `force` and `abort`."""

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


class HeartbeatRig:
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

    def pass_time(self, seconds: float, *, peer_sends: bool = True) -> None:
        """Advance time in steps of one second; the peer sends in each step or in none."""
        while seconds > 0:
            if peer_sends:
                self.connection.received = True
            self.loop.advance(min(1.0, seconds))
            seconds -= 1


def test_heartbeat_after_half_the_interval() -> None:
    rig = HeartbeatRig(10)
    rig.pass_time(4.5)
    assert rig.connection.output.written == []
    rig.pass_time(1)
    assert rig.connection.output.written == [HEARTBEAT_FRAME]
    rig.pass_time(20)
    assert rig.connection.output.written == [HEARTBEAT_FRAME] * 4  # each at most one tick late_connection


def test_no_heartbeat_while_we_send_data() -> None:
    rig = HeartbeatRig(10)
    for _ in range(20):
        rig.connection.output.sent = True
        rig.pass_time(2)
    assert rig.connection.output.written == []


def test_peer_dropped_after_two_silent_intervals() -> None:
    rig = HeartbeatRig(10)
    rig.pass_time(3)
    rig.pass_time(19, peer_sends=False)
    assert not rig.connection.aborted
    rig.pass_time(2, peer_sends=False)
    assert rig.connection.aborted


@pytest.mark.parametrize("peer_sends", [True, False])
def test_data_that_waited_while_the_process_was_stopped_counts(peer_sends: bool) -> None:
    """As after SIGSTOP and SIGCONT: the loop runs its timers before it reads the sockets."""
    rig = HeartbeatRig(10)
    rig.pass_time(3)
    for _ in range(3):
        rig.loop.now += 60.0
        rig.loop.advance(0)
        assert not rig.connection.aborted
        rig.connection.received = peer_sends
        rig.loop.advance(1)
        assert rig.connection.aborted is not peer_sends
        rig.connection.aborted = False


def test_peer_that_sends_is_not_dropped() -> None:
    rig = HeartbeatRig(1)
    rig.pass_time(600)
    assert not rig.connection.aborted


def test_interval_zero_disables_heartbeats() -> None:
    rig = HeartbeatRig(0)
    rig.pass_time(1000, peer_sends=False)
    assert not rig.connection.aborted
    assert rig.connection.output.written == []


@pytest.mark.parametrize("reason", [SYNC, BACKLOG, ALARM, OUTPUT, SHARING, PACED, BODIES])
def test_paused_reading_does_not_count_as_silence(reason: int) -> None:
    """The pause and the tick after it do not count, and neither does a partial frame that we did not read."""
    rig = HeartbeatRig(10)
    rig.connection.parser.half_a_frame = True
    rig.connection.read_pause.pause(reason)
    rig.pass_time(500, peer_sends=False)
    assert not rig.connection.aborted
    assert len(rig.connection.output.written) >= 90, "heartbeats are still sent"
    rig.connection.read_pause.resume(reason)
    rig.pass_time(19, peer_sends=False)
    assert not rig.connection.aborted
    rig.pass_time(3, peer_sends=False)
    assert rig.connection.aborted


def test_partial_frame_times_out() -> None:
    rig = HeartbeatRig(0)
    rig.connection.parser.half_a_frame = True
    rig.pass_time(MID_FRAME_S - 2, peer_sends=False)
    assert not rig.connection.aborted
    rig.pass_time(4, peer_sends=False)
    assert rig.connection.aborted


def test_slow_frame_does_not_time_out() -> None:
    rig = HeartbeatRig(0)
    for _ in range(20):
        rig.connection.parser.half_a_frame = True
        rig.pass_time(1)
        rig.pass_time(20, peer_sends=False)
    assert not rig.connection.aborted


def test_stalled_message_closes_its_connection() -> None:
    """The client sends heartbeats or another message, which does not help. The clock stops while we do not read."""
    rig = HeartbeatRig(10)
    rig.connection.parser.contents = 1
    for _ in range(3):
        rig.connection.parser.missing -= 1
        rig.pass_time(MID_FRAME_S - 2)
        assert not rig.connection.forced
    rig.connection.read_pause.pause(BODIES)
    rig.pass_time(500)
    rig.connection.read_pause.resume(BODIES)
    rig.pass_time(MID_FRAME_S - 2)
    assert not rig.connection.forced
    rig.pass_time(4)
    assert rig.connection.forced == "no data of an incomplete message for 60 s"
    assert not rig.connection.aborted


@pytest.mark.parametrize("full", [False, True])
def test_stalled_message_of_peer_that_does_not_read(full: bool) -> None:
    """The message may be slow, unless others wait for its end because memory for partial bodies is full."""
    rig = HeartbeatRig(10)
    rig.connection.parser.contents = 1
    rig.connection.read_pause.pause(OUTPUT)
    rig.connection.broker.unfinished_bodies.full = full
    rig.pass_time(MID_FRAME_S - 2, peer_sends=False)
    assert not rig.connection.forced
    rig.pass_time(4, peer_sends=False)
    assert bool(rig.connection.forced) == full
    assert not rig.connection.aborted


@pytest.mark.parametrize("state", [HANDSHAKE, CLOSING])
def test_no_heartbeats_during_handshake_and_close(state: int) -> None:
    rig = HeartbeatRig(1)
    rig.connection.close_handler.state = state
    rig.connection.parser.half_a_frame = True
    rig.pass_time(500, peer_sends=False)
    assert not rig.connection.aborted
    assert rig.connection.output.written == []


def test_one_timer_for_all_connections() -> None:
    rig = HeartbeatRig(10)
    others = [rig.add(10) for _ in range(100)]
    assert len(rig.loop.timers) == 1
    assert rig.heartbeats.open_count() == 101
    for connection in [rig.connection, *others]:
        member: Any = connection
        rig.heartbeats.remove(member)
    rig.loop.advance(1)
    assert rig.loop.timers == []
    late_connection = rig.add(2)
    rig.loop.advance(1.5)
    assert late_connection.output.written == [HEARTBEAT_FRAME]


def test_stop_and_abort_all() -> None:
    rig = HeartbeatRig(1)
    other = rig.add(0)
    rig.heartbeats.abort_all()
    assert rig.connection.aborted
    assert other.aborted
    rig.heartbeats.stop()
    rig.connection.aborted = False
    rig.loop.advance(100)
    assert not rig.connection.aborted


def test_slow_reader_is_not_dropped() -> None:
    """Output of 4 MB waits for the client, so we do not read and its heartbeats stay in the socket."""
    memory_broker = MemoryBroker()
    client = Served(memory_broker)
    client.connection.heartbeat_s = 10
    client.send(1, spec.Channel.Open())
    client.received()
    loop = Loop()
    as_loop: Any = loop
    heartbeats = Heartbeats(as_loop)
    heartbeats.add(client.connection)
    client.transport.pause_writing()
    for _ in range(20):
        client.connection.output.write(bytes(200_000))
    client.send(1, spec.Basic.Qos(prefetch_count=1))
    assert not client.socket.reading
    loop.advance(500)
    assert not client.socket.aborted
    memory_broker.end()
