"""The timeouts of the test client: without them it would wait for ever for a broker that hangs or is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest
from quickclient import HEARTBEAT, Gone, connect, method

INTERVAL_S = 0.4
TUNE = method(0x000A001E, b"\x00\x00" + b"\x00\x02\x00\x00" + b"\x00\x00", 0)
ANSWERS = {b"AMQP": method(0x000A000A, channel=0), b"tune": TUNE, b"open": method(0x000A0029, b"\x00", 0)}


class Broker:
    """A server that accepts a client and then sends nothing, except heartbeats while `talk` is set. mute: no greeting
    either.
    """

    def __init__(self) -> None:
        self.mute = False
        self.beats = 0
        self.talk = asyncio.Event()  # if set, each heartbeat is answered
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        step = iter(() if self.mute else ANSWERS.values())
        while data := await reader.read(1 << 16):
            if data == HEARTBEAT:
                self.beats += 1
                writer.write(HEARTBEAT if self.talk.is_set() else b"")
            else:
                writer.write(next(step, b""))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def broker() -> AsyncIterator[tuple[Broker, int]]:
    """Yield the server and its port."""
    server_under_test = Broker()
    async with await asyncio.start_server(server_under_test.serve, "127.0.0.1", 0) as server:
        yield server_under_test, server.sockets[0].getsockname()[1]
        server_under_test.close()


async def test_client_gives_up_on_broker_without_heartbeats(broker: tuple[Broker, int]) -> None:
    silent, port = broker
    link = await connect(port, channel=False)
    start_s = time.monotonic()
    link.beat(INTERVAL_S)
    await asyncio.wait_for(link.gone.wait(), 20)
    assert time.monotonic() - start_s >= 2 * INTERVAL_S
    assert silent.beats >= 3
    with pytest.raises(Gone, match="nothing was heard for"):
        await link.writable()


@pytest.mark.slow
async def test_client_keeps_broker_that_sends_heartbeats(broker: tuple[Broker, int]) -> None:
    answering, port = broker
    answering.talk.set()
    link = await connect(port, channel=False)
    link.beat(INTERVAL_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.gone.wait(), 5 * INTERVAL_S)
    answering.talk.clear()
    await asyncio.wait_for(link.gone.wait(), 20)


async def test_client_without_heartbeat_keeps_silent_broker(broker: tuple[Broker, int]) -> None:
    _, port = broker
    link = await connect(port, channel=False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.gone.wait(), 5 * INTERVAL_S)
    link.close()


async def test_greeting_has_shorter_timeout_than_answers(broker: tuple[Broker, int]) -> None:
    silent, port = broker
    silent.mute = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connect(port, patience_s=300, greeting_s=0.2), 20)


async def test_connect_to_unreachable_host_times_out() -> None:
    """The socket is neither accepted nor refused."""
    with socket.socket() as listener, contextlib.ExitStack() as others:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # more than the kernel's backlog
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        start_s = time.monotonic()
        with pytest.raises(TimeoutError):
            await connect(listener.getsockname()[1], greeting_s=INTERVAL_S)
        assert time.monotonic() - start_s < 20
