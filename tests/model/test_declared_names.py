"""Reserved names: declare, find, bind, delete and publish while a commit is pending or fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pamqp.commands as spec
import pytest
from memory_metadata import DeclarationBroker, FailingClient

from amqpd.broker.message import NO_MESSAGE
from amqpd.broker.publish import router
from amqpd.broker.publish.exchange_state import MetadataCacheStore
from amqpd.broker.vhost import declare as bindings
from amqpd.broker.vhost import policies, vhosts
from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.broker.vhost.vhost import VHost
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.rows import BindingRow, PolicyRow, Put


class ScriptedBroker(DeclarationBroker):
    def client(self) -> FailingClient:
        client = FailingClient(self, f"c{len(self.connections.by_name)}")
        client.say(1, spec.Channel.Open(), spec.Confirm.Select())
        self.replies(client)
        return client

    def replies(self, client: FailingClient) -> list[str]:
        """Return the names of the replies; for a close with its code."""
        self.settle()
        return [_name(event.method) for event in client.heard()]

    def commit(self, *, fails: bool = False, stored: bool = False) -> None:
        self.metadata.commit(fails=fails, stored=stored)
        self.settle()

    def commit_all(self) -> None:
        while self.metadata.waiting:
            self.commit()

    def run_retries(self) -> None:
        retries, self.retry_loop.retries = self.retry_loop.retries, []
        for retry in retries:
            retry()

    def set_up(self, client: FailingClient) -> None:
        """Declare q, bound to x, all durable."""
        client.say(1, declare("q"), spec.Exchange.Declare(exchange="x", exchange_type="direct", durable=True), BIND)
        self.settle()
        self.commit_all()
        assert self.replies(client)[-1] == "Queue.BindOk"


BIND = spec.Queue.Bind(queue="q", exchange="x", routing_key="k")
UNBIND = spec.Queue.Unbind(queue="q", exchange="x", routing_key="k")
POLICY: Any = {"pattern": "^amq.direct$", "definition": {"delayed-message": True}, "priority": 0}
DELAYED = ExchangeDeclaration("d", "x-delayed-message", True, False, False, {"x-delayed-type": "direct"})


def declare(queue: str, **flags: bool) -> Any:
    return spec.Queue.Declare(queue=queue, **{"durable": True, **flags})


def _name(method: Any) -> str:
    name: str = method.name
    return f"{name} {method.reply_code}" if name in ("Channel.Close", "Connection.Close") else name


@pytest.fixture
def server() -> Iterator[ScriptedBroker]:
    server = ScriptedBroker()
    yield server
    server.end()


def test_declare_of_queue_with_pending_commit_waits_for_it(server: ScriptedBroker) -> None:
    first, second, third = server.client(), server.client(), server.client()
    first.say(1, declare("q"))
    second.say(1, declare("q"))
    third.say(1, declare("q", passive=True))
    assert len(server.metadata.waiting) == 1
    assert [server.replies(each) for each in (first, second, third)] == [[], [], []]
    server.commit()
    assert [server.replies(each) for each in (first, second, third)] == [["Queue.DeclareOk"]] * 3
    assert not server.metadata.waiting


def test_failed_declaration_leaves_nothing_and_next_one_commits_itself(server: ScriptedBroker) -> None:
    first, second = server.client(), server.client()
    first.say(1, declare("q"))
    second.say(1, declare("q"))
    server.commit(fails=True)
    assert first.failed == 506
    assert "q" not in server.vhost.queues
    assert server.replies(second) == [], "the first client's row is not yet removed"
    server.commit()
    assert server.replies(second) == []
    server.commit()
    assert server.replies(second) == ["Queue.DeclareOk"]


def test_failed_but_stored_declaration_is_removed_before_next_one(server: ScriptedBroker) -> None:
    """Happens when a database server goes away before its answer. Two rows of one name would hide the messages of
    one queue.
    """
    first, second = server.client(), server.client()
    first.say(1, declare("q"))
    server.commit(fails=True, stored=True)
    assert first.failed == 506
    second.say(1, declare("q"))
    server.commit_all()
    second.publish_mandatory("q", b"m")
    assert server.replies(second) == ["Queue.DeclareOk", "Basic.Ack"]
    assert [row.id for row in server.rows.state().queues] == [server.vhost.queues["q"].id]


def test_consume_from_queue_whose_declaration_fails_is_not_found(server: ScriptedBroker) -> None:
    first, second = server.client(), server.client()
    first.say(1, declare("q"))
    second.say(1, spec.Basic.Consume(queue="q"))
    server.commit(fails=True)
    server.commit()
    assert server.replies(second) == ["Channel.Close 404"]


def test_pending_declaration_delays_publishes_of_its_own_channel_only(server: ScriptedBroker) -> None:
    first, second = server.client(), server.client()
    first.say(1, declare("q"))
    first.publish_mandatory("q", b"mine")
    second.publish_mandatory("q", b"theirs")
    assert server.replies(second) == ["Basic.Return", "Basic.Ack"], "to a publisher the queue does not exist yet"
    assert server.replies(first) == []
    server.commit()
    assert server.replies(first) == ["Queue.DeclareOk", "Basic.Ack"]
    assert server.vhost.queues["q"].ready_count == 1


def test_failed_queue_deletion_is_retried_until_written(server: ScriptedBroker) -> None:
    first, second, third = server.client(), server.client(), server.client()
    server.set_up(first)
    old = server.vhost.queues["q"].id
    first.say(1, spec.Queue.Delete(queue="q"))
    second.say(1, declare("q"))
    server.commit(fails=True)
    assert (first.failed, second.failed) == (506, 506), "a restart would find the old queue"
    server.run_retries()
    third.say(1, declare("q"))
    server.commit(fails=True)
    assert third.failed == 506
    server.run_retries()
    server.commit_all()
    fourth = server.client()
    fourth.say(1, declare("q"))
    server.commit_all()
    assert server.replies(fourth) == ["Queue.DeclareOk"]
    assert server.vhost.queues["q"].id != old
    assert server.vhost.all_bindings() == []
    server.again(clean=True)
    assert server.vhost.queues["q"].id != old
    assert server.vhost.all_bindings() == []


def test_failed_auto_delete_is_retried_until_written(server: ScriptedBroker) -> None:
    client = server.client()
    client.say(1, declare("q", auto_delete=True))
    server.commit()
    client.say(1, spec.Basic.Consume(queue="q", consumer_tag="c"), spec.Basic.Cancel(consumer_tag="c"))
    server.commit(fails=True)
    assert server.replies(client)[-1] == "Basic.CancelOk"
    server.run_retries()
    server.commit_all()
    server.again(clean=True)
    assert "q" not in server.vhost.queues


def test_pending_binding_to_deleted_queue_is_not_found(server: ScriptedBroker) -> None:
    first, second = server.client(), server.client()
    server.set_up(first)
    first.say(1, UNBIND)
    server.commit_all()
    first.heard()
    first.say(1, BIND)
    second.say(1, spec.Queue.Delete(queue="q"))
    server.commit_all()
    assert server.replies(first) == ["Channel.Close 404"]
    assert server.replies(second) == ["Queue.DeleteOk"]
    assert server.rows.state().bindings == []
    assert server.vhost.all_bindings() == []


def test_concurrent_equal_bindings_make_one_binding(server: ScriptedBroker) -> None:
    first, second = server.client(), server.client()
    server.set_up(first)
    first.say(1, UNBIND)
    server.commit_all()
    first.say(1, BIND)
    second.say(1, BIND)
    server.commit_all()
    first.say(1, UNBIND)
    server.commit_all()
    exchange = server.vhost.exchanges["x"]
    assert exchange.bindings == {}
    assert router.route(server.vhost, exchange, ["k"], NO_MESSAGE) == []


def test_failed_unbind_changes_nothing(server: ScriptedBroker) -> None:
    first, second = server.client(), server.client()
    server.set_up(first)
    first.say(1, UNBIND)
    server.commit(fails=True)
    assert first.failed == 506
    server.commit()
    assert len(server.vhost.all_bindings()) == len(server.rows.state().bindings) == 1
    second.say(1, UNBIND)
    server.commit()
    assert server.replies(second) == ["Queue.UnbindOk"]
    assert server.vhost.all_bindings() == server.rows.state().bindings == []


def bind(**arguments: object) -> Any:
    return spec.Queue.Bind(queue="q", exchange="x", routing_key="k", arguments=arguments)


def unbind(**arguments: object) -> Any:
    return spec.Queue.Unbind(queue="q", exchange="x", routing_key="k", arguments=arguments)


class TestBindingArguments:
    """RabbitMQ: arguments are compared sorted by name, and the type class of a number counts."""

    @pytest.fixture
    def client(self, server: ScriptedBroker) -> FailingClient:
        client = server.client()
        server.set_up(client)
        return client

    def binding_count(self, server: ScriptedBroker) -> int:
        """Count the bindings besides that of `set_up`; memory and database must agree."""
        assert len(server.vhost.exchanges["x"].bindings) == len(server.rows.state().bindings)
        return len(server.rows.state().bindings) - 1

    def test_order_of_arguments_does_not_matter(self, server: ScriptedBroker, client: FailingClient) -> None:
        exchange, queue = server.vhost.exchanges["x"], server.vhost.queues["q"]
        for table in (
            {"b": "2", "a": 1},
            {"a": 1, "b": "2"},
        ):  # called directly, since client libraries sort the arguments
            bindings.bind(server.vhost, exchange, queue, "k", dict(table))
            server.commit_all()
        assert self.binding_count(server) == 1
        bindings.unbind(server.vhost, exchange, queue, "k", {"b": "2", "a": 1})
        server.commit_all()
        assert self.binding_count(server) == 0

    def test_argument_of_another_type_makes_another_binding(
        self, server: ScriptedBroker, client: FailingClient
    ) -> None:
        client.say(1, bind(n=5), bind(n=5.0), bind(n=True), bind(n="5"), bind(n=1))
        server.commit_all()
        assert self.binding_count(server) == 5
        client.say(1, unbind(n=5.0), unbind(n=True))
        server.commit_all()
        remaining = [each.arguments["n"] for each in server.vhost.exchanges["x"].bindings.values() if each.arguments]
        assert sorted(map(repr, remaining)) == ["'5'", "1", "5"]

    def test_row_with_arguments_in_another_order_can_be_unbound(
        self, server: ScriptedBroker, client: FailingClient
    ) -> None:
        """An earlier version stored arguments in the given order, and each order as a binding of its own."""
        for table in ({"b": "2", "a": 1}, {"a": 1, "b": "2"}):
            server.rows.apply([Put(BindingRow("/", "x", "q", "queue", "k", encode_table(table)))])
        server.again(clean=True)
        assert self.binding_count(server) == 1
        client = server.client()
        client.say(1, unbind(a=1, b="2"))
        server.commit_all()
        assert self.binding_count(server) == 0


def test_undo_of_unbind_does_not_bind_a_later_queue_of_that_name(server: ScriptedBroker) -> None:
    first, second = server.client(), server.client()
    server.set_up(first)
    first.say(1, UNBIND)
    server.commit(fails=True)
    server.commit(fails=True)  # the undo, which is repeated
    second.say(1, spec.Queue.Delete(queue="q"))
    server.settle()
    server.commit_all()
    second.say(1, declare("q"))
    server.settle()
    server.commit_all()
    assert server.replies(second) == ["Queue.DeleteOk", "Queue.DeclareOk"]
    server.run_retries()
    server.commit_all()
    assert server.rows.state().bindings == []


class TestDeletedVhost:
    """A vhost that is deleted while a change of it waits for its commit, and then declared again."""

    def declare(self, server: ScriptedBroker) -> VHost:
        vhosts.declare(server.broker.vhosts, "other")
        server.settle()
        server.commit_all()
        return server.broker.vhosts["other"]

    def delete(self, server: ScriptedBroker, vhost: VHost) -> None:
        vhosts.delete(server.broker.vhosts, vhost)

    def test_exchange_is_not_declared(self, server: ScriptedBroker) -> None:
        vhost = self.declare(server)
        answers: list[object] = []
        self.delete(server, vhost)
        bindings.declare_exchange(vhost, DELAYED, answers.append)
        server.commit_all()
        assert isinstance(answers[0], DeclarationPending), "the command is retried and then finds no vhost"
        assert "d" not in vhost.exchanges
        again = self.declare(server)
        bindings.declare_exchange(again, DELAYED)
        server.commit_all()
        assert getattr(again.exchanges["d"].wheel, "vhost_id", "") == again.id, "the files are in the new vhost"

    def test_policy_is_not_applied(self, server: ScriptedBroker) -> None:
        vhost = self.declare(server)
        policies.declare(vhost, "p", POLICY)
        self.delete(server, vhost)
        for _ in range(2):  # both in one loop turn
            server.metadata.commit()
        server.settle()
        server.commit_all()
        assert vhost.exchanges["amq.direct"].wheel is None
        assert server.broker.delays.wheels_of("other") == []

    def test_failed_policy_is_not_restored(self, server: ScriptedBroker) -> None:
        """The database refuses the row of a vhost that does not exist, so the undo would be repeated for ever."""
        vhost = self.declare(server)
        policies.declare(vhost, "p", POLICY)
        server.commit_all()
        policies.declare(vhost, "p", {**POLICY, "priority": 3})
        server.commit(fails=True)
        server.commit(fails=True)  # the undo
        self.delete(server, vhost)
        server.commit_all()
        server.run_retries()
        server.commit_all()
        assert not server.rows._rows[PolicyRow] and not server.retry_loop.retries

    def test_deduplication_ids_are_not_written(self, server: ScriptedBroker) -> None:
        vhost = self.declare(server)
        arguments: dict[str, object] = {"x-cache-size": 10, "x-cache-persistence": "disk"}
        bindings.declare_exchange(
            vhost, ExchangeDeclaration("d", "x-message-deduplication", True, False, False, arguments)
        )
        server.commit_all()
        matcher: Any = vhost.exchanges["d"].matcher
        store: MetadataCacheStore = matcher.memory.store
        self.delete(server, vhost)
        server.commit_all()
        written: list[bool] = []
        store.put([], written.append)
        assert written == [True] and not server.metadata.waiting
