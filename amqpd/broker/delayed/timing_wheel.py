"""Timing wheel: the delayed messages of one exchange.

A message is appended to the log of its bucket (bucket.py) and confirmed after the sync. The rest is done over time
by `step`, in pieces of 0.1 ms to a few ms, earliest first:

open      recover logs of an earlier process, one after another
descend   a bucket of level 1 or above: its messages cascade to lower levels
load      a bucket of level 0: put the position of each message into the slot of its due millisecond
release   pass due messages to the republisher in the order of milliseconds, within one in order of arrival in the
          bucket; HELD_COUNT_MAX and HELD_BYTES_MAX limit the messages on the way
leave     remove the directory of a past bucket without messages

Times are wall-clock times. If the clock is set back, loaded messages stay loaded and wait. If it is set ahead, all
due buckets are processed in order, as after a start. While LOADED_MAX messages are loaded, no bucket is loaded
early.

`DelayDestination` is the destination that publishers use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import DelayHook, Destination
from amqpd.broker.delayed.bucket import (
    LEVEL_COUNT,
    READ_BYTES,
    Bucket,
    BucketKey,
    Cascade,
    DelayedRelease,
    due_ms,
    key_for,
    new_name,
    read_due_ms,
    strip_delay_header,
    with_delay,
)
from amqpd.broker.delayed.slots import NEVER, DueSlots
from amqpd.broker.flow.timers import CallTimer
from amqpd.broker.message import Message, make_message
from amqpd.broker.publish.republisher import Republisher
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.storage.queue_log import LogFailed, LogUnusable, QueueLog

if TYPE_CHECKING:
    from amqpd.broker.delayed.delayed_messages import DelayScheduler


log = logging.getLogger(__name__)


@final
class DelayDestination(Destination):
    """Destination of publishes with the same due time and keys. Messages of one slice share it.

    Args:
        keys: None if the message has only its own routing key.
        changes: the headers to set.

    Attributes:
        stored: `enqueue` has stored a message, so `log` returns the log of that message.
    """

    def __init__(self, wheel: TimingWheel, due_ms: i64, keys: list[str] | None, changes: dict[str, object]) -> None:
        super().__init__()
        self.durable = True
        self.wheel = wheel
        self.due_ms = due_ms
        self.keys = keys
        self.changes = changes
        self.stored = False
        self._bucket: Bucket | None = None

    def bucket(self) -> Bucket:
        """Return the bucket for a message now; in a transaction it may differ from that of the publish.

        Raises: LogFailed.
        """
        bucket = self._bucket
        if bucket is None or not bucket.is_accepting or bucket.store.failed:
            bucket = self.wheel.accepting_bucket(self.due_ms)
            self._bucket = bucket
        return bucket

    def log(self) -> QueueLog | None:
        bucket = self._bucket
        if not self.wheel.dropped and not self.stored:  # a stored message stays where it is, also if that log fails
            try:
                bucket = self.bucket()
            except LogFailed:
                return None  # then `enqueue` refuses the message
        return None if bucket is None else bucket.store

    def is_deleted(self) -> bool:
        return self.wheel.dropped

    def enqueue(self, message: Message) -> bool:
        wheel = self.wheel
        if wheel.dropped:
            return False
        try:
            bucket = self.bucket()
            store = bucket.store
            number = wheel.scheduler.next_number()
            properties = with_delay(message.properties(), self.changes, self.due_ms, number, self.keys)
            route = message.envelope.record_route()
            parts = message.parts
            if parts is not None and message.body_size > LARGE_BODY_BYTES:
                offset = store.append_large(route, properties, parts, message.body_size, message.persistent)
            else:
                offset = store.append_parts(route, properties, message.body(), message.persistent)
        except (LogFailed, CodecError) as error:
            log.warning("a message cannot be delayed: %s", error, extra=wheel.log_fields())
            return False
        self.stored = True
        wheel.on_append(bucket, self.due_ms, offset)
        return True


# Limits for all wheels: above them, no message is released until others have reached their queues.
HELD_COUNT_MAX: Final = 8192
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
# With this many messages in the slots, only the current bucket is loaded.
LOADED_MAX: Final = 200_000
STEP_COUNT: Final = 64
RETRY_MS: Final = 2000


@final
class TimingWheel(DelayHook):
    """The timing wheel of one exchange.

    Attributes:
        folder: directory of its buckets in the vhost's `delays`.
        has_directory: a bucket was made in `folder`, so that it may exist.
        old_folders: more directories, from an earlier process (`DelayScheduler._begin_folder`).
        cascade_count: count of completed cascades. A caller that reads buckets in slices starts again when it changes.
        queued: the wheel is in the scheduler's queue.
        armed_ms: the wall-clock time of its next call.
        failures: consecutive failures of `step`.
        paused_until_ms: after a failure, the wheel is not called before this monotonic time.
    """

    def __init__(self, scheduler: DelayScheduler, vhost: str, vhost_id: str, exchange: str, folder: str) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.queued = False
        self.dropped = False
        self.armed_ms: i64 = NEVER
        self.failures: i64 = 0
        self.paused_until_ms: i64 = 0
        self._wake = CallTimer(self._on_timer)
        self.vhost = vhost
        self.vhost_id = vhost_id
        self.exchange = exchange
        self.folder = folder
        self.has_directory = False
        self.old_folders: list[str] = []
        self.buckets: dict[Bucket, None] = {}
        self.cascade_count: i64 = 0
        self._taking: dict[BucketKey, Bucket] = {}
        self._unopened: list[Bucket] = []
        self._cascades: dict[Bucket, Cascade] = {}
        self._slots = DueSlots()
        self._releases: dict[Bucket, tuple[DelayedRelease, DelayedRelease]] = {}
        self._retry_ms: dict[Bucket, i64] = {}
        self._stopped = False

    # -- publish --------------------------------------------------------------------------------------------------

    def destination(self, keys: list[str], headers: Mapping[str, object], strict: bool) -> Destination | None:
        due = due_ms(headers, self.scheduler.timers.steady_ms(), strict)
        if due == 0:
            return None
        return DelayDestination(self, due, keys if len(keys) > 1 else None, strip_delay_header(headers))

    def accepting_bucket(self, due: i64) -> Bucket:
        """Return the bucket for a new message, created if necessary. Raises: LogFailed."""
        now = self.scheduler.timers.steady_ms()
        place = key_for(due, now, LEVEL_COUNT - 1)
        bucket = self._taking.get(place)
        if bucket is not None and not bucket.store.failed:
            return bucket
        if bucket is not None:
            bucket.is_accepting = False
        try:
            self.scheduler.storage.require_delay_format()
        except OSError as error:
            log.error("no message can be delayed: %s", error)
            raise LogFailed(self.exchange) from error
        bucket = self._make(place, "")
        bucket.is_accepting = True
        self._taking[place] = bucket
        if bucket.level == 0 and bucket.work_ms <= now:
            self._slots.assign_number(bucket)
            bucket.job_end = 0
            bucket.loaded = True
        self.arm(bucket.end_ms if bucket.loaded else bucket.work_ms)
        return bucket

    def _make(self, place: BucketKey, parent: str) -> Bucket:
        scheduler = self.scheduler
        self.has_directory = True
        name = new_name(place, parent)
        chain = scheduler.storage.delay_chain(self.vhost_id, self.folder, name)
        store = scheduler.storage.create_log(chain, self.exchange, self.vhost, self.vhost_id)
        bucket = Bucket(place, name, chain, store, True)
        self.buckets[bucket] = None
        return bucket

    def on_append(self, bucket: Bucket, due: i64, offset: i64) -> None:
        self.scheduler.stats.delayed += 1
        if bucket.job_end >= 0 and offset >= bucket.job_end:
            self._slots.add(bucket, due, offset)
            self.arm(due)

    # -- buckets of an earlier process ----------------------------------------------------------------------------

    def restore(self, place: BucketKey, name: str, chain: list[str], store: QueueLog) -> None:
        bucket = Bucket(place, name, chain, store, False)
        self.buckets[bucket] = None
        self._unopened.append(bucket)

    def _open(self) -> bool:
        """Recover the next log of an earlier process. Return False while the disk is read."""
        bucket = self._unopened[len(self._unopened) - 1]
        if not bucket.is_removed and not bucket.opened:
            if bucket.waiting:
                return False
            try:
                if not bucket.store.open_soon(partial(self._resume, bucket)):
                    bucket.waiting = True
                    return False
                bucket.store.recover()
            except (OSError, LogUnusable) as error:
                log.error("delayed messages cannot be read: %s", error, extra=self.log_fields())
                self._retry(bucket)
                self._unopened.pop()
                self._unopened.insert(0, bucket)
                return False
            bucket.opened = True
            bucket.maybe_released = bucket.store.redelivered(0)
            self._retry_ms.pop(bucket, 0)
            if bucket.store.record_count == 0:
                self._remove(bucket)
        self._unopened.pop()
        return True

    # -- scheduling -----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do a piece of work. Return False if there is none now."""
        if self.dropped:
            return False
        now = self.scheduler.timers.steady_ms()
        if self._unopened and self._retry_ms.get(self._unopened[-1], 0) <= now and self._open():
            return True
        bucket, limit = self._next_bucket(now)
        if self._release(now, limit):
            return True
        if bucket is None:
            return False
        self._retry_ms.pop(bucket, 0)
        try:
            if bucket.level > 0:
                return self._cascade_step(bucket, now)
            return self._load(bucket)
        except OSError as error:
            log.error("delayed messages cannot be read: %s", error, extra=self.log_fields())
            self._retry(bucket)
            return True

    def _next_bucket(self, now: i64) -> tuple[Bucket | None, i64]:
        """Return the bucket to work on, and the time before which messages may be released now."""
        best: Bucket | None = None
        limit: i64 = NEVER
        for bucket in self.buckets:
            if bucket.loaded or bucket.work_ms > now:
                if bucket.loaded and bucket.is_accepting and bucket.end_ms <= now:
                    self._stop_taking(bucket)
                continue
            if bucket.is_removed or (bucket in self._retry_ms and self._retry_ms[bucket] > now):
                continue
            if bucket.active and bucket.start_ms < limit:
                limit = bucket.start_ms
            if not bucket.active or not bucket.opened or bucket.waiting:
                continue
            if bucket.level == 0 and self._slots.count >= LOADED_MAX and bucket.start_ms > self._slots.first_ms():
                continue
            if best is None or (bucket.start_ms, -bucket.level) < (best.start_ms, -best.level):
                best = bucket
        if best is not None and best.start_ms > limit and limit <= now:
            # An earlier bucket waits for the disk and has due messages: keep the order.
            best = None
        for each in [bucket for bucket in self.buckets if bucket.loaded and not bucket.is_accepting]:
            self._remove_if_done(each)
        return best, limit

    def _resume(self, bucket: Bucket) -> None:
        """Continue after a disk read or a sync."""
        bucket.waiting = False
        if not bucket.is_removed:
            self.scheduler.schedule(self)

    def _retry(self, bucket: Bucket) -> None:
        bucket.close_reader()
        retry = self.scheduler.timers.steady_ms() + RETRY_MS
        self._retry_ms[bucket] = retry
        self.arm(retry)

    # -- load -----------------------------------------------------------------------------------------------------

    def _load(self, bucket: Bucket) -> bool:
        if bucket.job_end < 0:
            bucket.job_offset = 0
            bucket.job_end = bucket.store.next_offset  # new messages get their slot at once
            self._slots.assign_number(bucket)
        fetch = bucket.cursor().read_if_cached(bucket.job_offset, READ_BYTES, partial(self._resume, bucket))
        for record in fetch.records:
            if record.offset >= bucket.job_end:
                break
            try:
                due = read_due_ms(record.properties)
            except ValueError:
                log.error("offset %d is not a delayed message", record.offset, extra=self.log_fields())
            else:
                self._slots.add(bucket, due, record.offset)
        bucket.job_offset = fetch.next_offset
        if fetch.waiting:
            if not fetch.records:
                bucket.waiting = True
                return False
            return True
        if not fetch.records or fetch.next_offset >= bucket.job_end:
            bucket.loaded = True
            bucket.close_reader()
        return True

    # -- cascade --------------------------------------------------------------------------------------------------

    def _cascade_step(self, bucket: Bucket, now: i64) -> bool:
        cascade = self._cascades.get(bucket)
        if cascade is None:
            if bucket.is_accepting:
                bucket.is_accepting = False
                self._taking.pop(bucket.key, None)
            if bucket.count == 0:
                self._remove(bucket)
                return True
            cascade = Cascade(self, bucket)
            self._cascades[bucket] = cascade
        bucket.waiting = True
        try:
            has_more = cascade.step(now, partial(self._resume, bucket))
        except Exception:
            cascade.fail()
            raise
        if has_more:
            bucket.waiting = False
            return True
        return not bucket.waiting

    def make_copy_bucket(self, place: BucketKey, parent: Bucket) -> Bucket:
        """Create a bucket for copies of `parent`."""
        child = self._make(place, parent.nonce)
        child.active = False
        return child

    def on_cascade_end(self, cascade: Cascade, whole: bool) -> None:
        """End a cascade. whole: all copies are synced."""
        bucket = cascade.bucket
        if self._cascades.pop(bucket, None) is None:
            return  # the exchange was deleted
        bucket.close_reader()
        if not whole:
            log.warning("delayed messages cannot move to their next bucket yet", extra=self.log_fields())
            for child in cascade.children.values():
                self._remove(child)
            bucket.waiting = False
            bucket.job_end = -1
            self._retry(bucket)
            return
        children = list(cascade.children.values())
        for child in children:
            child.active = True
            child.waiting = True
        self._detach(bucket)
        self.cascade_count += 1
        storage = self.scheduler.storage
        storage.retire_directory(bucket.chain, [bucket.store], partial(self._parent_removed, children))

    def _parent_removed(self, children: list[Bucket]) -> None:
        """Activate the children: the directory of their parent is safely deleted."""
        for child in children:
            child.waiting = False
            self.arm(child.work_ms)
        if children and not self.dropped:
            self.scheduler.schedule(self)

    # -- release --------------------------------------------------------------------------------------------------

    def _release(self, now: i64, limit: i64) -> bool:
        """Release due messages. Return whether more can be released now."""
        stats = self.scheduler.stats
        republisher = self.scheduler.republisher
        slots = self._slots
        until = now + 1 if now < limit else limit
        count: i64 = 0
        while count < STEP_COUNT:
            if not slots.begin(until):
                return False
            if stats.in_flight >= HELD_COUNT_MAX or stats.in_flight_bytes >= HELD_BYTES_MAX:
                return False
            if not self._release_one(republisher, slots.bucket(), slots.offset(), slots.is_next_near()):
                return False  # `update_timer` tries again
            slots.advance()
            count += 1
        return True

    def _release_one(self, republisher: Republisher, bucket: Bucket, offset: i64, ahead: bool) -> bool:
        """Pass a message to the republisher. Return False if it cannot be read now."""
        if bucket.is_removed:
            return True
        try:
            record = bucket.record(offset, ahead)
        except OSError as error:
            log.error("a delayed message cannot be read: %s", error, extra=self.log_fields())
            return False
        if record is None:
            return True  # cancelled, or never written
        releases = self._releases.get(bucket)
        if releases is None:
            releases = (DelayedRelease(self, bucket, False), DelayedRelease(self, bucket, True))
            self._releases[bucket] = releases
        store = bucket.store
        release = releases[1] if bucket.maybe_released and store.redelivered(offset) else releases[0]
        envelope = release.envelope_of(record.exchange, record.routing_key)
        message = make_message(envelope, record.properties, record.body, record.persistent, None)
        store.mark_delivered(offset)
        size: i64 = message.body_size
        bucket.in_flight[offset] = size
        self.scheduler.stats.in_flight += 1
        self.scheduler.stats.in_flight_bytes += size
        republisher.add(release, message, offset)
        return True

    def on_released(self, bucket: Bucket) -> None:
        """Remove the bucket if it is finished: all its released messages have reached their queues."""
        if self._stopped:
            self._forget_deliveries(bucket)
        else:
            self._remove_if_done(bucket)

    # -- remove ---------------------------------------------------------------------------------------------------

    def _stop_taking(self, bucket: Bucket) -> None:
        bucket.is_accepting = False
        if self._taking.get(bucket.key) is bucket:
            del self._taking[bucket.key]

    def _remove_if_done(self, bucket: Bucket) -> None:
        if bucket.is_removed or bucket.is_accepting or not bucket.loaded or bucket.pending > 0 or bucket.in_flight:
            return
        if bucket.store.record_count == 0:
            self._remove(bucket)

    def _remove(self, bucket: Bucket) -> None:
        """Remove the directory of a bucket without messages, or of copies."""
        self._detach(bucket)
        if bucket.store.next_offset > 0 or not bucket.opened:
            self.scheduler.storage.retire_directory(bucket.chain, [bucket.store], _nothing)
        else:
            bucket.store.remove()

    def _detach(self, bucket: Bucket) -> None:
        self._stop_taking(bucket)
        bucket.close_reader()
        bucket.is_removed = True
        self.buckets.pop(bucket, None)
        self._releases.pop(bucket, None)
        self._retry_ms.pop(bucket, 0)
        self._slots.release_number(bucket)

    def stop(self) -> None:
        """Prepare a clean stop, so that no released message is released again.

        Buckets whose released messages are all finished forget their deliveries. Others do so when their messages
        are safe, or returned (`DelayedRelease.on_stop`), before the logs close. No directory is removed now.
        """
        self._stopped = True
        for bucket in self.buckets:
            if not bucket.in_flight:
                self._forget_deliveries(bucket)

    def _forget_deliveries(self, bucket: Bucket) -> None:
        if bucket.opened and not bucket.maybe_released:
            bucket.store.clear_delivered_mark()

    def drop(self, done: Callable[[], None]) -> None:
        if self.dropped:
            done()
            return
        self.scheduler.remove_wheel(self.vhost, self.exchange)
        stats = self.scheduler.stats
        stats.dropped += self.count()
        storage = self.scheduler.storage
        buckets = list(self.buckets)
        self.remove()
        left = 1 + len(self.old_folders)

        def gone() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for folder in (self.folder, *self.old_folders):
            chain = storage.delay_chain(self.vhost_id, folder)
            stores = [bucket.store for bucket in buckets if bucket.chain[:-1] == chain]
            if self.has_directory:
                storage.retire_directory(chain, stores, gone)
            else:
                gone()

    def remove(self) -> list[QueueLog]:
        """End the wheel and return its logs, which the caller removes."""
        self.dropped = True
        stores = [bucket.store for bucket in self.buckets]
        stats = self.scheduler.stats
        for bucket in list(self.buckets):
            for size in bucket.in_flight.values():
                stats.in_flight -= 1
                stats.in_flight_bytes -= size
            bucket.in_flight.clear()
            self._detach(bucket)
        self._cascades.clear()
        self._unopened.clear()
        self._slots.clear()
        self.disarm()
        self.scheduler.timers.discard(self._wake)
        return stores

    # -- inspection -----------------------------------------------------------------------------------------------

    def count(self) -> i64:
        total: i64 = 0
        for bucket in self.buckets:
            if bucket.active:
                total += bucket.count
        return total

    def log_fields(self) -> dict[str, object]:
        return {"vhost": self.vhost, "exchange": self.exchange}

    def cancel(self, bucket: Bucket, offset: i64, due_ms: i64, number: int, size: i64) -> bool:
        """Cancel a message and its copy. Return False if it is on the way to its queues."""
        if bucket.is_removed or offset in bucket.in_flight:
            return False
        cascade = self._cascades.get(bucket)
        if cascade is not None:
            cascade.cancel(offset, due_ms, number, size)
        bucket.store.ack(offset, size)
        bucket.clear_window()
        self.scheduler.stats.cancelled += 1
        self.scheduler.turn.schedule()
        return True

    # -- timer ----------------------------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self.armed_ms = NEVER
        self.scheduler.schedule(self)

    def update_timer(self) -> None:
        """Set the timer for the next work, after a step without work or after the clock was set.

        Cost: a step per bucket.
        """
        if self.dropped:
            return
        soonest = self._slots.first_ms()
        for bucket in self.buckets:
            if bucket.loaded:
                if bucket.is_accepting and bucket.end_ms < soonest:
                    soonest = bucket.end_ms
            elif bucket in self._retry_ms:
                soonest = min(soonest, self._retry_ms[bucket])
            elif bucket.active and bucket.opened and not bucket.waiting and bucket.work_ms < soonest:
                soonest = bucket.work_ms
        self.disarm()
        if soonest < NEVER:
            self.arm(soonest)

    def arm(self, wall_ms: i64) -> None:
        """Call the wheel at this time or earlier. Cost: a comparison if it is already armed."""
        if wall_ms < self.armed_ms and not self.dropped:
            self.armed_ms = wall_ms
            timers = self.scheduler.timers
            timers.arm(self._wake, timers.now_ms() + wall_ms - timers.steady_ms())

    def disarm(self) -> None:
        self.armed_ms = NEVER
        self.scheduler.timers.cancel(self._wake)


def _nothing() -> None:
    """Do nothing: no caller waits."""
