"""A login whose check raises what nobody expects: the client hears 403, or a closed socket, and the log why."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import MemoryBroker
from served import Socket

from amqpd.connection.channel_zero import PENALTY_S
from amqpd.connection.heartbeat import Heartbeats
from amqpd.connection.transport import Transport


class BrokenAuth:
    async def authenticate(self, name: str, password: bytes, from_loopback: bool) -> None:
        raise ZeroDivisionError("the backend is broken")


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    made = MemoryBroker()
    auth: Any = BrokenAuth()
    made.broker.auth = auth
    yield made
    made.end()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """A task whose coroutine waits for nothing; what it raises is heard by nobody, as a task's is."""
    with contextlib.suppress(Exception):
        coroutine.send(None)


def log_in(house: MemoryBroker, monkeypatch: pytest.MonkeyPatch, **capabilities: bool) -> tuple[Socket, list[Any]]:
    """The socket after start-ok, and the timers that were set."""
    timers: list[Any] = []
    monkeypatch.setattr(house.loop, "create_task", run, raising=False)
    loop: Any = house.loop
    transport = Transport(house.broker, house.connections, Heartbeats(loop), False)
    call_later = house.loop.call_later
    monkeypatch.setattr(
        house.loop, "call_later", lambda delay_s, call: timers.append((delay_s, call)) or call_later(delay_s, call)
    )
    socket: Any = Socket()
    transport.connection_made(socket)
    start_ok = spec.Connection.StartOk(
        client_properties={"capabilities": dict(capabilities)}, mechanism="PLAIN", response="\0anna\0secret"
    )
    transport.data_received(b"AMQP\x00\x00\x09\x01" + pamqp.frame.marshal(start_ok, 0))
    house.settle()
    return socket, timers


def test_who_asked_for_it_hears_403(
    house: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    socket, _ = log_in(house, monkeypatch, authentication_failure_close=True)
    size, _, _start = pamqp.frame.unmarshal(socket.data)
    _, channel, close = pamqp.frame.unmarshal(socket.data[size:])
    assert (channel, close.name, close.reply_code) == (0, "Connection.Close", 403)
    (told,) = [record for record in caplog.records if record.exc_info is not None]
    assert "login refused, because the check failed" in told.getMessage()


def test_others_are_closed_after_the_penalty(house: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    socket, timers = log_in(house, monkeypatch)
    delay_s, finish = timers[-1]
    assert delay_s == PENALTY_S
    assert not socket.ended
    finish()
    assert socket.ended
