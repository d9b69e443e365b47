"""Idempotent publishing over the wire with pika: copies, epochs, refusals, restarts and kill -9."""

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

KEPT = 2


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


def put(
    channel: BlockingChannel,
    queue: str,
    sequence: int,
    producer: int = 7,
    epoch: int = 0,
    exchange: str = "",
    body: str = "",
) -> None:
    about = pika.BasicProperties(delivery_mode=KEPT, headers=numbers(sequence, producer, epoch))
    text = body or f"{producer}/{epoch}/{sequence}"
    channel.basic_publish(exchange, queue, text.encode(), about, mandatory=True)


def taken(channel: BlockingChannel, queue: str) -> list[str]:
    found: list[str] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2].decode())
    return found


def streamed(channel: BlockingChannel, queue: str, count: int) -> list[str]:
    channel.basic_qos(prefetch_count=1000)
    found: list[str] = []
    until = monotonic() + 30
    for method, _, body in channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=0.5):
        if method is None:
            if len(found) == count or monotonic() > until:
                break
            continue
        found.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        if len(found) > count:
            break
    channel.cancel()
    return found


KINDS: list[tuple[str, bool, dict[str, Any]]] = [
    ("classic", True, {}),
    ("transient", False, {}),
    ("priority", True, {"x-max-priority": 3}),
    ("groups", True, {"x-group-by": "routing_key"}),
    ("retained", True, {"x-retain": "1h"}),
    ("limited", True, {"x-max-length": 100}),
]


@pytest.mark.parametrize(("name", "durable", "arguments"), KINDS, ids=[each[0] for each in KINDS])
def test_each_message_once(shared: BrokerProcess, name: str, durable: bool, arguments: dict[str, Any]) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare(name, durable=durable, arguments=arguments)
        for sequence in (0, 1, 1, 0, 5, 4, 5, 6):  # gaps are legal
            put(channel, name, sequence)
        put(channel, name, 0, producer=8)
        channel.basic_publish("", name, b"plain")
        put(channel, name, 7)
        put(channel, name, 3, epoch=1)  # a later epoch begins anew
        put(channel, name, 3, epoch=1)
        assert taken(channel, name) == ["7/0/0", "7/0/1", "7/0/5", "7/0/6", "8/0/0", "plain", "7/0/7", "7/1/3"]
        put(channel, name, 3, epoch=1)  # what was taken out is known, too
        assert taken(channel, name) == []


def test_a_stream_has_it_once(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("st", durable=True, arguments={"x-queue-type": "stream"})
        for sequence in (0, 1, 1, 0, 5):
            put(channel, "st", sequence)
        assert streamed(channel, "st", 3) == ["7/0/0", "7/0/1", "7/0/5"]


def test_each_queue_for_itself(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        for queue in ("q1", "q2"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.fanout")
        put(channel, "q1", 4)
        put(channel, "", 4, exchange="amq.fanout")
        put(channel, "", 3, exchange="amq.fanout")
        assert taken(channel, "q1") == ["7/0/4"]
        assert taken(channel, "q2") == ["7/0/4"]


def test_an_older_epoch_is_refused_and_nothing_of_it_stored(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        for queue in ("e1", "e2"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.direct", "e")
        put(channel, "e2", 0, epoch=2)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            put(channel, "e", 9, epoch=1, exchange="amq.direct")
        assert refused.value.reply_code == 403
        assert "producer 7 of epoch 1 has been replaced in queue 'e2'" in refused.value.reply_text
    with channel_of(shared) as channel:
        assert taken(channel, "e1") == []
        assert taken(channel, "e2") == ["7/2/0"]


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
def test_bad_numbers_are_refused(shared: BrokerProcess, headers: dict[str, Any], text: str) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("bad", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_publish("", "bad", b"", pika.BasicProperties(headers=headers))
        assert refused.value.reply_code == 406
        assert text in refused.value.reply_text
    with channel_of(shared) as channel:
        assert taken(channel, "bad") == []


def test_a_transaction_refuses_them(shared: BrokerProcess) -> None:
    with channel_of(shared, confirms=False) as channel:
        channel.queue_declare("tx", durable=True)
        channel.tx_select()
        put(channel, "tx", 1)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.tx_commit()
        assert refused.value.reply_code == 406
        assert "a transaction accepts no messages with a producer id" in refused.value.reply_text


def test_an_exchange_that_delays_refuses_them(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("sooner", durable=True)
        channel.queue_bind("sooner", "later")
        put(channel, "", 0, exchange="later")
        put(channel, "", 0, exchange="later")
        assert taken(channel, "sooner") == ["7/0/0"]
        delayed = pika.BasicProperties(headers={"x-delay": 1000, **numbers(1)})
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_publish("later", "", b"", delayed)
        assert refused.value.reply_code == 406
        assert "a delayed message cannot have it" in refused.value.reply_text


def test_what_a_queue_refuses_may_come_again(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        put(channel, "full", 0)
        with pytest.raises(pika.exceptions.NackError):
            put(channel, "full", 1)
        put(channel, "full", 0)  # a copy needs no room
        assert taken(channel, "full") == ["7/0/0"]
        put(channel, "full", 1)
        assert taken(channel, "full") == ["7/0/1"]


def test_dead_letters_have_no_numbers(shared: BrokerProcess) -> None:
    with channel_of(shared) as channel:
        channel.queue_declare("dead", durable=True)
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("dying", durable=True, arguments=to_dead)
        for sequence in (1, 2):
            put(channel, "dying", sequence)
            method, _, _ = channel.basic_get("dying")
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)
        deadline = monotonic() + 30
        found: list[pika.BasicProperties] = []
        while len(found) < 2 and monotonic() < deadline:
            method, about, _ = channel.basic_get("dead", auto_ack=True)
            if method is not None:
                found.append(about)
        assert len(found) == 2
        for about in found:
            assert "x-death" in about.headers
            assert not {"x-producer-id", "x-producer-epoch", "x-sequence"} & set(about.headers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "stream"])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_known_over_restarts(tmp_path: Path, kind: str, end: str) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        for life in range(3):
            with channel_of(process) as channel:
                channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind})
                for sequence in range(10 * (life + 1)):
                    put(channel, "q", sequence)
                channel.basic_publish("", "q", b"plain", pika.BasicProperties(delivery_mode=KEPT))
            if end == "kill":
                process.kill()
            else:
                process.stop()
            process.start()
        with channel_of(process) as channel:
            for sequence in range(30):
                put(channel, "q", sequence)
            found = taken(channel, "q") if kind == "classic" else streamed(channel, "q", 33)
            expected: list[str] = []
            for life in range(3):
                expected += [f"7/0/{n}" for n in range(10 * life, 10 * life + 10)] + ["plain"]
            assert found == expected


@pytest.mark.slow
def test_a_kill_at_any_time_leaves_each_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with channel_of(process) as channel:
            channel.queue_declare("q", durable=True)
        confirmed = [0]

        def publish() -> None:
            with suppress(pika.exceptions.AMQPError, OSError), channel_of(process) as channel:
                while True:
                    put(channel, "q", confirmed[0])
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
            put(channel, "q", confirmed[0])
            assert taken(channel, "q") == [f"7/0/{n}" for n in range(confirmed[0] + 1)]
        assert confirmed[0] >= 450


@pytest.mark.slow
def test_what_went_straight_to_a_consumer_without_acks_is_known(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with channel_of(process) as channel:
            channel.queue_declare("q", durable=True)
            got: list[bytes] = []
            channel.basic_consume("q", lambda *told: got.append(told[3]), auto_ack=True)
            put(channel, "q", 1)
            until = monotonic() + 30
            while not got and monotonic() < until:
                channel.connection.process_data_events(0.1)
            assert got == [b"7/0/1"]
        process.kill()
        process.start()
        with channel_of(process) as channel:
            put(channel, "q", 1)
            put(channel, "q", 2)
            assert taken(channel, "q") == ["7/0/2"]
