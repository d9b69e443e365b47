"""Commands that wait behind a busy channel: order, bound and cleanup."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_broker import MemoryBroker
from served import MIB, Served, publish_without_body, publishes


@pytest.fixture
def memory_broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.end()


def test_idle_channel_does_not_end_pause_for_unsynced_bytes(memory_broker: MemoryBroker) -> None:
    """Channel 1's declaration is answered while the disk is still behind: the publisher on it stays paused."""
    client = Served(memory_broker)
    client.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
    client.send(2, spec.Channel.Open())
    client.received()
    memory_broker.broker.turn.unsynced_bytes_max = 1000
    memory_broker.storage.commits.unsynced_bytes += 5000  # a slow disk
    client.send(2, spec.Queue.Declare(queue="other", durable=True), spec.Basic.Qos(prefetch_count=1))
    client.transport.data_received(publishes("q", [b"one"]))
    assert not client.socket.reading
    assert client.received_names() == ["Queue.DeclareOk", "Basic.QosOk"]
    assert not client.socket.reading
    memory_broker.storage.commits.unsynced_bytes -= 5000
    memory_broker.broker.turn.committed(memory_broker.storage.commits.generation, [])
    memory_broker.settle()
    assert client.socket.reading


def test_closing_busy_channel_resumes_reading(memory_broker: MemoryBroker) -> None:
    """Closing the channel discards the commands behind its declaration, and the reason not to read."""
    client = Served(memory_broker)
    client.connection.parser.body_size_max = MIB
    client.send(1, spec.Channel.Open())
    client.received()
    client.send(1, spec.Queue.Declare(queue="q", durable=True))
    client.transport.data_received(publishes("q", [bytes(100_000)] * 20))
    client.transport.data_received(publish_without_body(MIB + 1))
    assert not client.socket.reading
    client.send(1, spec.Channel.CloseOk())
    client.received()
    assert client.socket.reading


def test_commands_behind_busy_channel_are_ordered_and_bounded(memory_broker: MemoryBroker) -> None:
    """2 MiB arrive behind a declaration that waits for the disk: reading pauses, resumes, and nothing is lost."""
    client = Served(memory_broker)
    client.send(1, spec.Channel.Open(), spec.Confirm.Select())
    client.received()
    client.send(1, spec.Queue.Declare(queue="q", durable=True))
    bodies = [b"%02d" % number + bytes(100_000) for number in range(20)]
    client.transport.data_received(publishes("q", bodies))
    client.send(1, spec.Basic.Get(queue="q"), spec.Queue.Purge(queue="q"))
    assert not client.socket.reading
    assert client.received_names() == ["Queue.DeclareOk", "Basic.GetOk", "Queue.PurgeOk", "Basic.Ack"]
    assert client.socket.reading
    assert client.connection.pending_commands.deferred_bytes == 0


def test_other_channels_do_not_wait_for_busy_channel(memory_broker: MemoryBroker) -> None:
    client = Served(memory_broker)
    client.send(1, spec.Channel.Open())
    client.send(2, spec.Channel.Open())
    client.received()
    client.send(1, spec.Queue.Declare(queue="q", durable=True), spec.Queue.Declare(queue="q", passive=True))
    client.send(2, spec.Basic.Qos(prefetch_count=1))
    received = [(event.channel, event.method.name) for event in client.received()]
    assert received == [(2, "Basic.QosOk"), (1, "Queue.DeclareOk"), (1, "Queue.DeclareOk")]


def test_failing_busy_channel_resumes_reading(memory_broker: MemoryBroker) -> None:
    """An oversized body is refused at its header while 2 MiB wait behind a declaration; these are discarded."""
    client = Served(memory_broker)
    client.connection.parser.body_size_max = MIB
    client.send(1, spec.Channel.Open())
    client.received()
    client.send(1, spec.Queue.Declare(queue="q", durable=True))
    client.transport.data_received(publishes("q", [bytes(100_000)] * 20))
    assert not client.socket.reading
    client.transport.data_received(publish_without_body(MIB + 1))
    assert client.received_names() == ["Channel.Close"]
    assert client.socket.reading
    assert client.connection.pending_commands.deferred_bytes == 0
    client.send(1, spec.Channel.CloseOk(), spec.Channel.Open(), spec.Queue.Declare(queue="q", passive=True))
    assert client.received_names() == ["Channel.OpenOk", "Queue.DeclareOk"]
    assert memory_broker.vhost.queues["q"].ready_count == 0


def test_close_and_open_behind_busy_channel(memory_broker: MemoryBroker) -> None:
    """Commands sent in one piece are executed in order, even if the client closes the channel in between."""
    client = Served(memory_broker)
    client.send(1, spec.Channel.Open())
    client.received()
    close = spec.Channel.Close(reply_code=200, class_id=0, method_id=0)
    client.send(
        1,
        spec.Queue.Declare(queue="q", durable=True),
        close,
        spec.Channel.Open(),
        spec.Queue.Declare(queue="r", durable=True),
        spec.Queue.Declare(queue="q", passive=True),
    )
    answers = ["Queue.DeclareOk", "Channel.CloseOk", "Channel.OpenOk", "Queue.DeclareOk", "Queue.DeclareOk"]
    assert client.received_names() == answers
    assert client.connection.pending_commands.deferred_bytes == 0


@pytest.mark.parametrize("behind", ["close", "qos", "publish"])
def test_command_behind_close_of_busy_channel_is_channel_error(
    memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture, behind: str
) -> None:
    """The connection closes with 504, as for any channel that is not open, without a traceback."""
    client = Served(memory_broker)
    client.send(1, spec.Channel.Open())
    client.received()
    close = spec.Channel.Close(reply_code=200, class_id=0, method_id=0)
    client.send(1, spec.Queue.Declare(queue="q", durable=True), close)
    if behind == "publish":
        client.transport.data_received(publishes("q", [b"late"]))
    else:
        client.send(1, close if behind == "close" else spec.Basic.Qos(prefetch_count=1))
    *events, last = client.received()
    assert [event.method.name for event in events] == ["Queue.DeclareOk", "Channel.CloseOk"]
    assert (last.method.name, last.method.reply_code) == ("Connection.Close", 504)
    assert not [record for record in caplog.records if record.exc_info]


def test_channel_number_reused_while_old_channel_is_busy(memory_broker: MemoryBroker) -> None:
    """Commands behind the new channel's declaration are neither executed nor discarded by the old channel's."""
    client = Served(memory_broker)
    client.connection.parser.body_size_max = MIB
    client.send(1, spec.Channel.Open())
    client.received()
    client.send(1, spec.Queue.Declare(queue="old", durable=True))
    client.transport.data_received(publish_without_body(MIB + 1))
    client.send(1, spec.Channel.CloseOk(), spec.Channel.Open(), spec.Queue.Declare(queue="new", durable=True))
    client.transport.data_received(publishes("new", [b"waits"]))
    client.send(1, spec.Basic.Get(queue="new"))
    assert client.received_names() == ["Channel.Close", "Channel.OpenOk", "Queue.DeclareOk", "Basic.GetOk"]
