"""The player: it runs a program on both the broker and its twin."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pamqp.commands as spec
import pamqp.frame
import pamqp.header
from memory_broker import Client, Event
from program_house import ProgramBroker
from program_jobs import JobPlayer
from program_judge import FIRST_CHANNEL, Held, PlayerChecks
from program_parts import Binding, TwinConsumer, TwinExchange, TwinMessage, TwinMismatch, TwinQueue
from program_routing import SELECTORS
from program_transactions import TransactionPlayer
from program_twin import Twin
from programs import Op

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.flow.timers import TICK_MS
from amqpd.broker.vhost import policies

NUMBERED = 3
"""The channel of producers with sequence numbers."""


class Player(JobPlayer, TransactionPlayer, PlayerChecks):
    """Runs a program on both the broker and its twin."""

    def __init__(self) -> None:
        self.server = ProgramBroker()
        self.twin = Twin(self.server.clock.now_ms, self.server.chosen, self.consumer_chosen_by_broker)
        self.published = 0
        self.steps = 0
        self.connect()

    def connect(self) -> None:
        self.client = Client(self.server, "c")
        self.channel = FIRST_CHANNEL
        self.delivery_tag = 0
        # Unacked deliveries; consumer: None after basic.get.
        self.held: list[Held] = []
        self.tags: dict[int, int] = {}
        self.delivered: list[Event] = []
        self.extra: list[Event] = []
        self.client.say(1, spec.Channel.Open(), spec.Confirm.Select())
        self.heard()

    def heard(self) -> list[Event]:
        """Return the events of channels without consumers; keep the others for `compare_deliveries`."""
        self.server.settle()
        events = self.client.heard()
        self.delivered += [each for each in events if each.channel >= FIRST_CHANNEL]
        return [each for each in events if each.channel < FIRST_CHANNEL]

    def listen(self) -> None:
        """Read the broker's output before the twin runs the same operation."""
        self.extra += self.heard()

    def consumer_chosen_by_broker(self, queue: TwinQueue) -> TwinConsumer | None:
        """Return the consumer to which the broker delivered the message that the twin dispatches next."""
        by_channel = {each.channel: each for each in queue.consumers}
        receivers = [by_channel[each.channel] for each in self.delivered if each.body and each.channel in by_channel]
        dispatched = sum(each[0] is queue for each in self.twin.dispatched)
        return receivers[dispatched] if dispatched < len(receivers) else None

    def ask(self, method: Any) -> Event:
        self.client.say(1, method)
        events = self.heard()
        if len(events) != 1 or isinstance(events[0].method, spec.Channel.Close):
            raise TwinMismatch(f"{method.name} was answered with {events}")
        return events[0]

    def play(self, ops: list[Op]) -> None:
        """Run the operations. Raises: TwinMismatch; Unspecified if later results are not specified."""
        try:
            for op in ops:
                self.server.forget_choices()
                getattr(self, op[0].replace("-", "_"))(*op[1:])
                self.listen()
                self.twin.route_dead_letters()
                if self.extra:
                    raise TwinMismatch(f"unexpected after {op}: {self.extra}")
                self.compare_deliveries(op)
                self.compare_counts(op)
                self.steps += 1
            self.compare_queues()
        finally:
            self.server.end()

    # -- declarations

    def exchange(self, name: str, kind: str, alternate: str | None, durable: bool, more: dict[str, Any]) -> None:
        if name in self.twin.exchanges:
            return
        arguments = more if alternate is None else more | {"alternate-exchange": alternate}
        self.ask(spec.Exchange.Declare(exchange=name, exchange_type=kind, durable=durable, arguments=arguments))
        routes_as = more.get("x-delayed-type", kind)
        self.twin.exchanges[name] = TwinExchange(name, routes_as, alternate, durable, more, kind)

    def queue(self, name: str, durable: bool, arguments: dict[str, Any]) -> None:
        if name in self.twin.queues:
            return
        self.ask(spec.Queue.Declare(queue=name, durable=durable, arguments=arguments))
        self.twin.queues[name] = TwinQueue(name, arguments["x-queue-type"], arguments, durable)
        self.twin.apply_policies()

    def bind(self, source: str, queue: str, key: str, matching: dict[str, str]) -> None:
        if source in self.twin.exchanges and queue in self.twin.queues:
            kind = self.twin.queues[queue].kind
            if self.twin.exchanges[source].kind != "x-local-random" or kind == "classic":
                self.bound(Binding(source, True, queue, key), matching)

    def bind_exchange(self, source: str, destination: str, key: str, matching: dict[str, str]) -> None:
        there = source in self.twin.exchanges and destination in self.twin.exchanges
        if there and self.twin.exchanges[source].kind != "x-local-random":
            self.bound(Binding(source, False, destination, key), matching)

    def bound(self, binding: Binding, matching: dict[str, str]) -> None:
        """Bind with a key and arguments that the type of the exchange accepts."""
        kind = self.twin.exchanges[binding.source].kind
        arguments: dict[str, str] = {}
        if kind == "headers":
            arguments = matching
        elif kind == "x-jms-topic":
            selectors = list(SELECTORS)
            arguments = {"x-selector": selectors[(len(binding.key) + len(matching)) % len(selectors)]}
        elif kind == "x-consistent-hash":
            binding = binding._replace(key=str(len(binding.key)))
        elif kind == "x-local-random":
            binding = binding._replace(key="")
        binding = binding._replace(arguments=tuple(sorted(arguments.items())))
        ends = {"source" if not binding.to_queue else "exchange": binding.source, "routing_key": binding.key}
        ends["queue" if binding.to_queue else "destination"] = binding.destination
        method = spec.Queue.Bind if binding.to_queue else spec.Exchange.Bind
        self.ask(method(**ends, arguments=arguments))
        if binding not in self.twin.bindings:
            self.twin.bindings.append(binding)
            self.listen()
            self.twin.deliver_history(binding)

    def unbind(self, number: int) -> None:
        if not self.twin.bindings:
            return
        binding = self.twin.bindings.pop(number % len(self.twin.bindings))
        ends = {"source" if not binding.to_queue else "exchange": binding.source, "routing_key": binding.key}
        ends["queue" if binding.to_queue else "destination"] = binding.destination
        method = spec.Queue.Unbind if binding.to_queue else spec.Exchange.Unbind
        self.ask(method(**ends, arguments=dict(binding.arguments)))

    def delete_queue(self, name: str) -> None:
        queue = self.twin.queues.pop(name, None)
        if queue is None:
            return
        answer = self.ask(spec.Queue.Delete(queue=name))
        self.assert_same("deleted", answer.method.message_count, len(queue.ready) + len(queue.waiting))
        cancels = [each.method.name for each in self.delivered if each.body is None]
        self.assert_same("cancelled", cancels, ["Basic.Cancel"] * len(queue.consumers))
        self.delivered = [each for each in self.delivered if each.body is not None]
        self.twin.bindings = [each for each in self.twin.bindings if (True, name) != each[1:3]]

    def delete_exchange(self, name: str) -> None:
        if self.twin.exchanges.pop(name, None) is not None:
            self.ask(spec.Exchange.Delete(exchange=name))
            self.twin.bindings = [each for each in self.twin.bindings if name != each[0] and (False, name) != each[1:3]]
            self.twin.delayed = [each for each in self.twin.delayed if each[1] != name]

    def policy(self, name: str, pattern: str, definition: dict[str, Any], priority: int, apply_to: str) -> None:
        value = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": apply_to}
        policies.declare(self.server.vhost, name, value, name.startswith("o"))
        self.twin.policies[name] = (pattern, definition, priority, apply_to)
        self.apply_policies()

    def apply_policies(self) -> None:
        """Apply policies in the twin, and let the broker do so within one tick of the timers."""
        self.listen()
        self.twin.apply_policies()
        self.twin.route_dead_letters()
        self.time_passes(TICK_MS)

    def clear(self, name: str) -> None:
        if self.twin.policies.pop(name, None) is not None:
            there = self.server.vhost.policies.get(name, name.startswith("o"))
            assert there is not None
            policies.clear(self.server.vhost, there)
            self.apply_policies()

    # -- messages

    def publish(
        self,
        exchange: str,
        key: str,
        padding: int,
        expiration: int | None,
        priority: int | None,
        persistent: bool,
        mandatory: bool,
        headers: dict[str, Any],
    ) -> None:
        if exchange and exchange not in self.twin.exchanges:
            return
        message = self.new_message(exchange, key, padding, expiration, priority, persistent, headers)
        self.send(1, message, mandatory)
        events = [event.method.name for event in self.heard()]
        result = self.twin.route(exchange, key, message.headers)
        taken = self.twin.offer_all(result, message)
        due = ["Basic.Return"] * (mandatory and result.leads_nowhere) + ["Basic.Ack" if taken else "Basic.Nack"]
        self.assert_same("publish", events, due)

    def new_message(
        self,
        exchange: str,
        key: str,
        padding: int,
        expiration: int | None,
        priority: int | None,
        persistent: bool,
        headers: dict[str, Any],
    ) -> TwinMessage:
        self.published += 1
        body = b"%d" % self.published
        body += b"." * (padding - len(body))
        message = TwinMessage(body, exchange, key, "" if expiration is None else f"{expiration}", priority or 0)
        message.headers, message.persistent = dict(headers), persistent
        if "x-deliver-in" in headers:
            message.headers["x-deliver-at"] = self.server.clock.now_ms + message.headers.pop("x-deliver-in")
        return message

    def send(self, channel: int, message: TwinMessage, mandatory: bool = False) -> None:
        properties = spec.Basic.Properties(
            delivery_mode=2 if message.persistent else 1,
            priority=message.priority or None,
            expiration=message.expiration or None,
            headers=message.headers,
        )
        body = message.body
        method = spec.Basic.Publish(exchange=message.exchange, routing_key=message.key, mandatory=mandatory)
        frames = [pamqp.frame.marshal(method, channel)]
        frames.append(pamqp.frame.marshal(pamqp.header.ContentHeader(0, len(body), properties), channel))
        frames.append(struct.pack(">BHI", 3, channel, len(body)) + body + b"\xce")
        self.client.connection.receive(b"".join(frames))

    def numbered(
        self, exchange: str, key: str, headers: dict[str, Any], producer: int, epoch: int, sequence: int
    ) -> None:
        """Publish a numbered message on a channel of its own, since a refusal closes the channel."""
        if exchange and exchange not in self.twin.exchanges:
            return
        message = self.new_message(exchange, key, 0, None, None, True, headers)
        message.headers |= {"x-producer-id": producer, "x-producer-epoch": epoch, "x-sequence": sequence}
        self.client.say(NUMBERED, spec.Channel.Open(), spec.Confirm.Select())
        self.heard()
        self.send(NUMBERED, message)
        events = [event.method for event in self.heard()]
        result = self.twin.route(exchange, key, message.headers)
        codes = [406] * bool(result.waits) + [403] * self.twin.has_older(result, producer, epoch)
        if codes:
            self.assert_same("closed", [each.name for each in events], ["Channel.Close"])
            if events[0].reply_code not in codes:
                raise TwinMismatch(f"closed with {events[0]}, not {codes}")
            self.client.say(NUMBERED, spec.Channel.CloseOk())
            return
        taken = self.twin.offer_numbered(result, message, producer, epoch, sequence)
        self.assert_same("numbered", [each.name for each in events], ["Basic.Ack" if taken else "Basic.Nack"])
        self.client.say(NUMBERED, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
        self.heard()

    def get(self, name: str, no_ack: bool) -> None:
        queue = self.twin.queues.get(name)
        if queue is None or queue.kind == "stream":
            return
        event = self.ask(spec.Basic.Get(queue=name, no_ack=no_ack))
        head = self.twin.next_free(queue)
        if head is None or event.body is None:
            self.assert_same(f"get of {name}", event.body, head and head.body)
            return
        queue.ready.remove(head)
        self.twin.enforce_limits(queue)
        self.delivery_tag += 1
        self.assert_same("delivery tag", event.method.delivery_tag, self.delivery_tag)
        self.assert_same("message count", event.method.message_count, len(queue.ready))
        self.assert_same_message(queue, event, head)
        queue.delivered = True
        if no_ack:
            queue.note_settled(head)
        else:
            queue.unacked.append((head, None))
            self.held.append(Held(queue, head, 1, self.delivery_tag, None))

    def consume(self, name: str, prefetch: int, no_ack: bool) -> None:
        """Consume on a channel of its own.

        A queue has at most one consumer, since another model covers their order; a queue with groups has up to three.
        """
        queue = self.twin.queues.get(name)
        if queue is None or queue.kind == "stream" or len(queue.consumers) >= (3 if queue.group_by else 1):
            return
        no_ack = no_ack and not queue.group_by
        self.channel += 1
        self.client.say(self.channel, spec.Channel.Open(), spec.Basic.Qos(prefetch_count=prefetch))
        self.client.say(self.channel, spec.Basic.Consume(queue=name, consumer_tag="c", no_ack=no_ack))
        self.heard()
        answers, self.delivered = self.delivered[:3], self.delivered[3:]
        names = [each.method.name for each in answers]
        self.assert_same("consume", names, ["Channel.OpenOk", "Basic.QosOk", "Basic.ConsumeOk"])
        queue.consumers.append(TwinConsumer(self.channel, prefetch, no_ack))

    def cancel(self, name: str) -> None:
        """Cancel the first consumer of the queue. Its channel keeps its unacked messages."""
        queue = self.twin.queues.get(name)
        if queue is None or not queue.consumers:
            return
        self.client.say(queue.consumers[0].channel, spec.Basic.Cancel(consumer_tag="c"))
        self.heard()
        self.assert_same("cancel", [each.method.name for each in self.delivered], ["Basic.CancelOk"])
        self.delivered.clear()
        queue.consumers.pop(0)

    def leave(self, name: str) -> None:
        """Close the channel of the first consumer. Its unacked messages return, counted as failed."""
        queue = self.twin.queues.get(name)
        if queue is None or not queue.consumers:
            return
        consumer = queue.consumers.pop(0)
        close = spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
        self.client.say(consumer.channel, close)
        self.heard()
        self.delivered = [each for each in self.delivered if each.channel != consumer.channel]
        own_deliveries = [each for each in self.held if each.channel == consumer.channel]
        self.held = [each for each in self.held if each.channel != consumer.channel]
        for held in own_deliveries:
            self.twin.return_message(queue, held.message, True)

    def restart(self, clean: bool) -> None:
        self.server.again(clean=clean)
        self.twin.restart(clean=clean)
        self.connect()
        for queue in self.server.vhost.queues.values():
            with suppress(LogNotOpen):
                queue.prepare()
        self.apply_policies()

    def read(self, name: str, offset: int) -> None:
        """Compare a stream from `offset` on."""
        queue = self.twin.queues.get(name)
        if queue is not None and queue.kind == "stream":
            self.compare_stream(queue, offset)

    def settle(self, number: int, how: str) -> None:
        """Settle a held message. how: ack, reject, requeue (basic.nack), back (basic.reject)."""
        if not self.held:
            return
        queue, message, channel, tag, consumer = self.held.pop(number % len(self.held))
        if how == "ack":
            self.client.say(channel, spec.Basic.Ack(delivery_tag=tag))
        elif how == "back":
            self.client.say(channel, spec.Basic.Reject(delivery_tag=tag, requeue=True))
        else:
            self.client.say(channel, spec.Basic.Nack(delivery_tag=tag, requeue=how == "requeue"))
        self.listen()
        if consumer is not None:
            consumer.in_flight -= 1
        self.settled(queue, message, how)

    def settled(self, queue: TwinQueue, message: TwinMessage, how: str) -> None:
        queue.remove_unacked(message)
        if self.twin.queues.get(queue.name) is not queue:
            return
        if how == "ack":
            queue.note_settled(message)
        elif how == "reject":
            self.twin.dead_letter(queue, message, "rejected")
        else:
            self.twin.return_message(queue, message, how == "back")

    def purge(self, name: str) -> None:
        queue = self.twin.queues.get(name)
        if queue is not None and queue.kind != "stream":
            answer = self.ask(spec.Queue.Purge(queue=name))
            messages = queue.ready + [each.message for each in queue.waiting]
            self.assert_same("purged", answer.method.message_count, len(messages))
            for message in messages:
                queue.note_settled(message)
            queue.ready.clear()
            queue.waiting.clear()

    def __getattr__(self, name: str) -> Any:
        if name == "pass":
            return self.time_passes
        raise AttributeError(name)

    def time_passes(self, ms: int) -> None:
        self.server.timed.advance(ms)
        self.listen()
        self.twin.advance(ms)
