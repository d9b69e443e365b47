"""Declarations of one transaction: all of them or none, and what others do to its names and ends meanwhile."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_metadata import DeclaredHouse, FailingClient

from amqpd.broker.vhost import declare, vhosts
from amqpd.broker.vhost.batch import DeclarationBatch, DraftNamespace
from amqpd.broker.vhost.declaration import ExchangeDeclaration, NewQueue, QueueDeclaration
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.errors import AccessRefused, PreconditionFailed

DECLARE = spec.Queue.Declare(queue="q", durable=True)


class Room(DeclaredHouse):
    def transaction(self, *, dry: bool = False) -> DeclarationBatch:
        return DeclarationBatch(self.broker.vhosts, dry)

    def commit(self, *, fails: bool = False, kept: bool = False) -> None:
        self.metadata.commit(fails=fails, kept=kept)
        self.settle()

    def held(self) -> list[str]:
        return [name.name for name in self.broker.catalogue.declared._held]

    def client(self) -> FailingClient:
        client = FailingClient(self, f"c{len(self.connections.by_name)}")
        client.say(1, spec.Channel.Open())
        self.heard(client)
        return client

    def heard(self, client: FailingClient) -> list[str]:
        self.settle()
        return [event.method.name for event in client.heard()]


@pytest.fixture
def room() -> Iterator[Room]:
    house = Room()
    yield house
    house.end()


def declare_all(transaction: DeclarationBatch, vhost: str = "/", *, durable: bool = True) -> DraftNamespace:
    """Exchange x, queue q, and a binding between the two."""
    draft = transaction.draft(vhost)
    assert draft is not None
    assert declare.declare_exchange(draft, ExchangeDeclaration("x", "direct", durable, False, False, {}))
    assert declare.declare_queue(draft, QueueDeclaration("q", durable, False, False, {}))
    bind(draft)
    return draft


def bind(draft: DraftNamespace) -> None:
    source, destination = draft.find_exchange("x"), draft.find_queue("q")
    assert source is not None and destination is not None
    declare.bind(draft, source, destination, "k", {})


def committed(transaction: DeclarationBatch) -> list[BaseException | None]:
    done: list[BaseException | None] = []
    transaction.commit(done.append)
    return done


def test_all_of_it_is_one_commit_and_only_then_there(room: Room) -> None:
    transaction = room.transaction()
    draft = declare_all(transaction)
    assert isinstance(draft.find_queue("q"), NewQueue)
    bind(draft)  # once more: it is there already, for this transaction
    assert "q" not in room.vhost.queues and "x" not in room.vhost.exchanges
    done = committed(transaction)
    assert len(room.metadata.waiting) == 1 and done == []
    room.commit()
    assert done == [None]
    for _ in transaction.make_all():
        pass
    (binding,) = room.vhost.all_bindings()
    assert binding.destination is room.vhost.queues["q"]
    assert room.held() == []
    before = room.rows.state()
    room.again(clean=True)
    assert room.rows.state() == before
    assert len(room.vhost.all_bindings()) == 1


@pytest.mark.parametrize("kept", [False, True])
def test_a_commit_that_fails_leaves_nothing_and_is_taken_back(room: Room, kept: bool) -> None:
    transaction = room.transaction()
    declare_all(transaction)
    done = committed(transaction)
    room.commit(fails=True, kept=kept)
    assert len(done) == 1 and done[0] is not None
    assert room.held() != [], "what became of it is open until its rows are taken back"
    room.commit()
    state = room.rows.state()
    assert (state.queues, state.exchanges, state.bindings) == ([], [], [])
    assert room.held() == [] and "q" not in room.vhost.queues
    assert list(transaction.make_all()) == []


def test_who_asks_for_a_name_of_it_waits(room: Room) -> None:
    client = room.client()
    transaction = room.transaction()
    declare_all(transaction)
    client.say(1, DECLARE)
    assert room.heard(client) == []
    committed(transaction)
    room.commit()
    assert room.heard(client) == []
    list(transaction.make_all())
    assert room.heard(client) == ["Queue.DeclareOk"]


def test_abandoned_its_names_are_free(room: Room) -> None:
    client = room.client()
    transaction = room.transaction()
    declare_all(transaction)
    client.say(1, DECLARE)
    assert room.heard(client) == []
    transaction.abandon()
    room.settle()
    room.commit()
    assert room.heard(client) == ["Queue.DeclareOk"]
    assert "x" not in room.vhost.exchanges


def test_a_name_that_is_on_its_way_for_somebody_else(room: Room) -> None:
    client = room.client()
    client.say(1, DECLARE)
    for dry in (True, False):
        draft = room.transaction(dry=dry).draft("/")
        assert draft is not None
        with pytest.raises(DeclarationPending):
            draft.find_queue("q")
    room.commit()
    assert room.transaction().draft("/").find_queue("q") is room.vhost.queues["q"]  # type: ignore[union-attr]


def test_a_dry_run_finds_what_is_wrong_and_holds_nothing(room: Room) -> None:
    transaction = room.transaction(dry=True)
    draft = declare_all(transaction)
    assert room.held() == []
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable' for queue 'q'"):
        declare.declare_queue(draft, QueueDeclaration("q", False, False, False, {}))
    with pytest.raises(AccessRefused):
        declare.declare_queue(draft, QueueDeclaration("amq.q", True, False, False, {}))
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'type' for exchange 'x'"):
        declare.declare_exchange(draft, ExchangeDeclaration("x", "fanout", True, False, False, {}))
    assert not room.metadata.waiting and "q" not in room.vhost.queues
    declare_all(room.transaction())


def test_a_new_vhost_and_what_is_in_it(room: Room) -> None:
    transaction = room.transaction()
    assert transaction.draft("new") is None
    assert vhosts.declare(transaction, "new", default_queue_type="quorum")
    declare_all(transaction, "new")
    assert "new" not in room.broker.vhosts
    committed(transaction)
    room.commit()
    list(transaction.make_all())
    assert room.broker.vhosts["new"].queues["q"].kind == "quorum"
    assert len(room.broker.vhosts["new"].all_bindings()) == 1


def test_another_default_type_holds_for_the_queues_behind_it(room: Room) -> None:
    transaction = room.transaction()
    vhosts.change(transaction, room.vhost, "", (), "quorum")
    declare_all(transaction)
    assert room.vhost.default_queue_type == "classic"
    committed(transaction)
    room.commit()
    list(transaction.make_all())
    assert (room.vhost.default_queue_type, room.vhost.queues["q"].kind) == ("quorum", "quorum")


def test_an_end_that_goes_before_the_commit_is_told(room: Room) -> None:
    client = room.client()
    client.say(1, DECLARE)
    room.settle()
    room.commit()
    queue = room.vhost.queues["q"]
    transaction = room.transaction()
    draft = transaction.draft("/")
    assert draft is not None
    declare.bind(draft, room.vhost.exchanges["amq.direct"], queue, "k", {})
    assert transaction.find_deleted() is None
    declare.delete_queue(room.vhost, queue)
    assert transaction.find_deleted() is queue


def test_a_vhost_that_goes_before_the_commit_is_told(room: Room) -> None:
    transaction = room.transaction()
    declare_all(transaction)
    assert transaction.find_deleted() is None
    room.vhost.deleted = True
    assert transaction.find_deleted() is room.vhost


def test_an_end_that_goes_behind_the_commit_takes_its_binding_with_it(room: Room) -> None:
    """Also where another queue of its name is there when the binding is to be made: the row went with the first."""
    transaction = room.transaction()
    declare_all(transaction)
    committed(transaction)
    room.commit()
    steps = transaction.make_all()
    next(steps)
    next(steps)
    old = room.vhost.queues["q"]
    declare.delete_queue(room.vhost, old)
    room.commit()
    declare.declare_queue(room.vhost, QueueDeclaration("q", True, False, False, {}))
    while room.metadata.waiting:
        room.commit()
    assert room.vhost.queues["q"] is not old
    list(steps)
    assert room.vhost.all_bindings() == room.rows.state().bindings == []
    assert room.held() == []


def test_what_is_not_durable_needs_no_commit(room: Room) -> None:
    transaction = room.transaction()
    declare_all(transaction, durable=False)
    assert committed(transaction) == [None]
    assert not room.metadata.waiting
    list(transaction.make_all())
    assert len(room.vhost.all_bindings()) == 1


def test_what_a_transaction_has_seen_goes_without_the_collector(room: Room) -> None:
    """A document of 100,000 bindings, twice: as a dry run, and for good."""
    gc.collect()
    gc.disable()
    try:
        for dry in (True, False):
            transaction = room.transaction(dry=dry)
            vhosts.declare(transaction, "new")
            seen = [weakref.ref(declare_all(transaction)), weakref.ref(declare_all(transaction, "new"))]
            if not dry:
                transaction.abandon()
            del transaction
            assert [each() for each in seen] == [None, None]
    finally:
        gc.enable()
