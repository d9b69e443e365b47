"""Members of a consumer group of kafka-python, polled at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def poll_until(is_done: Callable[[], bool], *members: Any, timeout_s: float = 90) -> None:
    """Poll each member in a thread of its own until the condition holds. Raises TimeoutError.

    kafka-python 3.0.12 joins again when the answer to its JoinGroup comes between two calls of `poll`. Two members that
    one thread polls by turns do that to each other without end.
    """
    done = threading.Event()

    def poll(member: Any) -> None:
        while not done.is_set():
            member.poll(timeout_ms=500, max_records=1)

    with ThreadPoolExecutor(len(members)) as pool:
        polled = [pool.submit(poll, each) for each in members]
        deadline_s = time.monotonic() + timeout_s
        try:
            while not is_done():
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"assigned after {timeout_s} s: {[each.assignment() for each in members]}")
                time.sleep(0.01)
        finally:
            done.set()
        for each in polled:
            each.result()
