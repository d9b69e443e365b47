"""A connection's channels by their numbers."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from amqpd.channel.channel import Channel
from amqpd.errors import NotAllowed


@final
class Channels:
    """count_max: as negotiated; 0: no limit. A channel stays until both sides have closed it."""

    def __init__(self) -> None:
        self.by_number: dict[int, Channel] = {}
        self.count_max: i64 = 0
        # The one asked for last: most often it is asked for again.
        self._last_number: i64 = -1
        self._last: Channel | None = None

    def get(self, number: i64) -> Channel | None:
        if number == self._last_number:
            return self._last
        channel = self.by_number.get(number)
        if channel is not None:
            self._last_number = number
            self._last = channel
        return channel

    def check_count(self) -> None:
        """Raises: NotAllowed where there is no room for another."""
        if self.count_max > 0 and len(self.by_number) >= self.count_max:
            raise NotAllowed(
                f"number of channels opened ({len(self.by_number)}) has reached the negotiated channel_max "
                f"({self.count_max})"
            )

    def add(self, channel: Channel) -> None:
        self.by_number[channel.number] = channel

    def forget(self, number: i64) -> None:
        self.by_number.pop(number, None)
        self._last_number = -1
        self._last = None

    def all(self) -> list[Channel]:
        """A snapshot: they may end while one goes through them."""
        return list(self.by_number.values())
