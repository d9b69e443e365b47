"""What is live of a queue's log comes back from Kafka: at its first use by a new owner, or one log after the other
behind a takeover (`read_all`), whichever comes first; nobody but who asked waits.

Of those that are asked for some are read at once, each in parts of FILL_SIZE between which the loop has its turn. What
Kafka does not answer is asked for again until the slot is given up; where the log cannot be read, who asked is told,
and the next who asks goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from amqpd.kafka.connection import KafkaLost
from amqpd.cluster.fronts import Fronts
from amqpd.kafka.producer import KafkaRefused
from amqpd.storage.log.batch import BatchHeader
from amqpd.cluster.replicated_log import ReplicatedLog

logger = logging.getLogger(__name__)

Read = Callable[[str, int, int, int], AsyncIterator[bytes]]
"""(topic, partition, first offset, behind the last) -> its batches: `KafkaReader.read`."""

FILL_SIZE: Final = 128 * 1024
FILLS_AT_ONCE: Final = 4
RETRY_S: Final = 1.0


def left_of(log: ReplicatedLog) -> list[tuple[int, int]]:
    """What of it is to be read; the barrier, which is the last record of those before, is not."""
    return log.spans(log.end_offset - 1)


def _length(log: ReplicatedLog) -> int:
    return sum(end - first for first, end in left_of(log))


class _Filling:
    """A log that is read back. spans: what is left of it. task: None where it has stopped."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self.spans = spans
        self.waiting: list[Callable[[], None]] = []
        self.task: asyncio.Task[None] | None = None


class ReadingBack:
    """Of the logs of one slot. Loop thread only; `close` it."""

    def __init__(self, read: Read, fronts: Fronts) -> None:
        self._read = read
        self._fronts = fronts
        self._filling: dict[ReplicatedLog, _Filling] = {}
        self._turn = asyncio.Semaphore(FILLS_AT_ONCE)
        self._behind: asyncio.Task[None] | None = None

    def read_all(self, logs: Iterable[ReplicatedLog]) -> None:
        """Those that nobody has asked for are read one after the other, the shortest first."""
        left = [log for log in logs if not log.ready and not log.deleted]
        if left and self._behind is None:
            left.sort(key=_length)
            self._behind = asyncio.get_running_loop().create_task(self._read_all(left))

    async def _read_all(self, logs: list[ReplicatedLog]) -> None:
        for log in logs:
            if log.ready or log.deleted or log in self._filling:
                continue
            read = asyncio.Event()
            self.open(log, read.set)
            await read.wait()
        self._behind = None

    def open(self, log: ReplicatedLog, done: Callable[[], None]) -> bool:
        """See `QueueLog.open_soon`, of one that is not ready."""
        filling = self._filling.get(log)
        if filling is None:
            filling = self._filling[log] = _Filling(left_of(log))
        if filling.task is None:
            filling.task = asyncio.get_running_loop().create_task(self._fill(log, filling))
        filling.waiting.append(done)
        return False

    async def _fill(self, log: ReplicatedLog, filling: _Filling) -> None:
        try:
            async with self._turn:
                while filling.spans and not log.deleted:
                    try:
                        await self._fill_span(log, filling)
                    except KafkaLost as error:
                        logger.warning("queue '%s' is still being read from Kafka: %s", log.name, error)
                        await asyncio.sleep(RETRY_S)
                if not log.deleted:
                    log.filled()
                del self._filling[log]
        except (OSError, KafkaRefused) as error:
            logger.error("queue '%s' cannot be read from Kafka: %s", log.name, error)
        except Exception:
            logger.exception("queue '%s' cannot be read from Kafka", log.name)
        filling.task = None
        waiting, filling.waiting = filling.waiting, []
        for done in waiting:
            done()

    async def _fill_span(self, log: ReplicatedLog, filling: _Filling) -> None:
        partition = log.partition
        assert partition is not None  # it was opened
        first, end = filling.spans[0]
        part: list[bytes] = []
        size = 0
        async for batch in self._read(partition.topic.decode(), int(partition.number), first, end):
            part.append(batch)
            size += len(batch)
            if size >= FILL_SIZE:
                self._fill_part(log, filling, part)
                part, size = [], 0
                await asyncio.sleep(0)
                if log.deleted:
                    return
        if part:
            self._fill_part(log, filling, part)
        filling.spans.pop(0)

    def _fill_part(self, log: ReplicatedLog, filling: _Filling, batches: list[bytes]) -> None:
        log.fill(batches)
        span = self._fronts.span(log)
        for batch in batches:
            span.add(int(BatchHeader(batch, 0).base_offset), len(batch))
        filling.spans[0] = (int(BatchHeader(batches[-1], 0).last_offset) + 1, filling.spans[0][1])

    async def close(self) -> None:
        """Nothing of it goes on. Who waits is told, and finds it as it is: not read."""
        tasks = [each.task for each in self._filling.values() if each.task is not None]
        if self._behind is not None:
            tasks.append(self._behind)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop = asyncio.get_running_loop()
        for filling in self._filling.values():
            for done in filling.waiting:
                loop.call_soon(done)
        self._filling.clear()
