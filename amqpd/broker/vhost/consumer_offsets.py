"""Stored offsets of named stream consumers.

Memory is authoritative while the broker runs.

`put` is for acks. It costs one look-up and writes nothing. Changed offsets are written together every WRITE_S, one row
per consumer; and at once when a consumer ends (`settle`) or the broker stops (`flush`). So a crash sets an offset
back by at most WRITE_S of reading, and never skips messages.

`set` and `delete` are for operators and answer after the commit. `forget` drops the offsets of a deleted queue; the
queue's row takes their rows with it. All calls run on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from amqpd.broker.queue.services import OffsetStore
from amqpd.broker.vhost.pending import Commit, Done
from amqpd.storage.filesystem import Clock
from amqpd.storage.metadata.rows import Change, Delete, Put, StoredOffsetRow
from amqpd.storage.metadata.store import MetadataClosed

log = logging.getLogger(__name__)

WRITE_S: Final = 5.0
NAMES_MAX: Final = 10_000
"""Names per stream: a client with a new name for each consumer must not fill the metadata."""
PART_MAX: Final = 500
"""Rows per commit: about 3 ms of the metadata thread."""

Key: TypeAlias = tuple[str, str]
"""Queue id and consumer name."""


class StoredOffset(NamedTuple):
    """A stored offset.

    Attributes:
        offset: the next offset to read.
        time_ms: the time at which it was written; 0 until the commit.
    """

    offset: int
    time_ms: int


class ConsumerOffsets(OffsetStore):
    """The stored offsets of one broker. `commit` is `MetadataStore.submit`."""

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
        self._has_timer = False
        self._is_flush_scheduled = False

    def load(self, rows: Iterable[StoredOffsetRow]) -> None:
        for row in rows:
            self._of.setdefault(row.queue_id, {})[row.name] = StoredOffset(row.offset, row.time_ms)

    def get(self, queue_id: str, name: str) -> int | None:
        stored = self._of.get(queue_id, _NONE).get(name)
        return None if stored is None else stored.offset

    def of_queue(self, queue_id: str) -> Mapping[str, StoredOffset]:
        """Return consumer name -> stored offset of a queue. The next call may change the mapping."""
        return self._of.get(queue_id, _NONE)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def admit(self, queue_id: str, name: str) -> bool:
        names = self._of.setdefault(queue_id, {})
        return name in names or len(names) < NAMES_MAX

    def put(self, queue_id: str, name: str, offset: int) -> None:
        names = self._of.get(queue_id)
        if names is None:
            return  # after `forget`
        names[name] = StoredOffset(offset, 0)
        self._changed[queue_id, name] = None
        if not self._has_timer:
            self._has_timer = True
            self._call_later(WRITE_S, self._write_timer_due)

    def settle(self, queue_id: str, name: str) -> None:
        if (queue_id, name) in self._changed and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Submit all changed offsets. Cost: 2 us per name."""
        self._is_flush_scheduled = False
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
                log.debug("the metadata closed: %d stored offsets are not written", len(changed) - first)
                return

    def _write_timer_due(self) -> None:
        self._has_timer = False
        self.flush()

    def _written(self, part: list[StoredOffsetRow], error: BaseException | None) -> None:
        if error is None:
            for queue_id, name, offset, time_ms in part:
                stored = self._of.get(queue_id, _NONE).get(name)
                if stored is not None and stored.offset == offset:
                    self._of[queue_id][name] = StoredOffset(offset, time_ms)
            return
        log.error("writing %d stored offsets failed; next try in %g s: %s", len(part), WRITE_S, error)
        for row in part:
            if row.name in self._of.get(row.queue_id, _NONE):
                self._changed[row.queue_id, row.name] = None
        if self._changed and not self._has_timer:
            self._has_timer = True
            self._call_later(WRITE_S, self._write_timer_due)

    # -- operators ---------------------------------------------------------------------------------------------------

    def set(self, queue_id: str, name: str, offset: int, done: Done) -> None:
        """Set an offset for an operator. The next ack of an active consumer overwrites it.

        Args:
            done: called with None after the commit, or with the error; the old offset is then back.

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
        """Delete an offset for an operator. Return False if there is none. `done` is as in `set`.

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
        """Forget the offsets of a deleted queue. Cost: 1 us per name."""
        for name in self._of.pop(queue_id, {}):
            self._changed.pop((queue_id, name), None)


_NONE: Final[dict[str, StoredOffset]] = {}
