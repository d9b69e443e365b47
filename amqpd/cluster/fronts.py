"""Space in Kafka: what stands before a log's head is freed, now and then, by DeleteRecords, which frees from the front
only.

How much a log has in Kafka (its *span*, from its head to its end, settled or not) is counted by what was appended, to
MARK_BYTES exact. A span that is large and holds little that is live is one message that nobody settles, with all that
came behind it: told once in the broker's log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from amqpd.storage.log.batch import ClosedBatch
from amqpd.cluster.replicated_log import ReplicatedLog

logger = logging.getLogger(__name__)

DeleteRecords = Callable[[str, Mapping[int, int]], Awaitable[object]]
"""(topic, partition -> offset): what stands before it goes: `Topics.delete_records`."""

MARK_BYTES: Final = 1 << 20
FREE_BYTES: Final = 4 << 20
"""So much is freed at once, or all there is where nothing live is left."""
REST_BYTES: Final = 64 * 1024
"""Less than that stays, also of an empty log."""
WIDE_BYTES: Final = 1 << 30
LIVE_SHARE: Final = 100
"""A span of over WIDE_BYTES of which less than one in LIVE_SHARE bytes is live."""


class Span:
    """Bytes of one log in Kafka, by offset."""

    def __init__(self) -> None:
        self.freed_offset = 0
        self.told = False
        self._total = 0
        self._marks: deque[tuple[int, int]] = deque()  # (first offset of a batch, bytes before it)
        self._freed = 0

    def add(self, base_offset: int, size: int) -> None:
        """A batch has come behind the others."""
        marks = self._marks
        if not marks or self._total - marks[-1][1] >= MARK_BYTES:
            marks.append((base_offset, self._total))
        self._total += size

    def add_batches(self, batches: Iterable[ClosedBatch]) -> None:
        for batch in batches:
            self.add(int(batch.base_offset), int(batch.size))

    def _before(self, offset: int) -> int:
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= offset:
            marks.popleft()
        return marks[0][1] if marks and marks[0][0] <= offset else self._freed

    def size_bytes(self, head: int, end: int) -> int:
        """From the head on, which is never less than it was."""
        return 0 if head >= end else self._total - self._before(head)

    def due(self, head: int, end: int) -> bool:
        """Whether there is enough before the head to be freed."""
        gone = (self._total if head >= end else self._before(head)) - self._freed
        return head > self.freed_offset and (gone >= FREE_BYTES or (head >= end and gone >= REST_BYTES))

    def free(self, head: int, end: int) -> None:
        """It is freed."""
        self.freed_offset = head
        self._freed = self._total if head >= end else self._before(head)


class Fronts:
    """Of the logs of one slot."""

    def __init__(self) -> None:
        self.spans: dict[ReplicatedLog, Span] = {}

    def span(self, log: ReplicatedLog) -> Span:
        """Its span, empty where nothing has come yet."""
        found = self.spans.get(log)
        if found is None:
            found = self.spans[log] = Span()
        return found

    def forget(self, log: ReplicatedLog) -> None:
        """It is not of this slot any more."""
        self.spans.pop(log, None)

    def look(self) -> dict[str, dict[int, tuple[ReplicatedLog, int]]]:
        """What is to be freed: topic -> partition -> (log, before which offset). Cost: 1 us a log that was written
        to.
        """
        due: dict[str, dict[int, tuple[ReplicatedLog, int]]] = {}
        for log, span in self.spans.items():
            partition = log.partition
            if partition is None or log.failed or log.deleted or not log.ready:
                continue
            head, end = int(log.settlements.head), int(log.next_offset)
            size = span.size_bytes(head, end)
            log.span_bytes = size
            if size > WIDE_BYTES and log.size_bytes * LIVE_SHARE < size and not span.told:
                span.told = True
                logger.warning(
                    "queue '%s': Kafka keeps %d MiB for %d messages of %d bytes, since the oldest is not settled",
                    log.name,
                    size >> 20,
                    log.record_count,
                    log.size_bytes,
                )
            elif size <= WIDE_BYTES // 2:
                span.told = False
            if span.due(head, end):
                due.setdefault(partition.topic.decode(), {})[int(partition.number)] = (log, head)
        return due

    async def free(self, delete_records: DeleteRecords) -> int:
        """Has Kafka free what may go. Returns how many logs that concerned. Raises: what `delete_records` does."""
        count = 0
        for topic, partitions in self.look().items():
            await delete_records(topic, {number: head for number, (_, head) in partitions.items()})
            for log, head in partitions.values():
                span = self.spans.get(log)
                if span is not None:
                    span.free(head, int(log.next_offset))
            count += len(partitions)
        return count
