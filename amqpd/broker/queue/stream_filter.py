"""Which records of a stream a consumer wants: x-filter, x-stream-filter, x-stream-match-unfiltered.

    x-filter                    a selector (routing/selector.py): what matches is wanted
    x-stream-filter             texts: wanted is what has one of them in its header x-stream-filter-value,
    x-stream-match-unfiltered   and, if this is true, what has no such header

Both are exact. (RabbitMQ filters whole chunks by values, and a client gets what stands beside what it wants.)
Who has both a selector and values wants what both let through.

A record is looked at through a `RecordView`, which all readers that are near each other share, and which serves all
records behind each other that have the same properties, exchange and routing key; a filter answers for it once. So
headers are decoded once for many records and consumers, and not at all where a value's header is nowhere in them.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import ConsumerArguments
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.properties import CONTENT_TYPE, decode_headers, decode_property
from amqpd.routing.selector import Selector
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.selector_fields import EXCHANGE, ROUTING_KEY_FIELD
from amqpd.storage.log.record import SharedFields

VALUE_HEADER: Final = "x-stream-filter-value"
_VALUE_NAME: Final = VALUE_HEADER.encode()


@final
class RecordView(Selectable):
    """What is not the body of records that are alike."""

    def __init__(self, alike: SharedFields) -> None:
        self._alike = alike
        self._headers: dict[str, object] | None = None

    def serves(self, alike: SharedFields) -> bool:
        """Whether these are like its own. By identity: a log's reader gives the same objects for the same bytes."""
        own = self._alike
        return (
            alike.properties is own.properties
            and alike.routing_key is own.routing_key
            and alike.exchange is own.exchange
        )

    def headers(self) -> dict[str, object]:
        """Cost: their decoding, the first time. Properties that are none (a foreign program's) have no headers."""
        headers = self._headers
        if headers is None:
            properties = self._alike.properties
            try:
                headers = decode_headers(properties, 0, len(properties))
            except CodecError:
                headers = {}
            self._headers = headers
        return headers

    def field(self, number: int) -> object:
        if number == EXCHANGE:
            return self._alike.exchange.decode("utf-8", "surrogateescape")
        if number == ROUTING_KEY_FIELD:
            return self._alike.routing_key.decode("utf-8", "surrogateescape")
        flag: i64 = CONTENT_TYPE >> number
        try:
            return decode_property(self._alike.properties, flag)
        except CodecError:
            return None

    def filter_value(self) -> object:
        """The header x-stream-filter-value; None when there is none."""
        if _VALUE_NAME not in self._alike.properties:
            return None
        return self.headers().get(VALUE_HEADER)


@final
class StreamFilter:
    """One consumer's. selector: None for all. values: of x-stream-filter, empty for all. match_unfiltered: whether
    records without a value are wanted too, where there are values.
    """

    def __init__(self, selector: Selector | None, values: frozenset[str], match_unfiltered: bool) -> None:
        self._selector: Final = selector
        self._values: Final = values
        self._match_unfiltered: Final = match_unfiltered
        self._answers_once: bool = selector is None or not selector.depends_on_time
        self._view: RecordView | None = None
        self._answer = False

    def wants(self, view: RecordView) -> bool:
        """Whether the records of `view` are wanted. Raises nothing. Cost: a test for the view it was asked of last."""
        if view is self._view and self._answers_once:
            return self._answer
        self._view = view
        self._answer = self._wants_value(view) and (self._selector is None or self._selector.matches(view))
        return self._answer

    def _wants_value(self, view: RecordView) -> bool:
        if not self._values:
            return True
        value = view.filter_value()
        # rabbit: a value that is no text is none
        return value in self._values if isinstance(value, str) else self._match_unfiltered


def filter_of(arguments: ConsumerArguments) -> StreamFilter | None:
    """What a consumer with these arguments wants; None: everything."""
    if arguments.selector is None and not arguments.filter_values:
        return None
    return StreamFilter(arguments.selector, arguments.filter_values, arguments.match_unfiltered)
