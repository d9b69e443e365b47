"""Publishers at full speed: `flood.py PORT QUEUE durable|transient SIZE LINKS WINDOW SECONDS`.

A separate process, like `misbehave.py`. WINDOW: unconfirmed publishes per connection, 0 without confirms. Prints
`ready` when it starts to send, and one line of JSON at its end. Each body begins with the number of its connection
and its own number, 8 digits each.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))

from quickclient import Gone, Link, connect, content, publish_prefix

PLAIN: Final = b"\x00\x00"
PERSISTENT: Final = b"\x10\x00\x02"
BLOB_BYTES: Final = 256 * 1024


class Blob:
    """A buffer of consecutive publishes whose bodies differ in their first 16 bytes."""

    def __init__(self, queue: str, properties: bytes, size: int, connection: int) -> None:
        body = b"%08d%08d" % (connection, 0) + b"." * (size - 16)
        publish = publish_prefix("", queue) + content(properties, body)
        self.count = max(BLOB_BYTES // len(publish), 1)
        self.data = bytearray(publish * self.count)
        self.step = len(publish)
        self.first = publish.index(body[:16]) + 8
        self.next = 0

    def take(self) -> bytes:
        for index in range(self.count):
            at = self.first + index * self.step
            self.data[at : at + 8] = b"%08d" % (self.next + index)
        self.next += self.count
        return bytes(self.data)


class Flood:
    def __init__(self) -> None:
        self.published = 0
        self.confirmed = 0
        self.nacked = 0

    async def publish(self, link: Link, blob: Blob, window: int, end: float) -> None:
        confirmed = 0
        changed = asyncio.Event()

        def confirm(tag: int, _multiple: bool, acked: bool) -> None:
            # The broker confirms in order, so each tag confirms all earlier ones.
            nonlocal confirmed
            self.nacked += not acked
            self.confirmed += tag - confirmed
            confirmed = tag
            changed.set()

        link.on_confirm = confirm
        while time.monotonic() < end:
            while window and blob.next + blob.count - confirmed > window and time.monotonic() < end:
                changed.clear()
                await asyncio.wait_for(changed.wait(), 30)
            link.write(blob.take())
            self.published += blob.count
            await link.writable()
            await asyncio.sleep(0)
        while window and confirmed < blob.next:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 30)


async def main() -> None:
    port, queue, kind, size, count, window, seconds = sys.argv[1:]
    flood = Flood()
    links = []
    for _ in range(int(count)):
        link = await connect(int(port))
        if int(window):
            await link.confirm_select()
        links.append(link)
    print("ready", flush=True)
    properties = PERSISTENT if kind == "durable" else PLAIN
    started = time.monotonic()
    end = started + float(seconds)
    blobs = [Blob(queue, properties, int(size), number) for number in range(len(links))]
    try:
        await asyncio.gather(
            *(flood.publish(link, blob, int(window), end) for link, blob in zip(links, blobs, strict=True))
        )
        elapsed_s = time.monotonic() - started
    except Gone as gone:
        print(json.dumps({"gone": str(gone)}), flush=True)
        return
    report = {
        "seconds": elapsed_s,
        "published": flood.published,
        "confirmed": flood.confirmed,
        "nacked": flood.nacked,
        "each": [blob.next for blob in blobs],
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
