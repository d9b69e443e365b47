"""Draining a long backlog from the disk does not delay other clients.

The segments are dropped from the page cache. Then one consumer takes all messages while the witness of
`test_misbehaviour.py` makes 100 round trips a second on its own queue. The loop reads only cached pages: another
thread has fetched them (storage/worker.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import pytest
from misbehave import fill
from quickclient import Link, Message, connect
from slow import Machine, percentile
from test_misbehaviour import round_trips

from amqpd.testing import BrokerProcess

ATTEMPTS: Final = 3
SIZE: Final = 4096
SHORT_BYTES: Final = 96 << 20
LONG_BYTES: Final = 2 << 30


def drop_from_page_cache(data_dir: Path) -> int:
    """Sync and drop all segments from the page cache. Return their size in bytes."""
    size = 0
    for path in (data_dir / "vhosts").rglob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(fd).st_size
        finally:
            os.close(fd)
    return size


class DrainingConsumer:
    """Consumes all messages with prefetch 500 and acks every hundredth with multiple=true."""

    def __init__(self, link: Link, count: int) -> None:
        self.link = link
        self.count = count
        self.bodies = 0
        self.in_order = True
        self.done = asyncio.Event()
        self._last = 0
        link.on_deliver = self._deliver

    def _deliver(self, message: Message) -> None:
        self.in_order = self.in_order and message.tag == self._last + 1 and len(message.body) == SIZE
        self._last = message.tag
        self.bodies += 1
        if message.tag % 100 == 0 or self.bodies == self.count:
            self.link.ack(message.tag, multiple=True)
        if self.bodies == self.count:
            self.done.set()


async def drain(data_dir: Path, size_bytes: int, *, strict: bool = False) -> float:
    """Return the 99th percentile of the witness's round trips divided by its bound."""
    count = size_bytes // SIZE
    broker = BrokerProcess(data_dir, settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        await fill(broker.amqp_port, "backlog", count, SIZE)
        await asyncio.to_thread(broker.stop)
        dropped = drop_from_page_cache(data_dir)
        assert dropped > size_bytes
        await asyncio.to_thread(broker.start)
        alone = await round_trips(broker.amqp_port, 1.0)
        link = await connect(broker.amqp_port)
        await link.qos(500)
        consumer = DrainingConsumer(link, count)
        started = time.monotonic()
        machine = Machine(broker.pid)
        seconds = max(1.5, size_bytes / 400e6)
        watching = asyncio.create_task(machine.watch(seconds))
        witness = asyncio.create_task(round_trips(broker.amqp_port, seconds))
        await link.consume("backlog")
        await asyncio.wait_for(consumer.done.wait(), 240)
        elapsed_s = time.monotonic() - started
        round_trips_ms = await witness
        await watching
        assert consumer.in_order
        _, left, _ = await link.declare_queue("backlog", passive=True)
        assert left == 0
        link.close()
        await link.gone.wait()
        print(
            f"\n{dropped >> 20} MiB from the disk in {elapsed_s:.1f} s ({dropped / elapsed_s / 1e6:.0f} MB/s); "
            f"the witness: p50 {percentile(round_trips_ms, 0.5):.1f}, p99 {percentile(round_trips_ms, 0.99):.1f}, "
            f"worst {max(round_trips_ms):.1f} ms; alone p99 "
            f"{percentile(alone, 0.99):.1f} ms, the machine's own delay {machine.late_ms:.1f} ms; RssAnon "
            f"{machine.peak_mb:.0f} MB"
        )
        assert "Traceback" not in broker.stderr, broker.stderr
        assert machine.peak_mb < 200
        return percentile(round_trips_ms, 0.99) / machine.bound_ms(strict=strict)
    finally:
        await asyncio.to_thread(broker.kill)


async def test_draining_cold_backlog_does_not_delay_others(tmp_path: Path) -> None:
    best = 1e9
    for attempt in range(ATTEMPTS):
        best = min(best, await drain(tmp_path / f"data{attempt}", SHORT_BYTES))
        if best < 1:
            break
    assert best < 1, f"the witness's 99th percentile is {best:.1f} times what it may be"


@pytest.mark.compiled_only
@pytest.mark.on_demand
async def test_draining_cold_backlog_of_2_gib_does_not_delay_others(tmp_path: Path) -> None:
    assert await drain(tmp_path / "data", LONG_BYTES, strict=True) < 1


async def test_expired_messages_of_cold_backlog_are_not_delivered(tmp_path: Path) -> None:
    """Expiry is known only after the disk has answered. Messages behind the expired ones are delivered."""
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error"})
    count = 3000
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        await link.declare_queue("mixed")
        await link.confirm_select()
        confirmed = asyncio.Event()
        link.on_confirm = lambda tag, _multiple, _acked: confirmed.set() if tag == 2 * count else None
        short = b"\x11\x00\x02\x011"  # persistent, expiration 1 ms
        for number in range(2 * count):
            link.publish("", "mixed", short if number < count else b"\x10\x00\x02", b"%08d" % number + bytes(SIZE - 8))
            await link.writable()
        await asyncio.wait_for(confirmed.wait(), 60)
        await asyncio.to_thread(broker.stop)
        assert drop_from_page_cache(tmp_path / "data") > count * SIZE
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        await link.qos(100)
        received: list[bytes] = []
        done = asyncio.Event()

        def deliver(message: Message) -> None:
            received.append(message.body[:8])
            link.ack(message.tag)
            if len(received) == count:
                done.set()

        link.on_deliver = deliver
        await link.consume("mixed")
        await asyncio.wait_for(done.wait(), 60)
        assert received == [b"%08d" % number for number in range(count, 2 * count)]
        message = await link.get("mixed")
        assert message is None
        link.close()
        await link.gone.wait()
    finally:
        await asyncio.to_thread(broker.kill)
