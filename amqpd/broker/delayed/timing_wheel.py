"""The delayed messages of one exchange: the wheel of buckets that they wait in, and what comes due.

A message is appended to the log of the bucket that it belongs to (bucket.py), and is confirmed when that is safe. What
is left to do comes with time, in pieces of a tenth of a millisecond to a few (`step`), the earliest first:

    open      logs of an earlier life, one after the other
    descend   a bucket of level 1 or above: its messages go down (bucket.py)
    load      a bucket of level 0: the place of each message, by the millisecond that it is due at (`_slots`)
    release   what is due goes to the republisher (bucket.py), in the order of those milliseconds, within one as they
              came to their bucket; so many at a time as HELD_COUNT_MAX and HELD_BYTES_MAX say
    leave     a bucket whose time is over and of which nothing is left loses its directory

Times are the wall clock's. It may be set: what is loaded stays loaded, where it goes back, and waits; where it goes
forward all buckets whose time has come are worked off in their order, as after a start. No bucket is loaded ahead of
its time while LOADED_MAX messages are.

Where a message waits, as a destination: it is appended to the log of the bucket it belongs to.

What the wheels of all exchanges share, and how they are made to turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Destination
from amqpd.broker.delay_hook import DelayHook
from amqpd.broker.delayed.bucket import (
    LEVEL_COUNT,
    READ_BYTES,
    Bucket,
    BucketKey,
    Cascade,
    DelayedRelease,
    DelayStats,
    due_ms,
    due_of,
    new_name,
    place_of,
    strip_delay_header,
    with_delay,
)
from amqpd.broker.delayed.slots import NEVER, DueSlots
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.message import Message, make_message
from amqpd.broker.publish.republisher import Republisher
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.storage.queue_log import LogFailed, LogUnusable, QueueLog
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost


class DelaySchedulerBase:
    """One per broker. vhosts: all there are, by name."""

    def __init__(
        self,
        storage: Storage,
        turn: LoopTurn,
        timers: Timers,
        republisher: Republisher,
        vhosts: Mapping[str, VHost],
    ) -> None:
        self.storage = storage
        self.turn = turn
        self.timers = timers
        self.republisher = republisher
        self.vhosts = vhosts
        self.tally = DelayStats()
        self._number: i64 = 0

    def busy(self, wheel: TimingWheelBase) -> None:
        """The wheel has something to do now: its `step` is called soon, until it says False."""
        raise NotImplementedError

    def gone(self, vhost: str, exchange: str) -> None:
        """The exchange is deleted: its wheel is not used any more."""
        raise NotImplementedError

    def next_number(self) -> i64:
        """Of a message: above all before it."""
        number = self.timers.wall_ms() << 20
        if number <= self._number:
            number = self._number + 1
        self._number = number
        return number


class TimingWheelBase(DelayHook):
    """The part of a timing wheel that the scheduler and publishers call.

    queued: the wheel is in the scheduler's queue. armed_ms: the wall-clock time of its next call. failures: consecutive
    failures of `step`; after one, the wheel is not called before rest_ms (monotonic).
    """

    def __init__(self, works: DelaySchedulerBase) -> None:
        super().__init__()
        self.works = works
        self.queued = False
        self.dropped = False
        self.armed_ms: i64 = NEVER
        self.failures: i64 = 0
        self.rest_ms: i64 = 0
        self._wake = WheelTimer(self)

    def taking(self, due: i64) -> Bucket:
        """The bucket that a message of now goes to. Raises: LogFailed where none can be made."""
        raise NotImplementedError

    def took(self, bucket: Bucket, due: i64, offset: i64) -> None:
        """The bucket has taken a message."""
        raise NotImplementedError

    def about(self) -> dict[str, object]:
        """Fields that tell of it in the broker's log."""
        raise NotImplementedError

    def step(self) -> bool:
        """Does a piece of what there is to do. False: nothing now."""
        raise NotImplementedError

    def rearm(self) -> None:
        """Nothing can be done now, or the clock was set: it sees to it that it is called when something can."""
        raise NotImplementedError

    def arm(self, wall_ms: i64) -> None:
        """It is called at that time, or before. Cost: a comparison where it is."""
        if wall_ms < self.armed_ms and not self.dropped:
            self.armed_ms = wall_ms
            timers = self.works.timers
            timers.arm(self._wake, timers.now_ms() + wall_ms - timers.steady_ms())

    def disarm(self) -> None:
        """It is not called."""
        self.armed_ms = NEVER
        self.works.timers.cancel(self._wake)


@final
class CountdownLatch:
    """`done` is called when so many directories are gone."""

    def __init__(self, count: i64, done: Callable[[], None]) -> None:
        self._count = count
        self._done = done

    def one(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._done()


@final
class WheelTimer(Timer):
    """The wheel's next moment has come."""

    def __init__(self, wheel: TimingWheelBase) -> None:
        super().__init__()
        self.wheel = wheel

    def fire(self) -> None:
        wheel = self.wheel
        wheel.armed_ms = NEVER
        wheel.works.busy(wheel)


log = logging.getLogger(__name__)


@final
class DelayDestination(Destination):
    """Of the publishes that are due at one time under the same keys.

    keys: None where a message has but its own. changes: of its headers.
    """

    def __init__(self, wheel: TimingWheelBase, due_ms: i64, keys: list[str] | None, changes: dict[str, object]) -> None:
        super().__init__()
        self.durable = True
        self.wheel = wheel
        self.due_ms = due_ms
        self.keys = keys
        self.changes = changes
        self._bucket: Bucket | None = None

    def bucket(self) -> Bucket:
        """The one that a message of now goes to; in a transaction, another than that of its publish. Raises:
        LogFailed.
        """
        bucket = self._bucket
        if bucket is None or not bucket.taking or bucket.store.failed:
            bucket = self.wheel.taking(self.due_ms)
            self._bucket = bucket
        return bucket

    def log(self) -> QueueLog | None:
        bucket = self._bucket
        if not self.wheel.dropped:
            try:
                bucket = self.bucket()
            except LogFailed:
                return None  # `offer` refuses it
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
            number = wheel.works.next_number()
            properties = with_delay(message.properties(), self.changes, self.due_ms, number, self.keys)
            route = message.envelope.record_route()
            parts = message.parts
            if parts is not None and message.body_size > LARGE_BODY_BYTES:
                offset = store.append_large(route, properties, parts, message.body_size, message.persistent)
            else:
                offset = store.append_parts(route, properties, message.body(), message.persistent)
        except (LogFailed, CodecError) as error:
            log.warning("a message cannot be delayed: %s", error, extra=wheel.about())
            return False
        wheel.took(bucket, self.due_ms, offset)
        return True


# On their way to their queues, of all wheels together: nothing more is released meanwhile.
HELD_COUNT_MAX: Final = 8192
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
# Messages in the slots from which on no further bucket is loaded that is not the present one's.
LOADED_MAX: Final = 200_000
STEP_COUNT: Final = 64
RETRY_MS: Final = 2000


@final
class TimingWheel(TimingWheelBase):
    """Of one exchange. folder: the directory of its buckets among the vhost's; others: those that it has besides, of
    an earlier life (`DelayScheduler._begin_folder`).
    """

    def __init__(self, works: DelaySchedulerBase, vhost: str, vhost_id: str, exchange: str, folder: str) -> None:
        super().__init__(works)
        self.vhost = vhost
        self.vhost_id = vhost_id
        self.exchange = exchange
        self.folder = folder
        self.others: list[str] = []
        self.buckets: dict[Bucket, None] = {}
        # Whoever looks through the buckets in slices looks again when this has changed.
        self.moves: i64 = 0
        self._taking: dict[BucketKey, Bucket] = {}
        self._unopened: list[Bucket] = []
        self._cascades: dict[Bucket, Cascade] = {}
        self._slots = DueSlots()
        self._releases: dict[Bucket, tuple[DelayedRelease, DelayedRelease]] = {}
        self._retry_ms: dict[Bucket, i64] = {}
        self._stopped = False

    # -- what comes --------------------------------------------------------------------------------------------------

    def destination(self, keys: list[str], headers: Mapping[str, object], strict: bool) -> Destination | None:
        due = due_ms(headers, self.works.timers.steady_ms(), strict)
        if due == 0:
            return None
        return DelayDestination(self, due, keys if len(keys) > 1 else None, strip_delay_header(headers))

    def taking(self, due: i64) -> Bucket:
        """The bucket that a message of now goes to. Raises: LogFailed where none can be made."""
        now = self.works.timers.steady_ms()
        place = place_of(due, now, LEVEL_COUNT - 1)
        bucket = self._taking.get(place)
        if bucket is not None and not bucket.store.failed:
            return bucket
        if bucket is not None:
            bucket.taking = False
        try:
            self.works.storage.note_delays()
        except OSError as error:
            log.error("no message can be delayed: %s", error)
            raise LogFailed(self.exchange) from error
        bucket = self._make(place, "")
        bucket.taking = True
        self._taking[place] = bucket
        if bucket.level == 0 and bucket.work_ms <= now:
            self._slots.number(bucket)
            bucket.job_end = 0
            bucket.loaded = True
        self.arm(bucket.end_ms if bucket.loaded else bucket.work_ms)
        return bucket

    def _make(self, place: BucketKey, parent: str) -> Bucket:
        works = self.works
        name = new_name(place, parent)
        chain = works.storage.delay_chain(self.vhost_id, self.folder, name)
        store = works.storage.create_log(chain, self.exchange, self.vhost, self.vhost_id)
        bucket = Bucket(place, name, chain, store, True)
        self.buckets[bucket] = None
        return bucket

    def took(self, bucket: Bucket, due: i64, offset: i64) -> None:
        self.works.tally.delayed += 1
        if bucket.job_end >= 0 and offset >= bucket.job_end:
            self._slots.put(bucket, due, offset)
            self.arm(due)

    # -- what there was ----------------------------------------------------------------------------------------------

    def restore(self, place: BucketKey, name: str, chain: list[str], store: QueueLog) -> None:
        """A bucket of an earlier life of the broker."""
        bucket = Bucket(place, name, chain, store, False)
        self.buckets[bucket] = None
        self._unopened.append(bucket)

    def _open(self) -> bool:
        """The next log of an earlier life. False: the disk is asked."""
        bucket = self._unopened[len(self._unopened) - 1]
        if not bucket.gone and not bucket.opened:
            if bucket.waiting:
                return False
            try:
                if not bucket.store.open_soon(partial(self._goes_on, bucket)):
                    bucket.waiting = True
                    return False
                bucket.store.recover()
            except (OSError, LogUnusable) as error:
                log.error("delayed messages cannot be read: %s", error, extra=self.about())
                self._retry(bucket)
                self._unopened.pop()
                self._unopened.insert(0, bucket)
                return False
            bucket.opened = True
            bucket.again = bucket.store.redelivered(0)
            self._retry_ms.pop(bucket, 0)
            if bucket.store.record_count == 0:
                self._leave(bucket)
        self._unopened.pop()
        return True

    # -- its time ----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Does a piece of what there is to do. False: nothing now."""
        if self.dropped:
            return False
        now = self.works.timers.steady_ms()
        if self._unopened and self._may_open(now) and self._open():
            return True
        bucket, limit = self._next(now)
        if self._release(now, limit):
            return True
        if bucket is None:
            return False
        self._retry_ms.pop(bucket, 0)
        try:
            if bucket.level > 0:
                return self._descend(bucket, now)
            return self._load(bucket)
        except OSError as error:
            log.error("delayed messages cannot be read: %s", error, extra=self.about())
            self._retry(bucket)
            return True

    def _may_open(self, now: i64) -> bool:
        return self._retry_ms.get(self._unopened[len(self._unopened) - 1], 0) <= now

    def _next(self, now: i64) -> tuple[Bucket | None, i64]:
        """What is to be worked on, and the time from which on nothing may be released before that is done."""
        best: Bucket | None = None
        limit: i64 = NEVER
        for bucket in self.buckets:
            if bucket.loaded or bucket.work_ms > now:
                if bucket.loaded and bucket.taking and bucket.end_ms <= now:
                    self._close(bucket)
                continue
            if bucket.gone or (bucket in self._retry_ms and self._retry_ms[bucket] > now):
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
            best = None  # an earlier one waits for the disk, and its messages are due: their order is kept
        for each in [bucket for bucket in self.buckets if bucket.loaded and not bucket.taking]:
            self._over(each)
        return best, limit

    def _goes_on(self, bucket: Bucket) -> None:
        """The disk has answered, or what it waited for is safe."""
        bucket.waiting = False
        if not bucket.gone:
            self.works.busy(self)

    def _retry(self, bucket: Bucket) -> None:
        bucket.rest()
        retry = self.works.timers.steady_ms() + RETRY_MS
        self._retry_ms[bucket] = retry
        self.arm(retry)

    # -- load --------------------------------------------------------------------------------------------------------

    def _load(self, bucket: Bucket) -> bool:
        if bucket.job_end < 0:
            bucket.job_offset = 0
            bucket.job_end = bucket.store.next_offset  # what comes from now on is put into its slot at once
            self._slots.number(bucket)
        fetch = bucket.cursor().read_if_cached(bucket.job_offset, READ_BYTES, partial(self._goes_on, bucket))
        for record in fetch.records:
            if record.offset >= bucket.job_end:
                break
            try:
                due = due_of(record.properties)
            except ValueError:
                log.error("offset %d is no delayed message", record.offset, extra=self.about())
            else:
                self._slots.put(bucket, due, record.offset)
        bucket.job_offset = fetch.next_offset
        if fetch.waiting:
            if not fetch.records:
                bucket.waiting = True
                return False
            return True
        if not fetch.records or fetch.next_offset >= bucket.job_end:
            bucket.loaded = True
            bucket.rest()
        return True

    # -- go down -----------------------------------------------------------------------------------------------------

    def _descend(self, bucket: Bucket, now: i64) -> bool:
        cascade = self._cascades.get(bucket)
        if cascade is None:
            if bucket.taking:
                bucket.taking = False
                self._taking.pop(bucket.place, None)
            if bucket.count == 0:
                self._leave(bucket)
                return True
            cascade = Cascade(bucket, self.works.turn, self._copy_to, self._descended)
            self._cascades[bucket] = cascade
        bucket.waiting = True
        try:
            goes_on = cascade.step(now, partial(self._goes_on, bucket))
        except Exception:
            cascade.fail()
            raise
        if goes_on:
            bucket.waiting = False
            return True
        return not bucket.waiting

    def _copy_to(self, place: BucketKey, parent: Bucket) -> Bucket:
        child = self._make(place, parent.nonce)
        child.active = False
        return child

    def _descended(self, cascade: Cascade, whole: bool) -> None:
        bucket = cascade.bucket
        if self._cascades.pop(bucket, None) is None:
            return  # the exchange is gone
        bucket.rest()
        if not whole:
            log.warning("delayed messages cannot go to their next bucket yet", extra=self.about())
            for child in cascade.children.values():
                self._leave(child)
            bucket.waiting = False
            bucket.job_end = -1
            self._retry(bucket)
            return
        children = list(cascade.children.values())
        for child in children:
            child.active = True
            child.waiting = True
        self._forget(bucket)
        self.moves += 1
        storage = self.works.storage
        storage.retire_directory(bucket.chain, [bucket.store], partial(self._taken_over, children))

    def _taken_over(self, children: list[Bucket]) -> None:
        """The directory they come from does not come back."""
        for child in children:
            child.waiting = False
            self.arm(child.work_ms)
        if children and not self.dropped:
            self.works.busy(self)

    # -- release -----------------------------------------------------------------------------------------------------

    def _release(self, now: i64, limit: i64) -> bool:
        """Whether there is more that is due and may go."""
        tally = self.works.tally
        republisher = self.works.republisher
        slots = self._slots
        until = now + 1 if now < limit else limit
        count: i64 = 0
        while count < STEP_COUNT:
            if not slots.begin(until):
                return False
            if tally.out >= HELD_COUNT_MAX or tally.out_bytes >= HELD_BYTES_MAX:
                return False
            if not self._hand_over(republisher, slots.bucket(), slots.offset(), slots.goes_on()):
                return False  # again in a while
            slots.take()
            count += 1
        return True

    def _hand_over(self, republisher: Republisher, bucket: Bucket, offset: i64, ahead: bool) -> bool:
        """False: it cannot be read now."""
        if bucket.gone:
            return True
        try:
            record = bucket.record(offset, ahead)
        except OSError as error:
            log.error("a delayed message cannot be read: %s", error, extra=self.about())
            return False
        if record is None:
            return True  # it was cancelled, or could not be written
        releases = self._releases.get(bucket)
        if releases is None:
            works = self.works
            pair: list[DelayedRelease] = []
            for again in (False, True):
                pair.append(
                    DelayedRelease(bucket, self.exchange, self.vhost, works.vhosts, works.tally, again, self._released)
                )
            releases = (pair[0], pair[1])
            self._releases[bucket] = releases
        store = bucket.store
        release = releases[1] if bucket.again and store.redelivered(offset) else releases[0]
        envelope = release.envelope_of(record.exchange, record.routing_key)
        message = make_message(envelope, record.properties, record.body, record.persistent, None)
        store.mark_delivered(offset)
        size: i64 = message.body_size
        bucket.out[offset] = size
        self.works.tally.out += 1
        self.works.tally.out_bytes += size
        republisher.add(release, message, offset)
        return True

    def _released(self, bucket: Bucket) -> None:
        """All that was on the way from this bucket has come there."""
        if self._stopped:
            self._end_clean(bucket)
        else:
            self._over(bucket)

    # -- leave -------------------------------------------------------------------------------------------------------

    def _close(self, bucket: Bucket) -> None:
        bucket.taking = False
        if self._taking.get(bucket.place) is bucket:
            del self._taking[bucket.place]

    def _over(self, bucket: Bucket) -> None:
        if bucket.gone or bucket.taking or not bucket.loaded or bucket.pending > 0 or bucket.out:
            return
        if bucket.store.record_count == 0:
            self._leave(bucket)

    def _leave(self, bucket: Bucket) -> None:
        """Nothing of it is left, or it was a copy: its directory goes."""
        self._forget(bucket)
        if bucket.store.next_offset > 0 or not bucket.opened:
            self.works.storage.retire_directory(bucket.chain, [bucket.store], _nothing)
        else:
            bucket.store.remove()

    def _forget(self, bucket: Bucket) -> None:
        self._close(bucket)
        bucket.rest()
        bucket.gone = True
        self.buckets.pop(bucket, None)
        self._releases.pop(bucket, None)
        self._retry_ms.pop(bucket, 0)
        self._slots.forget(bucket)

    def stop(self) -> None:
        """The broker stops cleanly: of a bucket that knows what became of all it released nothing comes twice. What
        is on its way will be safe before the logs are closed, or has not left (`DelayedRelease.left`). No directory
        goes now.
        """
        self._stopped = True
        for bucket in self.buckets:
            if not bucket.out:
                self._end_clean(bucket)

    def _end_clean(self, bucket: Bucket) -> None:
        if bucket.opened and not bucket.again:
            bucket.store.forget_delivered()

    def drop(self, done: Callable[[], None]) -> None:
        if self.dropped:
            done()
            return
        self.works.gone(self.vhost, self.exchange)
        tally = self.works.tally
        tally.dropped += self.count()
        storage = self.works.storage
        buckets = list(self.buckets)
        self.end()
        gone = CountdownLatch(1 + len(self.others), done)
        for folder in (self.folder, *self.others):
            chain = storage.delay_chain(self.vhost_id, folder)
            stores = [bucket.store for bucket in buckets if bucket.chain[:-1] == chain]
            if stores:
                storage.retire_directory(chain, stores, gone.one)
            else:
                gone.one()

    def end(self) -> list[QueueLog]:
        """It is not used any more. Returns its logs, which are to go."""
        self.dropped = True
        stores = [bucket.store for bucket in self.buckets]
        tally = self.works.tally
        for bucket in list(self.buckets):
            for size in bucket.out.values():
                tally.out -= 1
                tally.out_bytes -= size
            bucket.out.clear()
            self._forget(bucket)
        self._cascades.clear()
        self._unopened.clear()
        self._slots.clear()
        self.disarm()
        return stores

    # -- to look at --------------------------------------------------------------------------------------------------

    def count(self) -> i64:
        total: i64 = 0
        for bucket in self.buckets:
            if bucket.active:
                total += bucket.count
        return total

    def size_bytes(self) -> i64:
        """Of their bodies."""
        total: i64 = 0
        for bucket in self.buckets:
            if bucket.active and bucket.opened:
                total += bucket.store.size_bytes
        return total

    def about(self) -> dict[str, object]:
        return {"vhost": self.vhost, "exchange": self.exchange}

    def settle(self, bucket: Bucket, offset: i64, due_ms: i64, number: int, size: i64) -> bool:
        """The message is cancelled, wherever there is a copy. False: it is on its way to its queues already."""
        if bucket.gone or offset in bucket.out:
            return False
        cascade = self._cascades.get(bucket)
        if cascade is not None:
            cascade.cancel(offset, due_ms, number, size)
        bucket.store.settle(offset, size)
        bucket.forget_window()
        self.works.tally.cancelled += 1
        self.works.turn.schedule()
        return True

    # -- when it is next wanted --------------------------------------------------------------------------------------

    def rearm(self) -> None:
        """Nothing can be done now: it is called when something can. Cost: a step per bucket."""
        if self.dropped:
            return
        soonest = self._slots.first_ms()
        for bucket in self.buckets:
            if bucket.loaded:
                if bucket.taking and bucket.end_ms < soonest:
                    soonest = bucket.end_ms
            elif bucket in self._retry_ms:
                soonest = min(soonest, self._retry_ms[bucket])
            elif bucket.active and bucket.opened and not bucket.waiting and bucket.work_ms < soonest:
                soonest = bucket.work_ms
        self.disarm()
        if soonest < NEVER:
            self.arm(soonest)


def _nothing() -> None:
    """Nobody waits for a directory to go."""
