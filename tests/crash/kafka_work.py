"""The load that `WorkStory` judges: publishers and consumers of AMQP and members of a share group on one classic queue.

All clients live as long as the broker does; members are raw sockets, as no client in Python knows share groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import uuid
from typing import Final

from kafka.record import MemoryRecords
from kafka_story import Unconfirmed, WorkStory
from quickclient import Gone, Message, connect

from amqpd.kafka_server.request_reader import BodyWriter, RequestReader

QUEUE: Final = "work"
GROUP: Final = "workers"
PERSISTENT: Final = b"\x10\x00\x02"
METADATA: Final = 3
SHARE_FETCH: Final = 78
ACCEPT, RELEASE = 1, 2
WAIT_MS: Final = 200
_ERRORS: Final = (ConnectionError, asyncio.IncompleteReadError, OSError)


class ShareMember:
    """A member on one connection. Raises of all calls: OSError, asyncio.IncompleteReadError when the broker is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._id = str(uuid.uuid4())
        self._epoch = 0
        self._topic = uuid.UUID(int=0)

    @classmethod
    async def connect(cls, address: str, topic: str) -> ShareMember:
        host, _, port = address.rpartition(":")
        member = cls(*await asyncio.open_connection(host, int(port)))
        writer = BodyWriter(True)
        writer.count(1)
        writer.uuid(uuid.UUID(int=0))
        writer.string(topic)
        writer.end()
        for _ in range(2):  # create no topics, no operations
            writer.boolean(False)
        writer.end()
        reader = await member._ask(METADATA, 12, writer)
        reader.int32()
        for _ in range(reader.count(10)):
            reader.int32(), reader.text(), reader.int32(), reader.nullable_text()
            reader.end_struct()
        reader.nullable_text(), reader.int32()
        assert reader.count(10) == 1
        assert reader.take(2) == b"\0\0", "the queue is no topic"
        reader.nullable_text()
        member._topic = reader.uuid()
        return member

    async def _ask(self, key: int, version: int, body: BodyWriter) -> RequestReader:
        frame = struct.pack(">hhih", key, version, 0, -1) + b"\0" + bytes(body.data)
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        await self._writer.drain()
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return RequestReader(await self._reader.readexactly(size), 4)

    async def fetch(self, acks: dict[int, int], records: int) -> list[tuple[int, int, bytes]]:
        """Acknowledge (offset -> kind), and return offset, delivery count and body of what was acquired."""
        writer = BodyWriter(True)
        writer.string(GROUP)
        writer.string(self._id)
        writer.int32(self._epoch)
        for number in (WAIT_MS, 1, 1 << 20, records, records):
            writer.int32(number)
        writer.int8(1)
        writer.boolean(False)
        has_topic = self._epoch == 0 or bool(acks)
        writer.count(1 if has_topic else 0)
        if has_topic:
            writer.uuid(self._topic)
            writer.count(1)
            writer.int32(0)
            writer.count(len(acks))
            for offset, kind in sorted(acks.items()):
                writer.int64(offset)
                writer.int64(offset)
                writer.count(1)
                writer.int8(kind)
                writer.end()
            writer.end()
            writer.end()
        writer.count(0)
        writer.end()
        self._epoch += 1
        reader = await self._ask(SHARE_FETCH, 2, writer)
        reader.int32()
        assert reader.take(2) == b"\0\0", "ShareFetch is answered with an error"
        reader.nullable_text()
        reader.int32()
        found: list[tuple[int, int, bytes]] = []
        for _ in range(reader.count(1)):
            reader.uuid()
            for _ in range(reader.count(1)):
                reader.int32()
                errors = reader.take(2), reader.nullable_text(), reader.take(2), reader.nullable_text()
                assert errors[0] == errors[2] == b"\0\0", errors
                reader.int32(), reader.int32()
                reader.end_struct()
                found += _acquired(reader)
                reader.end_struct()
            reader.end_struct()
        return found

    def close(self) -> None:
        self._writer.close()


def _acquired(reader: RequestReader) -> list[tuple[int, int, bytes]]:
    batches = MemoryRecords(reader.take(reader.count(1 << 26)))
    counts: dict[int, int] = {}
    for _ in range(reader.count(10_000)):
        first, last, count = struct.unpack(">qqh", reader.take(18))
        reader.end_struct()
        counts |= dict.fromkeys(range(first, last + 1), count)
    found: list[tuple[int, int, bytes]] = []
    while (batch := batches.next_batch()) is not None:
        found += [(each.offset, counts[each.offset], each.value) for each in batch if each.offset in counts]
    return found


class WorkLoad:
    """All clients of the queue, life by life."""

    def __init__(self, story: WorkStory, address: str, seed: int) -> None:
        self.story = story
        self.ended = False
        self.is_draining = False
        self._address = address
        self._chance = random.Random(seed)
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def begin_life(self, port: int) -> None:
        self.ended = False
        self._tasks = [asyncio.create_task(self._publish(port)) for _ in range(2)]
        self._tasks += [asyncio.create_task(self._consume(port, f"AMQP consumer {number}")) for number in range(2)]
        self._tasks += [asyncio.create_task(self._share(f"member {number}")) for number in range(2)]

    async def end_life(self) -> None:
        """Wait, after the broker has ended, until the clients have read what is in their sockets."""
        self.ended = True
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Raises: the error of a client that has ended."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def drain(self) -> None:
        """Publish no more, and wait until all confirmed messages were delivered."""
        self.is_draining = True
        async with asyncio.timeout(180):
            while self.story.missing():
                self.check()
                await asyncio.sleep(0.05)

    async def _publish(self, port: int) -> None:
        waiting = Unconfirmed(self.story)
        with contextlib.suppress(Gone, OSError):
            link = await connect(port, patience_s=120)
            link.on_confirm = waiting.settle
            await link.confirm_select()
            tag = 0
            while not self.ended and not self.is_draining:
                for _ in range(self._chance.choice((1, 3, 10))):
                    tag += 1
                    self._number += 1
                    waiting[tag] = body = b"work:%d" % self._number
                    self.story.totals["published"] += 1
                    link.publish("", QUEUE, PERSISTENT, body)
                await link.writable()
                await asyncio.sleep(self._chance.uniform(0.02, 0.08))
            await link.gone.wait()

    async def _consume(self, port: int, name: str) -> None:
        def delivered(message: Message) -> None:
            self.story.delivers(message.body, message.redelivered, name)
            link.ack(message.tag)

        with contextlib.suppress(Gone, OSError):
            link = await connect(port, patience_s=120)
            link.on_deliver = delivered
            await link.qos(5)
            await link.consume(QUEUE)
            await link.gone.wait()

    async def _share(self, name: str) -> None:
        with contextlib.suppress(*_ERRORS):
            member = await ShareMember.connect(self._address, QUEUE)
            acks: dict[int, int] = {}
            accepted: list[bytes] = []
            try:
                while True:
                    found = await member.fetch(acks, 20)
                    for body in accepted:
                        self.story.accepts(body)
                    acks, accepted = {}, []
                    for offset, count, body in found:
                        self.story.totals["acquired"] += 1
                        self.story.delivers(body, count > 1, name)
                        acks[offset] = RELEASE if self._chance.random() < 0.1 else ACCEPT
                        if acks[offset] == ACCEPT:
                            accepted.append(body)
            finally:
                member.close()
