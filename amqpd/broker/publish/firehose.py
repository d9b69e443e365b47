"""Messages that the broker itself publishes: the firehose's copies, and events. Each is sent at most once.

**Firehose.** While a vhost is traced, `Firehose` copies all that clients publish and consume there to the exchange
`amq.rabbitmq.trace`. Dead letters and the copies themselves are not copied. A copy has the body of the message, its
properties in the headers, and the routing key `publish.EXCHANGE` or `deliver.QUEUE`. Tracing is off after a start.

Copies are made later and in slices, so that no `enqueue` of one queue calls that of another. Above COUNT_MAX or
BYTES_MAX waiting copies, further ones are lost, and the log shows how many. Publishers are slowed before that;
consumers are not. Cost: none while tracing is off, about 30 us per copy (compiled), almost none without a binding.

**Events.** `EventExchange` is the exchange `amq.rabbitmq.event` and publishes each event as a message without a body.
It is a durable, internal topic exchange of the vhost in the setting `event_exchange_vhost`. Without bindings, events
are not made.

Source: https://www.rabbitmq.com/docs/firehose; headers and their order measured on 3.10.8.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.broker.consumer import Destination, LogNotOpen, TraceHook
from amqpd.broker.events import EVENT_EXCHANGE, Event, Events
from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.broker.publish import router
from amqpd.broker.publish.route import offer_to_all, prepare
from amqpd.broker.queue.log_opener import when_open
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.exchange import Binding, Exchange
from amqpd.broker.vhost.pending import Done, ignore_result
from amqpd.broker.vhost.policy_table import SlicedWalk
from amqpd.broker.vhost.vhosts import tell
from amqpd.errors import ResourceError
from amqpd.protocol.field_table import Timestamp
from amqpd.protocol.properties import Properties, decode_properties, encode_properties, scan_properties
from amqpd.routing.message_exchange import RoutedMessage
from amqpd.routing.registry import exchange_type_factory

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost


WAITING_MAX: Final = 500
"""Maximum of messages that wait for the log of a queue to open. Further ones are lost."""


class BestEffortPublisher:
    """Publisher of messages that may be lost.

    Args:
        want: schedules the end of the loop turn, which writes the messages.

    Attributes:
        lost_count: number of lost messages. The owner logs and resets it.
    """

    def __init__(self, want: Callable[[], object]) -> None:
        self.lost_count = 0
        self._want = want
        self._waiting_count = 0

    def offer(self, destinations: list[Destination], message: Message) -> None:
        existing = [each for each in destinations if not each.is_deleted()]
        try:
            prepare(existing)
        except LogNotOpen as error:
            if self._waiting_count < WAITING_MAX:
                self._waiting_count += 1
                when_open(error.destinations, partial(self._opened, existing, message))
            else:
                self.lost_count += 1
        except ResourceError:
            if len(existing) > 1:  # the other queues get it although one log cannot be opened
                for each in existing:
                    self.offer([each], message)
            else:
                self.lost_count += 1
        else:
            offer_to_all(existing, message, None)
            self._want()

    def _opened(self, destinations: list[Destination], message: Message) -> None:
        self._waiting_count -= 1
        self.offer(destinations, message)


log = logging.getLogger(__name__)

EXCHANGE: Final = "amq.rabbitmq.trace"
KEY_SIZE_MAX: Final = 255
# Maximum of waiting copies, and of the bytes of their bodies.
COUNT_MAX: Final = 20_000
BYTES_MAX: Final = 64 * 1024 * 1024
# From this number of waiting copies on, publishers are slowed and slices last LONG_SLICE_S.
BEHIND_COUNT: Final = 500
SLICE_S: Final = 0.003
LONG_SLICE_S: Final = 0.010


class TracedMessage(NamedTuple):
    """A message to copy.

    Attributes:
        key: the routing key of the copy.
        keys: the routing keys of a publish; empty for a delivery.
        redelivered: None for a publish.
        about: the other headers, except the node.
    """

    key: str
    message: Message
    keys: list[str]
    redelivered: int | None
    about: dict[str, object]


class Firehose(TraceHook):
    """Trace of one vhost, while tracing is on. The recorder of a test gets everything, too.

    Args:
        node: the name of the broker.
    """

    def __init__(self, vhost: VHost, node: str) -> None:
        super().__init__()
        self._vhost = vhost
        self._node = node
        self._exchange = vhost.exchanges[EXCHANGE]
        self._waiting: list[TracedMessage] = []
        self._waiting_bytes = 0
        self._is_scheduled = False
        self._best_effort = BestEffortPublisher(vhost.queue_host.turn.schedule)

    # -- in ----------------------------------------------------------------------------------------------------------

    def published(
        self,
        message: Message,
        keys: list[str],
        destinations: list[Destination],
        connection: str,
        user: str,
        number: int,
    ) -> None:
        recorder = self._vhost.recorder
        if recorder is not None:
            recorder.published(message, keys, destinations, connection, user, number)
        if not self._exchange.bindings:
            return
        about = self._about(connection, user, number)
        about["routed_queues"] = [each.name for each in destinations if isinstance(each, Queue)]
        self._add(TracedMessage(f"publish.{message.envelope.exchange}", message, keys, None, about))

    def delivered(
        self, message: Message, queue: str, redelivered: bool, connection: str, user: str, number: int
    ) -> None:
        recorder = self._vhost.recorder
        if recorder is not None:
            recorder.delivered(message, queue, redelivered, connection, user, number)
        if not self._exchange.bindings or message.envelope.exchange == EXCHANGE:
            return
        about = self._about(connection, user, number)
        self._add(TracedMessage(f"deliver.{queue}", message, [], int(redelivered), about))

    def dead_lettered(self, message: Message, queue: str, reason: str, destinations: list[Destination]) -> None:
        recorder = self._vhost.recorder
        if recorder is not None:
            recorder.dead_lettered(message, queue, reason, destinations)

    def _about(self, connection: str, user: str, number: int) -> dict[str, object]:
        return {"vhost": self._vhost.name, "connection": connection, "channel": number, "user": user}

    def is_behind(self) -> bool:
        return len(self._waiting) >= BEHIND_COUNT

    def _add(self, traced: TracedMessage) -> None:
        size = traced.message.body_size
        if len(self._waiting) >= COUNT_MAX or self._waiting_bytes + size > BYTES_MAX:
            self._best_effort.lost_count += 1
            return
        self._waiting.append(traced)
        self._waiting_bytes += size
        if not self._is_scheduled:
            self._is_scheduled = True
            self._vhost.catalogue.call_soon(self._copy_slice)

    # -- out ---------------------------------------------------------------------------------------------------------

    def _copy_slice(self) -> None:
        """Make one slice of the waiting copies."""
        self._is_scheduled = False
        waiting = self._waiting
        until = time.perf_counter() + (LONG_SLICE_S if self.is_behind() else SLICE_S)
        done = 0
        for traced in waiting:
            done += 1
            self._waiting_bytes -= traced.message.body_size
            self._copy(traced)
            if time.perf_counter() >= until:
                break
        del waiting[:done]
        if waiting:
            self._is_scheduled = True
            self._vhost.catalogue.call_soon(self._copy_slice)
        elif lost_count := self._best_effort.lost_count:
            about = {"vhost": self._vhost.name}
            text = "%d messages were not traced: too many were waiting, or a log could not be opened"
            log.warning(text, lost_count, extra=about)
            self._best_effort.lost_count = 0

    def _copy(self, traced: TracedMessage) -> None:
        if self._vhost.deleted:
            return
        message = traced.message
        headers: dict[str, object] = {
            "exchange_name": message.envelope.exchange,
            "routing_keys": list(traced.keys),
            "properties": {},
            "node": self._node,
        }
        properties = decode_properties(message.properties())
        if not traced.keys:
            headers["routing_keys"] = [message.envelope.routing_key, *_cc_keys(properties)]
        # rabbit: the last property comes first
        fields = properties._asdict()
        headers["properties"] = {name: fields[name] for name in reversed(fields) if fields[name] is not None}
        if traced.redelivered is not None:
            headers["redelivered"] = traced.redelivered
        headers |= traced.about
        key = traced.key.encode("utf-8", "surrogateescape")[:KEY_SIZE_MAX].decode("utf-8", "surrogateescape")
        encoded = encode_properties(Properties(headers=headers))
        copy = make_message(
            MessageRoute(EXCHANGE, key), encoded, message.body(), False, scan_properties(encoded, 0, len(encoded))
        )
        self._best_effort.offer(router.route(self._vhost, self._exchange, [key], RoutedMessage(key, headers)), copy)


def trace(vhost: VHost, node: str, on: bool, done: Done = ignore_result) -> bool:
    """Switch tracing on or off, in slices. Return False if it was so before.

    Args:
        done: called with None when all routes and consumers use the new state.
    """
    if on is (vhost.firehose is not None):
        done(None)
        return False
    vhost.firehose = Firehose(vhost, node) if on else None
    log.info("tracing is %s in vhost '%s'", "on" if on else "off", vhost.name, extra={"vhost": vhost.name})
    tell(vhost, "vhost.updated")
    _update_tap(vhost, done)
    return True


def record(vhost: VHost, recorder: TraceHook | None, done: Done = ignore_result) -> None:
    """Set or remove the recorder of a test, in slices. Tracing is as before.

    Args:
        done: as for `trace`.
    """
    vhost.recorder = recorder
    _update_tap(vhost, done)


def _update_tap(vhost: VHost, done: Done) -> None:
    """Give messages to the firehose and the recorder, as far as the vhost has them."""
    vhost.tap = vhost.firehose or vhost.recorder
    walk = SlicedWalk[Queue | Exchange](vhost.catalogue.call_soon)
    walk.begin(vhost.policy_targets, partial(_apply_trace, vhost))
    walk.when_done(partial(done, None))


def _apply_trace(vhost: VHost, thing: Queue | Exchange) -> None:
    """Make publishers drop their cached routes, and set the trace hook of the consumers."""
    if isinstance(thing, Exchange):
        thing.routes.version += 1
        return
    thing.version += 1
    for consumer in thing.consumers:
        consumer.set_tap(vhost.tap)


def _cc_keys(properties: Properties) -> list[object]:
    """Return the keys in CC. The publisher has removed BCC."""
    copied = (properties.headers or {}).get("CC")
    return copied if isinstance(copied, list) else []


class EventExchange(Exchange):
    """The exchange `amq.rabbitmq.event`. It publishes nothing before `start`: loading at a start causes no events."""

    def __init__(self, events: Events, vhost: VHost) -> None:
        super().__init__(EVENT_EXCHANGE, "topic", exchange_type_factory("topic")(), True, False, True, {})
        self._events = events
        self._vhost = vhost
        self._best_effort = BestEffortPublisher(vhost.queue_host.turn.schedule)
        self._started = False
        events.publish = self.publish

    def start(self) -> None:
        self._started = True
        self._update_bound()

    def add(self, binding: Binding) -> None:
        super().add(binding)
        self._update_bound()

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._update_bound()

    def _update_bound(self) -> None:
        self._events.bind(self._started and bool(self.bindings))

    def publish(self, event: Event) -> None:
        """Publish an event. An event about the deletion of a bound queue does not reach that queue."""
        if self._vhost.deleted:
            return
        destinations = router.route(self._vhost, self, [event.key], RoutedMessage(event.key, event.headers))
        if not destinations:
            return
        # rabbit: persistent; both the property in seconds and the header in milliseconds
        fields = Properties(headers=event.headers, delivery_mode=2, timestamp=Timestamp(event.at_ms // 1000))
        encoded = encode_properties(fields)
        message = make_message(
            MessageRoute(EVENT_EXCHANGE, event.key), encoded, b"", True, scan_properties(encoded, 0, len(encoded))
        )
        self._best_effort.offer(destinations, message)
        self._events.lost_count += self._best_effort.lost_count
        self._best_effort.lost_count = 0


def add_event_exchange(events: Events, vhost: VHost) -> None:
    """Add the exchange to a new vhost, if the setting names this vhost."""
    if vhost.name == events.vhost_name:
        vhost.exchanges[EVENT_EXCHANGE] = EventExchange(events, vhost)


def start_events(vhost: VHost | None) -> None:
    """Start to publish events, after the start of the broker or the creation of the vhost.

    Args:
        vhost: the vhost with the exchange; None if there is none.
    """
    exchange = None if vhost is None else vhost.exchanges.get(EVENT_EXCHANGE)
    if isinstance(exchange, EventExchange):
        exchange.start()
