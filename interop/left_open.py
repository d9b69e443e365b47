"""A fixture that collects a test module's garbage after its last test.

For an unclosed socket or an unretrieved error, pytest fails the test during which the garbage collector runs. In CI
that may be minutes after the responsible test. Both conftest.py have this fixture.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Set up before all other fixtures of the module, so that it ends after them. Remaining objects, such as imported
    modules, are not collected again: at most 0.1 s a module.
    """
    yield
    gc.collect()
    gc.freeze()
