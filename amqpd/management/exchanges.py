"""Exchanges: lists, details, declaration, deletion, and a publish over HTTP."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as Base64Error
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.message import Message
from amqpd.broker.publish.confirms import when_safe
from amqpd.broker.publish.deduplication import DeduplicationCache, MessageHistory
from amqpd.broker.publish.fanout import WIDE_COUNT, SlicedFanout
from amqpd.broker.publish.publisher import Publisher
from amqpd.broker.session import Session
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.broker.vhost.pending import wait_done
from amqpd.channel.channel import CHANNEL_COUNTERS
from amqpd.management.connections import channel_details, may_see
from amqpd.management.listing import amqp_to_json, listing, object_reply, requested_ranges, sort_by_name
from amqpd.management.request import (
    CREATED,
    DEFAULT_EXCHANGE,
    NO_CONTENT,
    SESSION_NAME,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    Unavailable,
    clean_name,
    name_of,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.stats import EXCHANGE, flush_counters
from amqpd.management.time_slice import TimeSlice
from amqpd.protocol.properties import Properties, encode_properties
from amqpd.routing.stateful import Deduplication, RecentHistory

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost

COMMIT_WAIT_S: Final = 30.0


def exchange_item(call: ApiRequest, vhost: VHost, exchange: Exchange) -> dict[str, Any]:
    """Return one exchange. Its counters are as new as the last `flush_counters`."""
    policy = vhost.policies.policy_of(exchange)
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": amqp_to_json(exchange.arguments),
        "policy": policy.policy or None,
        "operator_policy": policy.operator_policy or None,
        "effective_policy_definition": dict(policy.definition),
        "messages_delayed": 0 if exchange.wheel is None else int(exchange.wheel.count()),
        "state": "unavailable" if exchange.unavailable else "running",
        **_memory_counts(exchange),
        "message_stats": call.rates.details(exchange, EXCHANGE, requested_ranges(call.query)),
        # rabbit: the broker's own exchanges belong to its internal user
        "user_who_performed_action": "rmq-internal" if exchange.name.startswith("amq.") or not exchange.name else "",
    }


def _memory_counts(exchange: Exchange) -> dict[str, Any]:
    """Return counts of the messages that the exchange remembers. rabbit: `cache_info`, as its plugin."""
    matcher = exchange.matcher
    if isinstance(matcher, Deduplication) and isinstance(matcher.memory, DeduplicationCache):
        seen = matcher.memory
        return {"cache_info": {"entries": seen.count(), "size": seen.size, "duplicates": seen.copy_count}}
    if isinstance(matcher, RecentHistory) and isinstance(matcher.recorder, MessageHistory):
        return {"recent_history_count": matcher.recorder.count()}
    return {}


async def get_exchanges(call: ApiRequest) -> ApiResponse:
    """List exchanges, of all virtual hosts or of one."""
    slices = TimeSlice()
    await flush_counters(list(call.server.connections), slices)
    pairs: list[tuple[VHost, Exchange]] = []
    for vhost in call.vhosts():
        for exchange in await sort_by_name(list(vhost.exchanges.values()), name_of, slices):
            pairs.append((vhost, exchange))
            await slices.yield_if_due()
    return await listing(call, pairs, lambda pair: exchange_item(call, *pair), lambda pair: pair[1].name)


async def get_exchange(call: ApiRequest) -> ApiResponse:
    """Return one exchange, with the channels that publish to it."""
    slices = TimeSlice()
    await flush_counters(list(call.server.connections), slices)
    incoming = await _incoming(call, call.exchange(), slices)
    # rabbit: with rates_mode basic, messages from an exchange to each queue are not counted.
    return object_reply(
        call, {**exchange_item(call, call.vhost(), call.exchange()), "incoming": incoming, "outgoing": []}
    )


async def _incoming(call: ApiRequest, exchange: Exchange, slices: TimeSlice) -> list[dict[str, Any]]:
    """Return the channels that the caller may see and that publish to the exchange. Cost: visits every channel."""
    found: list[dict[str, Any]] = []
    for connection in list(call.server.connections):
        for channel in connection.channels.all():
            sent = channel.publisher.sent.get(exchange.stats)
            if sent is not None and sent.in_count > 0 and not channel.closing and may_see(call, channel.session):
                details = channel_details(call, channel)
                found.append({"channel_details": details, "stats": call.rates.pairs.published(sent)})
        await slices.yield_if_due()
    return found


async def put_exchange(call: ApiRequest) -> ApiResponse:
    """Declare the exchange; 201 for a new one, 204 for an equivalent one, 400 otherwise."""
    vhost = call.vhost()
    name = clean_name(call.params["exchange"], "an exchange")
    if name == DEFAULT_EXCHANGE:
        vhost.check_not_default("")
    arguments = call.arguments()
    call.check(vhost.name, "configure", "exchange", name)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str) and vhost.find_exchange(name) is None:
        # rabbit: a new exchange needs read on itself and write on its alternate
        call.check(vhost.name, "read", "exchange", name)
        call.check(vhost.name, "write", "exchange", alternate)
    declaration = ExchangeDeclaration(
        name,
        call.text("type", "direct"),
        call.flag("durable", True),
        call.flag("auto_delete"),
        call.flag("internal"),
        arguments,
    )
    return CREATED if await wait_done(partial(declare.declare_exchange, vhost, declaration)) else NO_CONTENT


async def delete_exchange(call: ApiRequest) -> ApiResponse:
    """Delete the exchange; with `if-unused=true` only if it has no bindings."""
    vhost = call.vhost()
    call.check(vhost.name, "configure", "exchange", call.params["exchange"])
    await wait_done(partial(declare.delete_exchange, vhost, call.exchange(), call.query_flag("if-unused")))
    return NO_CONTENT


# -- publish ---------------------------------------------------------------------------------------------------------


async def publish(call: ApiRequest) -> ApiResponse:
    """Publish a message and return whether a queue took it.

    Answers `{"routed": ...}` when the message is as safe as its queues make it. Raises: NotAuthorised, BadRequest,
    Unavailable.
    """
    vhost = call.vhost()
    try:
        exchange = call.exchange()
    except ResourceNotFound as error:
        raise BadRequest(error.reason) from None  # rabbit: 400, not 404
    key = call.text("routing_key")
    if len(key.encode()) > 255:
        raise BadRequest("a routing key has at most 255 bytes")
    body = _body(call)
    if len(body) > call.broker.message_size_max_bytes:
        raise BadRequest(f"message size {len(body)} is larger than the maximum {call.broker.message_size_max_bytes}")
    properties = encode_properties(_properties(call))
    session = Session(call.broker, vhost, call.caller.user, SESSION_NAME)
    session.operator = call.caller.operator
    publisher = Publisher(session)
    message = publisher.compose(exchange.name, key, properties, body)
    if call.broker.alarm_reason:
        raise Unavailable(f"publishers are blocked: {call.broker.alarm_reason}")
    await _offer(call, publisher, message)
    publisher.settle_counts()
    _count(session, publisher.route.routed)
    return reply({"routed": publisher.route.routed})


def _count(session: Session, routed: bool) -> None:
    """Count a message in totals. RabbitMQ: its API publishes on a channel that confirms, with `mandatory`."""
    returned = 0 if routed else 1
    counts = dict.fromkeys(CHANNEL_COUNTERS, 0) | {"publish": 1, "confirm": 1, "return_unroutable": returned}
    totals = session.broker.channels
    totals.ended_confirm_count += 1
    session.vhost.counts.returned_count += returned
    for ended in (totals.ended, session.vhost.counts.ended_channels):
        ended.add(list(counts.values()))


async def _offer(call: ApiRequest, publisher: Publisher, message: Message) -> None:
    """Enqueue the message in every queue of its route, and wait for the logs that store it.

    Raises: BadRequest if a queue rejects it; Unavailable if a log cannot store it, or not in time, or if one of more
    than WIDE_COUNT queues rejects it.
    """
    route = publisher.route
    if route.tap is not None:
        publisher.trace_publish(route.tap, route, message, 1)
    if len(route.destinations) > WIDE_COUNT:

        def begin(done: Callable[[bool], None]) -> None:
            SlicedFanout(publisher.session, route, message, True, done).step()

        await wait_stored(call, begin, "a queue did not take the message, or it could not be written")
        return
    if not publisher.offer(route, message):
        if any(each.failed for each in route.logs(message)):
            raise Unavailable("a queue could not write the message")
        raise BadRequest("a queue rejected the message; check the queue limits")  # rabbit: 400
    call.broker.turn.schedule()
    if logs := route.logs(message):
        await wait_stored(call, partial(when_safe, call.broker.turn, logs), "the message could not be written")


async def wait_stored(call: ApiRequest, begin: Callable[[Callable[[bool], None]], None], failed: str) -> None:
    """Wait until messages are stored.

    Args:
        begin: gets a function, and calls it later with True if all logs have stored the messages.
        failed: text of the error if they have not.

    Raises: Unavailable, also after COMMIT_WAIT_S.
    """
    future: asyncio.Future[bool] = call.broker.loop.create_future()

    def done(safe: bool) -> None:
        if not future.done():
            future.set_result(safe)

    begin(done)
    try:
        safe = await asyncio.wait_for(future, COMMIT_WAIT_S)
    except TimeoutError:
        raise Unavailable("the disk does not respond; it is not known what was stored") from None
    if not safe:
        raise Unavailable(failed)


def _body(call: ApiRequest) -> bytes:
    payload = call.text("payload")
    encoding = call.text("payload_encoding", "string")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise BadRequest("payload_encoding: expected string or base64")
    try:
        return b64decode("".join(payload.split()), validate=True)  # rabbit: it may have line breaks
    except (Base64Error, ValueError):
        raise BadRequest("payload is not base64") from None


def _properties(call: ApiRequest) -> Properties:
    fields = call.fields().get("properties", {})
    if fields == []:  # rabbit: an empty list counts as an empty object
        fields = {}
    if not isinstance(fields, dict):
        raise BadRequest("properties must be an object")
    unknown = set(fields) - set(Properties._fields)
    if unknown:
        raise BadRequest(f"unknown properties: {', '.join(sorted(unknown))}")
    for name, value in fields.items():
        number = name in ("delivery_mode", "priority", "timestamp")
        right = isinstance(value, int) and not isinstance(value, bool) if number else isinstance(value, str)
        if name == "headers":
            right = isinstance(value, dict)
        if not right:
            raise BadRequest(f"property {name} must be {'a number' if number else 'text'}")
    properties = Properties(**fields)
    if properties.delivery_mode not in (None, 1, 2):
        raise BadRequest("delivery_mode: expected 1 or 2")
    return properties


_ONE: Final = "api/exchanges/{vhost}/{exchange}"
ROUTES: Final = (
    ApiRoute("GET", "api/exchanges", Role.MANAGEMENT, get_exchanges),
    ApiRoute("GET", "api/exchanges/{vhost}", Role.MANAGEMENT, get_exchanges),
    ApiRoute("GET", _ONE, Role.MANAGEMENT, get_exchange),
    ApiRoute("PUT", _ONE, Role.MANAGEMENT, put_exchange),
    ApiRoute("DELETE", _ONE, Role.MANAGEMENT, delete_exchange),
    ApiRoute("POST", _ONE + "/publish", Role.MANAGEMENT, publish, quiet=True, messages=True),
)
