"""Transactions through kills of the broker: whole or not at all, and exactly once."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pika
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka_socket import address_of
from transaction_client import TransactionClient, new_topic

from amqpd.kafka_server.compacted_log import LogHost
from amqpd.kafka_server.transaction_log import TransactionLog
from amqpd.kafka_server.transactions import TransactionMetadata, end
from amqpd.storage.storage import Storage
from amqpd.testing import BrokerProcess

CALL_S = 20
KILLS = int(os.environ.get("KAFKA_TRANSACTION_KILLS", "12"))


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that keeps its Kafka port over restarts."""
    settings = {"kafka.port": free_port(), "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path / "data", settings=settings) as made:
        yield made
        assert "Traceback" not in made.stderr


def amqp_values(broker: BrokerProcess, topic: str, last: bytes) -> list[bytes]:
    """Return what an AMQP consumer of the stream gets, up to the message `last`."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1000)
    found: list[bytes] = []
    for message, _, body in channel.consume(topic, arguments={"x-stream-offset": "first"}, inactivity_timeout=30):
        assert message is not None, found
        found.append(body)
        if body == last:
            break
    connection.close()
    return found


class Writer:
    """Transactions over two topics and the offset of a group; every fourth is aborted.

    Attributes:
        committed: numbers whose commit was answered.
        unsure: numbers whose commit was sent and not answered.
        aborted: numbers that must not be seen.
    """

    def __init__(self, address: str, topics: tuple[str, str]) -> None:
        self.address = address
        self.topics = topics
        self.number = 0
        self.committed: list[int] = []
        self.unsure: list[int] = []
        self.aborted: list[int] = []

    def run(self, started: threading.Event) -> None:
        """Write until the broker is gone. An answer with an error is a failure."""
        with contextlib.suppress(ConnectionError, TimeoutError), TransactionClient(self.address, "writer") as client:
            assert client.init() == 0
            started.set()
            while True:
                self._transaction(client)

    def _transaction(self, client: TransactionClient) -> None:
        self.number += 1
        number, value = self.number, b"%d" % self.number
        commits = number % 4 > 0
        if not commits:
            self.aborted.append(number)
        sent = False
        try:
            for topic in self.topics:
                assert client.add(topic) == [0]
                assert client.produce(topic, value, value + b"'") == 0
            assert client.add_offsets("g") == 0
            assert client.commit_offset("g", self.topics[0], number) == 0
            sent = True
            assert client.end(commits) == 0
        except (ConnectionError, TimeoutError):
            if commits:
                (self.unsure if sent else self.aborted).append(number)
            raise
        if commits:
            self.committed.append(number)


def numbers(values: list[bytes]) -> list[int]:
    """Return the numbers of whole transactions, in order. A half one is an error."""
    assert len(values) % 2 == 0
    for first, second in zip(values[::2], values[1::2], strict=True):
        assert second == first + b"'"
    return [int(each) for each in values[::2]]


@pytest.mark.slow
def test_transactions_are_whole_or_absent_after_each_kill(broker: BrokerProcess) -> None:
    """Topics, the group's offset and AMQP agree after each kill, also about a commit without an answer."""
    address = address_of(broker)
    topics = (new_topic(address, "left"), new_topic(address, "right"))
    writer = Writer(address, topics)
    chance = random.Random(3)
    for _ in range(KILLS):
        started = threading.Event()
        thread = threading.Thread(target=writer.run, args=(started,))
        thread.start()
        assert started.wait(60)
        time.sleep(chance.uniform(0.0, 0.12))  # where the kill comes, at random
        broker.kill()
        thread.join()
        broker.start()
        with TransactionClient(address, "writer") as client:
            while client.init() in (14, 51):  # afterwards every transaction has ended
                time.sleep(0.01)
            assert [client.add(topic) for topic in topics] == [[0], [0]]
            assert client.end(True) == 0  # its markers are synced, and so is all before them
            found = [numbers(client.values(topic)) for topic in topics]
            assert found[0] == found[1]
            assert found[0] == sorted(set(found[0]))
            assert set(writer.committed) <= set(found[0]) <= set(writer.committed) | set(writer.unsure)
            assert not set(writer.aborted) & set(found[0])
            assert client.offset_of("g", topics[0], stable=True) == (max(found[0], default=-1), 0)
            assert client.latest(topics[0], True) == client.latest(topics[0], False)
            writer.committed = found[0]
            writer.aborted += set(writer.unsure) - set(found[0])
            writer.unsure = []
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", topics[1], b"end")
    connection.close()
    assert numbers(amqp_values(broker, topics[1], b"end")[:-1]) == writer.committed


@pytest.mark.slow
def test_start_completes_transactions_that_were_decided(broker: BrokerProcess) -> None:
    """The kill came after PrepareCommit of one and PrepareAbort of another, and before the first marker.

    The time-out of a third one has passed while the broker was down.
    """

    def changed(current: TransactionMetadata) -> TransactionMetadata | int:
        if name == "slow":
            return current._replace(start_ms=current.start_ms - current.timeout_ms)
        return end(current, *producers[name], name == "committed", int(time.time() * 1000))

    address = address_of(broker)
    topics = {name: new_topic(address) for name in ("committed", "aborted", "slow")}
    producers: dict[str, tuple[int, int]] = {}
    for name, topic in topics.items():
        with TransactionClient(address, name) as client:
            assert client.init() == 0
            assert client.add(topic) == [0]
            assert client.produce(topic, b"a") == 0
            assert client.add_offsets(name) == 0
            assert client.commit_offset(name, topic, 7) == 0
            producers[name] = client.producer
    broker.kill()
    for name in topics:
        decide(broker.data_dir, name, changed)
    broker.start()
    assert broker.says("transaction 'slow' is aborted")
    for name, topic in topics.items():
        with TransactionClient(address, name) as client:
            deadline = time.monotonic() + 30
            while client.latest(topic, True) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert client.values(topic) == ([b"a"] if name == "committed" else [])
            if name != "slow":
                client.producer = producers[name]
                while (error := client.end(name == "committed")) in (14, 51):
                    time.sleep(0.01)
                assert error == 0
            assert client.offset_of(name, topic, stable=True) == ((7, 0) if name == "committed" else (-1, 0))


def decide(data_dir: Path, name: str, change: Any) -> None:
    """Change the state of a transactional id while no broker runs."""
    posted: list[Any] = []
    storage = Storage(data_dir, post=lambda call, *arguments: posted.append(partial(call, *arguments)), inline=True)
    waiting: list[Any] = []

    class NoTurn:
        def schedule(self) -> None:
            """Do nothing: `run` ends the turns."""

    turn: Any = NoTurn()
    log = TransactionLog(LogHost(storage, turn, waiting.append, waiting.append, lambda: 0), lambda: None)

    def run(until: Any) -> None:
        deadline = time.monotonic() + 30
        while not until() and time.monotonic() < deadline:
            storage.commits.end_of_turn()
            for queue in (posted, waiting):
                calls, queue[:] = queue[:], []
                for call in calls:
                    call()
            time.sleep(0.001)
        assert until()

    log.load()
    run(lambda: log.is_loaded)
    ((key, current),) = [each for each in log.found.items() if each[0][1] == name]
    changed = change(current)
    assert isinstance(changed, TransactionMetadata)
    done: list[bool] = []
    log.write(key, changed, done.append)
    run(lambda: done)
    assert done == [True]
    storage.close(clean=False)


def test_open_transaction_goes_on_after_a_kill(broker: BrokerProcess) -> None:
    address = address_of(broker)
    topic = new_topic(address)
    with TransactionClient(address, "goes-on") as client:
        assert client.init() == 0
        assert client.add(topic) == [0]
        assert client.produce(topic, b"a") == 0
        producer = client.producer
    broker.kill()
    broker.start()
    with TransactionClient(address, "goes-on") as client:
        client.producer = producer
        assert client.values(topic) == []
        while (codes := client.add(topic)) == [14]:
            time.sleep(0.01)
        assert codes == [0]
        assert client.end(True) == 0
        assert client.values(topic) == [b"a"]


@pytest.mark.slow
def test_loop_of_consumer_and_producer_is_exactly_once_through_kills(broker: BrokerProcess) -> None:
    """librdkafka reads, writes and commits the offsets in one transaction; the broker is killed meanwhile."""
    address = address_of(broker)
    source, target = new_topic(address, "source"), new_topic(address, "target")
    count = 400
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    for number in range(count):
        producer.send(source, b"%d" % number)
    producer.close()
    stop = threading.Event()

    def kill_now_and_then() -> None:
        chance = random.Random(5)
        for _ in range(max(KILLS // 3, 3)):
            if stop.wait(chance.uniform(0.7, 1.2)):
                return
            broker.kill()
            broker.start()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    deadline = time.monotonic() + 150
    try:
        while not _copied(address, source, target, count, killer):
            assert time.monotonic() < deadline
    finally:
        stop.set()
        killer.join()
    reader = KafkaConsumer(bootstrap_servers=address, isolation_level="read_committed", enable_auto_commit=False)
    place = TopicPartition(target, 0)
    reader.assign([place])
    reader.seek_to_beginning(place)
    found: list[int] = []
    while len(found) < count:
        assert time.monotonic() < deadline
        found += [int(each.value) for each in reader.poll(timeout_ms=1000).get(place, [])]
    assert found == [10 * number for number in range(count)]
    reader.close()


def _copied(address: str, source: str, target: str, count: int, killer: threading.Thread) -> bool:
    """Copy until an error, which ends both clients. Return whether all is copied."""
    place = confluent_kafka.TopicPartition(source, 0)
    # The default, rebootstrap, makes librdkafka 2.16 forget the only broker. TxnOffsetCommit then waits for it in vain.
    common = {"bootstrap.servers": address, "metadata.recovery.strategy": "none"}
    consumer = confluent_kafka.Consumer(
        {
            **common,
            "group.id": "copy",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    producer = confluent_kafka.Producer({**common, "transactional.id": "copy"})
    try:
        producer.init_transactions(CALL_S)
        consumer.assign([place])
        position = max(consumer.committed([place], CALL_S)[0].offset, 0)
        while position < count or killer.is_alive():
            records = [each for each in consumer.consume(5, 0.2) if each.error() is None]
            if not records:
                continue
            producer.begin_transaction()
            for each in records:
                producer.produce(target, b"%d" % (10 * int(each.value())))
            position = records[-1].offset() + 1
            offsets = [confluent_kafka.TopicPartition(source, 0, position)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_S)
            producer.commit_transaction(CALL_S)
            time.sleep(0.01)  # so that the kills come while it works
        return True
    except confluent_kafka.KafkaException:
        return False
    finally:
        consumer.close()
