"""Messages with pika's BlockingConnection: properties, bodies, confirms, returns, transactions, direct reply-to."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pika
import pytest
from conversation import Eventually, Received, Unique, channel_error, drain, get, send
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    NackError,
    UnroutableError,
)

# -- messages


def test_all_properties_are_unchanged(channel: BlockingChannel, queue: str) -> None:
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"k": "v"},
        delivery_mode=2,
        priority=7,
        correlation_id="corr",
        reply_to="back",
        expiration="60000",
        message_id="id",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.basic_publish("", queue, b"body", sent)
    assert get(channel, queue)[1] == sent
    channel.basic_publish("", queue, b"body")
    assert get(channel, queue)[1] == pika.BasicProperties()


def test_header_values_are_unchanged(channel: BlockingChannel, queue: str) -> None:
    headers: dict[str, Any] = {
        "bool": True,
        "int": -5,
        "big": 2**40,
        "text": "grüße",
        "bytes": b"\x00\xff",
        "none": None,
        "decimal": Decimal("-3.14"),
        "time": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "list": [1, "two", [3], {"four": None}],
        "table": {"a": {"b": {"c": [True, False]}}},
        "empty": {"list": [], "table": {}, "text": ""},
    }
    send(channel, queue, "m", headers=headers)
    got = get(channel, queue)[1].headers
    got["time"] = got["time"].replace(tzinfo=dt.UTC)
    assert got == headers


def test_every_field_type_is_unchanged_byte_for_byte(
    channel: BlockingChannel, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pika encodes only some types, so the test writes the table. The answer is captured before pika decodes it."""

    def entry(name: bytes, value: bytes) -> bytes:
        return bytes([len(name)]) + name + value

    def long(value: bytes) -> bytes:
        return struct.pack(">I", len(value)) + value

    scalars = (
        entry(b"S", b"S" + long(b"text")),
        entry(b"x", b"x" + long(b"\x00\xff")),
        entry(b"I", b"I" + struct.pack(">i", -(2**31))),
        entry(b"i", b"i" + struct.pack(">I", 2**32 - 1)),
        entry(b"l", b"l" + struct.pack(">q", -(2**63))),
        entry(b"s", b"s" + struct.pack(">h", -(2**15))),
        entry(b"u", b"u" + struct.pack(">H", 2**16 - 1)),
        entry(b"b", b"b\x80"),
        entry(b"B", b"B\xff"),
        entry(b"f", b"f" + struct.pack(">f", 1.5)),
        entry(b"d", b"d" + struct.pack(">d", 0.1)),
        entry(b"t", b"t\x01"),
        entry(b"T", b"T" + struct.pack(">Q", 1_700_000_000)),
        entry(b"D", b"D\x02" + struct.pack(">i", 314)),
        entry(b"V", b"V"),
    )
    flat = b"".join(scalars)
    table = long(flat + entry(b"F", b"F" + long(flat)) + entry(b"A", b"A" + long(b"V" + b"B\x07" + b"F" + long(flat))))
    raw = struct.pack(">H", pika.BasicProperties.FLAG_HEADERS) + table

    class Raw(pika.BasicProperties):
        def encode(self) -> list[bytes]:  # type: ignore[override]
            return [raw]

    arrived: list[bytes] = []

    def decode(self: pika.BasicProperties, encoded: bytes, offset: int = 0) -> pika.BasicProperties:
        arrived.append(encoded[offset:])
        return self

    channel.basic_publish("", queue, b"m", Raw())
    with monkeypatch.context() as patch:
        patch.setattr(pika.BasicProperties, "decode", decode)
        assert channel.basic_get(queue, auto_ack=True)[2] == b"m"
    assert arrived == [raw]


@pytest.mark.parametrize("size_bytes", [0, 1, 131072 - 9, 131072 - 8, 131072 - 7, 2 * (131072 - 8), 6_000_000])
def test_bodies_of_any_size_are_unchanged(channel: BlockingChannel, queue: str, size_bytes: int) -> None:
    body = bytes(range(256)) * (size_bytes // 256 + 1)
    body = body[:size_bytes]
    channel.basic_publish("", queue, body, pika.BasicProperties(message_id="m"))
    method, properties, got = channel.basic_get(queue, auto_ack=True)
    assert method is not None
    assert (properties.message_id, len(got)) == ("m", size_bytes)
    assert got == body


def test_messages_with_small_frames_are_unchanged(broker: Any) -> None:
    with pika.BlockingConnection(broker.pika(frame_max=4096)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        body = bytes(range(256)) * 400
        received: list[bytes] = []
        channel.basic_consume(queue, lambda _c, _m, _p, got: received.append(got), auto_ack=True)
        for _ in range(3):
            channel.basic_publish("", queue, body, pika.BasicProperties(headers={"h": "x" * 3000}))
        while len(received) < 3:
            connection.process_data_events(time_limit=1)
        assert received == [body] * 3


def test_many_messages_keep_order(channel: BlockingChannel, queue: str) -> None:
    received = Received(channel)
    channel.basic_consume(queue, received, auto_ack=True)
    send(channel, queue, *(str(n) for n in range(3000)))
    assert received.wait(3000).bodies == [str(n) for n in range(3000)]
    assert [m.delivery_tag for m, _, _ in received] == list(range(1, 3001))


def test_queue_name_with_special_characters(channel: BlockingChannel, unique: Unique) -> None:
    name = unique("sales[eu] grüße/%2F*#")
    channel.queue_declare(name, exclusive=True)
    send(channel, name, "m")
    method, _, body = get(channel, name)
    assert (method.routing_key, body) == (name, "m")


# -- publishing


def test_unroutable_mandatory_message_is_returned(
    connection: pika.BlockingConnection, channel: BlockingChannel, eventually: Eventually
) -> None:
    returned: list[tuple[Any, Any, bytes]] = []
    channel.add_on_return_callback(lambda _c, m, p, b: returned.append((m, p, b)))
    channel.basic_publish("amq.direct", "nowhere", b"body", pika.BasicProperties(message_id="7"), mandatory=True)
    channel.basic_publish("amq.direct", "nowhere", b"dropped")
    eventually(lambda: connection.process_data_events(time_limit=0.05) or returned)
    method, properties, body = returned[0]
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key, properties.message_id, body) == ("amq.direct", "nowhere", "7", b"body")
    assert len(returned) == 1


def test_publishes_are_confirmed_or_returned(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)
    channel.basic_publish("amq.direct", "nowhere", b"unroutable, not mandatory: confirmed")
    assert channel.queue_declare(queue, passive=True).method.message_count == 20
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("amq.direct", "nowhere", b"lost", mandatory=True)
    assert [m.body for m in caught.value.messages] == [b"lost"]
    channel.basic_publish("", queue, b"goes on", mandatory=True)


def test_durable_publishes_are_confirmed(connection: pika.BlockingConnection, unique: Unique) -> None:
    channel = connection.channel()
    queue = unique("durable")
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for size in (0, 10, 200_000):
        channel.basic_publish("", queue, b"x" * size, pika.BasicProperties(delivery_mode=2), mandatory=True)
    assert [len(body) for body in drain(channel, queue)] == [0, 10, 200_000]
    channel.queue_delete(queue)


def test_full_queue_nacks_with_reject_publish(channel: BlockingChannel) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"one")
    with pytest.raises(NackError):  # noqa: PT012 - which one fails is not known
        for _ in range(5):
            channel.basic_publish("", queue, b"too many")
    assert get(channel, queue)[2] == "one"


def test_user_id_and_expiration_are_checked(connection: pika.BlockingConnection, queue: str) -> None:
    for properties, text in (
        ({"user_id": "other"}, "user_id property set to 'other' but authenticated user was 'guest'"),
        ({"expiration": "abc"}, "invalid expiration 'abc': no_integer"),
        ({"expiration": "-1"}, "invalid expiration '-1': {value_negative,-1}"),
    ):
        channel = connection.channel()
        with channel_error(406, f"PRECONDITION_FAILED - {text}"):
            channel.basic_publish("", queue, b"m", pika.BasicProperties(**properties))
            channel.queue_declare("", exclusive=True)


def test_invalid_cc_header_closes_the_channel(connection: pika.BlockingConnection, queue: str) -> None:
    with channel_error(406, 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",signedint}'):
        channel = connection.channel()
        send(channel, queue, "m", headers={"CC": 5})
        channel.queue_declare("", exclusive=True)


def test_cc_and_bcc_add_destinations(channel: BlockingChannel) -> None:
    to, cc, bcc = (channel.queue_declare("", exclusive=True).method.queue for _ in range(3))
    send(channel, to, "m", headers={"CC": [cc, to], "BCC": [bcc], "other": 1})
    for queue in (to, cc, bcc):
        _, properties, body = get(channel, queue)
        assert (properties.headers, body) == ({"CC": [cc, to], "other": 1}, "m")
        assert get(channel, queue) is None


# -- transactions


def test_commit_publishes_and_rollback_undoes_acks(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    other = connection.channel()
    channel.tx_select()
    send(channel, queue, "a", "b")
    assert get(other, queue) is None
    channel.tx_commit()
    method, _, body = get(channel, queue, auto_ack=False)
    assert body == "a"
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)  # unacked again after the rollback
    channel.tx_commit()
    assert drain(other, queue) == ["b"]


def test_rollback_discards_publishes(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    channel.tx_select()
    send(channel, queue, "a")
    channel.tx_rollback()
    channel.tx_commit()
    assert get(connection.channel(), queue) is None


def test_unroutable_message_is_returned_at_commit(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _c, _m, _p, body: returned.append(body))
    channel.tx_select()
    channel.basic_publish("amq.direct", "nowhere", b"m", mandatory=True)
    connection.channel()  # a round trip: no return has arrived yet
    connection.process_data_events(0)
    assert returned == []
    channel.tx_commit()
    connection.process_data_events(0)
    assert returned == [b"m"]


def test_tx_and_confirm_exclude_each_other(connection: pika.BlockingConnection) -> None:
    with channel_error(406, "PRECONDITION_FAILED - channel is not transactional"):
        connection.channel().tx_commit()
    channel = connection.channel()
    channel.tx_select()
    with channel_error(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"):
        channel.confirm_delivery()
    channel = connection.channel()
    channel.confirm_delivery()
    with channel_error(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"):
        channel.tx_select()


# -- direct reply-to


def test_direct_reply_to_delivers_the_reply(connection: pika.BlockingConnection, queue: str) -> None:
    client, server = connection.channel(), connection.channel()

    def answer(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        assert properties.reply_to.startswith("amq.rabbitmq.reply-to.")
        assert properties.correlation_id == "7"
        assert channel.queue_declare(properties.reply_to, passive=True).method.consumer_count == 1
        channel.basic_publish("", properties.reply_to, body.upper(), pika.BasicProperties(correlation_id="7"))

    server.basic_consume(queue, answer, auto_ack=True)
    received = Received(client)
    tag = client.basic_consume("amq.rabbitmq.reply-to", received, auto_ack=True)
    send(client, queue, "question", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    method, properties, body = received.wait(1)[0]
    assert (body, properties.correlation_id, method.exchange, method.consumer_tag) == ("QUESTION", "7", "", tag)


def test_direct_reply_to_misuse_is_refused(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    with channel_error(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"):
        channel.basic_consume("amq.rabbitmq.reply-to", Received(channel))
    channel = connection.channel()
    channel.basic_consume("amq.rabbitmq.reply-to", Received(channel), auto_ack=True)
    with channel_error(406, "PRECONDITION_FAILED - reply consumer already set"):
        channel.basic_consume("amq.rabbitmq.reply-to", Received(channel), auto_ack=True)
    channel = connection.channel()
    with channel_error(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        send(channel, queue, "m", reply_to="amq.rabbitmq.reply-to")
        channel.queue_declare("", exclusive=True)
