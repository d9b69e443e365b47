"""A TCP proxy that resets its connections after a given number of bytes in either direction.

Bytes are counted over all connections since `begin`, per direction. At a cut the bytes before it are forwarded and both
sides are reset. Later connections work until the next cut. `hold` makes existing connections forward nothing, without
closing them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

TO_BROKER = "to the broker"
FROM_BROKER = "from the broker"


class TcpProxy:
    """Listens at `port` and forwards to `target`. passed: bytes in each direction. cuts: the number of cuts."""

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        self.port = port
        self.target = target
        self.passed = {TO_BROKER: 0, FROM_BROKER: 0}
        self.cuts = 0
        self._points: dict[str, list[int]] = {TO_BROKER: [], FROM_BROKER: []}
        self._gates: list[asyncio.Event] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, to_broker: list[int] | None = None, from_broker: list[int] | None = None) -> None:
        """Reset the counters, and cut once at each of these byte counts."""
        self.passed = {TO_BROKER: 0, FROM_BROKER: 0}
        self._points = {TO_BROKER: sorted(to_broker or []), FROM_BROKER: sorted(from_broker or [])}
        self.cuts = 0

    def hold(self) -> int:
        """Let open connections forward nothing more. Return their number."""
        held = sum(gate.is_set() for gate in self._gates)
        for gate in self._gates:
            gate.clear()
        return held

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to, back = await asyncio.open_connection(*self.target)
        except OSError:
            return
        gate = asyncio.Event()
        gate.set()
        self._gates.append(gate)
        ways = [
            asyncio.ensure_future(self._pass_on(reader, back, TO_BROKER, gate)),
            asyncio.ensure_future(self._pass_on(to, writer, FROM_BROKER, gate)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._gates.remove(gate)
            back.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str, gate: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await gate.wait()
                points = self._points[way]
                before = self.passed[way]
                if points and before + len(data) >= points[0]:
                    data = data[: points.pop(0) - before]
                    self.cuts += 1
                    self.passed[way] += len(data)
                    if data:
                        writer.write(data)
                        await writer.drain()
                        await asyncio.sleep(0.01)  # the bytes must arrive before the reset
                    return
                self.passed[way] += len(data)
                writer.write(data)
                await writer.drain()
