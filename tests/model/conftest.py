"""The models share a broker in memory; importmode=importlib leaves this folder off the path."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from amqpd.broker.queue import log_opener
from amqpd.broker.vhost import policy_table

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def slices_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that are opened and policies on their way over queues let others in between by the machine's clock, which no
    model knows: on a machine that stands still for a moment it would see another order.
    """
    monkeypatch.setattr(policy_table, "SLICE_S", math.inf)
    monkeypatch.setattr(log_opener, "SLICE_S", math.inf)
