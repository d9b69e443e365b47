"""What a message's properties must be, where that has to be judged by their text.

A publish comes here only with what a scan cannot decide (`Publisher._look_into`): who sends it, a time to live that is
no plain number, routing keys in CC and BCC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from amqpd.broker.message import TTL_MS_MAX
from amqpd.broker.queue.argument_checks import erlang_type
from amqpd.errors import PreconditionFailed
from amqpd.protocol.field_table import decode_table
from amqpd.protocol.properties import DELIVERY_MODE, PropertyInfo

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User

# Sender-selected keys, CC and BCC together.
KEYS_MAX: Final = 1000
_INTEGER: Final = re.compile(rb"([+-]?\d+)(.*)", re.DOTALL)


def needs_judging(info: PropertyInfo) -> bool:
    """Whether `judge` has to look at them. Most messages say nothing that could be wrong."""
    return (
        info.user_id is not None
        or info.sender_selected
        or (info.expiration is not None and not 0 <= info.expiration_ms <= TTL_MS_MAX)
        or (info.flags & DELIVERY_MODE != 0 and not 1 <= info.delivery_mode <= 2)
    )


def judge(user: User, info: PropertyInfo, properties: bytes) -> None:
    """Raises: PreconditionFailed (406) for what this user's message must not say. info: what a scan found."""
    if info.flags & DELIVERY_MODE and info.delivery_mode not in (1, 2):
        raise PreconditionFailed(f"invalid message: {{delivery_mode_unknown,{info.delivery_mode}}}")
    if info.user_id is not None:
        _check_user_id(user, info.user_id)
    if info.expiration is not None:
        check_expiration(info.expiration)
    if info.sender_selected:
        sender_selected(decode_table(properties, info.headers_start)[0])


def _check_user_id(user: User, user_id: bytes) -> None:
    if user_id != user.name.encode() and "impersonator" not in user.tags:
        given = user_id.decode("utf-8", "replace")
        raise PreconditionFailed(f"user_id property set to '{given}' but authenticated user was '{user.name}'")


def check_expiration(text: bytes) -> int:
    """Milliseconds. Raises: PreconditionFailed with RabbitMQ's words for what is not one."""
    match = _INTEGER.match(text)
    shown = text.decode("utf-8", "replace")
    if match is None:
        raise PreconditionFailed(f"invalid expiration '{shown}': no_integer")
    if match[2]:
        rest = match[2].decode("utf-8", "replace")
        raise PreconditionFailed(f"invalid expiration '{shown}': {{leftover_string,\"{rest}\"}}")
    number = int(match[1])
    if number < 0:
        raise PreconditionFailed(f"invalid expiration '{shown}': {{value_negative,{number}}}")
    if number > TTL_MS_MAX:
        raise PreconditionFailed(f"invalid expiration '{shown}': {{value_too_large,{number}}}")
    return number


def sender_selected(headers: Mapping[str, object]) -> list[str]:
    """Routing keys of CC and BCC, each once. Raises: PreconditionFailed where they are no arrays, or name many."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name)
        if name not in headers:
            continue
        if not isinstance(value, list):
            raise _unacceptable(name, value)
        for key in value:
            if isinstance(key, bytes):
                keys.append(key.decode("utf-8", "surrogateescape"))
            elif isinstance(key, str):
                keys.append(key)
            # rabbit: what is no text names no queue
    distinct = list(dict.fromkeys(keys))
    if len(distinct) > KEYS_MAX:
        raise PreconditionFailed(f"CC and BCC name {len(distinct)} routing keys, at most {KEYS_MAX}")
    return distinct


def _unacceptable(name: str, value: object) -> PreconditionFailed:
    return PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{name}",{erlang_type(value)}}}')
