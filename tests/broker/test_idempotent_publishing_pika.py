"""Idempotent publishing over the wire with pika: duplicates, epochs, refusals, restarts and kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

PERSISTENT = 2


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("once") / "data") as process:
        yield process


@contextmanager
def channel_of(process: BrokerProcess, confirms: bool = True) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
        channel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        yield channel


def numbers(sequence: object, producer: object = 7, epoch: object = 0) -> dict[str, Any]:
    return {"x-producer-id": producer, "x-producer-epoch": epoch, "x-sequence": sequence}


def publish_numbered(
    channel: BlockingChannel,
    queue: str,
    sequence: int,
    producer: int = 7,
    epoch: int = 0,
    exchange: str = "",
    body: str = "",
) -> None:
    properties = pika.BasicProperties(delivery_mode=PERSISTENT, headers=numbers(sequence, producer, epoch))
    text = body or f"{producer}/{epoch}/{sequence}"
    channel.basic_publish(exchange, queue, text.encode(), properties, mandatory=True)


def drain(channel: BlockingChannel, queue: str) -> list[str]:
    bodies: list[str] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2].decode())
    return bodies


def consume_stream(channel: BlockingChannel, queue: str, count: int) -> list[str]:
    channel.basic_qos(prefetch_count=1000)
    bodies: list[str] = []
    until = monotonic() + 30
    for method, _, body in channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=0.5):
        if method is None:
            if len(bodies) == count or monotonic() > until:
                break
            continue
        bodies.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        if len(bodies) > count:
            break
    channel.cancel()
    return bodies


KINDS: list[tuple[str, bool, dict[str, Any]]] = [
    ("classic", True, {}),
    ("transient", False, {}),
    ("priority", True, {"x-max-priority": 3}),
    ("groups", True, {"x-group-by": "routing_key"}),
    ("retained", True, {"x-retain": "1h"}),
    ("limited", True, {"x-max-length": 100}),
]


@pytest.mark.parametrize(("name", "durable", "arguments"), KINDS, ids=[each[0] for each in KINDS])
def test_duplicates_are_enqueued_once(
    shared: BrokerProcess, name: str, durable: bool, arguments: dict[str, Any]
) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare(name, durable=durable, arguments=arguments)
        for sequence in (0, 1, 1, 0, 5, 4, 5, 6):  # gaps are legal
            publish_numbered(channel, name, sequence)
        publish_numbered(channel, name, 0, producer=8)
        channel.basic_publish("", name, b"plain")
        publish_numbered(channel, name, 7)
        publish_numbered(channel, name, 3, epoch=1)  # a later epoch restarts the sequence
        publish_numbered(channel, name, 3, epoch=1)
        assert drain(channel, name) == ["7/0/0", "7/0/1", "7/0/5", "7/0/6", "8/0/0", "plain", "7/0/7", "7/1/3"]
        publish_numbered(channel, name, 3, epoch=1)  # acked messages are remembered too
        assert drain(channel, name) == []


def test_duplicates_are_appended_to_stream_once(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("st", durable=True, arguments={"x-queue-type": "stream"})
        for sequence in (0, 1, 1, 0, 5):
            publish_numbered(channel, "st", sequence)
        assert consume_stream(channel, "st", 3) == ["7/0/0", "7/0/1", "7/0/5"]


def test_each_queue_deduplicates_by_itself(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        for queue in ("q1", "q2"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.fanout")
        publish_numbered(channel, "q1", 4)
        publish_numbered(channel, "", 4, exchange="amq.fanout")
        publish_numbered(channel, "", 3, exchange="amq.fanout")
        assert drain(channel, "q1") == ["7/0/4"]
        assert drain(channel, "q2") == ["7/0/4"]


def test_older_epoch_is_refused_and_not_stored(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        for queue in ("e1", "e2"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.direct", "e")
        publish_numbered(channel, "e2", 0, epoch=2)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            publish_numbered(channel, "e", 9, epoch=1, exchange="amq.direct")
        assert refused.value.reply_code == 403
        assert "producer 7 of epoch 1 has been replaced in queue 'e2'" in refused.value.reply_text
    with channel_of(shared) as channel:
        assert drain(channel, "e1") == []
        assert drain(channel, "e2") == ["7/2/0"]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x-producer-id": 1}, "invalid header 'x-producer-epoch': required with 'x-producer-id'"),
        ({"x-producer-id": 1, "x-producer-epoch": 1}, "invalid header 'x-sequence': required"),
        (numbers(0, producer="seven"), "invalid header 'x-producer-id': not an integer from 0 to 9223372036854775807"),
        (numbers(0, producer=-1), "'x-producer-id': not an integer"),
        (numbers(0, producer=True), "'x-producer-id': not an integer"),
        (numbers(0, epoch=32768), "'x-producer-epoch': not an integer from 0 to 32767"),
        (numbers(2**31), "'x-sequence': not an integer from 0 to 2147483647"),
        (numbers(-1), "'x-sequence': not an integer"),
    ],
)
def test_invalid_producer_headers_are_refused(shared: BrokerProcess, headers: dict[str, Any], text: str) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("bad", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_publish("", "bad", b"", pika.BasicProperties(headers=headers))
        assert refused.value.reply_code == 406
        assert text in refused.value.reply_text
    with channel_of(shared) as channel:
        assert drain(channel, "bad") == []


def test_transaction_refuses_numbered_messages(shared: BrokerProcess) -> None:
    with channel_of(shared, confirms=False) as channel:
        channel.queue_declare("tx", durable=True)
        channel.tx_select()
        publish_numbered(channel, "tx", 1)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.tx_commit()
        assert refused.value.reply_code == 406
        assert "a transaction accepts no messages with a producer id" in refused.value.reply_text


def test_delayed_numbered_message_is_refused(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("sooner", durable=True)
        channel.queue_bind("sooner", "later")
        publish_numbered(channel, "", 0, exchange="later")
        publish_numbered(channel, "", 0, exchange="later")
        assert drain(channel, "sooner") == ["7/0/0"]
        delayed = pika.BasicProperties(headers={"x-delay": 1000, **numbers(1)})
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_publish("later", "", b"", delayed)
        assert refused.value.reply_code == 406
        assert "a delayed message cannot have it" in refused.value.reply_text


def test_rejected_message_can_be_published_again(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        publish_numbered(channel, "full", 0)
        with pytest.raises(pika.exceptions.NackError):
            publish_numbered(channel, "full", 1)
        publish_numbered(channel, "full", 0)  # a duplicate needs no space
        assert drain(channel, "full") == ["7/0/0"]
        publish_numbered(channel, "full", 1)
        assert drain(channel, "full") == ["7/0/1"]


def test_dead_letters_have_no_producer_headers(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("dead", durable=True)
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("dying", durable=True, arguments=to_dead)
        for sequence in (1, 2):
            publish_numbered(channel, "dying", sequence)
            method, _, _ = channel.basic_get("dying")
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)
        deadline = monotonic() + 30
        dead_letters: list[pika.BasicProperties] = []
        while len(dead_letters) < 2 and monotonic() < deadline:
            method, properties, _ = channel.basic_get("dead", auto_ack=True)
            if method is not None:
                dead_letters.append(properties)
        assert len(dead_letters) == 2
        for properties in dead_letters:
            assert "x-death" in properties.headers
            assert not {"x-producer-id", "x-producer-epoch", "x-sequence"} & set(properties.headers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "stream"])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_duplicates_are_known_after_restart(tmp_path: Path, kind: str, end: str) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        for life in range(3):
            with channel_of(process) as channel:
                channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind})
                for sequence in range(10 * (life + 1)):
                    publish_numbered(channel, "q", sequence)
                channel.basic_publish("", "q", b"plain", pika.BasicProperties(delivery_mode=PERSISTENT))
            if end == "kill":
                process.kill()
            else:
                process.stop()
            process.start()
        with channel_of(process) as channel:
            for sequence in range(30):
                publish_numbered(channel, "q", sequence)
            found = drain(channel, "q") if kind == "classic" else consume_stream(channel, "q", 33)
            expected: list[str] = []
            for life in range(3):
                expected += [f"7/0/{n}" for n in range(10 * life, 10 * life + 10)] + ["plain"]
            assert found == expected


@pytest.mark.slow
def test_kill_at_any_time_leaves_each_message_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with channel_of(process) as channel:
            channel.queue_declare("q", durable=True)
        confirmed = [0]

        def publish() -> None:
            with suppress(pika.exceptions.AMQPError, OSError), channel_of(process) as channel:
                while True:
                    publish_numbered(channel, "q", confirmed[0])
                    confirmed[0] += 1

        for life in range(3):
            publisher = Thread(target=publish)
            publisher.start()
            deadline = monotonic() + 30
            while confirmed[0] < 150 * (life + 1) and monotonic() < deadline:
                sleep(0.003)
            process.kill()
            publisher.join(30)
            process.start()
        with channel_of(process) as channel:
            publish_numbered(channel, "q", confirmed[0])
            assert drain(channel, "q") == [f"7/0/{n}" for n in range(confirmed[0] + 1)]
        assert confirmed[0] >= 450


@pytest.mark.slow
def test_message_delivered_directly_without_ack_is_known_after_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with channel_of(process) as channel:
            channel.queue_declare("q", durable=True)
            got: list[bytes] = []
            channel.basic_consume("q", lambda *delivery: got.append(delivery[3]), auto_ack=True)
            publish_numbered(channel, "q", 1)
            until = monotonic() + 30
            while not got and monotonic() < until:
                channel.connection.process_data_events(0.1)
            assert got == [b"7/0/1"]
        process.kill()
        process.start()
        with channel_of(process) as channel:
            publish_numbered(channel, "q", 1)
            publish_numbered(channel, "q", 2)
            assert drain(channel, "q") == ["7/0/2"]
