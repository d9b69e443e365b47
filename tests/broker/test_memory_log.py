"""A queue over a QueueLog that is not the local log: the broker does not depend on which log it is.

`MemoryLog` is in memory. Its high watermark moves when a test calls `advance`.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest
from taker import take

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.declaration import make_queue
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.queue_log import Cursor, LogFailed, QueueLog, ReadResult


class MemoryCursor(Cursor):
    """A cursor whose reads wait for `answer`, as on a slow disk, if the log is `slow`."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.waiting: Callable[[], None] | None = None

    def read(self, offset: int, size_bytes_max: int) -> ReadResult:
        records: list[Record] = []
        budget = max(size_bytes_max, 1)
        while budget > 0 and offset < self.log.next_offset:
            record = self.log.records.get(offset)
            offset += 1
            if record is not None:
                record.delivery_count = self.log.returned.get(record.offset, 0)
                records.append(record)
                budget -= len(record.body) + len(record.properties) + 64
        return ReadResult(records, offset, False)

    def read_if_cached(self, offset: int, size_bytes_max: int, arrived: Callable[[], None]) -> ReadResult:
        if self.log.slow:
            self.waiting = arrived
            return ReadResult([], offset, True)
        return self.read(offset, size_bytes_max)

    def read_first(self, offset: int, arrived: Callable[[], None]) -> Record | None:
        fetch = self.read_if_cached(offset, 1, arrived)
        return fetch.records[0] if fetch.records else None

    def answer(self) -> None:
        """Complete the waiting read."""
        self.log.slow = False
        waiting, self.waiting = self.waiting, None
        assert waiting is not None
        waiting()

    def release(self) -> None:
        self.waiting = None

    def close(self) -> None:
        self.release()


class MemoryLog(QueueLog):
    """A log in a dict (offset -> record). `advance` moves the high watermark, `fail` ends the log."""

    def __init__(self, name: str) -> None:
        super().__init__("v1", "memory", name, "", False)
        self.records: dict[int, Record] = {}
        self.returned: dict[int, int] = {}
        self.delivered = -1
        self.safe_end = 0
        self.slow = False
        self.retired = False
        self.places = [MemoryCursor(self)]

    # -- controls for tests

    def advance(self, high_watermark: int) -> None:
        self.safe_end = high_watermark
        self.on_high_watermark()

    def fail(self) -> None:
        self.failed = True
        self.on_high_watermark()

    # -- open and remove

    def recover(self) -> None:
        """The log is always open."""

    def open_soon(self, done: Callable[[], None]) -> bool:
        return True

    def remove(self) -> None:
        self.deleted = self.failed = True

    def retire(self, done: Callable[[], None]) -> None:
        self.remove()
        self.retired = True
        done()

    # -- appending

    def _take(self, route: RecordRoute, properties: bytes, body: bytes, persistent: bool) -> int:
        if self.failed:
            raise LogFailed(self.name)
        offset = self.next_offset
        self.records[offset] = Record(offset, 0, route.exchange, route.routing_key, properties, body, persistent)
        self.next_offset = offset + 1
        self.record_count += 1
        self.size_bytes += len(body)
        return offset

    def append(
        self,
        route: RecordRoute,
        source: bytes,
        properties_start: int,
        properties_end: int,
        body_start: int,
        body_end: int,
        persistent: bool,
    ) -> int:
        return self._take(route, source[properties_start:properties_end], source[body_start:body_end], persistent)

    def append_large(
        self, route: RecordRoute, properties: bytes, parts: list[bytes], body_size: int, persistent: bool
    ) -> int:
        return self._take(route, properties, b"".join(parts), persistent)

    def append_prepared(self, prepared: PreparedTransaction) -> int:
        raise NotImplementedError("no test prepares a transaction for it")

    def begin_transaction(self) -> None:
        """Nothing survives the process, so there is nothing to do."""

    def end_transaction(self) -> None:
        """There is nothing to do."""

    def flush_batches(self) -> None:
        """No batch is pending."""

    @property
    def high_watermark(self) -> int:
        return self.safe_end

    # -- reading

    @property
    def cursor(self) -> Cursor:
        return self.places[0]

    def new_cursor(self) -> Cursor:
        self.places.append(MemoryCursor(self))
        return self.places[-1]

    # -- acks

    def ack(self, offset: int, body_size_bytes: int = 0) -> None:
        if self.records.pop(offset, None) is not None:
            self.record_count -= 1
            self.size_bytes -= body_size_bytes
            self.returned.pop(offset, None)

    def ack_range(self, first: int, last: int, body_size_bytes: int = 0) -> None:
        for offset in range(first, last + 1):
            if (record := self.records.get(offset)) is not None:
                self.ack(offset, len(record.body))

    def write_acks_this_turn(self) -> None:
        """Acks are not written."""

    def skip_older(self, offset: int, until_ms: int, count_max: int, settles: bool) -> tuple[int, int, int]:
        return offset, 0, 0

    def mark_delivered(self, offset: int) -> None:
        self.delivered = max(self.delivered, offset)

    def mark_returned(self, offset: int, delivery_count: int) -> None:
        self.returned[offset] = delivery_count

    def delivery_count(self, offset: int) -> int:
        return self.returned.get(offset, 0)

    def redelivered(self, offset: int) -> bool:
        return offset in self.returned


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog("elsewhere")


def queue_over(room: Any, log: MemoryLog, **arguments: object) -> Queue:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    queue = make_queue(room.vhost.queue_host, log.name, True, False, None, table, log)
    queue.id = "memory"
    room.vhost.add_queue(queue)
    return queue


def test_published_messages_are_delivered_and_acked(room: Any, log: MemoryLog) -> None:
    queue = queue_over(room, log)
    for number in range(10):
        assert room.publish("elsewhere", b"%d" % number)
    assert (log.record_count, log.size_bytes, log.next_offset) == (10, 10, 10)
    assert room.bodies(queue) == [b"%d" % number for number in range(10)]
    assert (log.record_count, log.size_bytes) == (0, 0)


def test_backlog_is_read_from_log_in_order(room: Any, log: MemoryLog) -> None:
    bodies = [b"%d" % number for number in range(2000)]
    queue = queue_over(room, log)
    queue.order.memory.count_max = 10
    for body in bodies:
        room.publish("elsewhere", body, turn=False)
    room.turns()
    assert room.bodies(queue) == bodies
    assert log.record_count == 0


def test_basic_get_waits_for_slow_read(room: Any, log: MemoryLog) -> None:
    queue = queue_over(room, log)
    queue.order.memory.count_max = 10
    for number in range(100):
        room.publish("elsewhere", b"%d" % number, turn=False)
    room.turns()
    while queue.order.hot:
        room.get(queue)
    log.slow = True
    assert queue.get(True) is None
    assert queue.must_wait()
    called: list[bool] = []
    queue.when_ready(lambda: called.append(True))
    cursor = log.cursor
    assert isinstance(cursor, MemoryCursor)
    cursor.answer()
    room.turns()
    assert called == [True]
    assert queue.get(True) is not None


def test_groups_over_slow_log_stay_in_order(room: Any, log: MemoryLog) -> None:
    """Every read of every cursor waits for the disk. No consumer is left waiting, and each group stays in order."""
    queue = queue_over(room, log, x_group_by="header:group")
    queue.order.memory.count_max = 6
    names = [f"g{number}" for number in range(7)]
    rng = random.Random(5)
    sent: dict[str, list[bytes]] = {name: [] for name in names}
    for number in range(600):
        name = rng.choice([*names, "g0", "g0", "g0"])
        body = b"%s/%d" % (name.encode(), number)
        sent[name].append(body)
        room.publish("elsewhere", body, turn=False, headers={"group": name})
    room.turn.schedule()
    consumers = [take(room, queue, credit=credit) for credit in (1, 1, 2, 5)]
    slow_read_count = 0
    acked: dict[str, list[bytes]] = {name: [] for name in names}
    while queue.ready_count or queue.unacked_count:
        log.slow = rng.random() < 0.7
        busy = [consumer for consumer in consumers if consumer.entries]
        if busy:
            consumer = rng.choice(busy)
            if rng.random() < 0.2:
                consumer.got.pop()
                consumer.requeue(len(consumer.entries) - 1)
            else:
                body = consumer.got[-len(consumer.entries)]
                acked[body.split(b"/")[0].decode()].append(body)
                consumer.ack()
        room.turns()
        for cursor in log.places:
            if cursor.waiting is not None:
                slow_read_count += 1
                cursor.answer()
                room.turns()
        assert any(consumer.entries for consumer in consumers) or not queue.ready_count, (
            "messages are ready but no consumer got one"
        )
    assert acked == sent
    assert slow_read_count > 50


def test_requeued_message_is_redelivered_and_counted(room: Any, log: MemoryLog) -> None:
    queue = queue_over(room, log)
    room.publish("elsewhere", b"again")
    entry = queue.get(False)
    assert entry is not None
    assert log.delivered == 0
    queue.requeue(entry, True)
    assert log.returned == {0: 1}
    found = room.get(queue)
    assert (found.body, found.redelivered) == (b"again", True)


def test_max_length_and_purge_ack_records(room: Any, log: MemoryLog) -> None:
    queue = queue_over(room, log, x_max_length=3)
    for number in range(10):
        room.publish("elsewhere", b"%d" % number)
    assert sorted(log.records) == [7, 8, 9]
    assert queue.purge() == 3
    assert (log.record_count, log.size_bytes) == (0, 0)


class FailingLog(MemoryLog):
    """A log that a test opens by calling `opened`, and whose reads fail while `unreadable`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.opened: list[Callable[[], None]] = []
        self.unreadable = False
        self.places = [FailingCursor(self)]

    def open_soon(self, done: Callable[[], None]) -> bool:
        self.opened.append(done)
        return False


class FailingCursor(MemoryCursor):
    log: FailingLog

    def read(self, offset: int, size_bytes_max: int) -> ReadResult:
        if self.log.unreadable:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(offset, size_bytes_max)


def test_queue_opens_though_messages_over_max_length_are_unreadable(room: Any) -> None:
    log = FailingLog("shy")
    for body in (b"1", b"2", b"3"):
        log.append_parts(RecordRoute(b"", b"shy"), b"\0\0", body, True)
    queue = queue_over(room, log, x_max_length=1)
    with pytest.raises(LogNotOpen):
        queue.prepare()
    called: list[bool] = []
    queue.when_open(lambda: called.append(True))
    log.unreadable = True
    (opened,) = log.opened
    opened()
    assert called == [True]
    queue.prepare()
    assert queue.ready_count == 3
    log.unreadable = False
    room.advance(1010)
    assert queue.ready_count == 1
    assert room.get(queue).body == b"3"


def test_failed_read_is_retried(room: Any) -> None:
    log = FailingLog("shy")
    queue = queue_over(room, log)
    assert queue.can_open()
    queue.order.memory.count_max = 1
    for body in (b"1", b"2", b"3"):
        room.publish("shy", body)
    assert room.get(queue).body == b"1"
    log.slow = True
    assert queue.get(True) is None
    called: list[bool] = []
    queue.when_ready(lambda: called.append(True))
    log.unreadable = True
    (cursor,) = log.places
    cursor.answer()
    room.turns()
    log.unreadable = False
    room.advance(1010)
    assert called == [True]
    assert room.get(queue).body == b"2"


def test_max_length_set_while_log_is_unreadable_is_applied_later(room: Any) -> None:
    log = FailingLog("shy")
    for body in (b"1", b"2", b"3"):
        log.append_parts(RecordRoute(b"", b"shy"), b"\0\0", body, True)
    queue = queue_over(room, log)
    with pytest.raises(LogNotOpen):
        queue.prepare()
    (opened,) = log.opened
    opened()
    assert queue.ready_count == 3
    log.unreadable = True
    queue.apply_config(rules_of({"x-max-length": 1}))
    assert queue.rules.length_max == 1
    assert queue.ready_count > 1
    log.unreadable = False
    room.advance(1010)
    assert room.bodies(queue) == [b"3"]


def test_failed_log_refuses_publish(room: Any, log: MemoryLog) -> None:
    queue_over(room, log)
    assert room.publish("elsewhere", b"in")
    log.fail()
    assert not room.publish("elsewhere", b"out")


def test_deleted_queue_retires_its_log(room: Any, log: MemoryLog) -> None:
    queue = queue_over(room, log)
    room.publish("elsewhere", b"gone")
    assert room.delete(queue) == 1
    room.turns()
    assert log.retired


def test_when_safe_callbacks_follow_the_high_watermark(log: MemoryLog) -> None:
    results: list[tuple[str, bool]] = []
    route = RecordRoute(b"", b"elsewhere")
    for name in ("first", "second", "third"):
        offset = log.append_parts(route, b"", name.encode(), True)
        log.when_safe(offset, lambda safe, name=name: results.append((name, safe)))  # type: ignore[misc]
    log.advance(2)
    assert results == [("first", True), ("second", True)]
    log.when_safe(0, lambda safe: results.append(("at once", safe)))
    assert results[-1] == ("at once", True)
    log.fail()
    assert results[-1] == ("third", False)
