"""What every test run says first: which amqpd it tests, and from where."""

from __future__ import annotations

from pathlib import Path

import pytest

import amqpd
from amqpd._build import describe

# Helper modules that several folders import: whoever is collected first must not import them unrewritten.
pytest.register_assert_rewrite("cases", "deliveries", "parties", "peer", "ledger", "loadrun", "cutting")


def pytest_report_header() -> str:
    return f"{describe()} from {Path(amqpd.__file__).parent}"
