"""The calls of `api/calls.py` on a broker of this checkout, compared with RabbitMQ 3.10.8's answers: the same status
and no missing field, except what `api/differences.py` lists with a reason.
"""

from __future__ import annotations

import pytest

from interop.compare import __main__ as compare
from interop.compare.api import beside
from interop.compare.api.beside import Beside
from interop.compare.api.calls import ALL
from interop.compare.api.differences import MISSING, NOT_YET, STATUS
from interop.compare.api.held import Answer
from interop.compare.party import Address

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Beside]:
    """Each call with RabbitMQ's and amqpd's answer."""
    with compare.amqpd(tmp_path_factory.mktemp("compare-api")) as process:
        found = beside.answers(Address("127.0.0.1", process.amqp_port, process.http_port))
        assert "Traceback" not in process.stderr, process.stderr
    return found


@pytest.mark.slow
def test_status_equals_rabbitmqs(answers: list[Beside]) -> None:
    assert beside.statuses(answers) == []


def test_no_field_of_rabbitmq_is_missing(answers: list[Beside]) -> None:
    assert beside.fields(answers) == []


def test_differences_in_status_and_fields_are_found(answers: list[Beside]) -> None:
    first = answers[0]
    other = Answer(first.theirs.status + 1, first.theirs.fields)
    assert beside.statuses([first._replace(ours=other), *answers[1:]]) == [
        f"{first.call.name()}: RabbitMQ answers {first.theirs.status}, amqpd {other.status}"
    ]
    fewer_fields = Answer(first.theirs.status, [each for each in first.theirs.fields if each != "node"])
    assert beside.fields([first._replace(ours=fewer_fields), *answers[1:]]) == [
        f"{first.call.name()}: node is not there"
    ]


def test_200_calls_with_at_most_ten_status_differences() -> None:
    assert len(ALL) >= 200
    assert len(STATUS) <= 10
    assert all(each.reason for each in (*STATUS, *NOT_YET, *MISSING))
