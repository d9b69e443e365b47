"""Figures of delayed messages: `python -P tests/limits/delays.py [COUNT [BODY_BYTES]]`, compiled, on a quiet machine.

memory   COUNT (1,000,000) messages with delays of 5 minutes to 10 hours: what the broker's resident memory grows by
due      2,000 messages a second with delays of 0.5 to 5 s, beside a publisher that sends to a plain durable queue
         as fast as it is confirmed: how late they come to their consumer
flood    100,000 due at one millisecond: how long the loop is held (processor time of one iteration), and when the
         last one has come
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
    """Persistent, with headers."""
    return b"\x30\x00" + field_table({name.replace("_", "-"): value for name, value in headers.items()}) + b"\x02"


async def declare(link: Link) -> None:
    table = field_table({"x-delayed-type": "fanout"})
    arguments = b"\x00\x00" + shortstr("later") + shortstr("x-delayed-message") + bytes([2]) + table
    await link.ask(method(0x0028000A, arguments), 0x0028000B)
    await link.declare_queue("later")
    await link.declare_queue("plain")
    await link.bind("later", "later")


class Confirmed:
    """Publishes that are confirmed."""

    def __init__(self, link: Link) -> None:
        self.sent = 0
        self.safe = 0
        self.news = asyncio.Event()
        link.on_confirm = self._confirm

    def _confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        assert acked, "a publish was refused"
        self.safe = tag if multiple else max(tag, self.safe)
        self.news.set()

    async def up_to(self, sequence: int) -> None:
        while self.safe < sequence:
            self.news.clear()
            await self.news.wait()


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
    most = before
    body = b"x" * size
    began = time.monotonic()
    chance = random.Random(1)
    for _ in range(count):
        link.write(PUBLISH + content(properties(x_delay=chance.randrange(300_000, 36_000_000)), body))
        confirmed.sent += 1
        if confirmed.sent % 1000 == 0:
            await link.writable()
            await confirmed.up_to(confirmed.sent - 20_000)
            if confirmed.sent % 20_000 == 0:
                most = max(most, rss_mb(broker.pid))
    await confirmed.up_to(count)
    took = time.monotonic() - began
    await asyncio.sleep(2)
    after = rss_mb(broker.pid)
    listed = broker.api("GET", "/api/exchanges/%2F/later", timeout_s=60)
    assert isinstance(listed, dict)
    print(
        f"memory: {count} messages of {size} bytes delayed, {count / took:.0f}/s; resident {before:.1f} MB before, "
        f"{after:.1f} after (+{after - before:.1f}), at most {most:.1f}; messages_delayed {listed['messages_delayed']}",
        flush=True,
    )
    link.close()


async def due(broker: BrokerProcess, rate: int = 2000, seconds: int = 15) -> None:
    late: list[float] = []
    came = asyncio.Event()
    wanted = rate * seconds

    def delivered(message: Message) -> None:
        late.append(time.time() * 1000 - struct.unpack(">d", message.body)[0])
        if len(late) == wanted:
            came.set()

    consumer = await connect(broker.amqp_port)
    consumer.on_deliver = delivered
    await consumer.consume("later", no_ack=True)
    load = await connect(broker.amqp_port)
    await load.confirm_select()
    flood = asyncio.create_task(_flood(load))
    link = await connect(broker.amqp_port)
    chance = random.Random(2)
    began = time.monotonic()
    for number in range(wanted):
        delay = chance.randrange(500, 5000)
        now = time.time() * 1000
        link.write(PUBLISH + content(properties(x_delay=delay), struct.pack(">d", now + delay)))
        ahead = began + number / rate - time.monotonic()
        if ahead > 0.002:
            await asyncio.sleep(ahead)
    await asyncio.wait_for(came.wait(), 60)
    flood.cancel()
    late.sort()
    plain = (await _messages(load)) / (time.monotonic() - began)
    print(
        f"due: {wanted} messages at {rate}/s beside {plain:.0f}/s plain: "
        f"late p50 {late[len(late) // 2]:.1f} ms, p99 {late[len(late) * 99 // 100]:.1f}, worst {late[-1]:.1f}, "
        f"earliest {late[0]:.1f}",
        flush=True,
    )
    for each in (consumer, load, link):
        each.close()


async def _messages(link: Link) -> int:
    return (await link.declare_queue("plain", passive=True))[1]


async def _flood(link: Link) -> None:
    confirmed = Confirmed(link)
    prefix = publish_prefix("", "plain")
    one = prefix + content(DURABLE, b"y" * 1024)
    while True:
        link.write(one * 100)
        confirmed.sent += 100
        await link.writable()
        await confirmed.up_to(confirmed.sent - 1000)


async def flood(broker: BrokerProcess, notes: Path, count: int = 100_000) -> None:
    came = 0
    last = asyncio.Event()

    def delivered(_: Message) -> None:
        nonlocal came
        came += 1
        if came == count:
            last.set()

    link = await connect(broker.amqp_port)
    await link.confirm_select()
    confirmed = Confirmed(link)
    at = int(time.time() * 1000) + 25_000
    one = PUBLISH + content(properties(x_deliver_at=at), b"z" * 100)
    for _ in range(count // 100):
        link.write(one * 100)
        confirmed.sent += 100
        await link.writable()
        await confirmed.up_to(confirmed.sent - 10_000)
    await confirmed.up_to(count)
    print(f"flood: published {(at / 1000 - time.time()):.1f} s ahead", flush=True)
    consumer = await connect(broker.amqp_port)
    consumer.on_deliver = delivered
    await consumer.consume("later", no_ack=True)
    await asyncio.sleep(max(0.0, at / 1000 - time.time() - 1))
    begin = notes.with_suffix(".begin")
    begin.touch()
    await asyncio.wait_for(last.wait(), 120)
    held = notes.read_text()  # noqa: ASYNC240  # nobody waits for this program
    print(
        f"flood: {count} due at one moment: the last came after {time.time() - at / 1000:.2f} s; the loop was held for "
        f"{float(held):.1f} ms at most",
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
