"""Dead-lettering: what a queue could not or would not deliver is published once more, to where the queue says.

The message goes to `x-dead-letter-exchange` under `x-dead-letter-routing-key`, or under its own keys (CC included).
What its headers tell then, and which of its targets would make a cycle, is deaths.py's. An exchange that is missing
drops it.

Letters wait in one line, in the order in which they ended, and go in slices: SLICE_MS of work, then the loop has its
turn. While some are left, publishers that send without a bound are paced (`Turn.overdue`). A letter that a log can give
back is not kept in memory when many wait: neighbours in one log are a stretch, which is read back piece by piece, so
that a million messages that expire at once leave their queue at once, for some bytes.

Safety: the source stays unsettled in its log until every durable target has synced its copy, so a crash in between
repeats a dead-lettering and never loses one. Letters are published in a callback of their own: a queue that drops from
within an `offer` never enters another queue, however long the chain of dead-letter exchanges.

Source: RabbitMQ 3.10, https://www.rabbitmq.com/docs/dlx.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.catalogue.vhost import VHost
from amqpd.broker.delivery import Entry
from amqpd.broker.destination import Destination, NotOpenYet
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.flow.turn import TURN_BYTES_MAX, Confirmer, Turn
from amqpd.broker.message import Message, make_message, with_properties
from amqpd.broker.publishing.deaths import Stories, Story
from amqpd.broker.queues.limited_queue import LimitedQueue
from amqpd.errors import ResourceError
from amqpd.storage.queue_log import QueueLog

log = logging.getLogger(__name__)

# How long a slice may take, in the clock's whole milliseconds, looked at once per SLICE_COUNT letters; and what ends it
# in any case.
SLICE_MS: Final = 2
SLICE_COUNT: Final = 64
LETTERS_MAX: Final = 4096
# Letters that wait with their messages in memory, where a log has them too.
HELD_MAX: Final = 1000
# From how many on, or from how many bytes in memory, queues drop nothing more for its age.
BEHIND_COUNT: Final = 65536
BEHIND_BYTES: Final = 32 * 1024 * 1024
# What of a stretch is read at once.
READ_BYTES: Final = 64 * 1024
# A target whose log takes nothing, a full disk say, is tried again after so long.
RETRY_MS: Final = 2000


@final
class Letter:
    """One message on its way, or a stretch of them.

    first, last: its offset at the source, twice, or those of a stretch; -1: it was refused before it had a place.
    size: of each body. message: None when the source's log has it, as it has those of a stretch.
    """

    def __init__(
        self, queue: LimitedQueue, first: i64, last: i64, size: i64, message: Message | None, reason: str
    ) -> None:
        self.queue = queue
        self.first = first
        self.last = last
        self.size = size
        self.message = message
        self.reason = reason
        # Where it was published, while that is not synced.
        self.targets: list[QueueLog] = []


@final
class Retry(Timer):
    """Publishes again what a target's log did not take."""

    def __init__(self, letters: DeadLetters) -> None:
        super().__init__()
        self.letters = letters

    def fire(self) -> None:
        self.letters.retry()


@final
class DeadLetters(Confirmer):
    """One per broker."""

    def __init__(
        self,
        turn: Turn,
        timers: Timers,
        call_soon: Callable[[Callable[[], None]], object],
        vhosts: Mapping[str, VHost],
    ) -> None:
        self._turn = turn
        self._timers = timers
        self._call_soon = call_soon
        self._scheduled = False
        # The disk is too far behind: nothing is published until it has synced what there is.
        self._pausing = False
        self._stories = Stories(vhosts)
        self._letters: deque[Letter] = deque()
        self._held_bytes: i64 = 0
        # Published in this turn; then by commit group.
        self._fresh: list[Letter] = []
        self._waiting: deque[tuple[int, list[Letter]]] = deque()
        self._failed: list[Letter] = []
        # Those whose targets are being opened, and these targets.
        self._unopened: list[Letter] = []
        self._awaited: set[Destination] = set()
        self._retry = Retry(self)

    def add(self, queue: LimitedQueue, entry: Entry | None, message: Message | None, reason: str) -> None:
        """Publishes it before long. Cost: O(1). entry: settled in the queue's log when its targets are safe."""
        if entry is None:
            self._append(Letter(queue, -1, -1, 0, message, reason))
            return
        offset = entry.offset
        if (message is None or len(self._letters) >= HELD_MAX) and queue.in_log(offset):
            entry.message = None
            self.add_stretch(queue, offset, offset, reason)
        else:
            self._append(Letter(queue, offset, offset, entry.body_size, message, reason))

    def add_stretch(self, queue: LimitedQueue, first: i64, last: i64, reason: str) -> None:
        """Publishes all messages with these offsets that are not settled; the queue's log has them, and nobody else."""
        if self._letters:
            end = self._letters[-1]
            if end.message is None and end.queue is queue and end.last == first - 1 and end.reason == reason:
                end.last = last
                return
        self._append(Letter(queue, first, last, 0, None, reason))

    def _append(self, letter: Letter) -> None:
        self._count(letter, 1)
        self._letters.append(letter)
        self._schedule()

    def _take(self) -> None:
        """The first in line is done, or kept for later."""
        self._count(self._letters.popleft(), -1)

    def _count(self, letter: Letter, sign: i64) -> None:
        message = letter.message
        if message is not None:
            self._held_bytes += sign * message.body_size
        else:
            letter.queue.stretch_count += sign

    def is_behind(self) -> bool:
        """Whether a queue that drops a backlog should let the letters under way go first: they fill memory."""
        return len(self._letters) >= BEHIND_COUNT or self._held_bytes >= BEHIND_BYTES

    def _schedule(self) -> None:
        if not self._scheduled and not self._pausing:
            self._scheduled = True
            self._call_soon(self.run)

    def run(self) -> None:
        """Publishes a slice of what has gathered. Called by the loop."""
        self._scheduled = False
        timers = self._timers
        begun_ms = timers.now_ms()
        self._stories.begin(timers.wall_ms() // 1000)
        count: i64 = 0
        size: i64 = 0
        turn = self._turn
        while self._letters and count < LETTERS_MAX and size < TURN_BYTES_MAX:
            if turn.commits.unsynced_bytes >= turn.unsynced_bytes_max:
                self._pausing = True
                turn.when_synced(self._synced)
                break
            end = count + SLICE_COUNT
            while self._letters and count < end and size < TURN_BYTES_MAX:
                letter = self._letters[0]
                message = letter.message
                if message is None:
                    done: i64 = 0
                    done_bytes: i64 = 0
                    done, done_bytes = self._publish_stretch(letter)
                    count += done + 1
                    size += done_bytes
                else:
                    self._take()
                    size += message.body_size
                    count += 1
                    self._publish(letter, message)
            if timers.now_ms() - begun_ms >= SLICE_MS:
                break
        if self._letters:
            turn.overdue = True
            self._schedule()
        if self._fresh:
            turn.confirm_later(self)
        else:
            turn.want()

    def _synced(self, failed: list[QueueLog]) -> None:
        self._pausing = False
        if self._letters:
            self._schedule()

    def stop(self) -> None:
        """The broker stops: letters that are not published yet stay at their source, unsettled in its log."""
        self._letters.clear()
        self._failed.clear()
        self._unopened.clear()

    def retry(self) -> None:
        self._letters.extend(self._failed)
        self._failed = []
        self._schedule()

    # -- publish -----------------------------------------------------------------------------------------------------

    def _publish(self, letter: Letter, message: Message) -> None:
        queue = letter.queue
        story: Story | None = None
        if not queue.deleted:
            story = self._stories.tell(queue, message.envelope, message.properties(), letter.reason)
        if story is None:
            _settle(letter)
            return
        dead = with_properties(message, story.envelope, story.properties, story.info)
        targets: list[QueueLog] = []
        try:
            taken = _offer(story, dead, targets)
        except NotOpenYet as waits:
            self._keep_until_open(letter, waits)
            return
        if not taken:
            self._keep(letter)
        elif targets and letter.first >= 0 and queue.log() is not None:
            # Until then the source's log keeps it: memory need not.
            self._wait(queue, letter.first, letter.size, letter.reason, targets)
        else:
            _settle(letter)

    def _publish_stretch(self, letter: Letter) -> tuple[i64, i64]:
        """A piece of it. Returns how many messages went, and bytes of their bodies."""
        queue = letter.queue
        store = queue.store
        count: i64 = 0
        size: i64 = 0
        if store is None or queue.deleted:
            self._take()
            return count, size
        try:
            records = store.cursor.read(letter.first, READ_BYTES).records
        except OSError as error:
            log.error("dead letters cannot be read: %s", error, extra=_about(queue))
            self._take()
            self._keep(letter)
            return count, size
        logged = queue.log() is not None
        targets: list[QueueLog] = []
        for record in records:
            offset = record.offset
            if offset > letter.last:
                break
            body = record.body
            body_size: i64 = len(body)
            story = self._stories.tell(
                queue, queue.envelope_of(record.exchange, record.routing_key), record.properties, letter.reason
            )
            if story is not None:
                dead = make_message(story.envelope, story.properties, body, record.persistent, story.info)
                if targets:
                    targets = []
                try:
                    taken = _offer(story, dead, targets)
                except NotOpenYet as waits:
                    letter.first = offset
                    self._take()
                    self._keep_until_open(letter, waits)
                    return count, size
                if not taken:
                    letter.first = offset
                    self._take()
                    self._keep(letter)
                    return count, size
            letter.first = offset + 1
            count += 1
            size += body_size
            if targets and logged and story is not None:
                self._wait(queue, offset, body_size, letter.reason, targets)
            else:
                store.settle(offset, body_size)
        if letter.first > letter.last or count == 0:
            self._take()
        return count, size

    def _wait(self, queue: LimitedQueue, offset: i64, size: i64, reason: str, targets: list[QueueLog]) -> None:
        """It is published, and settled when its targets are synced. Neighbours with the same fate wait as one."""
        if self._fresh:
            end = self._fresh[-1]
            alike = end.queue is queue and end.size == size and end.reason == reason
            if alike and end.last == offset - 1 and _same(end.targets, targets):
                end.last = offset
                return
        letter = Letter(queue, offset, offset, size, None, reason)
        letter.targets = targets
        self._fresh.append(letter)

    def _keep(self, letter: Letter) -> None:
        if not self._failed:
            log.warning("a dead-letter target takes nothing, it is tried again", extra=_about(letter.queue))
        self._count(letter, 1)
        self._failed.append(letter)
        self._timers.arm_sooner(self._retry, self._timers.now_ms() + RETRY_MS)

    def _keep_until_open(self, letter: Letter, waits: NotOpenYet) -> None:
        """After a start: a target's log is being opened, and nobody but the letter waits for it."""
        self._count(letter, 1)
        self._unopened.append(letter)
        for destination in waits.destinations:
            if destination not in self._awaited:
                self._awaited.add(destination)
                destination.when_open(self._opened)

    def _opened(self) -> None:
        self._awaited.clear()
        self._letters.extend(self._unopened)
        self._unopened = []
        self._schedule()

    # -- safe --------------------------------------------------------------------------------------------------------

    def end_turn(self, generation: i64, safe: bool) -> bool:
        letters = self._fresh
        self._fresh = []
        if safe and not self._waiting:
            self._settle_all(letters, [])
            return False
        group: int = generation
        self._waiting.append((group, letters))
        return True

    def committed(self, generation: i64, failed: list[QueueLog]) -> bool:
        while self._waiting and self._waiting[0][0] <= generation:
            self._settle_all(self._waiting.popleft()[1], failed)
        return len(self._waiting) > 0

    def _settle_all(self, letters: list[Letter], failed: list[QueueLog]) -> None:
        for letter in letters:
            if failed and _any_of(letter.targets, failed):
                self._keep(letter)
            else:
                _settle(letter)
        if letters:
            self._turn.want()


def _offer(story: Story, dead: Message, targets: list[QueueLog]) -> bool:
    """Publishes it. targets: gets the logs that have to be synced. False: a target takes nothing now. Raises:
    NotOpenYet, and none has it.
    """
    taken = True
    for destination in story.destinations:
        try:
            destination.prepare()
        except ResourceError:  # none gets it before all can: it will be offered to each again
            return False
    for destination in story.destinations:
        store = destination.log() if dead.persistent else None
        if not destination.offer(dead):
            # A target that is full refuses it: rabbit drops it then. One whose disk is full gets it later.
            if store is not None and store.failed:
                taken = False
        elif store is not None:
            targets.append(store)
    return taken


def _settle(letter: Letter) -> None:
    store = letter.queue.store
    offset = letter.first
    if store is not None and offset >= 0 and letter.queue.in_log(offset):
        while offset <= letter.last:
            store.settle(offset, letter.size)
            offset += 1


def _same(left: list[QueueLog], right: list[QueueLog]) -> bool:
    if len(left) != len(right):
        return False
    for index, store in enumerate(left):  # noqa: SIM110  # a generator would cost a nested function when compiled
        if store is not right[index]:
            return False
    return True


def _any_of(targets: list[QueueLog], failed: list[QueueLog]) -> bool:
    return any(store in failed for store in targets)


def _about(queue: LimitedQueue) -> dict[str, object]:
    """Fields of a log record."""
    return {"vhost": queue.vhost_name, "queue": queue.name}
