"""The table of `x-*` arguments of basic.consume.

A row has the queue types that accept the argument, the function that checks and reads its value, and the field of
`ConsumerArguments` that it sets. It also names the module that implements the argument. `consumer_arguments` makes one
immutable value, which a consumer has until it is cancelled.

Arguments without a row are stored and shown, and mean nothing, as in RabbitMQ.

Errors: PreconditionFailed (406) with RabbitMQ's texts. rabbit: the queue type is checked before the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from amqpd.broker.consumer import ConsumerArguments
from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queue.argument_checks import (
    ArgumentContext,
    boolean,
    erlang_field,
    integer,
    invalid,
    is_integer,
    non_negative,
    text,
)
from amqpd.broker.queue.types import CLASSIC, KINDS, STREAM, WORK_QUEUES
from amqpd.broker.stream_message import AGO, FIRST, LAST, NEXT, OFFSET, TIME, StreamStart, interval_ms
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import Timestamp
from amqpd.routing.base import BadSelector
from amqpd.routing.selector import MATCHES_ALL, parse_selector


class ConsumerArgumentSpec(NamedTuple):
    """One argument of basic.consume.

    Attributes:
        read: Return the value of the field. Raises PreconditionFailed if the argument is not valid.
        obeyed_by: Module below amqpd/broker that implements it.
        meaning: Text for the reference page.
        field: The field of `ConsumerArguments` that gets the value; "" if the argument is accepted and ignored.
        kinds: Queue types that accept it; None for all.
    """

    name: str
    read: Callable[[ConsumerArgumentSpec, Any, ArgumentContext], object]
    obeyed_by: str
    meaning: str
    field: str
    kinds: frozenset[str] | None = None


def _timeout(row: ConsumerArgumentSpec, value: object, context: ArgumentContext) -> object:
    return min(non_negative(row, value, context), TTL_MS_MAX)


def _stream_offset(row: ConsumerArgumentSpec, value: Any, context: ArgumentContext) -> object:
    """Return where the consumer begins. A timestamp is in seconds.

    rabbit: an invalid offset often closes the connection with 541.
    """
    if isinstance(value, Timestamp):
        return StreamStart(TIME, min(value * 1000, _TIME_MS_MAX))
    if is_integer(value):
        return StreamStart(OFFSET, value)
    if isinstance(value, (str, bytearray)):  # rabbit: a byte array, as some clients send bytes, is a text
        word = value if isinstance(value, str) else value.decode("utf-8", "replace")
        if word in (FIRST, LAST, NEXT):
            return StreamStart(word)
        ms = interval_ms(word)
        if ms >= 0:
            return StreamStart(AGO, ms)
    raise invalid(row, context, f"{{invalid_stream_offset_arg,{erlang_field(value)}}}")


def _consumer_name(row: ConsumerArgumentSpec, value: object, context: ArgumentContext) -> object:
    name = text(row, value, context)
    if not 0 < len(name.encode("utf-8", "surrogateescape")) <= NAME_SIZE_MAX:
        raise invalid(row, context, f'"expected a name of 1 to {NAME_SIZE_MAX} bytes"')
    return name


def _selector(row: ConsumerArgumentSpec, value: object, context: ArgumentContext) -> object:
    try:
        selector = parse_selector(text(row, value, context))
    except BadSelector as error:
        raise invalid(row, context, str(error)) from None
    return None if selector is MATCHES_ALL else selector


def _filter_values(row: ConsumerArgumentSpec, value: Any, context: ArgumentContext) -> object:
    """Return the texts. rabbit: leaves out other values of an array, with a warning in the broker's log."""
    values = value if isinstance(value, list) else [value]
    texts = frozenset([text(row, each, context) for each in values])
    if not 0 < len(values) <= FILTER_VALUES_MAX:
        raise invalid(row, context, f'"expected 1 to {FILTER_VALUES_MAX} values, got {len(values)}"')
    return texts


NAME_SIZE_MAX: Final = 255
FILTER_VALUES_MAX: Final = 1024
_TIME_MS_MAX: Final = 1 << 60

CONSUMER_ROWS: Final[dict[str, ConsumerArgumentSpec]] = {
    row.name: row
    for row in (
        ConsumerArgumentSpec(
            "x-priority",
            integer,
            "consumer",
            "consumers with the highest number are served first; default 0",
            "priority",
            WORK_QUEUES,
        ),
        ConsumerArgumentSpec(
            "x-consumer-timeout",
            _timeout,
            "consume",
            "maximum time of a delivery without ack, in ms; 0: no limit; overrides the queue's",
            "timeout_ms",
            WORK_QUEUES,
        ),
        ConsumerArgumentSpec(
            "x-stream-offset",
            _stream_offset,
            "queue/stream",
            "where to begin: `first`, `last` (batch), `next` (default), an offset, a time, an age (`5m`)",
            "start",
            STREAM,
        ),
        ConsumerArgumentSpec(
            "x-stream-consumer-name",
            _consumer_name,
            "queue/stream",
            "name under which the broker stores the acked offset; the consumer continues there",
            "consumer_name",
            STREAM,
        ),
        ConsumerArgumentSpec(
            "x-filter",
            _selector,
            "queue/filtered",
            "deliver only messages that this SQL selector matches; 8 different selectors a queue, none with priorities",
            "selector",
        ),
        ConsumerArgumentSpec(
            "x-stream-filter",
            _filter_values,
            "queue/stream_filter",
            "deliver only messages with one of these texts in the header `x-stream-filter-value`",
            "filter_values",
            STREAM,
        ),
        ConsumerArgumentSpec(
            "x-stream-match-unfiltered",
            boolean,
            "queue/stream_filter",
            "with `x-stream-filter`: also messages without that header",
            "match_unfiltered",
            STREAM,
        ),
        ConsumerArgumentSpec(
            "x-cancel-on-ha-failover",
            boolean,
            "queue/consumer_arguments",
            "ignored: a queue has no copies on other nodes",
            "",
            CLASSIC,
        ),
    )
}


def consumer_arguments(
    queue: str, vhost: str, kind: str, arguments: Mapping[str, object], table: bytes
) -> ConsumerArguments:
    """Return the checked arguments of a basic.consume.

    Args:
        kind: Type of the queue.
        table: The arguments as the client encoded them.

    Raises:
        PreconditionFailed: A value is not valid, or the queue type does not accept the argument.
    """
    context = ArgumentContext(queue, vhost, arguments, kind)
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        row = CONSUMER_ROWS.get(name)
        if row is None:
            continue
        if row.kinds is not None and kind not in row.kinds:
            raise PreconditionFailed(
                f"invalid arg '{name}' for queue '{queue}' in vhost '{vhost}' of queue type {KINDS[kind].module}"
            )
        read = row.read(row, value, context)
        if row.field:
            values[row.field] = read
    return ConsumerArguments(table, **values)
