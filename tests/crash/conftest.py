"""Put this folder on the path for the shared modules; importmode=importlib leaves it off."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
