"""The matrix: no program of a client fails with amqpd, and each offers with amqpd what it offers with RabbitMQ.

`make interop` prints the whole of it. Here AMQP clients have RabbitMQ beside them, without wrappers: a wrapper sends
what the client under it sends (`Client.over`). The others run with amqpd alone. A program that fails with RabbitMQ,
too, has an error of its own: it must say what its client does not offer.

With TEST_REQUIRE_CLIENTS, or TEST_REQUIRE_KAFKA_CLIENTS for Kafka's, a client that is not installed fails its test;
with TEST_REQUIRE_RABBITMQ the lack of RabbitMQ does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from . import report
from .__main__ import run
from .brokers import PEERS, RABBITMQ
from .programs import Client
from .runner import Cell, errors
from .tables import AMQP, HTTP, KAFKA_PROTOCOL, TASKS

OUT: Final = Path(__file__).parents[2] / ".venv" / "interop"
CELERY_IN_CI: Final = ("chord", "quorum", "quorum-eta", "priority", "dead-letter", "monitor", "reconnect")
"""Celery's scenarios in CI: interop/test_celery.py has the others, with one worker for all of them."""

pytestmark = pytest.mark.skipif("TEST_INTEROP_URL" in os.environ, reason="starts its brokers itself")


def check(matrices: list[report.Matrix], required: str, name: str) -> None:
    """Fail if a client fails or is worse with amqpd, or is missing though the variable requires it.

    Skips the test if none of the clients is installed.
    """
    if OUT.parent.is_dir():
        report.write(matrices, OUT / name)
    print(report.text(matrices))
    cells = [each for matrix in matrices for each in matrix.cells]
    ours = [each for each in cells if each.side not in PEERS]
    optional = {each.name for matrix in matrices for each in matrix.clients if each.optional}
    absent = [each for each in ours if each.verdict == "missing" and each.client not in optional]
    missing = sorted({f"{each.client} ({each.text})" for each in absent})
    assert not (missing and os.environ.get(required)), f"not installed: {', '.join(missing)}"
    if all(each.verdict == "missing" for each in ours):
        pytest.skip(f"not installed: {', '.join(missing)}")
    assert [(each.client, each.scenario, each.side, each.text) for each in errors(cells)] == []


def test_client_that_ci_requires_is_missing_and_an_optional_one_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "OUT", tmp_path / "nosuch" / "out")
    monkeypatch.setenv("TEST_REQUIRE_MADE", "1")
    here, there = Client("here", "Python", list), Client("there", "C++", list, optional=True)
    cells = [Cell("here", "tx", "amqpd", "pass"), Cell("there", "tx", "amqpd", "missing", "no package")]
    made = report.Matrix(AMQP._replace(clients=(here, there), scenarios=()), {"amqpd": "1"}, {"here": "1"}, cells)
    check([made], "TEST_REQUIRE_MADE", "made")
    required = made.table._replace(clients=(here, there._replace(optional=False)))
    with pytest.raises(AssertionError, match=r"not installed: there \(no package\)"):
        check([made._replace(table=required)], "TEST_REQUIRE_MADE", "made")


@pytest.mark.ci_long
@pytest.mark.timeout(3000)
def test_no_amqp_client_fails_with_amqpd_that_passes_with_rabbitmq() -> None:
    clients = tuple(each for each in AMQP.clients if not each.over)
    [matrix] = run([AMQP._replace(clients=clients)], jobs=6)
    check([matrix], "TEST_REQUIRE_CLIENTS", "amqp")
    no_peer = matrix.sides[RABBITMQ].startswith("missing")
    assert not (no_peer and os.environ.get("TEST_REQUIRE_RABBITMQ")), "RabbitMQ is not installed: make rabbitmq"


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.timeout(900)
def test_no_framework_and_no_http_client_fails() -> None:
    celery = TASKS.part(["celery"], list(CELERY_IN_CI), ["amqpd"])
    others = [each.name for each in TASKS.clients if each.name != "celery"]
    tables = [TASKS.part(others, [], ["amqpd"]), HTTP.part([], [], ["amqpd"])]
    check(run(tables, jobs=4), "TEST_REQUIRE_CLIENTS", "tasks")
    check(run([celery], jobs=4), "TEST_REQUIRE_CLIENTS", "celery")


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.timeout(900)
def test_no_kafka_client_fails() -> None:
    check(run([KAFKA_PROTOCOL.part([], [], ["amqpd"])], jobs=3), "TEST_REQUIRE_KAFKA_CLIENTS", "kafka")
