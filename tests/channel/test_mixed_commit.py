"""One transaction over every kind of queue and exchange, with acks, rejects and requeues."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import Vhost

QUEUES: dict[str, dict[str, object]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
    "priority": {"x-max-priority": 3},
    "grouped": {"x-group-by": "header:customer"},
    "retried": {"x-delayed-retry-type": "all", "x-delayed-retry-min": 100, "x-delayed-retry-max": 100},
    "kept": {"x-retain": "1D"},
    "short": {"x-max-length": 1},
}


@pytest.fixture
def channel(amqpd_vhost: Vhost) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(f"{amqpd_vhost.url}?heartbeat=0")) as connection:
        channel = connection.channel()
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_declare("transient", arguments={})
        channel.exchange_declare("once", "x-message-deduplication", durable=True, arguments={"x-cache-size": 100})
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        for name in ("deduplicated", "delayed", "source"):
            channel.queue_declare(name, durable=True)
        channel.queue_bind("deduplicated", "once")
        channel.queue_bind("delayed", "later")
        yield channel


def ready(channel: BlockingChannel, name: str) -> int:
    return int(channel.queue_declare(name, passive=True).method.message_count)


def publish(channel: BlockingChannel, exchange: str, key: str, **headers: object) -> None:
    properties = pika.BasicProperties(delivery_mode=2, headers={"customer": "anna", **headers})
    channel.basic_publish(exchange, key, key.encode(), properties)


def wait_for_count(channel: BlockingChannel, name: str, count: int) -> None:
    deadline = time.monotonic() + 30
    while ready(channel, name) != count:
        assert time.monotonic() < deadline, f"{ready(channel, name)} in {name}"
        time.sleep(0.02)


@pytest.mark.parametrize("count", [1, 300])
def test_commit_over_all_kinds_of_queues_and_exchanges(channel: BlockingChannel, count: int) -> None:
    witness = channel.connection.channel()
    targets = [*QUEUES, "transient"]
    for _ in range(3):
        publish(witness, "", "source")
    channel.tx_select()
    tags = [channel.basic_get("source")[0].delivery_tag for _ in range(3)]
    for number in range(count):
        for name in targets:
            publish(channel, "", name)
        for _ in range(2):
            publish(channel, "once", "", **{"x-deduplication-header": f"id {number % 100}"})
        publish(channel, "later", "", **{"x-delay": 500})
    channel.basic_ack(tags[0])
    channel.basic_reject(tags[1], requeue=False)
    channel.basic_nack(tags[2], requeue=True)
    assert not any(ready(witness, name) for name in (*targets, "deduplicated", "delayed", "source"))
    channel.tx_commit()
    found = {name: ready(witness, name) for name in targets}
    assert found == {**dict.fromkeys(targets, count), "short": 1}
    assert ready(witness, "deduplicated") == min(count, 100)
    wait_for_count(witness, "delayed", count)
    assert ready(witness, "source") == 1


def test_retry_and_group_take_effect_at_commit(channel: BlockingChannel) -> None:
    """Delayed retries and message groups in a transaction take effect at its commit."""
    witness = channel.connection.channel()
    for name in ("retried", "grouped", "grouped"):
        publish(witness, "", name)
    channel.tx_select()
    retried, first = channel.basic_get("retried")[0], channel.basic_get("grouped")[0]
    channel.basic_reject(retried.delivery_tag, requeue=True)
    channel.basic_ack(first.delivery_tag)
    publish(channel, "", "classic")
    time.sleep(0.3)
    assert ready(witness, "retried") == 0
    channel.tx_rollback()
    channel.basic_reject(retried.delivery_tag, requeue=True)
    channel.basic_ack(first.delivery_tag)
    assert witness.basic_get("grouped")[0] is None, "the transaction's channel still has the group"
    publish(channel, "", "classic")
    channel.tx_commit()
    assert ready(witness, "classic") == 1
    wait_for_count(witness, "retried", 1)
    assert witness.basic_get("grouped")[0] is not None
    delivered, _, _ = witness.basic_get("retried")
    assert delivered is not None and delivered.redelivered


def test_repeated_commit_after_failure_stores_no_duplicate(channel: BlockingChannel) -> None:
    """After a failed commit the transaction can be repeated: a message stored the first time is not stored again."""
    witness = channel.connection.channel()
    witness.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.tx_select()
    publish(channel, "once", "", **{"x-deduplication-header": "a"})
    publish(channel, "", "full")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.tx_commit()
    assert (closed.value.reply_code, closed.value.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")
    second_channel = channel.connection.channel()
    second_channel.tx_select()
    publish(second_channel, "once", "", **{"x-deduplication-header": "a"})
    publish(second_channel, "", "classic")
    second_channel.tx_commit()
    assert (ready(witness, "deduplicated"), ready(witness, "classic")) == (1, 1)
