"""What went through exchanges, counted where it is sent: nothing is added up per message.

A publisher counts its messages; when its route changes, those of the route that was come to what it has sent through
that exchange (`Sent`), and to the exchange's own counts (`Passed`). What has come since stands in no count yet: who
reads has each publisher of the vhost asked first (`Publisher.settle_counts`).

rabbit: `publish_in` and `publish_out` of an exchange are of what clients publish to it, not of what comes to it from
another exchange or as a dead letter.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64


@final
class Passed:
    """Through one exchange. in_count: messages published to it. out_count: queues they went to, once for each."""

    def __init__(self) -> None:
        self.in_count: i64 = 0
        self.out_count: i64 = 0


@final
class Sent:
    """By one publisher through one exchange. whole: of the exchange, all publishers together."""

    def __init__(self, exchange: str, whole: Passed) -> None:
        self.exchange = exchange
        self.whole = whole
        self.in_count: i64 = 0
        self.out_count: i64 = 0

    def add(self, count: i64, queue_count: i64) -> None:
        """So many messages, each to so many queues."""
        self.in_count += count
        self.whole.in_count += count
        self.out_count += count * queue_count
        self.whole.out_count += count * queue_count


NOT_SENT: Final = Sent("", Passed())
"""Of a route that nobody publishes by."""
