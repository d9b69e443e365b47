"""What a broker and its twin must agree on: every answer, delivery and count, and at the end what is in each queue."""

from __future__ import annotations

from typing import Any, NamedTuple

import pamqp.commands as spec
from memory_broker import Client, Event
from program_house import ProgramHouse
from program_parts import Different, Letter, TwinConsumer, TwinQueue
from program_twin import Twin
from programs import Op

FIRST_CHANNEL = 10
"""Of consumers; each has its own."""


class Held(NamedTuple):
    """consumer: None where it was got."""

    queue: TwinQueue
    letter: Letter
    channel: int
    tag: int
    consumer: TwinConsumer | None


class Judge:
    """A mixin of the player. delivered: what came for consumers, since somebody looked. held: who has what, by the
    number of a channel and a tag."""

    house: ProgramHouse
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

    def same(self, what: str, got: object, due: object) -> None:
        if got != due:
            raise Different(f"{what}: the broker says {got!r}, its twin {due!r}")

    def same_letter(self, queue: TwinQueue, event: Event, letter: Letter) -> None:
        """Everything of a message that a client sees."""
        self.same(f"body from {queue.name}", event.body, letter.body)
        what = f"of {letter.body!r} in {queue.name}"
        method = event.method
        self.same(f"route {what}", (method.exchange, method.routing_key), (letter.exchange, letter.key))
        if letter.redelivered is None:
            letter.redelivered = method.redelivered
        self.same(f"redelivered {what}", method.redelivered, letter.redelivered)
        headers = dict(event.headers or {})
        if queue.kind == "quorum":
            none = 0 if isinstance(method, spec.Basic.GetOk) else None  # rabbit: the same
            self.same(f"deliveries {what}", headers.pop("x-delivery-count", none), letter.deliveries or none)
        headers.pop("x-stream-offset", None)
        due: dict[str, Any] = dict(letter.headers)
        if letter.first is not None:
            keys = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
            due |= dict(zip(keys, letter.first, strict=True))
            due["x-death"] = [
                {
                    "queue": death.queue,
                    "reason": death.reason,
                    "exchange": death.exchange,
                    "routing-keys": list(death.keys),
                    "count": death.count,
                }
                | ({"original-expiration": death.expiration} if death.expiration else {})
                for death in letter.deaths
            ]
            for death in headers.get("x-death", []):
                del death["time"]
        headers.pop("x-delivery-count", None)
        if letter.deaths:  # more letters have it than are there twice: docs/dead-letters.md
            headers.pop("x-death-redelivered", None)
        for name in letter.maybe:
            headers.pop(name, None)
        self.same(f"headers {what}", headers, due)

    def compare_deliveries(self, op: Op) -> None:
        """Each consumer got what its twin did, in that order."""
        given, self.twin.given = self.twin.given, []
        events, self.delivered = self.delivered, []
        for channel in {each.channel for each in events} | {consumer.channel for _, consumer, _ in given}:
            got = [each for each in events if each.channel == channel]
            due = [each for each in given if each[1].channel == channel]
            what = f"deliveries after {op}"
            self.same(what, [each.body for each in got], [letter.body for _, _, letter in due])
            for event, (queue, consumer, letter) in zip(got, due, strict=True):
                self.tags[channel] = self.tags.get(channel, 0) + 1
                self.same("delivery tag", event.method.delivery_tag, self.tags[channel])
                self.same_letter(queue, event, letter)
                if not consumer.no_ack and any(each is letter for each, _ in queue.unacked):
                    self.held.append(Held(queue, letter, channel, self.tags[channel], consumer))

    def compare_counts(self, op: Op) -> None:
        for name, queue in self.twin.queues.items():
            if queue.kind != "stream":
                real = self.house.vhost.queues[name]
                self.same(f"ready in {name} after {op}", real.ready_count, len(queue.ready))
                self.same(f"waiting in {name} after {op}", real.delayed_count, len(queue.waiting))
                self.same(f"unacked in {name} after {op}", real.unacked_count, len(queue.unacked))
        for name in self.twin.exchanges:
            wheel = self.house.vhost.exchanges[name].wheel
            waits = sum(exchange == name for _, exchange, _ in self.twin.delayed)
            self.same(f"delayed in {name} after {op}", 0 if wheel is None else wheel.count(), waits)

    def compare_queues(self) -> None:
        """What everybody holds is acked; then whatever comes is taken, at its time."""
        for name, queue in self.twin.queues.items():
            while queue.consumers:
                self.cancel(name)
        while self.held:
            self.settle(0, "ack")
        self.twin.settle_dead()
        drained = [queue for queue in self.twin.queues.values() if queue.kind != "stream"]
        for _ in range(100):
            while any(self.gives(queue) for queue in drained):  # what is over behind a head dies with it, and goes on
                for queue in drained:
                    while self.gives(queue):
                        self.get(queue.name, True)
                        self.twin.settle_dead()
            due = [each.due_ms for queue in drained for each in queue.waiting] + [each[0] for each in self.twin.delayed]
            if not due:
                break
            self.house.forget_choices()
            self.time_passes(min(due) - self.twin.now_ms)
        for queue in self.twin.queues.values():
            if queue.kind == "stream":
                self.compare_stream(queue)

    def gives(self, queue: TwinQueue) -> bool:
        return self.twin.allowed(queue, self.twin.in_order(queue), None) is not None

    def compare_stream(self, queue: TwinQueue, offset: int = 0) -> None:
        """All of it from there on; from its end, where that is before."""
        offset = 0 if queue.unsure else offset
        self.client.say(2, spec.Channel.Open(), spec.Basic.Qos(prefetch_count=1000))
        self.heard()
        arguments = {"x-stream-offset": offset}
        self.client.say(2, spec.Basic.Consume(queue=queue.name, consumer_tag="s", arguments=arguments))
        events = [event for event in self.heard() if event.body is not None]
        letters = [letter for letter in queue.ready if letter.offset >= offset]
        self.same(f"bodies in {queue.name}", [each.body for each in events], [each.body for each in letters])
        for event, letter in zip(events, letters, strict=True):
            if not queue.unsure:
                self.same("offset", (event.headers or {}).get("x-stream-offset"), letter.offset)
            self.same_letter(queue, event, letter)
        self.client.say(2, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
        self.heard()
