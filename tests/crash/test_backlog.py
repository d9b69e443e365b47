"""A backlog of a million messages: memory does not grow with it, and a start after a kill does not read it.

Run with `pytest -m on_demand -s`; the short form has 50,000 messages. Memory is the RSS of the whole process.
"""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path
from typing import Final

import pytest
from ledger import POOL
from quickclient import Message, connect, content, publish_prefix

from amqpd.testing import BrokerProcess

BODY_SIZE: Final = 1024
PROPERTIES: Final = b"\x10\x00\x02"  # delivery mode 2
UNCONFIRMED_MAX: Final = 5_000
RSS_MAX_MB: Final = 300
START_MAX_S: Final = 5.0


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no VmRSS")


def body_of(number: int) -> bytes:
    return struct.pack(">Q", number) + POOL[number % 4096 : number % 4096 + BODY_SIZE - 8]


async def publish(port: int, count: int) -> None:
    """Publish `count` messages with confirms, at most UNCONFIRMED_MAX of them unconfirmed."""
    link = await connect(port)
    await link.confirm_select()
    confirmed = 0
    confirm_arrived = asyncio.Event()

    def confirm(tag: int, multiple: bool, acked: bool) -> None:
        nonlocal confirmed
        assert acked
        confirmed = tag if multiple else confirmed + 1
        confirm_arrived.set()

    link.on_confirm = confirm
    prefix = publish_prefix("", "backlog")
    for first in range(0, count, 100):
        link.write(b"".join(prefix + content(PROPERTIES, body_of(number)) for number in range(first, first + 100)))
        await link.writable()
        while first + 100 - confirmed > UNCONFIRMED_MAX:
            confirm_arrived.clear()
            await asyncio.wait_for(confirm_arrived.wait(), 120)
    while confirmed < count:
        confirm_arrived.clear()
        await asyncio.wait_for(confirm_arrived.wait(), 120)
    link.close()
    await link.gone.wait()


async def consume(port: int, first: int, count: int, *, redelivered: bool) -> None:
    """Consume and ack the next `count` messages, and check their bodies and their order."""
    link = await connect(port)
    await link.qos(500)
    numbers: list[int] = []
    wrong: list[str] = []
    complete = asyncio.Event()

    def delivered(message: Message) -> None:
        number = first + len(numbers)
        if len(numbers) >= count:
            return
        if message.body != body_of(number) or message.redelivered != redelivered:
            wrong.append(
                f"{number}: {message.body[:8]!r}, {len(message.body)} bytes, redelivered={message.redelivered}"
            )
        numbers.append(number)
        if len(numbers) % 100 == 0 or len(numbers) == count:
            link.ack(message.tag, multiple=True)
        if len(numbers) == count:
            complete.set()

    link.on_deliver = delivered
    await link.consume("backlog")
    await asyncio.wait_for(complete.wait(), 600)
    link.close()
    await link.gone.wait()
    assert not wrong, wrong[:3]


async def backlog(data_dir: Path, count: int, sample: int, start_max_s: float) -> None:
    broker = BrokerProcess(data_dir, settings={"log.level": "warning"})
    try:
        await asyncio.to_thread(broker.start)
        assert broker.ready is not None
        pid = broker.pid
        link = await connect(broker.amqp_port)
        await link.declare_queue("backlog")
        empty_mb = rss_mb(pid)
        start_s = time.monotonic()
        publishing = asyncio.create_task(publish(broker.amqp_port, count))
        highest_mb = 0.0
        while not publishing.done():
            highest_mb = max(highest_mb, rss_mb(pid))
            await asyncio.wait((publishing,), timeout=0.1)
        await publishing
        rate = count / (time.monotonic() - start_s)
        waiting_mb = rss_mb(pid)
        assert (await link.declare_queue("backlog", passive=True))[1] == count
        await asyncio.to_thread(broker.kill)
        await link.gone.wait()

        start_s = time.monotonic()
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        accepting_s = time.monotonic() - start_s
        first = await link.get("backlog", no_ack=True)
        got_s = time.monotonic() - start_s
        assert first is not None
        assert first.body == body_of(0)
        assert not first.redelivered, "a message that was never delivered is marked as redelivered"
        assert (await link.declare_queue("backlog", passive=True))[1] == count - 1
        started_mb = rss_mb(broker.pid)
        start_s = time.monotonic()
        await consume(broker.amqp_port, 1, sample, redelivered=False)
        drain_rate = sample / (time.monotonic() - start_s)
        drained_mb = rss_mb(broker.pid)
        link.close()
        assert "Traceback" not in broker.stderr, broker.stderr
        print(
            f"\n{broker.ready.build}, {count} x {BODY_SIZE} B: {rate:.0f} published a second; "
            f"RSS {empty_mb:.0f} MB empty, {highest_mb:.0f} at most, {waiting_mb:.0f} waiting, "
            f"{started_mb:.0f} after the start, {drained_mb:.0f} after {sample} taken ({drain_rate:.0f} a second); "
            f"accepting {accepting_s:.2f} s after the start, first get {got_s:.2f} s"
        )
    finally:
        await asyncio.to_thread(broker.kill)
    assert max(highest_mb, waiting_mb, started_mb, drained_mb) <= RSS_MAX_MB
    assert accepting_s <= start_max_s


@pytest.mark.slow
async def test_backlog_of_50_000_survives_kill_within_memory_limit(tmp_path: Path) -> None:
    await backlog(tmp_path / "data", 50_000, 5_000, 10 * START_MAX_S)


@pytest.mark.on_demand
@pytest.mark.timeout(900)
async def test_backlog_of_a_million_survives_kill_within_memory_limit(tmp_path: Path) -> None:
    await backlog(tmp_path / "data", 1_000_000, 100_000, START_MAX_S)
