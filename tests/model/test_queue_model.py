"""Queues, channels and consumers against a naive twin, in bytes, through restarts.

The twin keeps a sorted list of what is ready and a dict of what is unacked, and believes nothing: every delivery must
be the head of its queue, go to a consumer that has credit, carry the channel's next tag and the truth about
`redelivered`; nobody with credit may be left waiting while something is ready; higher priorities come first; and
between two deliveries to one consumer every other that could have taken one has had one (strict round robin).

The queues' windows in memory are shrunk, so that cold reads and spills happen in runs of forty steps.
"""

from __future__ import annotations

import struct
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from memory_broker import Client, Event, MemoryBroker

from amqpd.channel.deliveries import OUT_BYTES_MAX

HOT_COUNT_MAX = 6
HOT_BYTES_MAX = 400_000
PERSISTENT = b"\x10\x00\x02"
TRANSIENT = b"\x10\x00\x01"
PLAIN = b"\x00\x00"
NAMES = ("durable", "transient")
# The plain channels do most of the work.
CHANNELS = st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3, 4, 5])
COUNTS = st.one_of(st.integers(1, 3), st.integers(5, 30))
SIZES = st.sampled_from([8, 8, 40, 60_000])


class Message:
    def __init__(self, body: bytes, persistent: bool) -> None:
        self.body = body
        self.persistent = persistent
        self.order = -1
        self.redelivered = False
        self.delivered = False


class TwinQueue:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: list[Message] = []
        self.unacked = 0
        self.orders = 0
        self.consumers: list[TwinConsumer] = []

    def add(self, message: Message) -> None:
        message.order = self.orders
        self.orders += 1
        self.ready.append(message)

    def put_back(self, message: Message) -> None:
        message.redelivered = True
        self.ready.append(message)
        self.ready.sort(key=lambda each: each.order)


class TwinConsumer:
    def __init__(self, channel: TwinChannel, queue: TwinQueue, tag: str, no_ack: bool, exclusive: bool, priority: int):
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.prefetch = channel.prefetch
        self.in_flight = 0
        # For round robin: since when it could have taken one, and when it had one.
        self.eligible_since = -1
        self.served = -1


class Unacked:
    def __init__(self, queue: TwinQueue, message: Message, consumer: TwinConsumer | None) -> None:
        self.queue = queue
        self.message = message
        self.consumer = consumer
        self.pending = False


class TwinChannel:
    def __init__(self, place: int, client: Client, number: int) -> None:
        self.place = place
        self.client = client
        self.number = number
        self.kind = ("plain", "confirm", "tx")[place // 2]
        self.next_tag = 1
        self.prefetch = 0
        self.window = 0
        self.unacked: dict[int, Unacked] = {}
        self.consumers: dict[str, TwinConsumer] = {}
        self.published = 0
        self.confirmed = 0
        self.tx_publishes: list[tuple[TwinQueue, Message]] = []
        self.tx_settlements: list[tuple[int, str]] = []

    def outstanding(self) -> list[int]:
        return [tag for tag, entry in self.unacked.items() if not entry.pending]

    def in_flight(self) -> int:
        return sum(entry.consumer is not None for entry in self.unacked.values())


class QueueMachine(RuleBasedStateMachine):
    """Six channels on two connections: two plain, two confirming, two with transactions. Even ones consume from the
    durable queue, odd ones from the transient one, so that a channel's window belongs to one queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self.house = MemoryBroker()
        self.single_active = False
        self.bodies = 0
        self.tags = 0
        self.clock = 0
        self.queues: dict[str, TwinQueue] = {}
        self.clients: list[Client] = []
        self.channels: list[TwinChannel] = []
        self.observed: dict[bytes, tuple[TwinChannel, Any]] = {}
        # Bytes delivered to each connection in this step: one whose output is full rests until it is flushed.
        self.written: dict[int, int] = {}
        self.replies: list[tuple[TwinChannel, Event]] = []

    @initialize(
        single_active=st.sampled_from([False, False, True]), consumers=st.integers(0, 6), prefetch=st.integers(0, 3)
    )
    def begin(self, single_active: bool, consumers: int, prefetch: int) -> None:
        self.single_active = single_active
        self.connect()
        for name in NAMES:
            self.declare(name)
        self.replies = []
        for number in range(consumers):
            if prefetch:
                self.qos(number % 6, prefetch, False)
            self.consume(number % 6, False, False, 0)

    def connect(self) -> None:
        self.clients = [Client(self.house, f"c{number}") for number in range(2)]
        self.channels = [TwinChannel(place, self.clients[place % 3 % 2], place + 1) for place in range(6)]
        for channel in self.channels:
            self.open(channel)

    def open(self, channel: TwinChannel) -> None:
        channel.client.say(channel.number, spec.Channel.Open())
        if channel.kind == "confirm":
            channel.client.say(channel.number, spec.Confirm.Select())
        if channel.kind == "tx":
            channel.client.say(channel.number, spec.Tx.Select())
        self.listen()

    def declare(self, name: str) -> None:
        arguments = {"x-single-active-consumer": True} if self.single_active else {}
        method = spec.Queue.Declare(queue=name, durable=name == "durable", arguments=arguments)
        self.channels[0].client.say(self.channels[0].number, method)
        self.listen()
        self.queues[name] = TwinQueue(name)
        self.shrink(name)

    def shrink(self, name: str) -> None:
        queue = self.house.vhost.queues[name]
        queue.order.count_max = HOT_COUNT_MAX
        queue.order.bytes_max = HOT_BYTES_MAX

    # -- hearing -----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Everything that the broker says now, sorted into deliveries, confirms and replies."""
        self.house.settle()
        self.observed = {}
        self.written = dict.fromkeys([id(client) for client in self.clients], 0)
        self.replies = []
        by_place = {(id(channel.client), channel.number): channel for channel in self.channels}
        for client in self.clients:
            for event in client.heard():
                channel = by_place[id(client), event.channel]
                if isinstance(event.method, spec.Basic.Deliver):
                    assert event.body is not None
                    key = event.body[:8]
                    assert key not in self.observed, "delivered twice"
                    self.observed[key] = (channel, event)
                elif isinstance(event.method, spec.Basic.Ack):
                    first = channel.confirmed + 1 if event.method.multiple else event.method.delivery_tag
                    assert first == channel.confirmed + 1
                    channel.confirmed = event.method.delivery_tag
                else:
                    self.replies.append((channel, event))

    def reply(self, channel: TwinChannel, kind: type[Any]) -> Any:
        """The one reply there is."""
        assert [(each.place, type(event.method)) for each, event in self.replies] == [(channel.place, kind)]
        event = self.replies[0][1]
        self.replies = []
        return event

    def quiet(self) -> None:
        assert self.replies == []

    # -- what the twin believes --------------------------------------------------------------------------------------

    def can_take(self, consumer: TwinConsumer) -> bool:
        channel = consumer.channel
        if self.single_active and consumer.queue.consumers[0] is not consumer:
            return False
        if consumer.prefetch and consumer.in_flight >= consumer.prefetch:
            return False
        if channel.window and channel.in_flight() >= channel.window:
            return False
        return not channel.client.connection.output.write_paused

    def may_rest(self, consumer: TwinConsumer) -> bool:
        return self.written[id(consumer.channel.client)] > OUT_BYTES_MAX - 100_000

    def note_eligible(self) -> None:
        """Whoever cannot take one loses its claim; whoever can since now begins one."""
        for queue in self.queues.values():
            for consumer in queue.consumers:
                if not self.can_take(consumer) or self.may_rest(consumer):
                    consumer.eligible_since = -1
                elif consumer.eligible_since < 0:
                    consumer.eligible_since = self.clock

    def drain(self) -> None:
        """Every queue hands out what was observed, from its head on, until nothing is ready or nobody can take it."""
        self.note_eligible()
        progress = True
        while progress:
            progress = False
            for queue in self.queues.values():
                while queue.ready:
                    key = queue.ready[0].body[:8]
                    seen = self.observed.get(key)
                    if seen is None or seen[1].method.delivery_tag != seen[0].next_tag:
                        break
                    del self.observed[key]
                    self.delivered(queue, queue.ready.pop(0), *seen)
                    progress = True
        for queue in self.queues.values():
            takers = [consumer.tag for consumer in queue.consumers if self.can_take(consumer)]
            assert not queue.ready or not takers, f"{queue.ready[0].body[:8]!r} waits, and so do {takers}"

    def finish(self) -> None:
        self.drain()
        assert self.observed == {}, "deliveries that nobody was due"
        self.quiet()
        for channel in self.channels:
            assert channel.kind != "confirm" or channel.confirmed == channel.published

    def delivered(self, queue: TwinQueue, message: Message, channel: TwinChannel, event: Event) -> None:
        method = event.method
        consumer = channel.consumers[method.consumer_tag]
        assert consumer.queue is queue
        assert event.body == message.body
        assert (method.exchange, method.routing_key) == ("", queue.name)
        assert method.redelivered == message.redelivered, message.body[:8]
        assert self.can_take(consumer), f"{consumer.tag} has no credit"
        others = [each for each in queue.consumers if each is not consumer]
        rivals = [each for each in others if self.can_take(each) and not self.may_rest(each)]
        for rival in rivals:
            assert rival.priority <= consumer.priority, f"{rival.tag} has a higher priority than {consumer.tag}"
            if rival.priority == consumer.priority and consumer.served >= 0:
                waited = 0 <= rival.eligible_since < consumer.served and rival.served < consumer.served
                assert not waited, f"{consumer.tag} has had two while {rival.tag} waited"
        self.clock += 1
        consumer.served = self.clock
        self.written[id(channel.client)] += len(message.body)
        message.delivered = True
        tag = channel.next_tag
        channel.next_tag += 1
        if not consumer.no_ack:
            consumer.in_flight += 1
            queue.unacked += 1
            channel.unacked[tag] = Unacked(queue, message, consumer)
        self.note_eligible()

    def take(self, channel: TwinChannel, tag: int) -> Unacked:
        entry = channel.unacked.pop(tag)
        entry.queue.unacked -= 1
        if entry.consumer is not None:
            entry.consumer.in_flight -= 1
        return entry

    def settle(self, channel: TwinChannel, tags: list[int], action: str) -> None:
        for tag in tags:
            entry = self.take(channel, tag)
            if action == "requeue" and self.queues[entry.queue.name] is entry.queue:
                entry.queue.put_back(entry.message)

    def release(self, channel: TwinChannel) -> None:
        """The channel ends."""
        for consumer in list(channel.consumers.values()):
            self.leave(consumer)
        self.settle(channel, list(channel.unacked), "requeue")
        place = self.channels.index(channel)
        self.channels[place] = TwinChannel(channel.place, channel.client, channel.number)

    def leave(self, consumer: TwinConsumer) -> None:
        consumer.channel.consumers.pop(consumer.tag, None)
        if consumer in consumer.queue.consumers:
            consumer.queue.consumers.remove(consumer)

    def refused(self, channel: TwinChannel, code: int) -> None:
        """The broker closes the channel; the client answers and opens it again."""
        event = self.reply(channel, spec.Channel.Close)
        assert event.method.reply_code == code, event.method.reply_text
        self.release(channel)
        self.finish()
        channel.client.say(channel.number, spec.Channel.CloseOk())
        self.open(self.channels[channel.place])
        self.replies = []
        self.finish()

    # -- publishing --------------------------------------------------------------------------------------------------

    @rule(place=CHANNELS, count=COUNTS, properties=st.sampled_from([PERSISTENT, TRANSIENT]), size=SIZES)
    def publish_to_durable(self, place: int, count: int, properties: bytes, size: int) -> None:
        self.publish(place, "durable", count, properties, size)

    @rule(place=CHANNELS, count=COUNTS, properties=st.sampled_from([PERSISTENT, PLAIN]), size=SIZES)
    def publish_to_transient(self, place: int, count: int, properties: bytes, size: int) -> None:
        self.publish(place, "transient", count, properties, size)

    def publish(self, place: int, name: str, count: int, properties: bytes, size: int) -> None:
        channel = self.channels[place]
        queue = self.queues[name]
        messages = []
        for _ in range(count):
            self.bodies += 1
            messages.append(Message(b"%08d" % self.bodies + b"." * (size - 8), properties == PERSISTENT))
        channel.client.publish(channel.number, name, [message.body for message in messages], properties)
        self.listen()
        if channel.kind == "tx":
            channel.tx_publishes += [(queue, message) for message in messages]
        else:
            channel.published += count
            for message in messages:
                queue.add(message)
                self.drain()
        self.finish()

    # -- consuming ---------------------------------------------------------------------------------------------------

    @rule(
        place=CHANNELS,
        no_ack=st.sampled_from([False] * 4 + [True]),
        exclusive=st.sampled_from([False] * 12 + [True]),
        priority=st.sampled_from([0, 0, 0, 5, -1]),
    )
    def consume(self, place: int, no_ack: bool, exclusive: bool, priority: int) -> None:
        channel = self.channels[place]
        queue = self.queues[NAMES[place % 2]]
        self.tags += 1
        consumer = TwinConsumer(channel, queue, f"t{self.tags}", no_ack, exclusive, priority)
        arguments = {"x-priority": priority} if priority else {}
        channel.client.say(
            channel.number,
            spec.Basic.Consume(
                queue=queue.name, consumer_tag=consumer.tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments
            ),
        )
        self.listen()
        taken = any(each.exclusive for each in queue.consumers)
        if taken or (exclusive and (queue.consumers or self.single_active)):
            self.refused(channel, 403)
            return
        assert self.reply(channel, spec.Basic.ConsumeOk).method.consumer_tag == consumer.tag
        queue.consumers.append(consumer)
        channel.consumers[consumer.tag] = consumer
        self.finish()

    @rule(place=CHANNELS, which=st.integers(0, 5))
    def cancel(self, place: int, which: int) -> None:
        channel = self.channels[place]
        tags = [*channel.consumers, "unknown"]
        tag = tags[which % len(tags)]
        channel.client.say(channel.number, spec.Basic.Cancel(consumer_tag=tag))
        self.listen()
        self.reply(channel, spec.Basic.CancelOk)
        if tag in channel.consumers:
            self.leave(channel.consumers[tag])
        self.finish()

    @rule(place=CHANNELS, count=st.sampled_from([0, 1, 2, 3, 10]), whole=st.booleans())
    def qos(self, place: int, count: int, whole: bool) -> None:
        channel = self.channels[place]
        channel.client.say(channel.number, spec.Basic.Qos(prefetch_count=count, global_=whole))
        self.listen()
        self.reply(channel, spec.Basic.QosOk)
        if whole:
            channel.window = count
        else:
            channel.prefetch = count
            channel.window = 0
        self.finish()

    @rule(place=CHANNELS, name=st.sampled_from(NAMES), no_ack=st.booleans())
    def get(self, place: int, name: str, no_ack: bool) -> None:
        channel = self.channels[place]
        queue = self.queues[name]
        channel.client.say(channel.number, spec.Basic.Get(queue=name, no_ack=no_ack))
        self.listen()
        if not queue.ready:
            self.reply(channel, spec.Basic.GetEmpty)
            return
        event = self.reply(channel, spec.Basic.GetOk)
        message = queue.ready.pop(0)
        assert event.body == message.body
        assert event.method.delivery_tag == channel.next_tag
        assert event.method.redelivered == message.redelivered
        assert event.method.message_count == len(queue.ready)
        channel.next_tag += 1
        message.delivered = True
        if not no_ack:
            queue.unacked += 1
            channel.unacked[event.method.delivery_tag] = Unacked(queue, message, None)
        self.finish()

    # -- answering ---------------------------------------------------------------------------------------------------

    @rule(place=CHANNELS, which=st.integers(0, 30), multiple=st.booleans(), every=st.booleans())
    def ack(self, place: int, which: int, multiple: bool, every: bool) -> None:
        self.answer(place, which, multiple, "ack", every)

    @rule(place=CHANNELS, which=st.integers(0, 30), multiple=st.booleans(), every=st.booleans())
    def requeue(self, place: int, which: int, multiple: bool, every: bool) -> None:
        self.answer(place, which, multiple, "requeue", every)

    @rule(place=CHANNELS, which=st.integers(0, 30), multiple=st.booleans())
    def reject(self, place: int, which: int, multiple: bool) -> None:
        self.answer(place, which, multiple, "reject", False)

    def answer(self, place: int, which: int, multiple: bool, action: str, every: bool) -> None:
        channel = self.channels[place]
        outstanding = channel.outstanding()
        if multiple and every:
            tag, tags = 0, outstanding
        elif outstanding:
            tag = outstanding[which % len(outstanding)]
            tags = [each for each in outstanding if each <= tag] if multiple else [tag]
        else:
            return
        self.say_answer(channel, tag, multiple, action)
        self.listen()
        if channel.kind == "tx":
            for each in tags:
                channel.unacked[each].pending = True
                channel.tx_settlements.append((each, action))
        else:
            self.settle(channel, tags, action)
        self.finish()

    def say_answer(self, channel: TwinChannel, tag: int, multiple: bool, action: str) -> None:
        if action == "ack":
            channel.client.say(channel.number, spec.Basic.Ack(delivery_tag=tag, multiple=multiple))
        elif multiple or tag % 2:
            channel.client.say(
                channel.number, spec.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=action == "requeue")
            )
        else:
            channel.client.say(channel.number, spec.Basic.Reject(delivery_tag=tag, requeue=action == "requeue"))

    def answer_what_is_not_outstanding(self, place: int, ahead: int, multiple: bool, action: str) -> None:
        channel = self.channels[place]
        settled = [tag for tag in range(1, channel.next_tag) if tag not in channel.outstanding()]
        tag = settled[-1] if settled and not ahead else channel.next_tag + ahead
        self.say_answer(channel, tag, multiple, action)
        self.listen()
        self.refused(channel, 406)

    @rule(place=CHANNELS)
    def recover(self, place: int) -> None:
        channel = self.channels[place]
        channel.client.say(channel.number, spec.Basic.Recover(requeue=True))
        self.listen()
        self.reply(channel, spec.Basic.RecoverOk)
        # rabbit: what is settled in an open transaction is not outstanding any more
        self.settle(channel, channel.outstanding(), "requeue")
        self.finish()

    @precondition(lambda self: any(channel.kind == "tx" for channel in self.channels))
    @rule(place=st.sampled_from([4, 5]), commit=st.booleans())
    def end_transaction(self, place: int, commit: bool) -> None:
        channel = self.channels[place]
        channel.client.say(channel.number, spec.Tx.Commit() if commit else spec.Tx.Rollback())
        self.listen()
        self.reply(channel, spec.Tx.CommitOk if commit else spec.Tx.RollbackOk)
        publishes, channel.tx_publishes = channel.tx_publishes, []
        settlements, channel.tx_settlements = channel.tx_settlements, []
        for tag, _ in settlements:
            channel.unacked[tag].pending = False
        if commit:
            for queue, message in publishes:
                if self.queues[queue.name] is queue:  # else it is deleted, and another has its name
                    queue.add(message)
                    self.drain()
            for tag, action in settlements:
                self.settle(channel, [tag], action)
        self.finish()

    # -- ends --------------------------------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(["purge", "close", "lose", "delete", "restart", "bad tag"]),
        place=CHANNELS,
        name=st.sampled_from(NAMES),
        yes=st.booleans(),
        number=st.integers(0, 2),
    )
    def disturb(self, what: str, place: int, name: str, yes: bool, number: int) -> None:
        """One rule for all of these: what is taken away all the time is never there to be delivered."""
        if what == "purge":
            self.purge(place, name)
        elif what == "close":
            self.close_channel(place)
        elif what == "lose":
            self.lose_connection(number % 2)
        elif what == "delete":
            self.delete_queue(name, place)
        elif what == "restart":
            self.restart(yes)
        else:
            self.answer_what_is_not_outstanding(place, number, yes, "ack" if number else "requeue")

    def purge(self, place: int, name: str) -> None:
        channel = self.channels[place]
        channel.client.say(channel.number, spec.Queue.Purge(queue=name))
        self.listen()
        assert self.reply(channel, spec.Queue.PurgeOk).method.message_count == len(self.queues[name].ready)
        self.queues[name].ready.clear()
        self.finish()

    def close_channel(self, place: int) -> None:
        channel = self.channels[place]
        channel.client.say(channel.number, spec.Channel.Close(0, "", 0, 0))
        self.listen()
        self.reply(channel, spec.Channel.CloseOk)
        self.release(channel)
        self.finish()
        self.open(self.channels[place])
        self.replies = []
        self.finish()

    def lose_connection(self, which: int) -> None:
        client = self.clients[which]
        client.vanish()
        self.clients[which] = Client(self.house, f"again{self.clock}-{self.tags}-{self.bodies}")
        self.listen()
        mine = [channel for channel in self.channels if channel.client is client]
        for channel in mine:
            self.release(channel)
        self.finish()
        for channel in mine:
            fresh = self.channels[channel.place]
            fresh.client = self.clients[which]
            self.open(fresh)
            self.replies = []
        self.finish()

    @rule(which=st.integers(0, 1), paused=st.sampled_from([True, False, False, False]))
    def stop_reading(self, which: int, paused: bool) -> None:
        """The peer's socket is full, or has room again."""
        connection = self.clients[which].connection
        if paused:
            connection.output.pause_writing()
        else:
            connection.output.resume_writing()
        self.listen()
        self.finish()

    def delete_queue(self, name: str, place: int) -> None:
        channel = self.channels[place]
        queue = self.queues[name]
        channel.client.say(channel.number, spec.Queue.Delete(queue=name))
        self.listen()
        told = [reply for reply in self.replies if isinstance(reply[1].method, spec.Basic.Cancel)]
        self.replies = [reply for reply in self.replies if reply not in told]
        cancelled = sorted(event.method.consumer_tag for _, event in told)
        assert cancelled == sorted(consumer.tag for consumer in queue.consumers)
        assert self.reply(channel, spec.Queue.DeleteOk).method.message_count == len(queue.ready)
        for consumer in list(queue.consumers):
            self.leave(consumer)
        self.declare(name)
        self.replies = []
        self.finish()

    def restart(self, clean: bool) -> None:
        durable = self.queues["durable"]
        kept = {message.order: message for message in durable.ready}
        for channel in self.channels:
            for entry in channel.unacked.values():
                if entry.queue is durable:
                    kept[entry.message.order] = entry.message
        self.house.again(clean=clean)
        self.connect()
        self.replies = []
        for name in NAMES:
            self.queues[name] = TwinQueue(name)
        for order in sorted(kept):
            message = kept[order]
            if message.persistent:
                message.redelivered = message.delivered
                self.queues["durable"].add(message)
        self.shrink("durable")
        self.declare_transient()
        self.replies = []
        event = self.ask("durable")
        assert event.method.message_count == len(self.queues["durable"].ready)

    def declare_transient(self) -> None:
        self.declare("transient")

    def ask(self, name: str) -> Event:
        channel = self.channels[0]
        channel.client.say(channel.number, spec.Queue.Declare(queue=name, passive=True))
        self.listen()
        event: Event = self.reply(channel, spec.Queue.DeclareOk)
        return event

    # -- what must always hold ---------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        for name, twin in self.queues.items():
            queue = self.house.vhost.queues[name]
            assert queue.ready_count == len(twin.ready), name
            assert queue.unacked_count == twin.unacked, name
            assert sorted(consumer.tag for consumer in queue.consumers) == sorted(each.tag for each in twin.consumers)
            assert len(queue.order.hot) <= HOT_COUNT_MAX or queue.store is not None
            if name == "durable" and queue.store is not None and queue.store.ready:
                assert queue.store.record_count == len(twin.ready) + twin.unacked
        for channel in self.channels:
            real = channel.client.connection.channels.by_number[channel.number]
            assert real.deliveries.unacked.count() == len(channel.unacked)
            assert real.deliveries.window_used == channel.in_flight()
            assert {tag: consumer.in_flight for tag, consumer in real.deliveries.consumers.items()} == {
                tag: consumer.in_flight for tag, consumer in channel.consumers.items()
            }

    def teardown(self) -> None:
        self.house.end()


QueueMachine.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestQueue = pytest.mark.timeout(300)(QueueMachine.TestCase)


def one_channel() -> tuple[MemoryBroker, Client]:
    house = MemoryBroker()
    return house, Client(house, "c")


def heard(house: MemoryBroker, client: Client, *methods: Any) -> list[str]:
    client.say(1, *methods)
    house.settle()
    return [event.method.name for event in client.heard()]


def test_recover_leaves_what_the_transaction_has_settled() -> None:
    """rabbit: acked in a transaction is not outstanding, so recover does not bring it back."""
    house, client = one_channel()
    heard(house, client, spec.Channel.Open(), spec.Queue.Declare(queue="q"), spec.Tx.Select())
    client.publish(1, "q", [b"first", b"second"], PLAIN)
    heard(house, client, spec.Tx.Commit(), spec.Basic.Get(queue="q"), spec.Basic.Get(queue="q"))
    assert heard(house, client, spec.Basic.Ack(delivery_tag=1), spec.Basic.Recover(requeue=True)) == ["Basic.RecoverOk"]
    assert house.vhost.queues["q"].ready_count == 1
    assert heard(house, client, spec.Tx.Commit()) == ["Tx.CommitOk"]
    assert (house.vhost.queues["q"].ready_count, house.vhost.queues["q"].unacked_count) == (1, 0)
    house.end()


@pytest.mark.parametrize("header", [b"CC", b"BCC"])
def test_a_commit_reaches_the_queues_of_the_publish(header: bytes) -> None:
    """Also those of BCC, which the message itself no longer names; a queue that is gone by then is left out."""
    house, client = one_channel()
    declare = [spec.Queue.Declare(queue=name, durable=True) for name in ("q", "copy", "gone")]
    heard(house, client, spec.Channel.Open(), *declare, spec.Exchange.Declare(exchange="x", exchange_type="direct"))
    binds = [spec.Queue.Bind(queue=name, exchange="x", routing_key=name) for name in ("q", "copy", "gone")]
    headers = [spec.Exchange.Declare(exchange="h", exchange_type="headers")]
    headers += [spec.Exchange.Bind(destination="h", source="x", routing_key="q")]
    heard(house, client, *binds, *headers, spec.Tx.Select())
    keys = b"".join(b"S" + struct.pack(">I", len(key)) + key for key in (b"copy", b"gone"))
    entry = bytes((len(header),)) + header + b"A" + struct.pack(">I", len(keys)) + keys
    properties = b"\x30\x00" + struct.pack(">I", len(entry)) + entry + b"\x02"
    client.publish(1, "q", [b"both"], properties, "x")
    assert heard(house, client, spec.Queue.Delete(queue="gone"), spec.Tx.Commit()) == ["Queue.DeleteOk", "Tx.CommitOk"]
    assert {name: queue.ready_count for name, queue in house.vhost.queues.items()} == {"q": 1, "copy": 1}
    house.end()


@pytest.mark.parametrize("durable", [True, False])
def test_more_unacked_than_memory_keeps(durable: bool) -> None:
    """What a consumer holds may be in the log alone: it comes back whole, in its place, redelivered."""
    house, client = one_channel()
    heard(house, client, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=durable))
    bodies = [b"%08d" % number for number in range(2500)]
    client.publish(1, "q", bodies, PERSISTENT)
    assert heard(house, client, spec.Basic.Consume(queue="q", consumer_tag="t")).count("Basic.Deliver") == len(bodies)
    heard(
        house, client, spec.Basic.Cancel(consumer_tag="t"), spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True)
    )
    client.say(1, spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    house.settle()
    again = [event for event in client.heard() if isinstance(event.method, spec.Basic.Deliver)]
    assert [event.body for event in again] == bodies
    assert all(event.method.redelivered for event in again)
    house.end()
