"""The misbehaving clients: `python misbehave.py KIND PORT SECONDS`, a process of its own, so that its work is not the
witness's delay. It says `ready` when the misbehaviour has begun and, at its end, what it did.
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
"""What the kernel takes for a client that does not read: else as much as the machine allows, on some 32 MiB."""


def ready() -> None:
    print("ready", flush=True)


async def half_frame(port: int, seconds: float) -> str:
    """Fifty connections: half a method frame, half a header, half a body, half a protocol header; then silence."""
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
    """Durable messages, confirmed."""
    link = await connect(port)
    await link.declare_queue(queue)
    await link.confirm_select()
    confirmed = 0
    news = asyncio.Event()

    def confirm(tag: int, multiple: bool, _acked: bool) -> None:
        nonlocal confirmed
        confirmed = tag if multiple else confirmed + 1
        news.set()

    link.on_confirm = confirm
    body = b"." * size
    window = max(16 * MIB // size, 1)
    for number in range(count):
        link.publish("", queue, DURABLE, body)
        await link.writable()
        while number - confirmed > window:
            news.clear()
            await news.wait()
    while confirmed < count:
        news.clear()
        await news.wait()
    link.close()


async def not_reading(port: int, seconds: float) -> str:
    """A consumer to whom 1 GiB is due reads nothing."""
    await fill(port, "due", 8192, 131072)
    link = await connect(port)
    await link.consume("due", no_ack=True)
    link.pause_reading()
    ready()
    await asyncio.sleep(seconds)
    return f"1 GiB was due, {'the broker closed the connection' if link.gone.is_set() else 'the connection stands'}"


async def large_body(port: int, seconds: float) -> str:
    """One body of 16 MiB, published while the witness works, and fetched."""
    return await _large(port, seconds, 1)


async def large_bodies(port: int, seconds: float) -> str:
    """Bodies of 16 MiB, published and fetched one after the other, all the time."""
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
    """2,000 channels are opened, one after the other without waiting, kept a while, dropped with their connection."""
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
    """A hundred clients log in over and over, every second time with a wrong password."""
    end = time.monotonic() + seconds
    right = wrong = 0

    async def one(number: int) -> None:
        nonlocal right, wrong
        attempt = number
        while time.monotonic() < end:
            attempt += 1
            try:
                password = "guest" if attempt % 2 else f"wrong{number}.{attempt}"
                link = await connect(port, password=password, channel=False)
            except (Gone, OSError):
                wrong += 1
                continue
            right += 1
            link.close()
            await link.gone.wait()

    storm = [asyncio.create_task(one(number)) for number in range(100)]
    await asyncio.sleep(0.2)
    ready()
    await asyncio.gather(*storm)
    assert right and wrong
    return f"{right} logins, {wrong} refused"


async def slow_consumers(port: int, seconds: float) -> str:
    """Fifty consumers without a prefetch limit to whom 256 MiB are due read nothing, after they were seen."""
    link = await connect(port)
    links: list[Link] = []
    for _ in range(50):
        links.append(await connect(port))
        links[-1].limit_received(RECEIVED_SIZE_BYTES)
    ready()
    with contextlib.suppress(TimeoutError):
        # The parent says when; it measures before.
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
