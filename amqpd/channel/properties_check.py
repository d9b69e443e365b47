"""What a publish's properties must be, and the messages whose properties decide where they go.

The road comes here only where something has to be judged by its text (`Channel._look_into`): who sends it, a time to
live that is no plain number, routing keys in CC and BCC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from amqpd.broker.message import TTL_MS_MAX, Message, make_message
from amqpd.broker.publishing import router
from amqpd.broker.queues.arguments import erlang_type
from amqpd.channel.access import check_topic_keys
from amqpd.errors import FrameError, PreconditionFailed
from amqpd.protocol.assembler import BASIC_PUBLISH
from amqpd.protocol.codec import CodecError, decode_table
from amqpd.protocol.properties import (
    DELIVERY_MODE,
    DIRECT_REPLY_TO,
    PropertyInfo,
    scan,
    with_reply_to,
    without_headers,
)

if TYPE_CHECKING:
    from amqpd.broker.session import Session
    from amqpd.channel.channel import Channel
    from amqpd.channel.route import Route

REPLY_TO: Final = DIRECT_REPLY_TO.decode()
# Sender-selected keys, CC and BCC together.
KEYS_MAX: Final = 1000
_INTEGER: Final = re.compile(rb"([+-]?\d+)(.*)", re.DOTALL)


def refuse(error: CodecError) -> NoReturn:
    """Raises: FrameError (501), for bytes that are no properties."""
    raise FrameError(f"bad content header properties: {error}", BASIC_PUBLISH) from None


def judge(session: Session, info: PropertyInfo, properties: bytes) -> None:
    """Raises: PreconditionFailed (406) for what they must not say. info: what a scan found in them."""
    if info.flags & DELIVERY_MODE and info.delivery_mode not in (1, 2):
        raise PreconditionFailed(
            f"invalid message: {{delivery_mode_unknown,{info.delivery_mode}}}", BASIC_PUBLISH
        )
    if info.user_id is not None:
        _check_user_id(session, info.user_id)
    if info.expiration is not None:
        check_expiration(info.expiration)
    if info.sender_selected:
        sender_selected(decode_table(properties, info.headers_start)[0])


def _check_user_id(session: Session, user_id: bytes) -> None:
    user = session.user
    if user_id != user.name.encode() and "impersonator" not in user.tags:
        given = user_id.decode("utf-8", "replace")
        raise PreconditionFailed(
            f"user_id property set to '{given}' but authenticated user was '{user.name}'", BASIC_PUBLISH
        )


def check_expiration(text: bytes) -> int:
    """Milliseconds. Raises: PreconditionFailed with RabbitMQ's words for what is not one."""
    match = _INTEGER.match(text)
    shown = text.decode("utf-8", "replace")
    if match is None:
        raise PreconditionFailed(f"invalid expiration '{shown}': no_integer", BASIC_PUBLISH)
    if match[2]:
        rest = match[2].decode("utf-8", "replace")
        raise PreconditionFailed(f"invalid expiration '{shown}': {{leftover_string,\"{rest}\"}}", BASIC_PUBLISH)
    number = int(match[1])
    if number < 0:
        raise PreconditionFailed(f"invalid expiration '{shown}': {{value_negative,{number}}}", BASIC_PUBLISH)
    if number > TTL_MS_MAX:
        raise PreconditionFailed(f"invalid expiration '{shown}': {{value_too_large,{number}}}", BASIC_PUBLISH)
    return number


def sender_selected(headers: Mapping[str, object]) -> list[str]:
    """Routing keys of CC and BCC. Raises: PreconditionFailed when they are no arrays of text."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name)
        if name not in headers:
            continue
        if not isinstance(value, list):
            raise PreconditionFailed(
                f'invalid message: {{unacceptable_type_in_header,"{name}",{erlang_type(value)}}}', BASIC_PUBLISH
            )
        for key in value:
            if isinstance(key, bytes):
                keys.append(key.decode("utf-8", "surrogateescape"))
            elif isinstance(key, str):
                keys.append(key)
            else:
                raise PreconditionFailed(
                    f'invalid message: {{unacceptable_type_in_header,"{name}",{erlang_type(key)}}}', BASIC_PUBLISH
                )
    distinct = list(dict.fromkeys(keys))
    if len(distinct) > KEYS_MAX:
        raise PreconditionFailed(f"CC and BCC name {len(distinct)} routing keys, at most {KEYS_MAX}", BASIC_PUBLISH)
    return distinct


class _Headers:
    """A message's headers, decoded when somebody looks."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._table: dict[str, object] | None = None

    def __call__(self) -> Mapping[str, object]:
        table = self._table
        if table is None:
            info = self._message.info
            if info is None or not info.has_headers:
                table = {}
            else:
                table = decode_table(self._message.properties(), info.headers_start)[0]
            self._table = table
        return table


def reroute(channel: Channel, route: Route, message: Message) -> tuple[Message, Route]:
    """Finds the destinations of a message whose headers or reply-to have a say, and rewrites what must be.

    CC and BCC add routing keys, BCC is removed; reply-to `amq.rabbitmq.reply-to` becomes the channel's own key.
    """
    info = message.info
    session = channel.session
    if info is not None and info.direct_reply:
        reply = channel.reply_consumer
        if reply is None:
            raise PreconditionFailed("fast reply consumer does not exist", BASIC_PUBLISH)
        message = _remade(message, with_reply_to(message.properties(), reply.key.encode()))
        info = message.info
    selected = info is not None and info.sender_selected
    if not selected and not route.needs_headers:
        return message, route
    envelope = route.envelope
    keys = [envelope.routing_key]
    headers = _Headers(message)
    if selected:
        keys += [key for key in sender_selected(headers()) if key not in keys]
    vhost = session.vhost
    exchange = vhost.exchange(envelope.exchange)
    check_topic_keys(session, exchange, keys)
    if vhost.unavailable:
        router.check_available(vhost, exchange, keys, route.needs_headers)
    destinations = router.route(vhost, exchange, keys, headers)
    if selected and "BCC" in headers():
        message = _remade(message, without_headers(message.properties(), ("BCC",)))
    return message, route.to(destinations)


def _remade(message: Message, properties: bytes) -> Message:
    return make_message(
        message.envelope, properties, message.body(), message.persistent, scan(properties, 0, len(properties))
    )
