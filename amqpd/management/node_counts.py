"""What is counted of the process, for `/nodes`: what the kernel says of it, and the collector's runs.

rabbit: of Erlang's runtime; threads stand for its processes. Files are all that is open, connections among them. A sync
is one of the group commit, in which logs go together.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqpd.metrics import disk_free_bytes

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.connection.registry import Connections

NODE_COUNTERS: Final = (
    *("mem_used", "disk_free", "fd_used", "sockets_used", "proc_used", "gc_num", "context_switches"),
    *("io_read_bytes", "io_read_count", "io_write_bytes", "io_write_count", "io_sync_count", "io_sync_us"),
)
_FILES: Final = "/proc/self/fd"
_RESIDENT: Final = Path("/proc/self/statm")
IO: Final = Path("/proc/self/io")
_PAGE_BYTES: Final = resource.getpagesize()


class NodeCounts:
    """Of this node."""

    def __init__(self, broker: Broker, connections: Connections) -> None:
        self._broker = broker
        self._connections = connections

    def counts(self) -> tuple[int, ...]:
        """In the order of NODE_COUNTERS. Cost: some 100 us and 0.3 us per open file."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        io = numbers(IO)
        syncs = self._broker.storage.sync_times
        return (
            int(_RESIDENT.read_text("ascii").split()[1]) * _PAGE_BYTES,
            disk_free_bytes(self._broker.settings.data_dir),
            len(os.listdir(_FILES)),  # noqa: PTH208  # no Path for each of 20,000 files
            len(self._connections.by_name),
            threading.active_count(),
            sum(each["collections"] for each in gc.get_stats()),
            usage.ru_nvcsw + usage.ru_nivcsw,
            *(io.get(name, 0) for name in ("read_bytes", "syscr", "write_bytes", "syscw")),
            *(syncs.count, int(syncs.total_s * 1_000_000)),
        )


def numbers(path: Path) -> dict[str, int]:
    """Lines of `name: number` of a file of /proc; empty where the kernel does not say."""
    try:
        text = path.read_text("ascii")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found
