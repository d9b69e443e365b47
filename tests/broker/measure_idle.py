"""Measure the processor time of an idle broker: `python tests/broker/measure_idle.py [SECONDS]`.

It uses the amqpd that is importable. It is not a test: the figures depend on the machine.

There are three measurements: an empty broker; 1,000 durable queues with 100,000 messages; the same after a restart.
The queues have a TTL of two hours. Each message has its own expiration of one to two hours. Processor time is
that of all threads in nanoseconds, from the kernel's scheduler.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pika

from amqpd.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))

from quickclient import connect, content, publish_prefix

QUEUES: Final = 1000
MESSAGES: Final = 100_000
HOUR_MS: Final = 3_600_000


def processor_ns(broker: BrokerProcess) -> int:
    tasks = Path(f"/proc/{broker.pid}/task")
    return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks.iterdir())


def measure_idle(broker: BrokerProcess, label: str, seconds: float) -> None:
    time.sleep(5)  # work after the fill or the start ends
    before, started = processor_ns(broker), time.monotonic()
    time.sleep(seconds)
    share = (processor_ns(broker) - before) / 1e9 / (time.monotonic() - started)
    print(f"{label}: {100 * share:.2f} % of a processor", flush=True)


async def fill(broker: BrokerProcess) -> None:
    link = await connect(broker.amqp_port)
    prefixes = [publish_prefix("", f"ttl-{number}") for number in range(QUEUES)]
    for number in range(MESSAGES):
        expiration = b"%d" % (HOUR_MS + number * 36)
        properties = struct.pack(">HBB", 0x1100, 2, len(expiration)) + expiration
        link.write(prefixes[number % QUEUES] + content(properties, b"x" * 100))
        if number % 500 == 499:
            await link.writable()
    while True:
        overview: Any = await asyncio.to_thread(broker.api, "GET", "/api/overview")
        if overview["queue_totals"].get("messages") == MESSAGES:
            break
        await asyncio.sleep(0.5)
    link.close()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with TemporaryDirectory() as directory:
        with BrokerProcess(Path(directory)) as broker:
            measure_idle(broker, "nothing in it", seconds)
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            channel = connection.channel()
            for number in range(QUEUES):
                channel.queue_declare(f"ttl-{number}", durable=True, arguments={"x-message-ttl": 2 * HOUR_MS})
            connection.close()
            asyncio.run(fill(broker))
            measure_idle(
                broker, f"{QUEUES:,} queues with a time to live, {MESSAGES:,} messages with their own", seconds
            )
        with BrokerProcess(Path(directory)) as broker:
            measure_idle(broker, "the same after a restart", seconds)


if __name__ == "__main__":
    main()
