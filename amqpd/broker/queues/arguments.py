"""Every `x-*` argument of queue.declare: one row each, from which validation and equivalence follow.

A row names the argument, what values it takes and of which kinds of queue, whether two declarations must agree on it,
what it becomes (a field of `Rules`, or a rule of its own that looks at what comes in), and the file that obeys it. So a
new argument is its row and what obeys it. `rules_of` makes a queue's rules of them.

Arguments without a row are kept, shown and never compared, as RabbitMQ does. Arguments of RabbitMQ that have no meaning
here are accepted and ignored; they have rows, too, so that they are documented, and the log says so once.

Errors: PreconditionFailed (406) with RabbitMQ's texts, also for a queue type that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queues.kinds import KINDS, kind_of
from amqpd.broker.queues.rules import OVERFLOWS, PLAIN, Admission, Rules
from amqpd.errors import PreconditionFailed
from amqpd.protocol.codec import Timestamp
from amqpd.storage.settle.hold import NAME as EXPORT_NAME

log = logging.getLogger(__name__)

IGNORED: Final = "arguments"

Check = Callable[["Row", object, "Context"], None]


class Context(NamedTuple):
    """What the text of an error names."""

    queue: str
    vhost: str
    arguments: Mapping[str, object]


class Row(NamedTuple):
    """One argument.

    compared: two declarations must agree on it. obeyed_by: the module below amqpd/broker that gives it its
    meaning; `arguments` itself where that is to be accepted and ignored. field: of `Rules`, that it becomes; "" for
    none. most: the highest number it takes. kinds: of queue, that take it; None: all. admission: makes the rule of its
    value, where it becomes one that looks at what comes in.
    """

    name: str
    check: Check
    compared: bool
    obeyed_by: str
    meaning: str
    field: str = ""
    most: int | None = None
    kinds: frozenset[str] | None = None
    admission: Callable[[Any], Admission] | None = None


def erlang_type(value: object) -> str:
    """RabbitMQ's name for the type of a field value, as its texts use it."""
    if isinstance(value, bool):
        return "bool"
    if value is None:
        return "void"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    if isinstance(value, str | bytes):
        return "longstr"
    if isinstance(value, float):
        return "double"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, bytearray):
        return "binary"
    return "array" if isinstance(value, list) else "table"


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def _invalid(row: Row, context: Context, why: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{row.name}' for queue '{context.queue}' in vhost '{context.vhost}': {why}")


def _integer(row: Row, value: object, context: Context) -> int:
    if not isinstance(value, int) or isinstance(value, bool | Timestamp):
        raise _invalid(row, context, f'"expected integer, got {erlang_type(value)}"')
    return value


def _non_negative(row: Row, value: object, context: Context) -> None:
    number = _integer(row, value, context)
    if number < 0:
        raise _invalid(row, context, f"{{value_negative,{number}}}")


def _milliseconds(row: Row, value: object, context: Context) -> None:
    number = _integer(row, value, context)
    if number < 0:
        raise _invalid(row, context, f"{{value_negative,{number}}}")
    if row.most is not None and number > row.most:
        raise _invalid(row, context, f"{{value_too_large,{number}}}")


def _positive_milliseconds(row: Row, value: object, context: Context) -> None:
    _milliseconds(row, value, context)
    if value == 0:
        raise _invalid(row, context, "{value_zero,0}")


def _priority(row: Row, value: object, context: Context) -> None:
    number = _integer(row, value, context)
    if number < 0:
        raise _invalid(row, context, f"{{value_negative,{number}}}")
    if row.most is not None and number > row.most:
        raise _invalid(row, context, f"{{max_value_exceeded,{number}}}")


def _text(row: Row, value: object, context: Context) -> str:
    if not isinstance(value, str):
        raise _invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")
    return value


def _overflow(row: Row, value: object, context: Context) -> None:
    if _text(row, value, context) not in OVERFLOWS:
        raise _invalid(row, context, "invalid_overflow")


def _exchange_name(row: Row, value: object, context: Context) -> None:
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"invalid type '{erlang_type(value)}' for arg '{row.name}' in queue '{context.queue}' "
            f"in vhost '{context.vhost}'"
        )


def _dead_letter_key(row: Row, value: object, context: Context) -> None:
    if not isinstance(value, str):
        raise _invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")
    if "x-dead-letter-exchange" not in context.arguments:
        raise _invalid(row, context, "routing_key_but_no_dlx_defined")


def _boolean(row: Row, value: object, context: Context) -> None:
    if not isinstance(value, bool):
        raise _invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")


def _export_name(row: Row, value: object, context: Context) -> None:
    if EXPORT_NAME.fullmatch(_text(row, value, context)) is None:
        raise _invalid(row, context, '"expected a name of letters, digits, dots, dashes and underscores"')


def _export_bytes(row: Row, value: object, context: Context) -> None:
    _non_negative(row, value, context)
    if "x-export" not in context.arguments:
        raise _invalid(row, context, "max_bytes_but_no_export_defined")


def _queue_type(row: Row, value: object, context: Context) -> None:
    if not isinstance(value, str):
        raise _invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")
    if value not in KINDS:
        raise _invalid(row, context, f"\"unsupported queue type '{value}'\"")


def _queue_mode(row: Row, value: object, context: Context) -> None:
    if not isinstance(value, str):
        raise _invalid(row, context, f"{{unacceptable_type,{erlang_type(value)}}}")
    if value not in ("default", "lazy"):
        raise _invalid(row, context, f"\"unsupported queue mode '{value}'\"")


def _check_kind(row: Row, context: Context) -> None:
    kind = kind_of(context.arguments)
    if row.kinds is not None and kind.name not in row.kinds:
        raise PreconditionFailed(
            f"invalid arg '{row.name}' for queue '{context.queue}' in vhost '{context.vhost}' "
            f"of queue type {kind.module}"
        )


def _strategy(row: Row, value: object, context: Context) -> None:
    if _text(row, value, context) not in ("at-most-once", "at-least-once"):
        raise _invalid(row, context, "invalid_dlx_strategy")


def _queue_version(row: Row, value: object, context: Context) -> None:
    _non_negative(row, value, context)
    if value not in (1, 2):
        raise _invalid(row, context, f"\"unsupported queue version '{value}'\"")


def _anything(_row: Row, _value: object, _context: Context) -> None:
    """Accepted as it is."""


CLASSIC: Final = frozenset({"classic"})
QUORUM: Final = frozenset({"quorum"})

ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        Row(
            "x-message-ttl",
            _milliseconds,
            True,
            "expiry",
            "how many ms a message may wait; 0: deliver or drop",
            field="ttl_ms",
            most=TTL_MS_MAX,
        ),
        Row(
            "x-expires",
            _positive_milliseconds,
            True,
            "expiry",
            "a queue nobody used for so many ms is deleted",
            field="expires_ms",
            most=TTL_MS_MAX,
        ),
        Row("x-max-length", _non_negative, True, "limits", "how many messages may be ready", field="length_max"),
        Row(
            "x-max-length-bytes",
            _non_negative,
            True,
            "limits",
            "how many body bytes may be ready",
            field="length_bytes_max",
        ),
        Row(
            "x-overflow",
            _overflow,
            True,
            "limits",
            "when full: drop-head, reject-publish, reject-publish-dlx",
            field="overflow",
        ),
        Row(
            "x-dead-letter-exchange",
            _exchange_name,
            True,
            "dead_letters",
            "where messages go that end here",
            field="dead_letter_exchange",
        ),
        Row(
            "x-dead-letter-routing-key",
            _dead_letter_key,
            True,
            "dead_letters",
            "under which key, if not their own",
            field="dead_letter_key",
        ),
        Row(
            "x-dead-letter-strategy",
            _strategy,
            False,
            IGNORED,
            "ignored: at least once if durable",
            kinds=QUORUM,
        ),
        Row(
            "x-max-priority",
            _priority,
            True,
            "levels",
            "highest level of basic.priority told apart, 0-255",
            field="level_max",
            most=255,
            kinds=CLASSIC,
        ),
        Row(
            "x-single-active-consumer",
            _boolean,
            True,
            "delivery",
            "one consumer at a time, the others stand by",
            field="single_active",
        ),
        Row("x-queue-type", _queue_type, True, "kinds", "classic or quorum; any other is refused with 406"),
        Row(
            "x-delivery-limit",
            _non_negative,
            True,
            "limits",
            "quorum: returns before it is dead-lettered",
            field="delivery_limit",
            kinds=QUORUM,
        ),
        Row("x-export", _export_name, True, "make_queue", "what is settled stays until that export has it"),
        Row("x-export-max-bytes", _export_bytes, True, "make_queue", "how much of them stays at most; default 16 GiB"),
        Row("x-queue-mode", _queue_mode, True, IGNORED, "ignored: every queue pages to disk"),
        Row(
            "x-queue-version", _queue_version, False, IGNORED, "ignored: there is one storage engine", kinds=CLASSIC
        ),
        Row("x-queue-master-locator", _anything, False, IGNORED, "ignored: one node"),
        Row("x-queue-leader-locator", _anything, False, IGNORED, "ignored: one node"),
        Row("x-quorum-initial-group-size", _non_negative, False, IGNORED, "ignored: one node", kinds=QUORUM),
        Row("x-ha-policy", _anything, False, IGNORED, "ignored: one node"),
    )
}

_ignored_seen: Final[set[str]] = set()


def _log_ignored(row: Row, context: Context) -> None:
    """Once per argument and process: a client declares the same thing a thousand times."""
    if row.name not in _ignored_seen:
        _ignored_seen.add(row.name)
        log.info("queue '%s' in vhost '%s': argument %s is %s", context.queue, context.vhost, row.name, row.meaning)


def validate(queue: str, vhost: str, arguments: Mapping[str, object]) -> None:
    """Raises: PreconditionFailed."""
    context = Context(queue, vhost, arguments)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None:
            _check_kind(row, context)
            row.check(row, value, context)
            if row.obeyed_by == IGNORED:
                _log_ignored(row, context)


def rules_of(arguments: Mapping[str, object]) -> Rules:
    """What a queue with these arguments, which have been validated, obeys; the defaults of its kind included."""
    values: dict[str, object] = {}
    admissions: list[Admission] = []
    if kind_of(arguments).counts_shown:
        values["counts_shown"] = True
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None and row.field:
            values[row.field] = value
        elif row is not None and row.admission is not None:
            admissions.append(row.admission(value))
    return Rules(values, admissions) if values or admissions else PLAIN


def compare(
    thing: str, vhost: str, compared: list[str], given: Mapping[str, object], current: Mapping[str, object]
) -> None:
    """Two sets of arguments must agree on the names in `compared`.

    thing: `queue 'q'` or `exchange 'x'`, for the text. The width of an integer does not matter. Raises:
    PreconditionFailed.
    """
    for name in compared:
        if name in given or name in current:
            _compare_one(thing, vhost, name, given, current)


def compared_names() -> list[str]:
    return [row.name for row in ROWS.values() if row.compared]


def _compare_one(
    thing: str, vhost: str, name: str, given: Mapping[str, object], current: Mapping[str, object]
) -> None:
    start = f"inequivalent arg '{name}' for {thing} in vhost '{vhost}': received"
    if name not in given:
        value = current[name]
        raise PreconditionFailed(
            f"{start} none but current is the value '{_shown(value)}' of type '{erlang_type(value)}'"
        )
    value = given[name]
    if name not in current:
        raise PreconditionFailed(
            f"{start} the value '{_shown(value)}' of type '{erlang_type(value)}' but current is none"
        )
    other = current[name]
    if isinstance(value, bool) is not isinstance(other, bool) or value != other:
        raise PreconditionFailed(f"{start} '{_shown(value)}' but current is '{_shown(other)}'")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
