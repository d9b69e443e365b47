"""A set of limits, as a vhost and a user have it. What sets and keeps them: limits.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"
QUEUES: Final = "max-queues"


class Limits:
    """Never changed. value: as it was set, in its order."""

    def __init__(self, value: Mapping[str, int]) -> None:
        self.value = dict(value)

    def allow(self, name: str, count: int) -> bool:
        """Whether one may come where so many are there already."""
        limit = self.value.get(name, -1)
        return limit < 0 or count < limit


NO_LIMITS: Final = Limits({})
"""Nobody has set any."""
