"""State of exchanges of the types x-message-deduplication and x-recent-history.

**x-message-deduplication.** A new message gets a `CacheEntry` as its last destination. After all queues have accepted
the message, the entry stores its id in the `DeduplicationCache` of the exchange. States of an entry:

    new       made when the message is routed
    unsafe    offered to all queues, and not yet safe as publisher confirms define it
    known     the message is safe
    removed   the message failed: a queue refused it, a log failed or its transaction was rolled back

A copy of an unsafe message has a `DuplicateMessage` as its destination: no queue gets it, and its confirm waits. If the
first message becomes safe, the copy is confirmed. If it fails, the copies are nacked, and the next message with this id
is new. A copy of a known message goes nowhere.

The cache has at most `size` ids and drops the oldest when it is full. An id has at most ID_BYTES_MAX bytes: longer
values are hashed. With `x-cache-persistence: disk`, a durable exchange writes the ids of persistent messages to the
metadata after the messages are synced, and confirms wait for that. So every confirmed message is known after a crash.
A message that was stored but not confirmed may be unknown. All other ids are in memory only.

**x-recent-history.** `MessageHistory` has the last messages, in memory only as in RabbitMQ's plugin, so a start begins
without any. It drops the oldest above `x-recent-history-length` messages or HISTORY_BYTES_MAX. It does not store a
message with the header `x-recent-history-no-store: true`.

Compiled by mypyc.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Destination
from amqpd.broker.flow.loop_turn import CommitListener, LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.message import Message
from amqpd.broker.publish.route import ConfirmLog
from amqpd.protocol.field_table import decode_table
from amqpd.routing.hashing import stable_encoding
from amqpd.routing.stateful import NO_STORE, DeduplicationMemory
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.publish.exchange_state import MetadataCacheStore

ID_BYTES_MAX: Final = 33
PUT_MAX: Final = 500
"""Maximum of ids written in one transaction: about 3 ms of the metadata thread."""
TTL_MS_MAX: Final = 315_360_000_000
_NO_DESTINATIONS: Final[list[object]] = []
# States of a `CacheEntry`.
_NEW: Final = 0
_UNSAFE: Final = 1
_KNOWN: Final = 2
_REMOVED: Final = 3


def id_of(value: object) -> bytes:
    """Return the id of a header value. Different values have different ids, also values of different types."""
    whole = stable_encoding(value)
    return whole if len(whole) <= ID_BYTES_MAX else b"#" + blake2b(whole, digest_size=32).digest()


@final
class CacheEntry(Destination):
    """Destination that stores the id of one new message.

    Attributes:
        until_ms: the time when the id is forgotten, in monotonic milliseconds; 0 for never.
        targets: the queues of the message.
        missing: number of remote logs that have not reported the message as safe.
        synced: the local logs have synced the message.
    """

    def __init__(self, cache: DeduplicationCache, ident: bytes, until_ms: i64) -> None:
        super().__init__()
        self.is_queue = False
        self.requires_all_accepted = True  # otherwise refused messages would push out known ids
        self.durable = cache.store is not None
        self.id = ident
        self.until_ms = until_ms
        self.targets: list[Destination] = []
        self.state: i64 = _NEW
        self.missing: i64 = 0
        self.synced = False
        self._cache = cache
        self._log: ConfirmLog | None = None
        self._waiting: list[Callable[[bool], None]] = []

    def accepts_with(self, targets: list[Destination]) -> bool:
        """Return False for a message without queues: its id is not stored."""
        self.targets = targets
        self.keeps_all = any([target.keeps_all for target in targets])  # noqa: C419  # compiled, a list is faster
        return len(targets) > 0

    def log(self) -> QueueLog | None:
        return self.log_of_copies() if self.durable else None

    def log_of_copies(self) -> QueueLog:
        """Return the log that confirms of copies wait for."""
        if self._log is None:
            self._log = ConfirmLog(self.when_done)
        return self._log

    def enqueue(self, message: Message) -> bool:
        self._cache.offered(self, message)
        return True

    def reserve(self) -> None:
        self._cache.reserve(self)

    def refuse(self) -> None:
        self._cache.forget(self)

    def when_done(self, done: Callable[[bool], None]) -> None:
        """Call `done(True)` when the message is safe, or `done(False)` when it failed; at once if that is certain."""
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
    """Destination of a copy while the first message is unsafe. It stores nothing; the confirm of the copy waits."""

    def __init__(self, entry: CacheEntry) -> None:
        super().__init__()
        self.is_queue = False
        self.durable = True
        self.keeps_all = True  # the first message may be safe later than a transient copy
        self._entry = entry

    def log(self) -> QueueLog | None:
        return self._entry.log_of_copies()

    def enqueue(self, message: Message) -> bool:
        return True


@final
class DeduplicationCache(DeduplicationMemory):
    """Deduplication cache of one exchange.

    Args:
        size: maximum of ids.
        ttl_ms: lifetime of an id whose message has no `x-cache-ttl`; 0 for no limit.
        store: None for a cache in memory.
    """

    def __init__(
        self, turn: LoopTurn, timers: Timers, size: int, ttl_ms: int, store: MetadataCacheStore | None = None
    ) -> None:
        self.size = size
        self.store = store
        self.copy_count: i64 = 0
        self._turn = turn
        self._timers = timers
        self._ttl_ms: i64 = ttl_ms
        self._until: OrderedDict[bytes, int] = OrderedDict()
        self._unsafe: dict[bytes, CacheEntry] = {}
        self._commits = EntryCommit(self)

    def count(self) -> int:
        return len(self._until)

    def load(self, ident: bytes, left_ms: i64) -> None:
        """Add an id from before the start. `left_ms` is its remaining lifetime; 0 for no limit."""
        self._insert(ident, self._timers.now_ms() + left_ms if left_ms else 0)

    # -- messages ----------------------------------------------------------------------------------------------------

    def route_once(self, value: object, ttl: object, bound: Collection[object]) -> Collection[object]:
        ident = id_of(value)
        now_ms = self._timers.now_ms()
        entry = self._unsafe.get(ident)
        # In a transaction (`_NEW`), copies are copies until its end.
        if entry is not None and (entry.state == _NEW or entry.until_ms == 0 or entry.until_ms > now_ms):
            self.copy_count += 1
            return [DuplicateMessage(entry)]
        until = self._until.get(ident)
        if until is not None:
            if until == 0 or until > now_ms:
                self.copy_count += 1
                return _NO_DESTINATIONS
            self._drop(ident)
        return [*bound, CacheEntry(self, ident, self._expiry_of(ttl, now_ms))]

    def _expiry_of(self, ttl: object, now_ms: i64) -> i64:
        ttl_ms = self._ttl_ms
        if isinstance(ttl, str) and ttl.isdecimal() and len(ttl) < 13:
            ttl = int(ttl)  # the plugin accepts such an argument, too
        if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl >= 0:
            return now_ms + (ttl if ttl < TTL_MS_MAX else TTL_MS_MAX)
        return now_ms + ttl_ms if ttl_ms > 0 else 0

    def reserve(self, entry: CacheEntry) -> None:
        """Reserve the id of a message that is enqueued later. A message with the same id is a copy from now on."""
        unsafe = self._unsafe.get(entry.id)
        if unsafe is None or unsafe.state != _NEW:  # an unsafe message has expired, as the routing made this entry
            self._unsafe[entry.id] = entry

    def offered(self, entry: CacheEntry, message: Message) -> None:
        """Store the id of a message that has been offered to all its queues."""
        if entry.state == _REMOVED:
            return
        if not any([not target.is_deleted() for target in entry.targets]):  # noqa: C419  # compiled, a list is faster
            self.forget(entry)  # all queues were deleted since the routing
            return
        entry.state = _UNSAFE
        self._insert(entry.id, entry.until_ms)
        waits = False
        for target in entry.targets:
            log = target.log() if message.persistent or target.keeps_all else None
            if log is not None:
                waits = True
                if log.failed:
                    self.forget(entry)
                    return
        if not waits:
            entry.durable = False
            self._set_known(entry)
            if self.store is not None:
                self.store.flush()  # this id is not written, so no `put` removes the row of the id that it pushed out
            return
        self._unsafe[entry.id] = entry
        self._commits.add(entry, self._turn)

    def forget(self, entry: CacheEntry) -> None:
        """Remove the id of a failed message. The next message with this id is new."""
        if entry.state == _REMOVED:
            return
        if self._unsafe.get(entry.id) is entry:
            del self._unsafe[entry.id]
        if entry.state != _NEW and self._until.get(entry.id) == entry.until_ms:
            self._drop(entry.id)
            if self.store is not None:
                self.store.flush()
        entry.end(_REMOVED)

    def safe(self, entries: list[CacheEntry]) -> None:
        """Write the ids of safe messages if the cache has a store, then make the entries known."""
        store = self.store
        if store is None:
            for entry in entries:
                self._set_known(entry)
            return
        kept: list[CacheEntry] = []
        for entry in entries:
            if entry.id in self._until:
                kept.append(entry)
            else:
                self._set_known(entry)  # dropped meanwhile, because the cache was full
        for first in range(0, len(kept), PUT_MAX):
            part = kept[first : first + PUT_MAX]
            store.put(part, partial(self._stored, part))

    def _stored(self, entries: list[CacheEntry], done: bool) -> None:
        for entry in entries:
            if done:
                self._set_known(entry)
            else:
                self.forget(entry)

    def _set_known(self, entry: CacheEntry) -> None:
        if entry.state == _REMOVED:
            return
        if self._unsafe.get(entry.id) is entry:
            del self._unsafe[entry.id]
        entry.end(_KNOWN)

    # -- ids ---------------------------------------------------------------------------------------------------------

    def _insert(self, ident: bytes, until_ms: i64) -> None:
        until = self._until
        if ident in until:
            del until[ident]
        elif until:
            # Each new id drops the oldest one, if that has expired or the cache is full.
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
    """Commit listener that reports to the cache which messages are safe."""

    def __init__(self, cache: DeduplicationCache) -> None:
        self._cache = cache
        self._new: list[CacheEntry] = []
        self._groups: list[tuple[i64, list[CacheEntry]]] = []

    def add(self, entry: CacheEntry, turn: LoopTurn) -> None:
        self._new.append(entry)
        if len(self._new) == 1:
            turn.confirm_later(self)

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        new, self._new = self._new, []
        for entry in new:
            for target in entry.targets:
                log = target.log()
                if log is not None and not log.local:
                    entry.missing += 1
                    log.when_safe(log.next_offset - 1, partial(self._on_remote_answer, entry))
        if safe:
            self._on_local_sync(new)
            return False
        self._groups.append((generation, new))
        return True

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        groups = self._groups
        while groups and groups[0][0] <= generation:
            _, entries = groups.pop(0)
            self._on_local_sync([entry for entry in entries if not failed or not self._failed(entry, failed)])
        return len(groups) > 0

    def _failed(self, entry: CacheEntry, failed: list[QueueLog]) -> bool:
        for target in entry.targets:
            log = target.log()
            if log is not None and log in failed:
                self._cache.forget(entry)
                return True
        return False

    def _on_local_sync(self, entries: list[CacheEntry]) -> None:
        """Handle entries whose messages the local logs have synced."""
        for entry in entries:
            entry.synced = True
        self._cache.safe([entry for entry in entries if entry.missing == 0 and entry.state == _UNSAFE])

    def _on_remote_answer(self, entry: CacheEntry, safe: bool) -> None:
        entry.missing -= 1
        if not safe:
            self._cache.forget(entry)
        elif entry.missing == 0 and entry.synced and entry.state == _UNSAFE:
            self._cache.safe([entry])


HISTORY_BYTES_MAX: Final = 64 * 1024 * 1024
_NO_STORE: Final = NO_STORE.encode()


@final
class MessageHistory(Destination):
    """Message history of one exchange: its last `length_max` messages."""

    def __init__(self, length_max: int) -> None:
        super().__init__()
        self.is_queue = False
        self._length_max = length_max
        self._messages: deque[Message] = deque()
        self.size_bytes: i64 = 0

    def enqueue(self, message: Message) -> bool:
        """Store the message and drop the oldest ones above the limits. Cost: O(1), amortized."""
        size = message.size_bytes()
        if size > HISTORY_BYTES_MAX or _has_no_store(message):
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
        """Return copies of the messages, the oldest first, for publishing."""
        return [_copied(message) for message in self._messages]


def _has_no_store(message: Message) -> bool:
    info = message.info
    if info is None or info.headers_start == 0:
        return False
    properties = message.properties()
    if _NO_STORE not in properties:
        return False
    return decode_table(properties, info.headers_start)[0].get(NO_STORE) is True


def _copied(message: Message) -> Message:
    """Return a copy whose time to live begins in its next queue."""
    copied = Message(
        message.envelope,
        message.content,
        message.header_size,
        message.body_size,
        message.frame_payload_max,
        message.persistent,
        message.info,
    )
    copied.parts = message.parts
    copied.started = message.started
    return copied
