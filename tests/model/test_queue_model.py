"""Model test: queues, channels and consumers against a naive twin, over the AMQP bytes, through restarts.

The twin keeps a sorted list of ready messages and a dict of unacked ones. Each delivery must be the head of its queue,
go to a consumer with credit, and carry the channel's next tag and the right `redelivered`. No consumer with credit may
wait while a message is ready. Higher priorities are served first. Consumers are served in strict round robin.

The queues' memory windows are small, so that reads from the log and spills happen within forty steps.
"""

from __future__ import annotations

import pamqp.commands as spec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from memory_broker import Client, Event
from profiles import examples
from queue_twin import HOT_COUNT_MAX, Message, QueueTwin, TwinChannel, TwinConsumer, TwinQueue, Unacked

from amqpd.broker.queue.config import QueueConfig

PERSISTENT = b"\x10\x00\x02"
TRANSIENT = b"\x10\x00\x01"
PLAIN = b"\x00\x00"
NAMES = ("durable", "transient")
# Plain channels are chosen most often.
CHANNELS = st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3, 4, 5])
COUNTS = st.one_of(st.integers(1, 3), st.integers(5, 30))
SIZES = st.sampled_from([8, 8, 40, 60_000])
FAR = 1 << 40
RULES: tuple[dict[str, object], ...] = (
    {},
    {"ttl_ms": 300_000_000_000},
    {"length_max": FAR, "length_bytes_max": FAR, "delivery_limit": FAR},
    {"length_bytes_max": FAR, "overflow": "reject-publish", "expires_ms": 300_000_000_000},
)


class QueueMachine(QueueTwin):
    """Six channels on two connections: two plain, two with confirms, two with transactions.

    Channels with even numbers consume from the durable queue, others from the transient one, so that the window of a
    channel belongs to one queue.
    """

    @initialize(
        single_active=st.sampled_from([False, False, True]), consumers=st.integers(0, 6), prefetch=st.integers(0, 3)
    )
    def start(self, single_active: bool, consumers: int, prefetch: int) -> None:
        self.single_active = single_active
        self.connect()
        for name in NAMES:
            self.declare(name)
        self.replies = []
        for number in range(consumers):
            if prefetch:
                self.qos(number % 6, prefetch, False)
            self.consume(number % 6, False, False, 0)

    # -- publishing --------------------------------------------------------------------------------------------------

    @rule(channel_index=CHANNELS, count=COUNTS, properties=st.sampled_from([PERSISTENT, TRANSIENT]), size=SIZES)
    def publish_to_durable(self, channel_index: int, count: int, properties: bytes, size: int) -> None:
        self.publish(channel_index, "durable", count, properties, size)

    @rule(channel_index=CHANNELS, count=COUNTS, properties=st.sampled_from([PERSISTENT, PLAIN]), size=SIZES)
    def publish_to_transient(self, channel_index: int, count: int, properties: bytes, size: int) -> None:
        self.publish(channel_index, "transient", count, properties, size)

    def publish(self, channel_index: int, name: str, count: int, properties: bytes, size: int) -> None:
        channel = self.channels[channel_index]
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
        channel_index=CHANNELS,
        no_ack=st.sampled_from([False] * 4 + [True]),
        exclusive=st.sampled_from([False] * 12 + [True]),
        priority=st.sampled_from([0, 0, 0, 5, -1]),
    )
    def consume(self, channel_index: int, no_ack: bool, exclusive: bool, priority: int) -> None:
        channel = self.channels[channel_index]
        queue = self.queues[NAMES[channel_index % 2]]
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

    @rule(channel_index=CHANNELS, pick=st.integers(0, 5))
    def cancel(self, channel_index: int, pick: int) -> None:
        channel = self.channels[channel_index]
        tags = [*channel.consumers, "unknown"]
        tag = tags[pick % len(tags)]
        channel.client.say(channel.number, spec.Basic.Cancel(consumer_tag=tag))
        self.listen()
        self.reply(channel, spec.Basic.CancelOk)
        if tag in channel.consumers:
            self.leave(channel.consumers[tag])
        self.finish()

    @rule(channel_index=CHANNELS, count=st.sampled_from([0, 1, 2, 3, 10]), whole_channel=st.booleans())
    def qos(self, channel_index: int, count: int, whole_channel: bool) -> None:
        channel = self.channels[channel_index]
        channel.client.say(channel.number, spec.Basic.Qos(prefetch_count=count, global_=whole_channel))
        self.listen()
        self.reply(channel, spec.Basic.QosOk)
        if whole_channel:
            channel.window = count
        else:
            channel.prefetch = count
            channel.window = 0
        self.finish()

    @rule(channel_index=CHANNELS, name=st.sampled_from(NAMES), no_ack=st.booleans())
    def get(self, channel_index: int, name: str, no_ack: bool) -> None:
        channel = self.channels[channel_index]
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

    # -- acks and rejects --------------------------------------------------------------------------------------------

    @rule(channel_index=CHANNELS, pick=st.integers(0, 30), multiple=st.booleans(), every=st.booleans())
    def ack(self, channel_index: int, pick: int, multiple: bool, every: bool) -> None:
        self.answer(channel_index, pick, multiple, "ack", every)

    @rule(channel_index=CHANNELS, pick=st.integers(0, 30), multiple=st.booleans(), every=st.booleans())
    def requeue(self, channel_index: int, pick: int, multiple: bool, every: bool) -> None:
        self.answer(channel_index, pick, multiple, "requeue", every)

    @rule(channel_index=CHANNELS, pick=st.integers(0, 30), multiple=st.booleans())
    def reject(self, channel_index: int, pick: int, multiple: bool) -> None:
        self.answer(channel_index, pick, multiple, "reject", False)

    def answer(self, channel_index: int, pick: int, multiple: bool, action: str, every: bool) -> None:
        channel = self.channels[channel_index]
        outstanding = channel.outstanding()
        if multiple and every:
            tag, tags = 0, outstanding
        elif outstanding:
            tag = outstanding[pick % len(outstanding)]
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

    def ack_unknown_tag(self, channel_index: int, ahead: int, multiple: bool, action: str) -> None:
        channel = self.channels[channel_index]
        settled = [tag for tag in range(1, channel.next_tag) if tag not in channel.outstanding()]
        tag = settled[-1] if settled and not ahead else channel.next_tag + ahead
        self.say_answer(channel, tag, multiple, action)
        self.listen()
        self.refused(channel, 406)

    @rule(channel_index=CHANNELS)
    def recover(self, channel_index: int) -> None:
        channel = self.channels[channel_index]
        channel.client.say(channel.number, spec.Basic.Recover(requeue=True))
        self.listen()
        self.reply(channel, spec.Basic.RecoverOk)
        # RabbitMQ: a message acked in an open transaction is not outstanding
        self.settle(channel, channel.outstanding(), "requeue")
        self.finish()

    @precondition(lambda self: any(channel.kind == "tx" for channel in self.channels))
    @rule(channel_index=st.sampled_from([4, 5]), commit=st.booleans())
    def end_transaction(self, channel_index: int, commit: bool) -> None:
        channel = self.channels[channel_index]
        channel.client.say(channel.number, spec.Tx.Commit() if commit else spec.Tx.Rollback())
        self.listen()
        self.reply(channel, spec.Tx.CommitOk if commit else spec.Tx.RollbackOk)
        publishes, channel.tx_publishes = channel.tx_publishes, []
        settlements, channel.tx_settlements = channel.tx_settlements, []
        for tag, _ in settlements:
            channel.unacked[tag].pending = False
        if commit:
            for queue, message in publishes:
                if self.queues[queue.name] is queue:  # otherwise it was deleted and declared again
                    queue.add(message)
                    self.drain()
            for tag, action in settlements:
                self.settle(channel, [tag], action)
        self.finish()

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), rules=st.sampled_from(RULES))
    def exchange_rules(self, name: str, rules: dict[str, object]) -> None:
        """Change the queue's configuration at runtime. No rule takes effect, so nothing else may change."""
        self.server.vhost.queues[name].apply_config(QueueConfig({**rules, "single_active": self.single_active}))
        self.server.settle()

    # -- failures ----------------------------------------------------------------------------------------------------

    @rule(
        action=st.sampled_from(["purge", "close", "lose", "delete", "restart", "bad tag"]),
        channel_index=CHANNELS,
        name=st.sampled_from(NAMES),
        flag=st.booleans(),
        number=st.integers(0, 2),
    )
    def disturb(self, action: str, channel_index: int, name: str, flag: bool, number: int) -> None:
        """Run one of several disturbances. They share one rule so that they are rare enough for messages to be
        delivered.
        """
        if action == "purge":
            self.purge(channel_index, name)
        elif action == "close":
            self.close_channel(channel_index)
        elif action == "lose":
            self.lose_connection(number % 2)
        elif action == "delete":
            self.delete_queue(name, channel_index)
        elif action == "restart":
            self.restart(flag)
        else:
            self.ack_unknown_tag(channel_index, number, flag, "ack" if number else "requeue")

    def purge(self, channel_index: int, name: str) -> None:
        channel = self.channels[channel_index]
        channel.client.say(channel.number, spec.Queue.Purge(queue=name))
        self.listen()
        assert self.reply(channel, spec.Queue.PurgeOk).method.message_count == len(self.queues[name].ready)
        self.queues[name].ready.clear()
        self.finish()

    def close_channel(self, channel_index: int) -> None:
        channel = self.channels[channel_index]
        channel.client.say(channel.number, spec.Channel.Close(0, "", 0, 0))
        self.listen()
        self.reply(channel, spec.Channel.CloseOk)
        self.release(channel)
        self.finish()
        self.open(self.channels[channel_index])
        self.replies = []
        self.finish()

    def lose_connection(self, pick: int) -> None:
        client = self.clients[pick]
        client.vanish()
        self.clients[pick] = Client(self.server, f"again{self.clock}-{self.tags}-{self.bodies}")
        self.listen()
        own_channels = [channel for channel in self.channels if channel.client is client]
        for channel in own_channels:
            self.release(channel)
        self.finish()
        for channel in own_channels:
            fresh = self.channels[channel.channel_index]
            fresh.client = self.clients[pick]
            self.open(fresh)
            self.replies = []
        self.finish()

    @rule(pick=st.integers(0, 1), paused=st.sampled_from([True, False, False, False]))
    def stop_reading(self, pick: int, paused: bool) -> None:
        """Make the output of a connection full or writable again."""
        connection = self.clients[pick].connection
        if paused:
            connection.output.pause_writing()
        else:
            connection.output.resume_writing()
        self.listen()
        self.finish()

    def delete_queue(self, name: str, channel_index: int) -> None:
        channel = self.channels[channel_index]
        queue = self.queues[name]
        channel.client.say(channel.number, spec.Queue.Delete(queue=name))
        self.listen()
        cancels = [reply for reply in self.replies if isinstance(reply[1].method, spec.Basic.Cancel)]
        self.replies = [reply for reply in self.replies if reply not in cancels]
        cancelled = sorted(event.method.consumer_tag for _, event in cancels)
        assert cancelled == sorted(consumer.tag for consumer in queue.consumers)
        assert self.reply(channel, spec.Queue.DeleteOk).method.message_count == len(queue.ready)
        for consumer in list(queue.consumers):
            self.leave(consumer)
        self.declare(name)
        self.replies = []
        self.finish()

    def restart(self, clean: bool) -> None:
        durable = self.queues["durable"]
        surviving = {message.order: message for message in durable.ready}
        for channel in self.channels:
            for entry in channel.unacked.values():
                if entry.queue is durable:
                    surviving[entry.message.order] = entry.message
        self.server.again(clean=clean)
        self.connect()
        self.replies = []
        for name in NAMES:
            self.queues[name] = TwinQueue(name)
        for order in sorted(surviving):
            message = surviving[order]
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

    # -- invariants --------------------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        for name, twin in self.queues.items():
            queue = self.server.vhost.queues[name]
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
        self.server.end()


QueueMachine.TestCase.settings = settings(
    max_examples=examples(30),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestQueue = QueueMachine.TestCase
