"""A bucket of the wheel: messages that are due within one stretch of time, in a log of their own.

    level    0         1        2       3        4
    width    8.2 s     4.4 min  2.3 h   3.1 d    99 d       32 times the one before

A message goes to the lowest level where its bucket is less than REACH buckets away: what is due within five minutes to
level 0, within three hours to level 1. Before a bucket of level 1 or above begins, LEAD widths of the level below, its
messages go down (bucket.py); by then whatever comes for the same time goes to the level below at once. A bucket of
level 0 is loaded one width before it begins: the places of its messages, by their millisecond, 8 bytes each. So a
message is written once or twice as a rule, five times in ten years, as far as the last level reaches, and memory holds
the places of the next 16 seconds.

The directory of a bucket's log is called `level.position.nonce.parent`: its place in time, eight random digits of its
own, and those of the bucket whose messages it took over (`-`: none). Two logs may have the same place in time: those of
an earlier life of the broker take nothing more, and those that take over what another one had, nothing else.

The messages of a bucket go down to buckets of lower levels, all of them or none.

They are copied, in slices, to logs that take nothing else and that nobody looks at meanwhile; what is cancelled in
between is settled in both. When every copy is safe the bucket's directory is renamed `.deleted`: that is the moment. A
crash before it leaves the bucket as it was, and the next start throws the copies away, for they name it as their
parent; a crash after it leaves them alone. So nothing is doubled here and nothing lost.

Where a copy cannot be written (a full disk), or the bucket cannot be read, all of them are thrown away, and it is
tried again RETRY_MS later.

When a message is due, by its headers, and what they say when that has been obeyed.

    x-delay        so many milliseconds from now; a text of digits counts as the number. Not above 0: at once. It is
                   delivered negated, as the plugin does, so that the next exchange does not delay it again
    x-deliver-at   milliseconds since 1970, or a timestamp (which has seconds); it comes before x-delay. Not in the
                   future: at once. Once obeyed it is called x-delivered-at

More than ten years ahead, or what is no number, is refused (406): a message must not be delivered at once because of a
slip. A message that the broker itself publishes once more, a dead letter say, has nobody to be refused to: there the
one counts as ten years, the other as no delay.

Source: rabbitmq-delayed-message-exchange 3.10 (`get_delay`, `swap_delay_header`); x-deliver-at is amqpd's own.

A delayed message is due: it goes where its exchange sends it now, and is settled in its bucket when safe there.

The exchange is looked up and asked for its bindings at this moment, as if the message had come without a delay: its
alternate, bindings to other exchanges and CC count as they are now, permissions do not any more. A message that goes to
no queue is over, and counted; its `mandatory` was obeyed when it was published, where that says that it was taken.

The republisher does the rest: slices, retries while a target takes nothing, the wait for the sync. A kill in between
releases a message again, and then it says so: `x-delayed-redelivered: true` is on every message of which the bucket's
delivery mark says that it may have been released before the crash.

A delayed message in its log: as it will be delivered, and one header more, which the broker takes off again.

The header `x-amqpd-delayed` is the last of the table, bytes of this form, numbers big-endian:

    keys     short strings: the routing keys of a message that has more than its own (CC, BCC); else nothing
    due      i64, milliseconds since 1970
    number   i64, of the message: it keeps it from log to log; `name_of` makes of both what people call it by
    size     u32, of the whole entry, name and all

So each log is an ordinary one that every tool reads, and what is to be known of a message stands at a fixed distance
from the end of its headers. A client's own header of that name stays where it is.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.message import TTL_MS_MAX, MessageRoute, PropertiesView
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
    from amqpd.broker.vhost.vhost import VHost


LEVEL_COUNT: Final = 5
REACH: Final = 40
LEAD: Final = 8
# A piece that is read at once.
READ_BYTES: Final = 64 * 1024
_NO_RECORDS: Final[list[Record]] = []  # never written to


class BucketKey(NamedTuple):
    """Which bucket: its stretch of time begins `position` widths after 1970."""

    level: int
    position: int


def shift(level: i64) -> i64:
    """The width of a level's buckets is 2 to the power of this, in milliseconds."""
    return 13 + 5 * level


def place_of(due_ms: i64, now_ms: i64, level_max: i64) -> BucketKey:
    """Where a message belongs that is due then. What is over belongs to now. level_max: 0 to 4."""
    if due_ms < now_ms:
        due_ms = now_ms
    level: i64 = 0
    while level < level_max and (due_ms >> shift(level)) - (now_ms >> shift(level)) >= REACH:
        level += 1
    return BucketKey(level, due_ms >> shift(level))


def place_below(due_ms: i64, now_ms: i64, level: i64) -> BucketKey:
    """Where a message goes down to from a bucket of this level, 1 or above. What is over keeps its place in time, so
    that a backlog comes out in its order, and of a bucket at most 32 others become.
    """
    if due_ms < now_ms:
        return BucketKey(level - 1, due_ms >> shift(level - 1))
    return place_of(due_ms, now_ms, level - 1)


class BucketName(NamedTuple):
    """What the name of a bucket's directory says."""

    place: BucketKey
    nonce: str
    parent: str


def new_name(place: BucketKey, parent: str) -> str:
    """Of a directory. parent: the nonce of the bucket whose messages it is to take over; "" for none."""
    return f"{place.level}.{place.position}.{secrets.token_hex(4)}.{parent or '-'}"


def parse_name(name: str) -> BucketName | None:
    """None: that is no bucket."""
    parts = name.split(".")
    if len(parts) != 4 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    level, position = int(parts[0]), int(parts[1])
    if level >= LEVEL_COUNT or position >= 1 << 50:
        return None
    return BucketName(BucketKey(level, position), parts[2], "" if parts[3] == "-" else parts[3])


@final
class Bucket:
    """taking: it takes messages. active: its messages count, are released and go down; else it is about to take over
    another one's. opened: its log is ready. loaded: its messages have their places in the wheel's slots.

    pending: places in the slots. out: offsets that are on their way to their queues, and bytes of their bodies.
    again: some of what it has may have been released already, before a crash.
    """

    def __init__(self, place: BucketKey, name: str, chain: list[str], store: QueueLog, opened: bool) -> None:
        level: i64 = place.level
        self.place = place
        self.level = level
        self.chain = chain
        self.nonce = name.split(".")[2]
        self.store = store
        self.start_ms: i64 = place.position << shift(level)
        self.end_ms: i64 = (place.position + 1) << shift(level)
        # When it is loaded, or its messages go down.
        self.work_ms: i64 = self.start_ms - (1 << shift(0) if level == 0 else LEAD << shift(level - 1))
        self.taking = False
        self.active = True
        self.opened = opened
        self.loaded = False
        # Loading and going down: up to where.
        self.job_offset: i64 = 0
        self.job_end: i64 = -1
        # It has nothing to do until somebody calls.
        self.waiting = False
        self.gone = False
        self.again = False
        self.pending: i64 = 0
        self.out: dict[int, i64] = {}
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

    def rest(self) -> None:
        """It is not read for now: what its reader holds is given back."""
        self.forget_window()
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def forget_window(self) -> None:
        """Something in it has been settled."""
        self._window = _NO_RECORDS
        self._window_at = 0

    def record(self, offset: i64, ahead: bool) -> Record | None:
        """The message at this offset; None: it is settled, or could not be read. ahead: those behind it come next.

        Raises: OSError. Cost: 0.3 us where it goes on, some 10 us else.
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
    """When it is due, in milliseconds since 1970; 0: it is not delayed. strict: see `DelayHook.destination`.

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
    """0 for none, where that is not an error."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str) and len(value) <= 20:
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit():
            return int(value)
    # mypyc takes `isinstance(value, bool | Timestamp)` of an int for False
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
    """The headers to set on a message that is delayed, of those it has; x-deliver-at goes."""
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
    """What the log gets. changes: as `due.obeyed` has them. keys: None where it has but its own. Raises: CodecError."""
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


def due_of(properties: bytes) -> i64:
    """Raises: ValueError where that is not such a message."""
    return read_i64_be(properties, _stop(properties) - 20)


def number_of(properties: bytes) -> i64:
    """Likewise."""
    return read_i64_be(properties, _stop(properties) - 12)


def _stop(properties: bytes) -> i64:
    start, stop = headers_span(properties, 0, len(properties))
    if stop - start < 4 + _TAIL_SIZE + len(_START):
        raise ValueError("no delayed message")
    return stop


def keys_of(properties: bytes) -> list[str] | None:
    """Its routing keys; None: its own alone."""
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
    """The message's properties as it is delivered."""
    start, stop = headers_span(properties, 0, len(properties))
    left = stop - _size(properties, stop)
    table_size: int = left - start - 4
    return properties[:start] + table_size.to_bytes(4, "big") + properties[start + 4 : left] + properties[stop:]


def name_of(due_ms: int, number: int) -> str:
    """What a delayed message is called by: 28 hexadecimal digits and a dash. The first part says when it is due."""
    return f"{due_ms:012x}-{number:016x}"


def from_name(name: str) -> tuple[int, int]:
    """(due_ms, number). Raises: ValueError."""
    due, dash, number = name.partition("-")
    if len(due) != 12 or not dash or len(number) != 16:
        raise ValueError(f"'{name}' is no id of a delayed message")
    return int(due, 16), int(number, 16)


log = logging.getLogger(__name__)

ROUTES_MAX: Final = 1024


@final
class Cascade:
    """Of one bucket. make: a new bucket at a place, for copies. over: called once all is copied and safe, or with
    False when that failed.
    """

    def __init__(
        self,
        bucket: Bucket,
        turn: LoopTurn,
        make: Callable[[BucketKey, Bucket], Bucket],
        over: Callable[[Cascade, bool], None],
    ) -> None:
        self.bucket = bucket
        self.children: dict[BucketKey, Bucket] = {}
        self.copied: i64 = 0
        self.read = False
        self._turn = turn
        self._make = make
        self._over = over
        self._routes: dict[bytes, RecordRoute] = {}
        # Pieces that are not known to be safe yet.
        self._missing: i64 = 0
        self._failed = False
        self._ended = False
        bucket.job_offset = 0
        bucket.job_end = bucket.store.next_offset

    def step(self, now_ms: i64, arrived: Callable[[], None]) -> bool:
        """Copies a piece. False: it has to wait, and `arrived` or `over` will be called. Raises: OSError; then
        `fail`.
        """
        bucket = self.bucket
        turn = self._turn
        if self.read or self._failed:
            return False
        if turn.commits.unsynced_bytes >= turn.unsynced_bytes_max // 2:
            when_safe(turn, (), _CascadeTarget(arrived).on)
            return False
        fetch = bucket.cursor().read_if_cached(bucket.job_offset, READ_BYTES, arrived)
        logs: dict[QueueLog, None] = {}
        try:
            for record in fetch.records:
                if record.offset >= bucket.job_end:
                    break
                try:
                    due = due_of(record.properties)
                except ValueError:
                    log.error("offset %d of %s is no delayed message", record.offset, bucket.chain[-1])
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
        """A step has raised: nobody knows what it has copied, so all of it is thrown away."""
        self._failed = True
        if self._missing == 0:
            self._end()

    def cancel(self, offset: i64, due_ms: i64, number: int, size: i64) -> None:
        """The message at this offset is cancelled; its copy, if there is one, goes too. Cost: a look at all copies that
        are due with it. Raises: OSError.
        """
        if offset >= self.bucket.job_offset:
            return  # it is not copied yet, and what is settled is not read
        for child in self.children.values():
            if not child.start_ms <= due_ms < child.end_ms:
                continue
            position: i64 = 0
            while True:
                fetch = child.cursor().read(position, READ_BYTES)
                if not fetch.records:
                    break
                for record in fetch.records:
                    if number_of(record.properties) == number:
                        child.store.settle(record.offset, size)
                        self.copied -= 1
                        return
                position = fetch.next_offset

    def _copy(self, record: Record, due_ms: i64, now_ms: i64) -> QueueLog:
        place = place_below(due_ms, now_ms, self.bucket.level)
        child = self.children.get(place)
        if child is None:
            child = self._make(place, self.bucket)
            self.children[place] = child
        key = record.exchange + b"\0" + record.routing_key
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            route = RecordRoute(record.exchange, record.routing_key)
            self._routes[key] = route
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
        there: i64 = 0
        for child in self.children.values():
            there += child.store.record_count
        # What could not be written is missing there, whatever became of its sync.
        self._over(self, not self._failed and there == self.copied)


@final
class _CascadeTarget:
    """One who goes on, however it went."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived

    def on(self, safe: bool) -> None:
        self._arrived()


def append(store: QueueLog, route: RecordRoute, properties: bytes, body: bytes, persistent: bool) -> i64:
    """Returns the offset. Raises: LogFailed."""
    size: i64 = len(body)
    if size > LARGE_BODY_BYTES:
        return store.append_large(route, properties, [body], size, persistent)
    return store.append_parts(route, properties, body, persistent)


REDELIVERED: Final = "x-delayed-redelivered"
ENVELOPES_MAX: Final = 1024


@final
class DelayStats:
    """What is counted of delayed messages since the broker started. unroutable: of the released, those that went to no
    queue; dropped: with their exchange; cancelled: by an operator.
    """

    def __init__(self) -> None:
        self.delayed: i64 = 0
        self.released: i64 = 0
        self.unroutable: i64 = 0
        self.dropped: i64 = 0
        self.cancelled: i64 = 0
        # On their way to their queues.
        self.out: i64 = 0
        self.out_bytes: i64 = 0


@final
class DelayedRelease(RepublishSource):
    """Messages of one bucket. vhosts: all there are, by name. again: they may have been released before.

    done: called when some of them are over.
    """

    def __init__(
        self,
        bucket: Bucket,
        exchange: str,
        vhost: str,
        vhosts: Mapping[str, VHost],
        tally: DelayStats,
        again: bool,
        done: Callable[[Bucket], None],
    ) -> None:
        super().__init__("delayed")
        self.bucket = bucket
        self.exchange = exchange
        self.vhost = vhost
        self._vhosts = vhosts
        self._tally = tally
        self._again = again
        self._done = done
        self._envelopes: dict[bytes, MessageRoute] = {}

    def log(self) -> QueueLog | None:
        return None if self.bucket.gone else self.bucket.store

    def gone(self) -> bool:
        return self.bucket.gone

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        key = exchange + b"\0" + routing_key
        envelope = self._envelopes.get(key)
        if envelope is None:
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            envelope = MessageRoute(exchange.decode(), routing_key.decode("utf-8", "surrogateescape"))
            self._envelopes[key] = envelope
        return envelope

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        vhost = self._vhosts.get(self.vhost)
        exchange = None if vhost is None else vhost.exchanges.get(self.exchange)
        if vhost is None or exchange is None:
            self._tally.dropped += 1
            return None
        keys = keys_of(properties)
        if keys is None:
            keys = [envelope.routing_key]
        properties = without_delay(properties)
        if self._again or self.again:
            properties = with_headers(properties, {REDELIVERED: True})
        info = scan_properties(properties, 0, len(properties))
        destinations = router.route(vhost, exchange, keys, PropertiesView(envelope, properties), exchange)
        if not destinations:
            self._tally.unroutable += 1
            vhost.unroutable_count += 1
        return RewrittenMessage(envelope, properties, info, destinations)

    def on_safe(self, first: i64, last: i64, size: i64) -> None:
        bucket = self.bucket
        offset = first
        while offset <= last:
            if self._is_back(offset):
                self._tally.released += 1
            offset += 1
        if not bucket.gone:
            super().on_safe(first, last, size)
            if not bucket.out:
                self._done(bucket)

    def on_stop(self, offset: i64, again: bool) -> None:
        bucket = self.bucket
        self._is_back(offset)
        if again:
            bucket.again = True  # its delivery mark is not forgotten
        if not bucket.gone and not bucket.out:
            self._done(bucket)

    def _is_back(self, offset: i64) -> bool:
        """It is not on its way any more. Whether it was."""
        size = self.bucket.out.pop(offset, -1)
        if size < 0:
            return False
        self._tally.out -= 1
        self._tally.out_bytes -= size
        return True

    def log_fields(self) -> dict[str, object]:
        return {"vhost": self.vhost, "exchange": self.exchange}
