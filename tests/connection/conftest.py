"""The broker in memory of the models, and the raw peer of the conformance suite, serve here too.

importmode=importlib leaves their folders off the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / "connection"), str(TESTS / "model"), str(TESTS / "conformance")]
