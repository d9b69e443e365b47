"""Measure queue jobs: `python tests/broker/measure_jobs.py [MESSAGES] [VERB]`.

It uses the amqpd that is importable. It is not a test: the figures depend on the machine.

Fill a durable queue with messages of 1 KiB (a million), every other one with its own message id, and move, copy,
delete or redrive them. Another connection publishes and consumes 200 messages per second meanwhile. Output: the rate,
processor time, the broker's memory before and at its highest, the latency of the other connection, and the longest
calls of the broker's loop (held_broker.py).
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pika

from amqpd.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))

from quickclient import Link, Message, connect, content, publish_prefix

BODY: Final = b"x" * 1024
PROBE_S: Final = 0.005


def memory(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text("ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def processor_s(broker: BrokerProcess) -> float:
    """Return the processor time of all threads so far."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def properties(number: int, verb: str) -> bytes:
    """Return persistent properties. Every other message has a message id; for redrive each has an x-death header."""
    flags, fields = 0x1000, b"\x02"
    if verb == "redrive":
        death = {"count": 1, "queue": "target", "reason": "rejected", "exchange": "", "routing-keys": ["target"]}
        encoded: Any = pika.BasicProperties(headers={"x-death": [death]}).encode()
        return struct.pack(">H", 0x3000) + b"".join(encoded)[2:] + b"\x02"
    if number % 2:
        flags |= 0x0080
        fields += b"\x0c%012d" % number
    return struct.pack(">H", flags) + fields


async def fill(port: int, count: int, verb: str) -> None:
    link = await connect(port)
    prefix = publish_prefix("", "source")
    for start in range(0, count, 500):
        parts = [prefix + content(properties(number, verb), BODY) for number in range(start, min(start + 500, count))]
        link.write(b"".join(parts))
        await link.writable()
    await link.confirm_select()
    confirmed = asyncio.Event()
    link.on_confirm = lambda *_: confirmed.set()
    link.publish("", "none", b"\x10\x00\x02", b"")
    await confirmed.wait()
    link.close()


class Probe:
    """Publish to its own queue and consume from it. Record the latency of each message in milliseconds."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self._sent: dict[bytes, float] = {}

    def delivered(self, message: Message) -> None:
        self.latencies_ms.append((time.perf_counter() - self._sent.pop(message.body)) * 1000)

    async def run(self, link: Link, stop: asyncio.Event) -> None:
        link.on_deliver = self.delivered
        await link.consume("probe", no_ack=True)
        number = 0
        while not stop.is_set():
            body = b"%d" % number
            self._sent[body] = time.perf_counter()
            link.write(publish_prefix("", "probe") + content(b"\x10\x00\x02", body))
            number += 1
            await asyncio.sleep(PROBE_S)
        await asyncio.sleep(0.2)


async def measure(broker: BrokerProcess, count: int, verb: str) -> None:
    await fill(broker.amqp_port, count, verb)
    while True:
        queue: Any = await asyncio.to_thread(broker.api, "GET", "/api/queues/%2F/source")
        if queue["messages"] == count:
            break
        await asyncio.sleep(0.2)
    await asyncio.sleep(2)
    probe, stop = Probe(), asyncio.Event()
    link = await connect(broker.amqp_port)
    probing = asyncio.create_task(probe.run(link, stop))
    await asyncio.sleep(2)
    before, quiet = memory(broker), sorted(probe.latencies_ms)
    probe.latencies_ms.clear()
    highest, processor = before, processor_s(broker)
    body: dict[str, object] = {"action": verb}
    if verb in ("move", "copy"):
        body["to_queue"] = "target"
    job: Any = await asyncio.to_thread(broker.api, "POST", "/api/queues/%2F/source/jobs", body)
    while job["ended"] is None:
        job = await asyncio.to_thread(broker.api, "GET", f"/api/amqpd/jobs/{job['id']}?wait_ms=100")
        highest = max(highest, memory(broker))
    processor = processor_s(broker) - processor
    stop.set()
    await probing
    latencies_ms = sorted(probe.latencies_ms)
    took_s = (job["ended"] - job["begun"]) / 1000
    print(f"{verb}: {job['done']} in {took_s:.2f} s, {job['done'] / took_s:,.0f} a second ({job['state']})")
    print(f"processor: {processor / job['done'] * 1e6:.1f} us a message, all threads")
    print(f"memory: {before / 2**20:.0f} MiB before, {highest / 2**20:.0f} MiB at its highest")
    for name, each in (("before", quiet), ("meanwhile", latencies_ms)):
        middle, late, last = each[len(each) // 2], each[len(each) * 99 // 100], each[-1]
        print(f"others wait, {name}: median {middle:.1f} ms, p99 {late:.1f} ms, longest {last:.1f} ms")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    verb = sys.argv[2] if len(sys.argv) > 2 else "move"
    with TemporaryDirectory() as directory:
        held = Path(directory, "held")
        script = str(Path(__file__).with_name("held_broker.py"))
        with BrokerProcess(Path(directory, "data"), command=[sys.executable, "-P", script, str(held)]) as broker:
            run(broker, count, verb)
        print(held.read_text("utf-8"), end="")


def run(broker: BrokerProcess, count: int, verb: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    for name in ("source", "target"):
        channel.queue_declare(name, durable=True)
    channel.queue_declare("probe", exclusive=False)
    connection.close()
    asyncio.run(measure(broker, count, verb))


if __name__ == "__main__":
    main()
