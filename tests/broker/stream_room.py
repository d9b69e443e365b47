"""Helpers for tests of streams: a consumer that records deliveries, and functions that fill a stream."""

from __future__ import annotations

from collections.abc import Mapping

from amqpd.broker import consume
from amqpd.broker.consumer import Consumer, QueueEntry
from amqpd.broker.message import Message
from amqpd.broker.queue.consumer_arguments import consumer_arguments
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.stream import StreamReader
from amqpd.protocol.properties import decode_properties

# Size of the bodies in tests that need several segments, which have at least SEGMENT_SIZE_BYTES_MIN.
LARGE = 16 * 1024


class Reader(Consumer):
    """A stream consumer with `credit` that records its deliveries."""

    def __init__(self, queue: Queue, credit: int, arguments: Mapping[str, object]) -> None:
        given = consumer_arguments(queue.name, "/", queue.kind, arguments, b"")
        super().__init__(queue, f"c{id(self)}", False, False, given)
        self.credit = credit
        self.queue_read = queue
        self.got: list[bytes] = []
        self.messages: list[Message] = []
        self.entries: list[QueueEntry] = []
        self.cancelled_by_broker = False

    def can_take(self) -> bool:
        return self.in_flight < self.credit

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        assert entry is not None
        assert not redelivered
        self.in_flight += 1
        entry.consumer = self
        self.entries.append(entry)
        self.messages.append(message)
        self.got.append(message.body())

    def cancel(self) -> None:
        self.cancelled_by_broker = True

    def ack(self, count: int = 1, first: int = 0) -> None:
        for _ in range(count):
            entry = self.entries.pop(first)
            self.in_flight -= 1
            if self.parked:
                self.queue_read.activate(self)
            entry.queue.ack(entry)

    def offsets(self) -> list[int]:
        return [(decode_properties(each.properties()).headers or {})["x-stream-offset"] for each in self.messages]

    @property
    def place(self) -> StreamReader:
        assert isinstance(self.reader, StreamReader)
        return self.reader


def read(room, queue: Queue, credit: int = 1000, turn: bool = True, **arguments: object) -> Reader:
    reader = Reader(queue, credit, {name.replace("_", "-"): value for name, value in arguments.items()})
    consume.check_stream_consumer(queue, credit, False, reader.arguments, 0)
    consume.start_consumer(queue, reader)
    if turn:
        room.turns()
    return reader


def leave(room, reader: Reader) -> None:
    reader.queue_read.remove_consumer(reader)
    for entry in reader.entries:
        entry.queue.requeue(entry, True)
    room.turns()


def fill_fast(room, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        room.publish("s", body, turn=False)
    finish(room)
    return bodies


def finish(room) -> None:
    """Run the turn in which messages were published with turn=False."""
    room.turn.schedule()
    room.turns()


def fill(room, count: int, size: int = 0, first: int = 0) -> list[bytes]:
    bodies = [b"%d" % number + b"." * size for number in range(first, first + count)]
    for body in bodies:
        room.publish("s", body)
    return bodies
