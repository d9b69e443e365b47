"""Publishing: the one way for a front end's messages into the queues of a vhost.

A publisher belongs to a session, so it knows for whom it asks. It finds where a message goes and whether it may: the
exchange, permissions and topic permissions, internal exchanges, what the properties say (user-id, expiration, delivery
mode), keys in CC and BCC, exchanges that look at more than the key, alternate exchanges, direct reply-to. What of that
depends on exchange and routing key alone is a `Route`, and is kept.

How a front end publishes:

    message = publisher.accept(...)           # frames of AMQP; or `compose`, for those who have none
    route = publisher.route                   # where that message goes; no destinations: nobody takes it
    accepted = publisher.offer(route, message)
    unconfirmed.add(route, message)           # who wants to know when it is safe: see confirms.py

`accept` and `compose` raise what is wrong with it, and NotOpenYet when it is to be given once more (opening.when_open).
A route to more than WIDE_COUNT queues goes by a `SlicedFanout`, in slices.

Routes are kept under the bytes of basic.publish, and each is valid while what it depends on keeps its version: a queue
for the default exchange, else the exchange with all behind it. Permissions that change have `forget_routes` called.

What a message's properties must be, where that has to be judged by their text.

A publish comes here only with what a scan cannot decide (`Publisher._look_into`): who sends it, a time to live that is
no plain number, routing keys in CC and BCC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import LogNotOpen, TraceHook, Versioned
from amqpd.broker.message import (
    NO_MESSAGE,
    TTL_MS_MAX,
    Message,
    MessageRoute,
    MessageView,
    make_message,
    message_in_parts,
)
from amqpd.broker.publish import router
from amqpd.broker.publish.idempotence import idempotent_route
from amqpd.broker.publish.route import TAKEN, ExchangeRouteCache, Route, offer_to_all
from amqpd.broker.queue.argument_checks import erlang_type
from amqpd.broker.session import Session, check_permission, check_topic_keys, is_topic_limited
from amqpd.broker.stats import ExchangeStats, PublisherStats
from amqpd.errors import AccessRefused, AmqpError, FrameError, NotImplementedByBroker, PreconditionFailed, ResourceError
from amqpd.protocol import methods
from amqpd.protocol.field_table import CodecError, decode_table, shortstr
from amqpd.protocol.frame import PROPERTIES_START
from amqpd.protocol.properties import DELIVERY_MODE, PropertyInfo, scan_properties, with_reply_to, without_headers
from amqpd.routing.base import ROUTING_KEY

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User


# Sender-selected keys, CC and BCC together.
KEYS_MAX: Final = 1000
_INTEGER: Final = re.compile(rb"([+-]?\d+)(.*)", re.DOTALL)


def needs_validation(info: PropertyInfo) -> bool:
    """Whether `judge` has to look at them. Most messages say nothing that could be wrong."""
    return (
        info.user_id is not None
        or info.has_cc_or_bcc
        or (info.expiration is not None and not 0 <= info.expiration_ms <= TTL_MS_MAX)
        or (info.flags & DELIVERY_MODE != 0 and not 1 <= info.delivery_mode <= 2)
    )


def validate_properties(user: User, info: PropertyInfo, properties: bytes) -> None:
    """Raises: PreconditionFailed (406) for what this user's message must not say. info: what a scan found."""
    if info.flags & DELIVERY_MODE and info.delivery_mode not in (1, 2):
        raise PreconditionFailed(f"invalid message: {{delivery_mode_unknown,{info.delivery_mode}}}")
    if info.user_id is not None:
        _check_user_id(user, info.user_id)
    if info.expiration is not None:
        check_expiration(info.expiration)
    if info.has_cc_or_bcc:
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


ROUTES_MAX: Final = 4096
ROUTE_BYTES_MAX: Final = 1024 * 1024
EXCHANGES_MAX: Final = 64
SENT_MAX: Final = 1024
# Class, method and ticket of basic.publish.
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"


@final
class Publisher:
    """Publishes for one session. An AMQP connection has one per channel."""

    def __init__(self, session: Session) -> None:
        self.session = session
        # Of the message that `accept` or `compose` returned last.
        self.route = Route(MessageRoute("", ""), [], False, Versioned(), False)
        self.published_count: i64 = 0
        # As many of them are in `sent`, by exchange: all but those that went by `route`.
        self._counted: i64 = 0
        self.sent: dict[ExchangeStats, PublisherStats] = {}
        # This turn of the loop writes to as many logs as one turn should: the front end reads on in the next. It is for
        # the front end to unset.
        self.crowded = False
        # What a reply-to of amq.rabbitmq.reply-to becomes: the key of the session's consumer of replies. Empty: none.
        self.reply_key = b""
        self._routes: dict[bytes, Route] = {}
        self._routes_size: i64 = 0
        # Since it was last emptied, and how many more it does not take.
        self._route_hits: i64 = 0
        self._routes_pause: i64 = 0
        self._exchanges: dict[bytes, ExchangeRouteCache] = {}
        # The last publish that went by the cache: the parser hands over the same object where the method is the same
        # and says whether the properties are. Then what was found out of them holds.
        self._same_method = b""
        self._same_route: Route | None = None
        self._same_info: PropertyInfo | None = None
        self._same_persistent = False
        # Of the last properties that were looked into, and found good.
        self._last_info: PropertyInfo | None = None

    # -- a message and its route -------------------------------------------------------------------------------------

    def accept(
        self,
        method: bytes,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        parts: list[bytes] | None,
        same_as_last: bool,
    ) -> Message:
        """The message of a basic.publish, as AMQP's frames carried it; `route` says where it goes.

        method: the payload of basic.publish. content: header and body frames; of a large body the header frame alone,
        and the body in `parts`. same_as_last: as in FrameHandler.on_publish. Raises: AmqpError 403, 404, 406, 501, 506,
        540; NotOpenYet: nothing of it is done, and it is given again.
        """
        route = self._same_route
        known = method is self._same_method and route is not None and route.version == route.source.version
        if same_as_last and known and route is not None:
            info = self._same_info
            persistent = self._same_persistent
        else:
            if not known or route is None:
                route = self._find(method)
            # Flags, and a delivery mode where there is one.
            mode: i64 = content[21]
            if header_size == PROPERTIES_START + 3 and content[19] == 0 and content[20] == 0:
                info = None
                persistent = False
            elif header_size == PROPERTIES_START + 4 and content[19] == 0x10 and content[20] == 0 and 1 <= mode <= 2:
                info = None
                persistent = mode == 2
            else:
                info = self._look_into(content, PROPERTIES_START, header_size - 1)
                persistent = info.delivery_mode == 2
            self._same_info = info
            self._same_persistent = persistent
        if parts is None:
            message = Message(route.envelope, content, header_size, body_size, frame_payload_max, persistent, info)
        else:
            message = message_in_parts(route.envelope, content, parts, body_size, persistent, info)
        if route.per_message or (info is not None and (info.is_direct_reply_to or info.header_flags != 0)):
            message = self._reroute(route, message)
        elif self.route is not route:
            self._go_by(route)
        self.published_count += 1
        return message

    def compose(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, mandatory: bool = False
    ) -> Message:
        """The same for a front end without frames. Its size is that front end's to bound, before it has it all.

        properties: flags and fields, as protocol/properties.py has them; b"\\0\\0": none. Cost: some 1 us and a copy of
        the body. Raises: as `accept`; CodecError where a name is longer than 255 bytes.
        """
        key = shortstr(exchange.encode()) + shortstr(routing_key.encode("utf-8", "surrogateescape"))
        route = self._find(_PUBLISH + key + (b"\1" if mandatory else b"\0"))
        info = self._look_into(properties, 0, len(properties))
        message = make_message(route.envelope, properties, body, info.delivery_mode == 2, info)
        if route.per_message or info.is_direct_reply_to or info.header_flags != 0:
            message = self._reroute(route, message)
        else:
            self._go_by(route)
        self.published_count += 1
        return message

    def offer(self, route: Route, message: Message) -> bool:
        """Gives the message to all queues of its route. False: one of them refused it; the others have it."""
        if not route.routed:
            self.session.vhost.unroutable_count += 1
        return offer_to_all(route.destinations, message, None) == TAKEN

    def tapped(self, tap: TraceHook, route: Route, message: Message, number: i64) -> None:
        """Tells the tap of a publish on the channel of this number: once, whoever offers it."""
        keys = route.keys
        if keys is None:
            keys = [route.envelope.routing_key]
        session = self.session
        tap.published(message, keys, route.destinations, session.name, session.user.name, number)
        if tap.is_behind():
            self.crowded = True

    def publish_error(self, method: bytes) -> AmqpError | None:
        """What `accept` would raise for that method at once: 403, 404, 540; None where it would take it.

        Cost: a look into the cache, or the way to the route, which is then in the cache.
        """
        route = self._routes.get(method)
        if route is None or route.version != route.source.version:
            try:
                self._make_route(method)
            except (LogNotOpen, ResourceError):
                return None  # its log may be open when the message is complete
            except AmqpError as error:
                return error
            finally:
                self._same_route = None  # the same method, of which no header has been looked at yet
        return None

    def forget_routes(self) -> None:
        """Permissions have changed, or the session's user: all is checked anew."""
        self._routes.clear()
        self._routes_size = 0
        self._same_method = b""
        self._same_route = None
        self._exchanges.clear()
        self._last_info = None

    # -- properties --------------------------------------------------------------------------------------------------

    def _look_into(self, content: bytes, start: i64, end: i64) -> PropertyInfo:
        """What the broker must know of the properties, which end at `end`: found in one pass, most often in the object
        of those before. Raises: FrameError (501), PreconditionFailed (406).
        """
        before = self._last_info
        try:
            info = scan_properties(content, start, end, before)
        except CodecError as error:
            raise FrameError(f"bad content header properties: {error}") from None
        if info is before and not info.has_cc_or_bcc:
            return info
        if needs_validation(info):
            same = self._same_route
            self._same_route = None  # until they are known to be good
            validate_properties(self.session.user, info, content[start:end])
            self._same_route = same
        self._last_info = info
        return info

    def _reroute(self, route: Route, message: Message) -> Message:
        """Finds the destinations of a message whose headers or reply-to have a say, and rewrites what must be.

        CC and BCC add routing keys, BCC is removed; reply-to `amq.rabbitmq.reply-to` becomes the session's own key;
        what a producer has numbered goes where it is not yet (idempotence.py).
        """
        info = message.info
        if info is not None and info.is_direct_reply_to:
            if not self.reply_key:
                raise PreconditionFailed("fast reply consumer does not exist")
            message = _remade(message, with_reply_to(message.properties(), self.reply_key))
            info = message.info
        selected = info is not None and info.has_cc_or_bcc
        if not selected and not route.per_message:
            self._go_by(idempotent_route(route, message) if info is not None and info.has_producer_id else route)
            return message
        envelope = route.envelope
        keys = [envelope.routing_key]
        view = MessageView(message)
        if selected:
            keys += [key for key in sender_selected(view.headers()) if key not in keys]
        vhost = self.session.vhost
        exchange = vhost.exchange(envelope.exchange)
        check_topic_keys(self.session, exchange, keys)
        if vhost.unavailable:
            router.check_available(vhost, exchange, keys, not route.per_message)
        destinations = router.route(vhost, exchange, keys, view, None, True)
        if selected and "BCC" in view.headers():
            message = _remade(message, without_headers(message.properties(), ("BCC",)))
        found = route.to(destinations)
        if info is not None and info.has_producer_id:
            found = idempotent_route(found, message)
        if selected and route.tap is not None:
            found.keys = keys
        self._go_by(found)
        return message

    # -- counts ------------------------------------------------------------------------------------------------------

    def _go_by(self, route: Route) -> None:
        """The message that is accepted goes by this route. What went by the one before is counted."""
        last = self.route
        count = self.published_count - self._counted
        if count > 0:
            last.sent.add(count, last.queue_count)
            self._counted = self.published_count
        self.route = route

    def settle_counts(self) -> None:
        """All that was published is in `sent` and in what its exchanges count."""
        self._go_by(self.route)

    def _sent_through(self, route: Route, passed: ExchangeStats) -> PublisherStats:
        sent = self.sent.get(passed)
        if sent is None:
            if len(self.sent) >= SENT_MAX:
                self.sent.clear()  # of exchanges that come and go; what they count themselves stays
            sent = PublisherStats(route.envelope.exchange, passed)
            self.sent[passed] = sent
        return sent

    # -- routes ------------------------------------------------------------------------------------------------------

    def _find(self, method: bytes) -> Route:
        """The route of a method that is not the one before. Raises: as `_make_route`."""
        route = self._routes.get(method) if self._routes else None
        if route is not None and route.version == route.source.version:
            self._same_method = method
            self._same_route = route
            self._route_hits += 1
        else:
            route = self._make_route(method)
        stores = self.session.turn.stores
        if len(stores.dirty) > stores.dirty_max:
            self.crowded = True
        return route

    def _make_route(self, method: bytes) -> Route:
        """Decodes the method, checks permission and exchange, finds the queues. Raises 403, 404, 506, 540;
        NotOpenYet.
        """
        name_end: i64 = 0
        exchange: bytes = b""
        route: Route | None = None
        cacheable = True
        size: i64 = len(method)
        if size > 9:
            # Two short strings behind class, method and ticket, then the bits; what is not as it must be is told by the
            # decoder.
            name_end = 7 + method[6]
            if name_end < size:
                exchange = method[7:name_end]
                known = self._exchanges.get(exchange)
                if known is not None and known.version == known.source.version:
                    key_end = name_end + 1 + method[name_end]
                    if key_end + 1 == size and method[key_end] <= 1:
                        route = known.route(method, name_end + 1)
        if route is not None:
            if self._routes_pause > 0:
                self._routes_pause -= 1
                cacheable = False
        else:
            route, passed, cacheable = _resolve(self.session, method)
            route.sent = self._sent_through(route, passed)
            tap = self.session.vhost.tap
            if tap is not None:
                route.trace(tap, None)
            matcher = route.matcher
            if matcher is not None:
                if len(self._exchanges) >= EXCHANGES_MAX:
                    self._exchanges.clear()
                self._exchanges[exchange] = ExchangeRouteCache(route, matcher)
        if cacheable:
            self._keep_route(method, route)
        else:
            self._same_route = None
        return route

    def _keep_route(self, method: bytes, route: Route) -> None:
        if len(self._routes) >= ROUTES_MAX or self._routes_size > ROUTE_BYTES_MAX:
            if self._route_hits < ROUTES_MAX:
                # Routing keys that hardly ever come twice: to keep them costs more than to find them again.
                self._routes_pause = 16 * ROUTES_MAX
            self._route_hits = 0
            self._routes.clear()
            self._routes_size = 0
        self._routes[method] = route
        self._same_method = method
        self._same_route = route
        self._routes_size += len(method) + 8 * len(route.destinations)


def _resolve(session: Session, method: bytes) -> tuple[Route, ExchangeStats, bool]:
    """A basic.publish to its route, by way of every check, what its exchange counts, and whether the route holds for
    the same bytes again.
    """
    try:
        command = methods.decode(method)
    except methods.MethodSyntaxError as error:
        raise FrameError(error.text) from None
    assert isinstance(command, methods.BasicPublish)  # the parser has looked
    if command.immediate:
        raise NotImplementedByBroker("immediate=true")
    vhost = session.vhost
    check_permission(session, "write", "exchange", command.exchange)
    exchange = vhost.exchange(command.exchange)
    if exchange.internal:
        raise AccessRefused(f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost.name}'")
    key = command.routing_key
    check_topic_keys(session, exchange, (key,))
    envelope = MessageRoute(exchange.name, key)
    if exchange.matcher is None:
        target = router.by_name(vhost, key)
        if target is None:
            route = Route(envelope, [], command.mandatory, exchange.routes, False)
        else:
            route = Route(envelope, [target], command.mandatory, target, False)
        return route, exchange.passed, target is not None
    by_key = router.depends_on(vhost, exchange) == ROUTING_KEY
    if vhost.unavailable:
        router.check_available(vhost, exchange, [key], by_key)
    destinations = router.route(vhost, exchange, [key], NO_MESSAGE) if by_key else []
    route = Route(envelope, destinations, command.mandatory, exchange.routes, not by_key)
    if by_key and not exchange.alternate and not route.kept and not is_topic_limited(session, exchange):
        route.matcher = exchange.matcher
    return route, exchange.passed, True


def _remade(message: Message, properties: bytes) -> Message:
    return make_message(
        message.envelope,
        properties,
        message.body(),
        message.persistent,
        scan_properties(properties, 0, len(properties)),
    )
