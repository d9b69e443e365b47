"""Exchanges: /exchanges, one exchange, and a publish through it."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as Base64Error
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.catalogue.declared import Coming
from amqpd.broker.message import Envelope, make_message
from amqpd.broker.publishing import router
from amqpd.broker.queues.opening import opened
from amqpd.channel.properties_check import check_expiration, sender_selected
from amqpd.errors import AccessRefused
from amqpd.management.call import (
    CREATED,
    DEFAULT_EXCHANGE,
    NO_CONTENT,
    BadRequest,
    Call,
    Reply,
    Role,
    Unavailable,
    clean_name,
    reply,
)
from amqpd.management.listing import listing, one, plain
from amqpd.management.router import Route
from amqpd.protocol.properties import Properties, encode_properties, scan, without_headers

if TYPE_CHECKING:
    from amqpd.broker.catalogue.exchange import Exchange
    from amqpd.broker.catalogue.vhost import VHost
    from amqpd.broker.destination import Destination
    from amqpd.broker.message import Message

COMMIT_WAIT_S: Final = 30.0


def exchange_item(vhost: str, exchange: Exchange) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
        "policy": None,
        "state": "unavailable" if exchange.unavailable else "running",
        # rabbit: the broker's own exchanges belong to its internal user
        "user_who_performed_action": "rmq-internal" if exchange.name.startswith("amq.") or not exchange.name else "",
    }


async def get_exchanges(call: Call) -> Reply:
    pairs = [(v.name, x) for v in call.vhosts() for x in sorted(v.exchanges.values(), key=_name)]
    return await listing(call, pairs, lambda pair: exchange_item(*pair), lambda pair: pair[1].name)


async def get_exchange(call: Call) -> Reply:
    return one(call, exchange_item(call.vhost().name, call.exchange()))


async def put_exchange(call: Call) -> Reply:
    """201 for a new one, 204 for an equivalent one, 400 otherwise."""
    vhost = call.vhost()
    name = clean_name(call.params["exchange"], "an exchange")
    if name == DEFAULT_EXCHANGE:
        vhost.check_not_default("")
    arguments = call.arguments()
    call.check(vhost.name, "configure", "exchange", name)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        # rabbit: whoever names an alternate must be able to read here and to write there
        call.check(vhost.name, "read", "exchange", name)
        call.check(vhost.name, "write", "exchange", alternate)
    found = vhost.declare_exchange(
        name,
        call.text("type", "direct"),
        call.flag("durable", True),
        call.flag("auto_delete"),
        call.flag("internal"),
        arguments,
    )
    if not isinstance(found, Coming):
        return NO_CONTENT
    await call.broker.make(found)
    return CREATED


async def delete_exchange(call: Call) -> Reply:
    vhost = call.vhost()
    call.check(vhost.name, "configure", "exchange", call.params["exchange"])
    changes = vhost.delete_exchange(call.exchange(), call.query_flag("if-unused"))
    await call.broker.removed(changes)
    return NO_CONTENT


# -- publish ---------------------------------------------------------------------------------------------------------


async def publish(call: Call) -> Reply:
    """`{"routed": ...}` once the message is as safe as its queues make it. Raises: NotAuthorised, BadRequest, ..."""
    vhost, exchange = call.vhost(), call.exchange()
    key = call.text("routing_key")
    if len(key.encode()) > 255:
        raise BadRequest("a routing key has at most 255 bytes")
    body = _body(call)
    if len(body) > call.broker.message_size_max_bytes:
        raise BadRequest(f"message size {len(body)} is larger than the maximum {call.broker.message_size_max_bytes}")
    properties = _properties(call)
    call.check(vhost.name, "write", "exchange", exchange.name)
    if exchange.internal:
        raise AccessRefused(f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost.name}'")
    if call.broker.alarm_reason:
        raise Unavailable(f"publishers are held back: {call.broker.alarm_reason}")
    keys = [key]
    headers = properties.headers or {}
    keys += [other for other in sender_selected(headers) if other != key]
    call.check_topic(vhost.name, exchange, "write", keys)
    encoded = encode_properties(properties)
    if "BCC" in headers:
        encoded = without_headers(encoded, ("BCC",))
    persistent = properties.delivery_mode == 2
    message = make_message(Envelope(exchange.name, key), encoded, body, persistent, scan(encoded, 0, len(encoded)))
    if vhost.unavailable:
        router.check_available(vhost, exchange, keys, router.needs_headers(vhost, exchange))
    destinations = router.route(vhost, exchange, keys, lambda: headers)
    await _offer(call, vhost, destinations, message)
    return reply({"routed": bool(destinations)})


async def _offer(call: Call, vhost: VHost, destinations: list[Destination], message: Message) -> None:
    """To every queue, and waits for the logs it ends in. Raises: Unavailable when one does not take it."""
    accepted = True
    waits = False
    for destination in destinations:
        await opened(destination)
    for destination in destinations:
        destination.prepare()
        accepted = destination.offer(message) and accepted
        waits = waits or (message.persistent and destination.log() is not None)
    if not destinations:
        vhost.unroutable_count += 1
    if not accepted:
        raise Unavailable("a queue did not take the message")
    call.broker.turn.want()
    if waits:
        await _synced(call, destinations)


async def _synced(call: Call, destinations: list[Destination]) -> None:
    """Returns when what was offered is on the disk."""
    future: asyncio.Future[bool] = call.broker.loop.create_future()
    logs = [log for destination in destinations if (log := destination.log()) is not None]

    def done(failed: list[Any]) -> None:
        if not future.done():
            future.set_result(not any(log in failed for log in logs))

    call.broker.turn.when_synced(done)
    try:
        safe = await asyncio.wait_for(future, COMMIT_WAIT_S)
    except TimeoutError:
        raise Unavailable("the disk does not answer; the message may or may not be kept") from None
    if not safe:
        raise Unavailable("the message could not be written")


def _body(call: Call) -> bytes:
    payload = call.text("payload")
    encoding = call.text("payload_encoding", "string")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise BadRequest("payload_encoding is string or base64")
    try:
        return b64decode(payload, validate=True)
    except (Base64Error, ValueError):
        raise BadRequest("payload is not base64") from None


def _properties(call: Call) -> Properties:
    given = call.fields().get("properties", {})
    if given == []:  # rabbit: an empty list counts as an empty object
        given = {}
    if not isinstance(given, dict):
        raise BadRequest("properties must be an object")
    unknown = set(given) - set(Properties._fields)
    if unknown:
        raise BadRequest(f"unknown properties: {', '.join(sorted(unknown))}")
    for name, value in given.items():
        number = name in ("delivery_mode", "priority", "timestamp")
        right = isinstance(value, int) and not isinstance(value, bool) if number else isinstance(value, str)
        if name == "headers":
            right = isinstance(value, dict)
        if not right:
            raise BadRequest(f"property {name} must be {'a number' if number else 'text'}")
    properties = Properties(**given)
    if properties.delivery_mode not in (None, 1, 2):
        raise BadRequest("delivery_mode is 1 or 2")
    if properties.expiration is not None:
        check_expiration(properties.expiration.encode())
    user = call.caller.user
    if properties.user_id not in (None, user.name) and "impersonator" not in user.tags:
        raise BadRequest(
            f"user_id property set to '{properties.user_id}' but authenticated user was '{user.name}'"
        )
    return properties


def _name(exchange: Exchange) -> str:
    return exchange.name


_ONE: Final = "api/exchanges/{vhost}/{exchange}"
ROUTES: Final = (
    Route("GET", "api/exchanges", Role.MANAGEMENT, get_exchanges),
    Route("GET", "api/exchanges/{vhost}", Role.MANAGEMENT, get_exchanges),
    Route("GET", _ONE, Role.MANAGEMENT, get_exchange),
    Route("PUT", _ONE, Role.MANAGEMENT, put_exchange),
    Route("DELETE", _ONE, Role.MANAGEMENT, delete_exchange),
    Route("POST", _ONE + "/publish", Role.MANAGEMENT, publish, quiet=True),
)
