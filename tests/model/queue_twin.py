"""The twin of a broker's queues: its state and its checks of deliveries. Used by test_queue_model.py."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
from hypothesis.stateful import RuleBasedStateMachine
from memory_broker import Client, Event, MemoryBroker

from amqpd.channel.consumer import OUT_BYTES_MAX

HOT_COUNT_MAX = 6
HOT_BYTES_MAX = 400_000


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
        # For round robin: since when the consumer could take a message, and when it last got one.
        self.eligible_since = -1
        self.served = -1


class Unacked:
    def __init__(self, queue: TwinQueue, message: Message, consumer: TwinConsumer | None) -> None:
        self.queue = queue
        self.message = message
        self.consumer = consumer
        self.pending = False


class TwinChannel:
    def __init__(self, channel_index: int, client: Client, number: int) -> None:
        self.channel_index = channel_index
        self.client = client
        self.number = number
        self.kind = ("plain", "confirm", "tx")[channel_index // 2]
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


class QueueTwin(RuleBasedStateMachine):
    """Six channels on two connections: two plain, two with confirms, two with transactions.

    Channels with even numbers consume from the durable queue, others from the transient one, so that the window of a
    channel belongs to one queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryBroker()
        self.single_active = False
        self.bodies = 0
        self.tags = 0
        self.clock = 0
        self.queues: dict[str, TwinQueue] = {}
        self.clients: list[Client] = []
        self.channels: list[TwinChannel] = []
        self.observed: dict[bytes, tuple[TwinChannel, Any]] = {}
        # Bytes delivered to each connection in this step. A full output pauses its consumers until it is flushed.
        self.written: dict[int, int] = {}
        self.replies: list[tuple[TwinChannel, Event]] = []

    def connect(self) -> None:
        self.clients = [Client(self.server, f"c{number}") for number in range(2)]
        self.channels = [
            TwinChannel(channel_index, self.clients[channel_index % 3 % 2], channel_index + 1)
            for channel_index in range(6)
        ]
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
        queue = self.server.vhost.queues[name]
        queue.order.memory.count_max = HOT_COUNT_MAX
        queue.order.memory.bytes_max = HOT_BYTES_MAX

    # -- replies -----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Read all output of the broker and sort it into deliveries, confirms and replies."""
        self.server.settle()
        self.observed = {}
        self.written = dict.fromkeys([id(client) for client in self.clients], 0)
        self.replies = []
        by_number = {(id(channel.client), channel.number): channel for channel in self.channels}
        for client in self.clients:
            for event in client.heard():
                channel = by_number[id(client), event.channel]
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
        """Return the only reply; assert its channel and method."""
        assert [(each.channel_index, type(event.method)) for each, event in self.replies] == [
            (channel.channel_index, kind)
        ]
        event = self.replies[0][1]
        self.replies = []
        return event

    def assert_no_reply(self) -> None:
        assert self.replies == []

    # -- expected deliveries ------------------------------------------------------------------------------------------

    def can_take(self, consumer: TwinConsumer) -> bool:
        channel = consumer.channel
        if self.single_active and consumer.queue.consumers[0] is not consumer:
            return False
        if consumer.prefetch and consumer.in_flight >= consumer.prefetch:
            return False
        if channel.window and channel.in_flight() >= channel.window:
            return False
        return not channel.client.connection.output.write_paused

    def may_be_paused(self, consumer: TwinConsumer) -> bool:
        return self.written[id(consumer.channel.client)] > OUT_BYTES_MAX - 100_000

    def note_eligible(self) -> None:
        """Update since when each consumer can take a message; a consumer that cannot loses its turn."""
        for queue in self.queues.values():
            for consumer in queue.consumers:
                if not self.can_take(consumer) or self.may_be_paused(consumer):
                    consumer.eligible_since = -1
                elif consumer.eligible_since < 0:
                    consumer.eligible_since = self.clock

    def drain(self) -> None:
        """Deliver the observed messages from the head of each queue until none is left, ready or deliverable."""
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
            ready_consumers = [consumer.tag for consumer in queue.consumers if self.can_take(consumer)]
            assert not queue.ready or not ready_consumers, (
                f"{queue.ready[0].body[:8]!r} is ready, and {ready_consumers} have credit"
            )

    def finish(self) -> None:
        self.drain()
        assert self.observed == {}, "unexpected deliveries"
        self.assert_no_reply()
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
        rivals = [each for each in others if self.can_take(each) and not self.may_be_paused(each)]
        for rival in rivals:
            assert rival.priority <= consumer.priority, f"{rival.tag} has a higher priority than {consumer.tag}"
            if rival.priority == consumer.priority and consumer.served >= 0:
                waited = 0 <= rival.eligible_since < consumer.served and rival.served < consumer.served
                assert not waited, f"{consumer.tag} got two messages while {rival.tag} waited"
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
        """Close the channel: its consumers end and its unacked messages are requeued."""
        for consumer in list(channel.consumers.values()):
            self.leave(consumer)
        self.settle(channel, list(channel.unacked), "requeue")
        channel_index = self.channels.index(channel)
        self.channels[channel_index] = TwinChannel(channel.channel_index, channel.client, channel.number)

    def leave(self, consumer: TwinConsumer) -> None:
        consumer.channel.consumers.pop(consumer.tag, None)
        if consumer in consumer.queue.consumers:
            consumer.queue.consumers.remove(consumer)

    def refused(self, channel: TwinChannel, code: int) -> None:
        """Expect that the broker closes the channel with `code`; then open the channel again."""
        event = self.reply(channel, spec.Channel.Close)
        assert event.method.reply_code == code, event.method.reply_text
        self.release(channel)
        self.finish()
        channel.client.say(channel.number, spec.Channel.CloseOk())
        self.open(self.channels[channel.channel_index])
        self.replies = []
        self.finish()
