"""A vhost's queue limit while commits are on their way: what is not committed counts, and nothing counts twice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_metadata import DeclaredHouse, FailingClient

from amqpd.broker.vhost import declare, limits
from amqpd.broker.vhost.batch import DeclarationBatch
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.limits import InvalidLimits
from amqpd.broker.vhost.parameters import find
from amqpd.errors import PreconditionFailed


@pytest.fixture
def room() -> Iterator[DeclaredHouse]:
    house = DeclaredHouse()
    yield house
    house.end()


def commit(room: DeclaredHouse, *, fails: bool = False) -> None:
    room.metadata.commit(fails=fails)
    room.settle()


def limited(room: DeclaredHouse, count: int) -> None:
    limits.declare(room.vhost, "limits", {"max-queues": count})
    commit(room)


def client(room: DeclaredHouse) -> FailingClient:
    made = FailingClient(room, f"c{len(room.connections.by_name)}")
    made.say(1, spec.Channel.Open())
    heard(room, made)
    return made


def heard(room: DeclaredHouse, one: FailingClient) -> list[str]:
    room.settle()
    return [event.method.name for event in one.heard()]


def durable(name: str) -> QueueDeclaration:
    return QueueDeclaration(name, True, False, False, {})


def test_what_waits_for_its_commit_counts(room: DeclaredHouse) -> None:
    limited(room, 1)
    one, two = client(room), client(room)
    one.say(1, spec.Queue.Declare(queue="a", durable=True))
    two.say(1, spec.Queue.Declare(queue="b", durable=True))
    assert heard(room, one) == []
    assert heard(room, two) == ["Channel.Close"]
    assert room.vhost.queue_count() == 1
    commit(room)
    assert heard(room, one) == ["Queue.DeclareOk"]
    assert room.vhost.queue_count() == 1


def test_what_was_not_committed_counts_no_more(room: DeclaredHouse) -> None:
    limited(room, 1)
    one = client(room)
    one.say(1, spec.Queue.Declare(queue="a", durable=True))
    heard(room, one)
    commit(room, fails=True)
    assert one.failed == 506
    assert room.vhost.queue_count() == 0, "also while its row is taken back"
    two = client(room)
    two.say(1, spec.Queue.Declare(queue="b", exclusive=True))
    assert heard(room, two) == ["Queue.DeclareOk"]


def test_limits_hold_once_they_are_committed(room: DeclaredHouse) -> None:
    told: list[BaseException | None] = []
    assert limits.declare(room.vhost, "limits", {"max-queues": 0, "max-connections": 3}, told.append)
    one = client(room)
    one.say(1, spec.Queue.Declare(queue="a", exclusive=True))
    assert heard(room, one) == ["Queue.DeclareOk"]
    commit(room)
    assert told == [None]
    one.say(1, spec.Queue.Declare(queue="b", exclusive=True))
    assert heard(room, one) == ["Channel.Close"]
    assert not limits.declare(room.vhost, "limits", {}, told.append)
    commit(room, fails=True)
    assert told[1] is not None
    assert room.vhost.limits.value == {"max-queues": 0, "max-connections": 3}, "a failure changes nothing"
    room.metadata.commit()
    room.settle()
    room.again(clean=True)
    assert room.vhost.limits.value == {"max-queues": 0, "max-connections": 3}
    limits.clear(room.vhost, "limits")
    commit(room)
    assert find(room.vhost, "vhost-limits", "limits") is None
    room.again(clean=True)
    assert find(room.vhost, "vhost-limits", "limits") is None


@pytest.mark.parametrize("dry", [False, True])
def test_a_transaction_counts_what_it_brings(room: DeclaredHouse, dry: bool) -> None:
    """Against the limits that it sets itself."""
    transaction = DeclarationBatch(room.broker.vhosts, dry)
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
        assert room.vhost.queue_count() == 0
        return
    assert room.vhost.queue_count() == 2, "for others they are on their way"
    transaction.commit(lambda error: None)
    commit(room)
    for _ in transaction.make_all():
        assert room.vhost.queue_count() == 2
    assert room.vhost.queue_count() == 2
    assert room.vhost.limits.value == {"max-queues": 2}


def test_an_abandoned_transaction_counts_no_more(room: DeclaredHouse) -> None:
    transaction = DeclarationBatch(room.broker.vhosts, False)
    draft = transaction.draft("/")
    assert draft is not None
    declare.declare_queue(draft, durable("a"))
    transaction.abandon()
    assert room.vhost.queue_count() == 0


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
def test_what_is_no_limit(room: DeclaredHouse, value: object, text: str) -> None:
    with pytest.raises(InvalidLimits) as refused:
        limits.declare(room.vhost, "limits", value)
    assert str(refused.value) == f"Validation failed\n\n{text}\n"
    assert json.dumps(room.vhost.limits.value) == "{}"
