"""One job of surgery: messages of one queue are found (broker/queue/scan.py) and moved, copied or deleted.

What is found is handed to the republisher, a window of it at a time, and settled at its source when every durable
target has synced it: a crash in between leaves it in both, and loses none. So that both can be told for one, each copy
says in its headers where it came from (job.py), and at the source it counts as redelivered after a kill.

States: a job *runs*, or *waits* for something it names (an alarm, a target that is full or takes nothing, the disk),
and ends as *done*, *stopped* (by hand; what was not published yet is given back, what was goes on to its end) or
*failed* (a reason that does not pass: a queue of it was deleted). A full target is never made to drop anything: the job
waits until there is room. Jobs are in memory alone: after a restart there is none, and what it had not done is where it
was.

One slice works for SLICE_MS at most, then the loop has its turn (`SlicedRunner`). What a job holds does not grow with
its
queue: LINE_COUNT messages that wait to be published, WINDOW_COUNT that wait for a sync, without their bodies.

The headers that tell of a copy where it came from, so that two of one message can be told for one.

`x-source-queue` and `x-source-offset` name the message in its queue: they are the same for every copy of it, however
often a job was repeated after a kill. `x-source-redelivered` is there, and true, where it was redelivered there. What a
message has of an earlier move is replaced, and what its producer has numbered it with goes: in another queue it might
pass for a duplicate.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timer
from amqpd.broker.jobs.targets import JobTarget, is_full, room
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
    """Of messages of the queue of this name."""

    def __init__(self, queue: str) -> None:
        self._first = encode_entry(QUEUE, queue) + encode_entry(OFFSET, Int64(0))[:-8]
        self._redelivered = encode_entry(REDELIVERED, True)

    def marked(self, properties: bytes, offset: i64, redelivered: bool) -> bytes:
        """`properties` with these headers; as they were where they would not fit a frame any more. Cost: 0.5 us."""
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

# Found, and not published yet: no more than the republisher does in a slice or two, so that what remains in its line
# does not count as dead letters that wait, for which publishers are paced. Published, and not safe yet.
LINE_COUNT: Final = 512
LINE_BYTES: Final = 1024 * 1024
WINDOW_COUNT: Final = 32768
# When it looks again whether what it waits for is there; whether the disk has answered, should nobody tell.
WAIT_MS: Final = 250
DISK_MS: Final = 20


@final
class JobFilter(MessagePredicate):
    """What a message has to be for its job."""

    def __init__(self, selector: Selector | None, address: JobTarget | None) -> None:
        self.selector = selector
        self.address = address
        self.looked_count: i64 = 0
        # Not gone anywhere, by reason.
        self.left: dict[str, int] = {}
        # Of the last one, whose content but for the body may be that of the next, too.
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
        if address.find(message.envelope, message.properties()) is None:
            self.leave(address.why)
            return False
        return True

    def leave(self, why: str) -> None:
        """One that was selected stays where it is."""
        self.left[why] = self.left.get(why, 0) + 1


@mypyc_attr(allow_interpreted_subclasses=True)
class SlicedTask:
    """Something that works in slices of the loop, one after another with all others (`SlicedRunner`)."""

    def __init__(self) -> None:
        self.scheduled = False

    def work(self) -> bool:
        """A slice. Whether there is more to do at once; else it is woken when there is (`SlicedRunner.wake`)."""
        raise NotImplementedError


@final
class SlicedRunner:
    """One per broker: a slice of one worker, then the loop has its turn. call_soon: the loop's."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._line: deque[SlicedTask] = deque()
        self._asked = False
        self._stopped = False

    def stop(self) -> None:
        """The broker stops: nothing is worked on any more."""
        self._stopped = True
        self._line.clear()

    def wake(self, worker: SlicedTask) -> None:
        """It has something to do."""
        if not worker.scheduled and not self._stopped:
            worker.scheduled = True
            self._line.append(worker)
            self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._call_soon(self.run)

    def run(self) -> None:
        """Called by the loop."""
        self._asked = False
        if not self._line:
            return  # the broker stops
        worker = self._line.popleft()
        worker.scheduled = False
        if worker.work():
            self.wake(worker)
        if self._line:
            self._ask()


@final
class RetryTimer(Timer):
    """Wakes a job that waits."""

    def __init__(self, job: QueueJob) -> None:
        super().__init__()
        self.job = job

    def fire(self) -> None:
        self.job.wake()


@final
class JobTask(SlicedTask):
    """The slices of a job."""

    def __init__(self, job: QueueJob) -> None:
        super().__init__()
        self.job = job

    def work(self) -> bool:
        job = self.job
        try:
            return job.work()
        except Exception:
            log.exception("a %s job has failed", job.kind, extra=job.log_fields())
            job.fail("an error of the broker, which its log tells of")
            return job.end()


@final
class QueueJob(RepublishSource):
    """id: of the job, for people. verb: move, copy, delete, redrive, ... limit: how many at most; 0: all. counts_only:
    nothing is done (a dry run). address: None where messages are settled and go nowhere. ended: called with the job at
    its end, once.

    done_count: at their targets, safely, or deleted; in a dry run, what would be. begun_ms, ended_ms: since 1970.
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
        self.state = RUNNING
        self.reason = ""
        self.found_count: i64 = 0
        self.done_count: i64 = 0
        self.begun_ms: i64 = republisher.timers.wall_ms()
        self.ended_ms: i64 = 0
        # For who starts jobs: what else is to be shown of it.
        self.shown: dict[str, object] = {}
        self._republisher = republisher
        self._turn = turn
        self._runner = runner
        self._ended = ended
        self._search: QueueScan | None = None
        self._closed = False
        self._task = JobTask(self)
        self._later = RetryTimer(self)
        self._slice: i64 = -1
        # Found and not safe yet, by offset; how many of them are not published yet.
        self._under_way: dict[int, QueueEntry] = {}
        self._line_count: i64 = 0
        # As much is under way as may be. A target was full, which one it was (one that refuses has not said why), and
        # how many are tried since: what is taken and given back is noted in the log. Before this time it looks at
        # nothing.
        self._blocked = False
        self._full = False
        self._full_target: Queue | None = None
        self._tried_max: i64 = LINE_COUNT
        self._until_ms: i64 = 0
        self._marks = SourceHeaders(source.name)

    # -- its life ----------------------------------------------------------------------------------------------------

    def begin(self, search: QueueScan) -> None:
        """Looks for messages by `search`, whose judge are the job's conditions, from the next turn on."""
        self._search = search
        self.wake()

    def wake(self) -> None:
        """There may be something to do."""
        if self.ended_ms == 0:
            self._runner.wake(self._task)

    def stop(self) -> None:
        """By hand. What is published goes on to its end, what is not is given back."""
        if self.state in (RUNNING, WAITING):
            self.state = STOPPING
            self.wake()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._republisher.timers.wall_ms()

    @property
    def under_way_count(self) -> int:
        """Found, and not safe at their targets yet."""
        return len(self._under_way)

    def fail(self, reason: str) -> None:
        """It cannot go on, for good."""
        if self.state in (RUNNING, WAITING):
            self.state = FAILED
            self.reason = reason

    def _wait(self, reason: str, ms: i64) -> bool:
        self.state = WAITING
        self.reason = reason
        self._until_ms = self._republisher.timers.now_ms() + ms
        self._republisher.timers.arm(self._later, self._until_ms)
        return False

    def end(self) -> bool:
        """No more is looked for: it is over when nothing is under way."""
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
        self._republisher.timers.cancel(self._later)
        self._search = None  # who remembers the job need not remember that
        self._full_target = None
        self.ended_ms = self._republisher.timers.wall_ms()
        self._ended(self)
        return False

    # -- a slice -----------------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """A slice of it. Whether there is more to do at once."""
        if self.ended_ms > 0:
            return False
        search = self._search
        if search is None or (self.state in (STOPPING, FAILED) and not search.committed):
            return self.end()
        self.source.touch()
        trouble = self._trouble()
        if trouble:
            self.fail(trouble)
            return self.end()
        if search.ended or (self.limit > 0 and self.found_count >= self.limit):
            return self.end()
        if self.state == WAITING and self._republisher.timers.now_ms() < self._until_ms:
            return False
        why = self._hindrance()
        if why:
            return self._wait(why, WAIT_MS)
        count = self._share()
        if self._full:
            self._full = False
            self._tried_max = 1
            return self._wait("the target is full", WAIT_MS)
        if count <= 0:
            self._blocked = True  # it is woken when something is published or safe
            return False
        self.state = RUNNING
        self.reason = ""
        entries: list[QueueEntry] = []
        if self.conditions.address is not None:
            self.conditions.address.forget()
        try:
            search.collect(entries, count, self._share_bytes())
        except OSError as error:
            log.error("a %s source cannot be read: %s", self.kind, error, extra=self.log_fields())
            self._hand_on(search, entries)
            return self._wait(f"queue '{self.source.name}' cannot be read: {error}", WAIT_MS)
        self._hand_on(search, entries)
        self.done_count += search.take_done()
        if search.waits:
            self._republisher.timers.arm(self._later, self._republisher.timers.now_ms() + DISK_MS)
            return False
        return True

    def _hand_on(self, search: QueueScan, entries: list[QueueEntry]) -> None:
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
            # A temporary log goes when nothing is ready any more.
            kept_in_log = self.source.log() is not None
            republisher = self._republisher
            for entry in entries:
                message = entry.message
                assert message is not None  # a search gives out messages
                self._under_way[entry.offset] = entry
                if kept_in_log:
                    entry.message = None
                republisher.add(self, message, entry.offset)
            self._line_count += len(entries)

    def _share(self) -> i64:
        """How many messages may be looked for now."""
        count: i64 = LINE_COUNT
        if self.conditions.address is not None and not self.counts_only:
            count = self._room(self.conditions.address.queue)
            if count > self._tried_max:
                count = self._tried_max
            elif self._tried_max < LINE_COUNT:
                self._tried_max *= 2
        if self.limit > 0 and self.limit - self.found_count < count:
            count = self.limit - self.found_count
        return count

    def _room(self, target: Queue | None) -> i64:
        """How many more may be under way. target: where all of them go, if that is one queue."""
        full = self._full_target
        if full is not None and not self._full:
            self._full = not full.deleted and is_full(full, 1)
            if not self._full:
                self._full_target = None
        if self._full:
            return 0
        count: i64 = LINE_COUNT - self._line_count
        left: i64 = WINDOW_COUNT - len(self._under_way)
        if left < count:
            count = left
        if target is None or count <= 0:
            return count
        if self._line_count > 0 and target.rules.length_bytes_max >= 0:
            return 0  # how many bytes they are is not known before they are there
        count = room(target, count + self._line_count) - self._line_count
        if self._line_count == 0 and (count <= 0 or self._share_bytes() <= 0):
            self._full = True
            return 0
        return count

    def _share_bytes(self) -> i64:
        """How many bytes of bodies may be looked for now."""
        address = self.conditions.address
        target = None if address is None or self.counts_only else address.queue
        if target is None or target.rules.stream or target.rules.length_bytes_max < 0:
            return LINE_BYTES
        left: i64 = target.rules.length_bytes_max - target.ready_bytes
        return left if left < LINE_BYTES else LINE_BYTES

    def _trouble(self) -> str:
        """Why it cannot go on, for good."""
        if self.source.deleted:
            return f"queue '{self.source.name}' was deleted"
        return "" if self.conditions.address is None else self.conditions.address.trouble()

    def _hindrance(self) -> str:
        """Why it cannot go on just now."""
        address = self.conditions.address
        if address is None or self.counts_only:
            return ""
        if self._turn.alarmed:
            return "a resource alarm"
        target = address.queue
        if target is not None:
            store = target.store
            if store is not None and store.failed:
                return "the target's log takes nothing"
        return ""

    # -- its origin: what the republisher asks -------------------------------------------------------------------------

    def log(self) -> QueueLog | None:
        return self.source.store

    def lasts(self) -> bool:
        return self.source.log() is not None

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        return self.source.backing.envelope(exchange, routing_key)

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        if self._line_count > 0:
            self._line_count -= 1
        if self._blocked and self._line_count < LINE_COUNT // 2:
            self._blocked = False
            self.wake()
        address = self.conditions.address
        entry = self._under_way.get(self.offset)
        if address is None or entry is None or self.source.deleted or self.state in (STOPPING, FAILED):
            return KEEP
        if self._slice != self._republisher.slice_number:
            self._slice = self._republisher.slice_number
            address.forget()
        found = address.find(envelope, properties)
        if found is None:
            return KEEP  # its target has gone since it was found
        for destination in found.destinations:
            if isinstance(destination, Queue) and is_full(destination, entry.body_size):
                self._full = True
                self._full_target = destination
                return KEEP
        changed = self._marks.marked(found.properties, entry.offset, entry.redelivered)
        return RewrittenMessage(found.envelope, changed, scan_properties(changed, 0, len(changed)), found.destinations)

    def on_unloaded(self, offset: i64) -> None:
        entry = self._under_way.pop(offset, None)
        if entry is not None:
            self.found_count -= 1
            if self._search is not None:
                self._search.give_back(entry)
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
