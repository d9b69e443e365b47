"""The last messages of an x-recent-history exchange.

They are kept in memory, whatever the exchange: RabbitMQ's plugin has them in RAM, too, and a broker that starts has
none. At most `x-recent-history-length` of them, and at most HISTORY_BYTES_MAX: then the oldest go first. A message with
the header `x-recent-history-no-store` (true) is not kept.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.destination import Destination
from amqpd.broker.message import Message
from amqpd.protocol.field_table import decode_table
from amqpd.routing.recent_history import NO_STORE

HISTORY_BYTES_MAX: Final = 64 * 1024 * 1024
_NO_STORE: Final = NO_STORE.encode()


@final
class History(Destination):
    """Of one exchange. length_max: how many messages."""

    def __init__(self, length_max: int) -> None:
        super().__init__()
        self.routed = False
        self._length_max = length_max
        self._messages: deque[Message] = deque()
        self.size_bytes: i64 = 0

    def offer(self, message: Message) -> bool:
        """Keeps it, and forgets what is then too much. Cost: O(1)."""
        size = message.size_bytes()
        if size > HISTORY_BYTES_MAX or _is_not_kept(message):
            return True
        messages = self._messages
        messages.append(message)
        self.size_bytes += size
        while len(messages) > self._length_max or self.size_bytes > HISTORY_BYTES_MAX:
            self.size_bytes -= messages.popleft().size_bytes()
        return True

    def count(self) -> int:
        return len(self._messages)

    def messages(self) -> list[Message]:
        """The oldest first; each as if it had just come."""
        return [_again(message) for message in self._messages]


def _is_not_kept(message: Message) -> bool:
    info = message.info
    if info is None or info.headers_start == 0:
        return False
    properties = message.properties()
    if _NO_STORE not in properties:
        return False
    return decode_table(properties, info.headers_start)[0].get(NO_STORE) is True


def _again(message: Message) -> Message:
    """Its time to live begins anew where it goes."""
    again = Message(
        message.envelope,
        message.content,
        message.header_size,
        message.body_size,
        message.frame_payload_max,
        message.persistent,
        message.info,
    )
    again.parts = message.parts
    again.started = message.started
    return again
