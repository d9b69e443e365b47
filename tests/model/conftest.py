"""Shared fixtures of the model tests. importmode=importlib leaves this folder off the path, so it is added here."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from amqpd.broker.queue import log_opener
from amqpd.broker.vhost import policy_table

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def unlimited_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slices of log opening and policy changes run to their end.

    Slices yield by the machine's clock, which no model knows: on a slow machine the order would differ.
    """
    monkeypatch.setattr(policy_table, "SLICE_S", math.inf)
    monkeypatch.setattr(log_opener, "SLICE_S", math.inf)
