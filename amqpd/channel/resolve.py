"""A publish method to its route: the checks, the exchange, the queues. Once per method and version; channels keep the
answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.message import Envelope
from amqpd.broker.publishing import router
from amqpd.channel.access import check, check_topic_keys
from amqpd.channel.route import Route
from amqpd.errors import AccessRefused, FrameError, NotImplementedByBroker, SoftError
from amqpd.protocol import commands
from amqpd.protocol.assembler import BASIC_PUBLISH

if TYPE_CHECKING:
    from amqpd.broker.session import Session


def resolve(session: Session, method: bytes) -> tuple[Route, bool]:
    """A basic.publish to its route. Raises: what the checks raise; see Channel.publish."""
    try:
        command = commands.decode(method)
    except commands.MethodSyntaxError as error:
        raise FrameError(error.text, BASIC_PUBLISH) from None
    assert isinstance(command, commands.BasicPublish)  # the assembler has looked
    try:
        return _resolve(session, command)
    except SoftError as error:
        error.method = BASIC_PUBLISH
        raise


def _resolve(session: Session, command: commands.BasicPublish) -> tuple[Route, bool]:
    if command.immediate:
        raise NotImplementedByBroker("immediate=true", BASIC_PUBLISH)
    vhost = session.vhost
    check(session, "write", "exchange", command.exchange)
    exchange = vhost.exchange(command.exchange)
    if exchange.internal:
        raise AccessRefused(f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost.name}'")
    key = command.routing_key
    check_topic_keys(session, exchange, (key,))
    envelope = Envelope(exchange.name, key)
    if exchange.matcher is None:
        target = router.by_name(vhost, key)
        if target is None:
            return Route(envelope, [], command.mandatory, exchange.routes, False), False
        return Route(envelope, [target], command.mandatory, target, False), True
    needs_headers = router.needs_headers(vhost, exchange)
    if vhost.unavailable:
        router.check_available(vhost, exchange, [key], needs_headers)
    if needs_headers:
        return Route(envelope, [], command.mandatory, exchange.routes, True), True
    destinations = router.route(vhost, exchange, [key], dict)
    route = Route(envelope, destinations, command.mandatory, exchange.routes, False)
    auth = session.broker.auth
    limited = exchange.kind == "topic" and auth.topic_limited(session.user, vhost.name, exchange.name)
    if not limited and not exchange.alternate:
        route.matcher = exchange.matcher
    return route, True
