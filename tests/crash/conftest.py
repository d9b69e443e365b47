"""Put this folder on the path for the shared modules; importmode=importlib leaves it off."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401


@pytest.fixture
def quiet() -> Iterator[None]:
    """Switch off the log lines of the many recoveries."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
