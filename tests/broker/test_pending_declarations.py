"""A bug in what follows a commit: the client is answered with an error, and the name is free."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.broker.vhost.pending import CallbackFailed, ObjectName, PendingDeclaration, PendingDeclarations
from amqpd.channel.replies import DeferredReply
from amqpd.errors import InternalError
from amqpd.protocol.methods import QueueDelete
from amqpd.storage.metadata.store import Delete, Put, QueueRow, WriteFailed

NAME = ObjectName("/", "queue", "q")
ROW = QueueRow("/", "q", "1")


class Catalogue:
    """Commits wait until `commit`; what its callbacks raise goes where the metadata would log it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[BaseException | None], None]] = []
        self.answers: list[BaseException | None] = []
        self.declared = PendingDeclarations(
            lambda changes, done: self.waiting.append(done),
            lambda call, *given: call(*given),
            lambda delay_s, call: None,
        )

    def commit(self, error: BaseException | None = None) -> None:
        for done in self.waiting:
            done(error)
        self.waiting.clear()


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue()


def bug() -> None:
    raise ZeroDivisionError("bug")


def test_what_cannot_be_made_is_answered(catalogue: Catalogue, caplog: pytest.LogCaptureFixture) -> None:
    catalogue.declared.commit_and_apply(PendingDeclaration(NAME, Put(ROW), Delete(ROW), bug), catalogue.answers.append)
    catalogue.commit()
    (answer,) = catalogue.answers
    assert isinstance(answer, CallbackFailed) and "ZeroDivisionError" in str(answer)
    assert "Traceback" in caplog.text
    catalogue.declared.check(*NAME)  # it is free


def test_what_the_answer_itself_raises_is_answered(catalogue: Catalogue) -> None:
    """As a walk over policies, which the answer begins."""

    def done(error: BaseException | None) -> None:
        catalogue.answers.append(error)
        if error is None:
            bug()

    catalogue.declared.commit_and_apply(PendingDeclaration(NAME, None, None, lambda: None), done)
    assert catalogue.answers[0] is None and isinstance(catalogue.answers[1], CallbackFailed)


def test_what_fails_behind_a_removal_is_answered(catalogue: Catalogue) -> None:
    catalogue.declared.remove([Put(ROW)], bug, catalogue.answers.append)
    catalogue.commit()
    (answer,) = catalogue.answers
    assert isinstance(answer, CallbackFailed)
    catalogue.declared.check(*NAME)


@pytest.mark.parametrize(("error", "code"), [(CallbackFailed("ZeroDivisionError()"), 541), (WriteFailed("full"), 506)])
def test_a_channel_closes_its_connection_with_541(error: Exception, code: int) -> None:
    failed: list[Any] = []
    channel: Any = SimpleNamespace(busy=False, owner=SimpleNamespace(fail=failed.append))
    answer = DeferredReply(channel, QueueDelete("q", False, False, False))
    answer.reply(b"ok")
    answer.done(error)
    assert [each.code for each in failed] == [code] and not channel.busy


def test_what_is_done_at_once_raises_541() -> None:
    channel: Any = SimpleNamespace(busy=False)
    answer = DeferredReply(channel, QueueDelete("q", False, False, False))
    answer.done(CallbackFailed("ZeroDivisionError()"))
    with pytest.raises(InternalError):
        answer.reply(b"ok")
