"""Misbehaving clients: `python misbehave.py KIND PORT SECONDS`.

A separate process, so that its work does not delay the witness. Prints `ready` when the misbehaviour has begun, and
a summary at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))

from quickclient import Gone, Link, connect, method

PLAIN: Final = b"\x00\x00"
DURABLE: Final = b"\x10\x00\x02"
MIB: Final = 1 << 20
RECEIVED_SIZE_BYTES: Final = 256 * 1024
"""The socket's receive buffer of a client that does not read; the system's maximum can be 32 MiB."""


def ready() -> None:
    print("ready", flush=True)


async def half_frame(port: int, seconds: float) -> str:
    """Open fifty connections and stop in the middle of a method frame, header, body, or protocol header."""
    links = []
    for number in range(50):
        kind = number % 4
        if kind == 3:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"AMQP\x00")
            links.append(writer)
            continue
        link = await connect(port)
        publish = method(0x003C0028, b"\x00\x00\x00\x04none\x00")
        half = (publish[:9], publish + struct.pack(">BHI", 2, 1, 14) + b"\x00\x3c", None)[kind]
        if half is None:
            header = struct.pack(">BHIHHQ", 2, 1, 14, 60, 0, MIB) + PLAIN + b"\xce"
            half = publish + header + struct.pack(">BHI", 3, 1, 100_000) + b"." * 50_000
        link.write(half)
        links.append(link)
    ready()
    await asyncio.sleep(seconds)
    for link in links:
        link.close()
    return "50 connections fell silent in the middle of a frame"


async def fill(port: int, queue: str, count: int, size: int) -> None:
    """Publish confirmed durable messages."""
    link = await connect(port)
    await link.declare_queue(queue)
    await link.confirm_select()
    confirmed = 0
    changed = asyncio.Event()

    def confirm(tag: int, multiple: bool, _acked: bool) -> None:
        nonlocal confirmed
        confirmed = tag if multiple else confirmed + 1
        changed.set()

    link.on_confirm = confirm
    body = b"." * size
    window = max(16 * MIB // size, 1)
    for number in range(count):
        link.publish("", queue, DURABLE, body)
        await link.writable()
        while number - confirmed > window:
            changed.clear()
            await changed.wait()
    while confirmed < count:
        changed.clear()
        await changed.wait()
    link.close()


async def not_reading(port: int, seconds: float) -> str:
    """Consume from a queue with 1 GiB and read nothing."""
    await fill(port, "due", 8192, 131072)
    link = await connect(port)
    await link.consume("due", no_ack=True)
    link.pause_reading()
    ready()
    await asyncio.sleep(seconds)
    return f"1 GiB was due, {'the broker closed the connection' if link.gone.is_set() else 'the connection stands'}"


async def large_body(port: int, seconds: float) -> str:
    """Publish one body of 16 MiB while the witness works, and get it."""
    return await _large(port, seconds, 1)


async def large_bodies(port: int, seconds: float) -> str:
    """Publish and get bodies of 16 MiB, one after the other, all the time."""
    return await _large(port, seconds, 1 << 30)


async def _large(port: int, seconds: float, count_max: int) -> str:
    link = await connect(port)
    await link.declare_queue("large")
    body = b"." * (16 * MIB)
    ready()
    end = time.monotonic() + seconds
    await asyncio.sleep(1.0)
    count = 0
    while time.monotonic() < end and count < count_max:
        link.publish("", "large", DURABLE, body)
        await link.writable()
        message = None
        while message is None and time.monotonic() < end:
            message = await link.get("large", no_ack=True)
        if message is not None:
            assert len(message.body) == len(body)
            count += 1
    await asyncio.sleep(max(end - time.monotonic(), 0.0))
    return f"{count} bodies of 16 MiB went through"


async def channels(port: int, seconds: float) -> str:
    """Open 2,000 channels without waiting, keep them for 0.5 s, close the connection, and repeat."""
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        link = await connect(port)
        await asyncio.gather(*(link.open_channel(number) for number in range(2, 2001)))
        if not rounds:
            ready()
        rounds += 1
        await asyncio.sleep(0.5)
        link.close()
        await link.gone.wait()
    return f"2,000 channels, {rounds} times"


async def logins(port: int, seconds: float) -> str:
    """A hundred clients log in repeatedly, every second time with a wrong password."""
    end = time.monotonic() + seconds
    accepted = rejected = 0

    async def log_in_repeatedly(number: int) -> None:
        nonlocal accepted, rejected
        attempt = number
        while time.monotonic() < end:
            attempt += 1
            try:
                password = "guest" if attempt % 2 else f"wrong{number}.{attempt}"
                link = await connect(port, password=password, channel=False)
            except (Gone, OSError):
                rejected += 1
                continue
            accepted += 1
            link.close()
            await link.gone.wait()

    tasks = [asyncio.create_task(log_in_repeatedly(number)) for number in range(100)]
    await asyncio.sleep(0.2)
    ready()
    await asyncio.gather(*tasks)
    assert accepted and rejected
    return f"{accepted} logins, {rejected} refused"


async def slow_consumers(port: int, seconds: float) -> str:
    """Fifty consumers without prefetch limit read nothing of 256 MiB. They begin when the parent says so."""
    link = await connect(port)
    links: list[Link] = []
    for _ in range(50):
        links.append(await connect(port))
        links[-1].limit_received(RECEIVED_SIZE_BYTES)
    ready()
    with contextlib.suppress(TimeoutError):
        # The parent process measures first and then sends a line.
        await asyncio.wait_for(asyncio.to_thread(sys.stdin.readline), seconds)
    for each in links:
        await each.consume("due")
        each.pause_reading()
    print("consuming", flush=True)
    await asyncio.sleep(seconds)
    link.close()
    return "50 consumers did not read"


KINDS: Final[dict[str, Callable[[int, float], Awaitable[str]]]] = {
    "half_frame": half_frame,
    "not_reading": not_reading,
    "large_body": large_body,
    "large_bodies": large_bodies,
    "channels": channels,
    "logins": logins,
    "slow_consumers": slow_consumers,
}


async def main() -> None:
    kind, port, seconds = sys.argv[1:]
    print("end:", await KINDS[kind](int(port), float(seconds)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
