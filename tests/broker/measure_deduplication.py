"""Measure x-message-deduplication: `python tests/broker/measure_deduplication.py DIRECTORY [COUNT]`. It is not a test.

COUNT (a million) ids are published, then each once more. Output: memory per id, in memory and on disk (rows of the
metadata not counted), and the cost that the exchange adds to a message and to a duplicate.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

from amqpd.broker.consumer import Destination
from amqpd.broker.message import MessageRoute, make_message
from amqpd.broker.publish.deduplication import CacheEntry, DeduplicationCache
from amqpd.broker.publish.exchange_state import MetadataCacheStore
from amqpd.storage.metadata.rows import SeenCacheRow

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Room

TRANSIENT = make_message(MessageRoute("x", "k"), b"\x00\x00", b"body", False, None)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(room: Any, label: str, count: int, store: MetadataCacheStore | None) -> None:
    gc.collect()
    bound = [Destination()]
    before = resident_bytes()
    cache = DeduplicationCache(room.turn, room.timers, count, 0, store)
    started = time.thread_time()
    for number in range(count):
        *targets, entry = cache.route_once(f"order-{number:010d}", None, bound)
        assert isinstance(entry, CacheEntry)
        entry.accepts_with(targets)
        entry.enqueue(TRANSIENT)
        if store is not None:
            store.put([entry], lambda done: None)
    first_s = time.thread_time() - started
    grown = resident_bytes() - before
    started = time.thread_time()
    for number in range(count):
        assert not cache.route_once(f"order-{number:010d}", None, bound)
    duplicate_s = time.thread_time() - started
    each = 1_000_000 / count
    costs = f"{first_s * each:.2f} us, a copy {duplicate_s * each:.2f} us"
    sys.stdout.write(f"{label}: {grown / count:.0f} bytes an id, {costs}\n")


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    room: Any = Room(Path(sys.argv[1]))
    rows = MetadataCacheStore(SeenCacheRow("c", "/", "x"), lambda changes, done: done(None), room.timers)
    for label, store in (("memory", None), ("disk", rows)):
        process = os.fork()  # a process of its own: neither reuses memory that the other has freed
        if process == 0:
            measure(room, label, count, store)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(process, 0)
    room.storage.close(clean=False)


if __name__ == "__main__":
    main()
