"""Tests of the judge of the cluster tests: it must report every kind of violation."""

from __future__ import annotations

import pytest
from account import Account, Name, body_of, name_of, properties_of
from nodes_load import ConsumerConnection, Load


class Scenario:
    """One publisher, one queue."""

    def __init__(self) -> None:
        self.account = Account(300)
        self.session = self.account.session("q")

    def publish(self, count: int = 1, *, confirmed: bool = True) -> None:
        for _ in range(count):
            self.account.publish(self.session)
            if confirmed:
                self.account.record_confirm(self.session, self.session.published, False, True)

    def deliver(self, *sequences: int, redelivered: bool = False, body: bytes | None = None) -> None:
        for sequence in sequences:
            name = Name(self.session.number, sequence)
            body_bytes = body_of(name, 300) if body is None else body
            self.account.record_delivery("q", properties_of(name), body_bytes, redelivered)

    def violation_text(self) -> str:
        with pytest.raises(AssertionError) as violation_text:
            self.account.judge()
        return str(violation_text.value)


def test_correct_run_has_no_violation() -> None:
    scenario = Scenario()
    scenario.publish(3)
    scenario.publish(2, confirmed=False)
    scenario.deliver(1, 2, 4)
    scenario.deliver(2, 3, redelivered=True)
    scenario.account.violations.clear()  # 3 came after 4
    scenario.account.judge()
    assert (scenario.account.confirmed, scenario.account.repeats(), scenario.account.unanswered(scenario.session)) == (
        3,
        1,
        2,
    )
    assert name_of(properties_of(Name(12, 345))) == (12, 345)


def test_confirmed_but_undelivered_message_is_lost() -> None:
    scenario = Scenario()
    scenario.publish(3)
    scenario.deliver(1, 3)
    assert "1 confirmed messages are lost" in scenario.violation_text()


def test_delivery_out_of_order_is_reported() -> None:
    scenario = Scenario()
    scenario.publish(3)
    scenario.deliver(1, 3, 2)
    assert "came first behind 3" in scenario.violation_text()


def test_after_a_cut_only_redelivered_messages_may_be_out_of_order() -> None:
    """With `cut`, a consumer may get an earlier message late if it is flagged redelivered. Other messages keep their
    order.
    """
    scenario = Scenario()
    scenario.account.cut = True
    scenario.publish(3)
    scenario.deliver(1, 3)
    scenario.deliver(2, redelivered=True)
    scenario.account.judge()
    scenario.publish(2)
    scenario.deliver(5, 4)
    assert "came first behind 5" in scenario.violation_text()


def test_repeat_without_redelivered_flag_is_reported() -> None:
    scenario = Scenario()
    scenario.publish()
    scenario.deliver(1, 1)
    assert "came again, not as redelivered" in scenario.violation_text()


def test_unpublished_message_and_wrong_body_are_reported() -> None:
    scenario = Scenario()
    scenario.publish()
    scenario.deliver(1, body=b"another")
    scenario.deliver(2)
    report = scenario.violation_text()
    assert "has another body" in report
    assert "was never published" in report


def test_second_confirm_of_a_message_is_reported() -> None:
    scenario = Scenario()
    scenario.publish(2)
    scenario.account.record_confirm(scenario.session, 2, False, False)
    scenario.deliver(1, 2)
    assert "was answered twice" in scenario.violation_text()


def test_message_redelivered_after_its_ack_is_counted_as_returned() -> None:
    scenario = Scenario()
    scenario.publish(1)
    scenario.deliver(1)
    scenario.account.record_ack("q", Name(0, 1))
    scenario.deliver(1, redelivered=True)
    scenario.account.judge()
    (returned,) = scenario.account.returned
    assert (returned.name, returned.heard_at) == (Name(0, 1), 0.0)
    scenario.account.record_ack_read("q", [Name(0, 1)])
    scenario.deliver(1, redelivered=True)
    assert scenario.account.returned[1].heard_at > 0


def test_first_since_skips_connections_without_deliveries() -> None:
    load = Load(Account(), [])
    load.served["q"] = [ConsumerConnection(10.0, 11.0), ConsumerConnection(20.0, 0.0)]
    assert load.first_since("q", 15.0) == 0.0
    load.served["q"] += [ConsumerConnection(30.0, 31.0), ConsumerConnection(40.0, 41.0)]
    assert load.first_since("q", 15.0) == 31.0
    assert load.first_since("q", 50.0) == 0.0
