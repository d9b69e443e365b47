"""The process's threads: what processor each has used, in what state the kernel has it, where its Python is. For
`amqpctl runtime_thread_stats` and `maybe_stuck`, which ask twice or oftener and compare.

Source: proc(5), /proc/self/task/*/stat.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from amqpd.management.request import Call, Reply, Role, reply
from amqpd.management.router import Route

TASKS: Final = Path("/proc/self/task")
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
FRAMES_MAX: Final = 3


async def get_threads(_call: Call) -> Reply:
    """Threads of the process, and their processor time. `user_s` and `system_s` since its start, `state` as the kernel
    calls it (R runs, S waits, D waits for a disk), and `at`: the innermost functions, the last called first; empty
    for a thread that is not Python's.
    """
    named = {thread.native_id: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # the one way to see where other threads are
    found: list[dict[str, Any]] = []
    for task in sorted(TASKS.iterdir(), key=lambda path: int(path.name)):
        try:
            # The name, in parentheses, may have spaces in it.
            name, _, rest = (task / "stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        words = rest.split()
        thread = named.get(int(task.name))
        frame = frames.get(thread.ident) if thread is not None and thread.ident is not None else None
        at: list[str] = []
        while frame is not None and len(at) < FRAMES_MAX:
            at.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        found.append(
            {
                "id": int(task.name),
                "name": thread.name if thread is not None else name,
                "state": words[0],
                "user_s": round(int(words[11]) * TICK_S, 3),
                "system_s": round(int(words[12]) * TICK_S, 3),
                "at": at,
            }
        )
    return reply(found)


ROUTES: Final = (Route("GET", "api/amqpd/threads", Role.ADMINISTRATOR, get_threads),)
