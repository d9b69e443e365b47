"""Publishes that are not safe yet, in their order, and who is told when they are.

Safe means: the high watermark of every durable log that a persistent message went into has passed it. Of local logs
that is so once the commit group of its turn is synced, whichever logs were in it (`LoopTurn.committed`); any other log
is asked by the offset (`QueueLog.when_safe`).

What a publisher did in one turn of the loop has one mark; marks are answered in their order, each publish once.
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
    """Publishes up to `sequence`, which went these ways, are in commit group `generation`."""

    def __init__(self, generation: i64, sequence: i64, routes: list[Route], synced: bool) -> None:
        self.generation = generation
        self.sequence = sequence
        self.routes = routes
        # Of the local logs; of the others, how many have not answered.
        self.synced = synced
        self.missing: i64 = 0
        self.failed = False


@mypyc_attr(allow_interpreted_subclasses=True)
class ConfirmTracker(CommitListener):
    """Of one publisher. Whoever answers it derives from this: `confirmed` and `refused` are called."""

    def __init__(self, turn: LoopTurn) -> None:
        self.turn = turn
        # Of the last publish, and of the last that was answered. The first is 1.
        self.sequence: i64 = 0
        self.confirmed_sequence: i64 = 0
        # Nobody is to be told any more.
        self.ended = False
        self._turn_wanted = False
        # Ways that this turn's publishes went and that end in a log; the last of them.
        self._routes: list[Route] = []
        self._last_route: Route | None = None
        # Whether one of them leads to a log that is not local.
        self._remote = False
        self._marks: deque[PendingConfirm] = deque()

    def confirmed(self, first: i64, last: i64) -> None:
        """The publishes from `first` to `last` are safe."""
        raise NotImplementedError

    def refused(self, first: i64, last: i64) -> None:
        """Nothing is promised of the publishes from `first` to `last`: a log failed."""
        raise NotImplementedError

    def add(self, route: Route, message: Message) -> None:
        """The next publish: it has been offered along this route in this turn. Cost: some 3 ns."""
        self.sequence += 1
        if route.durable and (message.persistent or route.keeps_all) and route is not self._last_route:
            self._last_route = route
            self._routes.append(route)
            if route.remote:
                self._remote = True
        if not self._turn_wanted:
            self._turn_wanted = True
            self.turn.confirm_later(self)

    def add_safe(self) -> None:
        """The next publish, which waits for no log (any more)."""
        self.sequence += 1
        if not self._turn_wanted:
            self._turn_wanted = True
            self.turn.confirm_later(self)

    def confirm_early(self) -> None:
        """Confirms what there is, before the turn ends, if it waits for no log."""
        if not self._marks and not self._routes:
            self._confirm(self.sequence)

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        self._turn_wanted = False
        self._last_route = None
        routes = self._routes
        if not self._marks and not self._remote and (safe or not routes):
            if routes:
                self._routes = []
            self._confirm(self.sequence)
            return False
        self._routes = []
        mark = PendingConfirm(generation, self.sequence, routes, safe)
        self._marks.append(mark)
        if self._remote:
            self._remote = False
            self._ask(mark)
        return not safe

    def _ask(self, mark: PendingConfirm) -> None:
        """The logs that are not local say by themselves when what they have is safe."""
        logs = _remote(mark.routes)
        mark.missing = len(logs)
        for log in logs:
            log.when_safe(log.next_offset - 1, partial(self._answered, mark))
        self._work_off()  # their queues may have no log any more: then there is nobody to answer

    def _answered(self, mark: PendingConfirm, safe: bool) -> None:
        mark.missing -= 1
        if not safe:
            mark.failed = True
        self._work_off()

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        waits = False
        for mark in self._marks:
            if not mark.synced:
                if mark.generation > generation:
                    waits = True
                    break
                mark.synced = True
                if failed and _touches(mark.routes, failed):
                    mark.failed = True
        self._work_off()
        return waits

    def _work_off(self) -> None:
        """Answers the marks of which all is known, up to the first of which it is not."""
        marks = self._marks
        sequence: i64 = 0
        while marks:
            mark = marks[0]
            if not mark.synced or mark.missing > 0:
                break
            marks.popleft()
            if mark.failed:
                self._confirm(sequence)
                self._refuse(mark.sequence)
            sequence = mark.sequence
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


def _touches(routes: list[Route], failed: list[QueueLog]) -> bool:
    for route in routes:
        for destination in route.destinations:
            log = destination.log()
            if log is not None and log in failed:
                return True
    return False


def _remote(routes: list[Route]) -> list[QueueLog]:
    """The logs at the ends of these ways that are not local, each once."""
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
    """One question: is it safe?"""

    def __init__(self, logs: Collection[QueueLog], done: Callable[[bool], None]) -> None:
        self._logs = logs
        self._done = done
        self._generation: i64 = 0
        # Answers to come: of the local logs together, and of each other one.
        self._missing: i64 = 1
        self._safe = True

    def ask(self) -> None:
        for log in self._logs:
            if not log.local:
                self._missing += 1
                log.when_safe(log.next_offset - 1, self._answered)

    def _answered(self, safe: bool) -> None:
        self._missing -= 1
        if not safe:
            self._safe = False
        if self._missing == 0:
            self._done(self._safe)

    def on_turn_end(self, generation: i64, safe: bool) -> bool:
        if safe:
            self._answered(True)
            return False
        self._generation = generation
        return True

    def on_commit(self, generation: i64, failed: list[QueueLog]) -> bool:
        if generation < self._generation:
            return True
        self._answered(not failed or not any(log in failed for log in self._logs))
        return False


def when_safe(turn: LoopTurn, logs: Collection[QueueLog], done: Callable[[bool], None]) -> None:
    """Calls `done` once what these logs have taken so far is safe; with False when one of them has failed.

    Called in the turn of the appends. Without logs it waits for whatever this turn settles, in any log. Off the fast
    path: it costs an object.
    """
    question = SafetyWait(logs, done)
    question.ask()
    turn.confirm_later(question)
