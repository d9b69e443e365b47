"""Publisher of an import: it knows the unconfirmed messages, and continues after a refused one.

The broker refuses a message by `basic.nack` (a full queue), or by closing the channel (no such exchange, a body that is
too large). In the second case the answer does not say which message it was. So the publisher connects again, and sends
each unconfirmed message alone. Queues drop those that they have, if the messages are numbered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from amqpd.protocol import methods as c
from amqpd.storage.export.publisher import ChannelClosed, SinkPublisher, SinkTarget

WINDOW: Final = 1000
UNCONFIRMED_BYTES: Final = 32 << 20
"""The publisher waits for all confirms when the unconfirmed bodies have so many bytes."""
NACK: Final = "refused by the broker (basic.nack)"


class OutgoingMessage(NamedTuple):
    """A message as it was published."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class ImportPublisher:
    """One connection that publishes with confirms. All methods raise PublishError.

    Args:
        on_return: Called with each message that reached no queue, and the reason.
        on_refused: Called with each message that the broker refused, and the reason.
        continues: Continue also if the broker closes the channel. False: that is an error.
    """

    def __init__(
        self,
        target: SinkTarget,
        on_return: Callable[[OutgoingMessage, str], None],
        on_refused: Callable[[OutgoingMessage, str], None],
        *,
        continues: bool,
    ) -> None:
        self._target = target
        self._return = on_return
        self._refuse = on_refused
        self._continues = continues
        self._unconfirmed: dict[int, OutgoingMessage] = {}
        self._bytes = 0
        self._publisher = self._connect()

    def _connect(self) -> SinkPublisher:
        return SinkPublisher(self._target, window=WINDOW, on_return=self._on_return, on_nack=self._on_nack)

    def _on_return(self, answer: c.BasicReturn, properties: bytes, body: bytes) -> None:
        message = OutgoingMessage(answer.exchange, answer.routing_key, properties, body)
        # The channel may close before the confirm: then the message must not be sent again.
        tag = next((tag for tag, each in self._unconfirmed.items() if each == message), None)
        if tag is not None:
            self._remove(tag)
        self._return(message, f"{answer.reply_code} {answer.reply_text}")

    def _on_nack(self, tags: list[int]) -> None:
        for tag in tags:
            if tag in self._unconfirmed:  # else it was returned
                self._refuse(self._remove(tag), NACK)

    def _remove(self, tag: int) -> OutgoingMessage:
        message = self._unconfirmed.pop(tag)
        self._bytes -= len(message.body)
        return message

    def publish(self, message: OutgoingMessage) -> None:
        """Publish a message; it may stay in the buffer."""
        try:
            self._publish(message)
            if self._bytes >= UNCONFIRMED_BYTES:
                self._finish()
        except ChannelClosed as error:
            self._send_alone(error)

    def finish(self) -> None:
        """Wait until all messages are confirmed, returned or refused."""
        try:
            self._finish()
        except ChannelClosed as error:
            self._send_alone(error)

    def _publish(self, message: OutgoingMessage) -> None:
        self._unconfirmed[self._publisher.published + 1] = message
        self._bytes += len(message.body)
        self._publisher.publish(*message)
        while self._unconfirmed and self._publisher.is_confirmed(first := next(iter(self._unconfirmed))):
            self._remove(first)

    def _finish(self) -> None:
        self._publisher.finish()
        self._unconfirmed.clear()
        self._bytes = 0

    def _send_alone(self, closed: ChannelClosed) -> None:
        """Send each unconfirmed message alone on a new connection. One that closes the channel is refused."""
        if not self._continues:
            raise closed
        confirmed = self._publisher.is_confirmed
        waiting = [message for tag, message in self._unconfirmed.items() if not confirmed(tag)]
        self._reconnect()
        for message in waiting:
            try:
                self._publish(message)
                self._finish()
            except ChannelClosed as error:
                self._refuse(message, error.reason)
                self._reconnect()

    def _reconnect(self) -> None:
        self._publisher.abandon()
        self._unconfirmed.clear()
        self._bytes = 0
        self._publisher = self._connect()

    def close(self) -> None:
        self._publisher.close()

    def abandon(self) -> None:
        """Drop the connection. Unconfirmed messages may arrive."""
        self._publisher.abandon()
