"""A disk that fills up under publishes with confirms: acked messages are there, nacked ones are not."""

from __future__ import annotations

import warnings
from typing import Any

import pamqp.commands as spec
import pytest
from memory_broker import Client, Event, MemoryBroker, User

from amqpd.protocol.field_table import encode_table

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.default_records import DefaultRecordBatchBuilder

    from amqpd.kafka_server.errors import STORAGE_ERROR
    from amqpd.kafka_server.queue_produce import QueueBatch, RefusedBatch

PERSISTENT = b"\x10\x00\x02"


class Account:
    """The publish sequence numbers that were acked and nacked; each counts once."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.nacked: set[int] = set()
        self.answered = 0

    def add(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event.method, spec.Basic.Ack | spec.Basic.Nack):
                target = self.acked if isinstance(event.method, spec.Basic.Ack) else self.nacked
                tag = event.method.delivery_tag
                sequences = range(self.answered + 1, tag + 1) if event.method.multiple else [tag]
                for sequence in sequences:
                    if sequence not in self.acked and sequence not in self.nacked:
                        target.add(sequence)
                while self.answered + 1 in self.acked | self.nacked:
                    self.answered += 1


class FullDiskClient:
    """A client that publishes numbered messages and records their confirms."""

    def __init__(self) -> None:
        self.server = MemoryBroker()
        self.server.broker.alarms.check = lambda: None  # type: ignore[method-assign]  # the simulated disk is not a real file system
        self.account = Account()
        self.published = 0
        self.client = Client(self.server, "c")
        self.say(spec.Channel.Open(), spec.Confirm.Select(), spec.Queue.Declare(queue="q", durable=True))

    def say(self, *methods: object) -> list[Event]:
        self.client.say(1, *methods)
        self.server.settle()
        events = self.client.heard()
        self.account.add(events)
        return events

    def publish(self, count: int, size: int = 1000) -> None:
        numbers = range(self.published + 1, self.published + count + 1)
        self.published += count
        self.client.publish(1, "q", [b"%08d" % number + bytes(size) for number in numbers], PERSISTENT)
        self.server.settle()
        self.account.add(self.client.heard())

    def set_free_bytes(self, size_bytes: int | None) -> None:
        filesystem = self.server.filesystem
        filesystem.capacity = None if size_bytes is None else filesystem.used() + size_bytes

    def consume_all(self) -> list[int]:
        """Get and ack all messages. Return their numbers."""
        found = []
        while True:
            events = self.say(spec.Basic.Get(queue="q"))
            got = next(event for event in events if not isinstance(event.method, spec.Basic.Ack | spec.Basic.Nack))
            if got.body is None:
                return found
            found.append(int(got.body[:8]))
            self.say(spec.Basic.Ack(delivery_tag=got.method.delivery_tag))


@pytest.mark.parametrize("room_bytes", [0, 100, 5_000, 20_000])
def test_full_disk_keeps_acked_messages_and_drops_nacked_ones(room_bytes: int) -> None:
    client = FullDiskClient()
    client.publish(20)
    assert client.account.acked == set(range(1, 21))
    client.set_free_bytes(room_bytes)
    for _ in range(4):
        client.publish(10)
    assert client.account.answered == 60, "some publishes were neither acked nor nacked"
    assert client.account.nacked, "no publish was nacked on the full disk"
    acked = sorted(client.account.acked)
    assert client.server.vhost.queues["q"].ready_count == len(acked)
    assert client.consume_all() == acked
    client.set_free_bytes(None)
    client.publish(10)
    assert client.account.acked >= set(range(61, 71))
    client.server.again(clean=False)
    queue = client.server.vhost.queue("q")
    assert queue.ready_count == 10
    client.server.end()


def test_consumer_may_ack_message_whose_publish_was_nacked() -> None:
    """The message was delivered before the log write failed. The publisher gets a nack; the consumer's ack is no
    error.
    """
    client = FullDiskClient()
    client.publish(1)
    assert client.consume_all() == [1]
    client.say(spec.Basic.Consume(queue="q", consumer_tag="t"))
    client.set_free_bytes(0)
    client.publish(3)
    assert client.account.answered == 4
    assert client.account.nacked == {2, 3, 4}
    queue = client.server.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked_count) == (0, 3)
    # A nacked message may be redelivered or lost after a requeue, but the counts must be right.
    redelivered = client.say(spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
    assert (queue.ready_count, queue.unacked_count) == (0, len(redelivered))
    assert client.say(spec.Basic.Ack(delivery_tag=0, multiple=True)) == []
    assert (queue.ready_count, queue.unacked_count) == (0, 0)
    client.set_free_bytes(None)
    client.publish(1)
    assert 5 in client.account.acked
    client.server.end()


@pytest.mark.parametrize("count", [30, 1200], ids=["at once", "in slices"])
@pytest.mark.parametrize("kind", ["unlimited", "plain", "priority"])
@pytest.mark.parametrize("restarted", [False, True], ids=["in memory", "in the log"])
def test_failed_commit_drops_no_head_of_limited_queue(restarted: bool, kind: str, count: int) -> None:
    """A committed transaction drops the head under x-max-length.

    If its messages do not fit on the disk, the queue shows none of them and loses none of its own.
    """
    client = FullDiskClient()
    arguments: dict[str, object] = {"x-max-length": 10, "x-overflow": "drop-head"} if kind != "unlimited" else {}
    kept = list(range(6 if arguments else 1, 16))
    if kind == "priority":
        arguments["x-max-priority"] = 3
    client.say(spec.Queue.Delete(queue="q"), spec.Queue.Declare(queue="q", durable=True, arguments=arguments))
    client.publish(15, 100)
    assert client.account.acked == set(range(1, 16))
    if restarted:
        client.server.again(clean=True)
        client.server.broker.alarms.check = lambda: None  # type: ignore[method-assign]
        client.client = Client(client.server, "d")
        client.say(spec.Channel.Open())
    for fits in (False, True):
        client.say(spec.Channel.Close(0, "", 0, 0))
        client.say(spec.Channel.Open(), spec.Tx.Select())
        client.publish(count, 2000)
        client.set_free_bytes(None if fits else 9000)
        replies = [event.method.name for event in client.say(spec.Tx.Commit())]
        client.set_free_bytes(None)
        if fits:
            assert replies == ["Tx.CommitOk"]
            continue
        assert replies == ["Channel.Close"]
        client.say(spec.Channel.CloseOk(), spec.Channel.Open())
        assert client.server.vhost.queues["q"].ready_count == len(kept)
        seen = client.say(*[spec.Basic.Get(queue="q")] * (len(kept) + 1))
        assert [int(event.body[:8]) for event in seen if event.body is not None] == kept
        assert seen[-1].body is None
    client.say(spec.Channel.Close(0, "", 0, 0), spec.Channel.Open())
    committed = list(range(client.published - count + 1, client.published + 1))
    assert client.consume_all() == (committed[-10:] if arguments else kept + committed)
    client.server.again(clean=False)
    assert client.server.vhost.queues["q"].can_open()
    client.server.end()


def batch_of(numbers: range) -> bytes:
    """Return a batch of Kafka producer 7 whose sequences are these numbers."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, 7, 0, numbers.start, 1 << 25)
    for number in numbers:
        builder.append(number - numbers.start, 1, b"key", b"%08d" % number, [])
    return bytes(builder.build())


@pytest.mark.parametrize("limited", [False, True], ids=["between slices", "by a read"])
def test_full_disk_ends_batch_of_kafka_producer(limited: bool) -> None:
    """The messages that could not be written are in the middle of the batch. A repetition adds them.

    `limited`: a length limit reads the log, and so writes it, while the messages are enqueued.
    """
    client = FullDiskClient()
    arguments: dict[str, object] = {"x-max-length": 10_000, "x-overflow": "drop-head"} if limited else {}
    client.say(spec.Queue.Delete(queue="q"), spec.Queue.Declare(queue="q", durable=True, arguments=arguments))
    queue = client.server.vhost.queue("q")
    store: Any = queue.backing.store
    user: Any = User("guest")

    def enqueue(numbers: range) -> bool:
        """Enqueue a batch. The disk is full at the end of its first slice. Return whether all is safe."""
        queued = QueueBatch(queue, store, user, batch_of(numbers))
        while queued.last_offset < 0:
            queued.enqueue_some()
        client.set_free_bytes(free_bytes)
        if limited:
            store.flush_batches()
        else:
            client.server.broker.turn.schedule()
            client.server.settle()
        client.set_free_bytes(None)
        while not queued.enqueue_some():
            pass
        safe: list[bool] = []
        store.when_safe(queued.last_offset, safe.append)
        client.server.broker.turn.schedule()
        client.server.settle()
        return safe == [True]

    free_bytes: int | None = None
    assert enqueue(range(50))
    free_bytes = 200
    with pytest.raises(RefusedBatch) as refused:
        enqueue(range(50, 1000))
    assert refused.value.error == STORAGE_ERROR
    client.server.broker.turn.schedule()
    client.server.settle()
    free_bytes = None
    assert enqueue(range(50, 1000))
    assert client.consume_all() == list(range(1000))
    client.server.end()


def test_full_disk_leaves_no_number_of_message_that_it_refused() -> None:
    """A length limit reads the log, and so writes it, while numbered messages are enqueued. They are sent again."""
    client = FullDiskClient()
    arguments: dict[str, object] = {"x-max-length": 4, "x-overflow": "drop-head"}
    client.say(spec.Queue.Delete(queue="q"), spec.Queue.Declare(queue="q", durable=True, arguments=arguments))
    client.publish(4, 100_000)
    client.server.again(clean=True)  # the next head is in the log only
    client.server.broker.alarms.check = lambda: None  # type: ignore[method-assign]
    client.client = Client(client.server, "d")
    client.account = Account()
    client.say(spec.Channel.Open(), spec.Confirm.Select())
    for free_bytes in (0, None):
        client.set_free_bytes(free_bytes)
        client.server.broker.turn.schedule()  # both messages come in one turn
        for number in (5, 6):
            headers = encode_table({"x-producer-id": 7, "x-producer-epoch": 0, "x-sequence": number})
            client.client.publish(1, "q", [b"%08d" % number], b"\x30\x00" + headers + b"\x02")
        client.server.settle()
        client.account.add(client.client.heard())
    assert (client.account.nacked, client.account.acked) == ({1, 2}, {3, 4})
    assert client.consume_all()[-2:] == [5, 6]
    client.server.end()
