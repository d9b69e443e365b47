"""Figures of x-message-deduplication (not a test): python tests/broker/measure_seen.py DIRECTORY [COUNT]

So many ids (a million) come, then each once more. Told: memory for each id, without and with the rows of a cache on
disk (those of the metadata not counted), and what the exchange adds to a message, the first time and as a copy.
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
from amqpd.broker.publish.deduplication import CacheEntry, CacheStore, DeduplicationCache
from amqpd.broker.publish.exchange_state import MetadataCacheStore
from amqpd.storage.metadata.store import SeenCacheRow

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Room

TRANSIENT = make_message(MessageRoute("x", "k"), b"\x00\x00", b"body", False, None)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(room: Any, what: str, count: int, store: CacheStore | None) -> None:
    gc.collect()
    bound = [Destination()]
    before = resident_bytes()
    seen = DeduplicationCache(room.turn, room.timers, count, 0, store)
    began = time.thread_time()
    for number in range(count):
        *targets, note = seen.route_once(f"order-{number:010d}", None, bound)
        assert isinstance(note, CacheEntry)
        note.accepts_with(targets)
        note.enqueue(TRANSIENT)
        if store is not None:
            store.put([note], lambda done: None)
    first_s = time.thread_time() - began
    grown = resident_bytes() - before
    began = time.thread_time()
    for number in range(count):
        assert not seen.route_once(f"order-{number:010d}", None, bound)
    copy_s = time.thread_time() - began
    each = 1_000_000 / count
    costs = f"{first_s * each:.2f} us, a copy {copy_s * each:.2f} us"
    sys.stdout.write(f"{what}: {grown / count:.0f} bytes an id, {costs}\n")


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    room: Any = Room(Path(sys.argv[1]))
    rows = MetadataCacheStore(SeenCacheRow("c", "/", "x"), lambda changes, done: done(None), room.timers)
    for what, store in (("memory", None), ("disk", rows)):
        process = os.fork()  # neither uses what the other has freed
        if process == 0:
            measure(room, what, count, store)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(process, 0)
    room.storage.close(clean=False)


if __name__ == "__main__":
    main()
