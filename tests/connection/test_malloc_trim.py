"""malloc_trim after closed connections: once for many, and not for few."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from amqpd.connection.malloc_trim import CONNECTION_BYTES, FEWER_MIN, GONE_BYTES_MIN, WAIT_S, MallocTrimmer, malloc_trim


class Loop:
    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self.timers.append((delay_s, call))
        return self

    def cancel(self) -> None:
        self.timers.clear()


def test_one_trim_for_many_closed_connections() -> None:
    loop: Any = Loop()
    trims: list[int] = []
    trimmer = MallocTrimmer(loop, lambda pad: trims.append(pad) or 1)
    for _ in range(GONE_BYTES_MIN // CONNECTION_BYTES):
        trimmer.on_closed(0)
    assert loop.timers == []
    for _ in range(100):
        trimmer.on_closed(1_000_000)
    ((delay_s, call),) = loop.timers
    assert delay_s == WAIT_S
    loop.timers.clear()
    call()
    assert trims == [0]
    trimmer.on_closed(1000)
    assert loop.timers == []
    trimmer.on_closed(GONE_BYTES_MIN)
    assert len(loop.timers) == 1
    trimmer.stop()
    assert loop.timers == []


def test_collects_garbage_once_after_many_closed_connections() -> None:
    loop: Any = Loop()
    calls: list[str] = []
    trimmer = MallocTrimmer(loop, lambda _: calls.append("trim") or 1, lambda: calls.append("collect"))

    def close_connections(count: int) -> list[str]:
        calls.clear()
        for number in range(count):
            trimmer.on_closed(GONE_BYTES_MIN if number == 0 else 0)
        loop.timers.pop()[1]()
        return calls

    for _ in range(3 * FEWER_MIN):
        trimmer.on_opened()
    assert close_connections(FEWER_MIN - 1) == ["trim"]
    assert close_connections(1) == ["collect", "trim"]
    assert close_connections(1) == ["trim"]
    for _ in range(FEWER_MIN):
        # Other connections open and close, one at a time.
        trimmer.on_opened()
        trimmer.on_closed(0)
    assert close_connections(1) == ["trim"]
    assert close_connections(FEWER_MIN) == ["collect", "trim"]


def test_c_library_without_malloc_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert malloc_trim() is None
    loop: Any = Loop()
    MallocTrimmer(loop, malloc_trim()).on_closed(10 * GONE_BYTES_MIN)
    assert loop.timers == []


def test_glibc_has_malloc_trim() -> None:
    """The development platform, Linux with glibc, has malloc_trim."""
    trim = malloc_trim()
    assert trim is None or trim(0) in (0, 1)
