"""A bucket of a timing wheel: the delayed messages of one time range, in a log of their own.

level    0         1        2       3        4
width    8.2 s     4.4 min  2.3 h   3.1 d    99 d       32 times the level before

A message goes to the lowest level at which its bucket is fewer than REACH buckets away: level 0 within five
minutes, level 1 within three hours. LEAD widths of the next lower level before a bucket of level 1 or above begins,
its messages cascade to lower levels. New messages for the same time go to the lower level from then on. A bucket of
level 0 is loaded one width before it begins: memory then has the position of each message by its due millisecond, 8
bytes each. So most messages are written once or twice, and five times within ten years, the range of the last
level.

The directory of a bucket is named `level.position.nonce.parent`. Position is its place in time, nonce eight random
digits, parent the nonce of the bucket from which its messages come (`-` for none). Several logs may have the same
place in time, because a log of an earlier process takes no new messages, nor does a log of copies.

**Cascade.** All messages of a bucket move to lower levels, or none. They are copied in slices into new logs that
are not used otherwise. A message cancelled meanwhile is settled in both. When all copies are synced, the directory
of the bucket is renamed `.deleted`: this is the atomic step. After a crash before it, the next start deletes the
copies, whose names refer to an existing parent. So no message is duplicated or lost. If a copy cannot be written
(full disk) or the bucket not read, the copies are deleted, and the cascade begins again RETRY_MS later.

**Headers of the client.**

x-delay        milliseconds from now; a text of digits counts as a number. 0 or below: at once. It is delivered negated,
               as the plugin does, so that the next exchange does not delay the message again
x-deliver-at   milliseconds since 1970, or a timestamp (seconds); it overrides x-delay. Not in the future: at once. It
               is delivered as x-delivered-at

A delay above ten years or a value that is no number is refused (406), because an error in a header must not deliver
a message at once. Messages that the broker republishes, for example dead letters, cannot be refused: they get ten
years or no delay.

Source: rabbitmq-delayed-message-exchange 3.10 (`get_delay`, `swap_delay_header`); x-deliver-at is specific to amqpd.

**Release.** A due message is routed by its exchange as if it arrived now: alternate exchange, exchange bindings and
CC count as they are now, but permissions are not checked again. It is settled in the bucket when its queues have
synced it. A message without a queue is dropped and counted; `mandatory` was handled at the publish. The republisher
does the slices, the retries and the wait for the sync. A crash may release a message twice. Then the copy has
`x-delayed-redelivered: true`, and so has every message that may have been released before the crash, by the
bucket's delivered mark.

**Record.** The properties are those of the delivery plus one header, which the broker removes again.
`x-amqpd-delayed` is the last entry of the table, bytes of this form (numbers are big-endian):

keys     short strings: the routing keys of a message with several (CC, BCC), else nothing
due      i64, milliseconds since 1970
number   i64, of the message, the same in each log; `format_id` makes the public id from due and number
size     u32, of the whole entry with its name

So every tool can read the log, and the numbers are at a fixed distance from the end of the table.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from amqpd.broker.message import TTL_MS_MAX, LogMessageFactory, MessageRoute, PropertiesView
from amqpd.broker.publish import router
from amqpd.broker.publish.confirms import when_safe
from amqpd.broker.publish.republisher import RepublishSource, RewrittenMessage
from amqpd.broker.queue.argument_checks import erlang_type
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import Timestamp, read_u32, shortstr
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.protocol.properties import headers_span, scan_properties, with_encoded_headers, with_headers
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.queue_log import Cursor, LogFailed, QueueLog

if TYPE_CHECKING:
    from amqpd.broker.delayed.timing_wheel import TimingWheel


LEVEL_COUNT: Final = 5
REACH: Final = 40
LEAD: Final = 8
# Bytes per read.
READ_BYTES: Final = 64 * 1024
_NO_RECORDS: Final[list[Record]] = []  # shared, must stay empty


class BucketKey(NamedTuple):
    """The place of a bucket: its time range begins `position` widths after 1970."""

    level: int
    position: int


def width_bits(level: i64) -> i64:
    """Return the width of a level as a power of two, in milliseconds."""
    return 13 + 5 * level


def key_for(due_ms: i64, now_ms: i64, level_max: i64) -> BucketKey:
    """Return the place for a due time; the past counts as now. `level_max`: 0 to 4."""
    if due_ms < now_ms:
        due_ms = now_ms
    level: i64 = 0
    while level < level_max and (due_ms >> width_bits(level)) - (now_ms >> width_bits(level)) >= REACH:
        level += 1
    return BucketKey(level, due_ms >> width_bits(level))


def key_below(due_ms: i64, now_ms: i64, level: i64) -> BucketKey:
    """Return the place for a message that cascades from `level`, 1 or above.

    The past keeps its place in time, so that a backlog keeps its order. A bucket has at most 32 children.
    """
    if due_ms < now_ms:
        return BucketKey(level - 1, due_ms >> width_bits(level - 1))
    return key_for(due_ms, now_ms, level - 1)


class BucketName(NamedTuple):
    key: BucketKey
    nonce: str
    parent: str


def new_name(place: BucketKey, parent: str) -> str:
    """Return a new directory name. `parent`: the nonce of the bucket whose messages it takes over; "" for none."""
    return f"{place.level}.{place.position}.{secrets.token_hex(4)}.{parent or '-'}"


def parse_name(name: str) -> BucketName | None:
    """Parse a directory name. Returns: None if it is not the name of a bucket."""
    parts = name.split(".")
    if len(parts) != 4 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    level, position = int(parts[0]), int(parts[1])
    if level >= LEVEL_COUNT or position >= 1 << 50:
        return None
    return BucketName(BucketKey(level, position), parts[2], "" if parts[3] == "-" else parts[3])


@final
class Bucket:
    """One bucket and its log.

    Attributes:
        is_accepting: accepts new messages.
        active: its messages are counted, released and cascaded. False while copies are written into it.
        opened: its log is recovered.
        loaded: the positions of its messages are in the wheel's slots.
        waiting: no work until a callback.
        maybe_released: it may contain messages that were released before a crash.
        pending: positions in the slots.
        in_flight: offset -> body size of messages on the way to their queues.
        job_offset, job_end: progress of loading or of a cascade.
    """

    def __init__(self, place: BucketKey, name: str, chain: list[str], store: QueueLog, opened: bool) -> None:
        level: i64 = place.level
        self.key = place
        self.level = level
        self.chain = chain
        self.nonce = name.split(".")[2]
        self.store = store
        self.start_ms: i64 = place.position << width_bits(level)
        self.end_ms: i64 = (place.position + 1) << width_bits(level)
        # Wall-clock time at which loading or the cascade begins.
        self.work_ms: i64 = self.start_ms - (1 << width_bits(0) if level == 0 else LEAD << width_bits(level - 1))
        self.is_accepting = False
        self.active = True
        self.opened = opened
        self.loaded = False
        self.job_offset: i64 = 0
        self.job_end: i64 = -1
        self.waiting = False
        self.is_removed = False
        self.maybe_released = False
        self.pending: i64 = 0
        self.in_flight: dict[int, i64] = {}
        self.number: i64 = -1
        self._cursor: Cursor | None = None
        self._window: list[Record] = _NO_RECORDS
        self._window_at: i64 = 0

    @property
    def count(self) -> i64:
        return self.store.record_count if self.opened else 0

    def cursor(self) -> Cursor:
        cursor = self._cursor
        if cursor is None:
            cursor = self.store.new_cursor()
            self._cursor = cursor
        return cursor

    def close_reader(self) -> None:
        """Release the reader while the bucket is not read."""
        self.clear_window()
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def clear_window(self) -> None:
        self._window = _NO_RECORDS
        self._window_at = 0

    def record(self, offset: i64, ahead: bool) -> Record | None:
        """Return the message at `offset`, None if it is settled or was not written.

        Args:
            ahead: read the next messages too.

        Cost: 0.3 us in sequence, otherwise about 10 us. Raises: OSError.
        """
        window = self._window
        count: i64 = len(window)
        while self._window_at < count:
            record = window[self._window_at]
            if record.offset > offset:
                break
            self._window_at += 1
            if record.offset == offset:
                return record
        fetch = self.cursor().read(offset, READ_BYTES if ahead else 1)
        self._window = fetch.records
        self._window_at = 0
        if fetch.records and fetch.records[0].offset == offset:
            self._window_at = 1
            return fetch.records[0]
        return None


DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"
DELIVERED_AT: Final = "x-delivered-at"


def due_ms(headers: Mapping[str, object], now_ms: i64, strict: bool) -> i64:
    """Return the due time of a message in milliseconds since 1970, 0 if it is not delayed.

    Args:
        strict: see `DelayHook.destination`.

    Raises: PreconditionFailed.
    """
    if DELIVER_AT in headers:
        at = headers[DELIVER_AT]
        number: object = int(at) * 1000 if isinstance(at, Timestamp) else at
        delay = _number(DELIVER_AT, number, strict)
        delay -= int(now_ms)
    elif DELAY in headers:
        delay = _number(DELAY, headers[DELAY], strict)
    else:
        return 0
    if delay <= 0:
        return 0
    if delay > TTL_MS_MAX:
        if strict:
            name = DELIVER_AT if DELIVER_AT in headers else DELAY
            raise PreconditionFailed(f"invalid header '{name}': {{value_too_large,{_shown(headers[name])}}}")
        delay = TTL_MS_MAX
    wait: i64 = delay
    return now_ms + wait


def _number(name: str, value: object, strict: bool) -> int:
    """Return a header's number; 0 for an invalid one if not `strict`."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str) and len(value) <= 20:
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit():
            return int(value)
    # mypyc evaluates `isinstance(value, bool | Timestamp)` as False for an int
    if value is not True and value is not False and not isinstance(value, Timestamp) and isinstance(value, int):
        return int(value)
    if strict:
        raise PreconditionFailed(
            f"invalid header '{name}': expected a number of milliseconds, got {erlang_type(value)} {_shown(value)}"
        )
    return 0


def _shown(value: object) -> str:
    return str(value)[:40] if isinstance(value, str | int | float) else "of another form"


def strip_delay_header(headers: Mapping[str, object]) -> dict[str, object]:
    """Return the headers to set on a delayed message; the caller removes x-deliver-at."""
    changes: dict[str, object] = {}
    if DELAY in headers:
        delay = _number(DELAY, headers[DELAY], False)
        if delay > 0:
            changes[DELAY] = -delay
    if DELIVER_AT in headers:
        changes[DELIVERED_AT] = headers[DELIVER_AT]
    return changes


HEADER: Final = "x-amqpd-delayed"
_START: Final = bytes((len(HEADER),)) + HEADER.encode() + b"x"
_TAIL_SIZE: Final[i64] = 20


def with_delay(
    properties: bytes, changes: Mapping[str, object], due_ms: int, number: int, keys: list[str] | None
) -> bytes:
    """Return the properties for the log.

    Args:
        changes: from `strip_delay_header`.
        keys: None if the message has only its own routing key.

    Raises: CodecError.
    """
    changed = with_headers(properties, changes, (DELIVER_AT,))
    parts: list[bytes] = []
    if keys is not None:
        for key in keys:
            parts.append(shortstr(key.encode("utf-8", "surrogateescape")))
    named = b"".join(parts)
    value_size = len(named) + 20
    size = len(_START) + 4 + value_size
    tail = due_ms.to_bytes(8, "big") + number.to_bytes(8, "big") + size.to_bytes(4, "big")
    return with_encoded_headers(changed, _START + value_size.to_bytes(4, "big") + named + tail)


def read_due_ms(properties: bytes) -> i64:
    """Return the due time. Raises: ValueError for a record that is no delayed message."""
    return read_i64_be(properties, _stop(properties) - 20)


def read_number(properties: bytes) -> i64:
    """Return the number of the message. Raises: as `read_due_ms`."""
    return read_i64_be(properties, _stop(properties) - 12)


def _stop(properties: bytes) -> i64:
    start, stop = headers_span(properties, 0, len(properties))
    if stop - start < 4 + _TAIL_SIZE + len(_START):
        raise ValueError("no delayed message")
    return stop


def read_keys(properties: bytes) -> list[str] | None:
    """Return the routing keys, None for its own key only."""
    stop = _stop(properties)
    position = stop - _size(properties, stop) + len(_START) + 4
    end = stop - _TAIL_SIZE
    if position >= end:
        return None
    keys: list[str] = []
    while position < end:
        size: i64 = properties[position]
        position += 1
        keys.append(properties[position : position + size].decode("utf-8", "surrogateescape"))
        position += size
    return keys


def _size(properties: bytes, stop: i64) -> i64:
    return read_u32(properties, stop - 4)


def without_delay(properties: bytes) -> bytes:
    """Return the properties for the delivery."""
    start, stop = headers_span(properties, 0, len(properties))
    left = stop - _size(properties, stop)
    table_size: int = left - start - 4
    return properties[:start] + table_size.to_bytes(4, "big") + properties[start + 4 : left] + properties[stop:]


def format_id(due_ms: int, number: int) -> str:
    """Return the public id of a delayed message: hexadecimal digits of its due time, a dash, and its number."""
    return f"{due_ms:012x}-{number:016x}"


def parse_id(name: str) -> tuple[int, int]:
    """Parse a public id into (due_ms, number). Raises: ValueError."""
    due, dash, number = name.partition("-")
    if len(due) != 12 or not dash or len(number) != 16:
        raise ValueError(f"'{name}' is not the id of a delayed message")
    return int(due, 16), int(number, 16)


log = logging.getLogger(__name__)


@final
class Cascade:
    """The cascade of one bucket."""

    def __init__(self, wheel: TimingWheel, bucket: Bucket) -> None:
        self.bucket = bucket
        self.children: dict[BucketKey, Bucket] = {}
        self.copied: i64 = 0
        self.read = False
        self._wheel = wheel
        self._turn = wheel.scheduler.turn
        self._from_log = LogMessageFactory()
        # Pieces that are not synced yet.
        self._missing: i64 = 0
        self._failed = False
        self._ended = False
        bucket.job_offset = 0
        bucket.job_end = bucket.store.next_offset

    def step(self, now_ms: i64, arrived: Callable[[], None]) -> bool:
        """Copy a piece. Return False to wait for `arrived` or the end. Raises: OSError: the caller calls `fail`."""
        bucket = self.bucket
        turn = self._turn
        if self.read or self._failed:
            return False
        if turn.commits.unsynced_bytes >= turn.unsynced_bytes_max // 2:
            when_safe(turn, (), lambda _safe: arrived())
            return False
        fetch = bucket.cursor().read_if_cached(bucket.job_offset, READ_BYTES, arrived)
        logs: dict[QueueLog, None] = {}
        try:
            for record in fetch.records:
                if record.offset >= bucket.job_end:
                    break
                try:
                    due = read_due_ms(record.properties)
                except ValueError:
                    log.error("offset %d of %s is not a delayed message", record.offset, bucket.chain[-1])
                    continue
                logs[self._copy(record, due, now_ms)] = None
        except LogFailed:
            self._failed = True
        bucket.job_offset = fetch.next_offset
        if logs:
            self._missing += 1
            when_safe(turn, list(logs), self._safe)
        if not fetch.waiting and (not fetch.records or fetch.next_offset >= bucket.job_end):
            self.read = True
        if self.read or self._failed:
            if self._missing == 0:
                self._end()
            return False
        return not fetch.waiting

    def fail(self) -> None:
        """Abort after an exception in `step`: all copies are discarded, because their state is unknown."""
        self._failed = True
        if self._missing == 0:
            self._end()

    def cancel(self, offset: i64, due_ms: i64, number: int, size: i64) -> None:
        """Settle the copy of a cancelled message, if there is one.

        Cost: reads all copies of its time. Raises: OSError.
        """
        if offset >= self.bucket.job_offset:
            return  # not copied yet, and settled messages are not copied
        for child in self.children.values():
            if not child.start_ms <= due_ms < child.end_ms:
                continue
            position: i64 = 0
            while True:
                fetch = child.cursor().read(position, READ_BYTES)
                if not fetch.records:
                    break
                for record in fetch.records:
                    if read_number(record.properties) == number:
                        child.store.ack(record.offset, size)
                        self.copied -= 1
                        return
                position = fetch.next_offset

    def _copy(self, record: Record, due_ms: i64, now_ms: i64) -> QueueLog:
        place = key_below(due_ms, now_ms, self.bucket.level)
        child = self.children.get(place)
        if child is None:
            child = self._wheel.make_copy_bucket(place, self.bucket)
            self.children[place] = child
        route = self._from_log.envelope(record.exchange, record.routing_key).record_route()
        append(child.store, route, record.properties, record.body, record.persistent)
        self.copied += 1
        return child.store

    def _safe(self, safe: bool) -> None:
        self._missing -= 1
        if not safe:
            self._failed = True
        if self._missing == 0 and (self.read or self._failed):
            self._end()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        stored_count: i64 = 0
        for child in self.children.values():
            stored_count += child.store.record_count
        # The count shows unwritten copies even if a sync succeeded.
        self._wheel.on_cascade_end(self, not self._failed and stored_count == self.copied)


def append(store: QueueLog, route: RecordRoute, properties: bytes, body: bytes, persistent: bool) -> i64:
    """Append a message and return its offset. Raises: LogFailed."""
    size: i64 = len(body)
    if size > LARGE_BODY_BYTES:
        return store.append_large(route, properties, [body], size, persistent)
    return store.append_parts(route, properties, body, persistent)


REDELIVERED: Final = "x-delayed-redelivered"


@final
class DelayStats:
    """Counters of delayed messages since the broker started.

    Attributes:
        unroutable: released messages that no queue got.
        dropped: deleted with their exchange.
        cancelled: by an operator.
        in_flight, in_flight_bytes: on the way to their queues.
    """

    def __init__(self) -> None:
        self.delayed: i64 = 0
        self.released: i64 = 0
        self.unroutable: i64 = 0
        self.dropped: i64 = 0
        self.cancelled: i64 = 0
        self.in_flight: i64 = 0
        self.in_flight_bytes: i64 = 0


@final
class DelayedRelease(RepublishSource):
    """The messages of one bucket as a source of the republisher.

    Args:
        again: the messages may have been released before.
    """

    def __init__(self, wheel: TimingWheel, bucket: Bucket, again: bool) -> None:
        super().__init__("delayed")
        self.bucket = bucket
        self._wheel = wheel
        self._stats = wheel.scheduler.stats
        self._again = again
        self._from_log = LogMessageFactory()

    def log(self) -> QueueLog | None:
        return None if self.bucket.is_removed else self.bucket.store

    def is_deleted(self) -> bool:
        return self.bucket.is_removed

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        return self._from_log.envelope(exchange, routing_key)

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        vhost = self._wheel.scheduler.vhosts.get(self._wheel.vhost)
        exchange = None if vhost is None else vhost.exchanges.get(self._wheel.exchange)
        if vhost is None or exchange is None:
            self._stats.dropped += 1
            return None
        keys = read_keys(properties)
        if keys is None:
            keys = [envelope.routing_key]
        properties = without_delay(properties)
        if self._again or self.again:
            properties = with_headers(properties, {REDELIVERED: True})
        info = scan_properties(properties, 0, len(properties))
        destinations = router.route(vhost, exchange, keys, PropertiesView(envelope, properties), exchange)
        if not destinations:
            self._stats.unroutable += 1
            vhost.unroutable_count += 1
        return RewrittenMessage(envelope, properties, info, destinations)

    def on_safe(self, first: i64, last: i64, size: i64) -> None:
        bucket = self.bucket
        offset = first
        while offset <= last:
            if self._finish(offset):
                self._stats.released += 1
            offset += 1
        if not bucket.is_removed:
            super().on_safe(first, last, size)
            if not bucket.in_flight:
                self._wheel.on_released(bucket)

    def on_stop(self, offset: i64, again: bool) -> None:
        bucket = self.bucket
        self._finish(offset)
        if again:
            bucket.maybe_released = True  # the delivered mark must not be cleared
        if not bucket.is_removed and not bucket.in_flight:
            self._wheel.on_released(bucket)

    def _finish(self, offset: i64) -> bool:
        """Remove the offset from `in_flight`. Return whether it was there."""
        size = self.bucket.in_flight.pop(offset, -1)
        if size < 0:
            return False
        self._stats.in_flight -= 1
        self._stats.in_flight_bytes -= size
        return True

    def log_fields(self) -> dict[str, object]:
        return self._wheel.log_fields()
