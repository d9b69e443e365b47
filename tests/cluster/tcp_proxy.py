"""A TCP proxy that ends its connections where a test wants it: after so many bytes, in either direction.

Bytes are counted over all connections since `begin`, each direction by itself. At a cut what belongs before it is
passed on, and both sides are reset; connections that come later are passed on as if nothing had been, up to the next
cut. `hold` lets those that there are pass nothing more, and nobody is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

TO_BROKER = "to the broker"
FROM_BROKER = "from the broker"


class TcpProxy:
    """Listens at `port`, passes on to `target`. passed: bytes in each direction. cuts: so many connections were."""

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
        """Counts from 0 again, and cuts after so many bytes in that direction; each point once."""
        self.passed = {TO_BROKER: 0, FROM_BROKER: 0}
        self._points = {TO_BROKER: sorted(to_broker or []), FROM_BROKER: sorted(from_broker or [])}
        self.cuts = 0

    def hold(self) -> int:
        """Connections that are open pass nothing more on. Returns how many there are."""
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
                        await asyncio.sleep(0.01)  # what was passed on arrives before the reset does
                    return
                self.passed[way] += len(data)
                writer.write(data)
                await writer.drain()
