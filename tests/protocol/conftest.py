"""Tests of the protocol share what lies beside them; importmode=importlib leaves this folder off the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
