"""Commands behind a busy channel: their order, their bound, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_broker import MemoryBroker
from served import MIB, Served, begun_publish, publishes


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    made = MemoryBroker()
    yield made
    made.end()


def test_a_busy_channel_releases_only_what_it_held_itself(house: MemoryBroker) -> None:
    """Its declaration is answered while the disk is as far behind as before: the publisher beside it waits on."""
    client = Served(house)
    client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
    client.say(2, spec.Channel.Open())
    client.heard()
    house.broker.turn.unsynced_bytes_max = 1000
    house.storage.commits.unsynced_bytes += 5000  # a slow disk
    client.say(2, spec.Queue.Declare(queue="other", durable=True), spec.Basic.Qos(prefetch_count=1))
    client.transport.data_received(publishes("q", [b"one"]))
    assert not client.socket.reading
    assert client.names() == ["Queue.DeclareOk", "Basic.QosOk"]
    assert not client.socket.reading
    house.storage.commits.unsynced_bytes -= 5000
    house.broker.turn.committed(house.storage.commits.generation, [])
    house.settle()
    assert client.socket.reading


def test_a_busy_channel_that_is_closed_leaves_no_hold_behind(house: MemoryBroker) -> None:
    """What waited behind its declaration goes with the channel, and so does the reason not to read."""
    client = Served(house)
    client.connection.parser.body_size_max = MIB
    client.say(1, spec.Channel.Open())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="q", durable=True))
    client.transport.data_received(publishes("q", [bytes(100_000)] * 20))
    client.transport.data_received(begun_publish(MIB + 1))
    assert not client.socket.reading
    client.say(1, spec.Channel.CloseOk())
    client.heard()
    assert client.socket.reading


def test_a_busy_channel_keeps_the_order_and_a_bound(house: MemoryBroker) -> None:
    """Behind a declaration that waits for the disk 2 MiB arrive: reading stops, nothing is lost, reading goes on."""
    client = Served(house)
    client.say(1, spec.Channel.Open(), spec.Confirm.Select())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="q", durable=True))
    bodies = [b"%02d" % number + bytes(100_000) for number in range(20)]
    client.transport.data_received(publishes("q", bodies))
    client.say(1, spec.Basic.Get(queue="q"), spec.Queue.Purge(queue="q"))
    assert not client.socket.reading
    assert client.names() == ["Queue.DeclareOk", "Basic.GetOk", "Queue.PurgeOk", "Basic.Ack"]
    assert client.socket.reading
    assert client.connection.pending_commands.deferred_bytes == 0


def test_other_channels_do_not_wait_for_a_busy_one(house: MemoryBroker) -> None:
    client = Served(house)
    client.say(1, spec.Channel.Open())
    client.say(2, spec.Channel.Open())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="q", durable=True), spec.Queue.Declare(queue="q", passive=True))
    client.say(2, spec.Basic.Qos(prefetch_count=1))
    heard = [(event.channel, event.method.name) for event in client.heard()]
    assert heard == [(2, "Basic.QosOk"), (1, "Queue.DeclareOk"), (1, "Queue.DeclareOk")]


def test_a_channel_that_fails_while_it_is_busy_holds_nobody(house: MemoryBroker) -> None:
    """A body that is too large is told at its header, while 2 MiB wait behind a declaration: those go."""
    client = Served(house)
    client.connection.parser.body_size_max = MIB
    client.say(1, spec.Channel.Open())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="q", durable=True))
    client.transport.data_received(publishes("q", [bytes(100_000)] * 20))
    assert not client.socket.reading
    client.transport.data_received(begun_publish(MIB + 1))
    assert client.names() == ["Channel.Close"]
    assert client.socket.reading
    assert client.connection.pending_commands.deferred_bytes == 0
    client.say(1, spec.Channel.CloseOk(), spec.Channel.Open(), spec.Queue.Declare(queue="q", passive=True))
    assert client.names() == ["Channel.OpenOk", "Queue.DeclareOk"]
    assert house.vhost.queues["q"].ready_count == 0


def test_close_and_open_behind_a_busy_channel(house: MemoryBroker) -> None:
    """A client that sends all at once is obeyed in order, also where it closes the channel in between."""
    client = Served(house)
    client.say(1, spec.Channel.Open())
    client.heard()
    close = spec.Channel.Close(reply_code=200, class_id=0, method_id=0)
    client.say(
        1,
        spec.Queue.Declare(queue="q", durable=True),
        close,
        spec.Channel.Open(),
        spec.Queue.Declare(queue="r", durable=True),
        spec.Queue.Declare(queue="q", passive=True),
    )
    answers = ["Queue.DeclareOk", "Channel.CloseOk", "Channel.OpenOk", "Queue.DeclareOk", "Queue.DeclareOk"]
    assert client.names() == answers
    assert client.connection.pending_commands.deferred_bytes == 0


@pytest.mark.parametrize("behind", ["close", "qos", "publish"])
def test_what_stands_behind_a_close_on_a_busy_channel(
    house: MemoryBroker, caplog: pytest.LogCaptureFixture, behind: str
) -> None:
    """504 as on any channel that is not open, and no traceback."""
    client = Served(house)
    client.say(1, spec.Channel.Open())
    client.heard()
    close = spec.Channel.Close(reply_code=200, class_id=0, method_id=0)
    client.say(1, spec.Queue.Declare(queue="q", durable=True), close)
    if behind == "publish":
        client.transport.data_received(publishes("q", [b"late"]))
    else:
        client.say(1, close if behind == "close" else spec.Basic.Qos(prefetch_count=1))
    *events, last = client.heard()
    assert [event.method.name for event in events] == ["Queue.DeclareOk", "Channel.CloseOk"]
    assert (last.method.name, last.method.reply_code) == ("Connection.Close", 504)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_channel_number_taken_again_while_the_old_one_waits(house: MemoryBroker) -> None:
    """What waits for the new channel's declaration is not worked off, nor forgotten, by the old one's."""
    client = Served(house)
    client.connection.parser.body_size_max = MIB
    client.say(1, spec.Channel.Open())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="old", durable=True))
    client.transport.data_received(begun_publish(MIB + 1))
    client.say(1, spec.Channel.CloseOk(), spec.Channel.Open(), spec.Queue.Declare(queue="new", durable=True))
    client.transport.data_received(publishes("new", [b"waits"]))
    client.say(1, spec.Basic.Get(queue="new"))
    assert client.names() == ["Channel.Close", "Channel.OpenOk", "Queue.DeclareOk", "Basic.GetOk"]
