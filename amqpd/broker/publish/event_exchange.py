"""The exchange `amq.rabbitmq.event`: what `Events` tells, as messages without a body.

It is a topic exchange, durable and internal, of the vhost that the setting `event_exchange_vhost` names; there is none
without. Whether anybody is bound to it is noted as bindings come and go, and nobody tells anything while nobody is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.vhost.exchange import Binding, Exchange
from amqpd.broker.events import EXCHANGE, Event, Events
from amqpd.broker.message import Envelope, make_message
from amqpd.broker.publish import router
from amqpd.broker.publish.unasked import Unasked
from amqpd.protocol.field_table import Timestamp
from amqpd.protocol.properties import Properties, encode_properties, scan
from amqpd.routing.registry import exchange_type
from amqpd.routing.routed import Routed

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost


class EventExchange(Exchange):
    """It is heard from `start` on: what is loaded when the broker starts is no event."""

    def __init__(self, events: Events, vhost: VHost) -> None:
        super().__init__(EXCHANGE, "topic", exchange_type("topic")(), True, False, True, {})
        self._events = events
        self._vhost = vhost
        self._unasked = Unasked(vhost.queue_host.turn.want)
        self._started = False
        events.publish = self.publish

    def start(self) -> None:
        self._started = True
        self._look()

    def add(self, binding: Binding) -> None:
        super().add(binding)
        self._look()

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._look()

    def _look(self) -> None:
        self._events.bind(self._started and bool(self.bindings))

    def publish(self, event: Event) -> None:
        """To whoever is bound. The queue of an event about itself may be gone by then."""
        if self._vhost.deleted:
            return
        destinations = router.route(self._vhost, self, [event.key], Routed(event.key, event.headers))
        if not destinations:
            return
        # rabbit: persistent; both the property in seconds and the header in milliseconds
        fields = Properties(headers=event.headers, delivery_mode=2, timestamp=Timestamp(event.at_ms // 1000))
        encoded = encode_properties(fields)
        message = make_message(Envelope(EXCHANGE, event.key), encoded, b"", True, scan(encoded, 0, len(encoded)))
        self._unasked.offer(destinations, message)
        self._events.lost_count += self._unasked.lost_count
        self._unasked.lost_count = 0


def add_event_exchange(events: Events, vhost: VHost) -> None:
    """For a new vhost: it gets the exchange, if it is the one."""
    if vhost.name == events.vhost_name:
        vhost.exchanges[EXCHANGE] = EventExchange(events, vhost)


def start_events(events: Events, vhost: VHost | None) -> None:
    """All is loaded, or the vhost has just been made: what happens from now on is told. vhost: the one; None: there is
    none."""
    exchange = None if vhost is None else vhost.exchanges.get(EXCHANGE)
    if isinstance(exchange, EventExchange):
        exchange.start()
