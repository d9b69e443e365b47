"""A scripted history for tests of the history judge."""

from __future__ import annotations

from typing import Any

from history import Event, Given, Sent
from history_judge import AGE_S, LETTER_AGE_S, Judge

OLD = LETTER_AGE_S + 5.0


class Story:
    """Passes events to a judge; each takes a millisecond. messages: numbers from 1."""

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge or Judge()
        self.now = 1000.0
        self.number = 100
        self.last: dict[tuple[str, int], int] = {}

    def note(self, what: str, queue: str = "", message: int = -1, more: Any = None) -> None:
        self.now += 0.001
        self.judge.take([Event(self.now, what, queue, message, more)])

    def publish(
        self,
        queue: str,
        *messages: int,
        how: str = "confirm",
        priority: int = 0,
        tx: int = 0,
        after_s: float = 0.0,
        batch: int = 0,
    ) -> None:
        """after_s: time until the message is due."""
        due = self.now + after_s if after_s else 0.0
        for message in messages:
            self.note("publish", queue, message, Sent(how, priority, tx, due, batch))
            if how == "confirm":
                self.note("confirmed", queue, message)

    def give(
        self,
        queue: str,
        message: int,
        *,
        again: bool = False,
        returns: int = 0,
        reason: str = "",
        marked: bool = False,
        home: str | None = None,
    ) -> None:
        """marked, home: the headers of the copy; home=None: the right one."""
        source = queue.partition(".")[0]
        deaths = ((reason, source, "", (source,), 1),) if reason else ()
        if home is None:
            home = {"moved.to": "moved", "revived": "redriven"}.get(queue, "")
        self.number += 1
        self.last[queue, message] = self.number
        self.note("given", queue, message, Given(self.number, again, queue, returns, deaths, marked, home))

    def settle(self, queue: str, message: int, verdict: str = "ack", transaction: int = 0) -> None:
        self.note("settle", queue, message, (self.last[queue, message], verdict, transaction))

    def hear(self, queue: str, *after_s: float) -> None:
        """Answer a request at once, and further ones after each `after_s`; by default enough for an ack to count."""
        for each in (0.0, *(after_s or (1.5 * AGE_S,))):
            self.now += each
            self.note("heard", more=(queue, self.now))

    def end(self, how: str = "kill", after_s: float = OLD) -> None:
        self.now += after_s
        self.note("ended", more=how)

    def through(self, queue: str, *messages: int, again: bool = False, reason: str = "", marked: bool = False) -> None:
        """Deliver, ack, and answer requests behind the acks."""
        for message in messages:
            self.give(queue, message, again=again, reason=reason, marked=marked)
            self.settle(queue, message)
        self.hear(queue)

    def found(self) -> str:
        self.end("stop", 0.0)
        self.judge.account()
        return "\n".join(self.judge.violations)
