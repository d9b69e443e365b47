"""A vhost's queue limit while commits are pending: uncommitted queues count, and no queue counts twice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_metadata import DeclarationBroker, FailingClient

from amqpd.broker.vhost import declare, limits
from amqpd.broker.vhost.batch import DeclarationBatch
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.limits import InvalidLimits
from amqpd.broker.vhost.parameters import find
from amqpd.errors import PreconditionFailed


@pytest.fixture
def server() -> Iterator[DeclarationBroker]:
    server = DeclarationBroker()
    yield server
    server.end()


def commit(server: DeclarationBroker, *, fails: bool = False) -> None:
    server.metadata.commit(fails=fails)
    server.settle()


def set_queue_limit(server: DeclarationBroker, count: int) -> None:
    limits.declare(server.vhost, "limits", {"max-queues": count})
    commit(server)


def client(server: DeclarationBroker) -> FailingClient:
    new_client = FailingClient(server, f"c{len(server.connections.by_name)}")
    new_client.say(1, spec.Channel.Open())
    replies(server, new_client)
    return new_client


def replies(server: DeclarationBroker, first: FailingClient) -> list[str]:
    server.settle()
    return [event.method.name for event in first.heard()]


def durable(name: str) -> QueueDeclaration:
    return QueueDeclaration(name, True, False, False, {})


def test_queue_with_pending_commit_counts(server: DeclarationBroker) -> None:
    set_queue_limit(server, 1)
    first, second = client(server), client(server)
    first.say(1, spec.Queue.Declare(queue="a", durable=True))
    second.say(1, spec.Queue.Declare(queue="b", durable=True))
    assert replies(server, first) == []
    assert replies(server, second) == ["Channel.Close"]
    assert server.vhost.queue_count() == 1
    commit(server)
    assert replies(server, first) == ["Queue.DeclareOk"]
    assert server.vhost.queue_count() == 1


def test_queue_whose_commit_failed_does_not_count(server: DeclarationBroker) -> None:
    set_queue_limit(server, 1)
    first = client(server)
    first.say(1, spec.Queue.Declare(queue="a", durable=True))
    replies(server, first)
    commit(server, fails=True)
    assert first.failed == 506
    assert server.vhost.queue_count() == 0, "also while its row is being removed"
    second = client(server)
    second.say(1, spec.Queue.Declare(queue="b", exclusive=True))
    assert replies(server, second) == ["Queue.DeclareOk"]


def test_limits_apply_only_after_their_commit(server: DeclarationBroker) -> None:
    results: list[BaseException | None] = []
    assert limits.declare(server.vhost, "limits", {"max-queues": 0, "max-connections": 3}, results.append)
    first = client(server)
    first.say(1, spec.Queue.Declare(queue="a", exclusive=True))
    assert replies(server, first) == ["Queue.DeclareOk"]
    commit(server)
    assert results == [None]
    first.say(1, spec.Queue.Declare(queue="b", exclusive=True))
    assert replies(server, first) == ["Channel.Close"]
    assert not limits.declare(server.vhost, "limits", {}, results.append)
    commit(server, fails=True)
    assert results[1] is not None
    assert server.vhost.limits.value == {"max-queues": 0, "max-connections": 3}, "a failed commit changed the limits"
    server.metadata.commit()
    server.settle()
    server.again(clean=True)
    assert server.vhost.limits.value == {"max-queues": 0, "max-connections": 3}
    limits.clear(server.vhost, "limits")
    commit(server)
    assert find(server.vhost, "vhost-limits", "limits") is None
    server.again(clean=True)
    assert find(server.vhost, "vhost-limits", "limits") is None


@pytest.mark.parametrize("dry", [False, True])
def test_queues_of_declaration_batch_count_against_its_own_limit(server: DeclarationBroker, dry: bool) -> None:
    transaction = DeclarationBatch(server.broker.vhosts, dry)
    draft = transaction.draft("/")
    assert draft is not None
    limits.declare(draft, "limits", {"max-queues": 2})
    declare.declare_queue(draft, durable("a"))
    declare.declare_queue(draft, durable("b"))
    assert not declare.declare_queue(draft, durable("a"))
    with pytest.raises(PreconditionFailed, match=r"queue limit in vhost '/' \(2\) is reached"):
        declare.declare_queue(draft, durable("c"))
    assert draft.queue_count() == 2
    if dry:
        assert server.vhost.queue_count() == 0
        return
    assert server.vhost.queue_count() == 2, "for other clients these queues are pending and count"
    transaction.commit(lambda error: None)
    commit(server)
    for _ in transaction.make_all():
        assert server.vhost.queue_count() == 2
    assert server.vhost.queue_count() == 2
    assert server.vhost.limits.value == {"max-queues": 2}


def test_queues_of_abandoned_batch_do_not_count(server: DeclarationBroker) -> None:
    transaction = DeclarationBatch(server.broker.vhosts, False)
    draft = transaction.draft("/")
    assert draft is not None
    declare.declare_queue(draft, durable("a"))
    transaction.abandon()
    assert server.vhost.queue_count() == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "limits not a list 5"),
        (["x"], 'limits not a list [<<"x">>]'),
        ({"max-queues": "x"}, 'max-queues should be a number, actually was <<"x">>'),
        ({"max-queues": 1.5}, "max-queues should be a number, actually was 1.5"),
        ({"max-queues": True}, "max-queues should be a number, actually was true"),
        ({"max-channels": 1}, 'Unrecognised terms [{<<"max-channels">>,1}] in limits'),
    ],
)
def test_invalid_limit_is_refused(server: DeclarationBroker, value: object, text: str) -> None:
    with pytest.raises(InvalidLimits) as refused:
        limits.declare(server.vhost, "limits", value)
    assert str(refused.value) == f"Validation failed\n\n{text}\n"
    assert json.dumps(server.vhost.limits.value) == "{}"
