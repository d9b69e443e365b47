"""Rows of the argument tables, and the checks that rows name.

`arguments.py` has the table for queues, `broker/vhost/exchange.py` the one for exchanges. A check raises
PreconditionFailed (406) with RabbitMQ's text.

If a policy can set the same thing, the row also has the policy key and its valid JSON values. Then it also names the
rule that merges argument and policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from amqpd.broker.queue.config import PublishCheck
from amqpd.broker.queue.message_groups import is_group_by
from amqpd.broker.queue.types import kind_of
from amqpd.broker.stream_message import interval_ms
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import Timestamp
from amqpd.routing.headers import erlang_term, field_type_name
from amqpd.storage.log.foreign_record import SHORT_BYTES_MAX

IGNORED: Final = "queue/arguments"

Merge: TypeAlias = Literal["argument", "lowest", "limit"]


class ArgumentContext(NamedTuple):
    """The queue or exchange to which arguments belong, for checks and error texts.

    Attributes:
        name: Name of the queue or exchange.
        arguments: All arguments of the declaration.
        kind: For basic.consume: the type of the queue; otherwise empty.
    """

    name: str
    vhost: str
    arguments: Mapping[str, object]
    kind: str = ""


class NamedRow(Protocol):
    """A row of any table of arguments."""

    @property
    def name(self) -> str: ...


class PolicyKey(NamedTuple):
    """A key of policy definitions.

    Attributes:
        accepts: Returns whether the key may have this JSON value.
        called: Name of the value in RabbitMQ's error text, as in `"x" is not a valid message TTL`.
        operator: Operator policies may have the key too.
        merge: The value that applies if argument and policy are both set: `argument`, the `lowest`, or the lowest as
            a `limit`, where a negative number means no limit.
        takes: Input of a form, if it differs from that of the argument.
        meaning: Text for the reference page; "" for that of the argument.
    """

    name: str
    accepts: Callable[[object], bool]
    called: str
    operator: bool = False
    merge: Merge = "argument"
    takes: str = ""
    meaning: str = ""


class ArgumentSpec(NamedTuple):
    """One argument of queue.declare or exchange.declare.

    Attributes:
        check: Raises PreconditionFailed if the value is not valid.
        obeyed_by: Module below amqpd/broker that implements it; IGNORED if it is accepted and ignored.
        meaning: Text for the reference page.
        field: The field of `QueueConfig` that gets the value; "" for none.
        most: Highest valid number; None for no limit.
        kinds: Queue types that accept it; None for all.
        admission: Makes a `PublishCheck` from the value; None for no such check.
        policy: The policy key that sets the same thing; None for none.
        takes: Input of a form: text, flag, number, messages, bytes, ms, or words separated by |; "" if no form has it.
        compared: Two declarations must agree on it.
    """

    name: str
    check: Check
    obeyed_by: str
    meaning: str
    field: str = ""
    most: int | None = None
    kinds: frozenset[str] | None = None
    admission: Callable[[Any], PublishCheck] | None = None
    policy: PolicyKey | None = None
    takes: str = ""
    compared: bool = True


Check: TypeAlias = Callable[[ArgumentSpec, object, ArgumentContext], object]


erlang_type: Final = field_type_name
"""RabbitMQ's name for the type of a field value, for error texts."""
SEGMENT_SIZE_BYTES_MAX: Final = 3_000_000_000
"""rabbit: refuses more."""
STRATEGIES: Final = ("at-most-once", "at-least-once")
KAFKA_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
LEADER_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders")
MODES: Final = ("default", "lazy")


def erlang_field(value: object) -> str:
    """Return a field value with its type as RabbitMQ's error texts show it: `{longstr,<<"a">>}`."""
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


def at_most(row: ArgumentSpec, value: object, context: ArgumentContext) -> int:
    """Return a number from 0 to `row.most`; None: no limit."""
    number = non_negative(row, value, context)
    if row.most is not None and number > row.most:
        raise invalid(row, context, f"{{value_too_large,{number}}}")
    return number


def positive(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if at_most(row, value, context) == 0:
        raise invalid(row, context, "{value_zero,0}")


def priority(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    number = non_negative(row, value, context)
    if row.most is not None and number > row.most:
        raise invalid(row, context, f"{{max_value_exceeded,{number}}}")


def text(row: NamedRow, value: object, context: ArgumentContext) -> str:
    if not isinstance(value, str):
        raise invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")
    return value


def max_age(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if interval_ms(text(row, value, context)) < 0:
        raise invalid(row, context, "invalid_max_age")


def retain(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    """Accept an age as of x-max-age, or a number of bytes."""
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
    """Return a check that accepts only these texts. why: RabbitMQ's reason for refusing others; `{}` is the value."""

    def check(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
        if text(row, value, context) not in values:
            raise invalid(row, context, why.replace("{}", str(value)))

    return check


def plain_name(pattern: re.Pattern[str]) -> Check:
    """Return a check that accepts only texts of this pattern: names for other programs."""

    def check(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
        if pattern.fullmatch(text(row, value, context)) is None:
            raise invalid(row, context, '"expected a name of letters, digits, dots, dashes and underscores"')

    return check


def exchange_name(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"invalid type '{erlang_type(value)}' for arg '{row.name}' in queue '{context.name}' "
            f"in vhost '{context.vhost}'"
        )


def dead_letter_key(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if len(text(row, value, context).encode("utf-8", "surrogateescape")) > SHORT_BYTES_MAX:
        raise invalid(row, context, f'"expected a routing key of at most {SHORT_BYTES_MAX} bytes"')
    if "x-dead-letter-exchange" not in context.arguments:
        raise invalid(row, context, "routing_key_but_no_dlx_defined")


def merged_number(merge: Merge, one: int, other: int) -> int:
    """Return the limit that applies if argument and policy both set one. merge: `lowest` or `limit`."""
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


def export_bytes(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    non_negative(row, value, context)
    if "x-export" not in context.arguments:
        raise invalid(row, context, "max_bytes_but_no_export_defined")


def check_kind(row: ArgumentSpec, context: ArgumentContext) -> None:
    kind = kind_of(context.arguments)
    if row.kinds is not None and kind.name not in row.kinds:
        raise PreconditionFailed(
            f"invalid arg '{row.name}' for queue '{context.name}' in vhost '{context.vhost}' "
            f"of queue type {kind.module}"
        )


def group_by(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if not is_group_by(text(row, value, context)):
        raise invalid(row, context, "\"expected 'routing_key' or 'header:NAME'\"")
    if "x-max-priority" in context.arguments:
        raise invalid(row, context, '"cannot be combined with x-max-priority"')


def queue_version(row: ArgumentSpec, value: object, context: ArgumentContext) -> None:
    if non_negative(row, value, context) not in (1, 2):
        raise invalid(row, context, f"\"unsupported queue version '{value}'\"")


def anything(_row: ArgumentSpec, _value: object, _context: ArgumentContext) -> None:
    """Accept any value."""


# -- values in policies: JSON ------------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_positive(value: object) -> bool:
    return is_natural(value) and value != 0


def is_filter_size(value: object) -> bool:
    """Return whether the value is a valid filter size of a stream. RabbitMQ: 16 to 255."""
    return isinstance(value, int) and not isinstance(value, bool) and 16 <= value <= 255


def is_text(value: object) -> bool:
    """Return whether the value is text. A JSON string with half a surrogate pair is not."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def is_routing_key(value: object) -> bool:
    return isinstance(value, str) and is_text(value) and len(value.encode()) <= SHORT_BYTES_MAX


def is_interval(value: object) -> bool:
    return isinstance(value, str) and interval_ms(value) > 0


def is_retain(value: object) -> bool:
    return is_interval(value) or is_natural(value)


def is_one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, bool | float) and value in values
