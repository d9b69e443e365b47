"""The client's patience, without which it would wait for ever for a broker that stands still or is cut off."""

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
    """It lets a client in, and says nothing more of itself. mute: nor that."""

    def __init__(self) -> None:
        self.mute = False
        self.beats = 0
        self.talk = asyncio.Event()  # a heartbeat for each that comes
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
    """And its port."""
    made = Broker()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        yield made, server.sockets[0].getsockname()[1]
        made.close()


async def test_a_broker_that_stands_still_is_left(broker: tuple[Broker, int]) -> None:
    still, port = broker
    link = await connect(port, channel=False)
    began = time.monotonic()
    link.beat(INTERVAL_S)
    await asyncio.wait_for(link.gone.wait(), 20)
    assert time.monotonic() - began >= 2 * INTERVAL_S
    assert still.beats >= 3
    with pytest.raises(Gone, match="nothing was heard for"):
        await link.writable()


@pytest.mark.slow
async def test_one_that_beats_is_not(broker: tuple[Broker, int]) -> None:
    alive, port = broker
    alive.talk.set()
    link = await connect(port, channel=False)
    link.beat(INTERVAL_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.gone.wait(), 5 * INTERVAL_S)
    alive.talk.clear()
    await asyncio.wait_for(link.gone.wait(), 20)


async def test_who_does_not_beat_waits(broker: tuple[Broker, int]) -> None:
    _, port = broker
    link = await connect(port, channel=False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.gone.wait(), 5 * INTERVAL_S)
    link.close()


async def test_a_greeting_is_not_waited_for_as_long_as_an_answer(broker: tuple[Broker, int]) -> None:
    still, port = broker
    still.mute = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connect(port, patience_s=300, greeting_s=0.2), 20)


async def test_a_host_that_is_cut_off_is_not_waited_for() -> None:
    """Nobody takes the socket, and nobody refuses it."""
    with socket.socket() as full, contextlib.ExitStack() as others:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # what the kernel takes for it, and more
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await connect(full.getsockname()[1], greeting_s=INTERVAL_S)
        assert time.monotonic() - began < 20
