"""A new queue argument is one row and one rule: validated, compared, enforced, set by policies and documented."""

from __future__ import annotations

import pytest

from amqpd.broker.consumer import QueueBase
from amqpd.broker.message import Message
from amqpd.broker.queue.argument_checks import ArgumentSpec, PolicyKey, is_natural, non_negative
from amqpd.broker.queue.arguments import ROWS, compare, compared_names, rules_of, validate
from amqpd.broker.queue.config import PublishCheck
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.types import CLASSIC
from amqpd.errors import PreconditionFailed

NAME = "x-body-size-max"


class BodySizeMax(PublishCheck):
    """Refuse a message with a larger body."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.size_bytes = size_bytes

    def admits(self, queue: QueueBase, host: QueueServices, message: Message) -> bool:
        return message.body_size <= self.size_bytes


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> ArgumentSpec:
    spec = ArgumentSpec(
        NAME,
        non_negative,
        "limits",
        "how many bytes a body may have",
        admission=BodySizeMax,
        kinds=CLASSIC,
        policy=PolicyKey("body-size-max", is_natural, "body size", operator=True, merge="lowest"),
    )
    monkeypatch.setitem(ROWS, NAME, spec)
    return spec


def test_new_argument_is_validated() -> None:
    validate("q", "/", {NAME: 10})
    with pytest.raises(PreconditionFailed, match=f"invalid arg '{NAME}' for queue 'q' .*: .value_negative,-1"):
        validate("q", "/", {NAME: -1})
    with pytest.raises(PreconditionFailed, match="expected integer, got longstr"):
        validate("q", "/", {NAME: "10"})
    with pytest.raises(PreconditionFailed, match="of queue type rabbit_quorum_queue"):
        validate("q", "/", {NAME: 10, "x-queue-type": "quorum"})


def test_new_argument_is_compared() -> None:
    compare("queue 'q'", "/", compared_names("classic"), {NAME: 10}, {NAME: 10})
    with pytest.raises(PreconditionFailed, match=f"inequivalent arg '{NAME}' .* received '11' but current is '10'"):
        compare("queue 'q'", "/", compared_names("classic"), {NAME: 11}, {NAME: 10})


@pytest.mark.parametrize("durable", [True, False])
def test_new_argument_of_declaration_is_enforced(room, durable: bool) -> None:
    queue = room.queue("q", durable=durable, **{NAME: 3})
    assert room.publish("q", b"abc")
    assert not room.publish("q", b"abcd")
    assert room.bodies(queue) == [b"abc"]
    assert queue.published_count == 2


def test_new_argument_is_enforced_after_apply_config(room) -> None:
    queue = room.queue("q")
    assert room.publish("q", b"abcd")
    queue.apply_config(rules_of({NAME: 3, "x-max-length": 2, "x-overflow": "reject-publish"}))
    assert not room.publish("q", b"abcd")
    assert room.publish("q", b"abc")
    assert not room.publish("q", b"abc"), "the queue is full"
    queue.apply_config(rules_of({}))
    assert room.publish("q", b"abcd")
    assert len(room.bodies(queue)) == 3


def test_policy_sets_new_argument(room) -> None:
    queue = room.queue("q", **{NAME: 4})
    queue.apply_config(rules_of(queue.arguments, {"body-size-max": 3}))
    assert not room.publish("q", b"abcd"), "the lower value applies"
    queue.apply_config(rules_of(queue.arguments, {"body-size-max": 5}))
    assert room.publish("q", b"abcd")
    assert not room.publish("q", b"abcde")


def test_new_argument_is_documented(row: ArgumentSpec) -> None:
    """The arguments table of the package README is made from the rows; test_arguments compares the two."""
    assert (row.name, row.meaning, row.obeyed_by) == (NAME, "how many bytes a body may have", "limits")
