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

    def may(self, *_: object) -> bool:
        return False

    may_topic = may_access_vhost = may


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


def test_the_properties_of_a_large_body_are_looked_at(house: MemoryBroker) -> None:
    """Its route is known from the method; that says nothing of the header, which is another one than before."""
    client = client_of(house)
    client.transport.data_received(begin(300_000) + body(300_000))
    expiring = b"\x00\x3c\x00\x00" + (300_000).to_bytes(8, "big") + b"\x01\x00\x03odd"
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1)
    client.transport.data_received(method + frame(2, 1, expiring) + body(300_000))
    (close,) = client.heard()
    assert (close.method.name, close.method.reply_code) == ("Channel.Close", 406)
