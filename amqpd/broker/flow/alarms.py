"""Resource alarms: when memory or disk run low, publishers are not read until there is room again.

A look each second: resident memory against a share of what the machine (or the cgroup) has, free space of the data
directory's file system against a limit. While an alarm lasts, a connection that publishes is paused at its next
publish, which waits with all behind it unless it has no body, and is told by connection.blocked, if it can take that;
consumers go on. With both alarms raised, both have to end.

Limits may be changed, and alarms raised by hand (for tests, and for operators who want publishers to stop), until the
next start. One that was raised by hand lasts until it is cleared by hand; one that has a cause goes on behind that.

rabbit: the reasons `low on memory` and `low on disk`, the defaults 0.4 and 50 MB, blocked at the first publish.

Message bodies on their way: how much of them the broker keeps in memory, all connections together.

A body is kept until its last octet is there. While more than the budget is kept, the connection whose body has been on
its way longest is read to that body's end, and the others with unfinished bodies are not read; when there is room again
they go on, the oldest first. So one message always comes through, and what is kept is at most twice the budget and one
read of each connection: what waits, and what the oldest adds to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.config import LimitSettings


log = logging.getLogger(__name__)

TICK_S: Final = 1.0
REASONS: Final = {"memory": "low on memory", "disk": "low on disk"}
STORE: Final = "store"
_TEXTS: Final = {**REASONS, STORE: "Kafka does not keep up"}
_CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Alarms:
    """changed: called with the reason when the first alarm is raised, with '' when the last one ends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_dir: Path,
        limits: LimitSettings,
        changed: Callable[[str], None],
    ) -> None:
        self.memory_total_bytes = total_memory_bytes()
        self.memory_limit_bytes = 0
        self.disk_free_limit_bytes = 0
        self.obey(limits)
        self.memory_used_bytes = 0
        self.disk_free_bytes = 0
        self.raised: dict[str, str] = {}
        self.by_hand: set[str] = set()
        self._low = dict.fromkeys(REASONS, False)  # at the last look that succeeded
        self._data_dir = data_dir
        self._filesystem = FileSystem()
        self._changed = changed
        # Told of each kind of alarm that comes or goes.
        self.told: Callable[[str, bool], object] = _unheard
        # Called behind each change of `raised`.
        self.heard: list[Callable[[], None]] = []
        # In a cluster: whether what publishers have sent waits for Kafka for too long.
        self.store_waits: Callable[[], bool] | None = None
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def limit_memory_share(self, share: float) -> None:
        """share: of what there is, 0 to 1. It counts from the next look."""
        self.memory_limit_bytes = int(self.memory_total_bytes * share)

    def obey(self, limits: LimitSettings, former: LimitSettings | None = None) -> None:
        """The settings' limits, from the next look. former: those obeyed so far; what they said as well stays as it is,
        which amqpctl may have changed since.
        """
        memory = (limits.memory_high_watermark, limits.memory_bytes)
        if former is None or memory != (former.memory_high_watermark, former.memory_bytes):
            self.limit_memory_share(limits.memory_high_watermark)
            if limits.memory_bytes:
                self.limit_memory_bytes(limits.memory_bytes)
        disk = (limits.disk_free_bytes, limits.disk_free_memory_multiple)
        if former is None or disk != (former.disk_free_bytes, former.disk_free_memory_multiple):
            self.disk_free_limit_bytes = limits.disk_free_bytes
            if limits.disk_free_memory_multiple:
                self.disk_free_limit_bytes = int(self.memory_total_bytes * limits.disk_free_memory_multiple)

    def limit_memory_bytes(self, limit_bytes: int) -> None:
        """Likewise. rabbit: more than there is counts as all of it."""
        self.memory_limit_bytes = min(limit_bytes, self.memory_total_bytes)

    def raise_by_hand(self, kind: str) -> None:
        """kind: memory or disk. At once, until `clear_by_hand`."""
        self.by_hand.add(kind)
        self.look()

    def clear_by_hand(self, kind: str) -> None:
        """Over at once, unless it has a cause."""
        self.by_hand.discard(kind)
        self.look()

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self.look()

    def look(self) -> None:
        """Compares now. Cost: 20 us."""
        try:
            self.memory_used_bytes = resident_bytes()
            self.disk_free_bytes = self._filesystem.free_bytes(str(self._data_dir))
        except OSError as error:  # no descriptor is left, say: what was known stands until the next look
            log.warning("memory and disk cannot be looked at: %s", error)
        else:
            self._low["memory"] = self.memory_used_bytes > self.memory_limit_bytes
            self._low["disk"] = self.disk_free_bytes < self.disk_free_limit_bytes
        found = {kind: low or kind in self.by_hand for kind, low in self._low.items()}
        if self.store_waits is not None:
            found[STORE] = self.store_waits()
        # Raised before ended: when one follows on the other at once, publishers stay held.
        for kind, on in sorted(found.items(), key=lambda item: not item[1]):
            self.set(kind, on)

    def set(self, kind: str, on: bool) -> None:
        """kind: memory, disk or store."""
        if on == (kind in self.raised):
            return
        self.told(kind, on)
        if on:
            self.raised[kind] = _TEXTS[kind]
            log.warning("alarm: %s; publishers are held", _TEXTS[kind])
            if len(self.raised) == 1:
                self._changed(_TEXTS[kind])
        else:
            del self.raised[kind]
            log.warning("alarm over: %s", _TEXTS[kind])
            if not self.raised:
                self._changed("")
        for listener in self.heard:
            listener()


def _unheard(_kind: str, _on: bool) -> None:
    """Nobody listens."""


@cache
def _statm() -> int:
    """Open for good: a look at the memory must not need a descriptor when there is none left."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def resident_bytes() -> int:
    """The process's resident memory, file mappings left out."""
    _, resident, shared, *_ = os.pread(_statm(), 256, 0).split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def total_memory_bytes() -> int:
    """The machine's memory, or the cgroup's limit when that is lower."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue  # this cgroup version is not mounted
        if text.isdigit():
            total = min(total, int(text))
    return total


# What may come of a connection before it is looked at again.
READ_BYTES: Final = 256 * 1024


class BodyReader(Protocol):
    """A connection that is in the midst of a body."""

    def read_bodies(self, on: bool) -> None:
        """Whether it may be read, as far as bodies are concerned. Told more than once, too."""


class PartialBodyMemory:
    """One per broker. limit_bytes: the budget."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.kept_bytes = 0
        # By the age of its oldest body: bytes kept of a connection, and that body's serial there.
        self._readers: dict[BodyReader, tuple[int, int]] = {}
        # Somebody is held.
        self.full = False

    def __len__(self) -> int:
        """Connections with unfinished bodies."""
        return len(self._readers)

    def changed(self, reader: BodyReader, kept_bytes: int, oldest: int) -> None:
        """A connection was read. kept_bytes: of its unfinished bodies; oldest: serial of the oldest, 0 without one.

        Cost: a dict look-up; while some are held and there is room again, a look at all of them.
        """
        before, serial = self._readers.get(reader, (0, 0))
        self.kept_bytes += kept_bytes - before
        if serial and serial != oldest:
            # The others of the connection are not as old as that.
            del self._readers[reader]
            if self.full:
                reader.read_bodies(True)
        if oldest:
            self._readers[reader] = kept_bytes, oldest
        if self.full or self.kept_bytes > self.limit_bytes:
            self._look()

    def _look(self) -> None:
        room = self.limit_bytes - self.kept_bytes
        self.full = False
        for number, reader in enumerate(self._readers):
            reads = number == 0 or room >= READ_BYTES
            room -= READ_BYTES
            reader.read_bodies(reads)
            if not reads:
                self.full = True
