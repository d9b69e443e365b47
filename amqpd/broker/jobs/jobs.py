"""The jobs of a broker: begun, listed, stopped.

Who begins one has looked at the permissions, and waited until the logs of source and target are open. The last
ENDED_COUNT_MAX that have ended are remembered; all are forgotten with the broker.

A page of a queue's messages, shown: nothing is taken, requeued or marked, and no order is touched.

Whoever wants more asks again from `next_offset`. A page ends with its number of messages, with PAGE_BYTES_MAX of
bodies, or after PAGE_MS of looking, so that a selector nothing matches does not keep its reader waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.jobs.job import JobFilter, QueueJob, SlicedRunner
from amqpd.broker.jobs.targets import ExchangeTarget, FirstDeathTarget, JobTarget, QueueTarget
from amqpd.broker.publish.republisher import Republisher
from amqpd.broker.queue.grouped_order import GroupedOrder
from amqpd.broker.queue.priority import PriorityOrder
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.replay import AckedBrowse, LogRange, Replay
from amqpd.broker.queue.scan import BrowseScan, FifoScan, GroupScan, PriorityScan, QueueScan, ReadySpan
from amqpd.broker.vhost.vhost import VHost
from amqpd.errors import NotFound, PreconditionFailed
from amqpd.routing.selector import Selector
from amqpd.storage.acks.retained import offsets_there, retained_of
from amqpd.storage.local_log import LocalLog

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
PAGE_MS: Final = 1000
# The disk has answered within so long, or is asked again.
_DISK_S: Final = 0.02

READY: Final = "ready"
UNACKED: Final = "unacked"


class Page(NamedTuple):
    """messages: entries, which belong to nobody, with their state. next_offset: where the next page begins.

    ended: there was nothing behind it when it was made.
    """

    messages: list[tuple[QueueEntry, str]]
    next_offset: int
    ended: bool


async def browse(queue: Queue, selector: Selector | None, count: int, begin: int = 0, begin_ms: int = 0) -> Page:
    """The first `count` messages from the offset `begin` and the time `begin_ms` (ms since 1970) on.

    The queue's log is open. Cost: some 2 us a message it looks at, in slices of 2 ms. Raises: OSError,
    PreconditionFailed.
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
                    continue  # asked again
            else:
                await asyncio.sleep(0)
        return Page(messages, reading.next_offset, reading.ended)
    finally:
        reading.close()


def check_times(queue: Queue, begin_ms: int) -> None:
    """Whether one can begin at a time. Raises: PreconditionFailed where not every message is in a log."""
    if begin_ms > 0 and queue.log() is None:
        raise PreconditionFailed(
            f"queue '{queue.name}' in vhost '{queue.vhost_name}' is not durable: "
            "it does not know when its messages came"
        )


def _states(queue: Queue, entries: list[QueueEntry]) -> list[str]:
    """Of these, read just now."""
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
"""Together they take one slice of each turn of the loop: more of them would be no faster."""

MOVE: Final = "move"
COPY: Final = "copy"
DELETE: Final = "delete"
REDRIVE: Final = "redrive"
REWIND: Final = "rewind"
GONE: Final = "gone"
"""Why what a rewind is to begin with is left: it is older, or more, than the queue keeps (x-retain)."""


class JobRequest(NamedTuple):
    """What is to be done with messages of one queue.

    to_queue, or to_exchange with routing_key (None: their own): of move and copy. selector: None for all of them.
    limit: 0 for no limit. begin, begin_ms: of copy and rewind, the first offset, or the first time (ms since 1970); 0:
    from the front. until, until_ms: of rewind, what comes first of what is left alone; -1: to the end. may_write: of
    redrive, whether the user may write to the `queue` or `exchange` of a name.
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
    user: str = ""


class JobManager:
    """One per broker. call_soon: the loop's. begun: told of each job."""

    def __init__(
        self, republisher: Republisher, turn: LoopTurn, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self.runner = SlicedRunner(call_soon)
        self.begun: Callable[[QueueJob], object] = _unheard
        self._republisher = republisher
        self._turn = turn
        self._jobs: dict[str, QueueJob] = {}
        self._begun_count = 0
        # Who waits for the end of a job, by its id.
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def stop(self) -> None:
        """The broker stops: what is not done stays where it is."""
        self.runner.stop()

    def all(self) -> list[QueueJob]:
        """Those that run, and the last that have ended; in the order in which they began."""
        return list(self._jobs.values())

    def get(self, id_: str) -> QueueJob | None:
        """The job of this id."""
        return self._jobs.get(id_)

    def begin(self, request: JobRequest, ended: Callable[[QueueJob], object] | None = None) -> QueueJob:
        """Begins a job; its first slice comes with the next turn.

        ended: called with it at its end. Raises: PreconditionFailed, NotFound.
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
        address = _address_of(request)
        job = self.make(request.verb, source, JobFilter(request.selector, address), request, ended)
        job.begin(_rewinding(request, job) if request.verb == REWIND else _search_of(request, job))
        return job

    def _check_alone(self, request: JobRequest) -> None:
        """Two rewinds of one queue at a time would both bring back what both have found. Raises: PreconditionFailed."""
        if request.to_queue is not None or request.dry_run:
            return
        source = request.source
        for job in self._jobs.values():
            if job.source is not source or job.kind != REWIND or job.ended_ms > 0:
                continue
            if not job.counts_only and "to_queue" not in job.shown:
                raise PreconditionFailed(
                    f"queue '{source.name}' in vhost '{source.vhost_name}' is being rewound: wait for job {job.id} to "
                    "end, or stop it"
                )

    def make(
        self,
        verb: str,
        source: Queue,
        conditions: JobFilter,
        request: JobRequest,
        ended: Callable[[QueueJob], object] | None = None,
    ) -> QueueJob:
        """A listed job that has not begun, for a caller with its own `QueueScan`. Raises: PreconditionFailed."""
        running = [job for job in self._jobs.values() if job.ended_ms == 0]
        if len(running) >= RUNNING_COUNT_MAX:
            raise PreconditionFailed(f"{RUNNING_COUNT_MAX} jobs are running: wait for one to end, or stop one")
        self._begun_count += 1
        id_ = str(self._begun_count)
        job = QueueJob(
            id_,
            verb,
            source,
            conditions,
            request.limit,
            request.dry_run,
            self._republisher,
            self._turn,
            self.runner,
            partial(self._ended, ended),
        )
        job.shown = _shown(request)
        self._jobs[id_] = job
        over = [each for each, old in self._jobs.items() if old.ended_ms > 0]
        for each in over[: max(0, len(over) - ENDED_COUNT_MAX)]:
            del self._jobs[each]
        self.begun(job)
        log.info("%s of messages begins, job %s of user '%s'", verb, id_, request.user, extra=job.log_fields())
        return job

    def _ended(self, ended: Callable[[QueueJob], object] | None, job: QueueJob) -> None:
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
        if ended is not None:
            ended(job)

    async def until_ended(self, job: QueueJob, wait_ms: int) -> None:
        """Returns when the job has ended, or `wait_ms` have passed."""
        if job.ended_ms > 0 or wait_ms <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job.id, []).append(future)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await future
        except TimeoutError:
            pass  # the caller looks how far it is
        finally:
            waiting = self._waiting.get(job.id, [])
            if future in waiting:
                waiting.remove(future)


def _unheard(_job: QueueJob) -> None:
    """Nobody asked."""


def _shown(request: JobRequest) -> dict[str, object]:
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


def _address_of(request: JobRequest) -> JobTarget | None:
    """Where its messages go; None: nowhere. Raises: NotFound, PreconditionFailed."""
    vhost, source = request.vhost, request.source
    if request.verb == DELETE or (request.verb == REWIND and request.to_queue is None):
        return None
    if request.verb == REDRIVE:
        return FirstDeathTarget(vhost, source, request.may_write)
    if request.to_exchange is not None:
        if request.to_exchange not in vhost.exchanges:
            raise NotFound(f"no exchange '{request.to_exchange}' in vhost '{vhost.name}'")
        return ExchangeTarget(vhost, source, request.to_exchange, request.routing_key)
    target = vhost.queues.get(request.to_queue or "")
    if target is None:
        raise NotFound(f"no queue '{request.to_queue}' in vhost '{vhost.name}'")
    if target is source:
        raise PreconditionFailed(f"queue '{source.name}' in vhost '{vhost.name}' is source and target at once")
    vhost.check_exclusive(target, None)
    return QueueTarget(target)


def _search_of(request: JobRequest, job: QueueJob) -> QueueScan:
    source, conditions = request.source, job.conditions
    if request.verb == COPY or request.dry_run:
        return BrowseScan(source, conditions, job.wake, request.verb != COPY, request.begin, request.begin_ms)
    if isinstance(source.order, PriorityOrder):
        return PriorityScan(source, conditions, job.wake)
    if isinstance(source.order, GroupedOrder):
        return GroupScan(source, conditions, job.wake)
    return FifoScan(source, conditions, job.wake)


def check_rewind(request: JobRequest) -> None:
    """Raises: PreconditionFailed where a queue keeps nothing that could come back, or not into this queue."""
    source = request.source
    thing = f"queue '{source.name}' in vhost '{source.vhost_name}'"
    if source.rules.stream:
        raise PreconditionFailed(f"{thing} is a stream: its readers begin where they want (x-stream-offset)")
    store = source.log()
    if not isinstance(store, LocalLog):
        raise PreconditionFailed(f"{thing} is not durable: it keeps nothing that was settled")
    if not store.local:
        raise PreconditionFailed(f"{thing} is in a cluster: nothing that was settled is kept there")
    if source.rules.group_by and request.to_queue is None:
        raise PreconditionFailed(f"{thing} has groups (x-group-by): it can be rewound into another queue alone")


def _rewinding(request: JobRequest, job: QueueJob) -> QueueScan:
    source = request.source
    store = source.log()
    assert isinstance(store, LocalLog)  # `check_rewind` has looked
    end: int = int(store.next_offset)
    until = min(end, request.until) if request.until >= 0 else end
    begin, gone = offsets_there(store.log.segments, request.begin, request.begin_ms, until)
    if gone > 0 and request.begin_ms == 0:
        job.conditions.left[GONE] = gone
    first = retained_of(store.log.segments, end, int(store.record_count))
    job.shown["messages"] = max(0, until - begin)
    job.shown["from_offset"] = begin
    job.shown["retained_first_offset"] = first.first_offset
    job.shown["retained_first_timestamp"] = first.first_timestamp_ms
    section = LogRange(begin, request.until, request.begin_ms, request.until_ms)
    if request.dry_run or request.to_queue is not None:
        return AckedBrowse(source, job.conditions, job.wake, section)
    rewind = source.host.rewind(store)
    return Replay(source, job.conditions, job.wake, section, rewind, request.limit, job.conditions.leave, job.fail)
