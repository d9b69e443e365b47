"""Fair reading: one turn reads a bounded number of bytes, and all connections get their share."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import MemoryBroker
from served import Served

from amqpd.broker.flow.loop_turn import LARGE_READ_BYTES, OVERDUE_TURNS, PACED_COUNT_MAX, TURN_BYTES_MAX
from amqpd.connection.read_pause import ALARM, PACED, SYNC

CHUNK = 256_000  # the most that uvloop reads at once


@pytest.fixture
def memory_broker() -> Iterator[MemoryBroker]:
    memory_broker = MemoryBroker()
    yield memory_broker
    memory_broker.end()


def publisher(memory_broker: MemoryBroker) -> Served:
    served = Served(memory_broker)
    served.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    served.received()
    return served


def publishes(size: int) -> bytes:
    """Return at least `size` bytes of complete publishes of 1 KiB."""
    header = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + (1024).to_bytes(8, "big") + b"\x00\x00\xce"
    body = b"\x03\x00\x01" + (1024).to_bytes(4, "big") + bytes(1024) + b"\xce"
    one = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1) + header + body
    return one * (size // len(one) + 1)


def run_turn(memory_broker: MemoryBroker) -> None:
    """Run the loop to the end of one turn."""
    number = memory_broker.broker.turn.number
    while memory_broker.broker.turn.number == number:
        function, arguments = memory_broker.loop.ready.popleft()
        function(*arguments)


def reading(clients: list[Served]) -> list[int]:
    return [number for number, client in enumerate(clients) if client.socket.reading]


def test_single_publisher_is_read_again_each_turn(memory_broker: MemoryBroker) -> None:
    client = publisher(memory_broker)
    data = publishes(CHUNK)
    reads = 0
    while client.socket.reading:
        client.transport.data_received(data)
        reads += 1
    assert TURN_BYTES_MAX <= reads * len(data) < TURN_BYTES_MAX + len(data)
    run_turn(memory_broker)
    assert client.socket.reading
    client.transport.data_received(data)
    assert client.socket.reading, "the next turn has a new share"


def test_many_publishers_are_read_in_rotation(memory_broker: MemoryBroker) -> None:
    """First come, first served, a few connections in each turn; one that sends again queues behind the others."""
    clients = [publisher(memory_broker) for _ in range(8)]
    data = publishes(CHUNK)
    for client in clients:
        while client.socket.reading:
            client.transport.data_received(data)
    assert reading(clients) == []
    count = memory_broker.vhost.queues["q"].ready_count
    assert count * 1024 < TURN_BYTES_MAX + 8 * (len(data) + 1024), "only the first had more than one read"
    read_connections: list[int] = []
    for _ in range(4):
        run_turn(memory_broker)
        now = reading(clients)
        assert len(now) == PACED_COUNT_MAX
        read_connections += now
        for number in now:
            clients[number].transport.data_received(data)
        assert reading(clients) == []
    assert {read_connections.count(number) for number in range(8)} == {2}


def test_idle_connections_do_not_delay_others(memory_broker: MemoryBroker) -> None:
    clients = [publisher(memory_broker) for _ in range(10)]
    for client in clients:
        client.transport.data_received(publishes(TURN_BYTES_MAX))
    assert reading(clients) == []
    memory_broker.settle()
    assert reading(clients) == list(range(10))


def test_small_reads_are_not_paused(memory_broker: MemoryBroker) -> None:
    clients = [publisher(memory_broker) for _ in range(3)]
    for client in clients[1:]:
        client.transport.data_received(publishes(TURN_BYTES_MAX))
    clients[0].transport.data_received(publishes(LARGE_READ_BYTES - 2000))
    assert reading(clients) == [0]


def test_connections_paused_for_sync_resume_in_turn(memory_broker: MemoryBroker) -> None:
    """A commit resumes all of them. Reading all at once would make one turn of many megabytes."""
    clients = [publisher(memory_broker) for _ in range(10)]
    memory_broker.storage.commits.unsynced_bytes += 1 << 30
    for client in clients:
        client.transport.data_received(publishes(1))
        assert client.connection.read_pause.is_set(SYNC)
    memory_broker.settle()
    memory_broker.storage.commits.unsynced_bytes -= 1 << 30
    memory_broker.broker.turn.committed(memory_broker.storage.commits.generation, [])
    assert reading(clients) == []
    run_turn(memory_broker)
    assert reading(clients) == [0, 1, 2, 3]
    run_turn(memory_broker)
    assert reading(clients) == list(range(8))
    memory_broker.settle()
    assert reading(clients) == list(range(10))


def test_fair_reading_keeps_pause_of_alarm(memory_broker: MemoryBroker) -> None:
    client, other = publisher(memory_broker), publisher(memory_broker)
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    memory_broker.broker.alarms.set_alarm("disk", True)
    memory_broker.settle()
    assert client.socket.reading, "no publish since the alarm"
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    assert client.connection.read_pause.is_set(ALARM) and client.connection.read_pause.is_set(PACED)
    memory_broker.settle()
    assert not client.connection.read_pause.is_set(PACED) and not client.socket.reading
    memory_broker.broker.alarms.set_alarm("disk", False)
    memory_broker.settle()
    assert client.socket.reading and other.socket.reading


def test_waiting_connection_is_lost(memory_broker: MemoryBroker) -> None:
    client, other = publisher(memory_broker), publisher(memory_broker)
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    other.transport.data_received(publishes(TURN_BYTES_MAX))
    client.transport.connection_lost(None)
    memory_broker.settle()
    assert other.socket.reading and not client.socket.reading


def test_large_reads_wait_for_pending_dead_letters(memory_broker: MemoryBroker) -> None:
    client = publisher(memory_broker)
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    for _ in range(OVERDUE_TURNS - 1):
        memory_broker.broker.turn.dead_letters_pending = True
        run_turn(memory_broker)
        assert not client.socket.reading
    memory_broker.broker.turn.dead_letters_pending = True
    run_turn(memory_broker)
    assert client.socket.reading, "read after OVERDUE_TURNS turns"
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    assert not client.socket.reading
    run_turn(memory_broker)
    assert client.socket.reading, "no dead letters are pending"


def test_single_read_is_answered_at_once(memory_broker: MemoryBroker) -> None:
    """A single read is answered without batching. Of many only the first is answered before the loop continues."""
    client, other = publisher(memory_broker), publisher(memory_broker)
    memory_broker.settle()
    qos = spec.Basic.Qos(prefetch_count=5)
    for _ in range(3):
        client.send(1, qos)
        assert client.socket.data, "the reply waits for the loop"
        assert client.received_names() == ["Basic.QosOk"]
    client.send(1, qos)
    other.send(1, qos)
    client.send(1, qos)
    assert client.socket.data and not other.socket.data
    memory_broker.settle()
    assert other.received_names() == ["Basic.QosOk"]
    assert client.received_names() == ["Basic.QosOk"] * 2
    client.send(1, qos)
    assert not client.socket.data, "the previous turn had three reads"
    assert client.received_names() == ["Basic.QosOk"]
    client.transport.data_received(pamqp.frame.marshal(qos, 1) * 500)
    assert not client.socket.data, "a large read is answered in batch"
    assert client.received_names() == ["Basic.QosOk"] * 500
