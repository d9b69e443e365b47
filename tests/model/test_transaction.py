"""A batch of declarations: all of them or none, and what other clients do meanwhile with its names and its objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_metadata import DeclarationBroker, FailingClient

from amqpd.broker.vhost import declare, vhosts
from amqpd.broker.vhost.batch import DeclarationBatch, DraftNamespace
from amqpd.broker.vhost.declaration import ExchangeDeclaration, NewQueue, QueueDeclaration
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.errors import AccessRefused, PreconditionFailed

DECLARE = spec.Queue.Declare(queue="q", durable=True)


class ScriptedBroker(DeclarationBroker):
    def batch(self, *, dry: bool = False) -> DeclarationBatch:
        return DeclarationBatch(self.broker.vhosts, dry)

    def commit(self, *, fails: bool = False, stored: bool = False) -> None:
        self.metadata.commit(fails=fails, stored=stored)
        self.settle()

    def reserved_names(self) -> list[str]:
        return [name.name for name in self.broker.catalogue.declared._held]

    def client(self) -> FailingClient:
        client = FailingClient(self, f"c{len(self.connections.by_name)}")
        client.say(1, spec.Channel.Open())
        self.replies(client)
        return client

    def replies(self, client: FailingClient) -> list[str]:
        self.settle()
        return [event.method.name for event in client.heard()]


@pytest.fixture
def server() -> Iterator[ScriptedBroker]:
    server = ScriptedBroker()
    yield server
    server.end()


def declare_all(batch: DeclarationBatch, vhost: str = "/", *, durable: bool = True) -> DraftNamespace:
    """Declare exchange x, queue q, and a binding between them."""
    draft = batch.draft(vhost)
    assert draft is not None
    assert declare.declare_exchange(draft, ExchangeDeclaration("x", "direct", durable, False, False, {}))
    assert declare.declare_queue(draft, QueueDeclaration("q", durable, False, False, {}))
    bind(draft)
    return draft


def bind(draft: DraftNamespace) -> None:
    source, destination = draft.find_exchange("x"), draft.find_queue("q")
    assert source is not None and destination is not None
    declare.bind(draft, source, destination, "k", {})


def start_commit(batch: DeclarationBatch) -> list[BaseException | None]:
    results: list[BaseException | None] = []
    batch.commit(results.append)
    return results


def test_batch_is_one_commit_and_exists_only_after_it(server: ScriptedBroker) -> None:
    batch = server.batch()
    draft = declare_all(batch)
    assert isinstance(draft.find_queue("q"), NewQueue)
    bind(draft)  # repeated: for this batch the binding exists already
    assert "q" not in server.vhost.queues and "x" not in server.vhost.exchanges
    results = start_commit(batch)
    assert len(server.metadata.waiting) == 1 and results == []
    server.commit()
    assert results == [None]
    for _ in batch.make_all():
        pass
    (binding,) = server.vhost.all_bindings()
    assert binding.destination is server.vhost.queues["q"]
    assert server.reserved_names() == []
    before = server.rows.state()
    server.again(clean=True)
    assert server.rows.state() == before
    assert len(server.vhost.all_bindings()) == 1


@pytest.mark.parametrize("stored", [False, True])
def test_failed_commit_leaves_nothing_and_its_rows_are_removed(server: ScriptedBroker, stored: bool) -> None:
    batch = server.batch()
    declare_all(batch)
    results = start_commit(batch)
    server.commit(fails=True, stored=stored)
    assert len(results) == 1 and results[0] is not None
    assert server.reserved_names() != [], "names stay reserved until the rows are removed"
    server.commit()
    state = server.rows.state()
    assert (state.queues, state.exchanges, state.bindings) == ([], [], [])
    assert server.reserved_names() == [] and "q" not in server.vhost.queues
    assert list(batch.make_all()) == []


def test_declare_of_reserved_name_waits_for_batch(server: ScriptedBroker) -> None:
    client = server.client()
    batch = server.batch()
    declare_all(batch)
    client.say(1, DECLARE)
    assert server.replies(client) == []
    start_commit(batch)
    server.commit()
    assert server.replies(client) == []
    list(batch.make_all())
    assert server.replies(client) == ["Queue.DeclareOk"]


def test_abandoned_batch_releases_its_names(server: ScriptedBroker) -> None:
    client = server.client()
    batch = server.batch()
    declare_all(batch)
    client.say(1, DECLARE)
    assert server.replies(client) == []
    batch.abandon()
    server.settle()
    server.commit()
    assert server.replies(client) == ["Queue.DeclareOk"]
    assert "x" not in server.vhost.exchanges


def test_batch_gets_declaration_pending_for_name_reserved_by_client(server: ScriptedBroker) -> None:
    client = server.client()
    client.say(1, DECLARE)
    for dry in (True, False):
        draft = server.batch(dry=dry).draft("/")
        assert draft is not None
        with pytest.raises(DeclarationPending):
            draft.find_queue("q")
    server.commit()
    assert server.batch().draft("/").find_queue("q") is server.vhost.queues["q"]  # type: ignore[union-attr]


def test_dry_run_finds_errors_and_reserves_nothing(server: ScriptedBroker) -> None:
    batch = server.batch(dry=True)
    draft = declare_all(batch)
    assert server.reserved_names() == []
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable' for queue 'q'"):
        declare.declare_queue(draft, QueueDeclaration("q", False, False, False, {}))
    with pytest.raises(AccessRefused):
        declare.declare_queue(draft, QueueDeclaration("amq.q", True, False, False, {}))
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'type' for exchange 'x'"):
        declare.declare_exchange(draft, ExchangeDeclaration("x", "fanout", True, False, False, {}))
    assert not server.metadata.waiting and "q" not in server.vhost.queues
    declare_all(server.batch())


def test_batch_creates_vhost_with_queue_and_binding(server: ScriptedBroker) -> None:
    batch = server.batch()
    assert batch.draft("new") is None
    assert vhosts.declare(batch, "new", default_queue_type="quorum")
    declare_all(batch, "new")
    assert "new" not in server.broker.vhosts
    start_commit(batch)
    server.commit()
    list(batch.make_all())
    assert server.broker.vhosts["new"].queues["q"].kind == "quorum"
    assert len(server.broker.vhosts["new"].all_bindings()) == 1


def test_changed_default_queue_type_applies_to_later_queues_of_batch(server: ScriptedBroker) -> None:
    batch = server.batch()
    vhosts.change(batch, server.vhost, "", (), "quorum")
    declare_all(batch)
    assert server.vhost.default_queue_type == "classic"
    start_commit(batch)
    server.commit()
    list(batch.make_all())
    assert (server.vhost.default_queue_type, server.vhost.queues["q"].kind) == ("quorum", "quorum")


def test_find_deleted_returns_queue_deleted_before_commit(server: ScriptedBroker) -> None:
    client = server.client()
    client.say(1, DECLARE)
    server.settle()
    server.commit()
    queue = server.vhost.queues["q"]
    batch = server.batch()
    draft = batch.draft("/")
    assert draft is not None
    declare.bind(draft, server.vhost.exchanges["amq.direct"], queue, "k", {})
    assert batch.find_deleted() is None
    declare.delete_queue(server.vhost, queue)
    assert batch.find_deleted() is queue


def test_find_deleted_returns_vhost_deleted_before_commit(server: ScriptedBroker) -> None:
    batch = server.batch()
    declare_all(batch)
    assert batch.find_deleted() is None
    server.vhost.deleted = True
    assert batch.find_deleted() is server.vhost


def test_queue_deleted_after_commit_removes_its_binding(server: ScriptedBroker) -> None:
    """Also if a new queue with the same name exists when the binding is created: the row was removed with the first
    queue.
    """
    batch = server.batch()
    declare_all(batch)
    start_commit(batch)
    server.commit()
    steps = batch.make_all()
    next(steps)
    next(steps)
    old = server.vhost.queues["q"]
    declare.delete_queue(server.vhost, old)
    server.commit()
    declare.declare_queue(server.vhost, QueueDeclaration("q", True, False, False, {}))
    while server.metadata.waiting:
        server.commit()
    assert server.vhost.queues["q"] is not old
    list(steps)
    assert server.vhost.all_bindings() == server.rows.state().bindings == []
    assert server.reserved_names() == []


def test_batch_of_transient_objects_needs_no_commit(server: ScriptedBroker) -> None:
    batch = server.batch()
    declare_all(batch, durable=False)
    assert start_commit(batch) == [None]
    assert not server.metadata.waiting
    list(batch.make_all())
    assert len(server.vhost.all_bindings()) == 1


def test_batch_leaves_no_reference_cycles(server: ScriptedBroker) -> None:
    """Large imports build two batches, a dry run and the real one; both must be freed without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        for dry in (True, False):
            batch = server.batch(dry=dry)
            vhosts.declare(batch, "new")
            seen = [weakref.ref(declare_all(batch)), weakref.ref(declare_all(batch, "new"))]
            if not dry:
                batch.abandon()
            del batch
            assert [each() for each in seen] == [None, None]
    finally:
        gc.enable()
