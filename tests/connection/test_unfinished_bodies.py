"""Bodies on their way: what is refused is not kept, and what is kept is bounded for the whole broker."""

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
def house() -> Iterator[MemoryBroker]:
    made = MemoryBroker()
    yield made
    made.end()


def begin(body_size: int, queue: str = "q", exchange: str = "", channel: int = 1) -> bytes:
    """Method and header."""
    header = b"\x00\x3c\x00\x00" + body_size.to_bytes(8, "big") + b"\x10\x00\x02"
    method = pamqp.frame.marshal(spec.Basic.Publish(exchange=exchange, routing_key=queue), channel)
    return method + frame(2, channel, header)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def body(size: int, channel: int = 1) -> bytes:
    """So many octets, in frames."""
    frames = []
    while size > 0:
        frames.append(frame(3, channel, bytes(min(size, PAYLOAD))))
        size -= PAYLOAD
    return b"".join(frames)


def client_of(house: MemoryBroker, channels: int = 1) -> Served:
    client = Served(house)
    for number in range(1, channels + 1):
        client.say(number, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    client.heard()
    return client


class Denies:
    """May nothing."""

    def is_allowed(self, *_: object) -> bool:
        return False

    is_topic_allowed = may_access_vhost = is_allowed


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [403, 404])
def test_a_refused_body_is_read_over(house: MemoryBroker, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Nothing of it is kept, and the channel is closed when it is complete, as RabbitMQ closes it."""
    client = client_of(house)
    if code == 403:
        monkeypatch.setattr(house.broker, "auth", Denies())
    client.transport.data_received(begin(8 * MIB, exchange="nosuch" if code == 404 else ""))
    tracemalloc.start()
    for _ in range(8):
        client.transport.data_received(body(MIB - 1))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < MIB
    assert client.names() == []
    assert client.socket.reading
    client.transport.data_received(body(8))
    (close,) = client.heard()
    assert (close.method.name, close.method.reply_code) == ("Channel.Close", code)
    assert (close.method.class_id, close.method.method_id) == (60, 40)
    monkeypatch.undo()
    client.say(1, spec.Channel.CloseOk(), spec.Channel.Open())
    client.transport.data_received(begin(300_000) + body(300_000))
    assert client.names() == ["Channel.OpenOk"]
    assert house.vhost.queues["q"].ready_count == 1


def test_an_exchange_that_is_being_declared_is_no_refusal(house: MemoryBroker) -> None:
    """What the busy channel waits for is what the body goes to."""
    client = client_of(house)
    client.say(1, spec.Exchange.Declare(exchange="new", exchange_type="fanout", durable=True))
    client.say(1, spec.Queue.Bind(queue="q", exchange="new"))
    client.transport.data_received(begin(300_000, exchange="new") + body(200_000))
    assert client.names() == ["Exchange.DeclareOk", "Queue.BindOk"]
    client.transport.data_received(body(100_000))
    assert client.names() == []
    assert house.vhost.queues["q"].ready_count == 1


def test_a_queue_whose_log_is_not_open_yet_is_no_refusal(house: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start the first who asks for a queue has its log opened: a large message waits for it like any other."""
    client_of(house).say(1, spec.Queue.Declare(queue="d", durable=True))
    house.settle()
    house.again(clean=True)
    client = client_of(house)
    monkeypatch.setattr(house.broker.opener, "open", lambda opening: False)
    client.transport.data_received(begin(300_000, "d") + body(200_000))
    client.transport.data_received(body(100_000))
    assert client.names() == []
    queue = house.vhost.queues["d"]
    opening = queue.opening
    while not opening.begin():
        house.settle()
    opening.end()
    assert client.names() == []
    assert queue.ready_count == 1


def test_the_properties_of_a_large_body_are_looked_at(house: MemoryBroker) -> None:
    """Its route is known from the method; that says nothing of the header, which is another one than before."""
    client = client_of(house)
    client.transport.data_received(begin(300_000) + body(300_000))
    expiring = b"\x00\x3c\x00\x00" + (300_000).to_bytes(8, "big") + b"\x01\x00\x03odd"
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1)
    client.transport.data_received(method + frame(2, 1, expiring) + body(300_000))
    (close,) = client.heard()
    assert (close.method.name, close.method.reply_code) == ("Channel.Close", 406)


# -- the budget ------------------------------------------------------------------------------------------------------


def reading(clients: list[Served]) -> list[int]:
    clients[0].house.settle()
    return [number for number, client in enumerate(clients) if client.socket.reading]


def test_beyond_the_budget_the_oldest_is_read_to_its_end(house: MemoryBroker) -> None:
    """The others wait, and so does one that begins; then the next oldest has its turn. All come through."""
    bodies = house.broker.unfinished_bodies
    bodies.limit_bytes = 3 * MIB
    clients = [client_of(house) for _ in range(5)]
    for client in clients[:4]:
        client.transport.data_received(begin(2 * MIB) + body(700_000))
    assert reading(clients) == [0, 1, 2, 3, 4]
    clients[3].transport.data_received(body(700_000))
    assert reading(clients) == [0, 4], "who is in the midst of no body is read"
    clients[4].transport.data_received(begin(2 * MIB) + body(100_000))
    assert reading(clients) == [0]
    kept = [700_000, 700_000, 700_000, 1_400_000, 100_000]
    for number in range(5):
        assert number in reading(clients)
        clients[number].transport.data_received(body(2 * MIB - kept[number]))
        house.settle()
        assert house.vhost.queues["q"].ready_count == number + 1
    assert reading(clients) == [0, 1, 2, 3, 4]
    assert (bodies.kept_bytes, len(bodies)) == (0, 0)


def test_one_that_goes_gives_its_share_back(house: MemoryBroker) -> None:
    """By a lost socket, and by a close: nothing of its bodies stays, and the next one is read."""
    bodies = house.broker.unfinished_bodies
    bodies.limit_bytes = MIB
    clients = [client_of(house) for _ in range(3)]
    for client in clients:
        client.transport.data_received(begin(MIB) + body(600_000))
    assert reading(clients) == [0]
    clients[0].transport.connection_lost(None)
    assert 1 in reading(clients)
    clients[1].transport.control.force("test")
    assert 2 in reading(clients)
    assert (bodies.kept_bytes, len(bodies)) == (600_000, 1)
    clients[2].transport.data_received(body(MIB - 600_000))
    assert (bodies.kept_bytes, len(bodies)) == (0, 0)


def test_one_connection_with_many_bodies_is_bounded_too(house: MemoryBroker) -> None:
    """Their frames are mixed, so none can wait: the last that began is refused by 311, the first comes through."""
    house.broker.unfinished_bodies.limit_bytes = 2 * MIB
    client = client_of(house, channels=4)
    for channel in range(1, 5):
        client.transport.data_received(begin(MIB, channel=channel))
    for _ in range(10):
        for channel in range(1, 5):
            client.transport.data_received(body(100_000, channel))
    closes = client.heard()
    assert [(close.channel, close.method.reply_code) for close in closes] == [(4, 311), (3, 311)]
    assert client.connection.parser.buffered_bytes <= 2 * MIB
    for channel in (1, 2):
        client.transport.data_received(body(MIB - 1_000_000, channel))
    assert client.names() == []
    assert house.vhost.queues["q"].ready_count == 2
    assert house.broker.unfinished_bodies.kept_bytes == 0


def test_the_budget_holds_one_message_of_the_largest_size() -> None:
    """Whatever the setting says, or how little memory there is."""
    house = MemoryBroker()
    assert house.broker.unfinished_bodies.limit_bytes >= house.broker.message_size_max_bytes
    house.end()


# -- alarms ----------------------------------------------------------------------------------------------------------


def test_a_body_on_its_way_is_not_read_on_in_an_alarm(house: MemoryBroker) -> None:
    client = client_of(house)
    client.transport.data_received(begin(MIB) + body(100_000))
    assert client.socket.reading
    house.broker.alarms.set_alarm("memory", True)
    client.transport.data_received(body(100_000))
    house.settle()
    assert not client.socket.reading
    house.broker.alarms.set_alarm("memory", False)
    house.settle()
    assert client.socket.reading
    client.transport.data_received(body(MIB - 200_000))
    assert client.names() == []
    assert house.vhost.queues["q"].ready_count == 1


def test_what_an_alarm_kept_back_goes_on_in_order_and_once(house: MemoryBroker) -> None:
    """500 publishes in one piece, the first of 200,000 bytes; a publish on another channel; two alarms, one by one."""
    publisher, consumer = client_of(house), client_of(house)
    publisher.say(1, spec.Confirm.Select(), spec.Queue.Declare(queue="d", durable=True))
    publisher.say(2, spec.Channel.Open())
    publisher.heard()
    house.broker.alarms.set_alarm("memory", True)
    small = [begin(6, "d") + frame(3, 1, b"%06d" % number) for number in range(1, 500)]
    whole = begin(200_000, "d") + body(200_000) + b"".join(small)
    for start in range(0, len(whole), 100_000):
        publisher.transport.data_received(whole[start : start + 100_000])
    publisher.say(2, spec.Queue.Declare(queue="d", passive=True))
    publisher.say(1, spec.Queue.Declare(queue="d", passive=True))
    assert publisher.names() == []
    assert house.vhost.queues["d"].ready_count == 0
    house.broker.alarms.set_alarm("memory", False)
    house.broker.alarms.set_alarm("memory", True)
    assert (publisher.names(), house.vhost.queues["d"].ready_count) == ([], 0)
    house.broker.alarms.set_alarm("memory", False)
    answers = publisher.heard()
    counts = [event.method.message_count for event in answers if event.method.name == "Queue.DeclareOk"]
    assert counts == [500, 500]
    tags = [event.method for event in answers if event.method.name == "Basic.Ack"]
    assert [(tag.delivery_tag, tag.multiple) for tag in tags] == [(500, True)]
    assert publisher.socket.reading
    consumer.say(1, spec.Basic.Get(queue="d", no_ack=True))
    assert consumer.names() == ["Basic.GetOk"]
    consumer.say(1, spec.Basic.Consume(queue="d", no_ack=True))
    house.settle()
    places = [consumer.socket.data.index(b"%06d" % number) for number in range(1, 500)]
    assert places == sorted(places)
