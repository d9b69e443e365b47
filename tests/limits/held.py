"""A broker that notes the most processor time its loop took from one look at its sockets to the next, in ms, since it
was asked to begin anew (NOTES.begin): `python held.py NOTES OPTION...`.

The loop is asyncio's, where uvloop serves else: what one iteration does is the broker's, and can be timed from outside.
Processor time, so that it does not count what else the machine does; less what Python's collector took, which comes by
after so many new objects, whoever made the last of them (README.md has its figure).
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


def collects(phase: str, info: dict[str, int]) -> None:
    global collected_s
    collected_s += time.thread_time() if phase == "stop" else -time.thread_time()


gc.callbacks.append(collects)


class Noting(asyncio.SelectorEventLoop):
    most_s = 0.0

    def _run_once(self) -> None:
        began_s = time.thread_time() - collected_s
        super()._run_once()  # type: ignore[misc]  # the only place that every iteration passes
        took_s = time.thread_time() - collected_s - began_s
        if BEGIN.exists():
            BEGIN.unlink()
            self.most_s = 0.0
            NOTES.write_text("0")
        elif took_s > self.most_s:
            self.most_s = took_s
            NOTES.write_text(f"{took_s * 1000:.2f}")


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=Noting) as runner:
        return runner.run(main)


uvloop.run = run  # type: ignore[assignment]

from amqpd.__main__ import main  # noqa: E402

sys.exit(main())
