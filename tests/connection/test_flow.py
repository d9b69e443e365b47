"""What holds publishers back, and what lets them go: unsynced bytes, busy channels; the order of a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import MemoryBroker
from served import Served

from amqpd.broker.flow.timers import Timers
from amqpd.broker.flow.turn import Confirmer, SyncWaiter, Turn
from amqpd.broker.queues.pump_retries import FIRST_S, RETRY_S_MAX
from amqpd.connection.connection import OFFERS_MAX
from amqpd.connection.read_gate import ALARM, SHARING, SYNC
from amqpd.storage.filesystem import Clock
from amqpd.storage.local_log import StoreContext

PERSISTENT = b"\x10\x00\x02"
MIB = 1 << 20


class Disk:
    """The storage as a turn sees it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.generation = 1
        self.unsynced_bytes = 0
        self.commit_waiting = False
        self.many_dirty = False
        self.context = StoreContext(Clock(), None)

    def postpone(self, call: Any) -> bool:
        postponed, self.many_dirty = self.many_dirty, False
        if postponed:
            self.log.append("wait")
            self.later = call
        return postponed

    def end_of_turn(self) -> None:
        self.log.append("write")

    def flush(self) -> None:
        self.log.append("flush logs")


class Sock:
    def __init__(self, log: list[str], name: str = "") -> None:
        self.log = log
        self.name = name

    def flush(self) -> None:
        self.log.append("send" + self.name)

    def synced(self) -> None:
        self.log.append("release" + self.name)


class Publisher(Confirmer):
    def __init__(self, log: list[str], waits: bool = False) -> None:
        self.log = log
        self.waits = waits

    def end_turn(self, generation: int, safe: bool) -> bool:
        self.log.append(f"confirm {generation} {'now' if safe else 'later'}")
        return self.waits

    def committed(self, generation: int, failed: list[Any]) -> bool:
        self.log.append(f"committed {generation}")
        return False


class Hands(Clock):
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic(self) -> float:
        return self.now_s


class Room:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.disk = Disk(self.log)
        self.soon: list[Callable[[], None]] = []
        disk: Any = self.disk
        self.clock = Hands()
        self.turn = Turn(disk, self.soon.append, Timers(lambda delay_s, call: None, self.clock))

    def run(self) -> list[str]:
        for function in self.soon:
            function()
        self.soon.clear()
        log = list(self.log)
        self.log.clear()
        return log


@pytest.fixture
def room() -> Room:
    return Room()


# -- the turn --------------------------------------------------------------------------------------------------------


def test_a_turn_is_asked_for_once_and_has_an_order(room: Room) -> None:
    """Delivery marks are written before deliveries are sent, confirms are sent with what they confirm."""
    room.turn.flush_later(Sock(room.log))
    room.turn.confirm_later(Publisher(room.log))
    room.turn.want()
    assert len(room.soon) == 1
    assert room.run() == ["write", "confirm 1 now", "send"]
    assert room.run() == []


def test_the_clock_is_read_once_per_read_and_forgotten_with_the_turn(room: Room) -> None:
    turn, clock = room.turn, room.clock
    turn.begin_read(100)
    first = turn.now_ms()
    clock.now_s += 1
    assert turn.now_ms() == first
    turn.begin_read(100)
    assert turn.now_ms() == first + 1000
    clock.now_s += 1
    room.run()
    assert turn.now_ms() == first + 2000
    assert len(room.soon) == 1, "outside a turn it asks for one, so that it is forgotten"
    clock.now_s += 1
    room.run()
    assert turn.now_ms() == first + 3000


def test_a_turn_that_storage_puts_off(room: Room) -> None:
    """Nothing of it is worked off before, and nobody else asks for it meanwhile."""
    room.disk.many_dirty = True
    sock: Any = Sock(room.log)
    room.turn.flush_later(sock)
    assert room.run() == ["wait"]
    room.turn.want()
    assert room.soon == []
    room.disk.later()
    assert room.log[-2:] == ["write", "send"]


def test_a_confirm_waits_for_what_is_on_its_way(room: Room) -> None:
    room.disk.commit_waiting = True
    room.turn.confirm_later(Publisher(room.log, waits=True))
    assert room.run() == ["write", "confirm 1 later"]
    room.turn.committed(1, [])
    assert room.run() == ["committed 1"]
    room.turn.committed(2, [])
    assert room.run() == [], "asked again although nothing waits"


def test_who_waits_already_is_asked_once(room: Room) -> None:
    room.disk.commit_waiting = True
    publisher = Publisher(room.log, waits=True)
    for _ in range(3):
        room.turn.confirm_later(publisher)
        room.run()
    room.turn.committed(3, [])
    assert room.run() == ["committed 3"]


def test_tx_commit_does_not_wait_for_the_next_append(room: Room) -> None:
    room.turn.urgent = True
    room.turn.want()
    assert room.run() == ["flush logs"]
    room.turn.want()
    assert room.run() == ["write"]


def test_sync_waiters_are_told_once(room: Room) -> None:
    """Of their own generation, with the logs that failed."""
    told: list[object] = []
    failed: list[Any] = ["log"]
    waiter = SyncWaiter(told.append)
    assert waiter.end_turn(5, False)
    assert waiter.committed(4, [])
    assert told == []
    assert not waiter.committed(5, failed)
    assert told == [failed]
    room.turn.when_synced(told.append)
    room.run()
    assert told == [failed, []]


def test_publishers_are_held_until_the_bytes_are_synced(room: Room) -> None:
    room.turn.unsynced_bytes_max = 100
    for name in (" a", " b"):
        room.turn.hold(Sock(room.log, name))
    room.disk.unsynced_bytes = 101
    room.turn.committed(1, [])
    assert room.run() == []
    room.disk.unsynced_bytes = 50
    room.turn.committed(2, [])
    assert room.run() == ["release a", "release b"]
    room.turn.committed(3, [])
    assert room.run() == []


# -- a pump that raises ----------------------------------------------------------------------------------------------


class Bug:
    """Raises out of a queue's pump so many times, as one that waits there for a message (a compiled queue takes no
    patch)."""

    def __init__(self, times: int) -> None:
        self.times = times

    def strike(self, queue: Any) -> None:
        queue.getters.append(lambda: self(queue))

    def __call__(self, queue: Any) -> None:
        if self.times:
            self.times -= 1
            self.strike(queue)
            raise ZeroDivisionError("a bug")


def test_one_queues_bug_hurts_no_other(house: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The queues behind it in the turn are pumped, logs written, confirms and sockets served; it is tried again, less
    and less often, until it goes well; the traceback is in the log once."""
    retries: list[tuple[float, Any, tuple[Any, ...]]] = []
    house.broker.pump_retries.call_later = lambda delay_s, again, *arguments: retries.append(
        (delay_s, again, arguments)
    )
    client = Served(house)
    client.say(1, spec.Channel.Open(), spec.Confirm.Select())
    client.say(1, spec.Queue.Declare(queue="bad"), spec.Queue.Declare(queue="good", durable=True))
    client.say(1, spec.Basic.Consume(queue="bad", no_ack=True), spec.Basic.Consume(queue="good", no_ack=True))
    client.heard()
    bad, good = house.vhost.queues["bad"], house.vhost.queues["good"]
    bug = Bug(7)
    bug.strike(bad)
    answered: list[str] = []
    bad.getters.append(lambda: answered.append("the next"))
    good.getters.append(lambda: answered.append("good"))
    turn = house.broker.turn
    turn.pump_later(bad)
    turn.pump_later(good)
    client.transport.data_received(publishes("good", [b"one"]))
    assert client.names() == ["Basic.Deliver", "Basic.Ack"]
    assert answered == ["good"]
    client.transport.data_received(publishes("bad", [b"usable"]))
    assert client.names() == ["Basic.Deliver", "Basic.Ack"]
    turn.pump_later(bad)
    house.settle()
    assert answered == ["good", "the next"], "what waited beside the bug was forgotten"
    assert len(retries) == 1, "one retry at a time, whoever else asks for the pump"
    delays = []
    while retries:
        ((delay_s, again, arguments),) = retries
        delays.append(delay_s)
        retries.clear()
        again(*arguments)
    assert delays == [FIRST_S, 2, 4, 8, 16, RETRY_S_MAX]
    assert bug.times == 0
    told = [record for record in caplog.records if record.name == "amqpd.broker.queues.pump_retries"]
    assert [record.exc_info is not None for record in told] == [True, False, False, False, False, False]
    assert "queue 'bad' in vhost '/': a bug of the broker" in told[0].getMessage()


def test_a_queue_that_is_gone_is_not_tried_again(house: MemoryBroker) -> None:
    retries: list[tuple[Any, tuple[Any, ...]]] = []
    house.broker.pump_retries.call_later = lambda _, again, *arguments: retries.append((again, arguments))
    client = Served(house)
    client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="bad"))
    client.heard()
    Bug(2).strike(house.vhost.queues["bad"])
    house.broker.turn.pump_later(house.vhost.queues["bad"])
    house.settle()
    house.vhost.queues["bad"].getters.clear()
    client.say(1, spec.Queue.Delete(queue="bad"))
    assert client.names() == ["Queue.DeleteOk"]
    ((again, arguments),) = retries
    queue = arguments[0]
    queue.getters.append(retries.clear)
    again(*arguments)
    assert len(retries) == 1, "pumped, or armed again"


# -- connections -----------------------------------------------------------------------------------------------------


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    made = MemoryBroker()
    yield made
    made.end()


def publishes(queue: str, bodies: list[bytes]) -> bytes:
    """Persistent, on channel 1."""
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key=queue), 1)
    parts = []
    for body in bodies:
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + PERSISTENT
        parts += [method, b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"]
        parts.append(b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce")
    return b"".join(parts)


def begun_publish(body_size: int) -> bytes:
    """Method and header of a publish to q; the body is still to come."""
    whole = publishes("q", [b"x"])
    return whole[:-9].replace((1).to_bytes(8, "big") + PERSISTENT, body_size.to_bytes(8, "big") + PERSISTENT)


def test_a_publisher_is_held_a_consumer_is_not(house: MemoryBroker) -> None:
    publisher, consumer = Served(house), Served(house)
    for client in (publisher, consumer):
        client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
        client.heard()
    turn = house.broker.turn
    turn.unsynced_bytes_max = 1000
    house.storage.unsynced_bytes += 5000  # a slow disk
    publisher.transport.data_received(publishes("q", [b"one"]))
    consumer.say(1, spec.Basic.Consume(queue="q", no_ack=True))
    assert not publisher.socket.reading
    assert consumer.socket.reading
    assert consumer.names() == ["Basic.ConsumeOk", "Basic.Deliver"]
    assert not publisher.socket.reading, "released although the disk is as far behind as before"
    house.storage.unsynced_bytes -= 5000
    consumer.say(1, spec.Queue.Declare(queue="other", durable=True))
    consumer.transport.data_received(publishes("other", [b"two"]))  # its commit brings the news
    assert consumer.names() == ["Queue.DeclareOk"]
    assert publisher.socket.reading
    assert not publisher.connection.gate.holds(SYNC)


def test_a_busy_channel_releases_only_what_it_held_itself(house: MemoryBroker) -> None:
    """Its declaration is answered while the disk is as far behind as before: the publisher beside it waits on."""
    client = Served(house)
    client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
    client.say(2, spec.Channel.Open())
    client.heard()
    house.broker.turn.unsynced_bytes_max = 1000
    house.storage.unsynced_bytes += 5000  # a slow disk
    client.say(2, spec.Queue.Declare(queue="other", durable=True), spec.Basic.Qos(prefetch_count=1))
    client.transport.data_received(publishes("q", [b"one"]))
    assert not client.socket.reading
    assert client.names() == ["Queue.DeclareOk", "Basic.QosOk"]
    assert not client.socket.reading
    house.storage.unsynced_bytes -= 5000
    house.broker.turn.committed(house.storage.generation, [])
    house.settle()
    assert client.socket.reading


def test_a_busy_channel_that_is_closed_leaves_no_hold_behind(house: MemoryBroker) -> None:
    """What waited behind its declaration goes with the channel, and so does the reason not to read."""
    client = Served(house)
    client.connection.assembler.body_size_max = MIB
    client.say(1, spec.Channel.Open())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="q", durable=True))
    client.transport.data_received(publishes("q", [bytes(100_000)] * 20))
    client.transport.data_received(begun_publish(MIB + 1))
    assert not client.socket.reading
    client.say(1, spec.Channel.CloseOk())
    client.heard()
    assert client.socket.reading


def test_a_held_connection_that_ends_is_no_trouble(house: MemoryBroker) -> None:
    publisher = Served(house)
    publisher.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=True))
    publisher.heard()
    house.broker.turn.unsynced_bytes_max = 1000
    house.storage.unsynced_bytes += 5000
    publisher.transport.data_received(publishes("q", [b"one"]))
    publisher.transport.connection_lost(None)
    house.storage.unsynced_bytes -= 5000
    other = Served(house)
    other.say(1, spec.Channel.Open())
    other.transport.data_received(publishes("q", [b"two"]))
    house.settle()
    assert house.vhost.queues["q"].ready_count == 2
    assert not publisher.socket.reading


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
    assert client.connection.backlog.deferred_bytes == 0


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
    client.connection.assembler.body_size_max = MIB
    client.say(1, spec.Channel.Open())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="q", durable=True))
    client.transport.data_received(publishes("q", [bytes(100_000)] * 20))
    assert not client.socket.reading
    client.transport.data_received(begun_publish(MIB + 1))
    assert client.names() == ["Channel.Close"]
    assert client.socket.reading
    assert client.connection.backlog.deferred_bytes == 0
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
    assert client.connection.backlog.deferred_bytes == 0


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
    client.connection.assembler.body_size_max = MIB
    client.say(1, spec.Channel.Open())
    client.heard()
    client.say(1, spec.Queue.Declare(queue="old", durable=True))
    client.transport.data_received(begun_publish(MIB + 1))
    client.say(1, spec.Channel.CloseOk(), spec.Channel.Open(), spec.Queue.Declare(queue="new", durable=True))
    client.transport.data_received(publishes("new", [b"waits"]))
    client.say(1, spec.Basic.Get(queue="new"))
    assert client.names() == ["Channel.Close", "Channel.OpenOk", "Queue.DeclareOk", "Basic.GetOk"]


# -- alarms ----------------------------------------------------------------------------------------------------------


def publisher_of(house: MemoryBroker, **capabilities: bool) -> Served:
    client = Served(house, **capabilities)
    client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="q"))
    client.heard()
    return client


def test_an_alarm_blocks_at_the_next_publish(house: MemoryBroker) -> None:
    """It waits, with all that comes behind it; who does not publish is left alone; connection.blocked says why."""
    publisher, consumer = publisher_of(house, connection_blocked=True), publisher_of(house, connection_blocked=True)
    house.broker.alarms.set("disk", True)
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
    house.broker.alarms.set("disk", False)
    assert publisher.names() == ["Connection.Unblocked"]
    assert publisher.socket.reading
    assert consumer.names() == ["Basic.Deliver", "Basic.Deliver"]


def test_a_message_without_a_body_passes_an_alarm(house: MemoryBroker) -> None:
    """As RabbitMQ takes it; the connection is blocked by it all the same."""
    publisher = publisher_of(house, connection_blocked=True)
    house.broker.alarms.set("memory", True)
    empty = publishes("q", [b""])[:-8]
    publisher.transport.data_received(empty + publishes("q", [b"one"]) + empty)
    assert publisher.names() == ["Connection.Blocked"]
    assert house.vhost.queues["q"].ready_count == 1
    house.broker.alarms.set("memory", False)
    assert publisher.names() == ["Connection.Unblocked"]
    assert house.vhost.queues["q"].ready_count == 3


def test_an_alarm_while_a_channel_is_busy(house: MemoryBroker) -> None:
    """What waited behind its declaration meets the alarm when it is worked off, and keeps its place."""
    client = publisher_of(house)
    client.say(1, spec.Queue.Declare(queue="d", durable=True))
    client.transport.data_received(publishes("d", [b"one", b"two"]))
    client.say(1, spec.Queue.Declare(queue="d", passive=True), spec.Basic.Get(queue="d"), spec.Queue.Purge(queue="d"))
    house.broker.alarms.set("disk", True)
    assert client.names() == ["Queue.DeclareOk"]
    house.broker.alarms.set("disk", False)
    answers = client.heard()
    assert [event.method.name for event in answers] == ["Queue.DeclareOk", "Basic.GetOk", "Queue.PurgeOk"]
    assert answers[0].method.message_count == 2
    assert client.connection.backlog.deferred_bytes == 0


def test_acks_of_a_consumer_pass_an_alarm(house: MemoryBroker) -> None:
    """They are what ends it."""
    client = publisher_of(house)
    client.transport.data_received(publishes("q", [b"one"]))
    client.say(1, spec.Basic.Get(queue="q"))
    house.settle()
    house.broker.alarms.set("memory", True)
    client.say(1, spec.Basic.Ack(delivery_tag=1), spec.Basic.Get(queue="q"))
    assert client.names() == ["Basic.GetOk", "Basic.GetEmpty"]
    assert client.connection.channels.by_number[1].unacked.count() == 0


def test_both_alarms_have_to_end(house: MemoryBroker) -> None:
    publisher = publisher_of(house, connection_blocked=True)
    house.broker.alarms.set("memory", True)
    house.broker.alarms.set("disk", True)
    publisher.transport.data_received(publishes("q", [b"one"]))
    assert publisher.names() == ["Connection.Blocked"]
    house.broker.alarms.set("memory", False)
    assert (publisher.names(), publisher.socket.reading) == ([], False)
    house.broker.alarms.set("disk", False)
    assert (publisher.names(), publisher.socket.reading) == (["Connection.Unblocked"], True)
    publisher.transport.data_received(publishes("q", [b"two"]))
    assert (publisher.names(), publisher.socket.reading) == ([], True)


def test_a_client_that_cannot_be_told_is_held_all_the_same(house: MemoryBroker) -> None:
    publisher = publisher_of(house)
    house.broker.alarms.set("memory", True)
    publisher.transport.data_received(publishes("q", [b"one"]))
    assert (publisher.names(), publisher.socket.reading) == ([], False)
    house.broker.alarms.set("memory", False)
    assert (publisher.names(), publisher.socket.reading) == ([], True)


def test_two_reasons_to_hold_one_connection(house: MemoryBroker) -> None:
    """It reads again when both the alarm is over and the disk has caught up, in either order."""
    for alarm_first in (True, False):
        publisher = publisher_of(house)
        house.broker.turn.unsynced_bytes_max = 1000
        house.storage.unsynced_bytes += 5000
        house.broker.alarms.set("disk", True)
        publisher.transport.data_received(publishes("q", [b"one"]))
        assert publisher.connection.gate.holds(SYNC)
        assert publisher.connection.gate.holds(ALARM)

        def alarm_over() -> None:
            house.broker.alarms.set("disk", False)

        def disk_caught_up() -> None:
            house.storage.unsynced_bytes -= 5000
            house.broker.turn.committed(house.storage.generation, [])

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
    assert served.connection.gate.holds(SHARING) and not served.socket.reading
    served.heard()
    assert {vhost.queues[name].ready_count for name in names} == {500}
    assert not served.connection.gate.holds(SHARING) and served.socket.reading
