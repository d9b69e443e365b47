"""The judge itself: each kind of broken promise is seen, and what is allowed is not called broken."""

from __future__ import annotations

from typing import Any

import ledger as judge
import pytest
from ledger import ACK_AGE_S, Delivery, Ledger, body_of, properties_of

QUEUE = "q0"


class Clock:
    """A tenth of a millisecond goes by from look to look."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        self.now_s += 0.0001
        return self.now_s


time = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: Any) -> None:
    monkeypatch.setattr(judge, "time", time)


@pytest.fixture
def ledger() -> Ledger:
    """One publisher, one queue, three confirmed messages."""
    ledger = Ledger([QUEUE], 1)
    ledger.publishers[0].next = 4
    ledger.publishers[0].confirmed.update({0, 1, 2})
    return ledger


def deliver(ledger: Ledger, sequence: int, *, redelivered: bool = False) -> Delivery:
    return ledger.delivered(QUEUE, redelivered, properties_of(0, sequence), body_of(0, sequence))


def heard(ledger: Ledger, answers: int = 2) -> None:
    """The broker has answered what was asked behind the acks, and was there for another question."""
    for _ in range(answers):
        ledger.heard(QUEUE, time.monotonic())


def test_an_honest_broker(ledger: Ledger) -> None:
    """Settled, unacked and late acks over a kill; message 3 was never confirmed and need not be there."""
    ledger.acknowledged(deliver(ledger, 0))
    heard(ledger)
    ledger.killed(time.monotonic() + 1.0)
    ledger.acknowledged(deliver(ledger, 1, redelivered=True))
    heard(ledger)
    ledger.killed(time.monotonic())  # that ack is too young to count
    ledger.acknowledged(deliver(ledger, 1, redelivered=True))
    ledger.killed(time.monotonic() + 1.0)  # and this one the broker need not have read
    deliver(ledger, 1, redelivered=True)
    deliver(ledger, 2)
    ledger.judge(marked_unseen_max=1)
    assert (ledger.returned_after_ack, ledger.judged_acks, ledger.unheard_acks) == (2, 1, 1)


@pytest.mark.parametrize(("answers", "age_s", "counts"), [(2, 0.01, True), (1, 0.01, False), (2, -0.01, False)])
def test_an_ack_counts_from_its_answer_on(ledger: Ledger, answers: int, age_s: float, counts: bool) -> None:
    """However long ago it was sent; and the broker had the processor since, as the answer behind that one shows."""
    ledger.acknowledged(deliver(ledger, 0))
    time.now_s += 0.02
    heard(ledger, answers)
    ledger.killed(time.monotonic() + ACK_AGE_S + age_s)
    deliver(ledger, 0, redelivered=True)
    assert bool(ledger.violations) is counts


def test_an_ack_before_a_power_cut() -> None:
    """It need not be safe before the second group of commits after it: the slowest confirm tells how long."""
    for power, returned in ((True, 0), (False, 1)):
        ledger = Ledger([QUEUE], 1, power=power)
        ledger.publishers[0].next = 1
        now = time.monotonic()
        ledger.answered(ledger.publishers[0], now - 1.0, 0.0)
        ledger.acknowledged(deliver(ledger, 0))
        heard(ledger)
        ledger.killed(now + ACK_AGE_S + 1.5)
        deliver(ledger, 0, redelivered=True)
        assert len(ledger.violations) == returned
        ledger.killed(now + 10)
        ledger.acknowledged(deliver(ledger, 0, redelivered=True))
        heard(ledger)
        ledger.answered(ledger.publishers[0], time.monotonic() - 0.01, 0.0)
        ledger.killed(time.monotonic() + ACK_AGE_S + 1.5)  # in this life nothing was slow
        deliver(ledger, 0, redelivered=True)
        assert len(ledger.violations) > returned


def test_an_ack_before_a_power_cut_without_a_confirm() -> None:
    """Nothing tells how slow that life was: the slowest confirm of those before does."""
    for waited_s, returned in ((1.5, 0), (2.5, 1)):
        ledger = Ledger([QUEUE], 1, power=True)
        ledger.publishers[0].next = 1
        ledger.answered(ledger.publishers[0], time.monotonic() - 1.0, 0.0)
        ledger.killed(time.monotonic())
        ledger.acknowledged(deliver(ledger, 0))
        heard(ledger)
        ledger.killed(time.monotonic() + ACK_AGE_S + waited_s)
        deliver(ledger, 0, redelivered=True)
        assert len(ledger.violations) == returned


def test_lost(ledger: Ledger) -> None:
    deliver(ledger, 0)
    deliver(ledger, 2)
    with pytest.raises(AssertionError, match=r"1 confirmed messages lost.*'q0', 0, 1"):
        ledger.judge(0)


@pytest.mark.parametrize(
    ("sequence", "redelivered", "text"),
    [
        (1, False, "without redelivered"),
        (1, True, "was heard"),
        (0, False, "came first after"),
        (9, False, "never published"),
    ],
)
def test_after_a_kill(ledger: Ledger, sequence: int, redelivered: bool, text: str) -> None:
    """Message 1 was delivered and acked long before."""
    ledger.acknowledged(deliver(ledger, 1))
    heard(ledger)
    ledger.killed(time.monotonic() + ACK_AGE_S + 1.0)
    deliver(ledger, sequence, redelivered=redelivered)
    assert text in "\n".join(ledger.violations)


def test_marked_wholesale(ledger: Ledger) -> None:
    for sequence in range(3):
        deliver(ledger, sequence, redelivered=True)
    ledger.judge(marked_unseen_max=3)
    with pytest.raises(AssertionError, match="3 messages never delivered came as redelivered"):
        ledger.judge(marked_unseen_max=2)


def test_another_body(ledger: Ledger) -> None:
    ledger.delivered(QUEUE, False, properties_of(0, 0), body_of(0, 0) + b"?")
    assert "another body" in ledger.violations[0]
