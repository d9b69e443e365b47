"""Fetch, and the requests that wait for records (`WaitingFetches`). list_offsets.py has ListOffsets.

A request reads its partitions in their order, each up to PARTITION_BYTES_MAX, without waiting for the disk: whole
batches below the high watermark, the first one even if it is larger than all limits. If it has less than `min_bytes`,
it waits. Each rise of a high watermark adds to what it has read, so nothing is read twice. It is answered when it has
enough, when a partition is full or has an error, or after `max_wait_ms`.

The memory of a connection is bounded: its answered, unsent responses and its waiting requests have RESPONSE_BYTES_MAX
together, plus one batch. Only one request of a connection waits; clients send no second one.

The messages of a classic or quorum queue are read without being taken: those that are ready or unacked now. A request
gets them as one batch, in which the offsets of settled messages are missing, as after compaction.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from amqpd.broker.flow.timers import Timer
from amqpd.broker.vhost.limits import CONSUMER_BYTE_RATE
from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.fetch_wire import (
    FLEXIBLE,
    TOPIC_IDS,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_steps,
    encode_steps,
)
from amqpd.kafka_server.list_offsets import LIST_OFFSETS
from amqpd.kafka_server.message_records import read_messages
from amqpd.kafka_server.pace import SLICE_S, Pace, Steps
from amqpd.kafka_server.quotas import count_bytes

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.kafka_server.connection import KafkaClientConnection
    from amqpd.storage.queue_log import Cursor, QueueLog

log = logging.getLogger(__name__)

PARTITION_BYTES_MAX: Final = 1 << 20
RESPONSE_BYTES_MAX: Final = 16 << 20
"""Larger responses would hold up the event loop for more than 10 ms."""
CURSORS_MAX: Final = 64
"""Idle cursors, which continue without a look-up. Each has up to 256 KiB in memory."""
SLOW_MS: Final = 10_000
"""Time after `max_wait_ms` for a disk that has not delivered, or a log that is being opened."""


class LogWaiter(Protocol):
    """A request that waits for a log."""

    def on_log_moved(self, store: QueueLog) -> None:
        """Continue: the high watermark rose, or the log was deleted or failed."""

    def cancel(self) -> None:
        """Release everything: the connection is closed."""


class WaitingFetches:
    """The requests that wait for a log, the idle cursors, and the unsent responses of each connection."""

    def __init__(self, broker: Broker, pace: Pace) -> None:
        self.broker = broker
        self.pace = pace
        self._waiters: dict[QueueLog, dict[LogWaiter, None]] = {}
        # Logs that will call `_moved`.
        self._watched: set[QueueLog] = set()
        self._unsent: dict[KafkaClientConnection, list[_Fetch]] = {}
        self._idle: dict[tuple[QueueLog, int], Cursor] = {}

    def stop(self) -> None:
        """Cancel all requests: the broker stops."""
        for waiters in list(self._waiters.values()):
            for waiter in list(waiters):
                waiter.cancel()
        for cursor in self._idle.values():
            cursor.close()
        self._idle.clear()
        self._unsent.clear()

    # -- logs

    def wait(self, store: QueueLog, waiter: LogWaiter) -> None:
        """Call `waiter.on_log_moved` with each move of the log, until `end_wait`."""
        self._waiters.setdefault(store, {})[waiter] = None
        self._watch(store)

    def end_wait(self, store: QueueLog, waiter: LogWaiter) -> None:
        """Do not call the waiter any more."""
        waiters = self._waiters.get(store)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[store]

    def _watch(self, store: QueueLog) -> None:
        """Have `_moved` called once. A failed log has no more moves."""
        if store not in self._watched and not store.failed:
            self._watched.add(store)
            store.when_safe(store.high_watermark, partial(self._moved, store))

    def _moved(self, store: QueueLog, safe: bool) -> None:
        self._notify(store, store.high_watermark, deque(self._waiters.get(store, ())))

    def _notify(self, store: QueueLog, seen: int, waiters: deque[LogWaiter]) -> None:
        """Tell these waiters, some in each turn, that the log has moved to `seen` or further."""
        until_s = time.monotonic() + SLICE_S
        while waiters:
            waiter = waiters.popleft()
            if waiter in self._waiters.get(store, ()):
                waiter.on_log_moved(store)
            if waiters and time.monotonic() >= until_s:
                self.pace.later(partial(self._notify, store, seen, waiters))
                return
        if store in self._waiters and store.high_watermark > seen:
            self._moved(store, True)  # it has moved again meanwhile
            return
        self._watched.discard(store)
        if store in self._waiters:
            self._watch(store)

    # -- cursors

    def take_cursor(self, store: QueueLog, offset: int) -> Cursor:
        """Return an idle cursor at this offset, otherwise a new one."""
        cursor = self._idle.pop((store, offset), None)
        return store.new_cursor() if cursor is None else cursor

    def release_cursor(self, store: QueueLog, offset: int, cursor: Cursor) -> None:
        """Make a cursor at this offset idle. If there are too many, the one idle for longest is closed."""
        if store.deleted or (store, offset) in self._idle:
            cursor.close()
            return
        self._idle[store, offset] = cursor
        if len(self._idle) > CURSORS_MAX:
            self._idle.pop(next(iter(self._idle))).close()

    # -- connections

    def add(self, fetch: _Fetch) -> bool:
        """Add a request. Return whether it may wait: the connection has no other one that is not answered."""
        connection = fetch.call.connection
        fetches = self._unsent.get(connection)
        if fetches is None:
            fetches = self._unsent[connection] = []
            connection.on_close.append(partial(self._closed, connection))
        else:
            fetches[:] = [each for each in fetches if not each.call.is_sent]
        may_wait = all(each.call.is_done for each in fetches)
        fetches.append(fetch)
        return may_wait

    def unsent_bytes(self, connection: KafkaClientConnection) -> int:
        """Return the bytes of batches that this connection's requests have in memory."""
        return sum(fetch.size_bytes for fetch in self._unsent.get(connection, ()) if not fetch.call.is_sent)

    def _closed(self, connection: KafkaClientConnection) -> None:
        for fetch in self._unsent.pop(connection, ()):
            fetch.cancel()


class _Fetch(Timer):
    """A request until its answer. The timer is that of `max_wait_ms`. bytes_max: what the user's rate allows."""

    def __init__(self, fetches: WaitingFetches, call: Call, request: FetchRequest, bytes_max: int) -> None:
        super().__init__()
        self.call = call
        self.size_bytes = 0
        self._fetches = fetches
        self._topics = request.topics
        self._max_bytes = min(max(request.max_bytes, 0), RESPONSE_BYTES_MAX, bytes_max)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._committed = request.committed
        self._wait_ms = request.max_wait_ms if fetches.add(self) else 0
        self._gone = errors.UNKNOWN_TOPIC_ID if call.version >= TOPIC_IDS else errors.UNKNOWN_TOPIC_OR_PARTITION
        self._done = False
        self._expired = self._wait_ms <= 0
        self._slow = False  # the timer is that of SLOW_MS
        self._opening = True  # logs are being opened
        self._is_paused = False  # it continues in another turn
        self._has_end = False  # a partition is full or has an error
        self._unread: deque[FetchPartition] = deque()  # last one first
        self._by_log: dict[QueueLog, list[FetchPartition]] = {}

    def begin(self) -> Steps[None]:
        """Open the logs, then read."""
        timers = self._fetches.broker.timers
        timers.arm(self, timers.now_ms() + (SLOW_MS if self._expired else self._wait_ms))
        self._slow = self._expired
        by_id = self.call.version >= TOPIC_IDS
        wanted: list[tuple[str | UUID, list[FetchPartition]]] = [
            (UUID(bytes=topic.name) if by_id else topic.name.decode("utf-8", "replace"), topic.partitions)
            for topic in self._topics
        ]
        yield from topics.open_partitions(self.call, wanted, "read", self._opened)

    def _opened(self) -> None:
        self._opening = False
        if self._done:
            return
        for topic in self._topics:
            for each in topic.partitions:
                if each.store is not None:
                    self._by_log.setdefault(each.store, []).append(each)
                    self._add_unread(each)
                elif each.error_code:
                    self._has_end = True
        for store in self._by_log:
            self._fetches.wait(store, self)
        self._read_all()

    # -- read

    def _add_unread(self, each: FetchPartition) -> None:
        """Read a partition after those that wait for a read."""
        if not each.is_unread:
            each.is_unread = True
            self._unread.appendleft(each)

    def _read_on(self) -> None:
        self._is_paused = False
        self._read_all()

    def _read_all(self) -> None:
        """Read the partitions that may have more, for a slice in each turn. Then answer, or wait."""
        if self._done or self._is_paused:
            return
        until_s = time.monotonic() + SLICE_S
        try:
            while self._unread:
                each = self._unread[-1]
                if not self._read(each):
                    return  # the disk
                self._unread.pop()
                each.is_unread = False
                if self._unread and time.monotonic() >= until_s:
                    self._is_paused = True
                    self._fetches.pace.later(self._read_on)
                    return
            if self._expired or self._has_enough():
                self._answer()
        except Exception:
            # A caller is the log's commit, which must go on.
            log.exception("a bug in amqpd, please report it", extra=self.call.connection.log_fields())
            self.call.connection.close("")

    def _has_enough(self) -> bool:
        return self.size_bytes >= self._min_bytes or self._has_end or not self._by_log

    def _read(self, each: FetchPartition) -> bool:
        """Add batches of a partition. Return False if the disk is being read."""
        store = each.store
        if store is None or each.error_code or each.is_full:
            return True
        if store.deleted:
            self._fail(each, self._gone)
            return True
        each.log_start = store.log_start()
        each.high_watermark = store.high_watermark
        each.stable_end = store.last_stable_offset
        # Offsets from the high watermark to the end exist, and will soon be readable.
        if not each.parts and not store.segment_start() <= each.offset <= store.next_offset:
            self._fail(each, errors.OFFSET_OUT_OF_RANGE)
            return True
        if each.offset >= (each.stable_end if self._committed else each.high_watermark):
            return True
        unsent = self._fetches.unsent_bytes(self.call.connection)
        room = min(
            self._max_bytes - self.size_bytes,
            RESPONSE_BYTES_MAX - unsent,
            min(each.size_bytes_max, PARTITION_BYTES_MAX) - each.size_bytes,
        )
        one = self.size_bytes == 0 and unsent < RESPONSE_BYTES_MAX
        if room <= 0 and not one:
            each.is_full = self._has_end = True
            return True
        cursor = each.cursor
        each.cursor = None
        if cursor is None:
            cursor = self._fetches.take_cursor(store, each.offset)
        try:
            queue = each.queue
            if queue is not None and queue.kind != "stream":
                batches = read_messages(queue, cursor, each.offset, max(room, 1), self._read_all)
            else:
                batches = cursor.batches_below_hw(each.offset, room, one, self._read_all, self._committed)
        except OSError as error:
            cursor.close()
            log.error("queue '%s' cannot be read: %s", store.name, error, extra=self.call.connection.log_fields())
            self._fail(each, errors.STORAGE_ERROR)
            return True
        each.parts += batches.parts
        if self._committed:
            each.abort_markers += batches.abort_markers
        each.size_bytes += batches.size_bytes
        each.offset = batches.next_offset
        if batches.is_full:
            each.is_full = self._has_end = True
        self.size_bytes += batches.size_bytes
        if batches.waiting and self.size_bytes < max(self._min_bytes, 1):
            each.cursor = cursor
            return False
        self._fetches.release_cursor(store, each.offset, cursor)
        return True

    def _fail(self, each: FetchPartition, error_code: int) -> None:
        """Answer a partition with an error, and without batches."""
        self.size_bytes -= each.size_bytes
        self._has_end = True
        each.error_code = error_code
        each.parts = []
        each.abort_markers = []
        each.size_bytes = 0
        each.high_watermark = each.stable_end = each.log_start = -1

    # -- wait

    def on_log_moved(self, store: QueueLog) -> None:
        is_reading = bool(self._unread)
        for each in self._by_log[store]:
            if store.deleted:
                each.cursor = None  # the disk does not answer any more
            self._add_unread(each)
        if store.deleted or not is_reading:
            self._read_all()

    def fire(self) -> None:
        self._expired = True
        if not self._slow and (self._unread or self._opening):
            self._slow = True
            timers = self._fetches.broker.timers
            timers.arm(self, timers.now_ms() + SLOW_MS)
            return
        self._answer()

    def _answer(self) -> None:
        for topic in self._topics:
            for each in topic.partitions:
                if each.store is None and each.error_code == errors.NONE:
                    each.error_code = errors.NOT_LEADER_OR_FOLLOWER  # its log is still being opened: clients try again
        self._end()
        throttle_ms = count_bytes(self.call, CONSUMER_BYTE_RATE, self.size_bytes)
        self._fetches.pace.run(self.call.connection, _answer_steps(self.call, errors.NONE, self._topics, throttle_ms))
        self._topics = []

    def cancel(self) -> None:
        self._end()
        self._topics = []

    def _end(self) -> None:
        self._done = True
        self._fetches.broker.timers.cancel(self)
        for store, partitions in self._by_log.items():
            self._fetches.end_wait(store, self)
            for each in partitions:
                if each.cursor is not None:
                    self._fetches.release_cursor(store, each.offset, each.cursor)
                    each.cursor = None
        self._by_log = {}
        self._unread.clear()


def _answer_steps(call: Call, error_code: int, answered: list[FetchTopic], throttle_ms: int = 0) -> Steps[None]:
    call.reply_bytes(*(yield from encode_steps(call.version, error_code, answered, throttle_ms)))


def _fetch(call: Call) -> Steps[None]:
    request = yield from decode_steps(call.frame, call.header)
    if request.session_id != 0:
        yield from _answer_steps(call, errors.FETCH_SESSION_ID_NOT_FOUND, [])
        return
    call.frame = b""  # a request that waits does not keep it
    bytes_max = call.connection.server.quotas.fetch_bytes(call)
    if bytes_max == 0:
        yield from _answer_steps(call, errors.NONE, [], count_bytes(call, CONSUMER_BYTE_RATE, 0))
        return
    yield from _Fetch(call.connection.server.fetches, call, request, bytes_max).begin()


APIS: Final = (Api(1, "Fetch", 4, 16, FLEXIBLE, _fetch), LIST_OFFSETS)
