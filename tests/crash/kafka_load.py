"""The load that kafka_story.py judges: publishers and readers of AMQP, producers and groups of Kafka, on one stream.

Clients of AMQP connect again after each start. Clients of Kafka stay, and retry by themselves: two producers of
kafka-python, with up to five batches in flight, and two of aiokafka; two members of aiokafka for each group. Two
transactional producers of aiokafka begin anew after an error. Members read committed records.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, cast

import pamqp.encode
import pamqp.header
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from kafka import KafkaProducer
from kafka_story import Group, KafkaStory, Reader, StoryTransaction, Unconfirmed
from quickclient import Gone, Link, Message, connect

STREAM: Final = "flow"
PARTITION: Final = TopicPartition(STREAM, 0)
ARGUMENTS: Final[dict[str, Any]] = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 65536}
PERSISTENT: Final = b"\x10\x00\x02"
DELIVERY_MS: Final = 300_000
CODECS: Final = (None, "gzip")


def offset_of(message: Message) -> int:
    header = pamqp.header.ContentHeader()
    header.unmarshal(b"\x00\x3c\x00\x00" + len(message.body).to_bytes(8) + message.properties)
    return cast("int", (header.properties.headers or {})["x-stream-offset"])


class KafkaLoad:
    """All clients. ended: the broker is being killed. aborted: the test has failed."""

    def __init__(self, story: KafkaStory, address: str, seed: int) -> None:
        self.story = story
        self.groups = [Group("first"), Group("second")]
        self.ended = self.aborted = False
        self._address = address
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._links: list[Link] = []
        self._lives: list[asyncio.Task[None]] = []
        self._sequence = dict.fromkeys(range(4), 0)
        self._readers = [Reader("AMQP reader 0"), Reader("AMQP reader 1")]

    # -- clients of AMQP: one life

    async def begin_life(self, port: int) -> None:
        self.ended = False
        self._lives = [asyncio.create_task(self._publish(port, number)) for number in range(4)]
        self._lives += [asyncio.create_task(self._consume(port, reader)) for reader in self._readers]

    async def end_life(self) -> None:
        """Wait, after the broker has ended, until the clients of AMQP have read what is in their sockets."""
        self.ended = True
        await asyncio.gather(*self._lives)
        self._links.clear()

    async def _connect(self, port: int) -> Link:
        link = await connect(port, patience_s=120)
        self._links.append(link)
        return link

    async def _publish(self, port: int, number: int) -> None:
        waiting = Unconfirmed(self.story)
        with contextlib.suppress(Gone, OSError):
            link = await self._connect(port)
            link.on_confirm = waiting.settle
            await link.confirm_select()
            tag = 0
            while not self.ended:
                for _ in range(self._chance.choice((1, 3, 10))):
                    tag += 1
                    waiting[tag] = body = b"amqp%d:%d" % (number, self._sequence[number])
                    self._sequence[number] += 1
                    self.story.sends()
                    link.publish("", STREAM, PERSISTENT, body)
                await link.writable()
                await asyncio.sleep(self._chance.uniform(0.01, 0.05))
            await link.gone.wait()

    async def _consume(self, port: int, reader: Reader) -> None:
        (begin,) = reader.next

        def delivered(message: Message) -> None:
            self.story.reads(reader, offset_of(message), message.body)
            link.ack(message.tag)

        with contextlib.suppress(Gone, OSError):
            link = await self._connect(port)
            link.on_deliver = delivered
            await link.qos(100)
            await link.consume(STREAM, table=pamqp.encode.field_table({"x-stream-offset": begin}))
            await link.gone.wait()

    # -- clients of Kafka: all lives

    def start(self) -> None:
        for number, codec in enumerate(CODECS):
            self._tasks.append(asyncio.create_task(self._produce(b"aio%d" % number, codec)))
            python = asyncio.to_thread(self._produce_in_thread, b"python%d" % number, asyncio.get_running_loop(), codec)
            self._tasks.append(asyncio.create_task(python))
        for number in range(2):
            self._tasks.append(asyncio.create_task(self._transact(f"transactions {number}")))
        for group in self.groups:
            for number in range(2):
                self._tasks.append(asyncio.create_task(self._member(group, f"{group.name} {number}")))

    async def stop(self) -> None:
        """End the producers, whose records are then confirmed, and the members."""
        self._stopped.set()
        async with asyncio.timeout(DELIVERY_MS / 1000):
            await asyncio.gather(*self._tasks)

    async def abort(self) -> None:
        """End all clients at once."""
        self.aborted = True
        self._stopped.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raises: the error of a client that has ended."""
        for task in self._tasks:
            if task.done():
                task.result()

    def _told(self, body: bytes, offset: int | None, error: BaseException | None) -> None:
        if error is None:
            assert offset is not None
            self.story.confirms(body, offset)
        elif any(word in type(error).__name__ for word in ("OutOfOrder", "UnknownProducer", "InvalidProducerEpoch")):
            self.story.violate(f"{body!r}: {error!r}")
        else:
            self.story.totals["unsure"] += 1

    async def _produce(self, name: bytes, codec: str | None) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._address,
            enable_idempotence=True,
            linger_ms=5,
            compression_type=codec,
            request_timeout_ms=DELIVERY_MS,
        )
        await producer.start()

        def told(body: bytes, future: asyncio.Future[Any]) -> None:
            error = future.exception()
            self._told(body, None if error else future.result().offset, error)

        number = 0
        futures: set[asyncio.Future[Any]] = set()
        while not self._stopped.is_set():
            for _ in range(self._chance.choice((1, 5, 20))):
                body = b"%s:%d" % (name, number)
                number += 1
                self.story.sends()
                future = await producer.send(STREAM, body, partition=0)
                future.add_done_callback(lambda future, body=body: told(body, future))
                futures.add(future)
                future.add_done_callback(futures.discard)
            if len(futures) > 500:
                await asyncio.wait(futures)
            await asyncio.sleep(self._chance.uniform(0.01, 0.05))
        await producer.stop()  # sends what is left

    def _produce_in_thread(self, name: bytes, loop: asyncio.AbstractEventLoop, codec: str | None) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._address,
            linger_ms=5,
            compression_type=codec,
            delivery_timeout_ms=DELIVERY_MS,
            max_block_ms=DELIVERY_MS,
            batch_size=300,
        )
        chance = random.Random(name)
        number = 0
        futures: list[Any] = []
        while not self._stopped.is_set():
            for _ in range(chance.choice((1, 5, 20))):
                body = b"%s:%d" % (name, number)
                number += 1
                loop.call_soon_threadsafe(self.story.sends)
                future = producer.send(STREAM, body, partition=0)
                future.add_both(self._hand_over, loop, body, future)
                futures.append(future)
            while len(futures) > 500 and not self._stopped.is_set():
                futures = [each for each in futures if not each.is_done]
                time.sleep(0.01)
            time.sleep(chance.uniform(0.01, 0.05))
        while not self.aborted and not all(each.is_done for each in futures):
            time.sleep(0.01)
        producer.close(0 if self.aborted else 10)

    async def _transact(self, name: str) -> None:
        """Commit and abort transactions. After an error a new producer fences the old one, and repeats no number."""
        numbers = itertools.count()
        last: StoryTransaction | None = None
        while not self._stopped.is_set():
            producer = AIOKafkaProducer(
                bootstrap_servers=self._address,
                transactional_id=name,
                transaction_timeout_ms=DELIVERY_MS,
                request_timeout_ms=60_000,
                retry_backoff_ms=50,
                linger_ms=5,
            )
            try:
                await producer.start()
                await producer.begin_transaction()  # the producer id was given: the old one is fenced
                if last is not None:
                    self.story.fenced(last)
                while True:
                    last = StoryTransaction()
                    await self._write(producer, last, name, numbers)
                    if self._stopped.is_set():
                        break
                    await producer.begin_transaction()
            except KafkaError:
                self.story.totals["unsure"] += 1
                await asyncio.sleep(0.05)
            finally:
                with contextlib.suppress(KafkaError, TimeoutError):
                    await asyncio.wait_for(producer.stop(), 10)

    async def _write(
        self, producer: AIOKafkaProducer, transaction: StoryTransaction, name: str, numbers: Iterator[int]
    ) -> None:
        """Write a transaction, and end it."""
        futures = {}
        for _ in range(self._chance.choice((1, 3, 8))):
            body = b"%s:%d" % (name.encode(), next(numbers))
            self.story.writes(transaction, body)
            futures[body] = await producer.send(STREAM, body, partition=0)
            if self._chance.random() < 0.2:
                await asyncio.sleep(0.01)  # others write between
        for body, future in futures.items():
            transaction.bodies[body] = (await future).offset
        commits = self._chance.random() < 0.7
        self.story.ends(transaction, commits)
        await (producer.commit_transaction() if commits else producer.abort_transaction())
        self.story.ended(transaction)
        await asyncio.sleep(self._chance.uniform(0.0, 0.05))

    def _hand_over(self, loop: asyncio.AbstractEventLoop, body: bytes, future: Any, _result: object) -> None:
        offset = future.value.offset if future.succeeded() else None
        loop.call_soon_threadsafe(self._told, body, offset, future.exception)

    def _consumer(self, group: Group, level: str = "read_committed") -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self._address,
            group_id=group.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level=level,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            retry_backoff_ms=50,
            request_timeout_ms=60_000,
        )

    async def _member(self, group: Group, name: str) -> None:
        """Read and commit. A session begins whenever the partition is assigned."""
        story = self.story
        reader = Reader(name, ())
        listener = Sessions()
        consumer = self._consumer(group)
        consumer.subscribe([STREAM], listener=listener)
        await consumer.start()
        known = 0
        while not self._stopped.is_set():
            found = await consumer.getmany(timeout_ms=200, max_records=50)
            session = listener.number
            records = found.get(PARTITION, [])
            if not records:
                continue
            if session != known:
                story.reads_first(group, reader, records[0].offset)
                known = session
            for record in records:
                story.reads(reader, record.offset, record.value)
            if self._chance.random() < 0.5:
                await self._commit(consumer, group, records[-1].offset + 1)
        with contextlib.suppress(KafkaError):
            await consumer.stop()

    async def _commit(self, consumer: AIOKafkaConsumer, group: Group, offset: int) -> None:
        self.story.commits(group, offset)
        try:
            await consumer.commit({PARTITION: offset})
        except KafkaError:
            return  # the member lost the partition, or the broker was killed
        self.story.committed(group, offset)

    async def look(self) -> None:
        """Read the whole log and the committed offsets. It is read up to the end that it has now: until then open
        transactions end.
        """
        records: list[tuple[int, bytes]] = []
        known: list[bytes] = []
        for group in self.groups:
            consumer = self._consumer(group)
            consumer.assign([PARTITION])
            await consumer.start()
            answered = group.answered
            committed = await consumer.committed(PARTITION) or 0
            if committed < answered or committed not in group.asked:
                self.story.finds(group, committed, "after a start")
            if group is self.groups[0]:
                known = list(self.story.place)
                end = await self._end()
                consumer.seek(PARTITION, 0)
                while await consumer.position(PARTITION) < end:
                    for each in (await consumer.getmany(PARTITION, timeout_ms=1000)).get(PARTITION, []):
                        records.append((each.offset, each.value))
            await consumer.stop()
        self.story.found(records, known)

    async def _end(self) -> int:
        """Return the end of the log, with open transactions."""
        consumer = self._consumer(self.groups[0], "read_uncommitted")
        consumer.assign([PARTITION])
        await consumer.start()
        end: int = (await consumer.end_offsets([PARTITION]))[PARTITION]
        await consumer.stop()
        return end


class Sessions(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts the assignments of a member."""

    def __init__(self) -> None:
        self.number = 0

    def on_partitions_revoked(self, revoked: object) -> None:
        """Do nothing: until the next assignment the member reads on."""

    def on_partitions_assigned(self, assigned: object) -> None:
        self.number += 1
