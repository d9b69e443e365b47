"""Every `x-*` argument of queue.declare: one row each, from which validation, equivalence and policies follow.

A row names the argument, what values it takes and of which kinds of queue, whether two declarations must agree on it,
what it becomes (a field of `Rules`, or a rule of its own that looks at what comes in), the file that obeys it, and the
key by which a policy sets it (argument_checks.py has `Row` and what it names). The rows stand in families:
queue_rows.py, retry_rows.py, stream_rows.py, ignored_rows.py. So a new argument is its row and what obeys it.
`rules_of` makes a queue's rules of its arguments and of the policies that match it.

Arguments without a row are kept, shown and never compared, as RabbitMQ does. Arguments of RabbitMQ that have no meaning
here are accepted and ignored; they have rows, too, so that they are documented, and the log says so once.

Errors: PreconditionFailed (406) with RabbitMQ's texts, also for a queue type that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from amqpd.broker.queue import ignored_rows, queue_rows, retry_rows, stream_rows
from amqpd.broker.queue.argument_checks import IGNORED, Context, Row, check_kind, erlang_type, merged_number
from amqpd.broker.queue.types import kind_of
from amqpd.broker.queue.config import PLAIN, Admission, Rules
from amqpd.broker.stream_start import interval_ms
from amqpd.errors import PreconditionFailed
from amqpd.routing.headers import erlang_term

log = logging.getLogger(__name__)

NO_POLICY: Final[Mapping[str, object]] = MappingProxyType({})

_FAMILIES: Final = (queue_rows.ROWS, retry_rows.ROWS, stream_rows.ROWS, ignored_rows.ROWS)
ROWS: Final[dict[str, Row]] = {row.name: row for rows in _FAMILIES for row in rows}

_ignored_seen: Final[set[str]] = set()


def _log_ignored(row: Row, context: Context) -> None:
    """Once per argument and process: a client declares the same thing a thousand times."""
    if row.name not in _ignored_seen:
        _ignored_seen.add(row.name)
        log.info("queue '%s' in vhost '%s': argument %s is %s", context.name, context.vhost, row.name, row.meaning)


def validate(queue: str, vhost: str, arguments: Mapping[str, object]) -> None:
    """Raises: PreconditionFailed."""
    context = Context(queue, vhost, arguments)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None:
            check_kind(row, context)
            row.check(row, value, context)
            if row.obeyed_by == IGNORED:
                _log_ignored(row, context)


def rules_of(arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> Rules:
    """What a queue with these arguments, which have been validated, obeys; the defaults of its kind included.

    effective: by policy key, what the policies that match it say together. Cost: 1 us a rule.
    """
    values: dict[str, object] = {}
    admissions: list[Admission] = []
    kind = kind_of(arguments)
    if kind.counts_shown:
        values["counts_shown"] = True
    if kind.stream:
        values["stream"] = True
    for name, value in (merged(arguments, effective) if effective else arguments).items():
        row = ROWS.get(name)
        if row is not None and row.field:
            values[row.field] = value
        elif row is not None and row.admission is not None:
            admissions.append(row.admission(value))
    return Rules(values, admissions) if values or admissions else PLAIN


def merged(arguments: Mapping[str, object], effective: Mapping[str, object]) -> dict[str, object]:
    """The arguments as if what the policies say had been given with them, by each row's rule. Keys of policies that
    no argument has are not in it: who obeys them looks at `effective`."""
    both = dict(arguments)
    for row in ROWS.values():
        value = effective.get(row.policy) if row.policy else None
        if value is None:
            continue
        if row.most is not None and isinstance(value, int) and value > row.most:
            value = row.most  # rabbit: a policy may say any number; ten years are for ever
        argument = arguments.get(row.name)
        if argument is None:
            both[row.name] = value
        elif row.merge != "argument" and isinstance(value, int) and isinstance(argument, int):
            both[row.name] = merged_number(row.merge, value, argument)
        elif row.merge == "lowest" and isinstance(value, str) and isinstance(argument, str):
            both[row.name] = min(value, argument, key=interval_ms)
    return both


def compare(
    thing: str, vhost: str, compared: list[str], given: Mapping[str, object], current: Mapping[str, object]
) -> None:
    """Two sets of arguments must agree on the names in `compared`.

    thing: `queue 'q'` or `exchange 'x'`, for the text. Values are equal where their type class is, too: `_with_class`.
    Raises: PreconditionFailed.
    """
    for name in compared:
        if name in given or name in current:
            _compare_one(thing, vhost, name, given, current)


def compared_names(kind: str) -> list[str]:
    """Those on which two declarations of a queue of this kind must agree."""
    return [row.name for row in ROWS.values() if row.compared and (row.kinds is None or kind in row.kinds)]


def _compare_one(thing: str, vhost: str, name: str, given: Mapping[str, object], current: Mapping[str, object]) -> None:
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
    if _with_class(value) != _with_class(other):
        # rabbit: a void beside a value is none
        received = "none" if value is None else f"'{_shown(value)}'"
        raise PreconditionFailed(f"{start} {received} but current is '{_shown(other)}'")


def _with_class(value: object) -> tuple[str, object]:
    """A field value in a form that is equal where RabbitMQ takes two values for the same.

    10 and 10.0 differ, and so do 1 and true. The width of an integer does not matter, a timestamp is an integer, and
    a byte array is the text of its bytes.
    """
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        return "integer", int(value)
    if isinstance(value, str):
        return "text", value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes | bytearray):
        return "text", bytes(value)
    if isinstance(value, list):
        return "array", [_with_class(each) for each in value]
    if isinstance(value, Mapping):
        return "table", {name: _with_class(each) for name, each in value.items()}
    return erlang_type(value), value


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    return erlang_term(value)
