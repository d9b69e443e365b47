"""Comparison of a broker and its twin: every reply, delivery and count, and the final content of each queue."""

from __future__ import annotations

from typing import Any, NamedTuple

import pamqp.commands as spec
from memory_broker import Client, Event
from program_house import ProgramBroker
from program_parts import TwinConsumer, TwinMessage, TwinMismatch, TwinQueue
from program_twin import Twin
from programs import Op

FIRST_CHANNEL = 10
"""The first channel of a consumer; each consumer has its own."""


class Held(NamedTuple):
    """An unacked delivery. consumer: None after basic.get."""

    queue: TwinQueue
    message: TwinMessage
    channel: int
    tag: int
    consumer: TwinConsumer | None


class PlayerChecks:
    """The comparisons of the player.

    delivered: what consumers received and was not compared yet. held: unacked deliveries, by channel and tag.
    """

    server: ProgramBroker
    twin: Twin
    client: Client
    delivered: list[Event]
    held: list[Held]
    tags: dict[int, int]

    def heard(self) -> list[Event]:
        raise NotImplementedError

    def settle(self, number: int, how: str) -> None:
        raise NotImplementedError

    def time_passes(self, ms: int) -> None:
        raise NotImplementedError

    def get(self, name: str, no_ack: bool) -> None:
        raise NotImplementedError

    def cancel(self, name: str) -> None:
        raise NotImplementedError

    def assert_same(self, what: str, got: object, due: object) -> None:
        if got != due:
            raise TwinMismatch(f"{what}: the broker says {got!r}, its twin {due!r}")

    def assert_same_message(self, queue: TwinQueue, event: Event, message: TwinMessage) -> None:
        """Compare everything of a message that a client sees."""
        self.assert_same(f"body from {queue.name}", event.body, message.body)
        what = f"of {message.body!r} in {queue.name}"
        method = event.method
        self.assert_same(f"route {what}", (method.exchange, method.routing_key), (message.exchange, message.key))
        if message.redelivered is None:
            message.redelivered = method.redelivered
        self.assert_same(f"redelivered {what}", method.redelivered, message.redelivered)
        headers = dict(event.headers or {})
        if queue.kind == "quorum":
            none = 0 if isinstance(method, spec.Basic.GetOk) else None  # as RabbitMQ
            self.assert_same(f"deliveries {what}", headers.pop("x-delivery-count", none), message.deliveries or none)
        headers.pop("x-stream-offset", None)
        due: dict[str, Any] = dict(message.headers)
        if message.first is not None:
            keys = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
            due |= dict(zip(keys, message.first, strict=True))
            due["x-death"] = [
                {
                    "queue": death.queue,
                    "reason": death.reason,
                    "exchange": death.exchange,
                    "routing-keys": list(death.keys),
                    "count": death.count,
                }
                | ({"original-expiration": death.expiration} if death.expiration else {})
                for death in message.deaths
            ]
            for death in headers.get("x-death", []):
                del death["time"]
        headers.pop("x-delivery-count", None)
        if message.deaths:  # set on more dead letters than are duplicates: docs/dead-letters.md
            headers.pop("x-death-redelivered", None)
        for name in message.optional_headers:
            headers.pop(name, None)
        self.assert_same(f"headers {what}", headers, due)

    def compare_deliveries(self, op: Op) -> None:
        """Check that each consumer got the messages that its twin got, in the same order."""
        dispatched, self.twin.dispatched = self.twin.dispatched, []
        events, self.delivered = self.delivered, []
        for channel in {each.channel for each in events} | {consumer.channel for _, consumer, _ in dispatched}:
            got = [each for each in events if each.channel == channel]
            due = [each for each in dispatched if each[1].channel == channel]
            what = f"deliveries after {op}"
            self.assert_same(what, [each.body for each in got], [message.body for _, _, message in due])
            for event, (queue, consumer, message) in zip(got, due, strict=True):
                self.tags[channel] = self.tags.get(channel, 0) + 1
                self.assert_same("delivery tag", event.method.delivery_tag, self.tags[channel])
                self.assert_same_message(queue, event, message)
                if not consumer.no_ack and any(each is message for each, _ in queue.unacked):
                    self.held.append(Held(queue, message, channel, self.tags[channel], consumer))

    def compare_counts(self, op: Op) -> None:
        for name, queue in self.twin.queues.items():
            if queue.kind != "stream":
                real = self.server.vhost.queues[name]
                self.assert_same(f"ready in {name} after {op}", real.ready_count, len(queue.ready))
                self.assert_same(f"waiting in {name} after {op}", real.delayed_count, len(queue.waiting))
                self.assert_same(f"unacked in {name} after {op}", real.unacked_count, len(queue.unacked))
        for name in self.twin.exchanges:
            wheel = self.server.vhost.exchanges[name].wheel
            waits = sum(exchange == name for _, exchange, _ in self.twin.delayed)
            self.assert_same(f"delayed in {name} after {op}", 0 if wheel is None else wheel.count(), waits)

    def compare_queues(self) -> None:
        """Ack everything that is held, then get every message at its time."""
        for name, queue in self.twin.queues.items():
            while queue.consumers:
                self.cancel(name)
        while self.held:
            self.settle(0, "ack")
        self.twin.route_dead_letters()
        drained = [queue for queue in self.twin.queues.values() if queue.kind != "stream"]
        for _ in range(100):
            while any(
                self.has_deliverable(queue) for queue in drained
            ):  # expired messages behind a head are dead-lettered with it
                for queue in drained:
                    while self.has_deliverable(queue):
                        self.get(queue.name, True)
                        self.twin.route_dead_letters()
            due = [each.due_ms for queue in drained for each in queue.waiting] + [each[0] for each in self.twin.delayed]
            if not due:
                break
            self.server.forget_choices()
            self.time_passes(min(due) - self.twin.now_ms)
        for queue in self.twin.queues.values():
            if queue.kind == "stream":
                self.compare_stream(queue)

    def has_deliverable(self, queue: TwinQueue) -> bool:
        return self.twin.first_allowed(queue, self.twin.ready_in_order(queue), None) is not None

    def compare_stream(self, queue: TwinQueue, offset: int = 0) -> None:
        """Compare a stream from `offset` on."""
        offset = 0 if queue.offsets_uncertain else offset
        self.client.say(2, spec.Channel.Open(), spec.Basic.Qos(prefetch_count=1000))
        self.heard()
        arguments = {"x-stream-offset": offset}
        self.client.say(2, spec.Basic.Consume(queue=queue.name, consumer_tag="s", arguments=arguments))
        events = [event for event in self.heard() if event.body is not None]
        messages = [message for message in queue.ready if message.offset >= offset]
        self.assert_same(f"bodies in {queue.name}", [each.body for each in events], [each.body for each in messages])
        for event, message in zip(events, messages, strict=True):
            if not queue.offsets_uncertain:
                self.assert_same("offset", (event.headers or {}).get("x-stream-offset"), message.offset)
            self.assert_same_message(queue, event, message)
        self.client.say(2, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
        self.heard()
