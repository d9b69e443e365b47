"""A message as selectors see it, and exchanges that look at more than routing keys: its headers and properties, decoded
when one asks.

Make one per message and ask all with it: the headers are decoded once. A selector that names no header costs no
decoding, and each property that is asked for is cut out by itself.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.message import Envelope, Message
from amqpd.protocol.field_table import decode_table
from amqpd.protocol.properties import CONTENT_TYPE, NO_PROPERTIES, field_of, headers_of
from amqpd.routing.selector_fields import EXCHANGE, ROUTING_KEY
from amqpd.routing.selector_ast import Selectable

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


@final
class PropertiesView(Selectable):
    """Of a message that is not made yet: where it goes, and its properties. What it gives out is not to be changed."""

    def __init__(self, envelope: Envelope, properties: bytes) -> None:
        self._envelope = envelope
        self._properties = properties
        self._headers: dict[str, object] | None = None

    def headers(self) -> dict[str, object]:
        """Cost: their decoding, the first time."""
        headers = self._headers
        if headers is None:
            headers = headers_of(self._properties, 0, len(self._properties))
            self._headers = headers
        return headers

    def field(self, number: int) -> object:
        """As `MessageView.field`."""
        if number == EXCHANGE:
            return self._envelope.exchange
        if number == ROUTING_KEY:
            return self._envelope.routing_key
        flag: i64 = CONTENT_TYPE >> number
        return field_of(self._properties, flag)


NO_MESSAGE: Final = PropertiesView(Envelope("", ""), NO_PROPERTIES)
"""For who asks exchanges that look at the routing key alone."""
