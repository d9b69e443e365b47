"""A broker that records the longest iteration of its loop: `python held.py NOTES OPTION...`.

NOTES gets the most processor time of one iteration, in ms, since the file NOTES.begin last appeared. The loop is
asyncio's instead of uvloop: one iteration does the same work and can be timed from outside.

Processor time excludes other load of the machine. The time of Python's garbage collector is subtracted: the
collector runs after many new objects, not only those of the measured iteration (README.md has its figure).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop

NOTES: Final = Path(sys.argv.pop(1))
BEGIN: Final = NOTES.with_suffix(".begin")


collected_s = 0.0


def on_collection(phase: str, info: dict[str, int]) -> None:
    global collected_s
    collected_s += time.thread_time() if phase == "stop" else -time.thread_time()


gc.callbacks.append(on_collection)


class TimedLoop(asyncio.SelectorEventLoop):
    longest_s = 0.0

    def _run_once(self) -> None:
        start_s = time.thread_time() - collected_s
        super()._run_once()  # type: ignore[misc]  # every iteration runs this method
        took_s = time.thread_time() - collected_s - start_s
        if BEGIN.exists():
            BEGIN.unlink()
            self.longest_s = 0.0
            NOTES.write_text("0")
        elif took_s > self.longest_s:
            self.longest_s = took_s
            NOTES.write_text(f"{took_s * 1000:.2f}")


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        return runner.run(main)


uvloop.run = run  # type: ignore[assignment]

from amqpd.__main__ import main  # noqa: E402

sys.exit(main())
