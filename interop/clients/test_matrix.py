"""The matrix without wrappers: nothing that a client can do with RabbitMQ fails with amqpd.

A wrapper sends what the client under it sends, which is in the matrix (`Client.over`). `make interop` has them.
With TEST_REQUIRE_CLIENTS a client that is not installed fails the test. With TEST_REQUIRE_RABBITMQ the lack of RabbitMQ
does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import report
from .__main__ import run
from .brokers import RABBITMQ
from .programs import CLIENTS
from .runner import differences

OUT = Path(__file__).parents[2] / ".venv" / "interop"


@pytest.mark.ci_long
@pytest.mark.timeout(1500)
@pytest.mark.skipif("TEST_INTEROP_URL" in os.environ, reason="starts its brokers itself")
def test_no_client_fails_with_amqpd_that_passes_with_rabbitmq() -> None:
    matrix = run([each.name for each in CLIENTS if not each.over], (), (), jobs=6)
    if OUT.parent.is_dir():
        report.write(matrix, OUT)
    print(report.text(matrix))
    missing = sorted({each.client for each in matrix.cells if each.verdict == "missing" and each.side == "amqpd"})
    assert not (missing and os.environ.get("TEST_REQUIRE_CLIENTS")), f"not installed: {missing}: make clients"
    no_peer = matrix.sides[RABBITMQ].startswith("missing")
    assert not (no_peer and os.environ.get("TEST_REQUIRE_RABBITMQ")), "RabbitMQ is not installed: make rabbitmq"
    assert [(each.client, each.scenario, each.side, each.text) for each in differences(matrix.cells)] == []
