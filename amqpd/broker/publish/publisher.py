"""Publisher: publishes the messages of one session to the queues of a vhost.

For each message it finds the queues, and checks the exchange, the permissions and the properties. It also handles the
keys in CC and BCC, alternate exchanges and direct reply-to. A front end publishes like this:

    message = publisher.accept(...)           # frames of AMQP; `compose` for a front end without frames
    route = publisher.route                   # the route of that message; without destinations it is unroutable
    accepted = publisher.offer(route, message)
    tracker.add(route, message)               # only for publishes that want a confirm: confirms.py

`accept` and `compose` raise the error of a bad message. They raise LogNotOpen if a queue's log is being opened; then
the front end calls again after `log_opener.when_open`. A route to more than WIDE_COUNT queues needs a `SlicedFanout`.

**Route cache.** A cached `Route` depends on exchange and routing key alone. Its key in the cache is the bytes of
basic.publish. It is valid while its source keeps its version: the queue for the default exchange, otherwise the
exchange with all exchanges behind it. When permissions change, `forget_routes` must be called.

**Properties.** `scan_properties` finds in one pass most of what the broker needs. Only a user-id, CC and BCC, and a
suspicious expiration or delivery mode are validated by their values.
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
    with_properties,
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


# Maximum of routing keys in CC and BCC together.
KEYS_MAX: Final = 1000
_INTEGER: Final = re.compile(rb"([+-]?\d+)(.*)", re.DOTALL)


def needs_validation(info: PropertyInfo) -> bool:
    """Return whether `validate_properties` is needed. Most messages have no property that can be wrong."""
    return (
        info.user_id is not None
        or info.has_cc_or_bcc
        or (info.expiration is not None and not 0 <= info.expiration_ms <= TTL_MS_MAX)
        or (info.flags & DELIVERY_MODE != 0 and not 1 <= info.delivery_mode <= 2)
    )


def validate_properties(user: User, info: PropertyInfo, properties: bytes) -> None:
    """Check the properties that a scan cannot check.

    Args:
        info: the result of `scan_properties` for these properties.

    Raises:
        PreconditionFailed: 406, with RabbitMQ's texts.
    """
    if info.user_id is not None:
        _check_user_id(user, info.user_id)
    if info.expiration is not None:
        check_expiration(info.expiration)
    if info.has_cc_or_bcc:
        sender_selected(decode_table(properties, info.headers_start)[0])
    if info.flags & DELIVERY_MODE and info.delivery_mode not in (1, 2):
        raise PreconditionFailed(f"invalid message: {{delivery_mode_unknown,{info.delivery_mode}}}")


def _check_user_id(user: User, user_id: bytes) -> None:
    if user_id != user.name.encode() and "impersonator" not in user.tags:
        given = user_id.decode("utf-8", "replace")
        raise PreconditionFailed(f"user_id property set to '{given}' but authenticated user was '{user.name}'")


def check_expiration(text: bytes) -> None:
    """Check an expiration in milliseconds. Raises: PreconditionFailed with RabbitMQ's text if it is not valid."""
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


def sender_selected(headers: Mapping[str, object]) -> list[str]:
    """Return the routing keys of CC and BCC, each once.

    Raises:
        PreconditionFailed: 406, CC or BCC is not an array, or there are more than KEYS_MAX keys.
    """
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name)
        if name not in headers:
            continue
        if not isinstance(value, list):
            raise PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{name}",{erlang_type(value)}}}')
        for key in value:
            if isinstance(key, bytes):
                keys.append(key.decode("utf-8", "surrogateescape"))
            elif isinstance(key, str):
                keys.append(key)
            # rabbit: values that are not strings are ignored
    distinct = list(dict.fromkeys(keys))
    if len(distinct) > KEYS_MAX:
        raise PreconditionFailed(f"CC and BCC name {len(distinct)} routing keys, at most {KEYS_MAX}")
    return distinct


ROUTES_MAX: Final = 4096
ROUTE_BYTES_MAX: Final = 1024 * 1024
ROUTES_SWEEP_MIN: Final = 256
"""Routes from which on outdated ones are dropped."""
EXCHANGES_MAX: Final = 64
SENT_MAX: Final = 1024
# Class id, method id and ticket of basic.publish.
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"


@final
class Publisher:
    """Publisher of one session. An AMQP connection has one per channel.

    Attributes:
        route: the route of the message that `accept` or `compose` returned last.
        sent: exchange counters -> counters of this publisher. They lack the publishes that used `route` since it
            became the current route; `settle_counts` adds these.
        crowded: this loop turn writes to as many logs as one turn should, or tracing is behind. The front end pauses
            until the next turn and resets it.
        reply_key: replaces a reply-to of amq.rabbitmq.reply-to: the key of the session's reply consumer. Empty: no
            consumer.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.route = Route(MessageRoute("", ""), [], False, Versioned(), False)
        self.published_count: i64 = 0
        # Number of publishes that `sent` includes.
        self._counted: i64 = 0
        self.sent: dict[ExchangeStats, PublisherStats] = {}
        self.crowded = False
        self.reply_key = b""
        self._routes: dict[bytes, Route] = {}
        self._routes_size: i64 = 0
        self._routes_sweep_at: i64 = ROUTES_SWEEP_MIN
        # Hits since the cache was last emptied; number of new routes that will not be cached.
        self._route_hits: i64 = 0
        self._routes_pause: i64 = 0
        self._exchanges: dict[bytes, ExchangeRouteCache] = {}
        # The last cached publish. For an equal method the parser passes the same object, and tells whether the
        # properties are equal, too. Then route and scan result are reused.
        self._same_method = b""
        self._same_route: Route | None = None
        self._same_info: PropertyInfo | None = None
        self._same_persistent = False
        # Scan result of the last valid properties.
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
        """Return the message of a basic.publish, and set `route`.

        Args:
            method: the payload of the method frame.
            content: header and body frames; the header frame alone if the body is in `parts`.
            parts: the payloads of a large body.
            same_as_last: as in `FrameHandler.on_publish`.

        Raises:
            AmqpError: 403, 404, 406, 501, 506, 540.
            LogNotOpen: nothing has changed; call again when the logs are open.
        """
        route = self._same_route
        known = method is self._same_method and route is not None and route.version == route.source.version
        if same_as_last and known and route is not None:
            info = self._same_info
            persistent = self._same_persistent
        else:
            if not known or route is None:
                route = self._find_route(method)
            # A header without properties, or with the delivery mode alone, needs no scan. Bytes 19 and 20 are the
            # property flags, byte 21 is the delivery mode.
            mode: i64 = content[21]
            if header_size == PROPERTIES_START + 3 and content[19] == 0 and content[20] == 0:
                info = None
                persistent = False
            elif header_size == PROPERTIES_START + 4 and content[19] == 0x10 and content[20] == 0 and 1 <= mode <= 2:
                info = None
                persistent = mode == 2
            else:
                info = self._scan(content, PROPERTIES_START, header_size - 1)
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
            self._use_route(route)
        self.published_count += 1
        return message

    def compose(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> Message:
        """Return the message of a front end without frames, and set `route`. The front end limits the body size.

        Args:
            properties: flags and fields as in protocol/properties.py; b"\\0\\0" for none.

        Raises:
            AmqpError, LogNotOpen: as `accept`.
            CodecError: a name is longer than 255 bytes.

        Cost: about 1 us and a copy of the body.
        """
        key = shortstr(exchange.encode()) + shortstr(routing_key.encode("utf-8", "surrogateescape"))
        route = self._find_route(_PUBLISH + key + b"\0")
        info = self._scan(properties, 0, len(properties))
        message = make_message(route.envelope, properties, body, info.delivery_mode == 2, info)
        if route.per_message or info.is_direct_reply_to or info.header_flags != 0:
            message = self._reroute(route, message)
        else:
            self._use_route(route)
        self.published_count += 1
        return message

    def offer(self, route: Route, message: Message) -> bool:
        """Enqueue the message in all queues of its route. Return False if at least one queue refused it."""
        if not route.routed:
            self.session.vhost.unroutable_count += 1
        return offer_to_all(route.destinations, message, None) == TAKEN

    def trace_publish(self, tap: TraceHook, route: Route, message: Message, number: i64) -> None:
        """Report a publish on channel `number` to the firehose. The front end calls this once per message."""
        keys = route.keys
        if keys is None:
            keys = [route.envelope.routing_key]
        session = self.session
        tap.published(message, keys, route.destinations, session.name, session.user.name, number)
        if tap.is_behind():
            self.crowded = True

    def publish_error(self, method: bytes) -> AmqpError | None:
        """Return the error that `accept` would raise because of the method alone: 403, 404, 540; otherwise None.

        Cost: a look-up in the route cache; on a miss the route is made and cached.
        """
        route = self._routes.get(method)
        if route is None or route.version != route.source.version:
            try:
                self._make_route(method)
            except (LogNotOpen, ResourceError):
                return None  # the log may be open when the message is complete
            except AmqpError as error:
                return error
            finally:
                self._same_route = None  # no properties have been scanned for this method
        return None

    def forget_routes(self) -> None:
        """Empty the caches, because the permissions or the user of the session changed."""
        self._clear_routes()
        self._same_method = b""
        self._same_route = None
        self._exchanges.clear()
        self._last_info = None

    # -- properties --------------------------------------------------------------------------------------------------

    def _scan(self, content: bytes, start: i64, end: i64) -> PropertyInfo:
        """Scan and validate the properties between `start` and `end`.

        Return the object of the previous call if it describes these properties, too.

        Raises:
            FrameError: 501, the properties cannot be decoded.
            PreconditionFailed: 406.
        """
        previous = self._last_info
        try:
            info = scan_properties(content, start, end, previous)
        except CodecError as error:
            raise FrameError(f"bad content header properties: {error}") from None
        if info is previous and not info.has_cc_or_bcc:
            return info
        if needs_validation(info):
            same = self._same_route
            self._same_route = None  # stays None if the validation raises
            validate_properties(self.session.user, info, content[start:end])
            self._same_route = same
        self._last_info = info
        return info

    def _reroute(self, route: Route, message: Message) -> Message:
        """Find the destinations of a message that cannot use a cached route, and rewrite its properties.

        CC and BCC add routing keys, and BCC is removed. A reply-to of `amq.rabbitmq.reply-to` becomes `reply_key`. A
        message with a producer's sequence skips the queues that have it already (idempotence.py).
        """
        info = message.info
        if info is not None and info.is_direct_reply_to:
            if not self.reply_key:
                raise PreconditionFailed("fast reply consumer does not exist")
            message = _with_properties(message, with_reply_to(message.properties(), self.reply_key))
            info = message.info
        selected = info is not None and info.has_cc_or_bcc
        if not selected and not route.per_message:
            self._use_route(idempotent_route(route, message) if info is not None and info.has_producer_id else route)
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
            message = _with_properties(message, without_headers(message.properties(), ("BCC",)))
        found = route.to(destinations)
        if info is not None and info.has_producer_id:
            found = idempotent_route(found, message)
        if selected:
            found.keys = keys
        self._use_route(found)
        return message

    # -- counts ------------------------------------------------------------------------------------------------------

    def _use_route(self, route: Route) -> None:
        """Make this the current route. The publishes that used the previous one are added to `sent`."""
        last = self.route
        count = self.published_count - self._counted
        if count > 0:
            last.sent.add(count, last.queue_count)
            self._counted = self.published_count
        self.route = route

    def settle_counts(self) -> None:
        """Add the publishes of the current route to `sent` and to the counters of the exchanges."""
        self._use_route(self.route)

    def _counters_of(self, route: Route, exchange_stats: ExchangeStats) -> PublisherStats:
        sent = self.sent.get(exchange_stats)
        if sent is None:
            if len(self.sent) >= SENT_MAX:
                self.sent.clear()  # too many short-lived exchanges; the counters of the exchanges stay
            sent = PublisherStats(route.envelope.exchange, exchange_stats)
            self.sent[exchange_stats] = sent
        return sent

    # -- routes ------------------------------------------------------------------------------------------------------

    def _find_route(self, method: bytes) -> Route:
        """Return the route of a method that differs from the last one. Raises: as `_make_route`."""
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
        """Decode the method, check the exchange and the permissions, find the queues and cache the route.

        Raises:
            AmqpError: 403, 404, 406, 501, 506, 540.
            LogNotOpen: the log of a queue is being opened.
        """
        name_end: i64 = 0
        exchange: bytes = b""
        route: Route | None = None
        cacheable = True
        size: i64 = len(method)
        if size > 9:
            # Two short strings after class, method and ticket, then the bits. For any other form the decoder in
            # `_resolve` raises the error.
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
            route, exchange_stats, cacheable = _resolve(self.session, method)
            route.sent = self._counters_of(route, exchange_stats)
            tap = self.session.vhost.tap
            if tap is not None:
                route.trace(tap, None)
            matcher = route.matcher
            if matcher is not None:
                if len(self._exchanges) >= EXCHANGES_MAX:
                    self._exchanges.clear()
                self._exchanges[exchange] = ExchangeRouteCache(route, matcher)
        if cacheable:
            self._cache_route(method, route)
        else:
            self._same_route = None
        return route

    def _cache_route(self, method: bytes, route: Route) -> None:
        if len(self._routes) >= self._routes_sweep_at:
            self._drop_outdated_routes()
        if len(self._routes) >= ROUTES_MAX or self._routes_size > ROUTE_BYTES_MAX:
            if self._route_hits < ROUTES_MAX:
                # These routing keys rarely repeat: caching their routes costs more than finding them again.
                self._routes_pause = 16 * ROUTES_MAX
            self._route_hits = 0
            self._clear_routes()
        self._routes[method] = route
        self._same_method = method
        self._same_route = route
        self._routes_size += len(method) + 8 * len(route.destinations)

    def _clear_routes(self) -> None:
        self._routes.clear()
        self._routes_size = 0
        self._routes_sweep_at = ROUTES_SWEEP_MIN

    def _drop_outdated_routes(self) -> None:
        """Drop the routes to deleted queues, each of which keeps 3 KB of its queue in memory.

        Cost: linear in the routes; runs when their number has doubled.
        """
        kept = {method: route for method, route in self._routes.items() if route.version == route.source.version}
        self._clear_routes()
        self._routes = kept
        for method, route in kept.items():
            self._routes_size += len(method) + 8 * len(route.destinations)
        count: i64 = len(kept)
        self._routes_sweep_at = max(2 * count, ROUTES_SWEEP_MIN)


def _resolve(session: Session, method: bytes) -> tuple[Route, ExchangeStats, bool]:
    """Resolve a basic.publish with every check.

    Return the route, the counters of the exchange, and whether the route may be cached.
    """
    try:
        command = methods.decode(method)
    except methods.MethodSyntaxError as error:
        raise FrameError(error.text) from None
    assert isinstance(command, methods.BasicPublish)  # the parser checked this
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
        return route, exchange.stats, target is not None
    by_key = router.depends_on(vhost, exchange) == ROUTING_KEY
    if vhost.unavailable:
        router.check_available(vhost, exchange, [key], by_key)
    destinations = router.route(vhost, exchange, [key], NO_MESSAGE) if by_key else []
    route = Route(envelope, destinations, command.mandatory, exchange.routes, not by_key)
    if by_key and not exchange.alternate and not route.has_state and not is_topic_limited(session, exchange):
        route.matcher = exchange.matcher
    return route, exchange.stats, True


def _with_properties(message: Message, properties: bytes) -> Message:
    return with_properties(message, message.envelope, properties, scan_properties(properties, 0, len(properties)))
