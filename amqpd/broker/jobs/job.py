"""A job: moves, copies or deletes messages of one queue in slices.

A `QueueScan` finds messages. The job passes a window of them to the republisher, and settles each in the source
when every durable target has synced it. A crash may leave a message in both queues but loses none. To identify
duplicates, `SourceHeaders` marks each copy, and after a kill the source message counts as redelivered.

A job *runs*, or *waits* for a named reason (an alarm, a full or failed target, the disk). It ends as *done*,
*stopped* (by an operator) or *failed* (permanently, for example because a queue was deleted). When it is stopped,
unpublished messages return to the source, and published ones complete. A job never makes a full target drop
messages; it waits for room. Jobs are not stored: a restart removes them, and unfinished messages are in the source.

A slice works for at most SLICE_MS; then the loop continues (`SlicedRunner`). Memory does not depend on the queue:
LINE_COUNT messages wait for the republisher, and WINDOW_COUNT entries without bodies wait for a sync.

**Headers of copies.** `x-source-queue` and `x-source-offset` identify the source message and are equal in all
copies, also after a repeated job. `x-source-redelivered` is true if it was redelivered there. Headers of an earlier
move are replaced. Producer numbers are removed, because the target could take the message for a duplicate.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import CallTimer
from amqpd.broker.jobs.targets import JobTarget, free_count
from amqpd.broker.message import FRAME_PAYLOAD_BYTES, Message, MessageRoute, MessageView
from amqpd.broker.publish.republisher import KEEP, Republisher, RepublishSource, RewrittenMessage
from amqpd.broker.queue.filtered import MessagePredicate
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.scan import QueueScan
from amqpd.protocol.field_table import Int64, encode_entry
from amqpd.protocol.properties import HEADERS, scan_properties, with_encoded_headers, without_headers
from amqpd.routing.selector import Selector
from amqpd.storage.queue_log import QueueLog

QUEUE: Final = "x-source-queue"
OFFSET: Final = "x-source-offset"
REDELIVERED: Final = "x-source-redelivered"
_NAMES: Final = (QUEUE, OFFSET, REDELIVERED, "x-producer-id", "x-producer-epoch", "x-sequence")
_HAS_HEADERS: Final = HEADERS >> 8  # in the first byte of the flags
_PREFIXES: Final = (b"x-source-", b"x-producer-", b"x-sequence")


@final
class SourceHeaders:
    """The headers that mark copies from one source queue."""

    def __init__(self, queue: str) -> None:
        self._first = encode_entry(QUEUE, queue) + encode_entry(OFFSET, Int64(0))[:-8]
        self._redelivered = encode_entry(REDELIVERED, True)

    def with_source(self, properties: bytes, offset: i64, redelivered: bool) -> bytes:
        """Return the properties with these headers; without them if they would not fit into a frame. Cost: 0.5 us."""
        bare = properties
        if properties[0] & _HAS_HEADERS:
            for prefix in _PREFIXES:
                if prefix in properties:
                    bare = without_headers(properties, _NAMES)
                    break
        number: int = offset
        entries = self._first + number.to_bytes(8, "big")
        if redelivered:
            entries += self._redelivered
        changed = with_encoded_headers(bare, entries)
        return changed if len(changed) <= FRAME_PAYLOAD_BYTES - 12 else bare


log = logging.getLogger(__name__)

RUNNING: Final = "running"
WAITING: Final = "waiting"
STOPPING: Final = "stopping"
DONE: Final = "done"
STOPPED: Final = "stopped"
FAILED: Final = "failed"

# LINE: found and not published. This is what the republisher does in one or two slices, so that its queue does not
# pace publishers as waiting dead letters do. WINDOW: not synced yet.
LINE_COUNT: Final = 512
LINE_BYTES: Final = 1024 * 1024
WINDOW_COUNT: Final = 32768
# Delay before a waiting job tries again; and before it asks whether the disk has answered.
WAIT_MS: Final = 250
DISK_MS: Final = 20


@final
class JobFilter(MessagePredicate):
    """Selects the messages of a job by selector and target, and counts those it leaves."""

    def __init__(self, selector: Selector | None, address: JobTarget | None) -> None:
        self.selector = selector
        self.address = address
        self.looked_count: i64 = 0
        # Reason -> number of messages that stay in the source.
        self.left_counts: dict[str, int] = {}
        # Cache for consecutive messages with the same content except for the body.
        self._content: bytes = b""
        self._envelope: MessageRoute | None = None
        self._answer = False

    def wants(self, message: Message) -> bool:
        self.looked_count += 1
        if message.started and message.content is self._content and message.envelope is self._envelope:
            answer = self._answer
        else:
            selector = self.selector
            answer = selector is None or selector.matches(MessageView(message))
            if message.started:
                self._content = message.content
                self._envelope = message.envelope
                self._answer = answer
        address = self.address
        if not answer or address is None or (address.queue is not None and not address.queue.deleted):
            return answer
        if address.route_of(message.envelope, message.properties()) is None:
            self.count_left(address.stay_reason)
            return False
        return True

    def count_left(self, why: str) -> None:
        """Count a selected message that stays in the source."""
        self.left_counts[why] = self.left_counts.get(why, 0) + 1


@final
class SlicedRunner:
    """Runs one slice of one job per loop turn; one per broker.

    Args:
        call_soon: calls a function in the next loop turn.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._queue: deque[QueueJob] = deque()
        self._run_scheduled = False
        self._stopped = False

    def stop(self) -> None:
        """Discard all jobs: the broker stops."""
        self._stopped = True
        self._queue.clear()

    def wake(self, job: QueueJob) -> None:
        """Schedule the job."""
        if not job.scheduled and not self._stopped:
            job.scheduled = True
            self._queue.append(job)
            self._schedule_run()

    def _schedule_run(self) -> None:
        if not self._run_scheduled:
            self._run_scheduled = True
            self._call_soon(self.run)

    def run(self) -> None:
        """Run one slice. Called by the loop."""
        self._run_scheduled = False
        if not self._queue:
            return  # the broker stops
        job = self._queue.popleft()
        job.scheduled = False
        if job.run_slice():
            self.wake(job)
        if self._queue:
            self._schedule_run()


@final
class QueueJob(RepublishSource):
    """One job: the messages of a queue as a source of the republisher.

    Args:
        id_: for people.
        verb: move, copy, delete, redrive, ...
        conditions: selects messages; without a target, messages are only settled.
        limit: the maximum of messages; 0 for all.
        counts_only: a dry run.
        ended: called once with the job at its end.

    Attributes:
        scheduled: `SlicedRunner` will run a slice.
        done_count: safe at their targets, or deleted; in a dry run, those that would be.
        begun_ms, ended_ms: since 1970.
    """

    def __init__(
        self,
        id_: str,
        verb: str,
        source: Queue,
        conditions: JobFilter,
        limit: i64,
        counts_only: bool,
        republisher: Republisher,
        turn: LoopTurn,
        runner: SlicedRunner,
        ended: Callable[[QueueJob], object],
    ) -> None:
        super().__init__(verb)
        self.id: Final = id_
        self.source = source
        self.conditions = conditions
        self.limit = limit
        self.counts_only = counts_only
        self.scheduled = False
        self.state = RUNNING
        self.reason = ""
        self.found_count: i64 = 0
        self.done_count: i64 = 0
        self.begun_ms: i64 = republisher.timers.wall_ms()
        self.ended_ms: i64 = 0
        # More fields to show in listings.
        self.description: dict[str, object] = {}
        self._republisher = republisher
        self._turn = turn
        self._runner = runner
        self._ended = ended
        self._search: QueueScan | None = None
        self._closed = False
        self._retry_timer = CallTimer(self.wake)
        self._slice: i64 = -1
        # Entries found and not safe yet, by offset; and how many of them are not published.
        self._under_way: dict[int, QueueEntry] = {}
        self._unpublished_count: i64 = 0
        # State of waiting. `_blocked`: the window is full. `_full`, `_full_target`: a target is full; None if it
        # refused without a reason. `_tried_max`: messages to try after that, because taking and returning them
        # writes to the log. `_until_ms`: no work before this time.
        self._blocked = False
        self._full = False
        self._full_target: Queue | None = None
        self._tried_max: i64 = LINE_COUNT
        self._until_ms: i64 = 0
        self._marks = SourceHeaders(source.name)

    # -- start and end --------------------------------------------------------------------------------------------

    def begin(self, search: QueueScan) -> None:
        """Start with this scan, which uses the job's conditions. The first slice is in the next loop turn."""
        self._search = search
        self.wake()

    def wake(self) -> None:
        """Schedule the job unless it has ended."""
        if self.ended_ms == 0:
            self._runner.wake(self)

    def stop(self) -> None:
        """Stop the job by request. Published messages complete; others return to the source."""
        if self.state in (RUNNING, WAITING):
            self.state = STOPPING
            self.wake()

    def now_ms(self) -> int:
        return self._republisher.timers.wall_ms()

    @property
    def under_way_count(self) -> int:
        """Messages found and not safe at their targets yet."""
        return len(self._under_way)

    def fail(self, reason: str) -> None:
        """Mark the job as failed for a permanent reason."""
        if self.state in (RUNNING, WAITING):
            self.state = FAILED
            self.reason = reason

    def _wait(self, reason: str) -> bool:
        self.state = WAITING
        self.reason = reason
        self._until_ms = self._republisher.timers.now_ms() + WAIT_MS
        self._republisher.timers.arm(self._retry_timer, self._until_ms)
        return False

    def finish(self) -> bool:
        """Close the scan, and end the job if no message is under way. Return False: there is nothing more to do now."""
        search = self._search
        if search is not None and not self._closed:
            self._closed = True
            search.close()
        if self._under_way or self.ended_ms > 0:
            return False
        if self.state == STOPPING:
            self.state = STOPPED
        elif self.state != FAILED:
            self.state = DONE
            self.reason = ""
        self._republisher.timers.discard(self._retry_timer)
        self._search = None  # release it for owners that remember the job
        self._full_target = None
        self.ended_ms = self._republisher.timers.wall_ms()
        self._ended(self)
        return False

    # -- slices ---------------------------------------------------------------------------------------------------

    def run_slice(self) -> bool:
        """Do one slice. Return True if there is more now; otherwise `SlicedRunner.wake` must be called later."""
        try:
            return self._run_slice()
        except Exception:
            log.exception("a %s job failed", self.kind, extra=self.log_fields())
            self.fail("an internal error; see the broker's log")
            return self.finish()

    def _run_slice(self) -> bool:
        if self.ended_ms > 0:
            return False
        search = self._search
        if search is None or (self.state in (STOPPING, FAILED) and not search.committed):
            return self.finish()
        self.source.touch()
        trouble = self._permanent_reason()
        if trouble:
            self.fail(trouble)
            return self.finish()
        if search.ended or (self.limit > 0 and self.found_count >= self.limit):
            return self.finish()
        if self.state == WAITING and self._republisher.timers.now_ms() < self._until_ms:
            return False
        why = self._wait_reason()
        if why:
            return self._wait(why)
        count = self._count_share()
        if self._full:
            self._full = False
            self._tried_max = 1
            return self._wait("the target is full")
        if count <= 0:
            self._blocked = True  # woken after a publish or a sync
            return False
        self.state = RUNNING
        self.reason = ""
        entries: list[QueueEntry] = []
        if self.conditions.address is not None:
            self.conditions.address.clear_cache()
        try:
            search.collect(entries, count, self._bytes_share())
        except OSError as error:
            log.error("the source of a %s job cannot be read: %s", self.kind, error, extra=self.log_fields())
            self._process(search, entries)
            return self._wait(f"queue '{self.source.name}' cannot be read: {error}")
        self._process(search, entries)
        self.done_count += search.take_done()
        if search.waits:
            self._republisher.timers.arm(self._retry_timer, self._republisher.timers.now_ms() + DISK_MS)
            return False
        return True

    def _process(self, search: QueueScan, entries: list[QueueEntry]) -> None:
        if not entries:
            return
        self.found_count += len(entries)
        self._turn.schedule()
        if self.counts_only:
            self.done_count += len(entries)
        elif self.conditions.address is None:
            for entry in entries:
                search.settle(entry)
            self.done_count += len(entries)
        else:
            # A temporary log is deleted when no message is ready.
            kept_in_log = self.source.log() is not None
            republisher = self._republisher
            for entry in entries:
                message = entry.message
                assert message is not None  # entries of a scan have messages
                self._under_way[entry.offset] = entry
                if kept_in_log:
                    entry.message = None
                republisher.add(self, message, entry.offset)
            self._unpublished_count += len(entries)

    def _count_share(self) -> i64:
        """Return how many messages to look for in this slice."""
        count: i64 = LINE_COUNT
        if self.conditions.address is not None and not self.counts_only:
            count = self._room_count(self.conditions.address.queue)
            if count > self._tried_max:
                count = self._tried_max
            elif self._tried_max < LINE_COUNT:
                self._tried_max *= 2
        if self.limit > 0 and self.limit - self.found_count < count:
            count = self.limit - self.found_count
        return count

    def _room_count(self, target: Queue | None) -> i64:
        """Return how many more messages may be under way.

        Args:
            target: the queue that all messages go to, if there is only one.
        """
        full = self._full_target
        if full is not None and not self._full:
            self._full = not full.deleted and not full.has_room(1, 1)
            if not self._full:
                self._full_target = None
        if self._full:
            return 0
        count: i64 = LINE_COUNT - self._unpublished_count
        left: i64 = WINDOW_COUNT - len(self._under_way)
        if left < count:
            count = left
        if target is None or count <= 0:
            return count
        if self._unpublished_count > 0 and target.rules.length_bytes_max >= 0:
            return 0  # their bytes are unknown until they are in the target
        count = free_count(target, count + self._unpublished_count) - self._unpublished_count
        if self._unpublished_count == 0 and (count <= 0 or self._bytes_share() <= 0):
            self._full = True
            return 0
        return count

    def _bytes_share(self) -> i64:
        """Return how many bytes of bodies to look for in this slice."""
        address = self.conditions.address
        target = None if address is None or self.counts_only else address.queue
        if target is None or target.rules.stream or target.rules.length_bytes_max < 0:
            return LINE_BYTES
        left: i64 = target.rules.length_bytes_max - target.ready_bytes - target.delayed_bytes
        return left if left < LINE_BYTES else LINE_BYTES

    def _permanent_reason(self) -> str:
        """Return the permanent reason why the job cannot continue, "" for none."""
        if self.source.deleted:
            return f"queue '{self.source.name}' was deleted"
        return "" if self.conditions.address is None else self.conditions.address.permanent_reason()

    def _wait_reason(self) -> str:
        """Return the temporary reason why the job cannot continue, "" for none."""
        address = self.conditions.address
        if address is None or self.counts_only:
            return ""
        if self._turn.alarmed:
            return "a resource alarm"
        target = address.queue
        if target is not None:
            store = target.store
            if store is not None and store.failed:
                return "the target's log has failed"
        return ""

    # -- the republisher's interface ------------------------------------------------------------------------------

    def log(self) -> QueueLog | None:
        return self.source.store

    def is_durable(self) -> bool:
        return self.source.log() is not None

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        return self.source.backing.envelope(exchange, routing_key)

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        if self._unpublished_count > 0:
            self._unpublished_count -= 1
        if self._blocked and self._unpublished_count < LINE_COUNT // 2:
            self._blocked = False
            self.wake()
        address = self.conditions.address
        entry = self._under_way.get(self.offset)
        if address is None or entry is None or self.source.deleted or self.state in (STOPPING, FAILED):
            return KEEP
        if self._slice != self._republisher.slice_number:
            self._slice = self._republisher.slice_number
            address.clear_cache()
        found = address.route_of(envelope, properties)
        if found is None:
            return KEEP  # its target is gone
        for destination in found.destinations:
            if isinstance(destination, Queue) and not destination.has_room(1, entry.body_size):
                self._full = True
                self._full_target = destination
                return KEEP
        changed = self._marks.with_source(found.properties, entry.offset, entry.redelivered)
        return RewrittenMessage(found.envelope, changed, scan_properties(changed, 0, len(changed)), found.destinations)

    def on_unloaded(self, offset: i64) -> None:
        entry = self._under_way.pop(offset, None)
        if entry is not None:
            self.found_count -= 1
            if self._search is not None:
                self._search.return_message(entry)
            self.wake()

    def refused(self, offset: i64) -> bool:
        self._full = True
        self.on_unloaded(offset)
        return True

    def on_safe(self, first: i64, last: i64, size: i64) -> None:
        search = self._search
        under_way = self._under_way
        offset = first
        while offset <= last:
            entry = under_way.pop(offset, None)
            if entry is not None and search is not None:
                self.done_count += 1
                search.settle(entry)
            offset += 1
        if not under_way or (self._blocked and len(under_way) < WINDOW_COUNT // 2):
            self._blocked = False
            self.wake()

    def log_fields(self) -> dict[str, object]:
        return {"vhost": self.source.vhost_name, "queue": self.source.name}
