"""The raw peer of the conformance suite tries permissions; importmode=importlib leaves its folder off the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "conformance"))
