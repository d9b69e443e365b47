"""Producers and consumers of AMQP and Kafka on one queue and one stream, while the broker is killed again and again."""

from __future__ import annotations

import contextlib
import gc
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from kafka_socket import address_of
from share_client import ACCEPT, ShareMember
from test_produce import Client, batch

from amqpd.testing import BrokerProcess

KILLS = 3
PER_ROUND = 80
ERRORS = (OSError, pika.exceptions.AMQPError, AssertionError)


class Traffic:
    """What clients did: the values that were confirmed, and the deliveries by value."""

    def __init__(self, broker: BrokerProcess, name: str, kind: str) -> None:
        self.broker = broker
        self.name = name
        self.kind = kind
        self.confirmed: set[bytes] = set()
        self.deliveries: list[tuple[bytes, bool]] = []  # with the mark of a repeat
        self.stopping = threading.Event()
        self.serial = 0
        self.lock = threading.Lock()

    def values(self) -> list[bytes]:
        with self.lock:
            self.serial += PER_ROUND
            return [b"%d" % number for number in range(self.serial - PER_ROUND, self.serial)]

    def amqp(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for value in self.values():
                channel.basic_publish("", self.name, value, pika.BasicProperties(delivery_mode=2))
                self.confirmed.add(value)

    def kafka(self) -> None:
        with Client(self.broker) as client:
            for value in self.values():
                if client.produce(self.name, batch(value)).error_code == 0:
                    self.confirmed.add(value)

    def consume(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.broker.url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            for method, _, body in channel.consume(self.name, inactivity_timeout=0.1):
                if method is not None:
                    self.deliveries.append((body, method.redelivered))
                    channel.basic_ack(method.delivery_tag)
                if self.stopping.is_set():
                    return

    def share(self) -> None:
        with ShareMember(address_of(self.broker), "g", self.name) as member:
            while not self.stopping.is_set():
                records = member.fetch(records=20, wait_ms=100).records
                self.deliveries += [(record.value or b"", record.count > 1) for record in records]
                if records:
                    member.end(self.name, records, ACCEPT)

    def round(self, kill: bool) -> None:
        """Run all clients until one has sent its values, then kill the broker or let all end."""
        self.stopping.clear()
        sent = threading.Event()

        def run(call: Callable[[], None], sends: bool) -> None:
            with contextlib.suppress(*ERRORS):  # the broker was killed
                call()
            if sends:
                sent.set()

        readers: list[Any] = [self.share, self.share] + ([self.consume] if self.kind != "stream" else [])
        threads = [threading.Thread(target=run, args=(each, False)) for each in readers]
        senders = [threading.Thread(target=run, args=(each, True)) for each in (self.amqp, self.kafka)]
        for thread in (*threads, *senders):
            thread.start()
        assert sent.wait(60)
        if kill:
            self.broker.kill()
        for thread in senders:
            thread.join(60)
        if not kill:
            while len({value for value, _ in self.deliveries} & self.confirmed) < len(self.confirmed):
                assert any(thread.is_alive() for thread in threads)
                self.stopping.wait(0.05)
        self.stopping.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if kill:
            self.broker.start()


# pika leaves a socket open whose connection is reset while it logs in.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    "kind",
    ["classic", pytest.param("quorum", marks=pytest.mark.slow), pytest.param("stream", marks=pytest.mark.slow)],
)
def test_no_confirmed_record_is_lost_and_repeats_are_marked(tmp_path: Path, kind: str) -> None:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.share_auto_offset_reset": "earliest"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        name = f"t-{uuid.uuid4()}"
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        traffic = Traffic(broker, name, kind)
        for _ in range(KILLS):
            traffic.round(kill=True)
        traffic.round(kill=False)
        found = Counter(value for value, _ in traffic.deliveries)
        assert traffic.confirmed <= found.keys()
        if kind != "stream":  # a stream does not write that a record was acquired
            unmarked = Counter(value for value, is_repeat in traffic.deliveries if not is_repeat)
            assert [value for value, count in unmarked.items() if count > 1] == []
        assert "Traceback" not in broker.stderr
    del traffic
    gc.collect()
