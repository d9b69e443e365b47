"""A login whose check raises an unexpected exception: the client gets 403 or a closed socket, the log the reason."""

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
def memory_broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    auth: Any = BrokenAuth()
    broker.broker.auth = auth
    yield broker
    broker.end()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits nothing. Its exception is ignored, as with a task."""
    with contextlib.suppress(Exception):
        coroutine.send(None)


def log_in(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, **capabilities: bool
) -> tuple[Socket, list[Any]]:
    """Return the socket after start-ok, and the timers that were set."""
    timers: list[Any] = []
    monkeypatch.setattr(memory_broker.loop, "create_task", run, raising=False)
    loop: Any = memory_broker.loop
    transport = Transport(memory_broker.broker, memory_broker.connections, Heartbeats(loop), False)
    call_later = memory_broker.loop.call_later
    monkeypatch.setattr(
        memory_broker.loop,
        "call_later",
        lambda delay_s, call: timers.append((delay_s, call)) or call_later(delay_s, call),
    )
    socket: Any = Socket()
    transport.connection_made(socket)
    start_ok = spec.Connection.StartOk(
        client_properties={"capabilities": dict(capabilities)}, mechanism="PLAIN", response="\0anna\0secret"
    )
    transport.data_received(b"AMQP\x00\x00\x09\x01" + pamqp.frame.marshal(start_ok, 0))
    memory_broker.settle()
    return socket, timers


def test_client_with_authentication_failure_close_gets_403(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    socket, _ = log_in(memory_broker, monkeypatch, authentication_failure_close=True)
    size, _, _start = pamqp.frame.unmarshal(socket.data)
    _, channel, close = pamqp.frame.unmarshal(socket.data[size:])
    assert (channel, close.name, close.reply_code) == (0, "Connection.Close", 403)
    (record,) = [record for record in caplog.records if record.exc_info is not None]
    assert "login refused, because the check failed" in record.getMessage()


def test_other_client_is_closed_after_penalty(memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    socket, timers = log_in(memory_broker, monkeypatch)
    delay_s, finish = timers[-1]
    assert delay_s == PENALTY_S
    assert not socket.ended
    finish()
    assert socket.ended
