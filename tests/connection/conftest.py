"""Put the in-memory broker of `tests/model` and the raw peer of `tests/conformance` on the import path.

Pytest's importmode=importlib does not do that.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / "connection"), str(TESTS / "model"), str(TESTS / "conformance")]
