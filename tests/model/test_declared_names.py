"""Names on their way: who declares, finds, binds, deletes or publishes while a commit is not answered, or fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pamqp.commands as spec
import pytest
from memory_metadata import DeclaredHouse, FailingClient

from amqpd.broker.message import NO_MESSAGE
from amqpd.broker.publish import router
from amqpd.broker.vhost import declare as bindings
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.store import BindingRow, Put


class Room(DeclaredHouse):
    def client(self) -> FailingClient:
        client = FailingClient(self, f"c{len(self.connections.by_name)}")
        client.say(1, spec.Channel.Open(), spec.Confirm.Select())
        self.heard(client)
        return client

    def heard(self, client: FailingClient) -> list[str]:
        """Names of the methods; for a close its code."""
        self.settle()
        return [_name(event.method) for event in client.heard()]

    def commit(self, *, fails: bool = False, kept: bool = False) -> None:
        self.metadata.commit(fails=fails, kept=kept)
        self.settle()

    def commit_all(self) -> None:
        while self.metadata.waiting:
            self.commit()

    def a_second_passes(self) -> None:
        retries, self.retry_loop.retries = self.retry_loop.retries, []
        for retry in retries:
            retry()

    def set_up(self, client: FailingClient) -> None:
        """q bound to x, all durable."""
        client.say(1, declare("q"), spec.Exchange.Declare(exchange="x", exchange_type="direct", durable=True), BIND)
        self.settle()
        self.commit_all()
        assert self.heard(client)[-1] == "Queue.BindOk"


BIND = spec.Queue.Bind(queue="q", exchange="x", routing_key="k")
UNBIND = spec.Queue.Unbind(queue="q", exchange="x", routing_key="k")


def declare(queue: str, **flags: bool) -> Any:
    return spec.Queue.Declare(queue=queue, **{"durable": True, **flags})


def _name(method: Any) -> str:
    name: str = method.name
    return f"{name} {method.reply_code}" if name in ("Channel.Close", "Connection.Close") else name


@pytest.fixture
def room() -> Iterator[Room]:
    house = Room()
    yield house
    house.end()


def test_who_finds_a_queue_on_its_way_waits_with_it(room: Room) -> None:
    first, second, third = room.client(), room.client(), room.client()
    first.say(1, declare("q"))
    second.say(1, declare("q"))
    third.say(1, declare("q", passive=True))
    assert len(room.metadata.waiting) == 1
    assert [room.heard(each) for each in (first, second, third)] == [[], [], []]
    room.commit()
    assert [room.heard(each) for each in (first, second, third)] == [["Queue.DeclareOk"]] * 3
    assert not room.metadata.waiting


def test_a_failed_declaration_leaves_nothing_and_the_next_one_tries_itself(room: Room) -> None:
    first, second = room.client(), room.client()
    first.say(1, declare("q"))
    second.say(1, declare("q"))
    room.commit(fails=True)
    assert first.failed == 506
    assert "q" not in room.vhost.queues
    assert room.heard(second) == [], "what became of the first one's row is open"
    room.commit()
    assert room.heard(second) == []
    room.commit()
    assert room.heard(second) == ["Queue.DeclareOk"]


def test_a_declaration_that_failed_and_was_kept_does_not_stand_beside_the_next_one(room: Room) -> None:
    """As when a database server goes away before its answer: two rows of one name, and one queue's messages hidden."""
    first, second = room.client(), room.client()
    first.say(1, declare("q"))
    room.commit(fails=True, kept=True)
    assert first.failed == 506
    second.say(1, declare("q"))
    room.commit_all()
    second.publish_mandatory("q", b"m")
    assert room.heard(second) == ["Queue.DeclareOk", "Basic.Ack"]
    assert [row.id for row in room.rows.state().queues] == [room.vhost.queues["q"].id]


def test_who_looks_for_what_then_fails_is_told_that_it_is_not_there(room: Room) -> None:
    first, second = room.client(), room.client()
    first.say(1, declare("q"))
    second.say(1, spec.Basic.Consume(queue="q"))
    room.commit(fails=True)
    room.commit()
    assert room.heard(second) == ["Channel.Close 404"]


def test_publishes_behind_a_declaration_wait_on_their_channel_and_only_there(room: Room) -> None:
    first, second = room.client(), room.client()
    first.say(1, declare("q"))
    first.publish_mandatory("q", b"mine")
    second.publish_mandatory("q", b"theirs")
    assert room.heard(second) == ["Basic.Return", "Basic.Ack"], "to a publisher it is not there yet"
    assert room.heard(first) == []
    room.commit()
    assert room.heard(first) == ["Queue.DeclareOk", "Basic.Ack"]
    assert room.vhost.queues["q"].ready_count == 1


def test_a_deletion_that_fails_is_tried_until_it_is_written(room: Room) -> None:
    first, second, third = room.client(), room.client(), room.client()
    room.set_up(first)
    old = room.vhost.queues["q"].id
    first.say(1, spec.Queue.Delete(queue="q"))
    second.say(1, declare("q"))
    room.commit(fails=True)
    assert (first.failed, second.failed) == (506, 506), "a restart would show the old one"
    room.a_second_passes()
    third.say(1, declare("q"))
    room.commit(fails=True)
    assert third.failed == 506
    room.a_second_passes()
    room.commit_all()
    fourth = room.client()
    fourth.say(1, declare("q"))
    room.commit_all()
    assert room.heard(fourth) == ["Queue.DeclareOk"]
    assert room.vhost.queues["q"].id != old
    assert room.vhost.all_bindings() == []
    room.again(clean=True)
    assert room.vhost.queues["q"].id != old
    assert room.vhost.all_bindings() == []


def test_an_auto_delete_queue_whose_end_fails_goes_in_the_end(room: Room) -> None:
    client = room.client()
    client.say(1, declare("q", auto_delete=True))
    room.commit()
    client.say(1, spec.Basic.Consume(queue="q", consumer_tag="c"), spec.Basic.Cancel(consumer_tag="c"))
    room.commit(fails=True)
    assert room.heard(client)[-1] == "Basic.CancelOk"
    room.a_second_passes()
    room.commit_all()
    room.again(clean=True)
    assert "q" not in room.vhost.queues


def test_a_binding_on_its_way_to_a_queue_that_goes_is_refused(room: Room) -> None:
    first, second = room.client(), room.client()
    room.set_up(first)
    first.say(1, UNBIND)
    room.commit_all()
    first.heard()
    first.say(1, BIND)
    second.say(1, spec.Queue.Delete(queue="q"))
    room.commit_all()
    assert room.heard(first) == ["Channel.Close 404"]
    assert room.heard(second) == ["Queue.DeleteOk"]
    assert room.rows.state().bindings == []
    assert room.vhost.all_bindings() == []


def test_one_binding_made_twice_at_once_is_one(room: Room) -> None:
    first, second = room.client(), room.client()
    room.set_up(first)
    first.say(1, UNBIND)
    room.commit_all()
    first.say(1, BIND)
    second.say(1, BIND)
    room.commit_all()
    first.say(1, UNBIND)
    room.commit_all()
    exchange = room.vhost.exchanges["x"]
    assert exchange.bindings == {}
    assert router.route(room.vhost, exchange, ["k"], NO_MESSAGE) == []


def test_an_unbind_that_fails_changes_nothing(room: Room) -> None:
    first, second = room.client(), room.client()
    room.set_up(first)
    first.say(1, UNBIND)
    room.commit(fails=True)
    assert first.failed == 506
    room.commit()
    assert len(room.vhost.all_bindings()) == len(room.rows.state().bindings) == 1
    second.say(1, UNBIND)
    room.commit()
    assert room.heard(second) == ["Queue.UnbindOk"]
    assert room.vhost.all_bindings() == room.rows.state().bindings == []


def bind(**arguments: object) -> Any:
    return spec.Queue.Bind(queue="q", exchange="x", routing_key="k", arguments=arguments)


def unbind(**arguments: object) -> Any:
    return spec.Queue.Unbind(queue="q", exchange="x", routing_key="k", arguments=arguments)


class TestArgumentsOfABinding:
    """rabbit: sorted by name, and a number's type class is part of what they say."""

    @pytest.fixture
    def client(self, room: Room) -> FailingClient:
        client = room.client()
        room.set_up(client)
        return client

    def bound(self, room: Room) -> int:
        """How many bindings there are beside that of `set_up`, in memory as in the database."""
        assert len(room.vhost.exchanges["x"].bindings) == len(room.rows.state().bindings)
        return len(room.rows.state().bindings) - 1

    def test_their_order_makes_no_other_binding(self, room: Room, client: FailingClient) -> None:
        exchange, queue = room.vhost.exchanges["x"], room.vhost.queues["q"]
        for table in ({"b": "2", "a": 1}, {"a": 1, "b": "2"}):  # clients' libraries sort them
            bindings.bind(room.vhost, exchange, queue, "k", dict(table))
            room.commit_all()
        assert self.bound(room) == 1
        bindings.unbind(room.vhost, exchange, queue, "k", {"b": "2", "a": 1})
        room.commit_all()
        assert self.bound(room) == 0

    def test_another_type_class_makes_another_binding(self, room: Room, client: FailingClient) -> None:
        client.say(1, bind(n=5), bind(n=5.0), bind(n=True), bind(n="5"), bind(n=1))
        room.commit_all()
        assert self.bound(room) == 5
        client.say(1, unbind(n=5.0), unbind(n=True))
        room.commit_all()
        left = [each.arguments["n"] for each in room.vhost.exchanges["x"].bindings.values() if each.arguments]
        assert sorted(map(repr, left)) == ["'5'", "1", "5"]

    def test_a_row_in_another_order_is_found_and_goes(self, room: Room, client: FailingClient) -> None:
        """An earlier version wrote arguments as they came, and each order as a binding of its own."""
        for table in ({"b": "2", "a": 1}, {"a": 1, "b": "2"}):
            room.rows.apply([Put(BindingRow("/", "x", "q", "queue", "k", encode_table(table)))])
        room.again(clean=True)
        assert self.bound(room) == 1
        client = room.client()
        client.say(1, unbind(a=1, b="2"))
        room.commit_all()
        assert self.bound(room) == 0
