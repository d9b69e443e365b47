"""Samples: what a counter was at moments of the last hours, for those who draw curves.

A request says how far back and how close together: `msg_rates_age=60&msg_rates_incr=5`, and so `lengths_`,
`data_rates_`, `node_stats_`. The last ten minutes are kept every five seconds, and beside them a longer time at larger
steps: of each object an hour, every minute; of the whole node and of vhosts a day as well, every half hour, and eight
hours of it every ten minutes. rabbit: its sample_retention_policies; newest first, at multiples of the increment, times
in ms.

A moment is answered from the finest step that reaches back to it. Before all there is the oldest one stands.

Memory: 8 bytes a counter and sample, and 8 for its time: 182 samples of a queue's 11 counters are 17 KB, 280 of a
vhost's 17 are 40 KB. They grow to that as time goes on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple


class Step(NamedTuple):
    """every_s: how far apart samples are; age_s: how far they reach back."""

    every_s: int
    age_s: int


DETAILED: Final = (Step(5, 600),)
BASIC: Final = (*DETAILED, Step(60, 3600))
GLOBAL: Final = (*BASIC, Step(600, 28800), Step(1800, 86400))
POLICIES: Final = {"global": GLOBAL, "basic": BASIC, "detailed": DETAILED}
"""By RabbitMQ's names: the node and its vhosts; queues, exchanges, channels, connections; pairs of these."""


class Span(NamedTuple):
    """Seconds."""

    age: int
    increment: int


class Spans(NamedTuple):
    """What of an answer is to come with samples; None: rates alone."""

    rates: Span | None
    lengths: Span | None
    octets: Span | None
    node: Span | None = None


NO_SPANS: Final = Spans(None, None, None)
Moment = tuple[int, Sequence[int]]
"""Milliseconds since 1970, and what the counters were."""


class _Track:
    """Samples of one step, oldest first; the counters of one sample lie together in `values`."""

    def __init__(self, step: Step, width: int) -> None:
        self._step = step
        self._width = width
        self.times = array("d")
        self._values = array("q")

    def add(self, now: float, counts: Sequence[int]) -> None:
        # A sweep comes a little sooner or later: half a second early is no reason to leave a step out.
        if self.times and now < self.times[-1] + self._step.every_s - 0.5:
            return
        self.times.append(now)
        self._values.extend(counts)
        if len(self.times) > self._step.age_s // self._step.every_s + 1:
            del self.times[0]
            del self._values[: self._width]

    def size_bytes(self) -> int:
        return 8 * (len(self.times) + len(self._values))

    def at(self, index: int) -> Sequence[int]:
        return self._values[index * self._width : (index + 1) * self._width]


class History:
    """Of one object. kind: of its counters, for who keeps it. asked_at: when somebody wanted it last, seconds.

    counts: as they are now; steps: of POLICIES.
    """

    def __init__(self, now: float, kind: int, counts: Sequence[int], steps: Sequence[Step] = BASIC) -> None:
        self.kind = kind
        self.asked_at = now
        self._tracks = [_Track(step, len(counts)) for step in steps]
        self.add(now, counts)

    def add(self, now: float, counts: Sequence[int]) -> None:
        """What they are now. Cost: 2 us."""
        for track in self._tracks:
            track.add(now, counts)

    def size_bytes(self) -> int:
        return sum(track.size_bytes() for track in self._tracks)

    def moments(self, span: Span, now: float, current: Sequence[int]) -> list[Moment]:
        """Newest first, so many as the span asks for; now: seconds since 1970. Cost: 1 us each."""
        at = int(now) // span.increment * span.increment
        found: list[Moment] = []
        for _ in range(span.age // span.increment + 1):
            newest = not found and self._tracks[0].times[-1] <= at
            found.append((at * 1000, current if newest else self._at(at)))
            at -= span.increment
        return found

    def _at(self, moment: float) -> Sequence[int]:
        for track in self._tracks:
            index = bisect_right(track.times, moment) - 1
            if index >= 0:
                return track.at(index)
        return self._tracks[-1].at(0)


def details(moments: Sequence[Moment], index: int, span: Span) -> dict[str, Any]:
    """`samples`, `avg`, `avg_rate` of one counter, by its place among the object's."""
    samples = [{"sample": counts[index], "timestamp": at} for at, counts in moments]
    first, last = samples[-1]["sample"], samples[0]["sample"]
    total = sum(each["sample"] for each in samples)
    return {"samples": samples, "avg_rate": (last - first) / span.age, "avg": total / len(samples)}
