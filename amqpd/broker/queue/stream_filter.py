"""Filter of a stream consumer: x-filter, x-stream-filter, x-stream-match-unfiltered.

    x-filter                    a selector (routing/selector.py)
    x-stream-filter             values; the header x-stream-filter-value must be one of them
    x-stream-match-unfiltered   if true, records without that header pass, too

A consumer with a selector and values gets the records that pass both. Both are exact. RabbitMQ filters whole chunks by
values, so its clients also get other records of a chunk.

A filter sees a record as a `RecordView`. Consecutive records with equal properties, exchange and routing key share one
view, and so do readers that are near each other. A filter decides once per view; headers are decoded at most once per
view, and not at all if the properties do not contain the header's name.

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
    """Properties, exchange and routing key that consecutive records share."""

    def __init__(self, alike: SharedFields) -> None:
        self._alike = alike
        self._headers: dict[str, object] | None = None

    def has_fields(self, alike: SharedFields) -> bool:
        """Return whether these fields are the same. Compares identity: the log's reader shares equal objects."""
        own = self._alike
        return (
            alike.properties is own.properties
            and alike.routing_key is own.routing_key
            and alike.exchange is own.exchange
        )

    def headers(self) -> dict[str, object]:
        """Return the headers, decoded once. Invalid properties, written by another program, have none."""
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
        """Return the header x-stream-filter-value, or None."""
        if _VALUE_NAME not in self._alike.properties:
            return None
        return self.headers().get(VALUE_HEADER)


@final
class StreamFilter:
    """The filter of one consumer.

    Args:
        selector: None for all records.
        values: the values of x-stream-filter; empty for all records.
        match_unfiltered: with values, records without the header pass, too.
    """

    def __init__(self, selector: Selector | None, values: frozenset[str], match_unfiltered: bool) -> None:
        self._selector: Final = selector
        self._values: Final = values
        self._match_unfiltered: Final = match_unfiltered
        self._answers_once: bool = selector is None or not selector.depends_on_time
        self._view: RecordView | None = None
        self._answer = False

    def wants(self, view: RecordView) -> bool:
        """Return whether the filter passes the records of `view`. Cost: one comparison if the view is the same."""
        if view is self._view and self._answers_once:
            return self._answer
        self._view = view
        self._answer = self._wants_value(view) and (self._selector is None or self._selector.matches(view))
        return self._answer

    def _wants_value(self, view: RecordView) -> bool:
        if not self._values:
            return True
        value = view.filter_value()
        # rabbit: a value that is not text counts as missing
        return value in self._values if isinstance(value, str) else self._match_unfiltered


def filter_of(arguments: ConsumerArguments) -> StreamFilter | None:
    """Return the filter for these arguments; None if the consumer gets every record."""
    if arguments.selector is None and not arguments.filter_values:
        return None
    return StreamFilter(arguments.selector, arguments.filter_values, arguments.match_unfiltered)
