"""The state that the history judge keeps of each copy of a message, of each consumer, and of rewinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from history import PASSES, Sent


@dataclass(eq=False)
class Copy:
    """One message in one queue. A dead letter has a `source`, and may exist `possible` times."""

    message: int
    queue: str
    sent: Sent
    sent_at: float
    life: int
    promised_at: float = 0.0  # when its publish was confirmed; 0.0: not
    heard: bool = False  # a plain publish
    source: Copy | None = None
    letter: Copy | None = None
    given: int = 0  # number of the last delivery, 0 for none
    given_at: float = 0.0
    given_in: int = -1  # life
    by: str = ""
    returns: int = 0
    times: int = 0
    unmarked: int = 0
    verdict: str = ""  # on the last delivery; "left": its consumer ended with the broker
    settled_at: float = 0.0
    transaction: int = 0  # of the settlement
    rejected: bool = False  # ever
    gone: str = ""  # how it certainly ended
    gone_at: float = 0.0  # since when that is certain: the answer, or the end of a life
    gone_by: int = 0  # the purge
    perhaps: set[int] = field(default_factory=set)  # unanswered commands that may have ended it
    returned: bool = False  # its requeue is certainly in the log
    until: float = 0.0  # it was requeued, and waits for its retry
    unsafe: bool = False  # a power cut may have lost it although it was delivered: it was not confirmed
    spared: bool = False  # or may have kept it and its ack: published again, it is a duplicate of a settled message
    possible: int = 1  # letters
    sealed: bool = False  # its source is certainly settled: no further dead letter may come

    @property
    def passed(self) -> bool:
        return self.source is not None and self.source.queue in PASSES

    @property
    def held(self) -> bool:
        return bool(self.given) and not self.verdict

    def describe_end(self) -> str:
        return (
            f"{self.gone}, {self.gone_at - self.settled_at:.3f} s before it counted" if self.settled_at else self.gone
        )

    def __str__(self) -> str:
        return f"{self.queue} {self.message}"


@dataclass
class Consumer:
    """Settlements that may not have been read yet, and the requests of this life with the times of their answers."""

    unread: list[tuple[float, Copy, int]] = field(default_factory=list)
    heard: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Rewind:
    """One rewind.

    state: "asked" in this life, "answered", or "open" for an unanswered one of an earlier life. must: messages
    certainly settled when it was requested. may: the other messages of its batches. came: the messages of `must` that
    were delivered again.
    """

    must: list[Copy]
    may: list[Copy]
    state: str = "asked"
    came: set[int] = field(default_factory=set)

    def due(self) -> list[Copy]:
        return [] if self.state == "answered" else self.must

    def missing(self) -> list[Copy]:
        return [copy for copy in self.must if copy.message not in self.came]


class Rewinds:
    """All rewinds. violate: called with a violation and its message."""

    def __init__(self, violate: Callable[[str, int], None]) -> None:
        self._violate = violate
        self._all: dict[int, Rewind] = {}

    def begin(self, number: int, copies: list[Copy], heard: Iterable[tuple[float, float]], life: int) -> None:
        """A rewind is about to be requested. heard: answered requests of the consumer."""
        read_at = max((asked for asked, _ in heard), default=0.0)
        rewind = self._all[number] = Rewind([], [])
        for copy in copies:
            settled = copy.verdict == "ack" and copy.given_in == life and copy.settled_at <= read_at
            settled = (settled or copy.gone == "ack") and not copy.perhaps  # an earlier rewind may have brought it back
            (rewind.must if settled else rewind.may).append(copy)
            copy.perhaps.add(number)

    def came(self, copy: Copy) -> None:
        """A copy is delivered. If it was settled, assign the delivery to a rewind.

        A rewind that must bring it comes before one that may. Each rewind brings a copy once; during a rewind an
        uncertain settlement may bring it as well.
        """
        if copy.verdict != "ack":
            return
        rewinds = [(number, self._all[number]) for number in sorted(copy.perhaps) if number in self._all]
        rewinds.sort(key=lambda each: (copy not in each[1].due(), each[1].state == "asked"))
        for number, rewind in rewinds[:1]:
            if copy in rewind.must:
                rewind.came.add(copy.message)
            if rewind.state != "asked" or copy in rewind.must:
                copy.perhaps.discard(number)
            copy.gone, copy.verdict = "", "rewound"

    def answered(self, number: int, done: int) -> None:
        rewind = self._all[number]
        if not len(rewind.must) <= done <= len(rewind.must) + len(rewind.may):
            self._violate(
                f"rewind {number} brought back {done}, of {len(rewind.must)} that were settled for certain"
                f" and {len(rewind.may)} more",
                -1,
            )
        self._is_due(number, rewind)
        for copy in rewind.may:
            if copy.verdict != "ack":
                copy.perhaps.discard(number)

    def ended(self) -> None:
        """End a life. An unanswered rewind that brought one message must bring all; otherwise all of them or none."""
        for number, rewind in self._all.items():
            if rewind.state != "asked":
                continue
            if rewind.came:
                self._is_due(number, rewind)
            else:
                rewind.state = "open"
                rewind.must = [copy for copy in rewind.must if copy.gone == "ack"]

    def account(self) -> None:
        for number, rewind in self._all.items():
            missing = rewind.missing()
            if rewind.state == "open" and rewind.came and missing:
                self._violate(
                    f"of rewind {number} came {len(rewind.came)} of {len(rewind.must)} messages", missing[0].message
                )

    def _is_due(self, number: int, rewind: Rewind) -> None:
        rewind.state = "answered"
        for copy in rewind.missing():
            copy.perhaps.discard(number)
            copy.gone, copy.verdict = "", "rewound"
