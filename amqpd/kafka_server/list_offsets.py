"""ListOffsets: the first and the next offset of a topic, and the first offset of a time.

    -1  latest: the high watermark, or the last stable offset for readers of committed records
    -2  earliest: the start of the log; -4, of the part on local disks, is the same
    -3  the record with the latest time; a search for that time, after everything appended is below the high watermark
    -5  the latest offset in tiered storage: none
    t   the first record of that time or later: an index gives a lower bound, then batches are read

A search reads SCAN_BATCHES_MAX batches per turn of the event loop, and does not wait for the disk. The partitions of a
request are looked up one after the other, for a slice of each turn.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.fetch_wire import PARTITIONS_MAX, READ_COMMITTED
from amqpd.kafka_server.pace import SLICE_S, Steps

if TYPE_CHECKING:
    from amqpd.storage.queue_log import Cursor, QueueLog

log = logging.getLogger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
SCAN_BATCHES_MAX: Final = 64


class _Partition(topics.WantedPartition):
    """A partition of a request, and its answer.

    Attributes:
        timestamp_ms: the wanted time, or one of the numbers above.
        wanted_ms: the time that is searched for; -1 before the search.
        position: where the search continues; -1 before the search.
    """

    __slots__ = ("cursor", "offset", "position", "timestamp_ms", "wanted_ms")

    def __init__(self, index: int, timestamp_ms: int) -> None:
        super().__init__(index)
        self.timestamp_ms = timestamp_ms
        self.offset = self.wanted_ms = self.position = -1
        self.cursor: Cursor | None = None

    def answer(self) -> dict[str, Any]:
        """Return the fields of the response."""
        found_ms = self.wanted_ms if self.offset >= 0 and self.error_code == errors.NONE else -1
        return {
            "partition_index": self.index,
            "error_code": self.error_code,
            "timestamp": found_ms,
            "offset": self.offset if self.error_code == errors.NONE else -1,
            "leader_epoch": -1,
        }


class _Lookup:
    """A request until its answer."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._fetches = call.connection.server.fetches
        self._topics: list[tuple[str, list[_Partition]]] = []
        self._left: list[_Partition] = []  # last one first
        self._committed = call.request.isolation_level == READ_COMMITTED
        self._waits_for: QueueLog | None = None
        self._is_answered = False

    def begin(self) -> Steps[None]:
        """Open the logs, then look up. Raises: MalformedRequest."""
        request = self._call.request
        topics.check_count(sum(max(len(topic.partitions), 1) for topic in request.topics), PARTITIONS_MAX)
        for topic in request.topics:
            partitions = [_Partition(each.partition_index, each.timestamp) for each in topic.partitions]
            self._topics.append((topic.name, partitions))
        yield from topics.open_partitions(
            self._call, [(name or "", partitions) for name, partitions in self._topics], "read", self._opened
        )

    def _opened(self) -> None:
        self._left = [each for _, partitions in self._topics for each in partitions if each.store is not None]
        self._left.reverse()
        self._look_up_all()

    def _look_up_all(self) -> None:
        """Look up the partitions that are left. Then answer."""
        if self._is_answered:
            return
        connection = self._call.connection
        until_s = time.monotonic() + SLICE_S
        try:
            while self._left and not connection.closed:
                if not self._look_up(self._left[-1]):
                    return
                self._end_search(self._left.pop())
                if self._left and time.monotonic() >= until_s:
                    connection.server.pace.later(self._look_up_all)
                    return
            self._end_wait()
            if not connection.closed:
                self._is_answered = True
                self._call.reply(
                    {
                        "topics": [
                            {"name": name, "partitions": [each.answer() for each in partitions]}
                            for name, partitions in self._topics
                        ]
                    }
                )
            elif self._left:
                self._end_search(self._left.pop())
        except Exception:
            # A caller is the log's commit, which must go on.
            log.exception("a bug in amqpd, please report it", extra=connection.log_fields())
            connection.close("")

    def _look_up(self, each: _Partition) -> bool:
        """Look up one partition. Return False if it must wait; then `_look_up_all` will be called."""
        store = each.store
        assert store is not None  # only open ones are in `_left`
        if store.deleted:
            each.error_code = errors.UNKNOWN_TOPIC_OR_PARTITION
            return True
        wanted = each.timestamp_ms
        if wanted == LATEST:
            each.offset = store.last_stable_offset if self._committed else store.high_watermark
        elif wanted in (EARLIEST, EARLIEST_LOCAL):
            each.offset = store.log_start()
        elif wanted < LATEST_TIERED:
            each.error_code = errors.INVALID_REQUEST
        elif wanted != LATEST_TIERED:
            try:
                return self._search(store, each)
            except OSError as error:
                fields = self._call.connection.log_fields()
                log.error("queue '%s' cannot be read: %s", store.name, error, extra=fields)
                each.error_code = errors.STORAGE_ERROR
        return True

    def _search(self, store: QueueLog, each: _Partition) -> bool:
        """Search for a time. Return False if the search must wait. Raises: OSError."""
        if each.wanted_ms < 0:
            each.wanted_ms = each.timestamp_ms
            if each.timestamp_ms == MAX_TIMESTAMP:
                each.wanted_ms = store.latest_time_ms()
                if each.wanted_ms < 0:
                    return True
                if store.high_watermark < store.next_offset:
                    store.when_safe(store.next_offset - 1, partial(self._became_safe, each))
                    self._fetches.broker.turn.schedule()
                    return False
        if each.position < 0:
            each.position = max(store.offset_before(each.wanted_ms), store.log_start())
            each.cursor = self._fetches.take_cursor(store, each.position)
            self._end_wait()
            self._waits_for = store
            self._fetches.wait(store, self)
        cursor = each.cursor
        assert cursor is not None  # the search has begun
        found = cursor.find_time_below_hw(
            each.position, each.wanted_ms, SCAN_BATCHES_MAX, self._look_up_all, self._committed
        )
        if found.next_offset < 0:
            each.offset = found.offset
            each.wanted_ms = found.timestamp_ms
            return True
        each.position = found.next_offset
        if not found.waiting:
            self._fetches.pace.later(self._look_up_all)
        return False

    def _became_safe(self, each: _Partition, safe: bool) -> None:
        if not safe:
            each.error_code = errors.STORAGE_ERROR
            each.timestamp_ms = LATEST_TIERED  # nothing more is looked up
        self._look_up_all()

    def on_log_moved(self, store: QueueLog) -> None:
        """Continue if the log was deleted: the disk does not answer any more."""
        if store.deleted:
            self._look_up_all()

    def cancel(self) -> None:
        """Release everything: the broker stops."""
        self._end_wait()
        self._left.clear()

    def _end_search(self, each: _Partition) -> None:
        if each.cursor is not None:
            each.cursor.close()
            each.cursor = None

    def _end_wait(self) -> None:
        if self._waits_for is not None:
            self._fetches.end_wait(self._waits_for, self)
            self._waits_for = None


def _list_offsets(call: Call) -> Steps[None]:
    return _Lookup(call).begin()


LIST_OFFSETS: Final = typed_api(2, "ListOffsets", 1, 9, 6, _list_offsets)
