"""What a row of the table of arguments says, and the checks that rows name: what values an argument takes.

`arguments.py` has the table of queues, `broker/vhost/exchange.py` that of exchanges. A check raises
PreconditionFailed (406) with RabbitMQ's text.

Where a policy may set the same thing the row says by which key, what is valid there (in a policy a value is JSON), what
RabbitMQ's text calls it, and how the two become one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from amqpd.broker.queue.config import PublishCheck
from amqpd.broker.queue.message_groups import is_group_by
from amqpd.broker.queue.types import KINDS, kind_of
from amqpd.broker.stream_message import interval_ms
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import Timestamp
from amqpd.routing.headers import erlang_term, field_type_name
from amqpd.storage.acks.retained import NAME as EXPORT_NAME

IGNORED: Final = "queue/arguments"

Merge: TypeAlias = Literal["argument", "lowest", "limit"]


class ArgumentContext(NamedTuple):
    """What the text of an error names. name: the queue's, or the exchange's. kind: of the queue that is consumed."""

    name: str
    vhost: str
    arguments: Mapping[str, object]
    kind: str = ""


class NamedRow(Protocol):
    """A row of whatever table."""

    @property
    def name(self) -> str: ...


def never(_value: object) -> bool:
    """What a policy may say of what it cannot set."""
    return False


class ArgumentSpec(NamedTuple):
    """One argument.

    compared: two declarations must agree on it. obeyed_by: the module below amqpd/broker that gives it its
    meaning; `arguments` itself where that is to be accepted and ignored. field: of `QueueConfig`, that it becomes; ""
    for none. most: the highest number it takes. kinds: of queue, that take it; None: all. admission: makes the rule of
    its value, where it becomes one that looks at what comes in.

    policy: the key by which a policy sets it; "" for none. accepts: whether a policy may give it this JSON value;
    called: what RabbitMQ's text calls it where it may not (`"x" is not a valid message TTL`). operator: operator
    policies may have the key too. merge: what holds where argument and policy both say something: the `argument`, or
    the `lowest` number, or as a `limit` the lowest, where a negative number is none.

    takes: for a form: text, flag, number, messages, bytes, ms, or words with | between; "" where no form offers it.
    policy_takes: the same of the policy's key, where that takes something else.
    """

    name: str
    check: Check
    compared: bool
    obeyed_by: str
    meaning: str
    field: str = ""
    most: int | None = None
    kinds: frozenset[str] | None = None
    admission: Callable[[Any], PublishCheck] | None = None
    policy: str = ""
    accepts: Callable[[object], bool] = never
    called: str = ""
    operator: bool = False
    merge: Merge = "argument"
    takes: str = ""
    policy_takes: str = ""


Check: TypeAlias = Callable[[ArgumentSpec, object, ArgumentContext], object]


erlang_type: Final = field_type_name
"""RabbitMQ's name for the type of a field value, as its texts use it."""
SEGMENT_SIZE_BYTES_MAX: Final = 3_000_000_000
"""rabbit: more is refused."""
STRATEGIES: Final = ("at-most-once", "at-least-once")
KAFKA_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
LEADER_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders")
MODES: Final = ("default", "lazy")


def erlang_field(value: object) -> str:
    """A field value as RabbitMQ's texts show it with its type: `{longstr,<<"a">>}`."""
    return f"{{{erlang_type(value)},{erlang_term(value)}}}"


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def invalid(row: NamedRow, context: ArgumentContext, why: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{row.name}' for queue '{context.name}' in vhost '{context.vhost}': {why}")


def integer(row: NamedRow, value: object, context: ArgumentContext) -> int:
    if not isinstance(value, int) or isinstance(value, bool | Timestamp):
        raise invalid(row, context, f'"expected integer, got {erlang_type(value)}"')
    return value


def non_negative(row: NamedRow, value: object, context: ArgumentContext) -> int:
    number = integer(row, value, context)
    if number < 0:
        raise invalid(row, context, f"{{value_negative,{number}}}")
    return number


def milliseconds(row: ArgumentSpec, value: object, context: ArgumentContext) -> int:
    number = non_negative(row, value, context)
    if row.most is not None and number > row.most:
        raise invalid(row, context, f"{{value_too_large,{number}}}")
    return number


def positive_milliseconds(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if milliseconds(row, value, context) == 0:
        raise invalid(row, context, "{value_zero,0}")


def priority(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    number = non_negative(row, value, context)
    if row.most is not None and number > row.most:
        raise invalid(row, context, f"{{max_value_exceeded,{number}}}")


def text(row: NamedRow, value: object, context: ArgumentContext) -> str:
    if not isinstance(value, str):
        raise invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")
    return value


def positive(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if non_negative(row, value, context) == 0:
        raise invalid(row, context, "{value_zero,0}")


def max_age(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if interval_ms(text(row, value, context)) < 0:
        raise invalid(row, context, "invalid_max_age")


def retain(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    """A time as x-max-age has it, or a number of bytes."""
    if is_integer(value):
        non_negative(row, value, context)
    elif interval_ms(text(row, value, context)) < 0:
        raise invalid(row, context, "invalid_retain")


def segment_size(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if non_negative(row, value, context) > SEGMENT_SIZE_BYTES_MAX:
        raise PreconditionFailed(f"Exceeded max value for {row.name}")


def filter_size(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if not is_filter_size(integer(row, value, context)):
        raise invalid(row, context, f"{{value_out_of_range,{value}}}")


def one_of(values: Collection[str], why: str) -> Check:
    """One of these texts. why: what RabbitMQ calls another one."""

    def check(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
        if text(row, value, context) not in values:
            raise invalid(row, context, why)

    return check


def exchange_name(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"invalid type '{erlang_type(value)}' for arg '{row.name}' in queue '{context.name}' "
            f"in vhost '{context.vhost}'"
        )


def dead_letter_key(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    text(row, value, context)
    if "x-dead-letter-exchange" not in context.arguments:
        raise invalid(row, context, "routing_key_but_no_dlx_defined")


def limit(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    """rabbit: since 4.0 a negative number means that there is no limit."""
    integer(row, value, context)


def merged_number(merge: Merge, one: int, other: int) -> int:
    """Return which of two limits holds, the argument's or the policy's. merge: `lowest` or `limit`."""
    if merge == "limit" and min(one, other) < 0:
        return max(one, other)
    return min(one, other)


def boolean(row: NamedRow, value: object, context: ArgumentContext) -> bool:
    if not isinstance(value, bool):
        raise invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")
    return value


def no_deduplication(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    boolean(row, value, context)
    if value:
        raise invalid(row, context, '"not supported: bind the queue to an exchange of type x-message-deduplication"')


def export_name(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if EXPORT_NAME.fullmatch(text(row, value, context)) is None:
        raise invalid(row, context, '"expected a name of letters, digits, dots, dashes and underscores"')


def kafka_topic(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if KAFKA_TOPIC.fullmatch(text(row, value, context)) is None:
        raise invalid(row, context, '"expected a name of letters, digits, dots, dashes and underscores"')


def export_bytes(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    non_negative(row, value, context)
    if "x-export" not in context.arguments:
        raise invalid(row, context, "max_bytes_but_no_export_defined")


def queue_type(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if text(row, value, context) not in KINDS:
        raise invalid(row, context, f"\"unsupported queue type '{value}'\"")


def queue_mode(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if text(row, value, context) not in MODES:
        raise invalid(row, context, f"\"unsupported queue mode '{value}'\"")


def check_kind(row: ArgumentSpec, context: ArgumentContext) -> None:
    kind = kind_of(context.arguments)
    if row.kinds is not None and kind.name not in row.kinds:
        raise PreconditionFailed(
            f"invalid arg '{row.name}' for queue '{context.name}' in vhost '{context.vhost}' "
            f"of queue type {kind.module}"
        )


def leader_locator(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if text(row, value, context) not in LEADER_LOCATORS:
        raise invalid(row, context, "invalid_queue_locator_arg")


def group_by(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if not is_group_by(text(row, value, context)):
        raise invalid(row, context, "\"expected 'routing_key' or 'header:NAME'\"")
    if "x-max-priority" in context.arguments:
        raise invalid(row, context, '"not together with x-max-priority"')


def strategy(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if text(row, value, context) not in STRATEGIES:
        raise invalid(row, context, "invalid_dlx_strategy")


def queue_version(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if non_negative(row, value, context) not in (1, 2):
        raise invalid(row, context, f"\"unsupported queue version '{value}'\"")


def anything(_row: ArgumentSpec, _value: object, _context: ArgumentContext) -> None:
    """Accepted as it is."""


# -- in a policy: JSON ------------------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_positive(value: object) -> bool:
    return is_natural(value) and value != 0


def is_filter_size(value: object) -> bool:
    """Of a stream's filters, as RabbitMQ bounds it."""
    return isinstance(value, int) and not isinstance(value, bool) and 16 <= value <= 255


def is_text(value: object) -> bool:
    """JSON can escape half a surrogate pair, which is no text."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def is_interval(value: object) -> bool:
    return isinstance(value, str) and interval_ms(value) > 0


def is_retain(value: object) -> bool:
    return is_interval(value) or is_natural(value)


def is_one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, bool | float) and value in values
