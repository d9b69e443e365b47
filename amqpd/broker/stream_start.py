"""Where a reader of a stream begins (`x-stream-offset`), and RabbitMQ's notation for lengths of time (`7D`)."""

from __future__ import annotations

import re
from typing import Final, final

from mypy_extensions import i64

FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
OFFSET: Final = "offset"
TIME: Final = "time"
AGO: Final = "ago"

_INTERVAL: Final = re.compile(r"([0-9]{1,18})([YMDhms])")
_UNITS_MS: Final = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
}
INTERVAL_MS_MAX: Final = 1 << 60
"""Longer ones count as this: thirty million years."""


@final
class StreamStart:
    """Immutable. kind: FIRST, the oldest message there is; LAST, the last record batch; NEXT, what is published from
    now on; OFFSET, `number` or what comes behind it; TIME, what was appended at `number` (ms since 1970) or later; AGO,
    what is not older than `number` ms.
    """

    def __init__(self, kind: str, number: i64 = 0) -> None:
        self.kind: Final[str] = kind
        self.number: Final[i64] = number


def interval_ms(text: str) -> int:
    """Milliseconds of `5m`, `7D`: a whole number above 0 and Y, M (30 days), D, h, m or s; -1: it is none of these.

    rabbit: a year has 365 days.
    """
    found = _INTERVAL.fullmatch(text)
    if found is None:
        return -1
    ms = int(found[1]) * _UNITS_MS[found[2]]
    return min(ms, INTERVAL_MS_MAX) if ms > 0 else -1
