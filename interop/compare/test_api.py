"""The calls of `api/calls.py` on a broker of this checkout, beside what RabbitMQ 3.10.8 answered: the same status, and
no field less, but for what `api/differences.py` names with its reason.
"""

from __future__ import annotations

import pytest

from interop.compare import __main__ as compare
from interop.compare.api import held
from interop.compare.api.calls import ALL, Call
from interop.compare.api.differences import MISSING, NOT_YET, STATUS, Missing, Status, allowed
from interop.compare.api.held import Answer
from interop.compare.api.state import State
from interop.compare.party import Address


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Call, Answer, Answer]]:
    """Each call with RabbitMQ's answer and ours."""
    kept = held.load()
    with compare.amqpd(tmp_path_factory.mktemp("compare-api")) as process:
        with State(Address("127.0.0.1", process.amqp_port, process.http_port)) as state:
            ours = held.hold_all(state, ALL)
        assert "Traceback" not in process.stderr, process.stderr
    return [(call, kept[call.name()].pop(0), answer) for call, answer in zip(ALL, ours, strict=True)]


@pytest.mark.timeout(180)
def test_the_status_is_rabbitmqs(answers: list[tuple[Call, Answer, Answer]]) -> None:
    found = {(call.name(), theirs.status, ours.status) for call, theirs, ours in answers}
    found = {each for each in found if each[1] != each[2]}
    named = {each[:3] for each in (*STATUS, *NOT_YET)}
    assert sorted(found - named) == []
    assert sorted({each[:3] for each in STATUS} - found) == []


def test_no_field_is_missing(answers: list[tuple[Call, Answer, Answer]]) -> None:
    used: set[Missing] = set()
    without: list[tuple[str, str]] = []
    for call, theirs, ours in answers:
        if theirs.status == ours.status:
            for field in set(theirs.fields) - set(ours.fields):
                reason = allowed(call.path, field)
                used |= {reason} if reason is not None else set()
                without += [(call.name(), field)] if reason is None else []
    assert sorted(without) == []
    quick = {each for each in MISSING if "idle_since" in each.fields}
    assert [each for each in MISSING if each not in used | quick] == []


def test_there_are_hundreds_of_calls_and_ten_that_differ() -> None:
    assert len(ALL) >= 200
    assert len(STATUS) <= 10
    assert all(each.reason for each in (*STATUS, *NOT_YET, *MISSING))
    assert isinstance(STATUS[0], Status)
