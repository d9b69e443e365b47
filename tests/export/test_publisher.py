"""The sink's AMQP client with a real broker."""

from __future__ import annotations

import pika
import pytest

pytest.importorskip("pyarrow")

from amqpd.protocol import properties as p
from amqpd.storage.export.publisher import PublishError, SinkPublisher, SinkTarget


@pytest.fixture
def queue(amqpd_vhost):
    """Return (target, AMQP URL, name) of a durable queue in a vhost of its own."""
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    connection.channel().queue_declare("q", durable=True)
    connection.close()
    return SinkTarget.from_url(amqpd_vhost.url), amqpd_vhost.url, "q"


def drain(url, queue, count):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    found = []
    for _ in range(count):
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            break
        found.append((method.routing_key, properties, body))
    left = channel.queue_declare(queue, passive=True).method.message_count
    connection.close()
    return found, left


def test_small_window_bounds_unconfirmed_messages(queue):
    target, url, name = queue
    publisher = SinkPublisher(target, window=3)
    for number in range(100):
        publisher.publish("", name, p.NO_PROPERTIES, b"%d" % number)
        assert publisher.published - publisher._confirmed < 3
    assert publisher.finish() == 100
    publisher.close()
    found, left = drain(url, name, 100)
    assert [int(body) for _, _, body in found] == list(range(100))
    assert left == 0


def test_bodies_larger_than_a_frame_and_empty_ones_arrive(queue):
    target, url, name = queue
    bodies = [b"", b"x" * (131072 - 8), b"y" * (131072 - 7), b"z" * 1_000_000]
    publisher = SinkPublisher(target)
    for body in bodies:
        publisher.publish("", name, p.encode_properties(p.Properties(delivery_mode=2, headers={"a": 1})), body)
    publisher.finish()
    publisher.close()
    found, _ = drain(url, name, 4)
    assert [body for _, _, body in found] == bodies
    assert all(properties.headers == {"a": 1} and properties.delivery_mode == 2 for _, properties, _ in found)


def test_unfinished_transaction_publishes_nothing(queue):
    target, url, name = queue
    left = SinkPublisher(target, transaction=True)
    left.publish("", name, p.NO_PROPERTIES, b"never")
    left.close()
    broken = SinkPublisher(target, transaction=True)
    broken.publish("", name, p.NO_PROPERTIES, b"never")
    broken.abandon()
    kept = SinkPublisher(target, transaction=True)
    kept.publish("", name, p.NO_PROPERTIES, b"one")
    kept.publish("", name, p.NO_PROPERTIES, b"two")
    assert kept.finish() == 2
    kept.close()
    assert [body for _, _, body in drain(url, name, 9)[0]] == [b"one", b"two"]


@pytest.mark.parametrize("transaction", [False, True])
def test_unroutable_message_is_an_error(queue, transaction):
    publisher = SinkPublisher(queue[0], transaction=transaction)
    publisher.publish("", "nobody", p.NO_PROPERTIES, b"?")
    with pytest.raises(PublishError, match="routing key 'nobody': 312 NO_ROUTE"):
        publisher.finish()
    publisher.abandon()


def test_unroutable_message_is_no_error_without_mandatory(queue):
    publisher = SinkPublisher(queue[0], mandatory=False)
    publisher.publish("", "nobody", p.NO_PROPERTIES, b"?")
    assert publisher.finish() == 1
    publisher.close()


def test_errors_have_the_broker_s_text(queue):
    target, _, _ = queue
    publisher = SinkPublisher(target)
    publisher.publish("no such exchange", "k", p.NO_PROPERTIES, b"?")
    with pytest.raises(PublishError, match="404 NOT_FOUND - no exchange 'no such exchange'"):
        publisher.finish()
    publisher.abandon()
    with pytest.raises(PublishError, match=r"403 ACCESS_REFUSED"):
        SinkPublisher(SinkTarget(target.host, target.port, "guest", "wrong", target.vhost, secure=False))
    with pytest.raises(PublishError, match="no connection to 127.0.0.1:1"):
        SinkPublisher(SinkTarget("127.0.0.1", 1, "guest", "guest", "/", secure=False))


def test_nack_is_an_error(amqpd_vhost):
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    connection.channel().queue_declare(
        "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    connection.close()
    publisher = SinkPublisher(SinkTarget.from_url(amqpd_vhost.url))
    for _ in range(5):
        publisher.publish("", "full", p.NO_PROPERTIES, b"?")
    with pytest.raises(PublishError, match="basic.nack"):
        publisher.finish()
    publisher.abandon()


def test_amqp_url_is_parsed():
    assert SinkTarget.from_url("amqp://h") == SinkTarget("h", 5672, "guest", "guest", "/", secure=False)
    assert SinkTarget.from_url("amqps://u%40:p%2F@h/a%2Fb") == SinkTarget("h", 5671, "u@", "p/", "a/b", secure=True)
    assert "secret" not in repr(SinkTarget.from_url("amqp://u:secret@h"))
    for bad in ("http://h", "amqp://", "amqp://h/a/b"):
        with pytest.raises(ValueError, match="expected amqp"):
            SinkTarget.from_url(bad)


def test_password_that_is_not_quoted_is_not_in_the_error() -> None:
    for url in ("amqp://u:secret/word@h", "amqp://u:secret#word@h", "amqp://u:secret?word@h"):
        with pytest.raises(ValueError, match="expected amqp://") as caught:
            SinkTarget.from_url(url)
        assert "secret" not in str(caught.value)
