"""The `x-delayed-retry-*` arguments of queue.declare: `Row`s of arguments.py, and their checks.

rabbit: 4.3 has the first three, for quorum queues; the list of levels is this broker's. As arguments they are only
taken where they mean something together; of a policy each key is looked at by itself, as an argument may say the rest.
"""

from __future__ import annotations

from typing import Final

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queue import argument_checks as checks
from amqpd.broker.queue.argument_checks import Context, Row
from amqpd.broker.queue.types import WORK_QUEUES
from amqpd.broker.queue.retry_rule import LEVELS_MAX, TYPES, is_levels, levels_of

_TYPE: Final = "x-delayed-retry-type"
_MIN: Final = "x-delayed-retry-min"
_MAX: Final = "x-delayed-retry-max"
_LEVELS: Final = "x-delayed-retry-levels"


def _type(row: Row, value: object, context: Context) -> None:
    if checks.text(row, value, context) not in TYPES:
        raise checks.invalid(row, context, "invalid_delayed_retry_type")
    if value != "disabled" and _MIN not in context.arguments and _LEVELS not in context.arguments:
        raise checks.invalid(row, context, f'"not without {_MIN} or {_LEVELS}"')


def _needs(row: Row, context: Context, name: str) -> None:
    if name not in context.arguments:
        raise checks.invalid(row, context, f'"not without {name}"')


def _min(row: Row, value: object, context: Context) -> None:
    checks.positive_milliseconds(row, value, context)
    _needs(row, context, _TYPE)


def _max(row: Row, value: object, context: Context) -> None:
    checks.positive_milliseconds(row, value, context)
    _needs(row, context, _MIN)


def _levels(row: Row, value: object, context: Context) -> None:
    if levels_of(value) is None:
        wanted = f"1 to {LEVELS_MAX} times, as '1m,5m,30m' or an array of milliseconds"
        raise checks.invalid(row, context, f'"expected {wanted}"')
    _needs(row, context, _TYPE)
    if _MIN in context.arguments:
        raise checks.invalid(row, context, f'"not together with {_MIN}"')


ROWS: Final = (
    Row(
        _TYPE,
        _type,
        True,
        "retries",
        "which messages that come back wait: disabled, all, failed or returned",
        field="retry_type",
        kinds=WORK_QUEUES,
        policy="delayed-retry-type",
        accepts=checks.is_one_of(*TYPES),
        called="delayed retry type",
        takes="|".join(TYPES),
    ),
    Row(
        _MIN,
        _min,
        True,
        "retries",
        "how many ms they wait, times the delivery count",
        field="retry_min_ms",
        most=TTL_MS_MAX,
        kinds=WORK_QUEUES,
        policy="delayed-retry-min",
        accepts=checks.is_positive,
        called="delayed retry minimum",
        takes="ms",
    ),
    Row(
        _MAX,
        _max,
        True,
        "retries",
        "how many ms they wait at most; default: the minimum",
        field="retry_max_ms",
        most=TTL_MS_MAX,
        kinds=WORK_QUEUES,
        policy="delayed-retry-max",
        accepts=checks.is_positive,
        called="delayed retry maximum",
        takes="ms",
    ),
    Row(
        _LEVELS,
        _levels,
        True,
        "retries",
        "how long they wait the first, second ... time: `1m,5m,30m`, or an array of ms",
        field="retry_levels",
        kinds=WORK_QUEUES,
        policy="delayed-retry-levels",
        accepts=is_levels,
        called="list of delayed retry levels",
        takes="text",
    ),
)
