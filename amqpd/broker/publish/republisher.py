"""What has to be published once more: from a place in a source's log to other queues, and no message lost on the way.

Who hands over work is an `Origin`: it says what a message looks like now and where it goes (`dress`), and is told
when a range of offsets is safe there (`safe`), which settles it at the source. The republisher does the rest:

    line      what is to be published, in the order in which it came: single messages, and ranges of offsets that are
              read back from the source's log piece by piece, so that a million of them take some bytes
    slice     SLICE_MS of publishing, then the loop has its turn; while more is left, publishers that send without a
              bound are paced (`LoopTurn.overdue`); all publishers are held (`LoopTurn.crowded`) while the line has
              HELD_BYTES_MAX in memory, or HELD_COUNT_MAX messages and ranges
    safe      a message stays unsettled in its source's log until the high watermark of every durable target has passed
              its copy (of a local log: until it is synced): a crash in between publishes it again, and loses none
    retry     while a target's log takes nothing none of its targets gets it, and it is tried RETRY_MS later; one whose
              log is being opened, when it is open. What raises, a bug of the broker, is tried again after that time
              too, and holds up nothing else

Everything is published in a callback of the loop, never from within `add`: a queue that hands over from within an
`offer` does not enter another queue, however long the chain. When the disk is too far behind, nothing is published
until it has synced what there is. `stop` leaves what is not published at its source.

Invariant: each `PendingRepublish` is in one of `line`, `_fresh`, `_waiting`, `_failed`, `_unopened`, `_settling`, or
settled.

Who has messages published once more (`Origin`), what they look like (`RewrittenMessage`), and each on its way
(`PendingRepublish`).

Of republisher.py, which says how they go together.

Settles at their sources what is safe at its targets, in slices: one sync may make a hundred thousand safe at once.

A slice comes with the sync; what is left has later turns of the loop. What the broker is stopped with is settled at
once, as is all that comes then, so that nothing is published again after a clean stop.
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
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.message import Message, MessageRoute, make_message, with_properties
from amqpd.broker.publish.route import FAILED, REFUSED, offer_to_all, prepare
from amqpd.errors import ResourceError
from amqpd.protocol.properties import PropertyInfo
from amqpd.storage.queue_log import Cursor, QueueLog


@final
class RewrittenMessage:
    """A message as it is published once more, without its body, and where to.

    properties: flags and fields, encoded; info: what `scan` found in them.
    """

    def __init__(
        self, envelope: MessageRoute, properties: bytes, info: PropertyInfo, destinations: list[Destination]
    ) -> None:
        self.envelope = envelope
        self.properties = properties
        self.info = info
        self.destinations = destinations


# What `Origin.dress` answers of a message that cannot go anywhere now: it is given back by `Origin.kept`.
KEEP: Final = RewrittenMessage(MessageRoute("", ""), b"", PropertyInfo(0), [])


@final
class RepublishCount:
    """How many messages of an origin, or of several that share it, were published once more, each once."""

    def __init__(self) -> None:
        self.count: i64 = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class RepublishSource:
    """Where messages come from that are published once more, and what becomes of them: what a user subclasses.

    Ranges of one origin that follow each other become one, so messages of one kind should share theirs. kind: of
    message, as the broker's log tells of it ("dead-letter"). offset: of what is dressed just now, -1 if it has none;
    again: whether an earlier try in this life may have brought it to some of its targets. went: how many of them were.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.offset: i64 = -1
        self.again = False
        self.went = RepublishCount()

    def log(self) -> QueueLog | None:
        """The log that offsets are of; None when nothing is in one. It is settled, and read for what is not in memory.

        It has no message whose offset is below its start.
        """
        raise NotImplementedError

    def lasts(self) -> bool:
        """Whether that log outlives the broker, so that it has to keep a message until the targets are safe."""
        return True

    def gone(self) -> bool:
        """The source is deleted: what is not published yet ends."""
        return False

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> MessageRoute:
        """What messages of this route share that are read from the log."""
        return MessageRoute(exchange.decode(), routing_key.decode("utf-8", "surrogateescape"))

    def rewrite(self, envelope: MessageRoute, properties: bytes) -> RewrittenMessage | None:
        """The message that becomes of one of this route and these properties; None: it goes nowhere, and is over;
        STAYS: it goes nowhere now, and its source has it back (`kept`).

        What is found out for one message may be kept for the rest of the slice (`Republisher.slice_number`).
        """
        raise NotImplementedError

    def on_safe(self, first: i64, last: i64, size: i64) -> None:
        """These offsets, ends included, are with their targets, or over: they need their source no longer and are
        settled in its log. Called once for each offset, in any order.

        size: bytes of each body.
        """
        store = self.log()
        if store is not None:
            offset = first
            while offset <= last:
                store.settle(offset, size)
                offset += 1

    def on_unloaded(self, offset: i64) -> None:
        """Of this one `dress` has said STAYS: it is neither settled nor published again."""
        raise NotImplementedError

    def on_stop(self, offset: i64, again: bool) -> None:
        """The broker stops cleanly, and this message, which is in memory, stays where it was.

        again: some of its targets may have it, and the next life publishes it again.
        """

    def refused(self, offset: i64) -> bool:
        """A target does not take it, and would not. Whether its source has it back; else that is its end."""
        return False

    def on_queued(self, count: i64) -> None:
        """So many more (1) or less (-1) wait that are in the log alone: it may not be given up meanwhile."""

    def log_fields(self) -> dict[str, object]:
        """Fields that tell of it in the broker's log."""
        return {}


@final
class PendingRepublish:
    """One message on its way, or neighbours in one log.

    first, last: offsets at the source, ends included; -1: a message that never had one. size: bytes of each body.
    message: of a single one, where it is in memory; None: the log has it, as it has those of a longer range.
    again_end: those below it were published before, to some of their targets at least.
    """

    def __init__(self, origin: RepublishSource, first: i64, last: i64, size: i64, message: Message | None) -> None:
        self.origin = origin
        self.first = first
        self.last = last
        self.size = size
        self.message = message
        self.again_end: i64 = -1
        # The logs that it was published to, while it is not safe there: whether the local ones are synced, and how many
        # of the others have not answered.
        self.targets: list[QueueLog] = []
        self.synced = False
        self.missing: i64 = 0
        self.failed = False


# How long a slice may take, looked at once per STEP_COUNT offsets, and how many it settles in any case.
SLICE_MS: Final = 2
STEP_COUNT: Final = 256
ACK_SLICE_COUNT_MAX: Final = 8192


@final
class SlicedAcks:
    """The republisher's. call_soon: calls a function in the next turn of the loop."""

    def __init__(self, turn: LoopTurn, timers: Timers, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._turn = turn
        self._timers = timers
        self._call_soon = call_soon
        self._line: deque[PendingRepublish] = deque()
        self._scheduled = False
        self._stopped = False

    def add(self, pending: PendingRepublish) -> None:
        """It is safe. `work` settles it."""
        self._line.append(pending)

    def work(self) -> None:
        """A slice."""
        line = self._line
        if not line:
            return
        timers = self._timers
        begun_ms = timers.now_ms()
        count: i64 = 0
        while line and (self._stopped or (count < ACK_SLICE_COUNT_MAX and timers.now_ms() - begun_ms < SLICE_MS)):
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
                pending.origin.on_safe(first, last, pending.size)
        if line and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._work_on)
        self._turn.schedule()

    def _work_on(self) -> None:
        """Called by the loop."""
        self._scheduled = False
        self.work()

    def stop(self) -> None:
        """The broker stops."""
        self._stopped = True
        self.work()


log = logging.getLogger(__name__)

# How long a slice may take, in the clock's whole milliseconds, looked at once per SLICE_COUNT messages; and what ends
# it in any case.
SLICE_COUNT: Final = 64
SLICE_COUNT_MAX: Final = 4096
# What of a range is read at once.
READ_BYTES: Final = 64 * 1024
# What may wait in line before publishers are held, until half of it is left. Twice of what makes queues drop nothing
# more for its age (dead_letter.py), which comes first.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
HELD_COUNT_MAX: Final = 131072
# How many logs it keeps a place in, each with what a reader holds of its file (256 KiB).
CURSORS_MAX: Final = 16
# A target whose log takes nothing, a full disk say, is tried again after so long.
RETRY_MS: Final = 2000


@final
class Retry(Timer):
    """Publishes again what a target's log did not take."""

    def __init__(self, republisher: Republisher) -> None:
        super().__init__()
        self.republisher = republisher

    def fire(self) -> None:
        self.republisher.retry()


@final
class Republisher(CommitListener):
    """One per broker. call_soon: calls a function in the next turn of the loop."""

    def __init__(self, turn: LoopTurn, timers: Timers, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.timers = timers
        self._turn = turn
        self._call_soon = call_soon
        self._scheduled = False
        # The disk is too far behind: nothing is published until it has synced what there is.
        self._pausing = False
        # Goes up with each slice. Nothing is declared, bound or deleted within one.
        self.slice_number: i64 = 0
        # What waits to be published, and the body bytes of what of it is in memory.
        self.line: deque[PendingRepublish] = deque()
        self.held_bytes: i64 = 0
        # Places in the logs that are read just now.
        self._cursors: dict[QueueLog, Cursor] = {}
        # Published in this turn; then by commit group.
        self._fresh: list[PendingRepublish] = []
        self._waiting: deque[tuple[int, list[PendingRepublish]]] = deque()
        self._failed: list[PendingRepublish] = []
        # By a target that is being opened: what waits for it.
        self._unopened: dict[Destination, list[PendingRepublish]] = {}
        self._retry = Retry(self)
        self._settling = SlicedAcks(turn, timers, call_soon)

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(self, origin: RepublishSource, message: Message, offset: i64) -> None:
        """Publishes a message that is in memory, before long. Cost: O(1).

        offset: its place in the origin's log, -1 if it has none.
        """
        self._append(PendingRepublish(origin, offset, offset, message.body_size, message))

    def add_range(self, origin: RepublishSource, first: i64, last: i64) -> None:
        """Publishes all messages with these offsets, ends included, that are not settled in the origin's log. O(1)."""
        if self.line:
            end = self.line[-1]
            if end.message is None and end.origin is origin and end.last == first - 1:
                end.last = last
                return
        self._append(PendingRepublish(origin, first, last, 0, None))

    def _append(self, pending: PendingRepublish) -> None:
        self._count(pending, 1)
        self.line.append(pending)
        if self.held_bytes >= HELD_BYTES_MAX or len(self.line) >= HELD_COUNT_MAX:
            self._turn.crowded = True
        self._schedule()

    def _take(self) -> None:
        """The first in line is done, or kept for later."""
        self._count(self.line.popleft(), -1)

    def _count(self, pending: PendingRepublish, sign: i64) -> None:
        message = pending.message
        if message is not None:
            self.held_bytes += sign * message.body_size
        else:
            pending.origin.on_queued(sign)

    def _schedule(self) -> None:
        if not self._scheduled and not self._pausing:
            self._scheduled = True
            self._call_soon(self.run)

    # -- publish -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Publishes a slice of what has gathered. Called by the loop."""
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
                turn.call_when_below_limit(self._room)
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
                        self._take()
                        size += message.body_size
                        self._publish_message(first, message)
                except Exception as error:  # noqa: BLE001  # told there
                    self._has_raised(first, error)
            if timers.now_ms() - begun_ms >= SLICE_MS:
                break
        if turn.crowded:
            self._look_for_room()
        if self.line:
            turn.dead_letters_pending = True
            self._schedule()
        else:
            self._close_cursors()
        if self._fresh:
            turn.confirm_later(self)
        else:
            turn.schedule()

    def _look_for_room(self) -> None:
        """Update the state after a slice. A message that its target refuses is not in line, so it delays no other."""
        if not self.line or (self.held_bytes < HELD_BYTES_MAX // 2 and len(self.line) < HELD_COUNT_MAX // 2):
            self._turn.crowded = False
            self._turn.room()

    def _room(self) -> None:
        self._pausing = False
        if self.line:
            self._schedule()

    def _publish_message(self, pending: PendingRepublish, message: Message) -> None:
        origin = pending.origin
        targets: list[QueueLog] = []
        origin.offset = pending.first
        origin.again = pending.first < pending.again_end
        dressed = None if origin.gone() else origin.rewrite(message.envelope, message.properties())
        if dressed is KEEP:
            origin.on_unloaded(pending.first)
            return
        if dressed is not None:
            again = with_properties(message, dressed.envelope, dressed.properties, dressed.info)
            if not self._offer(pending, dressed, again, targets):
                return
            origin.went.count += 1
        if pending.first >= 0:
            self._published(origin, pending.first, pending.size, targets)

    def _publish_range(self, pending: PendingRepublish) -> tuple[i64, i64]:
        """A piece of what is first in line. Returns how many messages went, and bytes of their bodies."""
        origin = pending.origin
        store = origin.log()
        count: i64 = 0
        size: i64 = 0
        if store is None or origin.gone():
            self._take()
            return count, size
        try:
            records = self._cursor_of(store).read(pending.first, READ_BYTES).records
        except OSError as error:
            log.error("a %s source cannot be read: %s", origin.kind, error, extra=origin.log_fields())
            self._take()
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
            origin.offset = offset
            origin.again = offset < pending.again_end
            dressed = origin.rewrite(origin.envelope_of(record.exchange, record.routing_key), record.properties)
            if targets:
                targets = []
            if dressed is KEEP:
                pending.first = offset + 1
                count += 1
                origin.on_unloaded(offset)
                continue
            if dressed is not None:
                again = make_message(dressed.envelope, dressed.properties, body, record.persistent, dressed.info)
                if not self._offer(pending, dressed, again, targets):
                    self._take()
                    return count, size
                origin.went.count += 1
            pending.first = offset + 1
            count += 1
            size += body_size
            self._published(origin, offset, body_size, targets)
        if pending.first > pending.last or count == 0:
            self._take()
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

    def _offer(
        self, pending: PendingRepublish, dressed: RewrittenMessage, message: Message, targets: list[QueueLog]
    ) -> bool:
        """To all its destinations. targets: gets the logs that have to be synced. False: it is kept for later."""
        try:
            prepare(dressed.destinations)
        except LogNotOpen as waits:
            self._keep_until_open(pending, waits.destinations[0])
            return False
        except ResourceError:  # the broker's log says why
            self._try_later(pending)
            return False
        if _has_failed(dressed.destinations, message):
            self._try_later(pending)
            return False
        outcome = offer_to_all(dressed.destinations, message, targets)
        if outcome == FAILED:
            pending.again_end = pending.first + 1
            self._try_later(pending)
            return False
        if outcome == REFUSED and pending.origin.refused(pending.first):
            targets.clear()
        return True

    def _published(self, origin: RepublishSource, offset: i64, size: i64, targets: list[QueueLog]) -> None:
        """It is over when its targets are synced. Neighbours with the same fate wait as one."""
        if not targets or not origin.lasts():
            origin.on_safe(offset, offset, size)
            return
        if self._fresh:
            end = self._fresh[-1]
            if end.origin is origin and end.size == size and end.last == offset - 1 and _same(end.targets, targets):
                end.last = offset
                return
        # Until then the source's log keeps it: memory need not.
        pending = PendingRepublish(origin, offset, offset, size, None)
        pending.targets = targets
        self._fresh.append(pending)

    # -- later -------------------------------------------------------------------------------------------------------

    def _has_raised(self, pending: PendingRepublish, error: Exception) -> None:
        origin = pending.origin
        traceback = error if not self._failed else None
        log.error(
            "a %s message: a bug of the broker (%r); it is tried again",
            origin.kind,
            error,
            exc_info=traceback,
            extra=origin.log_fields(),
        )
        if self.line and self.line[0] is pending:
            self._take()
        pending.again_end = pending.first + 1  # some of its targets may have it
        self._try_later(pending)

    def _try_later(self, pending: PendingRepublish) -> None:
        if not self._failed:
            origin = pending.origin
            log.warning("a %s target takes nothing, it is tried again", origin.kind, extra=origin.log_fields())
        self._count(pending, 1)
        self._failed.append(pending)
        self.timers.arm_sooner(self._retry, self.timers.now_ms() + RETRY_MS)

    def retry(self) -> None:
        """RETRY_MS have passed: what failed is tried again."""
        self.line.extend(self._failed)
        self._failed = []
        self._schedule()

    def _keep_until_open(self, pending: PendingRepublish, target: Destination) -> None:
        """After a start: the target's log is being opened, and nobody but this waits for it."""
        self._count(pending, 1)
        waiting = self._unopened.get(target)
        if waiting is not None:
            waiting.append(pending)
            return
        self._unopened[target] = [pending]
        target.when_open(partial(self._opened, target))

    def _opened(self, target: Destination) -> None:
        """Or it could not be: trying again tells. Where a message has another such target, it waits for that next."""
        waiting = self._unopened.pop(target, None)
        if waiting is not None:
            self.line.extend(waiting)
            self._schedule()

    def stop(self) -> None:
        """The broker stops: what is not published yet stays at its source, unsettled in its log."""
        self._close_cursors()
        left = [*self.line, *self._failed]
        for waiting in self._unopened.values():
            left += waiting
        self.line.clear()
        self._failed.clear()
        self._unopened.clear()
        self._turn.crowded = False
        for pending in left:
            if pending.message is not None and pending.first >= 0:
                pending.origin.on_stop(pending.first, pending.first < pending.again_end)
        self._settling.stop()

    # -- safe --------------------------------------------------------------------------------------------------------

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        fresh = self._fresh
        self._fresh = []
        for pending in fresh:
            self._ask(pending)
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

    def _ask(self, pending: PendingRepublish) -> None:
        """Logs that are not local say by themselves when what they have is safe."""
        for target in pending.targets:
            if not target.local:
                pending.missing += 1
                target.when_safe(target.next_offset - 1, partial(self._answered, pending))

    def _answered(self, pending: PendingRepublish, safe: bool) -> None:
        pending.missing -= 1
        if not safe:
            pending.failed = True
        if pending.synced and pending.missing == 0:
            self._end(pending)
            self._settling.work()

    def _synced_all(self, group: list[PendingRepublish], failed: list[QueueLog]) -> None:
        """They are on the disk of all their local targets but these."""
        for pending in group:
            pending.synced = True
            if failed and any([store in failed for store in pending.targets]):  # noqa: C419
                pending.failed = True
            if pending.missing == 0:
                self._end(pending)
        self._settling.work()

    def _end(self, pending: PendingRepublish) -> None:
        """All its targets have answered; where one has failed, it is published again, to all of them."""
        if pending.failed:
            pending.failed = False
            pending.synced = False
            pending.again_end = pending.last + 1
            self._try_later(pending)
        else:
            self._settling.add(pending)


def _has_failed(destinations: list[Destination], message: Message) -> bool:
    """Whether one of them has a log that takes nothing, perhaps until the next start: the others would get a copy
    whenever it is tried.
    """
    for destination in destinations:
        if message.persistent or destination.keeps_all:
            store = destination.log()
            if store is not None and store.failed:
                return True
    return False


def _same(left: list[QueueLog], right: list[QueueLog]) -> bool:
    if len(left) != len(right):
        return False
    for index, store in enumerate(left):  # noqa: SIM110  # a generator would cost a nested function when compiled
        if store is not right[index]:
            return False
    return True
