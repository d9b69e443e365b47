"""When the heap is looked through: once for many that are gone, and not for few."""

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


def test_once_for_all_that_went_meanwhile() -> None:
    loop: Any = Loop()
    trims: list[int] = []
    give_back = MallocTrimmer(loop, lambda pad: trims.append(pad) or 1)
    for _ in range(GONE_BYTES_MIN // CONNECTION_BYTES):
        give_back.on_closed(0)
    assert loop.timers == []
    for _ in range(100):
        give_back.on_closed(1_000_000)
    ((delay_s, call),) = loop.timers
    assert delay_s == WAIT_S
    loop.timers.clear()
    call()
    assert trims == [0]
    give_back.on_closed(1000)
    assert loop.timers == []
    give_back.on_closed(GONE_BYTES_MIN)
    assert len(loop.timers) == 1
    give_back.stop()
    assert loop.timers == []


def test_the_free_lists_are_emptied_once_for_many_that_went_together() -> None:
    loop: Any = Loop()
    done: list[str] = []
    give_back = MallocTrimmer(loop, lambda _: done.append("trim") or 1, lambda: done.append("collect"))

    def went(count: int) -> list[str]:
        done.clear()
        for number in range(count):
            give_back.on_closed(GONE_BYTES_MIN if number == 0 else 0)
        loop.timers.pop()[1]()
        return done

    for _ in range(3 * FEWER_MIN):
        give_back.on_opened()
    assert went(FEWER_MIN - 1) == ["trim"]
    assert went(1) == ["collect", "trim"]
    assert went(1) == ["trim"]
    for _ in range(FEWER_MIN):
        # The others come and go, one at a time.
        give_back.on_opened()
        give_back.on_closed(0)
    assert went(1) == ["trim"]
    assert went(FEWER_MIN) == ["collect", "trim"]


def test_a_c_library_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert malloc_trim() is None
    loop: Any = Loop()
    MallocTrimmer(loop, malloc_trim()).on_closed(10 * GONE_BYTES_MIN)
    assert loop.timers == []


def test_this_one_has_it() -> None:
    """Linux with glibc, where it is developed; else the test above is all there is."""
    trim = malloc_trim()
    assert trim is None or trim(0) in (0, 1)
