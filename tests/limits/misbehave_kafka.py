"""Misbehaving clients of the Kafka listener: `python misbehave_kafka.py KIND PORT SECONDS`.

A separate process, so that its work does not delay the witness. Prints `ready` when the misbehaviour has begun, and a
summary at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

from kafka_floods import PARTITIONS, TOPIC, Flood, defined_floods, fetch_floods, produce_floods

CONNECTIONS: Final = 500
API_VERSIONS: Final = Flood("", 18, 0, b"", False).frame


async def send(port: int, data: bytes, answers: int = 1) -> int:
    """Send bytes, wait for answers or the end of the connection, and return how many answers came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = 0
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        writer.write(data)
        await writer.drain()
        for found in range(1, answers + 1):  # noqa: B007  # the count is the result
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            await reader.readexactly(size)
    writer.transport.abort()
    return found


async def repeated(seconds: float, tasks: int, once: Callable[[random.Random], Awaitable[object]]) -> int:
    """Call a function again and again, in some tasks. Return how often."""
    end = time.monotonic() + seconds
    count = 0

    async def run(number: int) -> None:
        nonlocal count
        chance = random.Random(number)
        while time.monotonic() < end:
            await once(chance)
            count += 1

    print("ready", flush=True)
    await asyncio.gather(*(run(number) for number in range(tasks)))
    return count


async def bytes_at_random(port: int, seconds: float) -> str:
    """Random bytes, truncated requests, wrong versions, huge counts: a connection for each."""
    floods = [each.frame for each in defined_floods() if len(each.body) < 20_000]

    async def once(chance: random.Random) -> None:
        frame = bytearray(chance.choice(floods))
        kind = chance.randrange(4)
        if kind == 0:
            frame[4:] = chance.randbytes(len(frame) - 4)
        elif kind == 1:
            frame[6:8] = struct.pack(">h", chance.choice((-1, 100, 32767)))
        elif kind == 2:
            at = chance.randrange(12, len(frame))
            frame[at : at + 4] = b"\x7f\xff\xff\xff"
        else:
            del frame[chance.randrange(5, len(frame)) :]
            frame[:4] = struct.pack(">i", len(frame) - 4)
        await send(port, bytes(frame))

    return f"{await repeated(seconds, 20, once)} requests that cannot be read"


async def floods(port: int, seconds: float) -> str:
    """Requests with thousands of elements: every kind, in turn."""
    frames = [
        each.frame for each in (*defined_floods(), *fetch_floods()) if not each.name.startswith(("Create", "Del"))
    ]

    async def once(chance: random.Random) -> None:
        await send(port, chance.choice(frames))

    return f"{await repeated(seconds, 4, once)} requests with thousands of elements"


async def batches(port: int, seconds: float) -> str:
    """Batches with 100,000 records or headers, and compressed ones of 16 MiB."""
    frames = [each.frame for each in produce_floods()]

    async def once(chance: random.Random) -> None:
        await send(port, chance.choice(frames))

    return f"{await repeated(seconds, 2, once)} batches"


async def pipelined(port: int, seconds: float) -> str:
    """Thousands of small requests in one packet."""

    async def once(_: random.Random) -> None:
        await send(port, API_VERSIONS * 2_000, 2_000)

    return f"{await repeated(seconds, 4, once)} times 2,000 requests"


async def connections(port: int, seconds: float) -> str:
    """Connections that all send a request at once and leave."""

    async def once(_: random.Random) -> None:
        await asyncio.gather(*(send(port, API_VERSIONS) for _ in range(CONNECTIONS)), return_exceptions=True)

    return f"{await repeated(seconds, 1, once)} times {CONNECTIONS} connections"


async def slow_readers(port: int, seconds: float) -> str:
    """Fifty clients that ask for a long answer, again and again, and read nothing."""
    name = TOPIC.encode()
    metadata = Flood("", 3, 1, struct.pack(">ih", 1, len(name)) + name, False).frame
    writers = []
    for _ in range(50):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(metadata * 2_000)
        writers.append(writer)
    print("ready", flush=True)
    await asyncio.sleep(seconds)
    for writer in writers:
        writer.transport.abort()
    return f"50 readers that stop before answers about {PARTITIONS} partitions"


KINDS: Final[dict[str, Callable[[int, float], Awaitable[str]]]] = {
    "bytes_at_random": bytes_at_random,
    "floods": floods,
    "batches": batches,
    "pipelined": pipelined,
    "connections": connections,
    "slow_readers": slow_readers,
}


async def main() -> None:
    kind, port, seconds = sys.argv[1:]
    print("end:", await KINDS[kind](int(port), float(seconds)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
