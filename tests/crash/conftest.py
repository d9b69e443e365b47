"""Put this folder on the path for the shared modules; importmode=importlib leaves it off."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
