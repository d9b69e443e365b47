"""The quick client of the crash tests serves here too; importmode=importlib leaves both folders off the path."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "crash")]
