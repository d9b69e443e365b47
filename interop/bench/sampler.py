"""Runs amqpd and records the current Python function per millisecond of CPU time: a profile without compilation.

    python -P sampler.py ANSWER.json [options of amqpd]

The script imports nothing of the benchmark, because it runs in the broker's environment. Cost: one microsecond per
sample. Time of the kernel and of C functions counts for the calling Python function, time of other threads for the main
thread's current function. The first CPU_BEFORE_S seconds of CPU time, the start, are left out. ANSWER.json:
{"module function": samples}, written when amqpd has ended.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

CPU_BEFORE_S, EVERY_S = 0.7, 0.001


def main(answer: str, options: list[str]) -> None:
    samples: Counter[str] = Counter()

    def sample(_signal: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is not sample.__code__:
            samples[f"{frame.f_globals.get('__name__')} {frame.f_code.co_qualname}"] += 1

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, CPU_BEFORE_S, EVERY_S)
    sys.argv = ["amqpd", *options]
    try:
        runpy.run_module("amqpd", run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        Path(answer).write_text(json.dumps(samples), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
