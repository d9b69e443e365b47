"""However many clients send however fast, a turn reads a bounded share of it, and each of them has its turn."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import MemoryBroker
from served import Served

from amqpd.broker.flow.loop_turn import LARGE_READ_BYTES, OVERDUE_TURNS, PACED_COUNT_MAX, TURN_BYTES_MAX
from amqpd.connection.read_pause import ALARM, PACED, SYNC

CHUNK = 256_000  # what uvloop reads at most


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    house = MemoryBroker()
    yield house
    house.end()


def sender(house: MemoryBroker) -> Served:
    served = Served(house)
    served.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    served.heard()
    return served


def publishes(size: int) -> bytes:
    """At least `size` bytes of whole publishes of 1 KiB."""
    header = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + (1024).to_bytes(8, "big") + b"\x00\x00\xce"
    body = b"\x03\x00\x01" + (1024).to_bytes(4, "big") + bytes(1024) + b"\xce"
    one = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1) + header + body
    return one * (size // len(one) + 1)


def turn(house: MemoryBroker) -> None:
    """The loop runs to the end of one turn."""
    number = house.broker.turn.number
    while house.broker.turn.number == number:
        function, arguments = house.loop.ready.popleft()
        function(*arguments)


def reading(clients: list[Served]) -> list[int]:
    return [number for number, client in enumerate(clients) if client.socket.reading]


def test_one_sender_reads_on_after_each_turn(house: MemoryBroker) -> None:
    client = sender(house)
    data = publishes(CHUNK)
    reads = 0
    while client.socket.reading:
        client.transport.data_received(data)
        reads += 1
    assert TURN_BYTES_MAX <= reads * len(data) < TURN_BYTES_MAX + len(data)
    turn(house)
    assert client.socket.reading
    client.transport.data_received(data)
    assert client.socket.reading, "the next turn's share begins anew"


def test_many_senders_have_their_turns(house: MemoryBroker) -> None:
    """First come, first served, a few in each turn, whoever sends again goes behind the others."""
    clients = [sender(house) for _ in range(8)]
    data = publishes(CHUNK)
    for client in clients:
        while client.socket.reading:
            client.transport.data_received(data)
    assert reading(clients) == []
    count = house.vhost.queues["q"].ready_count
    assert count * 1024 < TURN_BYTES_MAX + 8 * (len(data) + 1024), "all but the first had one read"
    seen: list[int] = []
    for _ in range(4):
        turn(house)
        now = reading(clients)
        assert len(now) == PACED_COUNT_MAX
        seen += now
        for number in now:
            clients[number].transport.data_received(data)
        assert reading(clients) == []
    assert {seen.count(number) for number in range(8)} == {2}


def test_who_sends_nothing_more_keeps_nobody_waiting(house: MemoryBroker) -> None:
    clients = [sender(house) for _ in range(10)]
    for client in clients:
        client.transport.data_received(publishes(TURN_BYTES_MAX))
    assert reading(clients) == []
    house.settle()
    assert reading(clients) == list(range(10))


def test_a_small_sender_is_left_alone(house: MemoryBroker) -> None:
    clients = [sender(house) for _ in range(3)]
    for client in clients[1:]:
        client.transport.data_received(publishes(TURN_BYTES_MAX))
    clients[0].transport.data_received(publishes(LARGE_READ_BYTES - 2000))
    assert reading(clients) == [0]


def test_those_that_were_held_come_back_in_turn(house: MemoryBroker) -> None:
    """A commit releases all of them: read at once they would be a turn of many megabytes."""
    clients = [sender(house) for _ in range(10)]
    house.storage.commits.unsynced_bytes += 1 << 30
    for client in clients:
        client.transport.data_received(publishes(1))
        assert client.connection.read_pause.is_set(SYNC)
    house.settle()
    house.storage.commits.unsynced_bytes -= 1 << 30
    house.broker.turn.committed(house.storage.commits.generation, [])
    assert reading(clients) == []
    turn(house)
    assert reading(clients) == [0, 1, 2, 3]
    turn(house)
    assert reading(clients) == list(range(8))
    house.settle()
    assert reading(clients) == list(range(10))


def test_what_else_holds_a_connection_goes_on_holding_it(house: MemoryBroker) -> None:
    client, other = sender(house), sender(house)
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    house.broker.alarms.set_alarm("disk", True)
    house.settle()
    assert client.socket.reading, "it has not published since"
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    assert client.connection.read_pause.is_set(ALARM) and client.connection.read_pause.is_set(PACED)
    house.settle()
    assert not client.connection.read_pause.is_set(PACED) and not client.socket.reading
    house.broker.alarms.set_alarm("disk", False)
    house.settle()
    assert client.socket.reading and other.socket.reading


def test_one_that_goes_while_it_waits(house: MemoryBroker) -> None:
    client, other = sender(house), sender(house)
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    other.transport.data_received(publishes(TURN_BYTES_MAX))
    client.transport.connection_lost(None)
    house.settle()
    assert other.socket.reading and not client.socket.reading


def test_floods_rest_while_dead_letters_hold_up_what_is_over(house: MemoryBroker) -> None:
    client = sender(house)
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    for _ in range(OVERDUE_TURNS - 1):
        house.broker.turn.dead_letters_pending = True
        turn(house)
        assert not client.socket.reading
    house.broker.turn.dead_letters_pending = True
    turn(house)
    assert client.socket.reading, "they are read now and then all the same"
    client.transport.data_received(publishes(TURN_BYTES_MAX))
    assert not client.socket.reading
    turn(house)
    assert client.socket.reading, "nothing is over any more"


def test_a_read_that_comes_alone_is_answered_at_once(house: MemoryBroker) -> None:
    """One at a time there is nothing to gather; of many only the first is answered before the loop goes on."""
    client, other = sender(house), sender(house)
    house.settle()
    qos = spec.Basic.Qos(prefetch_count=5)
    for _ in range(3):
        client.say(1, qos)
        assert client.socket.data, "it waits for the loop"
        assert client.names() == ["Basic.QosOk"]
    client.say(1, qos)
    other.say(1, qos)
    client.say(1, qos)
    assert client.socket.data and not other.socket.data
    house.settle()
    assert other.names() == ["Basic.QosOk"]
    assert client.names() == ["Basic.QosOk"] * 2
    client.say(1, qos)
    assert not client.socket.data, "the turn before had three"
    assert client.names() == ["Basic.QosOk"]
    client.transport.data_received(pamqp.frame.marshal(qos, 1) * 500)
    assert not client.socket.data, "who sends so much is not waiting for it"
    assert client.names() == ["Basic.QosOk"] * 500
