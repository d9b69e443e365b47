"""The cost of connections and of what they leave behind: `python -m interop.bench.connections`.

Parts, each with a new broker (all parts unless some are named):

    gone        ordinary clients that connect and disconnect, with 40 publishes of 60 KB each: growth of broker memory
    unfinished  clients that leave an unfinished body of 50 MB behind: the same
    idle        idle connections: memory of each while open, and the rest after they are closed
    storm       connects over 30 s beside a publisher of 1,000 messages a second: its times to the confirm

Prints one table row per part, for README.md. Memory is resident (RSS). Clients are raw sockets in this process. For the
figure of the storm use a quiet machine with a core for each side. Each side has a descriptor per connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import uvloop

from amqpd.testing import BrokerProcess

PAGE: Final = os.sysconf("SC_PAGESIZE")
HEADER: Final = b"AMQP\x00\x00\x09\x01"
RATE: Final = 1000
STORM_S: Final = 30.0
MB: Final = 1_000_000


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def publish(queue: str, body: bytes, announced: int = 0) -> bytes:
    """Encode a transient publish on channel 1. announced: the body size in the header, if fewer bytes follow."""
    content = struct.pack(">HHQH", 60, 0, announced or len(body), 0)
    pieces = [frame(3, 1, body[at : at + 131_000]) for at in range(0, len(body), 131_000)]
    return method(1, 60, 40, b"\0\0" + short("") + short(queue) + b"\0") + frame(2, 1, content) + b"".join(pieces)


LOGIN: Final = b"\0guest\0guest"
HANDSHAKE: Final = (
    HEADER
    + method(0, 10, 11, struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(LOGIN)) + LOGIN + short("en_US"))
    + method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 0))
    + method(0, 10, 40, short("/") + short("") + b"\0")
    + method(1, 20, 10, short(""))
)
CHANNEL_OPEN_OK: Final = struct.pack(">HH", 20, 11)
CLOSE: Final = method(0, 10, 50, struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0))
CLOSE_OK: Final = method(0, 10, 51)


class Client:
    """One connection with channel 1 open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def heard(self, what: bytes) -> None:
        """Read until `what` has been received."""
        data = b""
        while what not in data:
            piece = await self.reader.read(65536)
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            data = data[-16:] + piece

    async def close(self) -> None:
        self.writer.write(CLOSE)
        await self.heard(CLOSE_OK)
        self.writer.close()


async def client(port: int) -> Client:
    made = Client(*await asyncio.open_connection("127.0.0.1", port))
    made.writer.write(HANDSHAKE)
    await made.heard(CHANNEL_OPEN_OK)
    return made


def rss(broker: BrokerProcess) -> int:
    """Return the resident bytes of the broker's process."""
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * PAGE


async def settled(broker: BrokerProcess) -> int:
    """Return `rss` when it has been unchanged for five seconds, or after a minute."""
    was = rss(broker)
    since = began = time.monotonic()
    while time.monotonic() - since < 5.0 and time.monotonic() - began < 60.0:
        await asyncio.sleep(0.1)
        if abs(rss(broker) - was) > 100_000:
            was, since = rss(broker), time.monotonic()
    return was


async def _many(count: int, at_once: int, one: Callable[[], object]) -> None:
    """Run the coroutine `one()` `count` times, `at_once` at the same time."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await one()  # type: ignore[misc]

    await asyncio.gather(*(work() for _ in range(at_once)))


async def gone(broker: BrokerProcess, count: int) -> str:
    body = publish("nowhere", bytes(60_000)) * 40

    async def one() -> None:
        each = await client(broker.amqp_port)
        each.writer.write(body)
        await each.close()

    await _many(100, 4, one)
    before = await settled(broker)
    await _many(count, 8, one)
    return f"{count:,} clients, 40 x 60 KB each: {(await settled(broker) - before) / MB:+.1f} MB"


async def unfinished(broker: BrokerProcess, count: int) -> str:
    begun = publish("nowhere", bytes(45_000_000), 50_000_000)

    async def one() -> None:
        each = await client(broker.amqp_port)
        each.writer.write(begun)
        await each.writer.drain()
        await asyncio.sleep(0.5)
        each.writer.transport.abort()

    await _many(20, 4, lambda: _polite(broker.amqp_port))
    before = await settled(broker)
    peak = before
    for _ in range(count):
        await one()
        peak = max(peak, rss(broker))
    after = await settled(broker)
    shown = f"{(after - before) / MB:+.1f} MB, {(peak - before) / MB:+.0f} MB meanwhile"
    return f"{count} clients that leave 45 of 50 MB: {shown}"


async def _polite(port: int) -> None:
    await (await client(port)).close()


async def idle(broker: BrokerProcess, count: int) -> str:
    await _many(100, 4, lambda: _polite(broker.amqp_port))
    before = await settled(broker)
    there: list[Client] = []

    async def one() -> None:
        there.append(await client(broker.amqp_port))

    await _many(count, 16, one)
    await asyncio.sleep(2.0)
    each = (rss(broker) - before) / count / 1024
    for one_there in there:
        one_there.writer.transport.abort()
    left = (await settled(broker) - before) / MB
    return f"{count:,} idle connections with a channel: {each:.1f} KiB each, {left:+.1f} MB when they have gone"


async def storm(broker: BrokerProcess, count: int) -> str:
    publisher = await client(broker.amqp_port)
    publisher.writer.write(method(1, 85, 10, b"\0"))
    await publisher.heard(struct.pack(">HH", 85, 11))
    quiet = await _confirmed(publisher, 5.0)
    stop = asyncio.create_task(_confirmed(publisher, STORM_S))
    began = time.monotonic()
    late = 0.0
    for number in range(count):
        due = began + STORM_S * number / count
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await _polite(broker.amqp_port)
        late = max(late, time.monotonic() - due)
    took = time.monotonic() - began
    busy = await stop
    shown = f"p99 {_at(busy, 0.99):.1f} ms, worst {max(busy):.1f} ms (without: p99 {_at(quiet, 0.99):.1f} ms)"
    return f"{count:,} connects in {took:.1f} s, the latest {late * 1000:.0f} ms behind its time; publisher: {shown}"


async def _confirmed(publisher: Client, duration_s: float) -> list[float]:
    """Return the milliseconds from each publish to its confirm; one publish after the other, at most RATE a second."""
    message = publish("nowhere", bytes(100))
    times = []
    began = time.monotonic()
    while (sent := time.monotonic()) < began + duration_s:
        publisher.writer.write(message)
        await publisher.heard(struct.pack(">HH", 60, 80))
        times.append((time.monotonic() - sent) * 1000)
        await asyncio.sleep(max(0.0, sent + 1 / RATE - time.monotonic()))
    return times


def _at(times: Sequence[float], share: float) -> float:
    return sorted(times)[int(len(times) * share)]


PARTS: Final = {"gone": (gone, 10_000), "unfinished": (unfinished, 6), "idle": (idle, 10_000), "storm": (storm, 5_000)}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.bench.connections", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--count", type=int, help="connections, instead of each part's own number")
    given = parser.parse_args(argv)
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # inherited by the broker
    for name in given.parts or PARTS:
        part, count = PARTS[name]
        with BrokerProcess(settings={"log.level": "error"}) as broker:
            print(f"| {name} | {uvloop.run(part(broker, given.count or count))} |", flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt), socket.socket():
        sys.exit(main(sys.argv[1:]))
