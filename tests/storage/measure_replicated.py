"""Measure what a Kafka request and its response cost, and a batch from offer to high watermark. Not a test:

python -P tests/storage/measure_replicated.py
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from librt.strings import BytesWriter

from amqpd.kafka import requests
from amqpd.kafka.partition import Partition, join
from amqpd.kafka.producer_state import ProducerState
from amqpd.storage.log.batch import ClosedBatch, close_batch
from amqpd.storage.log.record import RecordRoute, write_record

TOPIC = b"amqpd.orders.1"
ROUNDS = 20_000


class IgnoringProducer:
    """A driver of `ProducerState` that ignores its calls."""

    def moved(self, partition: Partition) -> None:
        pass


def batch_at(offset: int, size: int = 1100) -> ClosedBatch:
    return close_batch(BytesWriter(), b"r" * size, offset, 1, 0, 0, 1, 0, 9, offset, -1, [], 2)


def batch_of_records(offset: int, count: int) -> ClosedBatch:
    """A batch of `count` messages of 1 KiB."""
    writer, route, source = BytesWriter(), RecordRoute(b"", b"orders"), bytes(1100)
    for delta in range(count):
        write_record(writer, route, delta, source, 0, 20, 20, 20 + 1024)
    return close_batch(BytesWriter(), writer.getvalue(), offset, count, 0, 0, 1, 0, 9, offset, -1, [], 2)


def produce_response(*offsets: int) -> bytes:
    """A produce response for as many partitions of the topic."""
    rows = b"".join(
        struct.pack(">ihqqq", number, 0, offset, -1, 0) + b"\1\0\0" for number, offset in enumerate(offsets)
    )
    head = struct.pack(">iB", 1, 0) + bytes([2, len(TOPIC) + 1]) + TOPIC
    return head + bytes([len(offsets) + 1]) + rows + b"\0" + bytes(4) + b"\0"


def show(name: str, call: Callable[[], object], rounds: int = ROUNDS) -> None:
    """Print the CPU time of one call: the best of five runs."""
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            call()
        best = min(best, (time.process_time() - start) / rounds)
    print(f"{name:<28}{best * 1e6:8.2f} us")


def main() -> None:
    writer = BytesWriter()
    print(requests.__file__)
    for count in (1, 20):
        topic = requests.TopicBatches(TOPIC)
        for number in range(count):
            topic.add(number, batch_at(5))
        show(f"request of {count}", lambda topic=topic: requests.encode_produce(writer, 1, b"node-1", 1000, [topic]))  # type: ignore[misc]
        data = produce_response(*range(count))
        show(f"answer to {count}", lambda data=data: requests.decode_produce(data))  # type: ignore[misc]

    small_batches = [batch_of_records(10 * each, 10) for each in range(20)]
    show("20 batches of 10 as one", lambda: join(small_batches), 200)

    producing, partition = ProducerState(IgnoringProducer()), Partition(TOPIC, 0, 0)
    producing.set_leader(partition, 1, 0)
    batches = iter([batch_at(each) for each in range(5 * ROUNDS)])
    responses = iter([produce_response(each) for each in range(5 * ROUNDS)])

    def turn() -> None:
        producing.offer(partition, next(batches), 0)
        call = producing.take_request(1, 0)
        assert call is not None
        call.encode(writer, 1, b"node-1", 1000)
        producing.on_answer(call, next(responses), 0)

    show("a batch, there and back", turn)


if __name__ == "__main__":
    main()
