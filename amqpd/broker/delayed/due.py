"""When a message is due, by its headers, and what they say when that has been obeyed.

    x-delay        so many milliseconds from now; a text of digits counts as the number. Not above 0: at once. It is
                   delivered negated, as the plugin does, so that the next exchange does not delay it again
    x-deliver-at   milliseconds since 1970, or a timestamp (which has seconds); it comes before x-delay. Not in the
                   future: at once. Once obeyed it is called x-delivered-at

More than ten years ahead, or what is no number, is refused (406): a message must not be delivered at once because of a
slip. A message that the broker itself publishes once more, a dead letter say, has nobody to be refused to: there the
one counts as ten years, the other as no delay.

Source: rabbitmq-delayed-message-exchange 3.10 (`get_delay`, `swap_delay_header`); x-deliver-at is amqpd's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queue.argument_checks import erlang_type
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import Timestamp

DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"
DELIVERED_AT: Final = "x-delivered-at"


def due_ms(headers: Mapping[str, object], now_ms: i64, strict: bool) -> i64:
    """When it is due, in milliseconds since 1970; 0: it is not delayed. strict: see `Delaying.destination`.

    Raises: PreconditionFailed.
    """
    if DELIVER_AT in headers:
        at = headers[DELIVER_AT]
        number: object = int(at) * 1000 if isinstance(at, Timestamp) else at
        delay = _number(DELIVER_AT, number, strict)
        delay -= int(now_ms)
    elif DELAY in headers:
        delay = _number(DELAY, headers[DELAY], strict)
    else:
        return 0
    if delay <= 0:
        return 0
    if delay > TTL_MS_MAX:
        if strict:
            name = DELIVER_AT if DELIVER_AT in headers else DELAY
            raise PreconditionFailed(f"invalid header '{name}': {{value_too_large,{_shown(headers[name])}}}")
        delay = TTL_MS_MAX
    wait: i64 = delay
    return now_ms + wait


def _number(name: str, value: object, strict: bool) -> int:
    """0 for none, where that is not an error."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str) and len(value) <= 20:
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit():
            return int(value)
    # mypyc takes `isinstance(value, bool | Timestamp)` of an int for False
    if value is not True and value is not False and not isinstance(value, Timestamp) and isinstance(value, int):
        return int(value)
    if strict:
        raise PreconditionFailed(
            f"invalid header '{name}': expected a number of milliseconds, got {erlang_type(value)} {_shown(value)}"
        )
    return 0


def _shown(value: object) -> str:
    return str(value)[:40] if isinstance(value, str | int | float) else "of another form"


def obeyed(headers: Mapping[str, object]) -> dict[str, object]:
    """The headers to set on a message that is delayed, of those it has; x-deliver-at goes."""
    changes: dict[str, object] = {}
    if DELAY in headers:
        delay = _number(DELAY, headers[DELAY], False)
        if delay > 0:
            changes[DELAY] = -delay
    if DELIVER_AT in headers:
        changes[DELIVERED_AT] = headers[DELIVER_AT]
    return changes
