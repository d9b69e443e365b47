"""Reasons that pause publishers and how they end: unsynced bytes, alarms, wide publishes."""

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
def memory_broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.end()


def test_unsynced_bytes_pause_publisher_but_not_consumer(memory_broker: MemoryBroker) -> None:
    publisher, consumer = Served(memory_broker), Served(memory_broker)
    for client in (publisher, consumer):
        client.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
        client.received()
    turn = memory_broker.broker.turn
    turn.unsynced_bytes_max = 1000
    memory_broker.storage.commits.unsynced_bytes += 5000  # a slow disk
    publisher.transport.data_received(publishes("q", [b"one"]))
    consumer.send(1, spec.Basic.Consume(queue="q", no_ack=True))
    assert not publisher.socket.reading
    assert consumer.socket.reading
    assert consumer.received_names() == ["Basic.ConsumeOk", "Basic.Deliver"]
    assert not publisher.socket.reading, "resumed although the disk is still behind"
    memory_broker.storage.commits.unsynced_bytes -= 5000
    consumer.send(1, spec.Queue.Declare(queue="other", durable=True))
    consumer.transport.data_received(publishes("other", [b"two"]))  # its commit ends the pause
    assert consumer.received_names() == ["Queue.DeclareOk"]
    assert publisher.socket.reading
    assert not publisher.connection.read_pause.is_set(SYNC)


def test_full_republisher_pauses_publisher(memory_broker: MemoryBroker) -> None:
    publisher, consumer = Served(memory_broker), Served(memory_broker)
    for client in (publisher, consumer):
        client.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
        client.received()
    turn = memory_broker.broker.turn
    turn.is_republisher_full = True
    publisher.transport.data_received(publishes("q", [b"one"]))
    consumer.send(1, spec.Basic.Consume(queue="q", no_ack=True))
    assert consumer.received_names() == ["Basic.ConsumeOk", "Basic.Deliver"]
    turn.resume_paused()
    memory_broker.settle()
    assert not publisher.socket.reading
    assert consumer.socket.reading
    turn.is_republisher_full = False
    turn.resume_paused()
    memory_broker.settle()
    assert publisher.socket.reading


def test_paused_connection_is_lost(memory_broker: MemoryBroker) -> None:
    publisher = Served(memory_broker)
    publisher.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
    publisher.received()
    memory_broker.broker.turn.unsynced_bytes_max = 1000
    memory_broker.storage.commits.unsynced_bytes += 5000
    publisher.transport.data_received(publishes("q", [b"one"]))
    publisher.transport.connection_lost(None)
    memory_broker.storage.commits.unsynced_bytes -= 5000
    other = Served(memory_broker)
    other.send(1, spec.Channel.Open())
    other.transport.data_received(publishes("q", [b"two"]))
    memory_broker.settle()
    assert memory_broker.vhost.queues["q"].ready_count == 2
    assert not publisher.socket.reading


# -- alarms ----------------------------------------------------------------------------------------------------------


def publisher_with_queue(memory_broker: MemoryBroker, **capabilities: bool) -> Served:
    client = Served(memory_broker, **capabilities)
    client.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    client.received()
    return client


def test_alarm_blocks_connection_at_next_publish(memory_broker: MemoryBroker) -> None:
    """The publish and all behind it wait. A consumer is not blocked. connection.blocked gives the reason."""
    publisher, consumer = (
        publisher_with_queue(memory_broker, connection_blocked=True),
        publisher_with_queue(memory_broker, connection_blocked=True),
    )
    memory_broker.broker.alarms.set_alarm("disk", True)
    assert publisher.received_names() == []
    publisher.transport.data_received(publishes("q", [b"one", b"two"]))
    consumer.send(1, spec.Basic.Consume(queue="q", no_ack=True))
    blocked = publisher.received()
    assert [(event.channel, event.method.name, event.method.reason) for event in blocked] == [
        (0, "Connection.Blocked", "low on disk")
    ]
    assert not publisher.socket.reading
    assert consumer.received_names() == ["Basic.ConsumeOk"]
    assert consumer.socket.reading
    memory_broker.broker.alarms.set_alarm("disk", False)
    assert publisher.received_names() == ["Connection.Unblocked"]
    assert publisher.socket.reading
    assert consumer.received_names() == ["Basic.Deliver", "Basic.Deliver"]


def test_empty_message_passes_alarm(memory_broker: MemoryBroker) -> None:
    """RabbitMQ accepts it, too. It still blocks the connection."""
    publisher = publisher_with_queue(memory_broker, connection_blocked=True)
    memory_broker.broker.alarms.set_alarm("memory", True)
    empty = publishes("q", [b""])[:-8]
    publisher.transport.data_received(empty + publishes("q", [b"one"]) + empty)
    assert publisher.received_names() == ["Connection.Blocked"]
    assert memory_broker.vhost.queues["q"].ready_count == 1
    memory_broker.broker.alarms.set_alarm("memory", False)
    assert publisher.received_names() == ["Connection.Unblocked"]
    assert memory_broker.vhost.queues["q"].ready_count == 3


def test_alarm_while_channel_is_busy(memory_broker: MemoryBroker) -> None:
    """Publishes behind the declaration are paused by the alarm when their turn comes, and keep their order."""
    client = publisher_with_queue(memory_broker)
    client.send(1, spec.Queue.Declare(queue="d", durable=True))
    client.transport.data_received(publishes("d", [b"one", b"two"]))
    client.send(1, spec.Queue.Declare(queue="d", passive=True), spec.Basic.Get(queue="d"), spec.Queue.Purge(queue="d"))
    memory_broker.broker.alarms.set_alarm("disk", True)
    assert client.received_names() == ["Queue.DeclareOk"]
    memory_broker.broker.alarms.set_alarm("disk", False)
    answers = client.received()
    assert [event.method.name for event in answers] == ["Queue.DeclareOk", "Basic.GetOk", "Queue.PurgeOk"]
    assert answers[0].method.message_count == 2
    assert client.connection.pending_commands.deferred_bytes == 0


def test_acks_and_gets_pass_alarm(memory_broker: MemoryBroker) -> None:
    """Acks free memory and so end the alarm."""
    client = publisher_with_queue(memory_broker)
    client.transport.data_received(publishes("q", [b"one"]))
    client.send(1, spec.Basic.Get(queue="q"))
    memory_broker.settle()
    memory_broker.broker.alarms.set_alarm("memory", True)
    client.send(1, spec.Basic.Ack(delivery_tag=1), spec.Basic.Get(queue="q"))
    assert client.received_names() == ["Basic.GetOk", "Basic.GetEmpty"]
    assert client.connection.channels.by_number[1].deliveries.unacked.count() == 0


def test_unblocked_after_both_alarms_end(memory_broker: MemoryBroker) -> None:
    publisher = publisher_with_queue(memory_broker, connection_blocked=True)
    memory_broker.broker.alarms.set_alarm("memory", True)
    memory_broker.broker.alarms.set_alarm("disk", True)
    publisher.transport.data_received(publishes("q", [b"one"]))
    assert publisher.received_names() == ["Connection.Blocked"]
    memory_broker.broker.alarms.set_alarm("memory", False)
    assert (publisher.received_names(), publisher.socket.reading) == ([], False)
    memory_broker.broker.alarms.set_alarm("disk", False)
    assert (publisher.received_names(), publisher.socket.reading) == (["Connection.Unblocked"], True)
    publisher.transport.data_received(publishes("q", [b"two"]))
    assert (publisher.received_names(), publisher.socket.reading) == ([], True)


def test_client_without_connection_blocked_is_paused_by_alarm(memory_broker: MemoryBroker) -> None:
    publisher = publisher_with_queue(memory_broker)
    memory_broker.broker.alarms.set_alarm("memory", True)
    publisher.transport.data_received(publishes("q", [b"one"]))
    assert (publisher.received_names(), publisher.socket.reading) == ([], False)
    memory_broker.broker.alarms.set_alarm("memory", False)
    assert (publisher.received_names(), publisher.socket.reading) == ([], True)


def test_two_reasons_pause_until_both_end(memory_broker: MemoryBroker) -> None:
    """The connection reads again when the alarm has ended and the disk has caught up, in either order."""
    for alarm_first in (True, False):
        publisher = publisher_with_queue(memory_broker)
        memory_broker.broker.turn.unsynced_bytes_max = 1000
        memory_broker.storage.commits.unsynced_bytes += 5000
        memory_broker.broker.alarms.set_alarm("disk", True)
        publisher.transport.data_received(publishes("q", [b"one"]))
        assert publisher.connection.read_pause.is_set(SYNC)
        assert publisher.connection.read_pause.is_set(ALARM)

        def end_alarm() -> None:
            memory_broker.broker.alarms.set_alarm("disk", False)

        def catch_up() -> None:
            memory_broker.storage.commits.unsynced_bytes -= 5000
            memory_broker.broker.turn.committed(memory_broker.storage.commits.generation, [])

        steps = [end_alarm, catch_up]
        for number, step in enumerate(steps if alarm_first else steps[::-1]):
            step()
            memory_broker.settle()
            assert publisher.socket.reading == (number == 1)


def test_wide_publishes_are_processed_in_slices(memory_broker: MemoryBroker) -> None:
    """One read may cause minutes of work (Bug19219Test of RabbitMQ's Java client). Other connections are served
    meanwhile.
    """
    served = Served(memory_broker)
    queue_names = [f"q{number}" for number in range(100)]
    served.send(1, spec.Channel.Open())
    for name in queue_names:
        served.send(1, spec.Queue.Declare(queue=name), spec.Queue.Bind(queue=name, exchange="amq.fanout"))
    served.received()
    header = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00\xce"
    publish = pamqp.frame.marshal(spec.Basic.Publish(exchange="amq.fanout"), 1) + header
    served.transport.data_received(publish * 500)
    vhost = served.memory_broker.vhost
    assert OFFERS_MAX < 100 * vhost.queues["q0"].ready_count < 2 * OFFERS_MAX
    assert served.connection.read_pause.is_set(SHARING) and not served.socket.reading
    served.received()
    assert {vhost.queues[name].ready_count for name in queue_names} == {500}
    assert not served.connection.read_pause.is_set(SHARING) and served.socket.reading
