"""Samples of counters over the last hours, for charts.

A request gives range and increment in seconds, such as `msg_rates_age=60&msg_rates_incr=5`; other prefixes are
`lengths_`, `data_rates_` and `node_stats_`. Samples are stored at several steps (RabbitMQ:
sample_retention_policies):

- all objects: 10 minutes at 5 s, one hour at 1 minute
- the node and vhosts also: 8 hours at 10 minutes, one day at 30 minutes

Answers are ordered newest first, at multiples of the increment, with times in ms (RabbitMQ). Each moment is taken
from the finest step that reaches back to it. Between two samples it is interpolated, if they are at most GAP_S or one
and a half steps apart. Moments in larger gaps and before the first sample are left out. `recorded_since` is the time
of the first sample.

Memory grows to 8 bytes per counter and sample, and 8 per sample for its time. A queue (11 counters, 182 samples)
takes 17 KB, a vhost (17 counters, 280 samples) 40 KB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple


class Step(NamedTuple):
    """A step of samples.

    Attributes:
        every_s: interval between samples.
        age_s: age of the oldest sample.
    """

    every_s: int
    age_s: int


DETAILED: Final = (Step(5, 600),)
BASIC: Final = (*DETAILED, Step(60, 3600))
GLOBAL: Final = (*BASIC, Step(600, 28800), Step(1800, 86400))
GAP_S: Final = 75
"""Sweeps run at most a minute apart and can be some seconds late."""
POLICIES: Final = {"global": GLOBAL, "basic": BASIC, "detailed": DETAILED}
"""Steps by RabbitMQ's names: the node and vhosts; queues, exchanges, channels, connections; pairs of these."""


class SampleRange(NamedTuple):
    """A range and its increment in seconds."""

    age: int
    increment: int


class SampleRanges(NamedTuple):
    """The ranges that a request asks for. None: rates without samples."""

    rates: SampleRange | None
    lengths: SampleRange | None
    octets: SampleRange | None
    node: SampleRange | None = None


NO_SPANS: Final = SampleRanges(None, None, None)
SamplePoint = tuple[int, Sequence[int]]
"""Milliseconds since 1970, and the values of the counters."""


class _Track:
    """The samples of one step, oldest first. `values` contains the counters of all samples one after another."""

    def __init__(self, step: Step, width: int) -> None:
        self._step = step
        self._width = width
        self.times = array("d")
        self._values = array("q")

    def add(self, now: float, counts: Sequence[int]) -> None:
        # Sweeps are not exact: a sample that is half a second early is not skipped.
        if self.times and now < self.times[-1] + self._step.every_s - 0.5:
            return
        self.times.append(now)
        self._values.extend(counts)
        if len(self.times) > self._step.age_s // self._step.every_s + 1:
            del self.times[0]
            del self._values[: self._width]

    def between(self, moment: float, now: float, current: Sequence[int]) -> Sequence[int] | None:
        """Return the counters at a moment that is not before the first sample, or None if it is in a gap.

        Args:
            current: the current counters, used as the last sample.
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
    """The samples of one object.

    Attributes:
        kind: kind of the counters.
        asked_at: time of the last request for samples, seconds.
        since: time of the first sample, seconds since 1970.
    """

    def __init__(self, now: float, kind: int, counts: Sequence[int], steps: Sequence[Step] = BASIC) -> None:
        self.kind = kind
        self.asked_at = self.since = now
        self._tracks = [_Track(step, len(counts)) for step in steps]
        self.add(now, counts)

    def add(self, now: float, counts: Sequence[int]) -> None:
        """Add the current counters. Cost: 2 us."""
        for track in self._tracks:
            track.add(now, counts)

    def points(self, span: SampleRange, now: float, current: Sequence[int]) -> list[SamplePoint]:
        """Return the recorded points of a range, newest first. The newest is always present: it is `current`.

        `now` is in seconds since 1970. Cost per point: 6 us, or 2 us if the counters did not change.
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
    """Return `samples`, `avg`, `avg_rate` and `recorded_since` of one counter.

    Args:
        index: position of the counter in the samples.
        since: time of the object's first sample, seconds since 1970.
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
