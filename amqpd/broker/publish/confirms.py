"""Publisher confirms: which publishes are not safe yet, and the call that reports when they are.

A persistent publish is safe when it is below the high watermark of every durable log that stores it. Local logs reach
that together, when the commit group of the loop turn is synced (`LoopTurn.committed`). A remote log, which is not on
this node's disk, reports it for an offset (`QueueLog.when_safe`).

The publishes of one turn share one `PendingConfirm`. The tracker answers these in order, and each publish once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.flow.loop_turn import CommitListener, LoopTurn
from amqpd.broker.message import Message
from amqpd.broker.publish.route import Route
from amqpd.storage.queue_log import QueueLog


@final
class PendingConfirm:
    """The publishes of one publisher in one loop turn.

    Attributes:
        generation: their commit group.
        sequence: the number of the last publish.
        routes: their routes to logs.
        synced: the local logs have synced the group.
        missing: number of remote logs that have not reported.
        failed: a log has failed.
    """

    def __init__(self, generation: i64, sequence: i64, routes: list[Route], synced: bool) -> None:
        self.generation = generation
        self.sequence = sequence
        self.routes = routes
        self.synced = synced
        self.missing: i64 = 0
        self.failed = False


@mypyc_attr(allow_interpreted_subclasses=True)
class ConfirmTracker(CommitListener):
    """Unconfirmed publishes of one publisher. A subclass implements `confirmed` and `refused`.

    Attributes:
        sequence: the number of the last publish; the first is 1.
        confirmed_sequence: the number of the last publish that was answered.
        ended: answer nothing more.
    """

    def __init__(self, turn: LoopTurn) -> None:
        self.turn = turn
        self.sequence: i64 = 0
        self.confirmed_sequence: i64 = 0
        self.ended = False
        self._is_scheduled = False
        # Routes to logs of this turn's publishes, and the last of them.
        self._routes: list[Route] = []
        self._last_route: Route | None = None
        # One of these routes has a remote log.
        self._has_remote = False
        self._pending: deque[PendingConfirm] = deque()

    def confirmed(self, first: i64, last: i64) -> None:
        """Confirm the publishes from `first` to `last`."""
        raise NotImplementedError

    def refused(self, first: i64, last: i64) -> None:
        """Nack the publishes from `first` to `last`, because a log failed. Some of them may be stored."""
        raise NotImplementedError

    def add(self, route: Route, message: Message) -> None:
        """Count a publish that was offered to this route in this turn. Cost: about 3 ns."""
        self.sequence += 1
        if route.durable and (message.persistent or route.keeps_all) and route is not self._last_route:
            self._last_route = route
            self._routes.append(route)
            if route.remote:
                self._has_remote = True
        if not self._is_scheduled:
            self._is_scheduled = True
            self.turn.confirm_later(self)

    def add_safe(self) -> None:
        """Count a publish that waits for no log."""
        self.sequence += 1
        if not self._is_scheduled:
            self._is_scheduled = True
            self.turn.confirm_later(self)

    def confirm_early(self) -> None:
        """Confirm all publishes before the end of the turn, if none of them waits for a log."""
        if not self._pending and not self._routes:
            self._confirm(self.sequence)

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        self._is_scheduled = False
        self._last_route = None
        routes = self._routes
        if not self._pending and not self._has_remote and (safe or not routes):
            if routes:
                self._routes = []
            self._confirm(self.sequence)
            return False
        self._routes = []
        pending = PendingConfirm(generation, self.sequence, routes, safe)
        self._pending.append(pending)
        if self._has_remote:
            self._has_remote = False
            self._ask_remote_logs(pending)
        return not safe

    def _ask_remote_logs(self, pending: PendingConfirm) -> None:
        """Ask the remote logs to report when their last record is safe."""
        logs = _remote_logs(pending.routes)
        pending.missing = len(logs)
        for log in logs:
            log.when_safe(log.next_offset - 1, partial(self._on_remote_answer, pending))
        self._answer_finished()  # without any remote log left, no report will come

    def _on_remote_answer(self, pending: PendingConfirm, safe: bool) -> None:
        pending.missing -= 1
        if not safe:
            pending.failed = True
        self._answer_finished()

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        waits = False
        for pending in self._pending:
            if not pending.synced:
                if pending.generation > generation:
                    waits = True
                    break
                pending.synced = True
                if failed and _uses_any(pending.routes, failed):
                    pending.failed = True
        self._answer_finished()
        return waits

    def _answer_finished(self) -> None:
        """Answer the publishes of finished turns, in order, up to the first unfinished turn."""
        waiting = self._pending
        sequence: i64 = 0
        while waiting:
            pending = waiting[0]
            if not pending.synced or pending.missing > 0:
                break
            waiting.popleft()
            if pending.failed:
                self._confirm(sequence)
                self._refuse(pending.sequence)
            sequence = pending.sequence
        self._confirm(sequence)

    def _confirm(self, sequence: i64) -> None:
        first = self.confirmed_sequence + 1
        if sequence >= first and not self.ended:
            self.confirmed_sequence = sequence
            self.confirmed(first, sequence)

    def _refuse(self, sequence: i64) -> None:
        first = self.confirmed_sequence + 1
        if sequence >= first and not self.ended:
            self.confirmed_sequence = sequence
            self.refused(first, sequence)


def _uses_any(routes: list[Route], failed: list[QueueLog]) -> bool:
    for route in routes:
        for destination in route.destinations:
            log = destination.log()
            if log is not None and log in failed:
                return True
    return False


def _remote_logs(routes: list[Route]) -> list[QueueLog]:
    """Return the remote logs of these routes, each once."""
    logs: dict[QueueLog, None] = {}
    for route in routes:
        if route.remote:
            for destination in route.destinations:
                log = destination.log()
                if log is not None and not log.local:
                    logs[log] = None
    return list(logs)


@final
class SafetyWait(CommitListener):
    """One pending call of `when_safe`."""

    def __init__(self, logs: Collection[QueueLog], done: Callable[[bool], None]) -> None:
        self._logs = logs
        self._done = done
        self._generation: i64 = 0
        # Missing answers: one of all local logs together, and one of each remote log.
        self._missing: i64 = 1
        self._safe = True

    def ask(self) -> None:
        for log in self._logs:
            if not log.local:
                self._missing += 1
                log.when_safe(log.next_offset - 1, self._answer)

    def _answer(self, safe: bool) -> None:
        self._missing -= 1
        if not safe:
            self._safe = False
        if self._missing == 0:
            self._done(self._safe)

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        if safe:
            self._answer(True)
            return False
        self._generation = generation
        return True

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        if generation < self._generation:
            return True
        self._answer(not failed or not any(log in failed for log in self._logs))
        return False


def when_safe(turn: LoopTurn, logs: Collection[QueueLog], done: Callable[[bool], None]) -> None:
    """Call `done(True)` when all records of these logs are safe, or `done(False)` when a log has failed.

    Must be called in the loop turn of the appends. Without logs, it waits for the settlements of this turn in any log.
    Not for the hot path: each call makes an object.
    """
    wait = SafetyWait(logs, done)
    wait.ask()
    turn.confirm_later(wait)
