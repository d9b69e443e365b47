"""The models share a broker in memory; importmode=importlib leaves this folder off the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
