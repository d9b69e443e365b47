"""Samples: what a counter was at moments of the last ten minutes, for those who draw curves.

A request says how far back and how close together: `msg_rates_age=60&msg_rates_incr=5`, and so `lengths_`,
`data_rates_`. An object's samples are kept from the first request for them until nobody has asked for ten minutes, one
each five seconds; of before that moment the oldest one stands. rabbit: newest first, at multiples of the increment,
times in ms.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

KEPT: Final = 121


class Span(NamedTuple):
    """Seconds."""

    age: int
    increment: int


class Spans(NamedTuple):
    """What of an answer is to come with samples; None: rates alone."""

    rates: Span | None
    lengths: Span | None
    octets: Span | None


NO_SPANS: Final = Spans(None, None, None)


class History:
    """Of one object: the newest counts at the right. asked_at: when somebody wanted them last, seconds."""

    def __init__(self, now: float, counts: tuple[int, ...]) -> None:
        self.asked_at = now
        self.kept: deque[tuple[float, tuple[int, ...]]] = deque([(now, counts)], KEPT)

    def add(self, now: float, counts: tuple[int, ...]) -> None:
        before = self.kept[-1][1]
        # Those that stand still share one tuple.
        self.kept.append((now, before if counts == before else counts))

    def details(self, index: int, span: Span, now: float, current: int) -> dict[str, Any]:
        """`samples`, `avg`, `avg_rate` of one counter. now: seconds since 1970. Cost: what is kept and the samples."""
        at = int(now) // span.increment * span.increment
        samples: list[dict[str, int]] = []
        place = len(self.kept) - 1
        kept = self.kept
        for _ in range(span.age // span.increment + 1):
            while place > 0 and kept[place][0] > at:
                place -= 1
            value = current if not samples and kept[-1][0] <= at else kept[place][1][index]
            samples.append({"sample": value, "timestamp": at * 1000})
            at -= span.increment
        first, last = samples[-1]["sample"], samples[0]["sample"]
        total = sum(each["sample"] for each in samples)
        return {"samples": samples, "avg_rate": (last - first) / span.age, "avg": total / len(samples)}
