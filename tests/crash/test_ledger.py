"""The ledger reports each kind of breach, and nothing that is allowed."""

from __future__ import annotations

from typing import Any

import ledger as judge
import pytest
from ledger import ACK_AGE_S, Delivery, Ledger, body_of, properties_of

QUEUE = "q0"


class Clock:
    """A clock that advances by 0.1 ms with each call."""

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
    """Return a ledger with one publisher, one queue and three confirmed messages."""
    ledger = Ledger([QUEUE], 1)
    ledger.publishers[0].next = 4
    ledger.publishers[0].confirmed.update({0, 1, 2})
    return ledger


def deliver(ledger: Ledger, sequence: int, *, redelivered: bool = False) -> Delivery:
    return ledger.delivered(QUEUE, redelivered, properties_of(0, sequence), body_of(0, sequence))


def answered_after_acks(ledger: Ledger, answers: int = 2) -> None:
    """Note `answers` replies to requests that were sent after the acks."""
    for _ in range(answers):
        ledger.heard(QUEUE, time.monotonic())


def test_correct_broker_has_no_violation(ledger: Ledger) -> None:
    """Acks that count, are missing or came too late, over kills; message 3 was never confirmed and may be missing."""
    ledger.acknowledged(deliver(ledger, 0))
    answered_after_acks(ledger)
    ledger.killed(time.monotonic() + 1.0)
    ledger.acknowledged(deliver(ledger, 1, redelivered=True))
    answered_after_acks(ledger)
    ledger.killed(time.monotonic())  # that ack is too recent to count
    ledger.acknowledged(deliver(ledger, 1, redelivered=True))
    ledger.killed(time.monotonic() + 1.0)  # the broker may not have read this ack
    deliver(ledger, 1, redelivered=True)
    deliver(ledger, 2)
    ledger.judge(marked_unseen_max=1)
    assert (ledger.returned_after_ack, ledger.judged_acks, ledger.unheard_acks) == (2, 1, 1)


@pytest.mark.parametrize(("answers", "age_s", "counts"), [(2, 0.01, True), (1, 0.01, False), (2, -0.01, False)])
def test_ack_counts_only_long_after_answers_behind_it(ledger: Ledger, answers: int, age_s: float, counts: bool) -> None:
    """The age counts from the answer, not from the ack. A second answer shows that the broker had CPU time since."""
    ledger.acknowledged(deliver(ledger, 0))
    time.now_s += 0.02
    answered_after_acks(ledger, answers)
    ledger.killed(time.monotonic() + ACK_AGE_S + age_s)
    deliver(ledger, 0, redelivered=True)
    assert bool(ledger.violations) is counts


def test_ack_must_survive_power_cut_only_after_twice_the_slowest_confirm() -> None:
    """An ack must be synced by the second group commit after it; the slowest confirm is the measure of that time."""
    for power, returned in ((True, 0), (False, 1)):
        ledger = Ledger([QUEUE], 1, power=power)
        ledger.publishers[0].next = 1
        now = time.monotonic()
        ledger.answered(ledger.publishers[0], now - 1.0, 0.0)
        ledger.acknowledged(deliver(ledger, 0))
        answered_after_acks(ledger)
        ledger.killed(now + ACK_AGE_S + 1.5)
        deliver(ledger, 0, redelivered=True)
        assert len(ledger.violations) == returned
        ledger.killed(now + 10)
        ledger.acknowledged(deliver(ledger, 0, redelivered=True))
        answered_after_acks(ledger)
        ledger.answered(ledger.publishers[0], time.monotonic() - 0.01, 0.0)
        ledger.killed(time.monotonic() + ACK_AGE_S + 1.5)  # in this life no confirm was slow
        deliver(ledger, 0, redelivered=True)
        assert len(ledger.violations) > returned


def test_life_without_confirm_uses_slowest_confirm_of_earlier_lives() -> None:
    for waited_s, returned in ((1.5, 0), (2.5, 1)):
        ledger = Ledger([QUEUE], 1, power=True)
        ledger.publishers[0].next = 1
        ledger.answered(ledger.publishers[0], time.monotonic() - 1.0, 0.0)
        ledger.killed(time.monotonic())
        ledger.acknowledged(deliver(ledger, 0))
        answered_after_acks(ledger)
        ledger.killed(time.monotonic() + ACK_AGE_S + waited_s)
        deliver(ledger, 0, redelivered=True)
        assert len(ledger.violations) == returned


def test_lost_confirmed_message_is_a_violation(ledger: Ledger) -> None:
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
def test_wrong_delivery_after_kill_is_a_violation(ledger: Ledger, sequence: int, redelivered: bool, text: str) -> None:
    """Message 1 was delivered and acked long before the kill."""
    ledger.acknowledged(deliver(ledger, 1))
    answered_after_acks(ledger)
    ledger.killed(time.monotonic() + ACK_AGE_S + 1.0)
    deliver(ledger, sequence, redelivered=redelivered)
    assert text in "\n".join(ledger.violations)


def test_too_many_undelivered_messages_marked_as_redelivered(ledger: Ledger) -> None:
    for sequence in range(3):
        deliver(ledger, sequence, redelivered=True)
    ledger.judge(marked_unseen_max=3)
    with pytest.raises(AssertionError, match="3 messages never delivered came as redelivered"):
        ledger.judge(marked_unseen_max=2)


def test_changed_body_is_a_violation(ledger: Ledger) -> None:
    ledger.delivered(QUEUE, False, properties_of(0, 0), body_of(0, 0) + b"?")
    assert "another body" in ledger.violations[0]
