"""What `/api/queues` says of a queue that cannot be used just now, and why."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.management import queues
from amqpd.management.queues import is_refilling, state_item


class Log:
    """As far as is looked at."""

    def __init__(
        self, local: bool = False, ready: bool = True, failed: bool = False, refused: str | None = None
    ) -> None:
        self.local, self.ready, self.failed, self.refused = local, ready, failed, refused

    def location(self) -> dict[str, object]:
        return {"refused": self.refused}


READ = "its messages are being read back from Kafka"


@pytest.mark.parametrize(
    ("store", "opened", "state", "reason"),
    [
        (None, True, "running", None),
        (Log(local=True), True, "running", None),
        (Log(), True, "running", None),
        (Log(ready=False), False, "syncing", READ),
        (Log(local=True, ready=False), True, "running", None),
        (Log(local=True, ready=False), False, "down", "its log cannot be used; see the broker's log"),
        (Log(failed=True, refused="its topic is gone"), True, "down", "its topic is gone"),
        (Log(failed=True, ready=False, refused="its topic is gone"), False, "down", "its topic is gone"),
    ],
)
def test_state(store: Any, opened: bool, state: str, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "LocalLog", Log)
    assert state_item(store, opened) == {"state": state, "state_reason": reason}
    assert is_refilling(store) == (state == "syncing")
