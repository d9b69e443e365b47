"""Limits of one vhost or user. limits.py sets and stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"
QUEUES: Final = "max-queues"
# Quotas of Kafka's clients, with Kafka's names: bytes a second.
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"


class Limits:
    """An immutable set of limits. `value` keeps the order in which they were set."""

    def __init__(self, value: Mapping[str, int]) -> None:
        self.value = dict(value)

    def allow(self, name: str, count: int) -> bool:
        """Return whether one more is allowed if there are `count` already."""
        limit = self.value.get(name, -1)
        return limit < 0 or count < limit


NO_LIMITS: Final = Limits({})
"""No limit is set."""
