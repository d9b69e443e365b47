"""Makes the raw peer of the conformance suite importable: importmode=importlib does not add its folder to the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "conformance"))
