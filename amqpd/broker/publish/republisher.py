"""Republisher: publishes messages of a log once more, to other queues, without losing one.

It serves dead letters, delayed messages and jobs (move, copy, redrive). Each is a `RepublishSource`: `rewrite` says
what a message becomes and where it goes, and `on_safe` settles it at the source. The republisher does the rest:

    line      What waits to be published, in order of arrival: single messages, and ranges of offsets that are read from
              the source's log piece by piece. A range of a million messages takes some bytes.
    slice     It publishes for SLICE_MS, then the loop has its turn. While more is left, publishers without a limit of
              their own are slowed (`LoopTurn.dead_letters_pending`). All publishers wait while the
              line has HELD_BYTES_MAX in memory or HELD_COUNT_MAX entries (`LoopTurn.is_republisher_full`).
    safe      A message stays unsettled at its source until every durable target has its copy safely: synced, or below
              the high watermark of a replicated log. A crash in between publishes it again.
    retry     If the log of a target takes nothing, no target gets the message, and it is tried again after RETRY_MS. If
              the log of a target is being opened, the message waits for that. An exception is a bug; that message, too,
              is tried again after RETRY_MS and delays no other.

It publishes from a callback of the loop, never from within `add`. So a queue that adds a message while it enqueues
another does not enter a third queue, however long the chain of dead letters is. While the disk is too far behind, it
publishes nothing. `stop` leaves what was not published at its source.

Invariant: each `PendingRepublish` is in `line`, `_fresh`, `_waiting`, `_failed`, `_unopened` or `_acks`, or settled.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Destination, LogNotOpen
from amqpd.broker.flow.loop_turn import TURN_BYTES_MAX, CommitListener, LoopTurn
from amqpd.broker.flow.timers import CallTimer, Timers
from amqpd.broker.message import Message, MessageRoute, make_message, with_properties
from amqpd.broker.publish.route import FAILED, REFUSED, offer_to_all, prepare
from amqpd.errors import ResourceError
from amqpd.protocol.properties import PropertyInfo, valid_properties
from amqpd.storage.queue_log import Cursor, QueueLog


@final
class RewrittenMessage:
    """A rewritten message: route, properties, destinations. The body stays.

    properties: Flags and fields, encoded. info: The result of `scan_properties` for them.
    """

    def __init__(
        self, envelope: MessageRoute, properties: bytes, info: PropertyInfo, destinations: list[Destination]
    ) -> None:
        self.envelope = envelope
        self.properties = properties
        self.info = info
        self.destinations = destinations


# Result of `RepublishSource.rewrite`: the message cannot be published now and stays where it is.
KEEP: Final = RewrittenMessage(MessageRoute("", ""), b"", PropertyInfo(0), [])


@final
class RepublishCount:
    """Number of republished messages of one or more sources. A repetition does not count."""

    def __init__(self) -> None:
        self.count: i64 = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class RepublishSource:
    """A source of messages for the republisher. Subclasses say what a message becomes.

    Neighbouring ranges of one source are merged, so messages of one kind should share a source.

    Attributes:
        kind: The kind of its messages in the broker's log, for example "dead-letter".
        offset: The offset of the message that is being rewritten; -1 if it has none.
        again: An earlier try since the start may have published this message to some of its targets.
        published: Counts the republished messages.
    """

    def __init__(self, kind: str, published: RepublishCount | None = None) -> None:
        self.kind = kind
        self.offset: i64 = -1
        self.again = False
        self.published = RepublishCount() if published is None else published

    def log(self) -> QueueLog | None:
        """Return the log of the messages, to read and settle them; None if they are in none.

        A message whose offset is below the start of the log is in memory only.
        """
        raise NotImplementedError

    def is_durable(self) -> bool:
        """Return whether the log survives the broker, so that it must keep a message until the targets are safe."""
        return True

    def is_deleted(self) -> bool:
        """Return whether the source was deleted. Its unpublished messages are then dropped."""
        return False

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        """Return the route of a message that was read from the log."""
        raise NotImplementedError

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        """Return what a message with this route and these properties becomes.

        Results may be cached during a slice (`Republisher.slice_number`).

        Returns: None: the message has no destination and is settled. KEEP: it stays where it is (`on_unloaded`).
        """
        raise NotImplementedError

    def on_safe(self, first: i64, last: i64, size: i64) -> None:
        """Settle these messages, ends included: all targets have them safely, or they were dropped.

        Called once for each offset, in any order. size: Bytes of each body.
        """
        store = self.log()
        if store is not None:
            offset = first
            while offset <= last:
                store.ack(offset, size)
                offset += 1

    def on_unloaded(self, offset: i64) -> None:
        """Handle a message for which `rewrite` returned KEEP: it is neither settled nor tried again."""
        raise NotImplementedError

    def on_stop(self, offset: i64, again: bool) -> None:
        """Handle a message in memory that was not published when the broker stopped cleanly.

        again: Some of its targets may have it; the next start publishes it again.
        """

    def on_published(self, message: Message, destinations: list[Destination]) -> None:
        """Handle a message that was enqueued at its destinations."""

    def refused(self, offset: i64) -> bool:
        """Handle a message that a target rejects. Return whether the source takes it back; otherwise it is settled."""
        return False

    def on_queued(self, count: i64) -> None:
        """Count the waiting ranges that only the log has, by 1 or -1. The log must stay while there are any."""

    def log_fields(self) -> dict[str, object]:
        """Return the fields of the broker's log lines about this source."""
        return {}


@final
class PendingRepublish:
    """A message, or a range of neighbours in one log, that is being republished.

    Attributes:
        first, last: Offsets at the source, ends included; -1 for a message that never had one.
        size: Bytes of each body.
        message: The message if it is in memory. None: the log has it, or the range.
        again_end: Messages below this offset may have been published before, to some of their targets.
        targets: Logs that must make it safe.
        synced: The local ones have.
        missing: Number of the others that have not answered.
        failed: A target could not store it.
    """

    def __init__(self, source: RepublishSource, first: i64, last: i64, size: i64, message: Message | None) -> None:
        self.source = source
        self.first = first
        self.last = last
        self.size = size
        self.message = message
        self.again_end: i64 = -1
        self.targets: list[QueueLog] = []
        self.synced = False
        self.missing: i64 = 0
        self.failed = False


# Limits of one slice of settlements: time, checked once per STEP_COUNT offsets, and number.
SLICE_MS: Final = 2
STEP_COUNT: Final = 256
ACK_SLICE_COUNT_MAX: Final = 8192


@final
class SlicedAcks:
    """Settles safe messages at their sources, in slices: one sync may make a hundred thousand safe.

    The first slice comes with the sync, the others in later turns of the loop. After `stop` all are settled at once, so
    that the next start publishes none of them again. call_soon: Call a function in the next turn of the loop.
    """

    def __init__(self, turn: LoopTurn, timers: Timers, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._turn = turn
        self._timers = timers
        self._call_soon = call_soon
        self._line: deque[PendingRepublish] = deque()
        self._scheduled = False
        self._stopped = False

    def add(self, pending: PendingRepublish) -> None:
        """Add messages that are safe. `run_slice` settles them."""
        self._line.append(pending)

    def run_slice(self) -> None:
        line = self._line
        if not line:
            return
        timers = self._timers
        begun_ms = timers.now_ms()
        count: i64 = 0
        while line:
            end = count + STEP_COUNT
            while line and count < end:
                pending = line[0]
                first = pending.first
                last = first + STEP_COUNT - 1
                if last >= pending.last:
                    last = pending.last
                    line.popleft()
                pending.first = last + 1
                count += last - first + 1
                pending.source.on_safe(first, last, pending.size)
            if not self._stopped and line and (count >= ACK_SLICE_COUNT_MAX or timers.now_ms() - begun_ms >= SLICE_MS):
                break
        if line and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run_next_slice)
        self._turn.schedule()

    def _run_next_slice(self) -> None:
        self._scheduled = False
        self.run_slice()

    def stop(self) -> None:
        """Settle all that is safe, now and from now on at once."""
        self._stopped = True
        self.run_slice()


log = logging.getLogger(__name__)

# A slice checks the clock (SLICE_MS) once per SLICE_COUNT messages, and has at most SLICE_COUNT_MAX.
SLICE_COUNT: Final = 64
SLICE_COUNT_MAX: Final = 4096
# Size of one read of a range.
READ_BYTES: Final = 64 * 1024
# Publishers wait while the line has this much, until half of it is left. This is twice the limit from which on queues
# drop no expired messages (dead_letter.py).
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
HELD_COUNT_MAX: Final = 131072
# Logs with an open cursor. A cursor has a buffer of 256 KiB.
CURSORS_MAX: Final = 16
# Pause before a target that takes nothing (a full disk) is tried again.
RETRY_MS: Final = 2000


@final
class Republisher(CommitListener):
    """The queue of messages to republish. One per broker.

    Attributes:
        slice_number: Counts the slices. Nothing is declared, bound or deleted during one.
        line: What waits to be published.
        held_bytes: Bytes of the bodies in `line`.
    """

    def __init__(self, turn: LoopTurn, timers: Timers, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.timers = timers
        self._turn = turn
        self._call_soon = call_soon
        self._scheduled = False
        # Nothing is published until the disk has synced enough.
        self._pausing = False
        self.slice_number: i64 = 0
        self.line: deque[PendingRepublish] = deque()
        self.held_bytes: i64 = 0
        self._cursors: dict[QueueLog, Cursor] = {}
        # Published in this turn; then, by commit group, until that is synced.
        self._fresh: list[PendingRepublish] = []
        self._waiting: deque[tuple[int, list[PendingRepublish]]] = deque()
        self._failed: list[PendingRepublish] = []
        # Target whose log is being opened -> what waits for it.
        self._unopened: dict[Destination, list[PendingRepublish]] = {}
        self._retry = CallTimer(self.retry)
        self._acks = SlicedAcks(turn, timers, call_soon)

    # -- adding messages -----------------------------------------------------------------------------------------------

    def add(self, source: RepublishSource, message: Message, offset: i64) -> None:
        """Publish a message that is in memory, soon. offset: In the source's log; -1 if it has none. Cost: O(1)."""
        self._append(PendingRepublish(source, offset, offset, message.body_size, message))

    def add_range(self, source: RepublishSource, first: i64, last: i64) -> None:
        """Publish all unsettled messages of the source's log with these offsets, ends included. Cost: O(1)."""
        if self.line:
            end = self.line[-1]
            if end.message is None and end.source is source and end.last == first - 1:
                end.last = last
                return
        self._append(PendingRepublish(source, first, last, 0, None))

    def _append(self, pending: PendingRepublish) -> None:
        self._count(pending, 1)
        self.line.append(pending)
        if self.held_bytes >= HELD_BYTES_MAX or len(self.line) >= HELD_COUNT_MAX:
            self._turn.is_republisher_full = True
        self._schedule()

    def _drop_first(self) -> None:
        self._count(self.line.popleft(), -1)

    def _count(self, pending: PendingRepublish, sign: i64) -> None:
        message = pending.message
        if message is not None:
            self.held_bytes += sign * message.body_size
        else:
            pending.source.on_queued(sign)

    def _schedule(self) -> None:
        if not self._scheduled and not self._pausing:
            self._scheduled = True
            self._call_soon(self.run)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Publish a slice. The loop calls this."""
        self._scheduled = False
        timers = self.timers
        begun_ms = timers.now_ms()
        self.slice_number += 1
        count: i64 = 0
        size: i64 = 0
        turn = self._turn
        while self.line and count < SLICE_COUNT_MAX and size < TURN_BYTES_MAX:
            if turn.commits.unsynced_bytes >= turn.unsynced_bytes_max:
                self._pausing = True
                turn.call_when_below_limit(self._continue)
                break
            end = count + SLICE_COUNT
            while self.line and count < end and size < TURN_BYTES_MAX:
                first = self.line[0]
                count += 1
                try:
                    message = first.message
                    if message is None:
                        done: i64 = 0
                        done_bytes: i64 = 0
                        done, done_bytes = self._publish_range(first)
                        count += done
                        size += done_bytes
                    else:
                        self.line.popleft()
                        self.held_bytes -= message.body_size
                        size += message.body_size
                        self._publish_message(first, message)
                except Exception as error:  # noqa: BLE001  # logged there
                    self._on_exception(first, error)
            if not self.line or timers.now_ms() - begun_ms >= SLICE_MS:
                break
        if turn.is_republisher_full:
            self._update_crowded()
        if self.line:
            turn.dead_letters_pending = True
            self._schedule()
        elif self._cursors:
            self._close_cursors()
        if self._fresh:
            turn.confirm_later(self)
        else:
            turn.schedule()

    def _update_crowded(self) -> None:
        """Update the state after a slice. A message that its target refuses is not in line, so it delays no other."""
        if not self.line or (self.held_bytes < HELD_BYTES_MAX // 2 and len(self.line) < HELD_COUNT_MAX // 2):
            self._turn.is_republisher_full = False
            self._turn.resume_paused()

    def _continue(self) -> None:
        self._pausing = False
        if self.line:
            self._schedule()

    def _publish_message(self, pending: PendingRepublish, message: Message) -> None:
        source = pending.source
        targets: list[QueueLog] = []
        source.offset = pending.first
        source.again = pending.first < pending.again_end
        rewritten = None if source.is_deleted() else source.rewrite(message.envelope, message.properties())
        if rewritten is KEEP:
            source.on_unloaded(pending.first)
            return
        if rewritten is not None:
            again = with_properties(message, rewritten.envelope, rewritten.properties, rewritten.info)
            if not self._enqueue(pending, rewritten, again, targets):
                return
            source.published.count += 1
        if pending.first >= 0:
            self._published(source, pending.first, pending.size, targets)

    def _publish_range(self, pending: PendingRepublish) -> tuple[i64, i64]:
        """Publish a piece of the first range in line. Return the number of messages and the bytes of their bodies."""
        source = pending.source
        store = source.log()
        count: i64 = 0
        size: i64 = 0
        if store is None or source.is_deleted():
            self._drop_first()
            return count, size
        try:
            records = self._cursor_of(store).read(pending.first, READ_BYTES).records
        except OSError as error:
            log.error("a %s source cannot be read: %s", source.kind, error, extra=source.log_fields())
            self._drop_first()
            self._try_later(pending)
            return count, size
        targets: list[QueueLog] = []
        for record in records:
            offset = record.offset
            if offset > pending.last:
                break
            pending.first = offset
            body = record.body
            body_size: i64 = len(body)
            source.offset = offset
            source.again = offset < pending.again_end
            properties = valid_properties(record.properties)
            rewritten = source.rewrite(source.envelope_of(record.exchange, record.routing_key), properties)
            if targets:
                targets = []
            if rewritten is KEEP:
                pending.first = offset + 1
                count += 1
                source.on_unloaded(offset)
                continue
            if rewritten is not None:
                info = rewritten.info
                persistent = record.persistent and info.delivery_mode != 1  # the log may keep transient ones, too
                again = make_message(rewritten.envelope, rewritten.properties, body, persistent, info)
                if not self._enqueue(pending, rewritten, again, targets):
                    self._drop_first()
                    return count, size
                source.published.count += 1
            pending.first = offset + 1
            count += 1
            size += body_size
            self._published(source, offset, body_size, targets)
        if pending.first > pending.last or count == 0:
            self._drop_first()
        return count, size

    def _cursor_of(self, store: QueueLog) -> Cursor:
        cursor = self._cursors.get(store)
        if cursor is None:
            if len(self._cursors) >= CURSORS_MAX:
                self._close_cursors()
            cursor = store.new_cursor()
            self._cursors[store] = cursor
        return cursor

    def _close_cursors(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()

    def _enqueue(
        self, pending: PendingRepublish, rewritten: RewrittenMessage, message: Message, targets: list[QueueLog]
    ) -> bool:
        """Enqueue a message at all its destinations.

        targets: The logs that must make it safe are added to it.
        Returns: False if it must be tried again later.
        """
        try:
            prepare(rewritten.destinations)
        except LogNotOpen as waits:
            self._wait_until_open(pending, waits.destinations[0])
            return False
        except ResourceError:  # it was logged where it was raised
            self._try_later(pending)
            return False
        if _has_failed(rewritten.destinations, message):
            self._try_later(pending)
            return False
        outcome = offer_to_all(rewritten.destinations, message, targets)
        if outcome == FAILED:
            pending.again_end = pending.first + 1
            self._try_later(pending)
            return False
        if outcome == REFUSED and pending.source.refused(pending.first):
            targets.clear()
        pending.source.on_published(message, rewritten.destinations)
        return True

    def _published(self, source: RepublishSource, offset: i64, size: i64, targets: list[QueueLog]) -> None:
        """Note that a message was published. Neighbours with the same targets wait as one range."""
        if not targets or not source.is_durable():
            source.on_safe(offset, offset, size)
            return
        if self._fresh:
            end = self._fresh[-1]
            if end.source is source and end.size == size and end.last == offset - 1 and _are_same(end.targets, targets):
                end.last = offset
                return
        # The source's log has the message until then, so memory need not.
        pending = PendingRepublish(source, offset, offset, size, None)
        pending.targets = targets
        self._fresh.append(pending)

    # -- retries -------------------------------------------------------------------------------------------------------

    def _on_exception(self, pending: PendingRepublish, error: Exception) -> None:
        source = pending.source
        traceback = error if not self._failed else None
        log.error(
            "a %s message: a bug in amqpd, please report it (%r); it is tried again",
            source.kind,
            error,
            exc_info=traceback,
            extra=source.log_fields(),
        )
        if self.line and self.line[0] is pending:
            self._drop_first()
        pending.again_end = pending.first + 1  # some targets may have it
        self._try_later(pending)

    def _try_later(self, pending: PendingRepublish) -> None:
        if not self._failed:
            source = pending.source
            log.warning("a %s target takes nothing, it is tried again", source.kind, extra=source.log_fields())
        self._count(pending, 1)
        self._failed.append(pending)
        self.timers.arm_sooner(self._retry, self.timers.now_ms() + RETRY_MS)

    def retry(self) -> None:
        """Put failed messages back in line, RETRY_MS after the failure."""
        self.line.extend(self._failed)
        self._failed = []
        self._schedule()

    def _wait_until_open(self, pending: PendingRepublish, target: Destination) -> None:
        """Let a message wait for the log of a target that is being opened, as after a start."""
        self._count(pending, 1)
        waiting = self._unopened.get(target)
        if waiting is not None:
            waiting.append(pending)
            return
        self._unopened[target] = [pending]
        target.when_open(partial(self._opened, target))

    def _opened(self, target: Destination) -> None:
        """Put messages back in line: the log was opened, or cannot be, which the next try finds out."""
        waiting = self._unopened.pop(target, None)
        if waiting is not None:
            self.line.extend(waiting)
            self._schedule()

    def stop(self) -> None:
        """Stop: what was not published stays at its source, unsettled in its log."""
        self._close_cursors()
        left = [*self.line, *self._failed]
        for waiting in self._unopened.values():
            left += waiting
        self.line.clear()
        self._failed.clear()
        self._unopened.clear()
        self._turn.is_republisher_full = False
        for pending in left:
            if pending.message is not None and pending.first >= 0:
                pending.source.on_stop(pending.first, pending.first < pending.again_end)
        self._acks.stop()

    # -- safety --------------------------------------------------------------------------------------------------------

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        fresh = self._fresh
        self._fresh = []
        for pending in fresh:
            for target in pending.targets:
                if not target.local:  # replicated targets answer; local ones are synced in groups
                    pending.missing += 1
                    target.when_safe(target.next_offset - 1, partial(self._answered, pending))
        if safe and not self._waiting:
            self._synced_all(fresh, [])
            return False
        group: int = generation
        self._waiting.append((group, fresh))
        return True

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        while self._waiting and self._waiting[0][0] <= generation:
            self._synced_all(self._waiting.popleft()[1], failed)
        return len(self._waiting) > 0

    def _answered(self, pending: PendingRepublish, safe: bool) -> None:
        pending.missing -= 1
        if not safe:
            pending.failed = True
        if pending.synced and pending.missing == 0:
            self._end(pending)
            self._acks.run_slice()

    def _synced_all(self, group: list[PendingRepublish], failed: list[QueueLog]) -> None:
        """The commit group was synced by all local targets except `failed`."""
        for pending in group:
            pending.synced = True
            if failed and any([store in failed for store in pending.targets]):  # noqa: C419
                pending.failed = True
            if pending.missing == 0:
                self._end(pending)
        self._acks.run_slice()

    def _end(self, pending: PendingRepublish) -> None:
        """Settle it if all targets have it. If one failed, publish it again to all of them."""
        if pending.failed:
            pending.failed = False
            pending.synced = False
            pending.again_end = pending.last + 1
            self._try_later(pending)
        else:
            self._acks.add(pending)


def _has_failed(destinations: list[Destination], message: Message) -> bool:
    """Return whether the log of a destination takes nothing. Otherwise the others would get a copy with each try."""
    for destination in destinations:
        if message.persistent or destination.keeps_all:
            store = destination.log()
            if store is None:
                if destination.durable and not destination.is_deleted():
                    return True  # an exchange that cannot delay the message now
            elif store.failed:
                return True
    return False


def _are_same(left: list[QueueLog], right: list[QueueLog]) -> bool:
    if len(left) != len(right):
        return False
    for index, store in enumerate(left):  # noqa: SIM110  # a generator would cost a nested function when compiled
        if store is not right[index]:
            return False
    return True
