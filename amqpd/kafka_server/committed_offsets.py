"""The committed offsets of all consumer groups: a compacted log (compacted_log.py) and its content in memory.

The log is the directory `kafka-offsets` in the data directory. A record's key names vhost, group, topic and partition;
its value is the offset. Keys and values have a version in the first byte; a record of an unknown version is kept and
ignored. Keys whose first byte is another one belong to `CommittedOffsets.others`: share_states.py has those of share
groups.

    key     version 1, then vhost id, group, topic (a length of 2 bytes and UTF-8 each), partition (int32);
            version 2 is an offset of an open transaction: then follows the producer id (int64)
    value   version 1, offset (int64), leader epoch (int32), time of the commit in ms (int64), id of the
            partition's stream (16 bytes), metadata (UTF-8, the rest)

A commit is appended at once, and in memory and answered when it is synced. The ids of vhost and stream make a deleted
vhost's or partition's offsets void at once, also if the broker is killed before their removal is in the log: a new one
of the same name has another id.

The offsets of a transaction are *pending* until `complete` removes them and, if it commits, makes them the group's
offsets, in one write. A second `complete` finds none, so it cannot overwrite commits that came later. Nor do those of a
deleted stream become the group's. An offset that is removed is removed from transactions, too, as in Kafka.

Memory: some 300 bytes and the metadata per offset, and 1,600 bytes per group.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from amqpd.kafka_server.compacted_log import CompactedLog, LogHost, LogRecord, decode_text, encode_text

DIRECTORY: Final = "kafka-offsets"
QUEUE_ID: Final = "0" * 31 + "2"
"""In the log's queue.json; no random id is equal to it."""
METADATA_MAX: Final = 4096
"""Characters. Kafka: offset.metadata.max.bytes, which counts characters."""
VHOST_BYTES_MAX: Final = 64 << 20
"""Memory of the offsets of one vhost, and of the groups that have them."""
ENTRY_BYTES: Final = 300
GROUP_BYTES: Final = 1600
"""With its state machine in the coordinator."""
REMOVALS_PER_TURN: Final = 200
PENDING_MAX: Final = 10_000
"""Offsets of a transaction in one group."""

_VERSION: Final = b"\x01"
_PENDING_VERSION: Final = b"\x02"
_VALUE: Final = struct.Struct(">qiq16s")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class OffsetKey(NamedTuple):
    """The place of an offset."""

    vhost_id: str
    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset.

    Attributes:
        metadata: the client's text.
        commit_ms: since 1970.
        stream_id: of the partition to which it was committed, 16 bytes.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    stream_id: bytes

    @property
    def size_bytes(self) -> int:
        """The memory, at most: 4 bytes for a character that is not ASCII."""
        return ENTRY_BYTES + len(self.metadata) * (1 if self.metadata.isascii() else 4)


NewOffset = tuple[OffsetKey, CommittedOffset]
GroupOffsets = dict[tuple[str, int], CommittedOffset]
"""(topic, partition) -> offset."""


def encode_key(key: OffsetKey) -> bytes:
    return b"".join((_VERSION, *map(encode_text, key[:3]), _INT32.pack(key.partition)))


def decode_key(data: bytes) -> OffsetKey | None:
    """Return the key, without the producer of a pending one; None if its version is unknown or it is damaged."""
    if data[:1] not in (_VERSION, _PENDING_VERSION):
        return None
    try:
        vhost_id, position = decode_text(data, 1)
        group, position = decode_text(data, position)
        topic, position = decode_text(data, position)
        return OffsetKey(vhost_id, group, topic, _INT32.unpack_from(data, position)[0])
    except (struct.error, ValueError):
        return None


def encode_pending_key(key: OffsetKey, producer_id: int) -> bytes:
    """Return the key of an offset of a transaction."""
    return _PENDING_VERSION + encode_key(key)[1:] + _INT64.pack(producer_id)


def decode_producer(data: bytes) -> int | None:
    """Return the producer of a good key of a pending offset; None if it is a committed offset."""
    return _INT64.unpack(data[-8:])[0] if data[:1] == _PENDING_VERSION else None


def encode_value(value: CommittedOffset) -> bytes:
    fixed = _VALUE.pack(value.offset, value.leader_epoch, value.commit_ms, value.stream_id)
    return _VERSION + fixed + value.metadata.encode("utf-8", "surrogatepass")


def decode_value(data: bytes) -> CommittedOffset | None:
    """Return the value; None if its version is unknown or it is damaged."""
    if data[:1] != _VERSION or len(data) <= _VALUE.size:
        return None
    offset, leader_epoch, commit_ms, stream_id = _VALUE.unpack_from(data, 1)
    metadata = data[1 + _VALUE.size :].decode("utf-8", "replace")
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms, stream_id)


class CommittedOffsets(CompactedLog):
    """All committed offsets. Loop thread only.

    Args:
        existing: returns those of some offsets, all of one vhost, whose streams were not deleted.

    Attributes:
        others: by the first byte of the key, the function that takes key and value (None: removed) of such a record.
    """

    directory = DIRECTORY
    queue_id = QUEUE_ID
    content = "committed offsets of Kafka's groups"

    def __init__(
        self, host: LogHost, loaded: Callable[[], None], existing: Callable[[Sequence[NewOffset]], list[NewOffset]]
    ) -> None:
        super().__init__(host, loaded)
        self._existing = existing
        self.others: dict[int, Callable[[bytes, bytes | None], None]] = {}
        self._tables: dict[str, dict[str, GroupOffsets]] = {}  # vhost id -> group -> offsets
        self._pending: dict[tuple[str, str], dict[int, GroupOffsets]] = {}  # vhost id, group -> producer -> offsets
        self._adding: dict[tuple[str, str], dict[int, Counter[tuple[str, int]]]] = {}  # of these, not synced yet
        # Vhost id, group, producer -> writes of its offsets that are not synced, and calls that wait for them.
        self._writes: Counter[tuple[str, str, int]] = Counter()
        self._waiting: dict[tuple[str, str, int], list[Callable[[], None]]] = {}
        self._sizes: dict[str, int] = {}  # vhost id -> bytes
        self._removals: dict[OffsetKey, CommittedOffset] = {}
        self._is_removing = False

    def clear(self) -> None:
        self._tables.clear()
        self._pending.clear()
        self._sizes.clear()

    def take(self, key: bytes, value: bytes | None) -> bool:
        other = self.others.get(key[0]) if key else None
        if other is not None:
            other(key, value)
            return True
        place = decode_key(key)
        offset = None if value is None else decode_value(value)
        if place is None or (offset is None and value is not None):
            return False
        producer_id = decode_producer(key)
        if producer_id is None:
            self._set(place, offset)
        else:
            self._set_pending(place, producer_id, offset)
        return True

    # -- look-ups

    def groups(self, vhost_id: str) -> Mapping[str, GroupOffsets]:
        """Return the offsets of the groups of a vhost that have any. Read only."""
        return self._tables.get(vhost_id, {})

    def of_group(self, vhost_id: str, group: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """Return the offsets of a group. Read only."""
        return self._tables.get(vhost_id, {}).get(group, {})

    def vhost_ids(self) -> list[str]:
        return list(self._tables)

    def has_pending_room(self, producer_id: int, offsets: Sequence[NewOffset]) -> bool:
        """Return whether a producer's transaction may have these offsets of one group, too."""
        if not offsets:
            return True
        first = offsets[0][0]
        group = (first.vhost_id, first.group)
        pending = self._pending.get(group, {}).get(producer_id, {}).keys()
        adding = self._adding.get(group, {}).get(producer_id, {}).keys()
        return len(pending | adding | {(key.topic, key.partition) for key, _ in offsets}) <= PENDING_MAX

    def has_room(self, vhost_id: str, size_bytes: int) -> bool:
        """Return whether the vhost may have so many bytes more."""
        return self._sizes.get(vhost_id, 0) + size_bytes <= VHOST_BYTES_MAX

    def group_bytes(self, vhost_id: str, group: str) -> int:
        """Return what the first offset of a group adds; 0 if it has some."""
        return 0 if self.has_group(vhost_id, group) else GROUP_BYTES

    # -- changes

    def change(self, changes: Sequence[tuple[OffsetKey, CommittedOffset | None]], done: Callable[[bool], None]) -> None:
        """Commit offsets, or remove them (None), also from transactions.

        `done(True)` is called when the changes are synced and visible; `done(False)` if they could not be written. Then
        none of them is visible.
        """
        self._keep(key for key, _ in changes)
        dropped = [(key, producer) for key, value in changes if value is None for producer in self._producers(key)]
        records: Iterator[LogRecord] = (
            (encode_key(key), None if value is None else encode_value(value)) for key, value in changes
        )
        if dropped:
            records = chain(records, ((encode_pending_key(key, producer), None) for key, producer in dropped))
        writes = {(key.vhost_id, key.group, producer) for key, producer in dropped}
        self._writes.update(writes)  # transactions that end meanwhile wait for it
        self.append(len(changes) + len(dropped), records, partial(self._changed, changes, dropped, writes, done))

    def _changed(
        self,
        changes: Sequence[tuple[OffsetKey, CommittedOffset | None]],
        dropped: Sequence[tuple[OffsetKey, int]],
        writes: Iterable[tuple[str, str, int]],
        done: Callable[[bool], None],
        safe: bool,
    ) -> None:
        if safe:
            for key, value in changes:
                self._set(key, value)
            for key, producer_id in dropped:
                self._set_pending(key, producer_id, None)
        done(safe)
        for write in writes:
            self._end_write(write)

    def _end_write(self, write: tuple[str, str, int]) -> None:
        """Count a write of a producer's pending offsets as done, and end a transaction that waits for it."""
        self._writes[write] -= 1
        if not self._writes[write]:
            del self._writes[write]
            for call in self._waiting.pop(write, ()):
                call()

    def _set(self, key: OffsetKey, value: CommittedOffset | None) -> None:
        groups = self._tables.setdefault(key.vhost_id, {})
        offsets = groups.setdefault(key.group, {})
        self._put(offsets, key, value)
        if not offsets:
            del groups[key.group]
            if not groups:
                del self._tables[key.vhost_id]

    def _put(self, offsets: GroupOffsets, key: OffsetKey, value: CommittedOffset | None) -> None:
        """Set or remove an offset in the table of a group, or of a transaction in a group, and count its memory."""
        size = self._sizes.pop(key.vhost_id, 0) - (GROUP_BYTES if offsets else 0)
        old = offsets.pop((key.topic, key.partition), None)
        if old is not None:
            size -= old.size_bytes
        if value is not None:
            offsets[key.topic, key.partition] = value
            size += value.size_bytes
        size += GROUP_BYTES if offsets else 0
        if size:
            self._sizes[key.vhost_id] = size

    # -- transactions

    def add_pending(self, producer_id: int, offsets: Sequence[NewOffset], done: Callable[[bool], None]) -> None:
        """Add offsets of one group to a transaction. Their places are pending at once. `done`: see `change`."""
        if not offsets:
            done(True)
            return
        first = offsets[0][0]
        adding = self._adding.setdefault((first.vhost_id, first.group), {}).setdefault(producer_id, Counter())
        adding.update((key.topic, key.partition) for key, _ in offsets)
        self._writes[first.vhost_id, first.group, producer_id] += 1
        records = ((encode_pending_key(key, producer_id), encode_value(value)) for key, value in offsets)
        self.append(len(offsets), records, partial(self._added, producer_id, offsets, done))

    def _added(self, producer_id: int, offsets: Sequence[NewOffset], done: Callable[[bool], None], safe: bool) -> None:
        group = (offsets[0][0].vhost_id, offsets[0][0].group)
        producers = self._adding[group]
        adding = producers[producer_id]
        for key, value in offsets:
            place = (key.topic, key.partition)
            adding[place] -= 1
            if not adding[place]:
                del adding[place]
            if safe:
                self._set_pending(key, producer_id, value)
        if not adding:
            del producers[producer_id]
            if not producers:
                del self._adding[group]
        done(safe)
        self._end_write((*group, producer_id))

    def complete(
        self, vhost_id: str, group: str, producer_id: int, commits: bool, done: Callable[[bool], None]
    ) -> None:
        """End a transaction: its pending offsets become the group's, or are dropped. `done` as for `change`.

        It waits for writes of these offsets. No offset may be added to the transaction any more.
        """
        if (vhost_id, group, producer_id) in self._writes:
            again = partial(self.complete, vhost_id, group, producer_id, commits, done)
            self._waiting.setdefault((vhost_id, group, producer_id), []).append(again)
            return
        pending = self._pending.get((vhost_id, group), {}).get(producer_id, {})
        ended = [(OffsetKey(vhost_id, group, *place), value) for place, value in pending.items()]
        committed = self._existing(ended) if commits else []
        self._keep(key for key, _ in committed)
        records = chain(
            ((encode_pending_key(key, producer_id), None) for key, _ in ended),
            ((encode_key(key), encode_value(value)) for key, value in committed),
        )
        completed = partial(self._completed, producer_id, ended, committed, done)
        self.append(len(ended) + len(committed), records, completed)

    def _completed(
        self,
        producer_id: int,
        ended: Sequence[NewOffset],
        committed: Sequence[NewOffset],
        done: Callable[[bool], None],
        safe: bool,
    ) -> None:
        if safe:
            for key, _ in ended:
                self._set_pending(key, producer_id, None)
            for key, value in committed:
                self._set(key, value)
        done(safe)

    def _set_pending(self, key: OffsetKey, producer_id: int, value: CommittedOffset | None) -> None:
        producers = self._pending.setdefault((key.vhost_id, key.group), {})
        offsets = producers.setdefault(producer_id, {})
        self._put(offsets, key, value)
        if not offsets:
            del producers[producer_id]
            if not producers:
                del self._pending[key.vhost_id, key.group]

    def is_pending(self, key: OffsetKey, stream_id: bytes | None = None) -> bool:
        """Return whether an open transaction has an offset for this place, or is being given one.

        Args:
            stream_id: ignore offsets for another stream, one that was deleted.
        """
        group, place = (key.vhost_id, key.group), (key.topic, key.partition)
        if any(place in places for places in self._adding.get(group, {}).values()):
            return True
        found = (offsets.get(place) for offsets in self._pending.get(group, {}).values())
        return any(value is not None and stream_id in (None, value.stream_id) for value in found)

    def _producers(self, key: OffsetKey) -> set[int]:
        """Return the producers whose open transactions have an offset for this place, also one not synced yet."""
        group, place = (key.vhost_id, key.group), (key.topic, key.partition)
        found = {producer for producer, offsets in self._pending.get(group, {}).items() if place in offsets}
        return found | {producer for producer, places in self._adding.get(group, {}).items() if place in places}

    def pending_producers(self) -> list[tuple[str, str, int]]:
        """Return (vhost id, group, producer id) of all transactions with pending offsets."""
        return [(*place, producer_id) for place, producers in self._pending.items() for producer_id in producers]

    def remove_later(self, keys: Iterable[OffsetKey]) -> None:
        """Remove offsets for which no client waits, some in each turn. Until then they are visible.

        One that is committed again meanwhile stays, and so does one for which a transaction has a new offset.
        """
        for key in keys:
            value = self.of_group(key.vhost_id, key.group).get((key.topic, key.partition))
            if value is not None:
                self._removals[key] = value
        if self._removals and not self._is_removing:
            self._is_removing = True
            self.after_changes(self._remove_some)

    def _keep(self, keys: Iterable[OffsetKey]) -> None:
        """Do not remove these offsets later: they are committed or removed now."""
        if self._removals:
            for key in keys:
                self._removals.pop(key, None)

    def _remove_some(self) -> None:
        """Remove some offsets. Commits from before `remove_later` are visible, and `_keep` knows the later ones."""
        if self.is_stopped or not self._removals:
            self._is_removing = False
            return
        changes: list[tuple[OffsetKey, None]] = []
        while self._removals and len(changes) < REMOVALS_PER_TURN:
            key, value = self._removals.popitem()
            is_same = self.of_group(key.vhost_id, key.group).get((key.topic, key.partition)) is value
            if is_same and not self.is_pending(key):
                changes.append((key, None))
        self.change(changes, self._removed)

    def _removed(self, safe: bool) -> None:
        if safe:
            self.after_changes(self._remove_some)
        else:  # the next start or sweep removes them
            self._removals.clear()
            self._is_removing = False

    def remove_group(self, vhost_id: str, group: str, done: Callable[[bool], None]) -> None:
        """Remove all offsets of a group, also from transactions, REMOVALS_PER_TURN in a write.

        Until `done` is called, nothing may be committed for the group. `done(False)`: some may be removed.
        """
        self.after_changes(partial(self._remove_group, vhost_id, group, done))

    def _remove_group(self, vhost_id: str, group: str, done: Callable[[bool], None]) -> None:
        places = list(self.of_group(vhost_id, group))
        for offsets in self._pending.get((vhost_id, group), {}).values():
            places += offsets
        self._remove_places(vhost_id, group, iter(places), done, True)

    def _remove_places(
        self, vhost_id: str, group: str, places: Iterator[tuple[str, int]], done: Callable[[bool], None], safe: bool
    ) -> None:
        """Remove some of these offsets, if those before are removed."""
        some = [OffsetKey(vhost_id, group, *place) for place in islice(places, REMOVALS_PER_TURN)]
        if some and safe and not self.is_stopped:
            self.change([(key, None) for key in some], partial(self._remove_places, vhost_id, group, places, done))
        else:
            done(safe and not some)

    def has_group(self, vhost_id: str, group: str) -> bool:
        """Return whether a group has offsets, also pending ones."""
        place = (vhost_id, group)
        return bool(self.of_group(vhost_id, group)) or place in self._pending or place in self._adding
