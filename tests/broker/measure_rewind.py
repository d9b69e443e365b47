"""Measure rewinds: `python tests/broker/measure_rewind.py DIRECTORY [COUNT]`. It is not a test.

A queue with COUNT (200,000) messages of 1 KiB, all acked, is rewound completely and with a selector that matches every
third message. A disk thread syncs, as in a broker. Output: messages per second from begin to ready, the longest call
of the loop in wall-clock and processor time, that call, and memory.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from pathlib import Path
from typing import Any

from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.routing.selector import parse_selector
from amqpd.storage.filesystem import Clock
from amqpd.storage.storage import Storage

sys.path.insert(0, str(Path(__file__).parent))
import conftest

BODY = b"." * 1024


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
    conftest_module: Any = conftest
    conftest_module.Storage = lambda *given, **named: Storage(*given, **named | {"inline": False})
    room = conftest_module.Room(Path(sys.argv[1]))
    real = Clock()
    room.clock.time_ms, room.clock.monotonic = real.time_ms, real.monotonic
    gc.disable()
    queue = room.queue("q", x_retain="1h")
    queue.store.log.segment_size_bytes = 64 << 20
    for number in range(count):
        room.publish("q", BODY, headers={"n": number % 3}, turn=False)
        if number % 1000 == 999:
            room.turn.schedule()
            room.turns()
    for where in ("", "n = 1"):
        queue.purge()
        room.turn.schedule()
        room.turns()
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        job = jobs.begin(JobRequest("rewind", room.vhost, queue, selector=parse_selector(where) if where else None))
        longest, longest_cpu, longest_call = 0.0, 0.0, ""
        while not job.ended_ms:
            calls = []
            while room._soon:
                calls.append(room._soon.pop(0))
            due = [entry for entry in room._later if entry[0] <= room.clock.monotonic()]
            room._later = [entry for entry in room._later if entry not in due]
            calls += [call for _, call in due]
            if not calls:
                time.sleep(0.0005)
            for call in calls:
                at, at_cpu = time.perf_counter(), time.thread_time()
                call()
                longest = max(longest, time.perf_counter() - at)
                if time.thread_time() - at_cpu > longest_cpu:
                    longest_cpu, longest_call = time.thread_time() - at_cpu, repr(call)
        total_s = time.perf_counter() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"{where or 'all':8} {job.state} {job.done_count} of {count}: {count / total_s:,.0f} looked at a second, "
            f"longest call {longest * 1000:.1f} ms, {longest_cpu * 1000:.1f} ms of processor ({longest_call}), "
            f"peak memory + {grown / 1024:.0f} MB"
        )
    room.storage.close(clean=False)


main()
