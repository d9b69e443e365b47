"""The transport's guards against calls that asyncio and uvloop do not allow."""

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
from amqpd.connection.transport import LINGER_S, STALL_S, WRITE_HIGH_BYTES, WRITE_LOW_BYTES
from amqpd.listeners import is_loopback


@pytest.fixture
def served() -> Iterator[Served]:
    memory_broker = MemoryBroker()
    yield Served(memory_broker)
    memory_broker.end()


def test_write_after_close_is_dropped(served: Served) -> None:
    served.transport.write(b"one")
    served.socket.closing = True
    served.transport.write(b"two")
    served.transport.connection_lost(None)
    served.transport.write(b"three")
    assert served.socket.data == b"one"


def test_closed_connection_is_read_but_ignored(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing with unread bytes would be a reset, which may cost the peer the close-ok."""
    timers: list[tuple[Any, ...]] = []
    monkeypatch.setattr(served.memory_broker.loop, "call_later", lambda *timer: timers.append(timer))
    served.connection.read_pause.pause(SYNC)
    served.send(0, spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0))
    served.send(0, spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0))
    assert served.received_names() == ["Connection.CloseOk"]
    assert (served.socket.ended, served.socket.closing, served.socket.reading) == (False, False, True)
    ((wait_s, finish),) = timers
    assert wait_s == CLOSE_WAIT_S
    finish()
    served.transport.write(b"late")
    assert served.received_names() == []
    assert (served.socket.ended, served.socket.closing, served.socket.reading) == (True, False, True)
    ((linger_s, end),) = timers[1:]
    assert linger_s == LINGER_S
    end()
    assert (served.socket.closing, served.socket.aborted, len(timers)) == (True, False, 2)


@pytest.mark.parametrize("is_half_closed", [False, True])
def test_closed_connection_whose_client_does_not_read_is_reset(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_half_closed: bool
) -> None:
    """A close waits until all output is sent, so it would wait for ever. A slow client gets its output."""
    timers: list[tuple[Any, ...]] = []
    monkeypatch.setattr(served.memory_broker.loop, "call_later", lambda *timer: timers.append(timer))
    served.socket.unsent_bytes = 1000
    if is_half_closed:
        served.transport.eof_received()
    else:
        served.transport.close()
        ((_, end),) = timers
        end()
    for left in (1000, 500):  # what is left at the next check, and the one after it
        delay_s, check, before = timers[-1]
        assert (delay_s, before, served.socket.aborted) == (STALL_S, left, False)
        served.socket.unsent_bytes = 500
        check(before)
    assert served.socket.aborted


def test_pause_and_resume_are_idempotent(served: Served) -> None:
    served.transport.resume_reading()
    served.transport.pause_reading()
    served.transport.pause_reading()
    assert (served.socket.reading, served.socket.pauses) == (False, 1)
    served.transport.resume_reading()
    served.transport.resume_reading()
    assert served.socket.reading


def test_lost_socket_is_not_called(served: Served) -> None:
    served.transport.connection_lost(ConnectionResetError())
    for step in (
        served.transport.pause_reading,
        served.transport.resume_reading,
        served.transport.close,
        served.transport.abort,
    ):
        step()
    assert (served.socket.pauses, served.socket.closing) == (0, False)


def test_lost_socket_releases_connection(served: Served) -> None:
    """Its consumers, exclusive queues and unacked messages are released; a second release does nothing."""
    served.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="mine", exclusive=True))
    served.send(1, spec.Queue.Declare(queue="q"), spec.Basic.Consume(queue="q", consumer_tag="t"))
    served.received()
    vhost = served.memory_broker.vhost
    assert len(vhost.queues["q"].consumers) == 1
    served.transport.connection_lost(None)
    served.memory_broker.settle()
    assert served.connection.close_handler.state == CLOSED
    assert set(vhost.queues) == {"q"}
    assert vhost.queues["q"].consumers == []
    assert served.memory_broker.connections.by_name == {}
    served.memory_broker.connections.release(served.connection)
    served.memory_broker.settle()
    assert set(vhost.queues) == {"q"}


def test_turn_after_lost_socket_writes_nothing(served: Served) -> None:
    """The socket is lost between a delivery and the end of the loop turn."""
    served.send(1, spec.Channel.Open())
    served.transport.connection_lost(None)
    served.memory_broker.settle()
    assert served.socket.data == b""


def test_write_buffer_limits(served: Served) -> None:
    assert served.socket.limits == (WRITE_HIGH_BYTES, WRITE_LOW_BYTES)


def test_full_socket_parks_consumers_until_writable(served: Served) -> None:
    served.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"), spec.Basic.Consume(queue="q", no_ack=True))
    served.received()
    served.transport.pause_writing()
    other = Served(served.memory_broker)
    other.send(1, spec.Channel.Open(), spec.Basic.Publish(routing_key="q"))
    header: Any = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xce"
    other.transport.data_received(header)
    assert served.received_names() == []
    assert served.memory_broker.vhost.queues["q"].ready_count == 1
    served.transport.resume_writing()
    assert served.received_names() == ["Basic.Deliver"]
    assert served.memory_broker.vhost.queues["q"].ready_count == 0


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("unix", False),
        ("unknown", False),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("fe80::1%eth0", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_is_loopback(host: str, loopback: bool) -> None:
    """The user guest may log in from loopback only. A string that is no address is not loopback."""
    assert is_loopback(host) is loopback


def test_connection_name() -> None:
    """RabbitMQ: `peer:port -> local:port`, IPv6 in brackets so that the port is unambiguous."""
    memory_broker = MemoryBroker()
    served = Served(memory_broker)
    raw: Any = Socket(("::1", 40000))
    served.transport.connection_made(raw)
    assert served.transport.connection.name == "[::1]:40000 -> 127.0.0.1:5672"
    assert served.transport.peer_is_loopback
    memory_broker.end()


def test_peer_without_an_address_is_not_loopback() -> None:
    """The client has reset the connection before it was accepted: its name is unknown, its data arrives."""
    memory_broker = MemoryBroker()
    served = Served(memory_broker)
    raw: Any = Socket()
    raw.peer = None
    served.transport.connection_made(raw)
    assert served.transport.connection.name == "unknown:0 -> 127.0.0.1:5672"
    assert not served.transport.peer_is_loopback
    memory_broker.end()
