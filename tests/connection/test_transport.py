"""The transport's guards: what asyncio and uvloop do not forgive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pamqp.commands as spec
import pytest
from memory_broker import MemoryBroker
from served import Served, Socket

from amqpd.connection.channel_zero import CLOSE_WAIT_S
from amqpd.connection.close_handler import CLOSED
from amqpd.connection.read_pause import SYNC
from amqpd.connection.transport import LINGER_S, WRITE_HIGH_BYTES, WRITE_LOW_BYTES
from amqpd.listeners import is_loopback


@pytest.fixture
def served() -> Iterator[Served]:
    house = MemoryBroker()
    yield Served(house)
    house.end()


def test_a_write_after_the_end_is_dropped(served: Served) -> None:
    served.transport.write(b"one")
    served.socket.closing = True
    served.transport.write(b"two")
    served.transport.connection_lost(None)
    served.transport.write(b"three")
    assert served.socket.data == b"one"


def test_a_finished_connection_is_read_on_and_heard_no_more(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close over unread bytes is a reset, which may cost the peer the close-ok before it."""
    timers: list[tuple[Any, ...]] = []
    monkeypatch.setattr(served.house.loop, "call_later", lambda *timer: timers.append(timer))
    served.connection.read_pause.pause(SYNC)
    served.say(0, spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0))
    served.say(0, spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0))
    assert served.names() == ["Connection.CloseOk"]
    assert (served.socket.ended, served.socket.closing, served.socket.reading) == (False, False, True)
    ((wait_s, finish),) = timers
    assert wait_s == CLOSE_WAIT_S
    finish()
    served.transport.write(b"late")
    assert served.names() == []
    assert (served.socket.ended, served.socket.closing, served.socket.reading) == (True, False, True)
    assert timers[1:] == [(LINGER_S, served.socket.close)]


def test_pause_and_resume_are_idempotent(served: Served) -> None:
    served.transport.resume_reading()
    served.transport.pause_reading()
    served.transport.pause_reading()
    assert (served.socket.reading, served.socket.pauses) == (False, 1)
    served.transport.resume_reading()
    served.transport.resume_reading()
    assert served.socket.reading


def test_nothing_is_asked_of_a_socket_that_is_gone(served: Served) -> None:
    served.transport.connection_lost(ConnectionResetError())
    for step in (
        served.transport.pause_reading,
        served.transport.resume_reading,
        served.transport.close,
        served.transport.abort,
    ):
        step()
    assert (served.socket.pauses, served.socket.closing) == (0, False)


def test_the_end_of_the_socket_is_the_end_of_the_connection(served: Served) -> None:
    """Its consumers, exclusive queues and unacked messages are let go; a second end does nothing."""
    served.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="mine", exclusive=True))
    served.say(1, spec.Queue.Declare(queue="q"), spec.Basic.Consume(queue="q", consumer_tag="t"))
    served.heard()
    vhost = served.house.vhost
    assert len(vhost.queues["q"].consumers) == 1
    served.transport.connection_lost(None)
    served.house.settle()
    assert served.connection.close_handler.state == CLOSED
    assert set(vhost.queues) == {"q"}
    assert vhost.queues["q"].consumers == []
    assert served.house.connections.by_name == {}
    served.house.connections.release(served.connection)
    served.house.settle()
    assert set(vhost.queues) == {"q"}


def test_a_turn_after_the_end_writes_nothing(served: Served) -> None:
    """The socket goes between a delivery and the end of the loop's turn."""
    served.say(1, spec.Channel.Open())
    served.transport.connection_lost(None)
    served.house.settle()
    assert served.socket.data == b""


def test_the_buffer_has_bounds(served: Served) -> None:
    assert served.socket.limits == (WRITE_HIGH_BYTES, WRITE_LOW_BYTES)


def test_a_full_socket_parks_the_consumers_and_room_wakes_them(served: Served) -> None:
    served.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"), spec.Basic.Consume(queue="q", no_ack=True))
    served.heard()
    served.transport.pause_writing()
    other = Served(served.house)
    other.say(1, spec.Channel.Open(), spec.Basic.Publish(routing_key="q"))
    header: Any = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xce"
    other.transport.data_received(header)
    assert served.names() == []
    assert served.house.vhost.queues["q"].ready_count == 1
    served.transport.resume_writing()
    assert served.names() == ["Basic.Deliver"]
    assert served.house.vhost.queues["q"].ready_count == 0


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("unix", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("fe80::1%eth0", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    """guest may come from here only, so what is no address is not here."""
    assert is_loopback(host) is loopback


def test_names_of_connections() -> None:
    """rabbit: `peer:port -> local:port`; IPv6 in brackets, so that the port can be told."""
    house = MemoryBroker()
    served = Served(house)
    raw: Any = Socket(("::1", 40000))
    served.transport.connection_made(raw)
    assert served.transport.connection.name == "[::1]:40000 -> 127.0.0.1:5672"
    assert served.transport.peer_is_loopback
    house.end()
