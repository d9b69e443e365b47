"""Messages put into one queue as they were elsewhere: /amqpd/append/V/Q, for who moves a broker's queues here.

A publish would go by an exchange, to other queues as well, or say another exchange and routing key than the message
came by. Here both are the message's own, and it goes to that queue alone. Administrators only. RabbitMQ has no such
route.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as NotBase64
from typing import Any, Final

from amqpd.broker.message import Envelope, Message, make_message
from amqpd.broker.publish.offering import TAKEN, offer
from amqpd.broker.publish.confirms import when_safe
from amqpd.broker.queue.log_opener import opened
from amqpd.management.request import BadRequest, Call, Reply, Role, Unavailable, reply
from amqpd.management.exchanges import COMMIT_WAIT_S
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices
from amqpd.protocol.field_table import SHORT_STRING_SIZE_BYTES_MAX, CodecError
from amqpd.protocol.properties import scan
from amqpd.storage.queue_log import QueueLog

MESSAGES_MAX: Final = 1000


async def append(call: Call) -> Reply:
    """Appends a batch of records in Kafka's format, and counts them.
    `{"count": N}` once all of them are as safe as the queue makes them. Raises: BadRequest, and none is taken;
    Unavailable, and the first `count` in its text are, or nobody knows.
    """
    queue = call.queue()
    items = call.given("messages")
    if not isinstance(items, list) or len(items) > MESSAGES_MAX:
        raise BadRequest(f"messages must be a list of {MESSAGES_MAX} at most")
    slices = Slices()
    messages: list[Message] = []
    for item in items:
        messages.append(_message(item, call.broker.message_size_max_bytes))
        if slices.due:
            await slices.rest()
    if call.broker.alarm_reason:
        raise Unavailable(f"publishers are held back: {call.broker.alarm_reason}")
    if not await opened(queue) or queue.gone():
        raise Unavailable("the queue takes nothing now")
    logs: list[QueueLog] = []
    for count, message in enumerate(messages):
        if offer([queue], message, logs) != TAKEN:
            raise Unavailable(f"the queue did not take all of the messages: {count} of them are in it")
    call.broker.turn.want()
    if logs:
        await _safe(call, logs)
    return reply({"count": len(messages)})


async def _safe(call: Call, logs: list[QueueLog]) -> None:
    future: asyncio.Future[bool] = call.broker.loop.create_future()

    def done(safe: bool) -> None:
        if not future.done():
            future.set_result(safe)

    when_safe(call.broker.turn, logs, done)
    try:
        safe = await asyncio.wait_for(future, COMMIT_WAIT_S)
    except TimeoutError:
        raise Unavailable("the disk does not answer; the messages may or may not be kept") from None
    if not safe:
        raise Unavailable("the messages could not be written")


def _message(item: Any, size_max: int) -> Message:
    """Raises: BadRequest."""
    if not isinstance(item, dict):
        raise BadRequest("a message must be an object")
    names: list[str] = []
    for name in ("exchange", "routing_key"):
        text = item.get(name)
        if not isinstance(text, str) or len(text.encode("utf-8", "surrogateescape")) > SHORT_STRING_SIZE_BYTES_MAX:
            raise BadRequest(f"{name} must be text of {SHORT_STRING_SIZE_BYTES_MAX} bytes at most")
        names.append(text)
    properties, body = _bytes(item, "properties"), _bytes(item, "body")
    if len(body) > size_max:
        raise BadRequest(f"message size {len(body)} is larger than the maximum {size_max}")
    persistent = item.get("persistent")
    if not isinstance(persistent, bool):
        raise BadRequest("persistent must be true or false")
    try:
        info = scan(properties, 0, len(properties))
    except CodecError as error:
        raise BadRequest(f"properties: {error}") from None
    return make_message(Envelope(names[0], names[1]), properties, body, persistent, info)


def _bytes(item: dict[str, Any], name: str) -> bytes:
    try:
        return b64decode(item[name], validate=True)
    except (KeyError, TypeError, ValueError, NotBase64):
        raise BadRequest(f"{name} must be base64") from None


ROUTES: Final = (
    Route("POST", "api/amqpd/append/{vhost}/{queue}", Role.ADMINISTRATOR, append, quiet=True, messages=True),
)
