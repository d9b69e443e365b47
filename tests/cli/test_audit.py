"""`amqpctl audit_log --follow` against a broker with prepared answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli import diagnostics

AUDIT = ("GET", "/api/audit")


def page(*names: str, first_offset: int, ended: bool = True, lost: int = 0) -> tuple[int, Any]:
    """Return records of the deletion of these queues, at the offsets from `begin`."""
    records = [{"event": "queue.deleted", "name": name, "offset": first_offset + at} for at, name in enumerate(names)]
    return 200, {"records": records, "ended": ended, "next_offset": first_offset + len(names), "lost": lost}


class FakeTime:
    """Replaces the `time` module.

    Each sleep sets the broker's next answer; after the last, it raises KeyboardInterrupt.
    """

    def __init__(self, broker: FakeBroker, *answers: tuple[int, Any]) -> None:
        self.broker = broker
        self.answers = list(answers)
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        if not self.answers:
            raise KeyboardInterrupt
        self.broker.answers[AUDIT] = self.answers.pop(0)


@pytest.fixture
def following(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTime]:
    def follow(*answers: tuple[int, Any]) -> FakeTime:
        broker.answers[AUDIT] = answers[0]
        fake_time = FakeTime(broker, *answers[1:])
        monkeypatch.setattr(diagnostics, "time", fake_time)
        return fake_time

    return follow


def sent_queries(broker: FakeBroker) -> list[dict[str, list[str]]]:
    return [parse_qs(each.path.partition("?")[2]) for each in broker.requests]


def test_follow_shows_new_records_until_interrupted(
    broker: FakeBroker, ctl: Ctl, following: Callable[..., FakeTime]
) -> None:
    fake_time = following(
        page("a", "b", first_offset=7), page(first_offset=9), page("c", first_offset=9), page("d", first_offset=10)
    )
    result = ctl("-q", "audit_log", "--follow", "event", "name")
    rows = ["event\tname", *(f"queue.deleted\t{name}" for name in "abcd")]
    assert (result.code, result.out.splitlines()) == (0, rows)
    assert fake_time.slept_s == [diagnostics.AUDIT_FOLLOW_S] * 4
    queries = sent_queries(broker)
    assert [each.get("offset") for each in queries] == [None, ["9"], ["9"], ["10"]]
    assert [each.get("last") for each in queries] == [[str(diagnostics.SHOWN_COUNT)], None, None, None]


def test_full_page_is_followed_without_sleep(broker: FakeBroker, ctl: Ctl, following: Callable[..., FakeTime]) -> None:
    fake_time = following(page("a", first_offset=0, ended=False))

    class TwoPages(dict[tuple[str, str], Any]):
        """Returns a full page first, then the last page."""

        def get(self, key: tuple[str, str], _default: Any = None) -> Any:
            return page("a", first_offset=0, ended=False) if len(broker.requests) == 1 else page("b", first_offset=1)

    broker.answers = TwoPages()
    result = ctl("-q", "audit_log", "--follow", "--no-table-headers", "name")
    assert (result.code, result.out.splitlines()) == (0, ["a", "b"])
    assert len(fake_time.slept_s) == 1


def test_selector_is_in_every_request_and_since_in_the_first(
    broker: FakeBroker, ctl: Ctl, following: Callable[..., FakeTime]
) -> None:
    following(page("a", first_offset=3), page(first_offset=4))
    ctl("audit_log", "--follow", "--since", "2026-11-22T08:00:00", "--where", "user = 'alice'", "name")
    first, second = sent_queries(broker)
    assert first["where"] == second["where"] == ["user = 'alice'"]
    assert first["since"] == ["2026-11-22T08:00:00"]
    assert "since" not in second and second["offset"] == ["4"]


def test_limit_ends_follow(broker: FakeBroker, ctl: Ctl, following: Callable[..., FakeTime]) -> None:
    fake_time = following(page("a", first_offset=0), page("b", "c", first_offset=1), page("never", first_offset=3))
    result = ctl("-q", "audit_log", "--follow", "--limit", "3", "--no-table-headers", "name")
    assert (result.code, result.out.splitlines()) == (0, ["a", "b", "c"])
    assert len(fake_time.slept_s) == 1
    assert [each["count"] for each in sent_queries(broker)] == [["3"], ["2"]]


def test_lost_records_are_reported(broker: FakeBroker, ctl: Ctl, following: Callable[..., FakeTime]) -> None:
    following(page("a", first_offset=0), page(first_offset=1, lost=4))
    result = ctl("audit_log", "--follow", "name")
    assert "4 records could not be written and are lost" in result.err + result.out


def test_unavailable_broker_ends_follow(broker: FakeBroker, ctl: Ctl, following: Callable[..., FakeTime]) -> None:
    following(page("a", first_offset=0), (503, {"error": "unavailable", "reason": "the broker stops"}))
    result = ctl("audit_log", "--follow", "name")
    assert result.code == 70
    assert "the broker stops" in result.err


def test_follow_with_json_is_a_usage_error(ctl: Ctl) -> None:
    result = ctl("audit_log", "--follow", "--formatter", "json")
    assert result.code == 64
    assert "--follow has no end" in result.err
