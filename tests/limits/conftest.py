"""The quick client of the crash tests serves here too; importmode=importlib leaves both folders off the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "crash")]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Promises of latency are tried by `make test-all`, alone on the machine."""
    item.add_marker(pytest.mark.slow)
