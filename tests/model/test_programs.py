"""Thousands of random programs, each said to a whole broker in memory and to its naive twin: 0 differences.

A program declares exchanges (alternates, bindings among them), queues of all kinds with limits, time to live,
priorities and dead letters, sets and clears policies, publishes, gets, consumes, acks, rejects and requeues, reads
streams from any place, restarts the broker, cleanly or not, and lets time pass.
Every answer is compared when it comes, every count after every step, and at the end what is in each queue: bodies,
order, routing, redelivered, and the whole story that the headers of dead letters tell.

`-m on_demand` runs 10,000 (TEST_PROGRAMS sets another count), TEST_PROGRAMS_SEED says where they begin. What fails is
said again with ever less, and what is left is printed.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import Any, NamedTuple

import pamqp.commands as spec
import pamqp.frame
import pamqp.header
import pytest
from memory_broker import Client, Event
from program_house import ProgramHouse
from program_twin import Anyhow, Binding, Letter, Twin, TwinConsumer, TwinExchange, TwinQueue
from programs import Op, program, shrunk

from amqpd.broker.catalogue import policies
from amqpd.broker.destination import NotOpenYet
from amqpd.broker.flow.timers import TICK_MS

SIZE = 45
COUNT = 300
SEED = int(os.environ.get("TEST_PROGRAMS_SEED", "1"))


FIRST_CHANNEL = 10
"""Of consumers; each has its own."""


class Held(NamedTuple):
    """consumer: None where it was got."""

    queue: TwinQueue
    letter: Letter
    channel: int
    tag: int
    consumer: TwinConsumer | None


class Different(AssertionError):
    """The broker and its twin disagree."""


class Player:
    """Says a program to both."""

    def __init__(self) -> None:
        self.house = ProgramHouse()
        self.twin = Twin()
        self.published = 0
        self.steps = 0
        self.connect()

    def connect(self) -> None:
        self.client = Client(self.house, "c")
        self.channel = FIRST_CHANNEL
        self.delivery_tag = 0
        # Held by a channel with that tag; consumer: None where it was got.
        self.held: list[Held] = []
        self.tags: dict[int, int] = {}
        self.delivered: list[Event] = []
        self.client.say(1, spec.Channel.Open(), spec.Confirm.Select())
        self.heard()

    def heard(self) -> list[Event]:
        """What is not for a consumer; that is kept for `compare_deliveries`."""
        self.house.settle()
        events = self.client.heard()
        self.delivered += [each for each in events if each.channel >= FIRST_CHANNEL]
        return [each for each in events if each.channel < FIRST_CHANNEL]

    def ask(self, method: Any) -> Event:
        self.client.say(1, method)
        events = self.heard()
        if len(events) != 1 or isinstance(events[0].method, spec.Channel.Close):
            raise Different(f"{method.name} was answered with {events}")
        return events[0]

    def play(self, ops: list[Op]) -> None:
        """Raises: Different; Anyhow where nothing more can be said."""
        try:
            for op in ops:
                getattr(self, op[0].replace("-", "_"))(*op[1:])
                self.twin.settle_dead()
                extra = self.heard()
                if extra:
                    raise Different(f"after {op} came {extra}")
                self.compare_deliveries(op)
                self.compare_counts(op)
                self.steps += 1
            self.compare_queues()
        finally:
            self.house.end()

    # -- declarations

    def exchange(self, name: str, kind: str, alternate: str | None, durable: bool) -> None:
        if name in self.twin.exchanges:
            return
        arguments = {} if alternate is None else {"alternate-exchange": alternate}
        self.ask(spec.Exchange.Declare(exchange=name, exchange_type=kind, durable=durable, arguments=arguments))
        self.twin.exchanges[name] = TwinExchange(name, kind, alternate, durable)

    def queue(self, name: str, durable: bool, arguments: dict[str, Any]) -> None:
        if name in self.twin.queues:
            return
        self.ask(spec.Queue.Declare(queue=name, durable=durable, arguments=arguments))
        self.twin.queues[name] = TwinQueue(name, arguments["x-queue-type"], arguments, durable)
        self.twin.obey()

    def bind(self, exchange: str, queue: str, key: str, matching: dict[str, str]) -> None:
        if exchange in self.twin.exchanges and queue in self.twin.queues:
            arguments = self.bound(Binding(exchange, True, queue, key), matching)
            self.ask(spec.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments))

    def bind_exchange(self, source: str, destination: str, key: str, matching: dict[str, str]) -> None:
        if source in self.twin.exchanges and destination in self.twin.exchanges:
            arguments = self.bound(Binding(source, False, destination, key), matching)
            self.ask(spec.Exchange.Bind(destination=destination, source=source, routing_key=key, arguments=arguments))

    def bound(self, binding: Binding, matching: dict[str, str]) -> dict[str, Any]:
        """The arguments it has, which only headers exchanges look at."""
        arguments = matching if self.twin.exchanges[binding.source].kind == "headers" else {}
        binding = binding._replace(arguments=tuple(sorted(arguments.items())))
        if binding not in self.twin.bindings:
            self.twin.bindings.append(binding)
        return dict(arguments)

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
        self.same("deleted", answer.method.message_count, len(queue.ready))
        if queue.consumer is not None:
            (cancel,) = [each.method for each in self.delivered if each.body is None]
            self.same("cancelled", cancel.name, "Basic.Cancel")
            self.delivered = [each for each in self.delivered if each.body is not None]
        self.twin.bindings = [each for each in self.twin.bindings if (True, name) != each[1:3]]

    def delete_exchange(self, name: str) -> None:
        if self.twin.exchanges.pop(name, None) is not None:
            self.ask(spec.Exchange.Delete(exchange=name))
            self.twin.bindings = [each for each in self.twin.bindings if name != each[0] and (False, name) != each[1:3]]

    def policy(self, name: str, pattern: str, definition: dict[str, Any], priority: int, apply_to: str) -> None:
        value = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": apply_to}
        policies.declare(self.house.vhost, name, value, name.startswith("o"))
        self.twin.policies[name] = (pattern, definition, priority, apply_to)
        self.obey()

    def obey(self) -> None:
        """Everybody does, a tick of the timers later at the latest."""
        self.house.settle()
        self.twin.obey()
        self.twin.settle_dead()
        self.time_passes(TICK_MS)

    def clear(self, name: str) -> None:
        if self.twin.policies.pop(name, None) is not None:
            there = self.house.vhost.policies.get(name, name.startswith("o"))
            assert there is not None
            policies.clear(self.house.vhost, there)
            self.obey()

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
        headers: dict[str, str],
    ) -> None:
        if exchange and exchange not in self.twin.exchanges:
            return
        self.published += 1
        body = b"%d" % self.published
        body += b"." * (padding - len(body))
        properties = spec.Basic.Properties(
            delivery_mode=2 if persistent else 1,
            priority=priority,
            expiration=None if expiration is None else f"{expiration}",
            headers=headers,
        )
        method = spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
        frames = [pamqp.frame.marshal(method, 1)]
        frames.append(pamqp.frame.marshal(pamqp.header.ContentHeader(0, len(body), properties), 1))
        frames.append(b"\x03\0\1" + struct.pack(">I", len(body)) + body + b"\xce")
        self.client.connection.receive(b"".join(frames))
        letter = Letter(body, exchange, key, "" if expiration is None else f"{expiration}", priority or 0)
        letter.headers, letter.persistent = headers, persistent
        names = self.twin.route(exchange, key, headers)
        taken = [self.twin.offer(name, letter) for name in names]
        events = [event.method.name for event in self.heard()]
        due = ["Basic.Return"] * (mandatory and not names) + ["Basic.Ack" if all(taken) else "Basic.Nack"]
        self.same("publish", events, due)

    def get(self, name: str, no_ack: bool) -> None:
        queue = self.twin.queues.get(name)
        if queue is None or queue.kind == "stream":
            return
        head = self.twin.head(queue)
        event = self.ask(spec.Basic.Get(queue=name, no_ack=no_ack))
        if head is None or event.body is None:
            self.same(f"get of {name}", event.body, head and head.body)
            return
        queue.ready.remove(head)
        self.twin.tidy(queue)
        self.delivery_tag += 1
        self.same("delivery tag", event.method.delivery_tag, self.delivery_tag)
        self.same("message count", event.method.message_count, len(queue.ready))
        self.same_letter(queue, event, head)
        queue.delivered = True
        if not no_ack:
            self.held.append(Held(queue, head, 1, self.delivery_tag, None))

    def consume(self, name: str, prefetch: int, no_ack: bool) -> None:
        """On a channel of its own. A queue has one consumer at most: whose turn it is is another model's matter."""
        queue = self.twin.queues.get(name)
        if queue is None or queue.kind == "stream" or queue.consumer is not None:
            return
        self.channel += 1
        self.client.say(self.channel, spec.Channel.Open(), spec.Basic.Qos(prefetch_count=prefetch))
        self.client.say(self.channel, spec.Basic.Consume(queue=name, consumer_tag="c", no_ack=no_ack))
        self.heard()
        answers, self.delivered = self.delivered[:3], self.delivered[3:]
        names = [each.method.name for each in answers]
        self.same("consume", names, ["Channel.OpenOk", "Basic.QosOk", "Basic.ConsumeOk"])
        queue.consumer = TwinConsumer(self.channel, prefetch, no_ack)

    def cancel(self, name: str) -> None:
        """What it holds its channel goes on holding."""
        queue = self.twin.queues.get(name)
        if queue is None or queue.consumer is None:
            return
        self.client.say(queue.consumer.channel, spec.Basic.Cancel(consumer_tag="c"))
        self.heard()
        self.same("cancel", [each.method.name for each in self.delivered], ["Basic.CancelOk"])
        self.delivered.clear()
        queue.consumer = None

    def restart(self, clean: bool) -> None:
        self.house.again(clean=clean)
        self.twin.restart([(each.queue, each.letter) for each in self.held], clean=clean)
        self.connect()
        for queue in self.house.vhost.queues.values():
            with suppress(NotOpenYet):
                queue.prepare()
        self.obey()

    def read(self, name: str, offset: int) -> None:
        """A stream from there on."""
        queue = self.twin.queues.get(name)
        if queue is not None and queue.kind == "stream":
            self.compare_stream(queue, offset)

    def settle(self, number: int, how: str) -> None:
        if not self.held:
            return
        queue, letter, channel, tag, consumer = self.held.pop(number % len(self.held))
        if consumer is not None:
            consumer.in_flight -= 1
        if how == "ack":
            self.client.say(channel, spec.Basic.Ack(delivery_tag=tag))
        else:
            self.client.say(channel, spec.Basic.Nack(delivery_tag=tag, requeue=how == "requeue"))
        if self.twin.queues.get(queue.name) is not queue or how == "ack":
            return
        if how == "reject":
            self.twin.die(queue, letter, "rejected")
            return
        letter.redelivered = True
        if queue.kind == "quorum":
            letter.deliveries += 1
            limit = self.twin.rule(queue, "delivery-limit")
            if limit is not None and letter.deliveries > limit:
                self.twin.die(queue, letter, "delivery_limit")
                return
        letter.vague = queue.durable
        queue.ready.append(letter)
        self.twin.tidy(queue, came_back=True)

    def purge(self, name: str) -> None:
        queue = self.twin.queues.get(name)
        if queue is not None and queue.kind != "stream":
            answer = self.ask(spec.Queue.Purge(queue=name))
            self.same("purged", answer.method.message_count, len(queue.ready))
            queue.ready.clear()

    def __getattr__(self, name: str) -> Any:
        if name == "pass":
            return self.time_passes
        raise AttributeError(name)

    def time_passes(self, ms: int) -> None:
        self.twin.advance(ms)
        self.house.timed.advance(ms)

    # -- judging

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
                if not consumer.no_ack:
                    self.held.append(Held(queue, letter, channel, self.tags[channel], consumer))

    def compare_counts(self, op: Op) -> None:
        for name, queue in self.twin.queues.items():
            if queue.kind != "stream":
                got = self.house.vhost.queues[name].ready_count
                self.same(f"ready in {name} after {op}", got, len(queue.ready))

    def compare_queues(self) -> None:
        for name in self.twin.queues:
            self.cancel(name)
        streams = [queue for queue in self.twin.queues.values() if queue.kind == "stream"]
        drained = [queue for queue in self.twin.queues.values() if queue.kind != "stream"]
        while any(queue.ready for queue in drained):  # what is over behind a head dies with it, and goes on elsewhere
            for queue in drained:
                while queue.ready:
                    self.get(queue.name, True)
                    self.twin.settle_dead()
        for queue in streams:
            self.compare_stream(queue)

    def compare_stream(self, queue: TwinQueue, offset: int = 0) -> None:
        """All of it from there on; from its end, where that is before."""
        self.client.say(2, spec.Channel.Open(), spec.Basic.Qos(prefetch_count=1000))
        self.heard()
        arguments = {"x-stream-offset": offset}
        self.client.say(2, spec.Basic.Consume(queue=queue.name, consumer_tag="s", arguments=arguments))
        events = [event for event in self.heard() if event.body is not None]
        letters = queue.ready[offset:]
        self.same(f"bodies in {queue.name}", [each.body for each in events], [each.body for each in letters])
        for place, (event, letter) in enumerate(zip(events, letters, strict=True), min(offset, len(queue.ready))):
            self.same("offset", (event.headers or {}).get("x-stream-offset"), place)
            self.same_letter(queue, event, letter)
        self.client.say(2, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
        self.heard()


def outcome(ops: list[Op]) -> str:
    """What is different; empty: nothing, or nothing that anybody is owed."""
    player = Player()
    try:
        player.play(ops)
    except Anyhow:
        return ""
    except Different as error:
        return f"{error}"
    return ""


def run(seeds: range) -> None:
    whole = steps = 0
    for seed in seeds:
        ops = program(seed, SIZE)
        player = Player()
        try:
            player.play(ops)
            whole += 1
        except Anyhow:
            pass
        except Different as error:
            less = shrunk(ops, lambda part: bool(outcome(part)))
            lines = "\n".join(f"    {op!r}," for op in less)
            pytest.fail(f"seed {seed}: {error}\nand with less: {outcome(less)}\n{lines}")
        steps += player.steps
    print(f"{len(seeds)} programs, {whole} of them to their end, {steps} steps, 0 differences")
    assert whole > len(seeds) // 2


def test_programs() -> None:
    run(range(SEED, SEED + COUNT))


@pytest.mark.on_demand
@pytest.mark.timeout(3600)
def test_ten_thousand_programs() -> None:
    run(range(SEED, SEED + int(os.environ.get("TEST_PROGRAMS", "10000"))))
