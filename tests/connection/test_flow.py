"""What holds publishers back, and what lets them go: unsynced bytes, alarms, wide publishes."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import MemoryBroker
from served import Served, publishes

from amqpd.connection.pending_commands import OFFERS_MAX
from amqpd.connection.read_pause import ALARM, SHARING, SYNC


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    made = MemoryBroker()
    yield made
    made.end()


def test_a_publisher_is_held_a_consumer_is_not(house: MemoryBroker) -> None:
    publisher, consumer = Served(house), Served(house)
    for client in (publisher, consumer):
        client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
        client.heard()
    turn = house.broker.turn
    turn.unsynced_bytes_max = 1000
    house.storage.commits.unsynced_bytes += 5000  # a slow disk
    publisher.transport.data_received(publishes("q", [b"one"]))
    consumer.say(1, spec.Basic.Consume(queue="q", no_ack=True))
    assert not publisher.socket.reading
    assert consumer.socket.reading
    assert consumer.names() == ["Basic.ConsumeOk", "Basic.Deliver"]
    assert not publisher.socket.reading, "released although the disk is as far behind as before"
    house.storage.commits.unsynced_bytes -= 5000
    consumer.say(1, spec.Queue.Declare(queue="other", durable=True))
    consumer.transport.data_received(publishes("other", [b"two"]))  # its commit brings the news
    assert consumer.names() == ["Queue.DeclareOk"]
    assert publisher.socket.reading
    assert not publisher.connection.read_pause.is_set(SYNC)


def test_publishers_are_held_while_what_is_published_again_fills_memory(house: MemoryBroker) -> None:
    publisher, consumer = Served(house), Served(house)
    for client in (publisher, consumer):
        client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
        client.heard()
    turn = house.broker.turn
    turn.is_republisher_full = True
    publisher.transport.data_received(publishes("q", [b"one"]))
    consumer.say(1, spec.Basic.Consume(queue="q", no_ack=True))
    assert consumer.names() == ["Basic.ConsumeOk", "Basic.Deliver"]
    turn.resume_paused()
    house.settle()
    assert not publisher.socket.reading
    assert consumer.socket.reading
    turn.is_republisher_full = False
    turn.resume_paused()
    house.settle()
    assert publisher.socket.reading


def test_a_held_connection_that_ends_is_no_trouble(house: MemoryBroker) -> None:
    publisher = Served(house)
    publisher.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
    publisher.heard()
    house.broker.turn.unsynced_bytes_max = 1000
    house.storage.commits.unsynced_bytes += 5000
    publisher.transport.data_received(publishes("q", [b"one"]))
    publisher.transport.connection_lost(None)
    house.storage.commits.unsynced_bytes -= 5000
    other = Served(house)
    other.say(1, spec.Channel.Open())
    other.transport.data_received(publishes("q", [b"two"]))
    house.settle()
    assert house.vhost.queues["q"].ready_count == 2
    assert not publisher.socket.reading


# -- alarms ----------------------------------------------------------------------------------------------------------


def publisher_of(house: MemoryBroker, **capabilities: bool) -> Served:
    client = Served(house, **capabilities)
    client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    client.heard()
    return client


def test_an_alarm_blocks_at_the_next_publish(house: MemoryBroker) -> None:
    """It waits, with all that comes behind it; who does not publish is left alone; connection.blocked says why."""
    publisher, consumer = publisher_of(house, connection_blocked=True), publisher_of(house, connection_blocked=True)
    house.broker.alarms.set_alarm("disk", True)
    assert publisher.names() == []
    publisher.transport.data_received(publishes("q", [b"one", b"two"]))
    consumer.say(1, spec.Basic.Consume(queue="q", no_ack=True))
    blocked = publisher.heard()
    assert [(event.channel, event.method.name, event.method.reason) for event in blocked] == [
        (0, "Connection.Blocked", "low on disk")
    ]
    assert not publisher.socket.reading
    assert consumer.names() == ["Basic.ConsumeOk"]
    assert consumer.socket.reading
    house.broker.alarms.set_alarm("disk", False)
    assert publisher.names() == ["Connection.Unblocked"]
    assert publisher.socket.reading
    assert consumer.names() == ["Basic.Deliver", "Basic.Deliver"]


def test_a_message_without_a_body_passes_an_alarm(house: MemoryBroker) -> None:
    """As RabbitMQ takes it; the connection is blocked by it all the same."""
    publisher = publisher_of(house, connection_blocked=True)
    house.broker.alarms.set_alarm("memory", True)
    empty = publishes("q", [b""])[:-8]
    publisher.transport.data_received(empty + publishes("q", [b"one"]) + empty)
    assert publisher.names() == ["Connection.Blocked"]
    assert house.vhost.queues["q"].ready_count == 1
    house.broker.alarms.set_alarm("memory", False)
    assert publisher.names() == ["Connection.Unblocked"]
    assert house.vhost.queues["q"].ready_count == 3


def test_an_alarm_while_a_channel_is_busy(house: MemoryBroker) -> None:
    """What waited behind its declaration meets the alarm when it is worked off, and keeps its place."""
    client = publisher_of(house)
    client.say(1, spec.Queue.Declare(queue="d", durable=True))
    client.transport.data_received(publishes("d", [b"one", b"two"]))
    client.say(1, spec.Queue.Declare(queue="d", passive=True), spec.Basic.Get(queue="d"), spec.Queue.Purge(queue="d"))
    house.broker.alarms.set_alarm("disk", True)
    assert client.names() == ["Queue.DeclareOk"]
    house.broker.alarms.set_alarm("disk", False)
    answers = client.heard()
    assert [event.method.name for event in answers] == ["Queue.DeclareOk", "Basic.GetOk", "Queue.PurgeOk"]
    assert answers[0].method.message_count == 2
    assert client.connection.pending_commands.deferred_bytes == 0


def test_acks_of_a_consumer_pass_an_alarm(house: MemoryBroker) -> None:
    """They are what ends it."""
    client = publisher_of(house)
    client.transport.data_received(publishes("q", [b"one"]))
    client.say(1, spec.Basic.Get(queue="q"))
    house.settle()
    house.broker.alarms.set_alarm("memory", True)
    client.say(1, spec.Basic.Ack(delivery_tag=1), spec.Basic.Get(queue="q"))
    assert client.names() == ["Basic.GetOk", "Basic.GetEmpty"]
    assert client.connection.channels.by_number[1].deliveries.unacked.count() == 0


def test_both_alarms_have_to_end(house: MemoryBroker) -> None:
    publisher = publisher_of(house, connection_blocked=True)
    house.broker.alarms.set_alarm("memory", True)
    house.broker.alarms.set_alarm("disk", True)
    publisher.transport.data_received(publishes("q", [b"one"]))
    assert publisher.names() == ["Connection.Blocked"]
    house.broker.alarms.set_alarm("memory", False)
    assert (publisher.names(), publisher.socket.reading) == ([], False)
    house.broker.alarms.set_alarm("disk", False)
    assert (publisher.names(), publisher.socket.reading) == (["Connection.Unblocked"], True)
    publisher.transport.data_received(publishes("q", [b"two"]))
    assert (publisher.names(), publisher.socket.reading) == ([], True)


def test_a_client_that_cannot_be_told_is_held_all_the_same(house: MemoryBroker) -> None:
    publisher = publisher_of(house)
    house.broker.alarms.set_alarm("memory", True)
    publisher.transport.data_received(publishes("q", [b"one"]))
    assert (publisher.names(), publisher.socket.reading) == ([], False)
    house.broker.alarms.set_alarm("memory", False)
    assert (publisher.names(), publisher.socket.reading) == ([], True)


def test_two_reasons_to_hold_one_connection(house: MemoryBroker) -> None:
    """It reads again when both the alarm is over and the disk has caught up, in either order."""
    for alarm_first in (True, False):
        publisher = publisher_of(house)
        house.broker.turn.unsynced_bytes_max = 1000
        house.storage.commits.unsynced_bytes += 5000
        house.broker.alarms.set_alarm("disk", True)
        publisher.transport.data_received(publishes("q", [b"one"]))
        assert publisher.connection.read_pause.is_set(SYNC)
        assert publisher.connection.read_pause.is_set(ALARM)

        def alarm_over() -> None:
            house.broker.alarms.set_alarm("disk", False)

        def disk_caught_up() -> None:
            house.storage.commits.unsynced_bytes -= 5000
            house.broker.turn.committed(house.storage.commits.generation, [])

        steps = [alarm_over, disk_caught_up]
        for number, step in enumerate(steps if alarm_first else steps[::-1]):
            step()
            house.settle()
            assert publisher.socket.reading == (number == 1)


def test_a_read_of_wide_publishes_is_worked_off_in_slices(house: MemoryBroker) -> None:
    """One read may mean minutes of work (Bug19219Test of RabbitMQ's Java client): the others go on meanwhile."""
    served = Served(house)
    names = [f"q{number}" for number in range(100)]
    served.say(1, spec.Channel.Open())
    for name in names:
        served.say(1, spec.Queue.Declare(queue=name), spec.Queue.Bind(queue=name, exchange="amq.fanout"))
    served.heard()
    header = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00\xce"
    publish = pamqp.frame.marshal(spec.Basic.Publish(exchange="amq.fanout"), 1) + header
    served.transport.data_received(publish * 500)
    vhost = served.house.vhost
    assert OFFERS_MAX < 100 * vhost.queues["q0"].ready_count < 2 * OFFERS_MAX
    assert served.connection.read_pause.is_set(SHARING) and not served.socket.reading
    served.heard()
    assert {vhost.queues[name].ready_count for name in names} == {500}
    assert not served.connection.read_pause.is_set(SHARING) and served.socket.reading
