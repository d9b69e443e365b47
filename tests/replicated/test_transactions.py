"""A transaction's messages for a replicated queue form one batch. More than a batch holds is error 406."""

from __future__ import annotations

import pytest
from kafka_in_memory import FakeKafka
from slot_in_memory import PROPERTIES, ROUTE, TOPIC, Slot

from amqpd.broker.consumer import Versioned
from amqpd.broker.message import MessageRoute, make_message
from amqpd.broker.publish.route import Route
from amqpd.channel.channel import Transaction
from amqpd.errors import PreconditionFailed
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.log.prepared import PreparedTransaction


def batches(kafka: FakeKafka) -> list[BatchHeader]:
    return [BatchHeader(batch, 0) for batch in kafka.stored[TOPIC, 0]][1:]


async def test_transaction_appended_by_message_is_one_batch() -> None:
    kafka = FakeKafka()
    slot = await Slot(kafka).open()
    slot.append(b"before")
    slot.log.begin_transaction()
    slot.append(*(b"%d" % number for number in range(500)))
    slot.log.append_large(ROUTE, PROPERTIES, [b"x" * 50_000, b"y" * 50_000], 100_000, True)
    slot.log.append(ROUTE, PROPERTIES + b"transient", 0, 3, 3, 12, False)
    slot.log.end_transaction()
    slot.append(b"behind")
    slot.sync()
    assert [(int(each.count), int(each.attributes)) for each in batches(kafka)] == [(1, 0), (502, 0), (1, 0)]
    expected = [b"before", *(b"%d" % number for number in range(500)), b"x" * 50_000 + b"y" * 50_000, b"transient"]
    assert slot.bodies() == [*expected, b"behind"]
    second = await Slot(kafka, 1, slot.first_offsets).open()
    assert second.bodies() == [*expected, b"behind"]


async def test_prepared_transaction_is_one_batch() -> None:
    kafka = FakeKafka()
    slot = await Slot(kafka).open()
    prepared = PreparedTransaction(True)
    for number in range(3000):
        body = b"%d" % number
        prepared.append(ROUTE, PROPERTIES + body, 0, 3, 3, 3 + len(body), number % 2 == 0)
    prepared.close()
    assert slot.log.append_prepared(prepared) == 1
    slot.sync()
    assert [int(each.count) for each in batches(kafka)] == [3000]
    assert slot.bodies() == [b"%d" % number for number in range(3000)]


def test_transaction_larger_than_a_batch_is_406() -> None:
    transaction = Transaction()
    envelope = MessageRoute("", "q")
    message = make_message(envelope, b"\0\0", b"x" * 900, True, None)
    replicated, local = (Route(envelope, [], False, Versioned(), False) for _ in range(2))
    replicated.transaction_bytes_max = 2500
    for route in (replicated, replicated, local, local):
        transaction.add_publish(route, message)
    with pytest.raises(PreconditionFailed, match="for queues of a cluster at most 2500 bytes, which is one"):
        transaction.add_publish(replicated, message)
    transaction.clear()
    transaction.add_publish(replicated, message)
