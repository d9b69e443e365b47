"""Makes the fast client of the crash tests and this folder importable: importmode=importlib does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "crash")]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test as slow: `make test-all` runs latency tests alone on the machine."""
    item.add_marker(pytest.mark.slow)
