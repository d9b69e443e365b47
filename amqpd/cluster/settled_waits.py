"""Who waits until what a log has settled is in Kafka: transactions, before their tx.commit-ok.

A slot's settlements are told in passes (`logs.py`), each over all logs that had changed when it began. Who has asked
before that is heard by the pass, and answered when Kafka has what `settled` has at the pass's end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from amqpd.cluster.replicated_log import ReplicatedLog


class Asking(NamedTuple):
    """Who asked, and of which log."""

    log: ReplicatedLog
    done: Callable[[bool], None]


class SettledWaits:
    """Of one slot. heard: by the pass that goes on."""

    def __init__(self) -> None:
        self._asking: list[Asking] = []
        self.heard: list[Asking] = []
        self._sent: deque[tuple[int, Callable[[bool], None]]] = deque()

    def ask(self, log: ReplicatedLog, done: Callable[[bool], None]) -> None:
        self._asking.append(Asking(log, done))

    def begin(self) -> None:
        """A pass begins."""
        self.heard += self._asking
        self._asking = []

    def told(self, end: int) -> None:
        """The pass is over, all of it is below `end` of `settled`. What was settled before Kafka had its message is
        told when Kafka has it (`ReplicatedLog.moved`): in a later pass.
        """
        heard, self.heard = self.heard, []
        for each in heard:
            log = each.log
            if log.failed or log.deleted:
                each.done(bool(log.deleted))
            elif log.settlements.behind:
                self._asking.append(each)
            else:
                self._sent.append((end, each.done))

    def moved(self, high_watermark: int) -> None:
        """Kafka has `settled` up to there."""
        while self._sent and self._sent[0][0] <= high_watermark:
            self._sent.popleft()[1](True)

    def refuse(self) -> None:
        """Nothing is told any more."""
        waiting = [each.done for each in (*self._asking, *self.heard)] + [done for _, done in self._sent]
        self._asking, self.heard = [], []
        self._sent.clear()
        for done in waiting:
            done(False)
