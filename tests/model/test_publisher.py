"""A protocol front end other than AMQP: it publishes through `Publisher` and gets confirms in a few lines."""

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
from amqpd.broker.session import Session
from amqpd.broker.vhost.declaration import make_queue
from amqpd.errors import AccessRefused, NotFound, PreconditionFailed
from amqpd.protocol.properties import Properties, decode_properties, encode_properties
from amqpd.storage.queue_log import QueueLog

PLAIN = b"\0\0"
PERSISTENT = b"\x10\0\x02"


class Answers(ConfirmTracker):
    """The answers that the front end would write to its client."""

    def __init__(self, turn: LoopTurn) -> None:
        super().__init__(turn)
        self.lines: list[str] = []

    def confirmed(self, first: int, last: int) -> None:
        self.lines.append(f"OK {first}-{last}")

    def refused(self, first: int, last: int) -> None:
        self.lines.append(f"LOST {first}-{last}")


class Front:
    """One client of the front end."""

    def __init__(self, server: MemoryBroker, operator: bool = False) -> None:
        broker: Broker = server.broker
        session = Session(broker, server.vhost, User("guest"), "front")  # type: ignore[arg-type]
        session.operator = operator
        self.publisher = Publisher(session)
        self.answers = Answers(broker.turn)

    def publish(self, exchange: str, key: str, properties: bytes = PERSISTENT, body: bytes = b"x") -> Message:
        message = self.publisher.compose(exchange, key, properties, body)
        route = self.publisher.route
        if self.publisher.offer(route, message):
            self.answers.add(route, message)
        return message

    def replies(self) -> list[str]:
        lines, self.answers.lines = self.answers.lines, []
        return lines


@pytest.fixture
def server() -> Iterator[MemoryBroker]:
    server = MemoryBroker()
    client = Client(server, "client")
    client.say(1, spec.Channel.Open())
    for name, durable in (("kept", True), ("other", True), ("brief", False)):
        client.say(1, spec.Queue.Declare(queue=name, durable=durable))
        client.say(1, spec.Queue.Bind(queue=name, exchange="amq.fanout"))
    client.say(1, spec.Exchange.Declare(exchange="inside", internal=True))
    server.settle()
    yield server
    server.end()


def test_transient_and_unroutable_messages_are_confirmed_at_end_of_turn(server: MemoryBroker) -> None:
    front = Front(server)
    front.publish("", "brief")
    front.publish("", "kept", PLAIN)
    front.publish("amq.direct", "nobody's")
    assert front.replies() == []
    server.settle()
    assert front.replies() == ["OK 1-3"]
    assert [server.vhost.queues[name].ready_count for name in ("brief", "kept")] == [1, 1]


def test_persistent_message_is_confirmed_when_log_is_safe(server: MemoryBroker) -> None:
    front = Front(server)
    front.publish("", "kept")
    front.publish("amq.fanout", "")
    server.settle()
    assert front.replies() == ["OK 1-2"]
    server.again(clean=False)
    assert [server.vhost.queue(name).ready_count for name in ("kept", "other")] == [2, 1]


def test_early_confirm_is_not_repeated(server: MemoryBroker) -> None:
    front = Front(server)
    front.publish("", "brief")
    front.answers.confirm_early()
    assert front.replies() == ["OK 1-1"]
    front.publish("", "kept")
    front.answers.confirm_early()
    assert front.replies() == []
    front.answers.add_safe()
    server.settle()
    assert front.replies() == ["OK 2-3"]


def test_message_that_log_cannot_write_is_refused(server: MemoryBroker) -> None:
    front = Front(server)
    server.broker.alarms.check = lambda: None  # type: ignore[method-assign]  # the simulated disk is not a real file system
    front.publish("", "kept")
    server.settle()
    server.filesystem.capacity = server.filesystem.used()
    front.publish("", "brief")
    front.publish("", "kept")
    server.settle()
    assert front.replies() == ["OK 1-1", "LOST 2-3"]


def test_ended_tracker_sends_no_confirm(server: MemoryBroker) -> None:
    front = Front(server)
    front.publish("", "kept")
    front.answers.ended = True
    server.settle()
    assert front.replies() == []


def test_publish_errors_equal_amqp_errors_without_method(server: MemoryBroker) -> None:
    front = Front(server)
    with pytest.raises(NotFound, match="no exchange 'nosuch' in vhost '/'") as results:
        front.publish("nosuch", "k")
    assert results.value.method == 0
    with pytest.raises(AccessRefused, match="cannot publish to internal exchange 'inside' in vhost '/'"):
        front.publish("inside", "k")
    with pytest.raises(PreconditionFailed, match="invalid expiration 'soon': no_integer"):
        front.publish("", "kept", encode_properties(Properties(expiration="soon")))
    with pytest.raises(PreconditionFailed, match="fast reply consumer does not exist"):
        front.publish("", "kept", encode_properties(Properties(reply_to="amq.rabbitmq.reply-to")))


def test_permissions_apply_except_to_operator(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.broker.auth, "is_allowed", lambda *_: False)
    with pytest.raises(AccessRefused, match="access to exchange 'amq.default' in vhost '/' refused for user 'guest'"):
        Front(server).publish("", "kept")
    Front(server, operator=True).publish("", "kept")
    monkeypatch.setattr(server.broker.auth, "is_allowed", lambda *_: True)
    monkeypatch.setattr(server.broker.auth, "has_topic_permissions", lambda *_: True)
    monkeypatch.setattr(server.broker.auth, "is_topic_allowed", lambda *arguments: arguments[-1] != "closed")
    front = Front(server)
    front.publish("amq.topic", "open")
    cc = encode_properties(Properties(headers={"CC": ["closed"]}))
    for key, properties in (("closed", PLAIN), ("open", cc)):
        with pytest.raises(AccessRefused, match="access to topic 'closed' in exchange 'amq.topic'"):
            front.publish("amq.topic", key, properties)
        Front(server, operator=True).publish("amq.topic", key, properties)


def test_cc_and_bcc_are_routed_and_bcc_is_removed(server: MemoryBroker) -> None:
    front = Front(server)
    headers = {"CC": ["other"], "BCC": ["brief", "kept"]}
    sent = front.publish("", "kept", encode_properties(Properties(headers=headers)))
    assert decode_properties(sent.properties()).headers == {"CC": ["other"]}
    assert [server.vhost.queues[name].ready_count for name in ("kept", "other", "brief")] == [1, 1, 1]
    front.publish("", "kept")
    assert len(front.publisher.route.destinations) == 1


def test_direct_reply_to_becomes_reply_key_of_session(server: MemoryBroker) -> None:
    front = Front(server)
    front.publisher.reply_key = b"mine"
    sent = front.publish("", "kept", encode_properties(Properties(reply_to="amq.rabbitmq.reply-to")))
    assert decode_properties(sent.properties()).reply_to == "mine"


def test_cached_route_is_renewed_after_unbind(server: MemoryBroker) -> None:
    front = Front(server)
    front.publish("amq.fanout", "")
    client = Client(server, "another")
    client.say(1, spec.Channel.Open(), spec.Queue.Unbind(queue="other", exchange="amq.fanout", routing_key=""))
    server.settle()
    front.publish("amq.fanout", "")
    assert [server.vhost.queues[name].ready_count for name in ("kept", "other", "brief")] == [2, 1, 2]


def test_when_safe_reports_success_or_failure_of_all_logs(server: MemoryBroker) -> None:
    front = Front(server)
    server.broker.alarms.check = lambda: None  # type: ignore[method-assign]
    results: list[bool] = []
    for has_space in (True, False):
        if not has_space:
            server.filesystem.capacity = server.filesystem.used()
        message = front.publish("amq.fanout", "")
        logs = front.publisher.route.logs(message)
        assert sorted(log.name for log in logs) == ["kept", "other"]
        when_safe(server.broker.turn, logs, results.append)
        server.settle()
    assert results == [True, False]


@pytest.mark.parametrize("properties", [PLAIN, PERSISTENT], ids=["transient", "persistent"])
def test_sliced_fanout_reports_once_when_complete(server: MemoryBroker, properties: bytes) -> None:
    client = Client(server, "wide")
    client.say(1, spec.Channel.Open())
    for number in range(WIDE_COUNT + 10):
        client.say(1, spec.Queue.Declare(queue=f"w{number}", durable=number % 2 == 0))
        client.say(1, spec.Queue.Bind(queue=f"w{number}", exchange="amq.fanout"))
    server.settle()
    front = Front(server)
    message = front.publisher.compose("amq.fanout", "", properties, b"x")
    results: list[bool] = []
    SlicedFanout(front.publisher.session, front.publisher.route, message, True, results.append).step()
    assert results == []
    server.settle()
    assert results == [True]
    assert {server.vhost.queues[f"w{number}"].ready_count for number in range(WIDE_COUNT + 10)} == {1}


# -- a remote log ----------------------------------------------------------------------------------------------------


class RemoteLog(QueueLog):
    """A log that stores nothing; the test decides up to which offset it is safe."""

    def __init__(self, name: str) -> None:
        super().__init__("v", name, name, "", False)
        self.safe_offset = 0
        self.ready = True

    @property
    def high_watermark(self) -> int:
        return self.safe_offset

    def recover(self) -> None:
        """Do nothing: there is nothing to recover."""

    def begin_transaction(self) -> None:
        """Do nothing."""

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
def remote_log(server: MemoryBroker) -> RemoteLog:
    """Return the log of a queue `far`."""
    log = RemoteLog("far")
    queue = make_queue(server.vhost.queue_host, "far", True, False, None, {}, log)
    queue.can_open()
    server.vhost.add_queue(queue)
    return log


def test_confirm_waits_for_high_watermark_of_remote_log(server: MemoryBroker, remote_log: RemoteLog) -> None:
    front = Front(server)
    front.publish("", "far")
    front.publish("", "far")
    server.settle()
    assert front.replies() == []
    remote_log.advance(1)
    server.settle()
    assert front.replies() == [], "messages of one turn are confirmed together"
    remote_log.advance(2)
    assert front.replies() == ["OK 1-2"]


def test_confirms_keep_order_behind_remote_log(server: MemoryBroker, remote_log: RemoteLog) -> None:
    front, other = Front(server), Front(server)
    for key in ("kept", "far", "kept", "brief"):
        front.publish("", key)
        other.publish("", "kept")
        server.settle()
    assert (front.replies(), other.replies()) == (["OK 1-1"], ["OK 1-1", "OK 2-2", "OK 3-3", "OK 4-4"])
    front.publish("", "far")
    server.settle()
    remote_log.advance(1)
    assert front.replies() == ["OK 2-4"]
    remote_log.advance(2)
    assert front.replies() == ["OK 5-5"]


def test_message_already_safe_in_remote_log_is_confirmed_with_its_turn(
    server: MemoryBroker, remote_log: RemoteLog
) -> None:
    front = Front(server)
    front.publish("", "far")
    remote_log.advance(1)
    server.settle()
    assert front.replies() == ["OK 1-1"]


def test_transient_message_waits_for_remote_log(server: MemoryBroker, remote_log: RemoteLog) -> None:
    """A remote log stores transient messages like persistent ones; confirmed earlier, the message could still be
    lost.
    """
    front = Front(server)
    front.publish("", "far", PLAIN)
    server.settle()
    assert front.replies() == []
    remote_log.advance(1)
    assert front.replies() == ["OK 1-1"]


def test_removed_remote_log_does_not_delay_confirms_of_its_turn(server: MemoryBroker, remote_log: RemoteLog) -> None:
    front = Front(server)
    front.publish("", "far")
    front.publish("", "brief")
    server.vhost.queues["far"].backing.store = None
    server.settle()
    assert front.replies() == ["OK 1-2"], "confirmed at the end of the turn, not with the next publish"


def test_failed_remote_log_refuses_only_unsafe_messages(server: MemoryBroker, remote_log: RemoteLog) -> None:
    front = Front(server)
    for key in ("far", "kept", "far", "kept"):
        front.publish("", key)
        server.settle()
    remote_log.advance(1)
    assert front.replies() == ["OK 1-2"]
    remote_log.fail()
    assert front.replies() == ["LOST 3-3", "OK 4-4"]


def test_message_in_local_and_remote_log_waits_for_both(server: MemoryBroker, remote_log: RemoteLog) -> None:
    server.broker.alarms.check = lambda: None  # type: ignore[method-assign]
    client = Client(server, "binder")
    client.say(1, spec.Channel.Open(), spec.Queue.Bind(queue="far", exchange="amq.fanout", routing_key=""))
    server.settle()
    front = Front(server)
    front.publish("amq.fanout", "")
    server.settle()
    results: list[bool] = []
    logs = front.publisher.route.logs(front.publisher.compose("amq.fanout", "", PERSISTENT, b"x"))
    when_safe(server.broker.turn, logs, results.append)
    server.settle()
    assert (front.replies(), results) == ([], [])
    remote_log.advance(1)
    assert (front.replies(), results) == (["OK 1-1"], [True])
    server.filesystem.capacity = server.filesystem.used()
    front.publish("amq.fanout", "")
    server.settle()
    remote_log.advance(2)
    assert front.replies() == ["LOST 2-2"]


def test_confirms_and_commits_of_channel_wait_for_remote_log(server: MemoryBroker, remote_log: RemoteLog) -> None:
    client = Client(server, "amqp")
    client.say(1, spec.Channel.Open(), spec.Confirm.Select())
    client.say(2, spec.Channel.Open(), spec.Tx.Select())
    server.settle()
    client.heard()
    client.publish(1, "far", [b"x", b"y"], PERSISTENT)
    client.publish(2, "far", [b"z"], PERSISTENT)
    client.say(2, spec.Tx.Commit())
    server.settle()
    assert client.heard() == []
    remote_log.advance(3)
    server.settle()
    acked, committed = sorted(client.heard(), key=lambda event: event.channel)
    assert (acked.method.delivery_tag, acked.method.multiple) == (2, True)
    assert committed.method.name == "Tx.CommitOk"
