"""Declarations and bindings of one channel share a commit, and are answered in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import memory_broker
import pamqp.commands as spec
import pytest
from memory_broker import MemoryBroker
from served import Served, publishes

from amqpd.broker.vhost import pending
from amqpd.broker.vhost.pending import BUDGET
from amqpd.channel.channel import AHEAD_MAX
from amqpd.connection.channel_zero import COMMANDS_WAIT_S
from amqpd.errors import PreconditionFailed
from amqpd.storage.metadata.rows import DeleteBindings, Put
from amqpd.storage.metadata.store import WriteFailed

Done = Callable[[BaseException | None], None]


class HeldMetadata:
    """Metadata whose commits wait for `commit`.

    Attributes:
        changes: all submitted changes.
    """

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.waiting: list[Done] = []
        self.changes: list[object] = []

    def submit(self, changes: Sequence[object], done: Done) -> None:
        self.changes += changes
        self.waiting.append(done)

    def commit(self, *errors: BaseException | None) -> int:
        """Answer all waiting submissions, the first with the given errors. Return their number."""
        waiting, self.waiting = self.waiting, []
        for index, done in enumerate(waiting):
            self.loop.call_soon(done, errors[index] if index < len(errors) else None)
        self.loop.run()
        return len(waiting)


class Room:
    """A client with channel 1 on a broker whose metadata commits wait."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        metadata: Any = self.broker.broker.metadata
        self.metadata: HeldMetadata = metadata
        self.client = self.connect()

    def connect(self) -> Served:
        client = Served(self.broker)
        client.send(1, spec.Channel.Open())
        client.received()
        return client

    def send(self, *methods: Any) -> None:
        self.client.send(1, *methods)
        self.broker.settle()

    def queues(self) -> list[str]:
        return list(self.broker.vhost.queues)

    def replies(self) -> list[str]:
        """Return the names of the received methods, with the queue's name or the error."""
        found = []
        for event in self.client.received():
            method = event.method
            about = getattr(method, "queue", "") or getattr(method, "reply_code", "")
            found.append(f"{method.name} {about}".rstrip())
        return found

    def end(self) -> None:
        """Commit everything that the client started."""
        while self.metadata.commit():
            pass


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(memory_broker, "PromptMetadata", HeldMetadata)
    return Room()


def queue(name: str, **flags: Any) -> Any:
    return spec.Queue.Declare(queue=name, **{"durable": True, **flags})


def test_declarations_of_channel_share_a_commit(room: Room) -> None:
    room.send(*(queue(f"q{number}") for number in range(40)), spec.Exchange.Declare(exchange="x", durable=True))
    assert room.replies() == [] and room.queues() == []
    assert room.metadata.commit() == 41
    assert room.replies() == [*(f"Queue.DeclareOk q{number}" for number in range(40)), "Exchange.DeclareOk"]
    assert len(room.queues()) == 40


def test_replies_keep_the_order_of_the_commands(room: Room) -> None:
    """Nothing of a transient queue is committed, and the queue `old` exists. Both wait for the reply before them."""
    room.send(queue("old"))
    room.end()
    room.client.received()
    room.send(queue("a"), queue("t", durable=False), queue("old"), queue("old", passive=True), queue("b"))
    assert room.replies() == []
    room.end()
    assert room.replies() == [f"Queue.DeclareOk {name}" for name in ("a", "t", "old", "old", "b")]


def test_error_comes_after_the_replies_before_it(room: Room) -> None:
    wrong = queue("a", arguments={"x-max-length": -1})
    room.send(queue("a"), queue("b"), wrong, queue("c"))
    assert room.replies() == []
    room.end()
    assert room.replies() == ["Queue.DeclareOk a", "Queue.DeclareOk b", "Channel.Close 406"]
    assert room.queues() == ["a", "b"]


def test_second_declaration_of_pending_name_is_compared_with_the_first(room: Room) -> None:
    room.send(queue("a"), queue("a"), queue("a", auto_delete=True), queue("b"))
    room.end()
    assert room.replies() == ["Queue.DeclareOk a", "Queue.DeclareOk a", "Channel.Close 406"]
    assert room.queues() == ["a"]


def test_publish_behind_declarations_waits_for_them(room: Room) -> None:
    room.send(spec.Confirm.Select(), queue("a"), queue("b"))
    room.client.transport.data_received(publishes("b", [b"1"]))
    assert room.replies() == ["Confirm.SelectOk"]
    room.send(queue("c"))
    assert room.metadata.commit() == 2, "the declaration behind the publish did not wait"
    assert room.broker.vhost.queues["b"].ready_count == 1
    room.end()
    assert sorted(room.replies()) == ["Basic.Ack", *(f"Queue.DeclareOk {name}" for name in "abc")]


def test_binding_shares_the_commit_of_its_queue_and_exchange(room: Room) -> None:
    topology = (
        spec.Exchange.Declare(exchange="x", durable=True),
        queue("a"),
        spec.Queue.Bind(queue="a", exchange="x", routing_key="k"),
        spec.Exchange.Declare(exchange="y", durable=True, exchange_type="fanout"),
        spec.Exchange.Bind(destination="x", source="y"),
        queue(""),
        spec.Queue.Bind(queue="", exchange="y"),
    )
    room.send(*topology)
    assert room.metadata.commit() == len(topology)
    names = [each.split()[0] for each in room.replies()]
    declared = ["Exchange.DeclareOk", "Queue.DeclareOk", "Queue.BindOk"]
    assert names == [*declared, "Exchange.DeclareOk", "Exchange.BindOk", "Queue.DeclareOk", "Queue.BindOk"]
    assert len(room.broker.vhost.all_bindings()) == 3
    room.client.transport.data_received(publishes("a", [b"1"]))
    room.send(spec.Queue.Delete(queue="a"))
    assert room.metadata.commit() and room.replies() == ["Queue.DeleteOk"]


def test_deletion_and_unbind_wait_for_the_binding_before_them(room: Room) -> None:
    room.send(
        spec.Exchange.Declare(exchange="x", durable=True),
        *(queue(name) for name in "ab"),
        *(spec.Queue.Bind(queue=name, exchange="x") for name in "ab"),
        spec.Queue.Unbind(queue="a", exchange="x"),
        spec.Queue.Delete(queue="b"),
    )
    room.end()
    names = [each.split()[0] for each in room.replies()]
    replies = ["Exchange.DeclareOk", *["Queue.DeclareOk"] * 2, *["Queue.BindOk"] * 2]
    assert names == [*replies, "Queue.UnbindOk", "Queue.DeleteOk"]
    assert room.queues() == ["a"] and room.broker.vhost.all_bindings() == []


@pytest.mark.parametrize("failing", [0, 1])
def test_bindings_are_deleted_if_the_commit_of_their_queue_or_exchange_fails(room: Room, failing: int) -> None:
    """Their own commits succeed. The client gets 506, and a restart finds no binding."""
    bind = spec.Queue.Bind(queue="a", exchange="x")
    room.send(spec.Exchange.Declare(exchange="x", durable=True), queue("a"), bind)
    room.metadata.commit(*[None] * failing, WriteFailed("full"))
    assert room.replies()[-1] == "Connection.Close 506"
    assert room.broker.vhost.all_bindings() == []
    kind, name = [("exchange", "x"), ("queue", "a")][failing]
    undone = DeleteBindings("/", name, kind)  # type: ignore[arg-type]
    puts = [index for index, change in enumerate(room.metadata.changes) if isinstance(change, Put)]
    assert room.metadata.changes.index(undone) > puts[2]


def test_binding_whose_exchange_another_client_deletes_fails_in_order(room: Room) -> None:
    room.send(queue("a"), spec.Exchange.Declare(exchange="x", durable=True))
    room.end()
    room.client.received()
    other = room.connect()
    room.send(queue("b"), spec.Queue.Bind(queue="a", exchange="x"), queue("c"))
    other.send(1, spec.Exchange.Delete(exchange="x"))
    room.end()
    assert room.replies() == ["Queue.DeclareOk b", "Channel.Close 404"]
    assert [event.method.name for event in other.received()] == ["Exchange.DeleteOk"]


def test_declarations_without_replies(room: Room) -> None:
    room.send(*(queue(f"q{number}", nowait=True) for number in range(10)), queue("last"))
    assert room.metadata.commit() == 11
    assert room.replies() == ["Queue.DeclareOk last"] and len(room.queues()) == 11


def test_thousands_of_declarations_are_bounded_in_memory_and_per_turn(room: Room) -> None:
    """A turn of the loop runs BUDGET of them, so that other clients need not wait."""
    count = 3000
    room.client.send(1, *(queue(f"q{number}") for number in range(count)))
    assert len(room.metadata.waiting) == BUDGET + 1, "the first one is not ahead of any other"
    room.broker.settle()
    committed = [len(room.metadata.waiting)]
    replies = room.replies()
    while room.metadata.waiting:
        assert len(room.metadata.waiting) <= AHEAD_MAX
        committed.append(room.metadata.commit())
        replies += room.replies()
    assert replies == [f"Queue.DeclareOk q{number}" for number in range(count)]
    assert committed[0] == AHEAD_MAX and len(committed) < 4 * count / AHEAD_MAX
    assert room.client.connection.pending_commands.deferred_bytes == 0


def test_all_channels_together_are_bounded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of a slow disk do not return. Each channel still has one declaration, as any channel that waits."""
    monkeypatch.setattr(pending, "HELD_MAX", 50)
    for channel in range(2, 12):
        room.client.send(channel, spec.Channel.Open())
    for channel in range(1, 12):
        room.client.send(channel, *(queue(f"{channel}.{number}") for number in range(30)))
        room.broker.settle()
    assert 50 <= len(room.metadata.waiting) <= 50 + 10
    room.end()
    assert len(room.queues()) == 330
    assert len([reply for reply in room.replies() if reply.startswith("Queue.DeclareOk")]) == 330


def test_channel_closed_meanwhile_gets_no_replies(room: Room) -> None:
    room.send(queue("a"), queue("b"), spec.Channel.Close(reply_code=200, class_id=0, method_id=0), spec.Channel.Open())
    room.end()
    assert room.replies() == ["Queue.DeclareOk a", "Queue.DeclareOk b", "Channel.CloseOk", "Channel.OpenOk"]
    room.send(queue("c"), queue("d"))
    room.client.connection.close_handler.fail_channel(1, PreconditionFailed("a consumer timed out"))
    room.end()
    assert room.replies() == ["Channel.Close 406"]


def test_connection_close_waits_for_the_declarations_before_it(room: Room) -> None:
    """RabbitMQ: the same. Most wait for the budget of a turn, the publish for the last declaration."""
    count = 3 * BUDGET
    room.client.send(1, *(queue(f"q{number}", nowait=True) for number in range(count)))
    room.client.transport.data_received(publishes("q0", [b"1"]))
    room.client.send(0, spec.Connection.Close(reply_code=200, class_id=0, method_id=0))
    room.broker.settle()
    assert room.replies() == []
    room.end()
    assert room.replies() == ["Connection.CloseOk"]
    assert len(room.queues()) == count and room.broker.vhost.queues["q0"].ready_count == 1


def test_connection_close_waits_for_a_name_that_is_being_deleted(room: Room) -> None:
    room.send(queue("a"))
    room.end()
    room.send(spec.Queue.Delete(queue="a", nowait=True), queue("a", auto_delete=True, nowait=True))
    room.client.send(0, spec.Connection.Close(reply_code=200, class_id=0, method_id=0))
    room.end()
    assert room.replies() == ["Queue.DeclareOk a", "Connection.CloseOk"]
    assert room.broker.vhost.queues["a"].auto_delete


def test_connection_close_behind_a_declaration_that_fails(room: Room) -> None:
    wrong = queue("b", arguments={"x-max-length": -1}, nowait=True)
    close = spec.Connection.Close(reply_code=200, class_id=0, method_id=0)
    room.client.send(1, queue("a", nowait=True), wrong, queue("c"))
    room.client.send(0, close)
    room.end()
    assert room.replies() == ["Channel.Close 406", "Connection.CloseOk"]
    assert room.queues() == ["a"]


def test_connection_close_behind_a_channel_that_ends_meanwhile(room: Room) -> None:
    """connection.close waits for the commands of the channel. The close-ok of the channel behind it is discarded."""
    room.send(queue("a"), spec.Queue.Delete(queue="a"))
    room.client.send(0, spec.Connection.Close(reply_code=200, class_id=0, method_id=0))
    room.client.connection.close_handler.fail_channel(1, PreconditionFailed("a consumer timed out"))
    room.send(spec.Channel.CloseOk())
    assert room.replies() == ["Channel.Close 406"]
    room.end()
    assert room.replies() == ["Connection.CloseOk"]


def test_socket_closes_while_connection_close_waits(room: Room) -> None:
    room.send(queue("a"), spec.Queue.Delete(queue="a"))
    room.client.send(0, spec.Connection.Close(reply_code=200, class_id=0, method_id=0))
    room.client.transport.connection_lost(None)
    room.end()
    assert list(room.broker.connections) == []


def test_channel_close_waits_for_the_declarations_before_it(room: Room) -> None:
    count = 3 * BUDGET
    declares = (queue(f"q{number}", nowait=True) for number in range(count))
    room.send(*declares, spec.Channel.Close(reply_code=200, class_id=0, method_id=0))
    room.client.send(0, spec.Connection.Close(reply_code=200, class_id=0, method_id=0))
    room.end()
    assert room.replies() == ["Channel.CloseOk", "Connection.CloseOk"]
    assert len(room.queues()) == count


def test_connection_close_does_not_wait_for_metadata_that_do_not_answer(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: dict[float, Callable[[], None]] = {}
    monkeypatch.setattr(room.broker.loop, "call_later", timers.setdefault)
    room.send(queue("a"))
    room.client.send(0, spec.Connection.Close(reply_code=200, class_id=0, method_id=0))
    assert room.replies() == []
    timers[COMMANDS_WAIT_S]()
    assert room.replies() == ["Connection.CloseOk"]
    room.end()
    assert room.replies() == []
