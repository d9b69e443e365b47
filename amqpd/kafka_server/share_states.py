"""The states of all share groups in the log of committed offsets (committed_offsets.py), and in memory.

    key     version 3, then as the key of a committed offset
    value   id of the partition's stream (16 bytes), then a snapshot (share_state.py)

The ids of vhost and stream make a deleted vhost's or topic's state void at once. A sweep removes those records later
(coordinator.py).

A state that is being written or removed is found as it will be. Otherwise a member that joins during the sync of an
AlterShareGroupOffsets or DeleteGroups would begin with the old state, and write it again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.kafka_server.committed_offsets import (
    ENTRY_BYTES,
    VHOST_BYTES_MAX,
    CommittedOffsets,
    OffsetKey,
    decode_key,
    encode_key,
)
from amqpd.kafka_server.compacted_log import ignore_result
from amqpd.kafka_server.topics import partition_queue

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.vhost import VHost

log = logging.getLogger(__name__)

_VERSION: Final = b"\x03"
_OFFSET_VERSION: Final = b"\x01"
_ID_BYTES: Final = 16


class StoredState(NamedTuple):
    """A state that is written. stream_id: of the partition, 16 bytes."""

    stream_id: bytes
    snapshot: bytes

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES + len(self.snapshot)


class ShareStates:
    """All states. Loop thread only. Before `offsets.is_loaded`, nothing may be asked or changed."""

    def __init__(self, offsets: CommittedOffsets, broker: Broker) -> None:
        self.offsets = offsets
        self._broker = broker
        # vhost id -> group -> topic and partition -> state
        self._tables: dict[str, dict[str, dict[tuple[str, int], StoredState]]] = {}
        self._sizes: dict[str, int] = {}
        self._writes: Counter[OffsetKey] = Counter()  # not synced yet
        self._newest: dict[OffsetKey, StoredState | None] = {}  # of these
        offsets.others[_VERSION[0]] = self._take

    def _take(self, key: bytes, value: bytes | None) -> None:
        """Take a record that was read after a start."""
        place = decode_key(_OFFSET_VERSION + key[1:])
        if place is None or (value is not None and len(value) < _ID_BYTES):
            log.warning("the state of a share group cannot be read: an unknown version")
            return
        state = None if value is None else StoredState(value[:_ID_BYTES], value[_ID_BYTES:])
        self._set(place, state)

    def find(self, vhost: VHost, group: str, name: str, partition: int) -> StoredState | None:
        """Return a state; None if there is none, or if its partition was deleted."""
        key = OffsetKey(vhost.id, group, name, partition)
        if key in self._newest:
            state = self._newest[key]
        else:
            state = self._tables.get(vhost.id, {}).get(group, {}).get((name, partition))
        queue = None if state is None else partition_queue(vhost, name, partition)
        if state is None or queue is None or bytes.fromhex(queue.id) != state.stream_id:
            return None
        return state

    def partitions_of(self, vhost: VHost, group: str) -> list[tuple[str, int]]:
        """Return topic and partition of the states of a group."""
        return [place for place in self._tables.get(vhost.id, {}).get(group, {}) if self.find(vhost, group, *place)]

    def keys_of(self, vhost_id: str, group: str) -> list[OffsetKey]:
        """Return the keys of the states of a group, also of void ones and those being written."""
        places = self._tables.get(vhost_id, {}).get(group, ())
        written = [OffsetKey(vhost_id, group, *place) for place in places]
        writing = [key for key in self._writes if key[:2] == (vhost_id, group)]
        return list(dict.fromkeys((*written, *writing)))

    def groups(self, vhost: VHost) -> list[str]:
        """Return the groups with states."""
        return [group for group in self._tables.get(vhost.id, {}) if self.partitions_of(vhost, group)]

    def has_room(self, vhost_id: str) -> bool:
        """Return whether the vhost may have one more state."""
        return self._sizes.get(vhost_id, 0) < VHOST_BYTES_MAX

    def write(self, key: OffsetKey, state: StoredState | None, done: Callable[[bool], None]) -> None:
        """Write a state, or remove it. `done(True)` is called when that is synced, `done(False)` if it failed."""
        self._begin_write(key, state)
        value = None if state is None else state.stream_id + state.snapshot
        self.offsets.append(1, [(_record_key(key), value)], partial(self._written, key, state, done))

    def remove(self, keys: Sequence[OffsetKey], done: Callable[[bool], None]) -> None:
        """Remove states, many of them in slices. `done` as for `write`."""

        def removed(safe: bool) -> None:
            for key in keys:
                self._end_write(key, None, safe)
            done(safe)

        for key in keys:
            self._begin_write(key, None)
        self.offsets.append(len(keys), ((_record_key(key), None) for key in keys), removed)

    def _written(self, key: OffsetKey, state: StoredState | None, done: Callable[[bool], None], safe: bool) -> None:
        self._end_write(key, state, safe)
        done(safe)

    def _begin_write(self, key: OffsetKey, state: StoredState | None) -> None:
        self._writes[key] += 1
        self._newest[key] = state

    def _end_write(self, key: OffsetKey, state: StoredState | None, safe: bool) -> None:
        self._writes[key] -= 1
        if not self._writes[key]:
            del self._writes[key], self._newest[key]
        if safe:
            self._set(key, state)

    def _set(self, key: OffsetKey, state: StoredState | None) -> None:
        groups = self._tables.setdefault(key.vhost_id, {})
        states = groups.setdefault(key.group, {})
        place = (key.topic, key.partition)
        before = states.pop(place, None)
        size = self._sizes.get(key.vhost_id, 0) - (0 if before is None else before.size_bytes)
        if state is not None:
            states[place] = state
            size += state.size_bytes
        self._sizes[key.vhost_id] = size
        if not states:
            del groups[key.group]
            if not groups:
                del self._tables[key.vhost_id]
                del self._sizes[key.vhost_id]

    def remove_void(self) -> Iterator[None]:
        """Remove the states of vhosts and partitions that do not exist. Looks at one state in each step."""
        vhosts = {vhost.id: vhost for vhost in self._broker.vhosts.values()}
        for vhost_id in list(self._tables):
            vhost = vhosts.get(vhost_id)
            for group in list(self._tables.get(vhost_id, ())):
                for place in list(self._tables.get(vhost_id, {}).get(group, ())):
                    key = OffsetKey(vhost_id, group, *place)
                    if key not in self._writes and (vhost is None or self.find(vhost, group, *place) is None):
                        self.remove([key], ignore_result)
                    yield


def _record_key(key: OffsetKey) -> bytes:
    return _VERSION + encode_key(key)[1:]
