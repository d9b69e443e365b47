"""A message as selectors see it: its headers and properties, decoded when one asks.

Make one per message and ask all selectors with it: the headers are decoded once. A selector that names no header
costs no decoding, and each property that is asked for is cut out by itself.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.message import Message
from amqpd.protocol.codec import decode_table
from amqpd.protocol.properties import CONTENT_TYPE, field_of
from amqpd.routing.selector_fields import EXCHANGE, ROUTING_KEY
from amqpd.routing.selector_nodes import Selectable

_NO_HEADERS: Final[dict[str, object]] = {}


@final
class MessageView(Selectable):
    """One message. What it gives out is not to be changed."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._headers: dict[str, object] | None = None

    def headers(self) -> dict[str, object]:
        """Cost: their decoding, the first time."""
        headers = self._headers
        if headers is None:
            info = self._message.info
            if info is None or info.headers_start == 0:
                headers = _NO_HEADERS
            else:
                headers, _ = decode_table(self._message.properties(), info.headers_start)
            self._headers = headers
        return headers

    def field(self, number: int) -> object:
        """The property, exchange or routing key of this number in `selector_fields`; None when it is absent."""
        if number == EXCHANGE:
            return self._message.envelope.exchange
        if number == ROUTING_KEY:
            return self._message.envelope.routing_key
        flag: i64 = CONTENT_TYPE >> number
        return field_of(self._message.properties(), flag)
