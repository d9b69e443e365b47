"""The load on a stream that `streams_story.py` judges: a publisher, readers, an operator, and policies.

All of them run as clients of `history_load.Crowd`, besides the lanes of the work queues.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias, cast

import pamqp.encode
import pamqp.header
from quickclient import Link, Message, connect, content, method, publish_prefix
from streams_story import NAMED, OPERATED, STREAM, Reader, StreamStory, body

Ask: TypeAlias = Callable[[str, str, object], Awaitable[object]]
"""The HTTP API: method, path, body. Raises: OSError when the broker has ended."""

ARGUMENTS: Final = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 65536}
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {"max-length-bytes": 150_000},
    {"max-length-bytes": 150_000, "compression": "zstd"},
    {"max-length-bytes": 600_000, "compression": "lz4"},
    {"max-age": "4s", "compression": "gzip"},
    {"max-age": "60s", "max-length-bytes": 300_000, "compression": "snappy"},
)
PERSISTENT: Final = b"\x10\x00\x02"
OFFSETS: Final = f"/api/queues/%2F/{STREAM}/offsets"
PREFETCH: Final = 20
UNCONFIRMED_MAX: Final = 60
PATIENCE_S: Final = 300.0


class Crowd(Protocol):
    """The part of `history_load.Crowd` that this load needs."""

    ended: bool

    async def connect(self) -> Link: ...


def offset_and_number(message: Message) -> tuple[int, int]:
    """Return (offset, number) of a delivery."""
    header = pamqp.header.ContentHeader()
    header.unmarshal(b"\x00\x3c\x00\x00" + len(message.body).to_bytes(8) + message.properties)
    number = int(message.body.split(b" ", 1)[0])
    offset = cast("int", (header.properties.headers or {})["x-stream-offset"])
    assert message.body == body(number), f"offset {offset}: {message.body[:40]!r} is another body"
    return offset, number


async def rule(ask: Ask, definition: dict[str, Any]) -> None:
    value = {"pattern": f"^{STREAM}$", "definition": definition, "apply-to": "streams"}
    await ask("PUT", "/api/policies/%2F/kept", value)


async def look(port: int, ask: Ask, story: StreamStory, host: str = "127.0.0.1") -> None:
    """After a start, read the whole stream up to a message published now, and the stored offsets."""
    await rule(ask, POLICIES[0])  # it deletes only what an earlier policy may have deleted
    link = await connect(port, host=host, patience_s=PATIENCE_S)
    try:
        await _look(link, ask, story)
    finally:
        link.close()
    await link.gone.wait()


async def _look(link: Link, ask: Ask, story: StreamStory) -> None:
    await link.declare_queue(STREAM, table=pamqp.encode.field_table(ARGUMENTS))
    stored = await stored_offsets(ask)
    confirms: asyncio.Queue[bool] = asyncio.Queue()
    link.on_confirm = lambda tag, multiple, acked: confirms.put_nowait(acked)
    await link.confirm_select()
    mark = story.publish()
    link.publish("", STREAM, PERSISTENT, body(mark))
    assert await asyncio.wait_for(confirms.get(), PATIENCE_S)
    story.confirmed(mark)
    await link.qos(500)
    found = await _read_until(link, mark)
    if found[-1][0] - found[0][0] >= len(found):
        # Retention may have deleted segments behind the reader. Lost messages are missing the second time, too.
        found = await _read_until(link, mark)
    story.found(found, {name: offset for name, (offset, _) in stored.items()})


async def _read_until(link: Link, mark: int) -> list[tuple[int, int]]:
    """Return offsets and numbers of all messages of the stream, up to the message `mark`, which is the last."""
    messages: asyncio.Queue[Message] = asyncio.Queue()
    link.on_deliver = messages.put_nowait
    await link.consume(STREAM, table=pamqp.encode.field_table({"x-stream-offset": "first"}))
    found: list[tuple[int, int]] = []
    while not found or found[-1][1] != mark:
        message = await asyncio.wait_for(messages.get(), PATIENCE_S)
        found.append(offset_and_number(message))
        link.ack(message.tag)
    await link.cancel()
    return found


async def stored_offsets(ask: Ask) -> dict[str, tuple[int, bool]]:
    """Return name -> (offset, whether it is written)."""
    items = cast("list[dict[str, Any]]", await ask("GET", OFFSETS, None))
    return {each["name"]: (each["offset"], each["time"] is not None) for each in items}


class StreamLoad:
    """The clients of one life. Each coroutine ends with the crowd, or raises the error of its connection.

    kinds: start positions of readers. policies: retention policies of the stream.
    """

    kinds: tuple[str, ...] = ("first", "last", "next", "offset", "time")
    policies: tuple[dict[str, Any], ...] = POLICIES

    def __init__(self, crowd: Crowd, ask: Ask, story: StreamStory, seed: int) -> None:
        self._crowd = crowd
        self._ask = ask
        self._story = story
        self._seed = seed

    def clients(self) -> tuple[Awaitable[None], ...]:
        return (
            self._publish(self._lot(1)),
            self._read_by_name(self._lot(2)),
            self._read_anywhere(self._lot(3)),
            self._read_anywhere(self._lot(4)),
            self._operate(self._lot(5)),
            self._rule(self._lot(6)),
        )

    def _lot(self, number: int) -> random.Random:
        return random.Random(self._seed * 10 + number)

    async def _publish(self, rng: random.Random) -> None:
        story = self._story
        link = await self._crowd.connect()
        waiting: dict[int, int] = {}

        def confirmed(tag: int, multiple: bool, acked: bool) -> None:
            for each in [each for each in waiting if each == tag or (multiple and each < tag)]:
                number = waiting.pop(each)
                if acked:
                    story.confirmed(number)
                else:
                    story.nacked(number)

        link.on_confirm = confirmed
        await link.confirm_select()
        prefix = publish_prefix("", STREAM)
        tag = 0
        while not self._crowd.ended:
            for _ in range(rng.choice((1, 1, 5, 20))):
                tag += 1
                number = waiting[tag] = story.publish()
                link.write(prefix + content(PERSISTENT, body(number)))
            await link.writable()
            await asyncio.sleep(rng.uniform(0.005, 0.03))
            while not self._crowd.ended and len(waiting) > UNCONFIRMED_MAX:
                await link.writable()
                await asyncio.sleep(0.005)

    async def _read_anywhere(self, rng: random.Random) -> None:
        story = self._story
        while not self._crowd.ended:
            kind = rng.choice(self.kinds)
            argument: object = kind
            number = 0
            if kind == "offset":
                argument = number = rng.randint(story.start, max(story.start, story.above - 1))
            elif kind == "time":
                number = int(time.time() - rng.uniform(0.0, 3.0))
                argument = datetime.fromtimestamp(number, UTC)
            reader = story.asks(kind, number)
            await self._read(reader, {"x-stream-offset": argument}, rng)

    async def _read_by_name(self, rng: random.Random) -> None:
        story = self._story
        while not self._crowd.ended:
            kind = "stored" if story.stored >= 0 else "first"
            reader = story.asks(kind, max(story.stored, 0), NAMED)
            arguments = {"x-stream-offset": "first", "x-stream-consumer-name": NAMED}
            await self._read(reader, arguments, rng)

    async def _read(self, reader: Reader, arguments: dict[str, Any], rng: random.Random) -> None:
        """Read for a while; ack in any order, and sometimes send a request to learn that acks were read."""
        story = self._story
        link = await self._crowd.connect()
        held: list[tuple[int, int]] = []

        def delivered(message: Message) -> None:
            offset, number = offset_and_number(message)
            story.given(reader, offset, number)
            held.append((message.tag, offset))

        link.on_deliver = delivered
        await link.qos(PREFETCH)
        await link.consume(STREAM, table=pamqp.encode.field_table(arguments))
        story.begins(reader)
        for _ in range(rng.randrange(3, 40)):
            if self._crowd.ended:
                return
            rng.shuffle(held)
            for _ in range(rng.randint(0, len(held))):
                tag, offset = held.pop()
                story.acks(reader, offset)
                link.ack(tag)
            if rng.random() < 0.3:
                frontier = reader.frontier
                await link.qos(PREFETCH, PATIENCE_S)
                story.hears(reader, frontier)
            await asyncio.sleep(rng.uniform(0.003, 0.03))
        await link.ask(method(0x00140028, b"\x00\xc8\x00\x00\x00\x00\x00"), 0x00140029, timeout_s=PATIENCE_S)
        story.ends(reader)
        link.close()

    async def _operate(self, rng: random.Random) -> None:
        """Query the stored offsets, and set the offset of another name."""
        story = self._story
        while not self._crowd.ended:
            for name, (offset, written) in (await stored_offsets(self._ask)).items():
                story.tells(name, offset, written)
            offset = rng.randint(0, story.above)
            story.sets(offset)
            await self._ask("PUT", f"{OFFSETS}/{OPERATED}", {"offset": offset})
            story.answered(offset)
            await asyncio.sleep(rng.uniform(0.0, 0.3))

    async def _rule(self, rng: random.Random) -> None:
        while not self._crowd.ended:
            await rule(self._ask, rng.choice(self.policies))
            await asyncio.sleep(rng.uniform(0.0, 0.4))
