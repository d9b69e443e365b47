"""Records and messages with thousands of headers: converted in slices, so that the event loop has its turns."""

from __future__ import annotations

import secrets
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.record.default_records import DefaultRecordBatchBuilder

from amqpd.broker.message import LogMessageFactory
from amqpd.kafka_server import message_records, share_queue
from amqpd.kafka_server.message_records import READ_WORK_MAX, message_work, read_messages, record_of, record_work
from amqpd.kafka_server.queue_produce import SLICE_WORK, QueueBatch, RefusedBatch
from amqpd.kafka_server.share_queue import FetchCredit
from amqpd.protocol.properties import Properties, encode_properties
from amqpd.storage.log.foreign_record import HEADERS_MAX
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import ReadResult
from amqpd.testing import BrokerProcess

MANY = [(f"h{number}", b"") for number in range(HEADERS_MAX)]


def batch(*header_counts: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 25)
    for number, count in enumerate(header_counts):
        headers = [(f"h{each}", b"") for each in range(count)]
        builder.append(number, 1, b"k", b"%d" % number, headers)
    return bytes(builder.build())


class FakeQueue:
    """A queue that accepts each message."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.name = "q"
        self.next_offset = self.unwritten_end = 0

    def enqueue(self, message: Any) -> bool:
        self.messages.append(message.body())
        self.next_offset += 1
        return True


def queue_batch(data: bytes) -> tuple[QueueBatch, FakeQueue]:
    queue: Any = FakeQueue()
    user: Any = SimpleNamespace(name="guest", tags=frozenset())
    return QueueBatch(queue, queue, user, data), queue


def slices(queued: QueueBatch, queue: FakeQueue) -> list[int]:
    """Return the number of enqueued messages after each slice."""
    counts = []
    is_done = False
    while not is_done:
        is_done = queued.enqueue_some()
        counts.append(len(queue.messages))
    return counts


def test_a_slice_has_one_record_with_all_headers_or_many_small_ones() -> None:
    queued, queue = queue_batch(batch(*[HEADERS_MAX] * 5))
    assert slices(queued, queue) == [0] * 6 + [1, 2, 3, 4, 5, 5]
    assert queue.messages == [b"%d" % number for number in range(5)]
    count = SLICE_WORK // record_work(1)
    queued, queue = queue_batch(batch(*[1] * (count - 1)))
    assert slices(queued, queue) == [0, count - 1]


def test_nothing_is_enqueued_if_the_last_record_of_a_batch_is_refused() -> None:
    queued, queue = queue_batch(batch(*[HEADERS_MAX] * 3, HEADERS_MAX + 1))
    with pytest.raises(RefusedBatch, match="4097 headers"):
        slices(queued, queue)
    assert queue.messages == []


def test_a_read_of_a_queue_ends_after_its_work() -> None:
    properties = encode_properties(Properties(headers=dict.fromkeys((f"h{number}" for number in range(4000)), "")))
    records = [Record(number, 0, b"", b"k", properties, b"b", True) for number in range(20)]
    found = ReadResult(records, 20, False)
    cursor: Any = SimpleNamespace(read_safe=lambda *_: found)
    queue: Any = SimpleNamespace(backing=SimpleNamespace(message=LogMessageFactory().message))
    result = read_messages(queue, cursor, 0, 1 << 20, lambda: None)
    wanted = -(-READ_WORK_MAX // message_work(properties))
    assert 1 < wanted < 20
    assert (result.next_offset, result.is_full, result.waiting) == (wanted, True, False)
    assert len(list(message_records.records_of(result.parts[0]))) == wanted


def test_a_share_fetch_ends_after_its_work() -> None:
    few = record_of(LogMessageFactory().message(Record(0, 0, b"", b"k", b"\0\0", b"b", True)), 0, 1)
    credit = FetchCredit(share_queue.LOCKS_MAX, True, 16 << 20, lambda: None)
    for _ in range(share_queue.LOCKS_MAX - 1):
        credit.use(len(few.key_and_rest), work=few.work)
    assert not credit.is_used_up()
    credit = FetchCredit(share_queue.LOCKS_MAX, True, 16 << 20, lambda: None)
    count = 0
    while not credit.is_used_up():
        credit.use(100, work=record_work(HEADERS_MAX))
        count += 1
    assert count == 13


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_records_with_all_headers_go_through_a_queue(
    kafka_broker: BrokerProcess, kafka_address: str, kind: str
) -> None:
    name = f"q-{secrets.token_hex(4)}"
    kafka_broker.api("PUT", f"/api/queues/%2F/{name}", {"durable": True, "arguments": {"x-queue-type": kind}})
    producer = KafkaProducer(bootstrap_servers=kafka_address, linger_ms=200, batch_size=1 << 20)
    sent = [producer.send(name, b"%d" % number, headers=MANY) for number in range(8)]
    assert [each.get(30).offset for each in sent] == list(range(8))
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=kafka_address, consumer_timeout_ms=30_000)
    consumer.assign([TopicPartition(name, 0)])
    consumer.seek_to_beginning()
    found = [record for _, record in zip(range(8), consumer, strict=False)]
    assert [record.value for record in found] == [b"%d" % number for number in range(8)]
    assert all(sorted(record.headers) == sorted(MANY) for record in found)
    consumer.close()
    connection = pika.BlockingConnection(pika.URLParameters(kafka_broker.url))
    _, properties, body = connection.channel().basic_get(name, auto_ack=True)
    properties.headers.pop("x-delivery-count", None)  # of quorum queues
    assert (body, len(properties.headers)) == (b"0", HEADERS_MAX + 1)
    connection.close()
