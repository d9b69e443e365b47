"""How much a test run tries: the quick profile, or with TEST_PROFILE=thorough the thorough one of `make test-all`.

A property is decided by the same test in both; only the number of random examples and of repetitions differs.
"""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = os.environ.get("TEST_PROFILE", "quick") == "thorough"
QUICK_EXAMPLES: Final = 25


def examples(thorough: int) -> int:
    """Return the number of hypothesis examples: `thorough`, at most 25 in the quick profile."""
    return thorough if THOROUGH else min(QUICK_EXAMPLES, thorough)
