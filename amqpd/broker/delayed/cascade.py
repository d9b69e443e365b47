"""The messages of a bucket go down to buckets of lower levels, all of them or none.

They are copied, in slices, to logs that take nothing else and that nobody looks at meanwhile; what is cancelled in
between is settled in both. When every copy is safe the bucket's directory is renamed `.deleted`: that is the moment. A
crash before it leaves the bucket as it was, and the next start throws the copies away, for they name it as their
parent; a crash after it leaves them alone. So nothing is doubled here and nothing lost.

Where a copy cannot be written (a full disk), or the bucket cannot be read, all of them are thrown away, and it is
tried again RETRY_MS later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.delayed.bucket import READ_BYTES, Bucket, Place, place_below
from amqpd.broker.delayed.stored import due_of, number_of
from amqpd.broker.flow.loop_turn import Turn
from amqpd.broker.publish.confirms import when_safe
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.queue_log import LogFailed, QueueLog

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
        turn: Turn,
        make: Callable[[Place, Bucket], Bucket],
        over: Callable[[Cascade, bool], None],
    ) -> None:
        self.bucket = bucket
        self.children: dict[Place, Bucket] = {}
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
        """Copies a piece. False: it has to wait, and `arrived` or `over` will be called. Raises: OSError; then `fail`.
        """
        bucket = self.bucket
        turn = self._turn
        if self.read or self._failed:
            return False
        if turn.commits.unsynced_bytes >= turn.unsynced_bytes_max // 2:
            when_safe(turn, (), _Goes(arrived).on)
            return False
        fetch = bucket.cursor().read_at_hand(bucket.job_offset, READ_BYTES, arrived)
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
class _Goes:
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
