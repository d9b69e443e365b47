"""A front end that is not AMQP: it publishes through a `Publisher` and is told what is safe, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_broker import Client, MemoryBroker, User

from amqpd.broker.broker import Broker
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.message import Message
from amqpd.broker.publish.confirms import ConfirmTracker, when_safe
from amqpd.broker.publish.fanout import WIDE_COUNT, SlicedFanout
from amqpd.broker.publish.publisher import Publisher
from amqpd.broker.queue.factory import make_queue
from amqpd.broker.session import Session
from amqpd.errors import AccessRefused, NotFound, PreconditionFailed
from amqpd.protocol.properties import Properties, decode_properties, encode_properties
from amqpd.storage.queue_log import QueueLog

PLAIN = b"\0\0"
PERSISTENT = b"\x10\0\x02"


class Answers(ConfirmTracker):
    """What the front end would write to its client."""

    def __init__(self, turn: LoopTurn) -> None:
        super().__init__(turn)
        self.lines: list[str] = []

    def confirmed(self, first: int, last: int) -> None:
        self.lines.append(f"OK {first}-{last}")

    def refused(self, first: int, last: int) -> None:
        self.lines.append(f"LOST {first}-{last}")


class Front:
    """One client of it."""

    def __init__(self, house: MemoryBroker, operator: bool = False) -> None:
        broker: Broker = house.broker
        session = Session(broker, house.vhost, User("guest"), "front")  # type: ignore[arg-type]
        session.operator = operator
        self.publisher = Publisher(session)
        self.answers = Answers(broker.turn)

    def publish(self, exchange: str, key: str, properties: bytes = PERSISTENT, body: bytes = b"x") -> Message:
        message = self.publisher.compose(exchange, key, properties, body)
        route = self.publisher.route
        if self.publisher.offer(route, message):
            self.answers.add(route, message)
        return message

    def heard(self) -> list[str]:
        lines, self.answers.lines = self.answers.lines, []
        return lines


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    house = MemoryBroker()
    client = Client(house, "client")
    client.say(1, spec.Channel.Open())
    for name, durable in (("kept", True), ("other", True), ("brief", False)):
        client.say(1, spec.Queue.Declare(queue=name, durable=durable))
        client.say(1, spec.Queue.Bind(queue=name, exchange="amq.fanout"))
    client.say(1, spec.Exchange.Declare(exchange="inside", internal=True))
    house.settle()
    yield house
    house.end()


def test_what_no_log_takes_is_confirmed_with_its_turn(house: MemoryBroker) -> None:
    front = Front(house)
    front.publish("", "brief")
    front.publish("", "kept", PLAIN)
    front.publish("amq.direct", "nobody's")
    assert front.heard() == []
    house.settle()
    assert front.heard() == ["OK 1-3"]
    assert [house.vhost.queues[name].ready_count for name in ("brief", "kept")] == [1, 1]


def test_what_a_log_takes_is_confirmed_when_it_is_there(house: MemoryBroker) -> None:
    front = Front(house)
    front.publish("", "kept")
    front.publish("amq.fanout", "")
    house.settle()
    assert front.heard() == ["OK 1-2"]
    house.again(clean=False)
    assert [house.vhost.queue(name).ready_count for name in ("kept", "other")] == [2, 1]


def test_what_was_confirmed_early_is_not_told_twice(house: MemoryBroker) -> None:
    front = Front(house)
    front.publish("", "brief")
    front.answers.confirm_early()
    assert front.heard() == ["OK 1-1"]
    front.publish("", "kept")
    front.answers.confirm_early()
    assert front.heard() == []
    front.answers.add_safe()
    house.settle()
    assert front.heard() == ["OK 2-3"]


def test_what_a_log_did_not_take_is_refused(house: MemoryBroker) -> None:
    front = Front(house)
    house.broker.alarms.check = lambda: None  # type: ignore[method-assign]  # this disk is no file system
    front.publish("", "kept")
    house.settle()
    house.filesystem.capacity = house.filesystem.used()
    front.publish("", "brief")
    front.publish("", "kept")
    house.settle()
    assert front.heard() == ["OK 1-1", "LOST 2-3"]


def test_who_has_ended_is_told_nothing(house: MemoryBroker) -> None:
    front = Front(house)
    front.publish("", "kept")
    front.answers.ended = True
    house.settle()
    assert front.heard() == []


def test_errors_are_the_same_and_name_no_method(house: MemoryBroker) -> None:
    front = Front(house)
    with pytest.raises(NotFound, match="no exchange 'nosuch' in vhost '/'") as found:
        front.publish("nosuch", "k")
    assert found.value.method == 0
    with pytest.raises(AccessRefused, match="cannot publish to internal exchange 'inside' in vhost '/'"):
        front.publish("inside", "k")
    with pytest.raises(PreconditionFailed, match="invalid expiration 'soon': no_integer"):
        front.publish("", "kept", encode_properties(Properties(expiration="soon")))
    with pytest.raises(PreconditionFailed, match="fast reply consumer does not exist"):
        front.publish("", "kept", encode_properties(Properties(reply_to="amq.rabbitmq.reply-to")))


def test_permissions_hold_but_for_an_operator(house: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house.broker.auth, "is_allowed", lambda *_: False)
    with pytest.raises(AccessRefused, match="access to exchange 'amq.default' in vhost '/' refused for user 'guest'"):
        Front(house).publish("", "kept")
    Front(house, operator=True).publish("", "kept")
    monkeypatch.setattr(house.broker.auth, "is_allowed", lambda *_: True)
    monkeypatch.setattr(house.broker.auth, "has_topic_permissions", lambda *_: True)
    monkeypatch.setattr(house.broker.auth, "is_topic_allowed", lambda *arguments: arguments[-1] != "closed")
    front = Front(house)
    front.publish("amq.topic", "open")
    cc = encode_properties(Properties(headers={"CC": ["closed"]}))
    for key, properties in (("closed", PLAIN), ("open", cc)):
        with pytest.raises(AccessRefused, match="access to topic 'closed' in exchange 'amq.topic'"):
            front.publish("amq.topic", key, properties)
        Front(house, operator=True).publish("amq.topic", key, properties)


def test_copies_go_their_way_and_blind_ones_leave_no_trace(house: MemoryBroker) -> None:
    front = Front(house)
    headers = {"CC": ["other"], "BCC": ["brief", "kept"]}
    sent = front.publish("", "kept", encode_properties(Properties(headers=headers)))
    assert decode_properties(sent.properties()).headers == {"CC": ["other"]}
    assert [house.vhost.queues[name].ready_count for name in ("kept", "other", "brief")] == [1, 1, 1]
    front.publish("", "kept")
    assert len(front.publisher.route.destinations) == 1


def test_a_reply_to_becomes_the_sessions_key(house: MemoryBroker) -> None:
    front = Front(house)
    front.publisher.reply_key = b"mine"
    sent = front.publish("", "kept", encode_properties(Properties(reply_to="amq.rabbitmq.reply-to")))
    assert decode_properties(sent.properties()).reply_to == "mine"


def test_a_route_that_was_kept_is_asked_for_anew_when_its_exchange_has_changed(house: MemoryBroker) -> None:
    front = Front(house)
    front.publish("amq.fanout", "")
    client = Client(house, "another")
    client.say(1, spec.Channel.Open(), spec.Queue.Unbind(queue="other", exchange="amq.fanout", routing_key=""))
    house.settle()
    front.publish("amq.fanout", "")
    assert [house.vhost.queues[name].ready_count for name in ("kept", "other", "brief")] == [2, 1, 2]


def test_one_question_whether_it_is_safe(house: MemoryBroker) -> None:
    front = Front(house)
    house.broker.alarms.check = lambda: None  # type: ignore[method-assign]
    found: list[bool] = []
    for room in (True, False):
        if not room:
            house.filesystem.capacity = house.filesystem.used()
        message = front.publish("amq.fanout", "")
        logs = front.publisher.route.logs(message)
        assert sorted(log.name for log in logs) == ["kept", "other"]
        when_safe(house.broker.turn, logs, found.append)
        house.settle()
    assert found == [True, False]


@pytest.mark.parametrize("properties", [PLAIN, PERSISTENT], ids=["transient", "persistent"])
def test_a_publish_to_very_many_queues_is_told_of_once(house: MemoryBroker, properties: bytes) -> None:
    client = Client(house, "wide")
    client.say(1, spec.Channel.Open())
    for number in range(WIDE_COUNT + 10):
        client.say(1, spec.Queue.Declare(queue=f"w{number}", durable=number % 2 == 0))
        client.say(1, spec.Queue.Bind(queue=f"w{number}", exchange="amq.fanout"))
    house.settle()
    front = Front(house)
    message = front.publisher.compose("amq.fanout", "", properties, b"x")
    found: list[bool] = []
    SlicedFanout(front.publisher.session, front.publisher.route, message, True, found.append).step()
    assert found == []
    house.settle()
    assert found == [True]
    assert {house.vhost.queues[f"w{number}"].ready_count for number in range(WIDE_COUNT + 10)} == {1}


# -- a log that is not local -----------------------------------------------------------------------------------------


class RemoteLog(QueueLog):
    """Keeps nothing; what was appended is safe when the test says so."""

    def __init__(self, name: str) -> None:
        super().__init__("v", name, name, "", False)
        self.safe_offset = 0
        self.ready = True

    @property
    def high_watermark(self) -> int:
        return self.safe_offset

    def recover(self) -> None:
        """There is nothing to recover."""

    def begin_transaction(self) -> None:
        """Nothing is kept."""

    end_transaction = begin_transaction

    def append(self, *_: object) -> int:
        offset = self.next_offset
        self.next_offset = offset + 1
        return offset

    def advance(self, safe_offset: int) -> None:
        self.safe_offset = safe_offset
        self.on_high_watermark()

    def fail(self) -> None:
        self.failed = True
        self.on_high_watermark()


@pytest.fixture
def far(house: MemoryBroker) -> RemoteLog:
    """The log of a queue `far`."""
    log = RemoteLog("far")
    queue = make_queue(house.vhost.queue_host, "far", True, False, None, {}, log)
    queue.can_open()
    house.vhost.add_queue(queue)
    return log


def test_a_confirm_waits_for_the_high_watermark_of_a_log_that_is_not_local(house: MemoryBroker, far: RemoteLog) -> None:
    front = Front(house)
    front.publish("", "far")
    front.publish("", "far")
    house.settle()
    assert front.heard() == []
    far.advance(1)
    house.settle()
    assert front.heard() == [], "one mark for what one turn brought: both, or none yet"
    far.advance(2)
    assert front.heard() == ["OK 1-2"]


def test_confirms_keep_their_order_behind_it(house: MemoryBroker, far: RemoteLog) -> None:
    front, other = Front(house), Front(house)
    for key in ("kept", "far", "kept", "brief"):
        front.publish("", key)
        other.publish("", "kept")
        house.settle()
    assert (front.heard(), other.heard()) == (["OK 1-1"], ["OK 1-1", "OK 2-2", "OK 3-3", "OK 4-4"])
    front.publish("", "far")
    house.settle()
    far.advance(1)
    assert front.heard() == ["OK 2-4"]
    far.advance(2)
    assert front.heard() == ["OK 5-5"]


def test_what_it_had_already_made_safe_waits_for_nothing(house: MemoryBroker, far: RemoteLog) -> None:
    front = Front(house)
    front.publish("", "far")
    far.advance(1)
    house.settle()
    assert front.heard() == ["OK 1-1"]


def test_a_transient_message_waits_for_it_too(house: MemoryBroker, far: RemoteLog) -> None:
    """It is stored there as a persistent one is: confirmed before, it would be anywhere but where it was sent."""
    front = Front(house)
    front.publish("", "far", PLAIN)
    house.settle()
    assert front.heard() == []
    far.advance(1)
    assert front.heard() == ["OK 1-1"]


def test_what_it_went_with_in_the_same_turn_waits_for_nothing(house: MemoryBroker, far: RemoteLog) -> None:
    front = Front(house)
    front.publish("", "far")
    front.publish("", "brief")
    house.vhost.queues["far"].backing.store = None
    house.settle()
    assert front.heard() == ["OK 1-2"], "with the turn, and not with whatever is published next"


def test_a_failure_of_it_refuses_what_it_had_not_made_safe(house: MemoryBroker, far: RemoteLog) -> None:
    front = Front(house)
    for key in ("far", "kept", "far", "kept"):
        front.publish("", key)
        house.settle()
    far.advance(1)
    assert front.heard() == ["OK 1-2"]
    far.fail()
    assert front.heard() == ["LOST 3-3", "OK 4-4"]


def test_both_must_be_safe_where_a_message_went_to_both(house: MemoryBroker, far: RemoteLog) -> None:
    house.broker.alarms.check = lambda: None  # type: ignore[method-assign]
    client = Client(house, "binder")
    client.say(1, spec.Channel.Open(), spec.Queue.Bind(queue="far", exchange="amq.fanout", routing_key=""))
    house.settle()
    front = Front(house)
    front.publish("amq.fanout", "")
    house.settle()
    found: list[bool] = []
    logs = front.publisher.route.logs(front.publisher.compose("amq.fanout", "", PERSISTENT, b"x"))
    when_safe(house.broker.turn, logs, found.append)
    house.settle()
    assert (front.heard(), found) == ([], [])
    far.advance(1)
    assert (front.heard(), found) == (["OK 1-1"], [True])
    house.filesystem.capacity = house.filesystem.used()
    front.publish("amq.fanout", "")
    house.settle()
    far.advance(2)
    assert front.heard() == ["LOST 2-2"]


def test_a_channels_confirms_and_commits_wait_for_it_too(house: MemoryBroker, far: RemoteLog) -> None:
    client = Client(house, "amqp")
    client.say(1, spec.Channel.Open(), spec.Confirm.Select())
    client.say(2, spec.Channel.Open(), spec.Tx.Select())
    house.settle()
    client.heard()
    client.publish(1, "far", [b"x", b"y"], PERSISTENT)
    client.publish(2, "far", [b"z"], PERSISTENT)
    client.say(2, spec.Tx.Commit())
    house.settle()
    assert client.heard() == []
    far.advance(3)
    house.settle()
    acked, committed = sorted(client.heard(), key=lambda event: event.channel)
    assert (acked.method.delivery_tag, acked.method.multiple) == (2, True)
    assert committed.method.name == "Tx.CommitOk"
