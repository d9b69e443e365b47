"""Transactions of thousands of messages: processed in slices, atomic, and without delaying others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess, Vhost

COUNT = 3000
PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUEUES = {
    "durable": (True, {}),
    "transient": (False, {}),
    "limited": (True, {"x-max-length": 2 * COUNT}),
    "priorities": (True, {"x-max-priority": 3}),
}


@pytest.fixture
def connection(amqpd_vhost: Vhost) -> Iterator[pika.BlockingConnection]:
    connection = connect(amqpd_vhost.url)
    yield connection
    if connection.is_open:
        connection.close()


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(f"{url}?heartbeat=0"))


def declare(channel: BlockingChannel, *names: str) -> None:
    for name in names:
        durable, arguments = QUEUES[name]
        channel.queue_declare(name, durable=durable, arguments=arguments)
        channel.queue_bind(name, "amq.fanout")


def publish(channel: BlockingChannel, count: int = COUNT, exchange: str = "amq.fanout", key: str = "") -> None:
    for number in range(count):
        channel.basic_publish(exchange, key, b"%d" % number, PERSISTENT)


def ready(channel: BlockingChannel, name: str) -> int:
    count: int = channel.queue_declare(name, passive=True).method.message_count
    return count


def wait_for_count(channel: BlockingChannel, name: str, count: int) -> None:
    """Wait until `count` messages are ready. Before that there are none: no other number is ever visible."""
    deadline = time.monotonic() + 30
    while (found := ready(channel, name)) != count:
        assert found == 0, f"{found} of {count} messages of a transaction are visible"
        assert time.monotonic() < deadline, f"no message in {name}"
        time.sleep(0.001)


def bodies(channel: BlockingChannel, name: str) -> list[int]:
    found = []
    for method, _, body in channel.consume(name, auto_ack=True, inactivity_timeout=30):
        assert method is not None, f"{len(found)} of {COUNT} received"
        found.append(int(body))
        if len(found) == COUNT:
            break
    channel.cancel()
    return found


@pytest.mark.parametrize("name", QUEUES)
def test_commit_ok_means_all_messages_are_ready_in_order(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    declare(channel, name)
    channel.tx_select()
    publish(channel)
    assert ready(channel, name) == 0
    channel.tx_commit()
    assert ready(channel, name) == COUNT
    assert bodies(channel, name) == list(range(COUNT))
    # The next transaction works as usual.
    publish(channel, 2)
    channel.tx_commit()
    assert ready(channel, name) == 2


def test_commit_to_all_kinds_of_queues(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    declare(channel, *QUEUES)
    channel.tx_select()
    publish(channel)
    channel.queue_delete("priorities")
    channel.tx_commit()
    assert [ready(channel, name) for name in ("durable", "transient", "limited")] == [COUNT] * 3


def test_waiting_consumer_gets_committed_messages(connection: pika.BlockingConnection, amqpd_vhost: Vhost) -> None:
    channel = connection.channel()
    declare(channel, "durable")
    found: list[int] = []
    done = threading.Event()

    def consume() -> None:
        with connect(amqpd_vhost.url) as other:
            channel = other.channel()
            for method, _, body in channel.consume("durable", auto_ack=True, inactivity_timeout=60):
                if method is None:
                    break
                found.append(int(body))
                if len(found) == COUNT:
                    break
        done.set()

    thread = threading.Thread(target=consume)
    thread.start()
    channel.tx_select()
    publish(channel)
    channel.tx_commit()
    assert done.wait(30)
    thread.join()
    assert found == list(range(COUNT))


def test_returns_precede_commit_ok(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.tx_select()
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda *got: returned.append(got[3]))
    for number in range(COUNT):
        channel.basic_publish("", "nowhere", b"%d" % number, mandatory=True)
    connection.process_data_events(0)
    assert not returned
    channel.tx_commit()
    connection.process_data_events(0)
    assert returned == [b"%d" % number for number in range(COUNT)]


def test_acks_rejects_and_requeues_in_one_transaction(connection: pika.BlockingConnection) -> None:
    """Acks, rejects, requeues and publishes of one transaction."""
    channel = connection.channel()
    declare(channel, "durable")
    channel.queue_declare("answers", durable=True)
    publish(channel)
    channel.tx_select()
    tags = [channel.basic_get("durable")[0].delivery_tag for _ in range(COUNT)]
    channel.basic_ack(tags[1999], multiple=True)
    for tag in tags[2000:2500]:
        channel.basic_reject(tag, requeue=False)
    channel.basic_nack(tags[2999], multiple=True, requeue=True)
    publish(channel, COUNT, "", "answers")
    channel.tx_commit()
    assert (ready(channel, "durable"), ready(channel, "answers")) == (500, COUNT)
    channel.basic_ack(tags[0])
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.tx_commit()
    channel = connection.channel()
    method, _, body = channel.basic_get("durable")
    assert (method.redelivered, body) == (True, b"2500")


def test_commands_behind_large_commit_wait(connection: pika.BlockingConnection) -> None:
    """A publish and a second commit sent right after the first are processed after it."""
    channel = connection.channel()
    declare(channel, "durable")
    channel.tx_select()
    publish(channel)
    impl = channel._impl
    answers: list[str] = []
    impl.tx_commit(callback=lambda _: answers.append("first"))
    channel.basic_publish("", "durable", b"behind", PERSISTENT)
    impl.tx_commit(callback=lambda _: answers.append("second"))
    while len(answers) < 2:
        connection.process_data_events(0.01)
    assert answers == ["first", "second"]
    assert ready(channel, "durable") == COUNT + 1
    found = [channel.basic_get("durable", auto_ack=True)[2] for _ in range(COUNT + 1)]
    assert found == [b"%d" % number for number in range(COUNT)] + [b"behind"]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["connection.close", "socket", "channel.close"])
def test_close_during_commit_leaves_it_complete(
    connection: pika.BlockingConnection, amqpd_vhost: Vhost, end: str
) -> None:
    witness = connection.channel()
    declare(witness, "durable")
    witness.queue_declare("answers", durable=True)
    publish(witness)
    client = connect(amqpd_vhost.url)
    channel = client.channel()
    channel.tx_select()
    for _ in range(COUNT):
        last = channel.basic_get("durable")[0].delivery_tag
    channel.basic_get("answers")
    channel.basic_ack(last, multiple=True)
    publish(channel, COUNT, "", "answers")
    client.process_data_events(0)
    channel._impl.tx_commit(callback=lambda _: None)
    if end == "socket":
        client.process_data_events(0)
        client._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            client.process_data_events(10)
    elif end == "connection.close":
        client.close()
    else:
        channel._impl.close()
        client.close()
    wait_for_count(witness, "answers", COUNT)
    time.sleep(0.2)
    assert ready(witness, "durable") == 0, "acked messages were requeued"
    deadline = time.monotonic() + 30
    while True:
        if witness.queue_delete("durable").method.message_count == 0:
            break
        assert time.monotonic() < deadline


@pytest.mark.on_demand
@pytest.mark.compiled_only
@pytest.mark.parametrize("what", ["publishes", "acks"])
def test_other_connections_during_commit_of_100_000(tmp_path: Path, what: str) -> None:
    """Round trips of another connection take 50 ms at most while the largest commit is processed."""
    with BrokerProcess(tmp_path / "data", settings={"log.level": "warning"}) as broker:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"
        client, other = connect(url), connect(url)
        channel, witness = client.channel(), other.channel()
        witness.queue_declare("witness", exclusive=True)
        declare(channel, "durable")
        channel.tx_select()
        publish(channel, 100_000)
        if what == "acks":
            channel.tx_commit()
            tags: list[int] = []
            channel.basic_consume("durable", lambda _, method, *__: tags.append(method.delivery_tag))
            while len(tags) < 100_000:
                client.process_data_events(0.1)
            channel.basic_ack(tags[-1], multiple=True)
        else:
            while channel.connection._impl._transport.get_write_buffer_size():
                client.process_data_events(0.01)
        time.sleep(1)
        answered: list[float] = []
        channel._impl.tx_commit(callback=lambda _: answered.append(time.monotonic()))
        trips = []
        started = time.monotonic()
        while not answered or len(trips) < 20:
            start = time.monotonic()
            witness.queue_declare("witness", passive=True)
            trips.append(time.monotonic() - start)
            client.process_data_events(0)
        print(f"{what}: commit {1000 * (answered[0] - started):.0f} ms, worst round trip {1000 * max(trips):.1f} ms")
        client.close()
        other.close()
    assert max(trips) < 0.05
