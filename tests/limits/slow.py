"""A consumer with a fixed rate, a witness, and measurements of the broker and the machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from quickclient import Link, Message, connect, method, shortstr

RATE: Final = 100
BOUND_MS: Final = 50.0
LAX_MS: Final = 500.0


def anon_mb(pid: int) -> float:
    """Return the anonymous resident memory. Segments are in the page cache and are not included."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no RssAnon")


def cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)]


async def declare(link: Link, queue: str, *, durable: bool, ttl_ms: int = 0) -> None:
    arguments = table({"x-message-ttl": ttl_ms} if ttl_ms else {})
    bits = bytes([durable << 1])
    await link.ask(method(0x0032000A, b"\x00\x00" + shortstr(queue) + bits + arguments), 0x0032000B)


def table(arguments: Mapping[str, int | str]) -> bytes:
    """Return a field table of numbers and texts."""
    entries = b""
    for name, value in arguments.items():
        entries += shortstr(name)
        if isinstance(value, int):
            entries += b"I" + struct.pack(">i", value)
        else:
            entries += b"S" + struct.pack(">I", len(value)) + value.encode()
    return struct.pack(">I", len(entries)) + entries


async def round_trips(port: int, seconds: float) -> list[float]:
    """Make RATE round trips a second. Return their durations in milliseconds, in order of arrival."""
    link = await connect(port)
    name, _, _ = await link.declare_queue("", durable=False, exclusive=True)
    round_trips_ms: list[float] = []
    due: list[float] = []

    def delivered(message: Message) -> None:
        round_trips_ms.append((time.monotonic() - due[int(message.body)]) * 1000)

    link.on_deliver = delivered
    await link.consume(name, no_ack=True)
    started = time.monotonic()
    for number in range(int(seconds * RATE)):
        at = started + number / RATE
        due.append(at)
        wait = at - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        link.publish("", name, b"\x00\x00", b"%d" % number)
    deadline = time.monotonic() + 60
    while len(round_trips_ms) < len(due) and time.monotonic() < deadline:  # noqa: ASYNC110  # the last ones; not measured
        await asyncio.sleep(0.01)
    link.close()
    await link.gone.wait()
    assert len(round_trips_ms) == len(due), (
        f"{len(due) - len(round_trips_ms)} of {len(due)} messages were not delivered"
    )
    return round_trips_ms


class SlowConsumer:
    """Acks RATE messages a second, one by one.

    `waits_ms`: the time from each ack to the next delivery. The queue is never empty, so this is the time from the
    queue's head to delivery.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.taken: list[tuple[int, int]] = []  # (publisher, number) in the order of delivery
        self.waits_ms: list[float] = []
        self.at_s: list[float] = []  # times of these acks
        self.redelivered = 0
        self._unacked: deque[int] = deque()
        self._acked_at: deque[float] = deque()
        self._changed = asyncio.Event()
        link.on_deliver = self._deliver

    def _deliver(self, message: Message) -> None:
        self.taken.append((int(message.body[:8]), int(message.body[8:16])))
        self.redelivered += message.redelivered
        self._unacked.append(message.tag)
        if self._acked_at:
            acked = self._acked_at.popleft()
            self.waits_ms.append((time.monotonic() - acked) * 1000)
            self.at_s.append(acked)
        self._changed.set()

    async def consume(self, queue: str, prefetch: int, seconds: float) -> None:
        await self.link.qos(prefetch)
        await self.link.consume(queue)
        started = time.monotonic()
        number = 0
        end = started + seconds
        while time.monotonic() < end:
            # The first acks wait until the window is full, so that each later delivery follows an ack.
            while not self._unacked or (not number and len(self._unacked) < prefetch):
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), end - time.monotonic())
                except TimeoutError:
                    return
            due = started + number / RATE
            number += 1
            wait = due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            elif wait < -1 / RATE:
                started -= wait  # the consumer was delayed and does not catch up
            self._acked_at.append(time.monotonic())
            self.link.ack(self._unacked.popleft())


@contextlib.asynccontextmanager
async def flooding(
    port: int, queue: str, kind: str, seconds: float, *, size: int = 1024, links: int = 1, window: int = 0
) -> AsyncIterator[dict[str, Any]]:
    """Run flood.py. At the end the yielded dictionary holds its report."""
    arguments = [str(each) for each in (port, queue, kind, size, links, window, seconds)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(Path(__file__).with_name("flood.py")), *arguments, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    report: dict[str, Any] = {}
    try:
        assert await process.stdout.readline() == b"ready\n", "the publishers did not begin"
        yield report
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, "the publishers failed"
        report.update(json.loads(line))
        assert "gone" not in report, report
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Machine:
    """Measures the broker's memory, the wake-up delay of the machine, and the broker's share of a processor.

    A wait measured from outside passes two processes that a busy machine wakes late. The bound allows for that.
    """

    def __init__(self, pid: int) -> None:
        self.peak_mb = 0.0
        self._pid = pid
        self._late_ms: list[float] = []
        self._slowed = 1.0

    async def watch(self, seconds: float) -> None:
        started, before_s = time.monotonic(), cpu_s(self._pid)
        end = started + seconds
        due = time.monotonic()
        while due < end:
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            self._late_ms.append((time.monotonic() - due) * 1000)
            if len(self._late_ms) % 10 == 1:
                self.peak_mb = max(self.peak_mb, anon_mb(self._pid))
        self._slowed = max(1.0, (time.monotonic() - started) / max(cpu_s(self._pid) - before_s, 0.01))

    @property
    def late_ms(self) -> float:
        """The 99th percentile of the wake-up delay."""
        return percentile(self._late_ms, 0.99)

    def bound_ms(self, *, strict: bool, flooded: bool = False) -> float:
        """Return the bound of a 99th percentile: the promised one if strict, else one for a machine with other load.

        A flooded broker is always busy, so with half a processor its turns take twice as long.
        """
        lax_ms = LAX_MS * self._slowed if flooded else LAX_MS
        return (BOUND_MS if strict else lax_ms) + 3 * self.late_ms

    @property
    def worst_ms(self) -> float:
        """The longest wake-up delay."""
        return max(self._late_ms)
