"""Report at the end of the run which blocks of the documentation were not run, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

NOT_RUN: list[str] = []


@pytest.fixture(scope="session")
def not_run() -> list[str]:
    """Lines for the end of the run: `docs/deploy.md:12 sh: reason`."""
    return NOT_RUN


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if NOT_RUN:
        terminalreporter.section(f"{len(NOT_RUN)} blocks of the documentation that were not run")
        for line in sorted(NOT_RUN):
            terminalreporter.line(line)
