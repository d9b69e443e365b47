"""Queues of a vhost: the default type, what a quorum queue stores, exclusive queues of a connection."""

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

    def test_durable_queue_gets_the_default_type(self, room) -> None:
        queue = room.queue("q")
        assert queue.kind == "quorum"
        assert queue.arguments == {"x-queue-type": "quorum"}

    def test_redeclare_with_or_without_the_default_type_is_equivalent(self, room) -> None:
        queue = room.queue("q")
        assert room.queue("q") is queue
        assert room.queue("q", x_queue_type="quorum") is queue
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type'"):
            room.queue("q", x_queue_type="classic")

    def test_explicit_type_wins(self, room) -> None:
        assert room.queue("q", x_queue_type="classic").kind == "classic"

    @pytest.mark.parametrize(
        ("durable", "exclusive", "auto_delete"), [(False, False, False), (True, True, False), (True, False, True)]
    )
    def test_queue_that_cannot_be_quorum_is_classic(self, room, durable, exclusive, auto_delete) -> None:
        queue = room.declare(QueueDeclaration("q", durable, exclusive, auto_delete, {}))
        assert queue.kind == "classic"
        assert queue.arguments == {}

    def test_older_queue_keeps_its_type(self, room) -> None:
        assert room.queue("before").kind == "classic"


class TestQuorumKeepsTransientMessages:
    """rabbit: a quorum queue stores every message, whatever its delivery mode."""

    @pytest.mark.parametrize(
        "arguments", [{}, {"x_group_by": "routing_key"}, {"x_max_length": 5}, {"x_retain": 60_000}], ids=str
    )
    def test_transient_message_survives_restart(self, room, arguments) -> None:
        room.queue("q", x_queue_type="quorum", **arguments)
        room.publish("q", b"1", persistent=False)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        assert queue.ready_count == 1

    def test_default_type_counts_too(self, room) -> None:
        room.vhost.default_queue_type = "quorum"
        assert room.queue("q").keeps_all

    def test_copy_in_a_classic_queue_stays_transient(self, room) -> None:
        room.exchange("x", "fanout")
        for name, kind in (("a", "quorum"), ("b", "classic")):
            room.bind("x", room.queue(name, x_queue_type=kind))
        room.publish("k", b"1", exchange="x", persistent=False)
        room.restart()
        for name, count in (("a", 1), ("b", 0)):
            room.vhost.queues[name].prepare()
            assert room.vhost.queues[name].ready_count == count


def test_exclusive_queues_are_found_by_connection(room) -> None:
    """Closing a connection costs only its own queues, and the vhost keeps nothing of the connection."""
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
    assert list(vhost._exclusive) == [theirs], "a connection without exclusive queues must not be kept"
