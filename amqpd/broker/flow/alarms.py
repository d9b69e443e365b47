"""Resource alarms, and the memory budget for incomplete message bodies. Both stop reading publishers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from amqpd.storage.filesystem import NO_DESCRIPTOR, FileSystem

if TYPE_CHECKING:
    from amqpd.config.schema import LimitSettings


log = logging.getLogger(__name__)

TICK_S: Final = 1.0
# Checks after which the memory of the machine or cgroup is read again.
TOTAL_TICKS: Final = 60
REASONS: Final = {"memory": "low on memory", "disk": "low on disk"}
STORE: Final = "store"
_TEXTS: Final = {**REASONS, STORE: "Kafka does not keep up"}
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUPS: Final = Path("/proc/self/cgroup")


class Alarms:
    """Memory and disk alarms.

    Each second, `Alarms` compares resident memory with a share of the memory of the machine or cgroup, and free disk
    space with a limit. The share follows a changed limit of the cgroup within a minute.

    During an alarm, a connection is paused at its next publish. If that publish has a body, it waits, and so does all
    data behind it. A client that supports it gets connection.blocked. Consumers continue. With two alarms, both must
    end.

    amqpctl can change the limits and raise alarms until the next start. An alarm raised by hand ends only by hand.

    rabbit: the reasons `low on memory` and `low on disk`, the defaults 0.4 and 50 MB, blocking at the first publish.

    Attributes:
        on_change: called with kind and state when an alarm of one kind begins or ends.
        listeners: called after each change of `raised`.
        is_store_slow: in a cluster, whether publishes wait too long for Kafka.

    Args:
        changed: called with the reason when the first alarm begins, and with '' when the last one ends.
        filesystem: measures the free space.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_dir: Path,
        limits: LimitSettings,
        changed: Callable[[str], None],
        filesystem: FileSystem | None = None,
    ) -> None:
        self.memory_total_bytes = total_memory_bytes()
        self.memory_limit_bytes = 0
        # The limit as it was set: a share, or bytes if they are not 0.
        self._memory_share = 0.0
        self._memory_bytes = 0
        self._ticks_left = TOTAL_TICKS
        self.disk_free_limit_bytes = 0
        self.apply_config(limits)
        self.memory_used_bytes = 0
        self.disk_free_bytes = 0
        self.raised: dict[str, str] = {}
        self.raised_by_hand: set[str] = set()
        self._low = dict.fromkeys(REASONS, False)  # at the last successful check
        self._data_dir = data_dir
        self._filesystem = filesystem if filesystem is not None else FileSystem()
        self._changed = changed
        self.on_change: Callable[[str, bool], object] = _do_nothing
        self.listeners: list[Callable[[], None]] = []
        self.is_store_slow: Callable[[], bool] | None = None
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def limit_memory_share(self, share: float) -> None:
        """Set the memory limit as a share of the total, 0 to 1. Applies from the next check."""
        self._memory_share, self._memory_bytes = share, 0
        self._limit_memory()

    def apply_config(self, limits: LimitSettings, former: LimitSettings | None = None) -> None:
        """Apply the limits of the settings, from the next check.

        Args:
            former: the settings applied before. Values that did not change are left alone, because amqpctl may have
                changed the limits since.
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
        """Set the memory limit in bytes. rabbit: at most the total memory."""
        self._memory_share, self._memory_bytes = 0.0, limit_bytes
        self._limit_memory()

    def _limit_memory(self) -> None:
        asked_bytes = self._memory_bytes or int(self.memory_total_bytes * self._memory_share)
        self.memory_limit_bytes = min(asked_bytes, self.memory_total_bytes)

    def _follow_total(self) -> None:
        """Read the total memory again: the limit of a container can change while it runs. Cost: 0.1 ms."""
        try:
            total_bytes = total_memory_bytes()
        except OSError:  # no free descriptor
            return
        if total_bytes != self.memory_total_bytes:
            log.info("the memory of the machine or cgroup is now %d bytes", total_bytes)
            self.memory_total_bytes = total_bytes
            self._limit_memory()

    def raise_by_hand(self, kind: str) -> None:
        """Raise an alarm now, until `clear_by_hand`. The kind is memory or disk."""
        self.raised_by_hand.add(kind)
        self.check()

    def clear_by_hand(self, kind: str) -> None:
        """Clear an alarm raised by hand. It continues if it also has a cause."""
        self.raised_by_hand.discard(kind)
        self.check()

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._ticks_left -= 1
        if not self._ticks_left:
            self._ticks_left = TOTAL_TICKS
            self._follow_total()
        self.check()

    def check(self) -> None:
        """Check memory and disk now. Cost: 20 us."""
        try:
            self.memory_used_bytes = resident_bytes()
            self.disk_free_bytes = self._filesystem.free_bytes(str(self._data_dir))
        except OSError as error:  # for example no free descriptor; keep the last result
            log.warning("memory and disk cannot be checked: %s", error)
        else:
            self._low["memory"] = self.memory_used_bytes > self.memory_limit_bytes
            self._low["disk"] = self.disk_free_bytes < self.disk_free_limit_bytes
        found = {kind: low or kind in self.raised_by_hand for kind, low in self._low.items()}
        if self.is_store_slow is not None:
            found[STORE] = self.is_store_slow()
        # New alarms first: if one follows another directly, publishers stay paused.
        for kind, on in sorted(found.items(), key=lambda item: not item[1]):
            self.set_alarm(kind, on)

    def set_alarm(self, kind: str, on: bool) -> None:
        """Begin or end the alarm of a kind: memory, disk or store."""
        if on == (kind in self.raised):
            return
        self.on_change(kind, on)
        if on:
            self.raised[kind] = _TEXTS[kind]
            log.warning("alarm: %s; publishers are blocked", _TEXTS[kind])
            if len(self.raised) == 1:
                self._changed(_TEXTS[kind])
        else:
            del self.raised[kind]
            log.warning("alarm ended: %s", _TEXTS[kind])
            if not self.raised:
                self._changed("")
        for listener in self.listeners:
            listener()


def _do_nothing(_kind: str, _on: bool) -> None:
    """Do nothing."""


@cache
def _statm() -> int:
    """Return a descriptor that stays open, so that the check works without free descriptors."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def resident_bytes() -> int:
    """Return the resident memory of the process without file mappings."""
    _, resident, shared, *_ = os.pread(_statm(), 256, 0).split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def total_memory_bytes() -> int:
    """Return the memory of the machine, or the lowest limit of the cgroups above this process if it is lower.

    Raises OSError if no descriptor is free to read the limits.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _cgroup_limits():
        try:
            text = path.read_text().strip()
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise
            continue  # not mounted, or a container sees its own cgroup as the root
        if text.isdigit():
            total = min(total, int(text))
    return total


def _cgroup_limits() -> Iterator[Path]:
    """Yield the files with memory limits, of version 2 and version 1, from the process's cgroup to the root."""
    try:
        lines = os.fsdecode(_OWN_CGROUPS.read_bytes()).splitlines()
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        _, controllers, name = line.split(":", 2)
        group = Path(name.lstrip("/"))
        for each in (group, *group.parents):
            if not controllers:
                yield _CGROUPS / each / "memory.max"
            elif "memory" in controllers.split(","):
                yield _CGROUPS / "memory" / each / "memory.limit_in_bytes"


# Bytes that a connection can send before it is checked again.
READ_BYTES: Final = 256 * 1024


class BodyReader(Protocol):
    """A connection that receives a message body."""

    def read_bodies(self, on: bool) -> None:
        """Allow or stop reading, as far as bodies are concerned. Can be called repeatedly with the same value."""


class PartialBodyMemory:
    """The memory of incomplete message bodies of all connections. One per broker.

    Above the budget, only the connection with the oldest incomplete body is read; the others with incomplete bodies
    are paused. When there is room again, they continue, oldest first. So one message can always complete. Memory use
    is at most twice the budget plus one read per connection.

    Attributes:
        limit_bytes: the budget.
        full: a connection is paused.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.kept_bytes = 0
        # Oldest body first. Value: bytes of the connection's bodies, serial number of its oldest body.
        self._readers: dict[BodyReader, tuple[int, int]] = {}
        self.full = False

    def __len__(self) -> int:
        """Return the number of connections with incomplete bodies."""
        return len(self._readers)

    def update(self, reader: BodyReader, kept_bytes: int, oldest: int) -> None:
        """Update a connection after a read.

        Args:
            kept_bytes: bytes of its incomplete bodies.
            oldest: serial number of the oldest one; 0 if there is none.

        Cost: a dict look-up; linear in the connections with bodies while some are paused.
        """
        before, serial = self._readers.get(reader, (0, 0))
        self.kept_bytes += kept_bytes - before
        if serial and serial != oldest:
            # The connection's other bodies are newer, so it moves to the end.
            del self._readers[reader]
            if self.full:
                reader.read_bodies(True)
        if oldest:
            self._readers[reader] = kept_bytes, oldest
        if self.full or self.kept_bytes > self.limit_bytes:
            self._apply_budget()

    def _apply_budget(self) -> None:
        room = self.limit_bytes - self.kept_bytes
        self.full = False
        for number, reader in enumerate(self._readers):
            reads = number == 0 or room >= READ_BYTES
            room -= READ_BYTES
            reader.read_bodies(reads)
            if not reads:
                self.full = True
