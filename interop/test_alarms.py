"""A broker short of memory or disk: publishers are notified and blocked, consumers continue, no message sent meanwhile
is lost.

Alarms affect all clients of a broker, so each test starts a broker with its own limits. On a shared broker
`test_memory_alarm_blocks_and_unblocks_the_connection` sets and clears the alarm with the control command.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPConnectionError

from amqpd.testing import BrokerProcess

pytestmark = pytest.mark.skipif("TEST_INTEROP_URL" in os.environ, reason="alarms of a broker that is only lent")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [("limits.memory_high_watermark", 0.000001, "low on memory"), ("limits.disk_free_bytes", 1 << 60, "low on disk")],
    ids=["memory", "disk"],
)
def test_alarm_blocks_publishers_but_not_consumers(tmp_path: Path, setting: str, value: object, reason: str) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"before", PERSISTENT)
    broker = BrokerProcess(tmp_path / "data", settings={setting: value})
    with broker:
        publisher = pika.BlockingConnection(pika.URLParameters(f"{broker.url}?blocked_connection_timeout=30"))
        reasons: list[str] = []
        publisher.add_on_connection_blocked_callback(lambda _connection, frame: reasons.append(frame.method.reason))
        sending = publisher.channel()
        deadline = time.monotonic() + 30
        while not reasons and time.monotonic() < deadline:
            sending.basic_publish("", "q", b"held", PERSISTENT)
            publisher.process_data_events(time_limit=0.05)
        assert reasons == [reason]
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            consumer = connection.channel()
            assert consumer.basic_get("q", auto_ack=True)[2] == b"before"
            consumer.queue_declare("another", exclusive=True)
        broker.kill()  # kill, because a blocked publisher would not answer connection.close and delay the stop
        with contextlib.suppress(AMQPConnectionError):
            publisher.close()  # notices the end and closes its sockets
