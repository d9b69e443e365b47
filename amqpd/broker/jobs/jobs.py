"""`JobManager` starts, lists and stops jobs; `browse` reads messages of a queue for display.

The caller of `begin` has checked permissions and opened the logs of source and target. The last ENDED_COUNT_MAX
ended jobs are remembered; a restart removes all.

Browsing takes, requeues or marks nothing and does not change the order. A page ends after its number of messages,
PAGE_BYTES_MAX of bodies, or PAGE_MS, so that a selector without matches does not block the reader. The next page
starts at `next_offset`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.jobs.job import JobFilter, QueueJob, SlicedRunner
from amqpd.broker.jobs.targets import ExchangeTarget, FirstDeathTarget, JobTarget, MayPublish, QueueTarget
from amqpd.broker.publish.republisher import Republisher
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.ready_order import SearchableOrder
from amqpd.broker.queue.replay import AckedBrowse, LogRange, Replay
from amqpd.broker.queue.scan import BrowseScan, FifoScan, LogScan, QueueScan, ReadySpan
from amqpd.broker.vhost.vhost import VHost
from amqpd.errors import NotFound, PreconditionFailed
from amqpd.routing.selector import Selector
from amqpd.storage.acks.retained import find_replay_start, retained_of
from amqpd.storage.local_log import LocalLog

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
PAGE_MS: Final = 1000
# The read is repeated after this time without an answer from the disk.
_DISK_S: Final = 0.02

READY: Final = "ready"
UNACKED: Final = "unacked"


class Page(NamedTuple):
    """A page of messages.

    Attributes:
        messages: entries with their state; the page does not own them.
        next_offset: where the next page begins.
        ended: the queue had no more messages.
    """

    messages: list[tuple[QueueEntry, str]]
    next_offset: int
    ended: bool


async def browse(queue: Queue, selector: Selector | None, count: int, begin: int = 0, begin_ms: int = 0) -> Page:
    """Return the first `count` messages at or after offset `begin` and time `begin_ms` (ms since 1970).

    The queue's log must be open. Cost: about 2 us per message scanned, in slices of 2 ms.
    Raises: OSError; PreconditionFailed.
    """
    check_times(queue, begin_ms)
    arrived = asyncio.Event()
    reading = BrowseScan(queue, JobFilter(selector, None), arrived.set, False, begin, begin_ms)
    messages: list[tuple[QueueEntry, str]] = []
    left = PAGE_BYTES_MAX
    until = time.monotonic() + PAGE_MS / 1000
    try:
        while not reading.ended and len(messages) < count and left > 0 and not queue.deleted:
            entries: list[QueueEntry] = []
            arrived.clear()
            reading.collect(entries, count - len(messages), left)
            for entry, state in zip(entries, _states(queue, entries), strict=True):
                messages.append((entry, state))
                left -= entry.body_size
            if time.monotonic() >= until:
                break
            if reading.waits:
                try:
                    async with asyncio.timeout(_DISK_S):
                        await arrived.wait()
                except TimeoutError:
                    continue  # read again
            else:
                await asyncio.sleep(0)
        return Page(messages, reading.next_offset, reading.ended)
    finally:
        reading.close()


def check_times(queue: Queue, begin_ms: int) -> None:
    """Check that a job can begin at a time. Raises: PreconditionFailed if not every message is in a log."""
    if begin_ms > 0 and queue.log() is None:
        raise PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost_name}' is not durable: "
            "it does not know when its messages arrived"
        )


def _states(queue: Queue, entries: list[QueueEntry]) -> list[str]:
    if queue.rules.stream:
        return [READY] * len(entries)
    states: list[str] = []
    ready: ReadySpan | None = None
    for entry in entries:
        if ready is None or entry.offset >= ready.end:
            ready = ReadySpan(queue, entry.offset)
        states.append(READY if ready.has(entry.offset) else UNACKED)
    return states


log = logging.getLogger(__name__)

ENDED_COUNT_MAX: Final = 100
RUNNING_COUNT_MAX: Final = 16
"""All jobs share one slice per loop turn, so more would be no faster."""

MOVE: Final = "move"
COPY: Final = "copy"
DELETE: Final = "delete"
REDRIVE: Final = "redrive"
REWIND: Final = "rewind"
GONE: Final = "gone"
"""Reason for messages that a rewind cannot restore: x-retain no longer keeps them."""


class JobRequest(NamedTuple):
    """The description of a job.

    Attributes:
        to_queue, to_exchange, routing_key: target of move and copy; routing_key None for the messages' own keys.
        selector: None for all messages.
        limit: 0 for none.
        begin, begin_ms: first offset or time (ms since 1970) of copy and rewind; 0 for the beginning.
        until, until_ms: offset or time at which a rewind ends, exclusive; -1 for the end of the queue.
        may_write: for redrive; returns whether the user may write to the `queue` or `exchange` with a name.
        may_publish: returns whether topic permissions allow the user these routing keys of an exchange.
    """

    verb: str
    vhost: VHost
    source: Queue
    to_queue: str | None = None
    to_exchange: str | None = None
    routing_key: str | None = None
    selector: Selector | None = None
    limit: int = 0
    dry_run: bool = False
    begin: int = 0
    begin_ms: int = 0
    until: int = -1
    until_ms: int = -1
    may_write: Callable[[str, str], bool] = lambda kind, name: True
    may_publish: MayPublish = lambda exchange, keys: True
    user: str = ""


class JobManager:
    """The jobs of a broker.

    Args:
        call_soon: calls a function in the next loop turn.

    Attributes:
        begun: called with each new job.
    """

    def __init__(
        self, republisher: Republisher, turn: LoopTurn, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self.runner = SlicedRunner(call_soon)
        self.begun: Callable[[QueueJob], object] = _ignore_job
        self._republisher = republisher
        self._turn = turn
        self._jobs: dict[str, QueueJob] = {}
        self._begun_count = 0
        # Waiters for the end of jobs, by id.
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def stop(self) -> None:
        """Stop all jobs: unfinished messages remain in their queues."""
        self.runner.stop()

    def all(self) -> list[QueueJob]:
        """Return running jobs and the last ended ones, in the order of their start."""
        return list(self._jobs.values())

    def get(self, id_: str) -> QueueJob | None:
        return self._jobs.get(id_)

    def begin(self, request: JobRequest) -> QueueJob:
        """Start a job; its first slice is in the next loop turn.

        Raises: PreconditionFailed; NotFound.
        """
        source = request.source
        if source.rules.stream and request.verb != COPY:
            raise PreconditionFailed(
                f"queue '{source.name}' in vhost '{source.vhost_name}' is a stream: its messages can be browsed and "
                "copied, but not moved or deleted"
            )
        check_times(source, request.begin_ms)
        if request.verb == REWIND:
            check_rewind(request)
            self._check_alone(request)
        address = _target_of(request)
        job = self._create(request, JobFilter(request.selector, address))
        scan = _replay_scan(request, job) if request.verb == REWIND else _scan_of(request, job)
        self._list(job, request)
        job.begin(scan)
        return job

    def _check_alone(self, request: JobRequest) -> None:
        """Refuse a second rewind of a queue, because both would restore the same messages.

        Raises: PreconditionFailed.
        """
        if request.to_queue is not None or request.dry_run:
            return
        source = request.source
        for job in self._jobs.values():
            if job.source is not source or job.kind != REWIND or job.ended_ms > 0:
                continue
            if not job.counts_only and "to_queue" not in job.description:
                raise PreconditionFailed(
                    f"queue '{source.name}' in vhost '{source.vhost_name}' is being rewound: wait for job {job.id} to "
                    "end, or stop it"
                )

    def _create(self, request: JobRequest, conditions: JobFilter) -> QueueJob:
        running = [job for job in self._jobs.values() if job.ended_ms == 0]
        if len(running) >= RUNNING_COUNT_MAX:
            raise PreconditionFailed(f"{RUNNING_COUNT_MAX} jobs are running: wait for one to end, or stop one")
        self._begun_count += 1
        id_ = str(self._begun_count)
        job = QueueJob(
            id_,
            request.verb,
            request.source,
            conditions,
            request.limit,
            request.dry_run,
            self._republisher,
            self._turn,
            self.runner,
            self._ended,
        )
        job.description = _shown_fields(request)
        return job

    def _list(self, job: QueueJob, request: JobRequest) -> None:
        """List the job, whose scan exists: a log that cannot be read ends `begin` with an error, and not as a job."""
        self._jobs[job.id] = job
        over = [each for each, old in self._jobs.items() if old.ended_ms > 0]
        for each in over[: max(0, len(over) - ENDED_COUNT_MAX)]:
            del self._jobs[each]
        self.begun(job)
        log.info("%s of messages started, job %s of user '%s'", job.kind, job.id, request.user, extra=job.log_fields())

    def _ended(self, job: QueueJob) -> None:
        log.info(
            "%s of messages %s after %d, job %s%s",
            job.kind,
            job.state,
            job.done_count,
            job.id,
            f": {job.reason}" if job.reason else "",
            extra=job.log_fields(),
        )
        for waiting in self._waiting.pop(job.id, []):
            if not waiting.done():
                waiting.set_result(None)

    async def until_ended(self, job: QueueJob, wait_ms: int) -> None:
        """Return when the job has ended, or after `wait_ms`."""
        if job.ended_ms > 0 or wait_ms <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job.id, []).append(future)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await future
        except TimeoutError:
            pass  # the caller looks at the job's state
        finally:
            waiting = self._waiting.get(job.id, [])
            if future in waiting:
                waiting.remove(future)


def _ignore_job(_job: QueueJob) -> None:
    """Do nothing, until a caller sets `begun`."""


def _shown_fields(request: JobRequest) -> dict[str, object]:
    shown: dict[str, object] = {"user": request.user, "messages": request.source.ready_count}
    if request.to_queue is not None:
        shown["to_queue"] = request.to_queue
    if request.to_exchange is not None:
        shown["to_exchange"] = request.to_exchange
    if request.routing_key is not None:
        shown["routing_key"] = request.routing_key
    if request.selector is not None:
        shown["where"] = request.selector.text
    return shown


def _target_of(request: JobRequest) -> JobTarget | None:
    """Return the target of the messages, None if they go nowhere. Raises: NotFound; PreconditionFailed."""
    vhost, source = request.vhost, request.source
    if request.verb == DELETE or (request.verb == REWIND and request.to_queue is None):
        return None
    if request.verb == REDRIVE:
        return FirstDeathTarget(vhost, source, request.may_write, request.may_publish)
    if request.to_exchange is not None:
        if request.to_exchange not in vhost.exchanges:
            raise NotFound(f"no exchange '{request.to_exchange}' in vhost '{vhost.name}'")
        return ExchangeTarget(vhost, source, request.to_exchange, request.routing_key, request.may_publish)
    target = vhost.queues.get(request.to_queue or "")
    if target is None:
        raise NotFound(f"no queue '{request.to_queue}' in vhost '{vhost.name}'")
    if target is source:
        raise PreconditionFailed(f"queue '{source.name}' in vhost '{vhost.name}' is both source and target")
    vhost.check_exclusive(target, None)
    return QueueTarget(target)


def _scan_of(request: JobRequest, job: QueueJob) -> QueueScan:
    source, conditions = request.source, job.conditions
    if request.verb == COPY or request.dry_run:
        return BrowseScan(source, conditions, job.wake, request.verb != COPY, request.begin, request.begin_ms)
    if isinstance(source.order, SearchableOrder):
        return LogScan(source, conditions, job.wake, source.order)
    return FifoScan(source, conditions, job.wake)


def check_rewind(request: JobRequest) -> None:
    """Check that the queue retains settled messages that can return. Raises: PreconditionFailed."""
    source = request.source
    queue_name = f"queue '{source.name}' in vhost '{source.vhost_name}'"
    if source.rules.stream:
        raise PreconditionFailed(f"{queue_name} is a stream: its consumers choose where they begin (x-stream-offset)")
    store = source.log()
    if not isinstance(store, LocalLog):
        raise PreconditionFailed(f"{queue_name} is not durable: it keeps no settled messages")
    if not store.local:
        raise PreconditionFailed(f"{queue_name} is in a cluster, where no settled messages are kept")
    if source.rules.group_by and request.to_queue is None:
        raise PreconditionFailed(f"{queue_name} has groups (x-group-by): it can be rewound only into another queue")


def _replay_scan(request: JobRequest, job: QueueJob) -> QueueScan:
    source = request.source
    store = source.log()
    assert isinstance(store, LocalLog)  # after `check_rewind`
    end: int = int(store.next_offset)
    until = min(end, request.until) if request.until >= 0 else end
    begin, gone = find_replay_start(store.log.segments, request.begin, request.begin_ms, until)
    if gone > 0 and request.begin_ms == 0:
        job.conditions.left_counts[GONE] = gone
    first = retained_of(store.log.segments, end, int(store.record_count))
    job.description["messages"] = max(0, until - begin)
    job.description["from_offset"] = begin
    job.description["retained_first_offset"] = first.first_offset
    job.description["retained_first_timestamp"] = first.first_timestamp_ms
    section = LogRange(begin, request.until, request.begin_ms, request.until_ms)
    if request.dry_run or request.to_queue is not None:
        return AckedBrowse(source, job.conditions, job.wake, section)
    rewind = source.host.storage.replay(store)
    return Replay(source, job.conditions, job.wake, section, rewind, request.limit, job.conditions.count_left, job.fail)
