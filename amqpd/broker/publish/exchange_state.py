"""Exchange state: creates, loads and persists the state that some exchange types have about messages.

An x-recent-history exchange gets a `MessageHistory` in memory. An x-message-deduplication exchange gets a
`DeduplicationCache`. If it is durable and has `x-cache-persistence: disk`, a `MetadataCacheStore` writes each id as a
metadata row, and one row for the cache. The commit that deletes the exchange deletes the row of the cache, and with it
the ids. So an exchange that is declared again has an empty cache.

Ids are written when their messages are safe, in one transaction per commit group. Removals of ids wait for the next
write, or are written at once if a message whose id is not written pushes an id out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.message import Message, MessageView
from amqpd.broker.publish import router
from amqpd.broker.publish.deduplication import CacheEntry, DeduplicationCache, MessageHistory
from amqpd.broker.publish.firehose import BestEffortPublisher
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.exchange import Binding, Exchange, ExchangeStateHook
from amqpd.routing.stateful import (
    CACHE_PERSISTENCE,
    CACHE_SIZE,
    CACHE_TTL,
    HISTORY_LENGTH,
    HISTORY_LENGTH_DEFAULT,
    Deduplication,
    RecentHistory,
)
from amqpd.storage.metadata.rows import Change, Delete, Put, SeenCacheRow, SeenRow
from amqpd.storage.metadata.store import MetadataClosed, random_id

if TYPE_CHECKING:
    from amqpd.broker.vhost.pending import Commit
    from amqpd.broker.vhost.vhost import VHost

log = logging.getLogger(__name__)

HISTORY_SLICE_COUNT: Final = 256
"""Maximum of history messages published in one loop turn."""
PART_MAX: Final = 500
"""Maximum of rows in one transaction: about 3 ms of the metadata thread."""


class ExchangeStates(ExchangeStateHook):
    """The state of all exchanges of the broker.

    Args:
        vhosts: all vhosts by name.
        commit: `MetadataStore.submit`.
    """

    def __init__(
        self,
        vhosts: Mapping[str, VHost],
        turn: LoopTurn,
        timers: Timers,
        call_soon: Callable[..., object],
        commit: Commit,
    ) -> None:
        self._vhosts = vhosts
        self._turn = turn
        self._timers = timers
        self._call_soon = call_soon
        self._commit = commit
        self._best_effort = BestEffortPublisher(turn.schedule)
        # (vhost, exchange) -> loaded rows, until the exchange is created.
        self._caches: dict[tuple[str, str], tuple[SeenCacheRow, list[SeenRow]]] = {}

    def load(self, caches: Iterable[SeenCacheRow], ids: Iterable[SeenRow]) -> None:
        """Load the rows of all caches. Must be called before the exchanges are created."""
        by_cache: dict[str, list[SeenRow]] = {}
        for row in ids:
            by_cache.setdefault(row.cache_id, []).append(row)
        for cache_row in caches:
            rows = sorted(by_cache.get(cache_row.id, ()), key=attrgetter("number"))
            self._caches[cache_row.vhost, cache_row.exchange] = (cache_row, rows)

    def begin(self, vhost: str, exchange: Exchange) -> None:
        matcher = exchange.matcher
        if isinstance(matcher, RecentHistory):
            length = exchange.arguments.get(HISTORY_LENGTH)
            matcher.attach_recorder(MessageHistory(length if isinstance(length, int) else HISTORY_LENGTH_DEFAULT))
        elif isinstance(matcher, Deduplication):
            matcher.memory = self._deduplication_cache(vhost, exchange)

    def _deduplication_cache(self, vhost: str, exchange: Exchange) -> DeduplicationCache:
        size, ttl_ms = number_of(exchange.arguments.get(CACHE_SIZE)), number_of(exchange.arguments.get(CACHE_TTL))
        if exchange.arguments.get(CACHE_PERSISTENCE) != "disk" or not exchange.durable:
            return DeduplicationCache(self._turn, self._timers, size, ttl_ms)
        known = self._caches.pop((vhost, exchange.name), None)
        if known is None:
            store = MetadataCacheStore(SeenCacheRow(random_id(), vhost, exchange.name), self._commit, self._timers)
            return DeduplicationCache(self._turn, self._timers, size, ttl_ms, store)
        cache_row, rows = known
        store = MetadataCacheStore(cache_row, self._commit, self._timers)
        cache = DeduplicationCache(self._turn, self._timers, size, ttl_ms, store)
        now_ms = self._timers.steady_ms()
        for row in rows:
            store.load(row)
            if row.expires_ms == 0 or row.expires_ms > now_ms:
                cache.load(row.id, row.expires_ms - now_ms if row.expires_ms else 0)
            else:
                store.drop(row.id)
        store.flush()
        return cache

    def bound(self, vhost: str, binding: Binding) -> None:
        matcher = binding.source.matcher
        if isinstance(matcher, RecentHistory) and isinstance(matcher.recorder, MessageHistory):
            self._publish_history(vhost, binding, matcher.recorder.messages())

    def _publish_history(self, vhost: str, binding: Binding, messages: list[Message]) -> None:
        """Publish a history to the destination of a new binding, the oldest message first, in slices."""
        destination = binding.destination
        now, messages = messages[:HISTORY_SLICE_COUNT], messages[HISTORY_SLICE_COUNT:]
        for message in now:
            owner = self._vhosts.get(vhost)
            if owner is None or destination.deleted:
                return
            if isinstance(destination, Queue):
                self._best_effort.offer([destination], message)
            else:
                keys = [message.envelope.routing_key]
                self._best_effort.offer(router.route(owner, destination, keys, MessageView(message)), message)
        if messages:
            self._call_soon(self._publish_history, vhost, binding, messages)

    def end(self, vhost: str, exchange: Exchange) -> list[Change]:
        matcher = exchange.matcher
        if isinstance(matcher, Deduplication) and isinstance(matcher.memory, DeduplicationCache):
            store = matcher.memory.store
            if store is not None:
                return store.end()
        return []


class MetadataCacheStore:
    """Metadata rows of one cache. The row of the cache itself is written with the first id."""

    def __init__(self, cache_row: SeenCacheRow, commit: Commit, timers: Timers) -> None:
        self._cache_row = cache_row
        self._commit = commit
        self._timers = timers
        self._ended = False
        self._has_cache_row = False
        self._number = 0
        # id -> number of its row; then the removals that are not written yet.
        self._rows: dict[bytes, int] = {}
        self._dropped: list[Change] = []

    def load(self, row: SeenRow) -> None:
        """Add a row from before the start."""
        self._has_cache_row = True
        self._rows[row.id] = row.number
        self._number = max(self._number, row.number)

    def put(self, entries: list[CacheEntry], done: Callable[[bool], None]) -> None:
        """Write ids, then call `done` on the event loop: with True if they are on disk."""
        changes, self._dropped = self._dropped, []
        if not self._has_cache_row:
            changes.append(Put(self._cache_row))
        offset_ms = self._timers.steady_ms() - self._timers.now_ms()
        for entry in entries:
            self._number += 1
            self._rows[entry.id] = self._number
            expires_ms = entry.until_ms + offset_ms if entry.until_ms else 0
            changes.append(Put(SeenRow(self._cache_row.id, entry.id, self._number, expires_ms)))
        self._submit(changes, partial(self._on_put, done))

    def _on_put(self, done: Callable[[bool], None], written: bool) -> None:
        if written:
            self._has_cache_row = True
        done(written)

    def drop(self, ident: bytes) -> None:
        """Remove an id, at the next `put` or `flush`."""
        number = self._rows.pop(ident, None)
        if number is not None:
            self._dropped.append(Delete(SeenRow(self._cache_row.id, ident, number, 0)))

    def flush(self) -> None:
        """Write the removals now."""
        dropped, self._dropped = self._dropped, []
        for first in range(0, len(dropped), PART_MAX):
            self._submit(dropped[first : first + PART_MAX], _ignored)

    def end(self) -> list[Change]:
        """Write nothing more, because the exchange is deleted. Return the changes for the commit of the deletion."""
        self._ended = True
        return [Delete(self._cache_row)]

    def _submit(self, changes: list[Change], done: Callable[[bool], None]) -> None:
        if self._ended:
            done(True)  # the exchange is deleted, so the ids are not needed
            return
        try:
            self._commit(changes, partial(self._written, done))
        except MetadataClosed:
            log.debug("metadata closed before %d changes of deduplication ids", len(changes))
            done(False)

    def _written(self, done: Callable[[bool], None], error: BaseException | None) -> None:
        if error is not None and not self._ended:
            about = {"vhost": self._cache_row.vhost}
            log.error("exchange '%s': deduplication ids not written: %s", self._cache_row.exchange, error, extra=about)
        done(error is None or self._ended)


def number_of(value: object) -> int:
    """Return the number of an argument, which may be a string of digits. Return 0 if it is absent or not valid."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) else 0


def _ignored(_done: bool) -> None:
    """Ignore the result: `_written` logs an error, and the next start repeats the removals."""
