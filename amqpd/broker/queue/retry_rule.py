"""Which messages that come back wait before they are delivered again, and how long: x-delayed-retry-*, as one value.

A message comes back *failed* (basic.reject with requeue; its channel or connection ended) or *returned* (basic.nack
with requeue, basic.recover, a consumer timeout), which is how RabbitMQ 4.3 tells them apart; the type says which of
them wait. The n-th time it waits `min` x n, `max` at most, which is `min` where it is not given; or by a list of levels
the n-th of them, and the last one from then on. n is the message's delivery count, which every return raises here;
there a nack, a recover or a timeout does not.

Source: https://www.rabbitmq.com/docs/quorum-queues#delayed-retry, and its table of when the delivery count is raised.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.stream_start import interval_ms

TYPES: Final = ("disabled", "all", "failed", "returned")
LEVELS_MAX: Final = 100
COUNT_MAX: Final[i64] = 1 << 20


@final
class RetryRule:
    """failed, returned: whether such a message waits. min_ms, max_ms: as above. levels_ms: not empty: these instead."""

    def __init__(self, failed: bool, returned: bool, min_ms: i64, max_ms: i64, levels_ms: list[int]) -> None:
        self.failed: Final[bool] = failed
        self.returned: Final[bool] = returned
        self.min_ms: Final[i64] = min_ms
        self.max_ms: Final[i64] = max_ms
        self.levels_ms: Final[list[int]] = levels_ms
        longest: i64 = max_ms
        if levels_ms:
            longest = max(levels_ms)
        # No message waits longer.
        self.longest_ms: Final[i64] = longest

    def delay_ms(self, failed: bool, count: i64) -> i64:
        """How long a message waits that came back for the `count`-th time; 0: it does not."""
        if not (self.failed if failed else self.returned):
            return 0
        if count < 1:
            count = 1
        levels = self.levels_ms
        if levels:
            last: i64 = len(levels)
            return levels[(count if count < last else last) - 1]
        # Both are ten years at most, and a count a million: their product is far below 2^63.
        delay_ms = self.min_ms * (count if count < COUNT_MAX else COUNT_MAX)
        return delay_ms if delay_ms < self.max_ms else self.max_ms


def levels_of(value: object) -> list[int] | None:
    """Milliseconds of "1m,5m,30m", or of an array of them: 1 to LEVELS_MAX, each above 0 and ten years at most. None:
    it is no such list.
    """
    levels: list[int] = []
    if isinstance(value, str):
        for part in value.split(","):
            levels.append(interval_ms(part.strip()))
    elif isinstance(value, list):
        for each in value:
            if not isinstance(each, int) or isinstance(each, bool):
                return None
            levels.append(each)
    if not 1 <= len(levels) <= LEVELS_MAX:
        return None
    for level in levels:
        if not 1 <= level <= TTL_MS_MAX:
            return None
    return levels


def is_levels(value: object) -> bool:
    """Whether a policy may say so."""
    return levels_of(value) is not None


def retry_rule(values: Mapping[str, object]) -> RetryRule | None:
    """Of `Rules`, by the names of its fields. None: nothing waits, as no type says so or no time is given."""
    when = values.get("retry_type")
    if when not in TYPES or when == "disabled":
        return None
    failed = when != "returned"
    returned = when != "failed"
    levels = levels_of(values.get("retry_levels"))
    if levels is not None:
        return RetryRule(failed, returned, 0, 0, levels)
    least = values.get("retry_min_ms")
    if not isinstance(least, int):
        return None
    most = values.get("retry_max_ms")
    return RetryRule(failed, returned, least, most if isinstance(most, int) else least, [])
