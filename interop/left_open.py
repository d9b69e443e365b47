"""What a module of tests leaves to Python's collector is found when its last test has ended.

A socket that nobody closed, an error that nobody asked for: pytest is told of it when the collector comes, and fails
whatever test runs then, in CI a tenth of an hour behind the one that did it. Both conftest.py have this fixture.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Set up before all others of the module, so that it ends behind them. What stays, as imported modules do, is not
    gone over again: 0.1 s a module at most.
    """
    yield
    gc.collect()
    gc.freeze()
