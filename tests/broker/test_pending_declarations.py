"""An exception after a metadata commit: the client gets error 541, and the reserved name is released."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.broker.vhost.pending import CallbackFailed, ObjectName, PendingDeclaration, PendingDeclarations
from amqpd.channel.replies import DeferredReply
from amqpd.errors import InternalError
from amqpd.protocol.methods import QueueDelete
from amqpd.storage.metadata.rows import Delete, Put, QueueRow
from amqpd.storage.metadata.store import WriteFailed

NAME = ObjectName("/", "queue", "q")
ROW = QueueRow("/", "q", "1")


class Catalogue:
    """Pending declarations over a metadata store whose commits wait for `commit`."""

    def __init__(self) -> None:
        self.pending_commits: list[Callable[[BaseException | None], None]] = []
        self.results: list[BaseException | None] = []
        self.timers: list[Callable[[], None]] = []
        self.declarations = PendingDeclarations(
            lambda changes, done: self.pending_commits.append(done),
            lambda call, *given: call(*given),
            lambda delay_s, call: self.timers.append(call),
        )

    def commit(self, error: BaseException | None = None) -> None:
        commits, self.pending_commits[:] = self.pending_commits[:], []
        for done in commits:
            done(error)


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue()


def bug() -> None:
    raise ZeroDivisionError("bug")


def test_exception_while_creating_object_is_reported(catalogue: Catalogue, caplog: pytest.LogCaptureFixture) -> None:
    catalogue.declarations.commit_and_apply(
        PendingDeclaration(NAME, Put(ROW), Delete(ROW), bug), catalogue.results.append
    )
    catalogue.commit()
    (answer,) = catalogue.results
    assert isinstance(answer, CallbackFailed) and "ZeroDivisionError" in str(answer)
    assert "Traceback" in caplog.text
    catalogue.declarations.check(*NAME)  # the name is not reserved


def test_exception_in_callback_is_reported_to_callback(catalogue: Catalogue) -> None:
    """For example, the callback starts to apply policies."""

    def done(error: BaseException | None) -> None:
        catalogue.results.append(error)
        if error is None:
            bug()

    catalogue.declarations.commit_and_apply(PendingDeclaration(NAME, None, None, lambda: None), done)
    assert catalogue.results[0] is None and isinstance(catalogue.results[1], CallbackFailed)


def test_exception_after_removal_is_reported(catalogue: Catalogue) -> None:
    catalogue.declarations.remove([Put(ROW)], bug, catalogue.results.append)
    catalogue.commit()
    (answer,) = catalogue.results
    assert isinstance(answer, CallbackFailed)
    catalogue.declarations.check(*NAME)


def test_outage_of_the_database_logs_one_line_per_retry(catalogue: Catalogue, caplog: pytest.LogCaptureFixture) -> None:
    """Each refused declaration needs an undo. With a timer for each, a thousand would log 1,000 lines a second."""
    for number in range(20):
        row = QueueRow("/", f"q{number}", str(number))
        catalogue.declarations.commit_and_apply(
            PendingDeclaration(ObjectName("/", "queue", row.name), Put(row), Delete(row), bug), catalogue.results.append
        )
    catalogue.commit(WriteFailed("no database"))
    assert len(catalogue.results) == len(catalogue.pending_commits) == 20
    for outage in range(1, 4):
        catalogue.commit(WriteFailed("no database"))
        assert len(caplog.records) == outage
        (timer,) = catalogue.timers
        catalogue.timers.clear()
        timer()
        assert len(catalogue.pending_commits) == 20, "each undo is tried again"
    catalogue.commit()
    assert (catalogue.timers, len(caplog.records)) == ([], 3)
    for number in range(20):
        catalogue.declarations.check("/", "queue", f"q{number}")


@pytest.mark.parametrize(("error", "code"), [(CallbackFailed("ZeroDivisionError()"), 541), (WriteFailed("full"), 506)])
def test_deferred_failure_closes_connection_with_its_code(error: Exception, code: int) -> None:
    failed: list[Any] = []
    channel: Any = SimpleNamespace(busy=False, unanswered=[], owner=SimpleNamespace(fail=failed.append))
    answer = DeferredReply(channel, QueueDelete("q", False, False, False))
    answer.reply(b"ok")
    answer.done(error)
    assert [each.code for each in failed] == [code] and not channel.busy


def test_failure_before_reply_raises_internal_error() -> None:
    channel: Any = SimpleNamespace(busy=False, unanswered=[])
    answer = DeferredReply(channel, QueueDelete("q", False, False, False))
    answer.done(CallbackFailed("ZeroDivisionError()"))
    with pytest.raises(InternalError):
        answer.reply(b"ok")
