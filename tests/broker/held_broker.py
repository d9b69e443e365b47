"""A broker that measures how long callbacks block its event loop.

Usage: `python tests/broker/held_broker.py FILE [amqpd's arguments]`. At exit, FILE has the three longest callbacks by
name, with the processor time of the loop's thread. Callbacks of the first START_S seconds do not count. The figures
contain no waiting for the machine or the disk, and not the reads of the loop itself.
"""

from __future__ import annotations

import atexit
import gc
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

START_S = 3.0
longest: dict[str, float] = {}
started = time.monotonic()


def record(name: str, took_s: float) -> None:
    if time.monotonic() - started > START_S and took_s > longest.get(name, 0.0):
        longest[name] = took_s


def timed(function: Callable[..., object]) -> Callable[..., object]:
    name = getattr(function, "__qualname__", type(function).__name__)

    def call(*arguments: object) -> object:
        at = time.thread_time()
        try:
            return function(*arguments)
        finally:
            record(name, time.thread_time() - at)

    return call


class TimedLoop(uvloop.Loop):
    def call_soon(self, callback: Any, *arguments: Any, **more: Any) -> Any:
        return super().call_soon(timed(callback), *arguments, **more)

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, **more: Any) -> Any:
        return super().call_soon_threadsafe(timed(callback), *arguments, **more)

    def call_later(self, delay: float, callback: Any, *arguments: Any, **more: Any) -> Any:
        return super().call_later(delay, timed(callback), *arguments, **more)


class Collector:
    """Measures garbage collections: they can run within any callback."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.at = time.thread_time()
        else:
            record(f"the collector, generation {info['generation']}", time.thread_time() - self.at)


def write_report(file: Path) -> None:
    ordered = sorted(longest.items(), key=lambda each: -each[1])[:3]
    file.write_text("".join(f"held: {took_s * 1000:.1f} ms by {name}\n" for name, took_s in ordered), "utf-8")


if __name__ == "__main__":
    atexit.register(write_report, Path(sys.argv.pop(1)))
    gc.callbacks.append(Collector())
    uvloop.Loop = TimedLoop  # type: ignore[misc]
    runpy.run_module("amqpd", run_name="__main__", alter_sys=True)
