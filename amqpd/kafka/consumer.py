"""Readers of Kafka's record batches: a range of offsets of a partition, or partitions as they grow.

    reader.read(topic, number, start, end)    whole, checked batches in order, until `end`
    follower.follow(topic, number)            the same without end; a callback gets each batch

Both survive lost connections, changes of leaders, and brokers that are away. Each batch is returned once, in the
order of offsets. Offsets may be missing: compaction deletes records, `DeleteRecords` deletes batches. Batches are
not cut, so the first may begin below `start` and the last may end behind `end`. Batches that compaction left
without records are skipped.

`read` raises KafkaDisconnected after `timeout_s` without anything new, and KafkaRefused if the partition may not be
read. A follower logs its errors and continues; only an exception of its callback ends it.

Both yield to the event loop after SLICE_S of work, the caller's work between two batches included.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from librt.strings import BytesWriter

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaConnection, KafkaDisconnected, KafkaIncompatible
from amqpd.kafka.metadata import PartitionLeaders
from amqpd.kafka.producer import PAUSE_S, PAUSE_S_MAX, KafkaRefused
from amqpd.kafka.requests import (
    EARLIEST,
    LATEST,
    Fetched,
    FetchPlace,
    decode_fetch,
    decode_list_offsets,
    encode_fetch,
    encode_list_offsets,
)
from amqpd.kafka.wire import LEADER, PARTITION, BadAnswer, code_of
from amqpd.storage.log.batch import BatchHeader

logger = logging.getLogger(__name__)

READ_SIZE_MAX: Final = 4 << 20
"""Size of one answer to `read`. Kafka sends one batch even if it is larger."""
FOLLOW_SIZE_MAX: Final = 8 << 20
FOLLOW_PARTITION_SIZE_MAX: Final = 1 << 20
"""Size of one answer to a follower, and of one partition in it."""
FOLLOW_WAIT_MS: Final = 500
"""Time that Kafka waits for new records before it answers a follower."""
TIMEOUT_S: Final = 30.0
SLICE_S: Final = 0.003
_OUT_OF_RANGE: Final = 1


class KafkaReader:
    """Reads ranges of offsets, with one request at a time for each. Used on the event loop. Call `close` at the end."""

    def __init__(
        self, access: KafkaAccess, timeout_s: float = TIMEOUT_S, brokers: PartitionLeaders | None = None
    ) -> None:
        """Create a reader.

        Args:
            timeout_s: Time without anything new after which a read fails.
            brokers: Shared with other readers; their owner closes it.
        """
        self._own = brokers is None
        self.brokers = brokers if brokers is not None else PartitionLeaders(access)
        self._timeout_s = timeout_s
        self._scratch = BytesWriter()

    async def read(self, topic: str, number: int, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the batches with offsets from `start` to before `end`. If the log's front was deleted, begin behind
        it.

        Cost: a request for each READ_SIZE_MAX bytes.

        Raises:
            KafkaDisconnected: Nothing new for `timeout_s`, and `end` is not reached.
            KafkaRefused: The partition may not be read.
        """
        offset = start
        patience = Backoff(self._timeout_s)
        slices = LoopSlice()
        while offset < end:
            try:
                found = await self._fetch(topic, number, offset)
            except (OSError, KafkaIncompatible, BadAnswer) as error:
                await patience.wait(f"{topic} {number}: {error}")
                continue
            if found.code:
                offset = max(offset, await self._refused(found, offset, patience))
                continue
            batches = found.batches()
            if not batches:
                await patience.wait(f"{topic} {number} ends at {found.high_watermark}, before {end}")
                continue
            patience.reset()
            for batch in batches:
                header = BatchHeader(batch, 0)
                if header.base_offset >= end:
                    return
                if header.last_offset < offset:
                    continue
                offset = int(header.last_offset) + 1
                if header.count:
                    yield batch
                if slices.is_over:
                    await slices.yield_loop()

    async def offsets(self, topic: str, numbers: Iterable[int], when: int = LATEST) -> dict[int, int]:
        """Return the high watermark of each partition, or its first offset (EARLIEST).

        Cost: a request for each broker that leads one.
        Raises: KafkaDisconnected, KafkaRefused.
        """
        left = set(numbers)
        found: dict[int, int] = {}
        patience = Backoff(self._timeout_s)
        while left:
            why = ""
            by_leader: dict[int, list[int]] = {}
            try:
                for number in sorted(left):
                    by_leader.setdefault(await self.brokers.leader(topic, number), []).append(number)
                for leader, asked in by_leader.items():
                    for number, code, offset in await self._offsets(topic, leader, asked, when):
                        if code == 0:
                            found[number] = offset
                            left.discard(number)
                            continue
                        why = f"{topic} {number}: {code_of(code).name}"
                        if code_of(code).remedy == PARTITION:
                            raise KafkaRefused(why)
                        self.brokers.invalidate(topic, number)
            except (OSError, KafkaIncompatible, BadAnswer) as error:
                why = f"{topic}: {error}"
                for number in left:
                    self.brokers.invalidate(topic, number)
            if left:
                await patience.wait(why)
        return found

    async def next_existing(self, topic: str, number: int, offset: int) -> int:
        """Return the partition's first offset if all records from `offset` to there are deleted, else `offset`.

        Raises: as `offsets`.
        """
        first = (await self.offsets(topic, [number], EARLIEST))[number]
        if first > offset:
            logger.warning("%s %d begins at %d, the records from %d on are deleted", topic, number, first, offset)
        return max(first, offset)

    async def _offsets(self, topic: str, leader: int, numbers: list[int], when: int) -> list[tuple[int, int, int]]:
        """Ask one broker. Return (partition, code, offset) of each."""
        connection = await self.brokers.connection(leader)
        name = topic.encode()
        data = await connection.request(lambda n: encode_list_offsets(n, connection.client_id, name, numbers, when))
        return [(int(each.partition), int(each.code), int(each.offset)) for each in decode_list_offsets(data)]

    async def _fetch(self, topic: str, number: int, offset: int) -> Fetched:
        leader = await self.brokers.leader(topic, number)
        place = FetchPlace(topic.encode(), number, offset, READ_SIZE_MAX)
        try:
            connection = await self.brokers.connection(leader)
            name, scratch = connection.client_id, self._scratch
            data = await connection.request(lambda n: encode_fetch(scratch, n, name, 0, READ_SIZE_MAX, [place]))
        except (OSError, KafkaIncompatible):
            self.brokers.invalidate(topic, number)
            raise
        try:
            found = _fetched(data)
            if len(found) != 1:
                raise BadAnswer(f"{len(found)} partitions are answered, one was requested")
            return found[0]
        except BadAnswer as error:
            connection.abort(str(error))
            raise

    async def _refused(self, found: Fetched, offset: int, patience: Backoff) -> int:
        """Handle an error code and return the offset to continue from."""
        topic, number = found.topic.decode(), int(found.partition)
        row = code_of(found.code)
        if found.code == _OUT_OF_RANGE:
            first = await self.next_existing(topic, number, offset)
            if first > offset:
                return first
        elif row.remedy == PARTITION:
            raise KafkaRefused(f"{topic} {number}: {row.name}")
        self.brokers.invalidate(topic, number)
        await patience.wait(f"{topic} {number} at offset {offset}: {row.name}")
        return offset

    async def close(self) -> None:
        """Close the connections; running reads raise KafkaDisconnected."""
        if self._own:
            await self.brokers.close()


class FollowedPartition:
    """A partition that a `TopicFollower` follows.

    Attributes:
        next_offset: The callback was called for all lower offsets.
        is_refused: Kafka has answered the last request with an error that is not about the leader.
    """

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.next_offset = 0
        self.name = f"{topic} {number}"
        self.leader = -1
        self.is_refused = False
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    def advance(self, offset: int) -> None:
        self.next_offset = max(self.next_offset, offset)
        for each in self.waiting[:]:
            if each[0] <= self.next_offset:
                self.waiting.remove(each)
                if not each[1].done():
                    each[1].set_result(None)


Take = Callable[[FollowedPartition, bytes], Awaitable[None]]


class TopicFollower:
    """Follows partitions as they grow, with a request at a time to each broker that leads some of them.

    Kafka answers when there is something new. Cost: two requests a second and broker if nothing happens.

    Used on the event loop. Call `close` at the end.

    Args:
        take: Gets each batch in the order of its partition, and is awaited. An exception ends the follower and is
            kept in `failed`.
        on_failed: Called with that exception.
    """

    def __init__(
        self, access: KafkaAccess, take: Take, on_failed: Callable[[BaseException], None] = lambda _: None
    ) -> None:
        self._take = take
        self._on_failed = on_failed
        self._brokers = PartitionLeaders(access)
        self._reader = KafkaReader(access, brokers=self._brokers)
        self._followed: list[FollowedPartition] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pauses: dict[int, float] = {}  # pause before the next try, by broker
        self._finding: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._slices = LoopSlice()
        self._scratch = BytesWriter()
        self.failed: BaseException | None = None
        self._closed = False
        self._name = "the topics that are followed"

    def follow(self, topic: str, number: int) -> FollowedPartition:
        """Follow a partition from offset 0. If the log's front was deleted, begin behind it."""
        followed = FollowedPartition(topic, number)
        self._followed.append(followed)
        self._find_leaders_soon()
        return followed

    async def wait_reached(self, followed: FollowedPartition, offset: int) -> None:
        """Wait until the callback has got all offsets below `offset`. Raises KafkaDisconnected if it never will."""
        if self._closed:
            raise KafkaDisconnected("the follower has ended") from self.failed
        if followed.next_offset < offset:
            future: asyncio.Future[None] = self._loop.create_future()
            followed.waiting.append((offset, future))
            await future

    async def wait_caught_up(self, followed: Iterable[FollowedPartition]) -> None:
        """Wait until the callback has got everything that Kafka has now. Raises KafkaDisconnected, KafkaRefused."""
        by_topic: dict[str, list[FollowedPartition]] = {}
        for each in followed:
            by_topic.setdefault(each.topic, []).append(each)
        for topic, partitions in by_topic.items():
            ends = await self._reader.offsets(topic, [each.number for each in partitions])
            for each in partitions:
                await self.wait_reached(each, ends[each.number])

    async def close(self) -> None:
        """Stop; waiting tasks get KafkaDisconnected."""
        self._closed = True
        self._end(self._followed, KafkaDisconnected("the follower has ended"))
        tasks = [*self._tasks.values(), *([self._finding] if self._finding is not None else [])]
        tasks = [task for task in tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._brokers.close()

    @staticmethod
    def _end(followed: Iterable[FollowedPartition], error: BaseException) -> None:
        for each in followed:
            waiting, each.waiting = each.waiting, []
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)

    # -- leaders

    def _find_leaders_soon(self) -> None:
        if self._finding is None and not self._closed:
            self._finding = self._loop.create_task(self._find_leaders())

    async def _find_leaders(self) -> None:
        """Find a leader for each partition that has none, and start a task for each leader."""
        pause = PAUSE_S
        try:
            while True:
                left = [each for each in self._followed if each.leader < 0]
                asked = (self._brokers.leader(each.topic, each.number) for each in left)  # all with one request
                why: object = ""
                for each, leader in zip(left, await asyncio.gather(*asked, return_exceptions=True), strict=True):
                    if isinstance(leader, int):
                        each.leader = leader
                    else:
                        why = leader
                outages = self._brokers.access.outages
                if why:
                    outages.report_failure(self._name, why)
                else:
                    outages.report_success(self._name)
                for leader in {each.leader for each in self._followed if each.leader >= 0}:
                    if leader not in self._tasks:
                        self._tasks[leader] = self._loop.create_task(self._read_broker(leader))
                if all(each.leader >= 0 for each in self._followed):
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_S_MAX)
        finally:
            self._finding = None

    def _lost(self, followed: FollowedPartition) -> None:
        followed.leader = -1
        self._brokers.invalidate(followed.topic, followed.number)

    # -- one broker

    async def _read_broker(self, leader: int) -> None:
        """Read the partitions that this broker leads, until it leads none or the connection ends."""
        connection: KafkaConnection | None = None
        try:
            connection = await self._brokers.open(leader)
            while await self._fetch_once(leader, connection):
                self._pauses.pop(leader, None)
        except (OSError, KafkaIncompatible, KafkaRefused, BadAnswer) as error:
            if not self._closed:
                self._brokers.access.outages.report_failure(self._name, error)
            await self._pause(leader)
        except _CallbackFailed as error:
            self._fail(error.__cause__ or error)
        except Exception:
            logger.exception(
                "broker %d: a bug in amqpd, please report it; the follower looks up the leaders again", leader
            )
            await self._pause(leader)
        finally:
            del self._tasks[leader]
            for each in self._followed:
                if each.leader == leader:
                    self._lost(each)
            if connection is not None:
                await connection.close()
            self._find_leaders_soon()

    async def _pause(self, leader: int) -> None:
        """Wait before the next try; the pause doubles each time."""
        pause = self._pauses.get(leader, PAUSE_S)
        self._pauses[leader] = min(2 * pause, PAUSE_S_MAX)
        await asyncio.sleep(pause)

    def _fail(self, error: BaseException) -> None:
        """End the follower because the callback has failed: later batches must not be processed."""
        if self._closed:
            return
        self.failed = error
        logger.error("the follower has ended because its callback has failed", exc_info=error)
        self._closed = True
        self._end(self._followed, KafkaDisconnected("the follower has ended"))
        self._on_failed(error)

    async def _fetch_once(self, leader: int, connection: KafkaConnection) -> bool:
        """Send one request and process its answer. Return whether the broker leads any partition."""
        led = sorted((each for each in self._followed if each.leader == leader), key=lambda each: each.topic)
        if not led:
            return False
        by_place = {(each.topic.encode(), each.number): each for each in led}
        places = [
            FetchPlace(each.topic.encode(), each.number, each.next_offset, FOLLOW_PARTITION_SIZE_MAX) for each in led
        ]
        name, scratch = connection.client_id, self._scratch
        data = await connection.request(
            lambda n: encode_fetch(scratch, n, name, FOLLOW_WAIT_MS, FOLLOW_SIZE_MAX, places)
        )
        for found in _fetched(data):
            followed = by_place.get((found.topic, int(found.partition)))
            if followed is None or followed not in self._followed:
                continue
            if found.code:
                await self._handle_error(followed, found)
                continue
            if followed.is_refused:
                followed.is_refused = False
                self._brokers.access.outages.report_success(followed.name)
            if found.end > found.start:
                # Partitions with records move to the end of the next request: a full answer may leave out the last
                # ones.
                self._followed.remove(followed)
                self._followed.append(followed)
                await self._deliver(followed, found.batches())
        return True

    async def _deliver(self, followed: FollowedPartition, batches: list[bytes]) -> None:
        for batch in batches:
            header = BatchHeader(batch, 0)
            if header.last_offset < followed.next_offset:
                continue
            if header.count:
                try:
                    await self._take(followed, batch)
                except Exception as error:
                    raise _CallbackFailed from error
            followed.advance(int(header.last_offset) + 1)
            if self._slices.is_over:
                await self._slices.yield_loop()
            if self._closed or followed not in self._followed:
                return

    async def _handle_error(self, followed: FollowedPartition, found: Fetched) -> None:
        row = code_of(found.code)
        if found.code == _OUT_OF_RANGE:
            first = await self._reader.next_existing(followed.topic, followed.number, followed.next_offset)
            if first > followed.next_offset:
                followed.advance(first)
                return
        if row.remedy == LEADER:
            logger.info("%s %d at %d: %s", followed.topic, followed.number, followed.next_offset, row.name)
        else:
            followed.is_refused = True
            text = f"{row.name} at offset {followed.next_offset}"
            self._brokers.access.outages.report_failure(followed.name, text)
        self._lost(followed)
        await asyncio.sleep(PAUSE_S)
        self._find_leaders_soon()


class _CallbackFailed(Exception):
    """The callback has raised an exception."""


class Backoff:
    """Growing pauses between tries, with a time limit."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.reset()

    def reset(self) -> None:
        self._until = time.monotonic() + self._timeout_s
        self._pause = PAUSE_S / 8

    async def wait(self, why: str) -> None:
        """Wait before another try. Raises KafkaDisconnected if the time is up."""
        if time.monotonic() + self._pause > self._until:
            raise KafkaDisconnected(f"{why} (for {self._timeout_s:g} s)")
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_S_MAX)


class LoopSlice:
    """The time after which long work yields to the event loop: `if slices.is_over: await slices.yield_loop()`."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_S

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._until

    async def yield_loop(self) -> None:
        await asyncio.sleep(0)
        self._until = time.perf_counter() + SLICE_S


def _fetched(data: bytes) -> list[Fetched]:
    code, found = decode_fetch(data)
    if code:
        raise BadAnswer(f"Fetch was answered with {code_of(code).name}")
    return found
