"""Partial bodies: refused ones are not stored, and accepted ones are bounded for the whole broker."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import FRAME_MAX, MemoryBroker
from served import Served

MIB = 1 << 20
PAYLOAD = FRAME_MAX - 8


@pytest.fixture
def memory_broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.end()


def publish_header(body_size: int, queue: str = "q", exchange: str = "", channel: int = 1) -> bytes:
    """Return the method and header frames."""
    header = b"\x00\x3c\x00\x00" + body_size.to_bytes(8, "big") + b"\x10\x00\x02"
    method = pamqp.frame.marshal(spec.Basic.Publish(exchange=exchange, routing_key=queue), channel)
    return method + frame(2, channel, header)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def body(size: int, channel: int = 1) -> bytes:
    """Return `size` octets in body frames."""
    frames = []
    while size > 0:
        frames.append(frame(3, channel, bytes(min(size, PAYLOAD))))
        size -= PAYLOAD
    return b"".join(frames)


def client_with_queue(memory_broker: MemoryBroker, channels: int = 1) -> Served:
    client = Served(memory_broker)
    for number in range(1, channels + 1):
        client.send(number, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    client.received()
    return client


class DenyAll:
    """Fake permissions that deny everything."""

    def is_allowed(self, *_: object) -> bool:
        return False

    is_topic_allowed = may_access_vhost = is_allowed


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [403, 404])
def test_refused_body_is_discarded_while_read(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Nothing of the body is stored. Like RabbitMQ, the broker closes the channel when the body is complete."""
    client = client_with_queue(memory_broker)
    if code == 403:
        monkeypatch.setattr(memory_broker.broker, "auth", DenyAll())
    client.transport.data_received(publish_header(8 * MIB, exchange="nosuch" if code == 404 else ""))
    tracemalloc.start()
    for _ in range(8):
        client.transport.data_received(body(MIB - 1))
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < MIB
    assert client.received_names() == []
    assert client.socket.reading
    client.transport.data_received(body(8))
    (close,) = client.received()
    assert (close.method.name, close.method.reply_code) == ("Channel.Close", code)
    assert (close.method.class_id, close.method.method_id) == (60, 40)
    monkeypatch.undo()
    client.send(1, spec.Channel.CloseOk(), spec.Channel.Open())
    client.transport.data_received(publish_header(300_000) + body(300_000))
    assert client.received_names() == ["Channel.OpenOk"]
    assert memory_broker.vhost.queues["q"].ready_count == 1


def test_body_for_exchange_being_declared_is_accepted(memory_broker: MemoryBroker) -> None:
    """The body waits behind the busy channel's declaration and goes to the new exchange."""
    client = client_with_queue(memory_broker)
    client.send(1, spec.Exchange.Declare(exchange="new", exchange_type="fanout", durable=True))
    client.send(1, spec.Queue.Bind(queue="q", exchange="new"))
    client.transport.data_received(publish_header(300_000, exchange="new") + body(200_000))
    assert client.received_names() == ["Exchange.DeclareOk", "Queue.BindOk"]
    client.transport.data_received(body(100_000))
    assert client.received_names() == []
    assert memory_broker.vhost.queues["q"].ready_count == 1


def test_body_for_queue_with_unopened_log_is_accepted(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the first use of a queue opens its log. A large message waits for that like any other."""
    client_with_queue(memory_broker).send(1, spec.Queue.Declare(queue="d", durable=True))
    memory_broker.settle()
    memory_broker.again(clean=True)
    client = client_with_queue(memory_broker)
    monkeypatch.setattr(memory_broker.broker.opener, "open", lambda opening: False)
    client.transport.data_received(publish_header(300_000, "d") + body(200_000))
    client.transport.data_received(body(100_000))
    assert client.received_names() == []
    queue = memory_broker.vhost.queues["d"]
    opening = queue.opening
    while not opening.begin():
        memory_broker.settle()
    opening.end()
    assert client.received_names() == []
    assert queue.ready_count == 1


def test_properties_of_large_body_are_checked(memory_broker: MemoryBroker) -> None:
    """The cached route says nothing of the header, which differs from that of the previous publish."""
    client = client_with_queue(memory_broker)
    client.transport.data_received(publish_header(300_000) + body(300_000))
    expiring = b"\x00\x3c\x00\x00" + (300_000).to_bytes(8, "big") + b"\x01\x00\x03odd"
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1)
    client.transport.data_received(method + frame(2, 1, expiring) + body(300_000))
    (close,) = client.received()
    assert (close.method.name, close.method.reply_code) == ("Channel.Close", 406)


# -- the budget ------------------------------------------------------------------------------------------------------


def reading(clients: list[Served]) -> list[int]:
    clients[0].memory_broker.settle()
    return [number for number, client in enumerate(clients) if client.socket.reading]


def test_beyond_the_limit_only_the_oldest_body_is_read(memory_broker: MemoryBroker) -> None:
    """The other connections and a new body wait. Then the next oldest is read. All messages arrive."""
    bodies = memory_broker.broker.unfinished_bodies
    bodies.limit_bytes = 3 * MIB
    clients = [client_with_queue(memory_broker) for _ in range(5)]
    for client in clients[:4]:
        client.transport.data_received(publish_header(2 * MIB) + body(700_000))
    assert reading(clients) == [0, 1, 2, 3, 4]
    clients[3].transport.data_received(body(700_000))
    assert reading(clients) == [0, 4], "a connection without a partial body is read"
    clients[4].transport.data_received(publish_header(2 * MIB) + body(100_000))
    assert reading(clients) == [0]
    sent_bytes = [700_000, 700_000, 700_000, 1_400_000, 100_000]
    for number in range(5):
        assert number in reading(clients)
        clients[number].transport.data_received(body(2 * MIB - sent_bytes[number]))
        memory_broker.settle()
        assert memory_broker.vhost.queues["q"].ready_count == number + 1
    assert reading(clients) == [0, 1, 2, 3, 4]
    assert (bodies.kept_bytes, len(bodies)) == (0, 0)


def test_closed_connection_frees_its_share(memory_broker: MemoryBroker) -> None:
    """After a lost socket and after a close none of its bytes count, and the next body is read."""
    bodies = memory_broker.broker.unfinished_bodies
    bodies.limit_bytes = MIB
    clients = [client_with_queue(memory_broker) for _ in range(3)]
    for client in clients:
        client.transport.data_received(publish_header(MIB) + body(600_000))
    assert reading(clients) == [0]
    clients[0].transport.connection_lost(None)
    assert 1 in reading(clients)
    clients[1].transport.control.force("test")
    assert 2 in reading(clients)
    assert (bodies.kept_bytes, len(bodies)) == (600_000, 1)
    clients[2].transport.data_received(body(MIB - 600_000))
    assert (bodies.kept_bytes, len(bodies)) == (0, 0)


def test_many_bodies_on_one_connection_are_bounded(memory_broker: MemoryBroker) -> None:
    """The frames are interleaved, so no body can wait: the newest are refused with 311 and the oldest are received."""
    memory_broker.broker.unfinished_bodies.limit_bytes = 2 * MIB
    client = client_with_queue(memory_broker, channels=4)
    for channel in range(1, 5):
        client.transport.data_received(publish_header(MIB, channel=channel))
    for _ in range(10):
        for channel in range(1, 5):
            client.transport.data_received(body(100_000, channel))
    closes = client.received()
    assert [(close.channel, close.method.reply_code) for close in closes] == [(4, 311), (3, 311)]
    assert client.connection.parser.buffered_bytes <= 2 * MIB
    for channel in (1, 2):
        client.transport.data_received(body(MIB - 1_000_000, channel))
    assert client.received_names() == []
    assert memory_broker.vhost.queues["q"].ready_count == 2
    assert memory_broker.broker.unfinished_bodies.kept_bytes == 0


def test_limit_is_at_least_one_largest_message() -> None:
    """The limit holds for any setting and any memory size."""
    memory_broker = MemoryBroker()
    assert memory_broker.broker.unfinished_bodies.limit_bytes >= memory_broker.broker.message_size_max_bytes
    memory_broker.end()


# -- alarms ----------------------------------------------------------------------------------------------------------


def test_alarm_pauses_partial_body(memory_broker: MemoryBroker) -> None:
    client = client_with_queue(memory_broker)
    client.transport.data_received(publish_header(MIB) + body(100_000))
    assert client.socket.reading
    memory_broker.broker.alarms.set_alarm("memory", True)
    client.transport.data_received(body(100_000))
    memory_broker.settle()
    assert not client.socket.reading
    memory_broker.broker.alarms.set_alarm("memory", False)
    memory_broker.settle()
    assert client.socket.reading
    client.transport.data_received(body(MIB - 200_000))
    assert client.received_names() == []
    assert memory_broker.vhost.queues["q"].ready_count == 1


def test_publishes_after_alarm_are_processed_in_order_once(memory_broker: MemoryBroker) -> None:
    """500 publishes in one piece, the first of 200,000 bytes; a command on another channel; two consecutive alarms."""
    publisher, consumer = client_with_queue(memory_broker), client_with_queue(memory_broker)
    publisher.send(1, spec.Confirm.Select(), spec.Queue.Declare(queue="d", durable=True))
    publisher.send(2, spec.Channel.Open())
    publisher.received()
    memory_broker.broker.alarms.set_alarm("memory", True)
    small = [publish_header(6, "d") + frame(3, 1, b"%06d" % number) for number in range(1, 500)]
    whole = publish_header(200_000, "d") + body(200_000) + b"".join(small)
    for start in range(0, len(whole), 100_000):
        publisher.transport.data_received(whole[start : start + 100_000])
    publisher.send(2, spec.Queue.Declare(queue="d", passive=True))
    publisher.send(1, spec.Queue.Declare(queue="d", passive=True))
    assert publisher.received_names() == []
    assert memory_broker.vhost.queues["d"].ready_count == 0
    memory_broker.broker.alarms.set_alarm("memory", False)
    memory_broker.broker.alarms.set_alarm("memory", True)
    assert (publisher.received_names(), memory_broker.vhost.queues["d"].ready_count) == ([], 0)
    memory_broker.broker.alarms.set_alarm("memory", False)
    answers = publisher.received()
    counts = [event.method.message_count for event in answers if event.method.name == "Queue.DeclareOk"]
    assert counts == [500, 500]
    tags = [event.method for event in answers if event.method.name == "Basic.Ack"]
    assert [(tag.delivery_tag, tag.multiple) for tag in tags] == [(500, True)]
    assert publisher.socket.reading
    consumer.send(1, spec.Basic.Get(queue="d", no_ack=True))
    assert consumer.received_names() == ["Basic.GetOk"]
    consumer.send(1, spec.Basic.Consume(queue="d", no_ack=True))
    memory_broker.settle()
    places = [consumer.socket.data.index(b"%06d" % number) for number in range(1, 500)]
    assert places == sorted(places)
