"""Records with invalid properties, as an earlier version or another program could write them, after a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest
from google_crc32c import value as crc32c

from amqpd.testing import BrokerProcess

MARK = b"the-id-of-one-message"


def invalidate(directory: Path) -> int:
    """Cut off the property with MARK in all batches, by the length of its field. Return the number of changes."""
    count = 0
    for path in directory.rglob("*.log"):
        data = bytearray(path.read_bytes())
        start = 0
        while start + 61 <= len(data):
            stop = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")
            at = data.find(bytes([len(MARK)]) + MARK, start, stop)
            if at >= 0:
                data[at] = 200  # longer than the properties
                data[start + 17 : start + 21] = crc32c(bytes(data[start + 21 : stop])).to_bytes(4, "big")
                count += 1
            start = stop
        path.write_bytes(data)
    return count


@pytest.mark.parametrize(
    "kind", ["classic", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("priority", "stream"))]
)
def test_a_record_with_invalid_properties_stops_neither_consumer_nor_broker(tmp_path: Path, kind: str) -> None:
    arguments: dict[str, Any] = {"x-queue-type": "stream" if kind == "stream" else "classic"}
    if kind == "priority":
        arguments["x-max-priority"] = 2
    if kind != "stream":
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with BrokerProcess(tmp_path) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True, arguments=arguments)
            channel.queue_declare("dead", durable=True)
            channel.confirm_delivery()
            for number, name in enumerate(("a", MARK.decode(), "b")):
                properties = pika.BasicProperties(delivery_mode=2, message_id=name, content_type="text/plain")
                channel.basic_publish("", "q", b"%d" % number, properties)
        broker.kill()
        assert invalidate(tmp_path) == 1
        broker.start()
        found: Any = broker.api("GET", "/api/queues/%2F/q/messages?limit=10")
        assert len(found["messages"]) == 3
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            got = []
            first = {"x-stream-offset": "first"} if kind == "stream" else None
            for method, properties, body in channel.consume("q", arguments=first):
                got.append((properties.message_id, body))
                if kind == "stream":
                    channel.basic_ack(method.delivery_tag)
                else:
                    channel.basic_reject(method.delivery_tag, requeue=False)
                if len(got) == 3:
                    break
            assert got == [("a", b"0"), (None, b"1"), ("b", b"2")]
            channel.cancel()
            letters = range(0 if kind == "stream" else 3)
            assert [body for _, (_, _, body) in zip(letters, channel.consume("dead"), strict=False)] == [
                b"%d" % number for number in letters
            ]
        assert "Traceback" not in broker.stderr, broker.stderr
