"""Measure the storage; not a test. `python tests/storage/measure.py [DIRECTORY]`, on the disk to measure.

The calls come from interpreted code, which adds 50 to 100 ns to each; from the compiled broker they cost less.
Only this thread's CPU time counts, so that other work of the fsync thread and the machine does not show.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import amqpd.storage.local_log
from amqpd.storage.log.batch import CODECS
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.storage import Storage

COUNT = 200_000
TURN = 500


class Loop:
    def __init__(self) -> None:
        self.posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.posted.append((function, arguments))

    def run(self) -> None:
        while self.posted:
            function, arguments = self.posted.popleft()
            function(*arguments)

    def settle(self, storage: Storage) -> None:
        while storage.commits.unsynced_bytes:
            storage.commits.end_of_turn()
            time.sleep(0.001)
            self.run()


def print_per_call(label: str, seconds: float, count: int) -> None:
    print(f"  {label:34} {seconds / count * 1e9:10.0f} ns")


def one_queue(storage: Storage, loop: Loop, size: int) -> None:
    print(f"{size} bytes, {TURN} in a turn")
    _, store = storage.create_queue("v", "q", "/")
    route = RecordRoute(b"", b"bench-queue")
    source = b"\x10\x00\x02" + b"x" * size
    end = len(source)
    append, settle, clock = store.append, store.ack, time.thread_time
    appending = writing = settling = settled = 0.0
    for _ in range(COUNT // TURN):
        began = clock()
        for _ in range(TURN):
            append(route, source, 0, 3, 3, end, True)
        written = clock()
        storage.commits.end_of_turn()
        appending += written - began
        writing += clock() - written
        loop.run()
    loop.settle(storage)
    print_per_call("append", appending, COUNT)
    print_per_call("end of turn, per record", writing, COUNT)
    began = clock()
    offset = count = 0
    while records := store.cursor.read(offset, 256 * 1024).records:
        offset = records[-1].offset + 1
        count += len(records)
    print_per_call("read on, from the page cache", clock() - began, count)
    for first in range(0, COUNT, TURN):
        began = clock()
        for offset in range(first, first + TURN):
            settle(offset, size)
        written = clock()
        storage.commits.end_of_turn()
        settling += written - began
        settled += clock() - written
        loop.run()
    print_per_call("settle in order", settling, COUNT)
    print_per_call("end of turn, whole", settled, COUNT // TURN)


def backlog(directory: str, loop: Loop) -> None:
    print("a backlog of 1,000,000 x 1 KiB, found after a kill")
    storage = Storage(directory, post=loop.post)
    queue_id, store = storage.create_queue("v", "q", "/")
    route = RecordRoute(b"", b"bench-queue")
    source = b"\x10\x00\x02" + b"x" * 1024
    for _ in range(1_000_000 // TURN):
        for _ in range(TURN):
            store.append(route, source, 0, 3, 3, len(source), True)
        storage.commits.end_of_turn()
        loop.run()
    loop.settle(storage)
    storage.close(clean=False)
    began = time.perf_counter()
    storage = Storage(directory, post=loop.post)
    store = storage.open_queue("v", queue_id)
    store.recover()
    print(f"  {'open, with its record count':34} {(time.perf_counter() - began) * 1e3:10.1f} ms, {store.record_count}")
    storage.close(clean=False)


def many_queues(directory: str, loop: Loop) -> None:
    print("1,000 queues with 100 x 100 bytes each, found after a kill")
    storage = Storage(directory, post=loop.post)
    route = RecordRoute(b"", b"bench-queue")
    source = b"\x10\x00\x02" + b"x" * 100
    queue_ids = []
    for number in range(1000):
        queue_id, store = storage.create_queue("v", f"q{number}", "/")
        queue_ids.append(queue_id)
        for _ in range(100):
            store.append(route, source, 0, 3, 3, len(source), True)
    loop.settle(storage)
    storage.close(clean=False)
    storage = Storage(directory, post=loop.post)
    began = time.thread_time()
    stores = [storage.open_queue("v", queue_id, f"q{number}", "/") for number, queue_id in enumerate(queue_ids)]
    known = time.thread_time()
    for store in stores:
        store.recover()
    print_per_call("known, per queue", known - began, 1000)
    print_per_call("recovered, per queue", time.thread_time() - known, 1000)
    storage.close(clean=False)


def codecs(directory: str, loop: Loop) -> None:
    """Measure each codec with distinct JSON bodies. The longest turn is how long a codec blocked the loop at once."""
    words = ["view", "cart", "order", "refund", "login", "search"]
    draw = random.Random(1)
    bodies = [
        json.dumps(
            {
                "id": f"{draw.getrandbits(64):016x}",
                "user": draw.randrange(100_000),
                "action": draw.choice(words),
                "time": 1_700_000_000_000 + 137 * number,
                "price": round(draw.random() * 100, 2),
                "items": [{"sku": draw.randrange(10**6), "count": draw.randrange(9)} for _ in range(4)],
            }
        ).encode()
        for number in range(20_000)
    ]
    print(f"JSON bodies of {sum(map(len, bodies)) // len(bodies)} bytes, {TURN} in a turn, with a codec")
    storage = Storage(directory, post=loop.post)
    route = RecordRoute(b"events", b"shop.orders")
    for codec, name in enumerate(CODECS):
        _, store = storage.create_queue("v", name, "/", RetentionPolicy(codec=codec))
        appending = longest = 0.0
        for first in range(0, len(bodies), TURN):
            began = time.thread_time()
            for body in bodies[first : first + TURN]:
                store.append_parts(route, b"\x10\x00\x02", body, True)
            store.write()
            took = time.thread_time() - began
            appending += took
            longest = max(longest, took)
            storage.commits.end_of_turn()
            loop.run()
        loop.settle(storage)
        size = sum(segment.size for segment in store.log.segments)
        began = time.thread_time()
        offset = 0
        while (fetch := store.cursor.read(offset, 256 * 1024)).records:
            offset = fetch.next_offset
        reading = time.thread_time() - began
        print_per_call(f"{name}: append and write", appending, len(bodies))
        print_per_call(f"{name}: read", reading, len(bodies))
        print(f"  {'':34} {size / len(bodies):10.1f} bytes a message, longest turn {longest * 1e3:.2f} ms")
    storage.close(clean=False)


def main() -> None:
    print(amqpd.storage.local_log.__file__)
    directory = tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None)
    loop = Loop()
    try:
        storage = Storage(directory + "/one", post=loop.post)
        for size in (16, 1024):
            one_queue(storage, loop, size)
        began = time.thread_time()
        for _ in range(100_000):
            storage.commits.end_of_turn()
        print_per_call("end of turn, nothing to do", time.thread_time() - began, 100_000)
        storage.close(clean=True)
        codecs(directory + "/packed", loop)
        backlog(directory + "/backlog", loop)
        many_queues(directory + "/wide", loop)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
