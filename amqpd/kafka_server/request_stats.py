"""Counters of the Kafka listener for metrics: bytes, and how long requests take."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class RequestTimes:
    """Times of the requests of one API.

    Attributes:
        counts: by bucket, one more than BOUNDS_S.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0


class RequestStats:
    """Counters of all connections, closed ones included. They only rise.

    Attributes:
        by_api: name of the API -> its times. An API without a request is missing.
    """

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.by_api: dict[str, RequestTimes] = {}

    def on_answered(self, api: str, took_s: float) -> None:
        """Count a request. took_s: from its arrival to its answer, with the wait of Fetch and JoinGroup."""
        times = self.by_api.get(api)
        if times is None:
            times = self.by_api[api] = RequestTimes()
        times.counts[bisect_left(BOUNDS_S, took_s)] += 1
        times.total_s += took_s
