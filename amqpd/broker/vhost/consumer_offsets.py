"""How far the named consumers of streams have come.

An offset stored is the *next* one to read, as Kafka's committed offsets are: whoever consumes under that name goes on
with it. Memory is the truth at run time. `put` is for acks: it costs a look-up and writes nothing by itself; what has
changed is written together every WRITE_S, a row per consumer however many acks there were, and at once when a consumer
ends (`settle`) or the broker stops (`flush`). So a crash takes an offset back by WRITE_S at most, and what was read
since is delivered once more; it never goes forward by itself. `set` and `delete` are for operators, and answer when
they are committed.

The rows go with the queue's own row, and here with `forget`; a name is kept until then, or until it is deleted.
Everything is called on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from amqpd.broker.vhost.pending import Commit, Done
from amqpd.storage.filesystem import Clock
from amqpd.storage.metadata.store import Change, Delete, MetadataClosed, Put, StoredOffsetRow

log = logging.getLogger(__name__)

WRITE_S: Final = 5.0
NAMES_MAX: Final = 10_000
"""Names of one stream: a client that makes up a new one for each consumer must not fill the metadata."""
PART_MAX: Final = 500
"""Rows of one submission: some 3 ms of the metadata's thread."""

Key: TypeAlias = tuple[str, str]
"""Of a queue (its id) and a consumer (its name)."""


class StoredOffset(NamedTuple):
    """offset: the next one to read. time_ms: when it became that, as it was written; 0 while no commit has said so."""

    offset: int
    time_ms: int


class ConsumerOffsets:
    """One per broker, in its catalogue. commit: `Metadata.submit`."""

    def __init__(
        self,
        commit: Commit,
        call_soon: Callable[..., object],
        call_later: Callable[[float, Callable[[], None]], object],
        clock: Clock,
    ) -> None:
        self._commit = commit
        self._call_soon = call_soon
        self._call_later = call_later
        self._clock = clock
        self._of: dict[str, dict[str, StoredOffset]] = {}
        self._changed: dict[Key, None] = {}
        self._timed = False
        self._soon = False

    def load(self, rows: Iterable[StoredOffsetRow]) -> None:
        """What an earlier life wrote."""
        for row in rows:
            self._of.setdefault(row.queue_id, {})[row.name] = StoredOffset(row.offset, row.time_ms)

    def get(self, queue_id: str, name: str) -> int | None:
        """The next offset to read, or None for a name that has none."""
        stored = self._of.get(queue_id, _NONE).get(name)
        return None if stored is None else stored.offset

    def of(self, queue_id: str) -> Mapping[str, StoredOffset]:
        """Name -> what is stored, for one queue. It changes with the next call."""
        return self._of.get(queue_id, _NONE)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def admit(self, queue_id: str, name: str) -> bool:
        """A consumer of that name begins. False: it may not store anything, the queue has NAMES_MAX other names."""
        names = self._of.setdefault(queue_id, {})
        return name in names or len(names) < NAMES_MAX

    def put(self, queue_id: str, name: str, offset: int) -> None:
        """All below `offset` is acked, says a consumer that was admitted; nothing once the queue is forgotten.

        Cost: under 1 us.
        """
        names = self._of.get(queue_id)
        if names is None:
            return
        names[name] = StoredOffset(offset, 0)
        self._changed[queue_id, name] = None
        if not self._timed:
            self._timed = True
            self._call_later(WRITE_S, self._due)

    def settle(self, queue_id: str, name: str) -> None:
        """Its consumer ends: what changed is written in this turn, together with that of all others who end in it."""
        if (queue_id, name) in self._changed and not self._soon:
            self._soon = True
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Submits what has changed. Cost: 2 us a name."""
        self._soon = False
        changed, self._changed = list(self._changed), {}
        now = self._clock.time_ms()
        for first in range(0, len(changed), PART_MAX):
            part = [
                StoredOffsetRow(queue_id, name, self._of[queue_id][name].offset, now)
                for queue_id, name in changed[first : first + PART_MAX]
            ]
            rows: list[Change] = [Put(row) for row in part]
            try:
                self._commit(rows, partial(self._written, part))
            except MetadataClosed:
                log.debug("metadata closed before %d stored offsets", len(changed) - first)
                return

    def _due(self) -> None:
        self._timed = False
        self.flush()

    def _written(self, part: list[StoredOffsetRow], error: BaseException | None) -> None:
        if error is None:
            for queue_id, name, offset, time_ms in part:
                stored = self._of.get(queue_id, _NONE).get(name)
                if stored is not None and stored.offset == offset:
                    self._of[queue_id][name] = StoredOffset(offset, time_ms)
            return
        log.error("%d stored offsets are written later: %s", len(part), error)
        for row in part:
            if row.name in self._of.get(row.queue_id, _NONE):
                self._changed[row.queue_id, row.name] = None
        if self._changed and not self._timed:
            self._timed = True
            self._call_later(WRITE_S, self._due)

    # -- operators ---------------------------------------------------------------------------------------------------

    def set(self, queue_id: str, name: str, offset: int, done: Done) -> None:
        """done(None) once it is committed; done(error) when it is what it was before. A consumer that reads under this
        name meanwhile goes on where it is, and its next ack says so.

        Raises: MetadataClosed.
        """
        stored = StoredOffset(offset, 0)
        row = StoredOffsetRow(queue_id, name, offset, self._clock.time_ms())
        names = self._of.setdefault(queue_id, {})
        before = names.get(name)

        def committed(error: BaseException | None) -> None:
            if names.get(name) is stored:
                if error is None:
                    names[name] = StoredOffset(offset, row.time_ms)
                elif before is None:
                    del names[name]
                else:
                    names[name] = before
            done(error)

        names[name] = stored
        self._commit([Put(row)], committed)

    def delete(self, queue_id: str, name: str, done: Done) -> bool:
        """Whether there was one; done(None) once it does not come back, done(error) when it is there again.

        Raises: MetadataClosed.
        """
        names = self._of.get(queue_id, {})
        stored = names.get(name)
        if stored is None:
            done(None)
            return False

        def committed(error: BaseException | None) -> None:
            if error is not None:
                names.setdefault(name, stored)
            done(error)

        self._commit([Delete(StoredOffsetRow(queue_id, name, *stored))], committed)
        del names[name]
        self._changed.pop((queue_id, name), None)
        return True

    def forget(self, queue_id: str) -> None:
        """The queue is out of memory; its row takes these along. Cost: 1 us a name."""
        for name in self._of.pop(queue_id, {}):
            self._changed.pop((queue_id, name), None)


_NONE: Final[dict[str, StoredOffset]] = {}
