"""Figures of delayed messages: `python -P tests/limits/delays.py [COUNT [BODY_BYTES]]`, compiled, on a quiet machine.

memory: COUNT (1,000,000) messages with delays of 5 minutes to 10 hours; growth of the broker's resident memory.

due: 2,000 messages a second with delays of 0.5 to 5 s, and their lateness at the consumer. Next to them a publisher
sends to a plain durable queue as fast as it is confirmed.

flood: 100,000 messages due at one millisecond; the longest loop iteration in processor time, and the arrival of the
last one.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent / "crash")]

from pamqp.encode import field_table  # noqa: E402
from quickclient import Link, Message, connect, content, method, publish_prefix, shortstr  # noqa: E402

from amqpd.testing import BrokerProcess  # noqa: E402

DURABLE = b"\x10\x00\x02"
PUBLISH = publish_prefix("later", "")


def properties(**headers: int) -> bytes:
    """Return the properties of a persistent message with these headers."""
    return b"\x30\x00" + field_table({name.replace("_", "-"): value for name, value in headers.items()}) + b"\x02"


async def declare(link: Link) -> None:
    table = field_table({"x-delayed-type": "fanout"})
    arguments = b"\x00\x00" + shortstr("later") + shortstr("x-delayed-message") + bytes([2]) + table
    await link.ask(method(0x0028000A, arguments), 0x0028000B)
    await link.declare_queue("later")
    await link.declare_queue("plain")
    await link.bind("later", "later")


class Confirmed:
    """Counts publishes and their confirms on a connection."""

    def __init__(self, link: Link) -> None:
        self.sent = 0
        self.confirmed_tag = 0
        self.changed = asyncio.Event()
        link.on_confirm = self._confirm

    def _confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        assert acked, "a publish was refused"
        self.confirmed_tag = tag if multiple else max(tag, self.confirmed_tag)
        self.changed.set()

    async def wait_for(self, sequence: int) -> None:
        while self.confirmed_tag < sequence:
            self.changed.clear()
            await self.changed.wait()


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise LookupError("RssAnon")


async def memory(broker: BrokerProcess, count: int, size: int) -> None:
    link = await connect(broker.amqp_port)
    await declare(link)
    await link.confirm_select()
    confirmed = Confirmed(link)
    before = rss_mb(broker.pid)
    peak = before
    body = b"x" * size
    started = time.monotonic()
    randomness = random.Random(1)
    for _ in range(count):
        link.write(PUBLISH + content(properties(x_delay=randomness.randrange(300_000, 36_000_000)), body))
        confirmed.sent += 1
        if confirmed.sent % 1000 == 0:
            await link.writable()
            await confirmed.wait_for(confirmed.sent - 20_000)
            if confirmed.sent % 20_000 == 0:
                peak = max(peak, rss_mb(broker.pid))
    await confirmed.wait_for(count)
    elapsed_s = time.monotonic() - started
    await asyncio.sleep(2)
    after = rss_mb(broker.pid)
    listed = broker.api("GET", "/api/exchanges/%2F/later", timeout_s=60)
    assert isinstance(listed, dict)
    print(
        f"memory: {count} messages of {size} bytes delayed, {count / elapsed_s:.0f}/s; resident {before:.1f} MB "
        f"before, {after:.1f} after (+{after - before:.1f}), at most {peak:.1f}; "
        f"messages_delayed {listed['messages_delayed']}",
        flush=True,
    )
    link.close()


async def due(broker: BrokerProcess, rate: int = 2000, seconds: int = 15) -> None:
    late_ms: list[float] = []
    all_received = asyncio.Event()
    count = rate * seconds

    def delivered(message: Message) -> None:
        late_ms.append(time.time() * 1000 - struct.unpack(">d", message.body)[0])
        if len(late_ms) == count:
            all_received.set()

    consumer = await connect(broker.amqp_port)
    consumer.on_deliver = delivered
    await consumer.consume("later", no_ack=True)
    load = await connect(broker.amqp_port)
    await load.confirm_select()
    flood = asyncio.create_task(_flood(load))
    link = await connect(broker.amqp_port)
    randomness = random.Random(2)
    started = time.monotonic()
    for number in range(count):
        delay = randomness.randrange(500, 5000)
        now = time.time() * 1000
        link.write(PUBLISH + content(properties(x_delay=delay), struct.pack(">d", now + delay)))
        wait_s = started + number / rate - time.monotonic()
        if wait_s > 0.002:
            await asyncio.sleep(wait_s)
    await asyncio.wait_for(all_received.wait(), 60)
    flood.cancel()
    late_ms.sort()
    plain = (await _messages(load)) / (time.monotonic() - started)
    print(
        f"due: {count} messages at {rate}/s beside {plain:.0f}/s plain: "
        f"late p50 {late_ms[len(late_ms) // 2]:.1f} ms, "
        f"p99 {late_ms[len(late_ms) * 99 // 100]:.1f}, worst {late_ms[-1]:.1f}, "
        f"earliest {late_ms[0]:.1f}",
        flush=True,
    )
    for each in (consumer, load, link):
        each.close()


async def _messages(link: Link) -> int:
    return (await link.declare_queue("plain", passive=True))[1]


async def _flood(link: Link) -> None:
    confirmed = Confirmed(link)
    prefix = publish_prefix("", "plain")
    message = prefix + content(DURABLE, b"y" * 1024)
    while True:
        link.write(message * 100)
        confirmed.sent += 100
        await link.writable()
        await confirmed.wait_for(confirmed.sent - 1000)


async def flood(broker: BrokerProcess, notes: Path, count: int = 100_000) -> None:
    received_count = 0
    last = asyncio.Event()

    def delivered(_: Message) -> None:
        nonlocal received_count
        received_count += 1
        if received_count == count:
            last.set()

    link = await connect(broker.amqp_port)
    await link.confirm_select()
    confirmed = Confirmed(link)
    at = int(time.time() * 1000) + 25_000
    message = PUBLISH + content(properties(x_deliver_at=at), b"z" * 100)
    for _ in range(count // 100):
        link.write(message * 100)
        confirmed.sent += 100
        await link.writable()
        await confirmed.wait_for(confirmed.sent - 10_000)
    await confirmed.wait_for(count)
    print(f"flood: published {(at / 1000 - time.time()):.1f} s ahead", flush=True)
    consumer = await connect(broker.amqp_port)
    consumer.on_deliver = delivered
    await consumer.consume("later", no_ack=True)
    await asyncio.sleep(max(0.0, at / 1000 - time.time() - 1))
    reset_file = notes.with_suffix(".begin")
    reset_file.touch()
    await asyncio.wait_for(last.wait(), 120)
    longest_ms = notes.read_text()  # noqa: ASYNC240  # no other task runs
    print(
        f"flood: {count} due at one moment: the last came after {time.time() - at / 1000:.2f} s; the loop was held for "
        f"{float(longest_ms):.1f} ms at most",
        flush=True,
    )


async def run() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with tempfile.TemporaryDirectory() as directory:
        notes = Path(directory) / "notes"
        command = [sys.executable, "-P", str(FOLDER / "held.py"), str(notes)]
        with BrokerProcess(Path(directory) / "data", command=command) as broker:
            if count:
                await memory(broker, count, size)
            await due(broker)
            await flood(broker, notes)


if __name__ == "__main__":
    asyncio.run(run())
