"""The audit log that goes on: `amqpctl audit_log --follow` against a broker that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli import diagnostics

AUDIT = ("GET", "/api/audit")


def page(*names: str, begin: int, ended: bool = True, lost: int = 0) -> tuple[int, Any]:
    """Records of these queues' deletion, at the offsets from `begin` on."""
    records = [{"event": "queue.deleted", "name": name, "offset": begin + at} for at, name in enumerate(names)]
    return 200, {"records": records, "ended": ended, "next_offset": begin + len(names), "lost": lost}


class Naps:
    """What stands for `time.sleep`: the broker's next answer, and ctrl-C when there is no more."""

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
def following(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Naps]:
    def follow(*answers: tuple[int, Any]) -> Naps:
        broker.answers[AUDIT] = answers[0]
        naps = Naps(broker, *answers[1:])
        monkeypatch.setattr(diagnostics, "time", naps)
        return naps

    return follow


def asked(broker: FakeBroker) -> list[dict[str, list[str]]]:
    return [parse_qs(each.path.partition("?")[2]) for each in broker.asked]


def test_what_comes_is_shown_until_it_is_stopped(broker: FakeBroker, ctl: Ctl, following: Callable[..., Naps]) -> None:
    naps = following(page("a", "b", begin=7), page(begin=9), page("c", begin=9), page("d", begin=10))
    result = ctl("-q", "audit_log", "--follow", "event", "name")
    rows = ["event\tname", *(f"queue.deleted\t{name}" for name in "abcd")]
    assert (result.code, result.out.splitlines()) == (0, rows)
    assert naps.slept_s == [diagnostics.AUDIT_FOLLOW_S] * 4
    queries = asked(broker)
    assert [each.get("offset") for each in queries] == [None, ["9"], ["9"], ["10"]]
    assert [each.get("last") for each in queries] == [[str(diagnostics.SHOWN_COUNT)], None, None, None]


def test_pages_that_are_full_follow_at_once(broker: FakeBroker, ctl: Ctl, following: Callable[..., Naps]) -> None:
    naps = following(page("a", begin=0, ended=False))

    class Rising(dict[tuple[str, str], Any]):
        """The first page, and the last."""

        def get(self, key: tuple[str, str], _default: Any = None) -> Any:
            return page("a", begin=0, ended=False) if len(broker.asked) == 1 else page("b", begin=1)

    broker.answers = Rising()
    result = ctl("-q", "audit_log", "--follow", "--no-table-headers", "name")
    assert (result.code, result.out.splitlines()) == (0, ["a", "b"])
    assert len(naps.slept_s) == 1


def test_a_selector_and_a_time_go_with_every_question(
    broker: FakeBroker, ctl: Ctl, following: Callable[..., Naps]
) -> None:
    following(page("a", begin=3), page(begin=4))
    ctl("audit_log", "--follow", "--since", "2026-11-22T08:00:00", "--where", "user = 'alice'", "name")
    first, second = asked(broker)
    assert first["where"] == second["where"] == ["user = 'alice'"]
    assert first["since"] == ["2026-11-22T08:00:00"]
    assert "since" not in second and second["offset"] == ["4"]


def test_a_limit_ends_it(broker: FakeBroker, ctl: Ctl, following: Callable[..., Naps]) -> None:
    naps = following(page("a", begin=0), page("b", "c", begin=1), page("never", begin=3))
    result = ctl("-q", "audit_log", "--follow", "--limit", "3", "--no-table-headers", "name")
    assert (result.code, result.out.splitlines()) == (0, ["a", "b", "c"])
    assert len(naps.slept_s) == 1
    assert [each["count"] for each in asked(broker)] == [["3"], ["2"]]


def test_what_was_lost_is_told(broker: FakeBroker, ctl: Ctl, following: Callable[..., Naps]) -> None:
    following(page("a", begin=0), page(begin=1, lost=4))
    result = ctl("audit_log", "--follow", "name")
    assert "4 records could not be written and are lost" in result.err + result.out


def test_a_broker_that_goes_ends_it(broker: FakeBroker, ctl: Ctl, following: Callable[..., Naps]) -> None:
    following(page("a", begin=0), (503, {"error": "unavailable", "reason": "the broker stops"}))
    result = ctl("audit_log", "--follow", "name")
    assert result.code == 70
    assert "the broker stops" in result.err


def test_json_has_no_end(ctl: Ctl) -> None:
    result = ctl("audit_log", "--follow", "--formatter", "json")
    assert result.code == 64
    assert "--follow has no end" in result.err
