"""The files in docs/deploy, and a broker as services and containers have it."""

from __future__ import annotations

import sys
from pathlib import Path

# What the tests share lies beside them; importmode=importlib leaves this folder off the path.
sys.path.insert(0, str(Path(__file__).parent))
