"""What an exchange of type x-message-deduplication has seen.

A message that is let through takes a `CacheEntry` with it, which stands last among its destinations: when it has been
offered to all queues, the note says so, and the id is known from then on. It is *unsafe* until the message is, as a
confirm understands it: a copy that comes meanwhile goes nowhere, and its confirm waits for the first one's end. If the
first one fails (a queue refuses it, a log cannot be written, its transaction is rolled back) its id is forgotten, and
so the copies that wait are nacked: whoever sends it again is let through.

`x-cache-persistence: disk` of a durable exchange: ids of messages that are on disk themselves are written to the
metadata after those are synced, and confirms wait for that, too. So after a crash every confirmed message is known; one
that was stored and not yet confirmed may not be. All others are in memory alone.

At most `size` ids: then the oldest goes. An id is 33 bytes at most (longer values are hashed).

Compiled by mypyc.

The last messages of an x-recent-history exchange.

They are kept in memory, whatever the exchange: RabbitMQ's plugin has them in RAM, too, and a broker that starts has
none. At most `x-recent-history-length` of them, and at most HISTORY_BYTES_MAX: then the oldest go first. A message with
the header `x-recent-history-no-store` (true) is not kept.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from functools import partial
from hashlib import blake2b
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Destination
from amqpd.broker.flow.loop_turn import CommitListener, LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.message import Message
from amqpd.protocol.field_table import decode_table
from amqpd.routing.hashing import stable_encoding
from amqpd.routing.stateful import NO_STORE, DeduplicationMemory
from amqpd.storage.queue_log import QueueLog

log = logging.getLogger(__name__)

ID_BYTES_MAX: Final = 33
PUT_MAX: Final = 500
"""Ids that are written together: some 3 ms of the metadata's thread."""
TTL_MS_MAX: Final = 315_360_000_000
_NOTHING: Final[list[object]] = []
# What becomes of a note.
_NEW: Final = 0
_UNSAFE: Final = 1
_KNOWN: Final = 2
_GONE: Final = 3


def id_of(value: object) -> bytes:
    """What is kept of a header's value: different for different values, types counted."""
    whole = stable_encoding(value)
    return whole if len(whole) <= ID_BYTES_MAX else b"#" + blake2b(whole, digest_size=32).digest()


@final
class EntryLog(QueueLog):
    """What a confirm waits for that depends on a note: no log, but it has a high watermark of its own."""

    def __init__(self, note: CacheEntry) -> None:
        super().__init__("", "", "", "", False)
        self._note = note

    def when_safe(self, offset: i64, done: Callable[[bool], None]) -> None:
        self._note.when_over(done)


@final
class CacheEntry(Destination):
    """The entry of one message that is let through. until_ms: monotonic; 0: for ever."""

    def __init__(self, seen: DeduplicationCache, ident: bytes, until_ms: i64) -> None:
        super().__init__()
        self.is_queue = False
        self.requires_all_accepted = True  # else what is refused would push out what has been seen
        self.durable = seen.store is not None
        self.id = ident
        self.until_ms = until_ms
        self.targets: list[Destination] = []
        self.state: i64 = _NEW
        # Logs that are not local and have not answered, and whether the local ones have.
        self.missing: i64 = 0
        self.synced = False
        self._seen = seen
        self._log: EntryLog | None = None
        self._waiting: list[Callable[[bool], None]] = []

    def accepts_with(self, targets: list[Destination]) -> bool:
        """What goes nowhere is not noted."""
        self.targets = targets
        return len(targets) > 0

    def log(self) -> QueueLog | None:
        return self.log_of_copies() if self.durable else None

    def log_of_copies(self) -> QueueLog:
        """What the confirm of a copy waits for."""
        if self._log is None:
            self._log = EntryLog(self)
        return self._log

    def enqueue(self, message: Message) -> bool:
        self._seen.offered(self, message)
        return True

    def reserve(self) -> None:
        self._seen.reserve(self)

    def refuse(self) -> None:
        self._seen.forget(self)

    def when_over(self, done: Callable[[bool], None]) -> None:
        """Calls `done` when the message is safe, with False when it failed; at once where that is known."""
        if self.state == _NEW or self.state == _UNSAFE:
            self._waiting.append(done)
        else:
            done(self.state == _KNOWN)

    def end(self, state: i64) -> None:
        self.state = state
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(state == _KNOWN)


@final
class DuplicateMessage(Destination):
    """Where a copy goes whose first one is not safe yet: nowhere, but its confirm waits."""

    def __init__(self, note: CacheEntry) -> None:
        super().__init__()
        self.is_queue = False
        self.durable = True
        self._note = note

    def log(self) -> QueueLog | None:
        return self._note.log_of_copies()

    def enqueue(self, message: Message) -> bool:
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class CacheStore:
    """Where ids are written, of one exchange."""

    def put(self, notes: list[CacheEntry], done: Callable[[bool], None]) -> None:
        """done: on the loop, with whether they are on disk."""
        raise NotImplementedError

    def drop(self, ident: bytes) -> None:
        """It is not to come back after a start; before long."""
        raise NotImplementedError

    def flush(self) -> None:
        """What was dropped goes now."""
        raise NotImplementedError


@final
class DeduplicationCache(DeduplicationMemory):
    """Of one exchange. size: how many ids at most. ttl_ms: how long each is kept, where its message does not say; 0:
    for ever. store: None: nothing is written.
    """

    def __init__(self, turn: LoopTurn, timers: Timers, size: int, ttl_ms: int, store: CacheStore | None = None) -> None:
        self.size = size
        self.store = store
        self.copy_count: i64 = 0
        self._turn = turn
        self._timers = timers
        self._ttl_ms: i64 = ttl_ms
        self._until: OrderedDict[bytes, int] = OrderedDict()
        self._unsafe: dict[bytes, CacheEntry] = {}
        self._ending = EntryCommit(self)

    def count(self) -> int:
        return len(self._until)

    def load(self, ident: bytes, left_ms: i64) -> None:
        """An earlier life has seen it. left_ms: of its time; 0: for ever."""
        self._insert(ident, self._timers.now_ms() + left_ms if left_ms else 0)

    # -- messages ----------------------------------------------------------------------------------------------------

    def route_once(self, value: object, ttl: object, bound: Collection[object]) -> Collection[object]:
        ident = id_of(value)
        note = self._unsafe.get(ident)
        if note is not None:
            self.copy_count += 1
            return [DuplicateMessage(note)]
        now_ms = self._timers.now_ms()
        until = self._until.get(ident)
        if until is not None:
            if until == 0 or until > now_ms:
                self.copy_count += 1
                return _NOTHING
            self._drop(ident)
        return [*bound, CacheEntry(self, ident, self._end_of(ttl, now_ms))]

    def _end_of(self, ttl: object, now_ms: i64) -> i64:
        ttl_ms = self._ttl_ms
        if isinstance(ttl, str) and ttl.isdecimal() and len(ttl) < 13:
            ttl = int(ttl)  # the plugin takes such an argument, too
        if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl >= 0:
            return now_ms + (ttl if ttl < TTL_MS_MAX else TTL_MS_MAX)
        return now_ms + ttl_ms if ttl_ms > 0 else 0

    def reserve(self, note: CacheEntry) -> None:
        """It comes later: a copy that comes before is one."""
        if note.id not in self._unsafe:
            self._unsafe[note.id] = note

    def offered(self, note: CacheEntry, message: Message) -> None:
        """It is in all queues that it goes to, as far as they have taken it."""
        if note.state == _GONE:
            return
        if not any([not target.is_deleted() for target in note.targets]):  # noqa: C419  # compiled, a list is faster
            self.forget(note)  # since it was routed
            return
        note.state = _UNSAFE
        self._insert(note.id, note.until_ms)
        waits = False
        if message.persistent:
            for target in note.targets:
                log = target.log()
                if log is not None:
                    waits = True
                    if log.failed:
                        self.forget(note)
                        return
        if not waits:
            note.durable = False
            self._known(note)
            return
        self._unsafe[note.id] = note
        self._ending.add(note, self._turn)

    def forget(self, note: CacheEntry) -> None:
        """The message has failed: it has not been seen."""
        if note.state == _GONE:
            return
        if self._unsafe.get(note.id) is note:
            del self._unsafe[note.id]
        if note.state != _NEW and self._until.get(note.id) == note.until_ms:
            self._drop(note.id)
            if self.store is not None:
                self.store.flush()
        note.end(_GONE)

    def safe(self, notes: list[CacheEntry]) -> None:
        """The messages of these notes are."""
        store = self.store
        if store is None:
            for note in notes:
                self._known(note)
            return
        kept: list[CacheEntry] = []
        for note in notes:
            if note.id in self._until:
                kept.append(note)
            else:
                self._known(note)  # others came, and there was no room
        for first in range(0, len(kept), PUT_MAX):
            part = kept[first : first + PUT_MAX]
            store.put(part, partial(self._stored, part))

    def _stored(self, notes: list[CacheEntry], done: bool) -> None:
        for note in notes:
            if done:
                self._known(note)
            else:
                self.forget(note)

    def _known(self, note: CacheEntry) -> None:
        if note.state == _GONE:
            return
        if self._unsafe.get(note.id) is note:
            del self._unsafe[note.id]
        note.end(_KNOWN)

    # -- ids ---------------------------------------------------------------------------------------------------------

    def _insert(self, ident: bytes, until_ms: i64) -> None:
        until = self._until
        if ident in until:
            del until[ident]
        elif until:
            # What is over goes as others come, the oldest of all where there is no room.
            oldest = next(iter(until))
            end = until[oldest]
            if len(until) >= self.size or (end != 0 and end <= self._timers.now_ms()):
                self._drop(oldest)
        until[ident] = until_ms

    def _drop(self, ident: bytes) -> None:
        del self._until[ident]
        if self.store is not None:
            self.store.drop(ident)


@final
class EntryCommit(CommitListener):
    """Learns when messages are safe."""

    def __init__(self, seen: DeduplicationCache) -> None:
        self._seen = seen
        self._fresh: list[CacheEntry] = []
        self._groups: list[tuple[i64, list[CacheEntry]]] = []

    def add(self, note: CacheEntry, turn: LoopTurn) -> None:
        self._fresh.append(note)
        if len(self._fresh) == 1:
            turn.confirm_later(self)

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        fresh, self._fresh = self._fresh, []
        for note in fresh:
            for target in note.targets:
                log = target.log()
                if log is not None and not log.local:
                    note.missing += 1
                    log.when_safe(log.next_offset - 1, partial(self._answered, note))
        if safe:
            self._over(fresh)
            return False
        self._groups.append((generation, fresh))
        return True

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        groups = self._groups
        while groups and groups[0][0] <= generation:
            _, notes = groups.pop(0)
            self._over([note for note in notes if not failed or not self._failed(note, failed)])
        return len(groups) > 0

    def _failed(self, note: CacheEntry, failed: list[QueueLog]) -> bool:
        for target in note.targets:
            log = target.log()
            if log is not None and log in failed:
                self._seen.forget(note)
                return True
        return False

    def _over(self, notes: list[CacheEntry]) -> None:
        """The local logs have these."""
        for note in notes:
            note.synced = True
        self._seen.safe([note for note in notes if note.missing == 0 and note.state == _UNSAFE])

    def _answered(self, note: CacheEntry, safe: bool) -> None:
        note.missing -= 1
        if not safe:
            self._seen.forget(note)
        elif note.missing == 0 and note.synced and note.state == _UNSAFE:
            self._seen.safe([note])


HISTORY_BYTES_MAX: Final = 64 * 1024 * 1024
_NO_STORE: Final = NO_STORE.encode()


@final
class MessageHistory(Destination):
    """Of one exchange. length_max: how many messages."""

    def __init__(self, length_max: int) -> None:
        super().__init__()
        self.is_queue = False
        self._length_max = length_max
        self._messages: deque[Message] = deque()
        self.size_bytes: i64 = 0

    def enqueue(self, message: Message) -> bool:
        """Keeps it, and forgets what is then too much. Cost: O(1)."""
        size = message.size_bytes()
        if size > HISTORY_BYTES_MAX or _is_not_kept(message):
            return True
        messages = self._messages
        messages.append(message)
        self.size_bytes += size
        while len(messages) > self._length_max or self.size_bytes > HISTORY_BYTES_MAX:
            self.size_bytes -= messages.popleft().size_bytes()
        return True

    def count(self) -> int:
        return len(self._messages)

    def messages(self) -> list[Message]:
        """The oldest first; each as if it had just come."""
        return [_again(message) for message in self._messages]


def _is_not_kept(message: Message) -> bool:
    info = message.info
    if info is None or info.headers_start == 0:
        return False
    properties = message.properties()
    if _NO_STORE not in properties:
        return False
    return decode_table(properties, info.headers_start)[0].get(NO_STORE) is True


def _again(message: Message) -> Message:
    """Its time to live begins anew where it goes."""
    again = Message(
        message.envelope,
        message.content,
        message.header_size,
        message.body_size,
        message.frame_payload_max,
        message.persistent,
        message.info,
    )
    again.parts = message.parts
    again.started = message.started
    return again
