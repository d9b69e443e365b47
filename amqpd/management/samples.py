"""Samples: what a counter was at moments of the last hours, for those who draw curves.

A request says how far back and how close together: `msg_rates_age=60&msg_rates_incr=5`, and so `lengths_`,
`data_rates_`, `node_stats_`. The last ten minutes are kept every five seconds, and beside them a longer time at larger
steps: of each object an hour, every minute; of the whole node and of vhosts a day as well, every half hour, and eight
hours of it every ten minutes. rabbit: its sample_retention_policies; newest first, at multiples of the increment, times
in ms.

A moment is answered from the finest step that reaches back to it. Between two samples that follow each other within
GAP_S, or a step and a half, it is on the line from one to the other. Any other moment is left out of the answer: before
the first sample, and where nothing was sampled. `recorded_since` is the time of the first sample.

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
GAP_S: Final = 75
"""Sweeps are at most a minute apart, and some seconds late."""
POLICIES: Final = {"global": GLOBAL, "basic": BASIC, "detailed": DETAILED}
"""By RabbitMQ's names: the node and its vhosts; queues, exchanges, channels, connections; pairs of these."""


class SampleRange(NamedTuple):
    """Seconds."""

    age: int
    increment: int


class SampleRanges(NamedTuple):
    """What of an answer is to come with samples; None: rates alone."""

    rates: SampleRange | None
    lengths: SampleRange | None
    octets: SampleRange | None
    node: SampleRange | None = None


NO_SPANS: Final = SampleRanges(None, None, None)
SamplePoint = tuple[int, Sequence[int]]
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

    def between(self, moment: float, now: float, current: Sequence[int]) -> Sequence[int] | None:
        """Return the counters at a moment that is not before the first sample; None: it is in a gap.

        current: what they are now, which counts as the last sample.
        """
        times = self.times
        index = bisect_right(times, moment) - 1
        before, counts = times[index], self._at(index)
        after, following = now, current
        if index + 1 < len(times):
            after, following = times[index + 1], self._at(index + 1)
        if moment == before:
            return counts
        if after - before > max(GAP_S, 1.5 * self._step.every_s):
            return None
        if counts == following:
            return counts
        share = (moment - before) / (after - before) if after > before else 0.0
        return [was + int((count - was) * share) for was, count in zip(counts, following, strict=True)]

    def _at(self, index: int) -> Sequence[int]:
        return self._values[index * self._width : (index + 1) * self._width]


class History:
    """The samples of one object. kind: of its counters. asked_at: when a request wanted them last, seconds. since: when
    the first was taken, seconds since 1970.

    counts: as they are now; steps: of POLICIES.
    """

    def __init__(self, now: float, kind: int, counts: Sequence[int], steps: Sequence[Step] = BASIC) -> None:
        self.kind = kind
        self.asked_at = self.since = now
        self._tracks = [_Track(step, len(counts)) for step in steps]
        self.add(now, counts)

    def add(self, now: float, counts: Sequence[int]) -> None:
        """What they are now. Cost: 2 us."""
        for track in self._tracks:
            track.add(now, counts)

    def size_bytes(self) -> int:
        return sum(track.size_bytes() for track in self._tracks)

    def moments(self, span: SampleRange, now: float, current: Sequence[int]) -> list[SamplePoint]:
        """Newest first, those of the span that were recorded; the newest is always there, as `current`.

        now: seconds since 1970. Cost: 6 us each, 2 us where nothing changed.
        """
        at = int(now) // span.increment * span.increment
        found: list[SamplePoint] = [(at * 1000, current)]
        for _ in range(span.age // span.increment):
            at -= span.increment
            counts = self._at(at, now, current)
            if counts is not None:
                found.append((at * 1000, counts))
        return found

    def _at(self, moment: float, now: float, current: Sequence[int]) -> Sequence[int] | None:
        for track in self._tracks:
            if track.times[0] <= moment:
                return track.between(moment, now, current)
        return None


def details(moments: Sequence[SamplePoint], index: int, since: float) -> dict[str, Any]:
    """Return `samples`, `avg`, `avg_rate` and `recorded_since` of one counter, by its place among the object's.

    since: when the object's first sample was taken, seconds since 1970.
    """
    samples = [{"sample": counts[index], "timestamp": at} for at, counts in moments]
    first, last = samples[-1], samples[0]
    seconds = (last["timestamp"] - first["timestamp"]) / 1000
    return {
        "samples": samples,
        "avg_rate": (last["sample"] - first["sample"]) / seconds if seconds else 0.0,
        "avg": sum(each["sample"] for each in samples) / len(samples),
        "recorded_since": int(since * 1000),
    }
