"""Declarations of queues: the vhost's default type; how they end."""

from __future__ import annotations

import pytest

from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.errors import PreconditionFailed


class TestDefaultQueueType:
    @pytest.fixture(autouse=True)
    def quorum_by_default(self, room) -> None:
        room.queue("before")
        room.vhost.default_queue_type = "quorum"

    def test_a_durable_queue_gets_it_and_shows_it(self, room) -> None:
        queue = room.queue("q")
        assert queue.kind == "quorum"
        assert queue.arguments == {"x-queue-type": "quorum"}

    def test_declaring_again_with_or_without_it_is_equivalent(self, room) -> None:
        queue = room.queue("q")
        assert room.queue("q") is queue
        assert room.queue("q", x_queue_type="quorum") is queue
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type'"):
            room.queue("q", x_queue_type="classic")

    def test_an_explicit_type_wins(self, room) -> None:
        assert room.queue("q", x_queue_type="classic").kind == "classic"

    @pytest.mark.parametrize(
        ("durable", "exclusive", "auto_delete"), [(False, False, False), (True, True, False), (True, False, True)]
    )
    def test_what_cannot_be_quorum_stays_classic(self, room, durable, exclusive, auto_delete) -> None:
        queue = room.declare(QueueDeclaration("q", durable, exclusive, auto_delete, {}))
        assert queue.kind == "classic"
        assert queue.arguments == {}

    def test_an_older_queue_stays_what_it_is(self, room) -> None:
        assert room.queue("before").kind == "classic"


def test_exclusive_queues_are_known_by_their_connection(room) -> None:
    """The end of a connection costs its own queues, however many others there are; and nothing of it is kept."""
    vhost = room.vhost
    mine, theirs = object(), object()
    for number in range(3):
        room.declare(QueueDeclaration(f"mine{number}", False, True, False, {}, mine))
    room.declare(QueueDeclaration("theirs", False, True, False, {}, theirs))
    room.declare(QueueDeclaration("shared", False, False, False, {}, mine))
    assert [queue.name for queue in vhost.exclusive_queues(mine)] == ["mine0", "mine1", "mine2"]
    room.delete(vhost.queues["mine1"])
    assert [queue.name for queue in vhost.exclusive_queues(mine)] == ["mine0", "mine2"]
    declare.delete_queues(vhost, vhost.exclusive_queues(mine))
    assert vhost.exclusive_queues(mine) == []
    assert list(vhost._exclusive) == [theirs], "nothing is kept of a connection without queues"
